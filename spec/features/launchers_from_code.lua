return {
  group = "X", title = "Launchers from code",
  { "notebook_launcher(function, args, num_processes, mixed_precision='no', use_port='29500', " ..
    "master_addr, " ..
    "node_rank, num_nodes, rdzv_*, max_restarts=0, monitor_interval=0.1, log_line_prefix_template)", spec = {
    "dist/launchers_spec: returns what rank 0 returns, tensors and nil too",
    "dist/launchers_spec: starts all ranks again as often as max_restarts says",
    "dist/launchers_spec: makes one world of all ranks, whose rank 0 returns",
    "dist/launchers_spec: starts again on all machines, as machine 0 counts",
    "dist/launchers_spec: does not meet a machine with another rdzv_id",
    "dist/launchers_spec: gives its ranks the address and the id of the run",
    "dist/launchers_spec: runs in place with one process", "dist/launchers_spec: says what it cannot do" } },
  { "debug_launcher(function, args, num_processes=2)",
    spec = "dist/launchers_spec: has a sister for two ranks of the CPU" },
  { "PrepareForLaunch",
    spec = "dist/launchers_spec: starts loaders with workers, and sets what torchrun sets" },
  { "Accelerator inside the function", spec = "dist/launchers_spec: says what it cannot do" },
}
