return {
  group = "G", title = "Process control",
  { "on_main_process, on_local_main_process, on_last_process", spec = {
    "accelerate/state_spec: runs a function where it is meant to",
    "accelerate/state_spec: runs decorated functions on one process, whatever rank they name" } },
  { "on_process(process_index=), on_local_process(local_process_index=)", spec = {
    "accelerate/state_spec: runs a function where it is meant to",
    "accelerate/state_spec: runs decorated functions on one process, whatever rank they name" } },
  { "main_process_first, local_main_process_first",
    spec = "accelerate/state_spec: lets the main process of the machine go first, " ..
      "and goes on after an error" },
  { "print(...)", spec = "accelerate/state_spec: prints once" },
  { "end_training()",
    spec = {
      "accelerate/state_spec: ends with the group left: who waits is told, and numbers stay",
      "accelerate/tracking_spec: is called in order, with the step and its own options" } },
  { "destroy_process_group(group=None)",
    spec = "accelerate/state_spec: ends with the group left: who waits is told, and numbers stay" },
  { "default process-group timeout", spec = {
    "accelerate/config_spec: for the process group check every field",
    "accelerate/config_spec: sets how long ranks wait, which the launcher's --timeout says otherwise" } },
  { "CPU affinity", spec = "accelerate/state_spec: binds ranks to the processors near their GPU, " ..
    "where there is one" },
  { "CPU threads", spec = "accelerate/state_spec: shares its processors between ranks, unless " ..
    "OMP_NUM_THREADS says" },
  { "RTX 40xx",
    later = "the launcher does not look for cards that cannot reach each other's memory",
    spec = "accelerate/accelerator_spec: places what it prepares, unless told not to" },
  { "old kernel warning", spec = "accelerate/state_spec: is told of when its kernel is old, once" },
}
