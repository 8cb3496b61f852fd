local NO_ENGINE =
  "cli/config_spec: of engines that are not there are each known, " ..
  "and a line says that they have no effect"

return {
  group = "Z", title = "launch options",
  { "--config_file, -q/--quiet, -h, --debug", spec = { "cli/config_spec: starts ranks that see its settings",
    "cli/launch_spec: shows the script's error, and not where the other ranks were",
    "cli/options_spec: are listed by --help, each with its variable", "cli/config_spec: reach the ranks" } },
  { "--cpu, --multi_gpu, --tpu, --use_deepspeed, --use_fsdp (exclusive), --use_megatron_lm, " ..
    "--use_parallelism_config", spec = { "cli/config_spec: exclude one another where they must",
    "cli/engines_spec: go with --cpu, for ranks on CPUs cut models, too",
    "cli/config_spec: for what is not there are refused with the reason, " ..
    "or have no effect, which a line says" } },
  { "--mixed_precision, --num_processes (total), --num_machines, --num_cpu_threads_per_process, " ..
    "--enable_cpu_affinity", spec = {
    "cli/options_spec: may be a word out of a few, which reaches the script's Accelerator",
    "cli/options_spec: a script gets a rank for each visible GPU, in one line",
    "cli/options_spec: reach the script where it is the script's business",
    "dist/machines_spec: number their ranks through, and each from 0" } },
  { "--dynamo_backend, --dynamo_mode, --dynamo_use_fullgraph, --dynamo_use_dynamic, " ..
    "--dynamo_use_regional_compilation", spec = { "cli/config_spec: reach the ranks", NO_ENGINE } },
  { "--gpu_ids, --same_network, --machine_rank, --main_process_ip, --main_process_port " ..
    "(0 = free port; default 29500)", spec = { "cli/config_spec: exclude one another where they must",
    "cli/config_spec: reach the ranks" } },
  { "-t/--tee, --log_dir, --role, --rdzv_backend, --rdzv_conf, --max_restarts, --monitor_interval", spec = {
    "cli/launch_spec: puts the rank in front of each line, of stdout, stderr or both",
    "cli/launch_spec: writes a file for each stream of each rank below --log_dir",
    "cli/launch_spec: starts all ranks again, from the newest checkpoint, until they end well",
    "cli/config_spec: reach the ranks",
    "cli/config_spec: for what is not there are refused with the reason, " ..
    "or have no effect, which a line says",
    "dist/failure_spec: is looked at as often as --monitor_interval says" } },
  { "-m/--module, --no_python", spec = { "cli/config_spec: run a module, or another program in each rank",
    "cli/config_spec: exclude one another where they must" } },
  { "--tpu_cluster, --no_tpu_cluster, --tpu_use_sudo, --vm, --env, --main_training_function, " ..
    "--downcast_bf16", spec = NO_ENGINE },
  { "DeepSpeed: --deepspeed_config_file, --zero_stage, --offload_*_device, --offload_*_nvme_path, " ..
    "--gradient_accumulation_steps, --gradient_clipping, --zero3_init_flag, --zero3_save_16bit_model, " ..
    "--deepspeed_hostfile, --deepspeed_exclusion_filter, --deepspeed_inclusion_filter, " ..
    "--deepspeed_multinode_launcher, --deepspeed_moe_layer_cls_names", spec = {
    "deepspeed/launch_spec: travel to the ranks as Accelerate's variables",
    "deepspeed/launch_spec: says how many machines and ranks there are, where machine 0 is, " ..
      "and which one this is",
    "deepspeed/launch_spec: goes to mpirun with openmpi, and launchers that are not ours are " ..
      "refused by name" } },
  { "FSDP: --fsdp_version 1, --fsdp_offload_params, --fsdp_min_num_params 1e8, --fsdp_sharding_strategy, " ..
    "--fsdp_reshard_after_forward, --fsdp_auto_wrap_policy, --fsdp_transformer_layer_cls_to_wrap, " ..
    "--fsdp_backward_prefetch, --fsdp_state_dict_type, --fsdp_forward_prefetch, " ..
    "--fsdp_use_orig_params true, --fsdp_cpu_ram_efficient_loading true, --fsdp_sync_module_states true, " ..
    "--fsdp_activation_checkpointing", spec = {
    "cli/engines_spec: travel to the ranks as variables, with Accelerate's defaults",
    "cli/engines_spec: are checked, and name what was expected" } },
  { "Megatron: --megatron_lm_* (27 options)", spec = NO_ENGINE },
  { "FP8: --fp8_backend and --fp8_* (12 options)", spec = "cli/config_spec: of FP8 reach the ranks" },
  { "--aws_access_key_id, --aws_secret_access_key", spec = NO_ENGINE },
  { "--mpirun_hostfile",
    spec = "dist/machines_mpi_spec: which --mpirun_hostfile names are started by mpirun" },
  { "--parallelism_config_* (11 options)", spec = { "cli/engines_spec: as an option needs FSDP2",
    "cli/engines_spec: refuses dims that are not there, with their place" } },
  { "launchers", spec = { "cli/options_spec: is run in this process unless several are asked for",
    "dist/failure_spec: that exits behind Lua's back is named with its status" } },
  { "defaults used", spec = { "cli/options_spec: are explained with their origin",
    "cli/options_spec: a script gets a rank for each visible GPU, in one line" } },
  { "other launchers", spec = { "dist/joins_spec: share memory as forked ranks do",
    "dist/joins_spec: finds its machine's number and machine 0 in what srun, torchrun and a " ..
    "Kubernetes Job set" } },
}
