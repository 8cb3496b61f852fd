return {
  group = "B", title = "Accelerator attributes and properties",
  { "device", spec = "accelerate/accelerator_spec: places what it prepares, unless told not to" },
  { "distributed_type", spec = {
    "accelerate/accelerator_spec: takes nothing, and has Accelerate's defaults",
    "accelerate/state_spec: shows each rank its own numbers" } },
  { "num_processes, process_index, local_process_index",
    spec = "accelerate/state_spec: shows each rank its own numbers" },
  { "is_main_process", spec = "accelerate/state_spec: shows each rank its own numbers" },
  { "is_local_main_process", spec = "accelerate/state_spec: shows each rank its own numbers" },
  { "is_last_process", spec = "accelerate/state_spec: shows each rank its own numbers" },
  { "use_distributed", spec = {
    "accelerate/accelerator_spec: takes nothing, and has Accelerate's defaults",
    "accelerate/state_spec: shows each rank its own numbers" } },
  { "multi_device", spec = {
    "accelerate/accelerator_spec: takes nothing, and has Accelerate's defaults",
    "accelerate/accelerator_spec: has fields for what other engines would have" } },
  { "mixed_precision", spec = "accelerate/mixed_precision_spec: is told by the accelerator and its state" },
  { "state, gradient_state", spec = {
    "accelerate/accelerator_spec: takes nothing, and has Accelerate's defaults",
    "accelerate/state_spec: has all of PartialState, " ..
      "and refuses what the first Accelerator was not made with" } },
  { "sync_gradients (settable)",
    spec = "accelerate/state_spec: is shared, and starts in sync outside of any loader" },
  { "optimizer_step_was_skipped",
    spec = {
      "accelerate/grad_scaler_spec: on a device scales the loss, skips steps that overflow, and lets the " ..
        "schedule wait for them",
      "accelerate/grad_scaler_spec: skips a step on all ranks when one of them has overflown, and keeps " ..
        "what it says between real steps" } },
  { "gradient_accumulation_steps (settable)",
    spec = "accelerate/accelerator_spec: sets the steps of accumulation for all accelerators" },
  { "split_batches, dispatch_batches, even_batches (settable), use_seedable_sampler, non_blocking, " ..
    "use_stateful_dataloader",
    spec = "accelerate/accelerator_spec: takes each argument, and shows it" },
  { "project_dir, logging_dir, save_iteration", spec = {
    "accelerate/accelerator_spec: reads projects",
    "accelerate/config_spec: of projects have Accelerate's fields, and logs go to the project unless " ..
      "they have a place" } },
  { "step", spec = "accelerate/accelerator_spec: takes each argument, and shows it" },
  { "trackers, log_with",
    spec = {
      "accelerate/accelerator_spec: takes each argument, and shows it",
      "accelerate/tracking_spec: takes a name, an object, a list of them, 'all'" } },
  { "scaler, native_amp, fp8_enabled, fp8_backend",
    spec = {
      "accelerate/accelerator_spec: has fields for what other engines would have",
      "accelerate/accelerator_spec: says fp16 on a CPU and computes in float32, which it tells once",
      "accelerate/grad_scaler_spec: on a device scales the loss, skips steps that overflow, and lets the " ..
        "schedule wait for them" } },
  { "is_fsdp2, is_composable_parallelism_enabled",
    spec = "sharded/fsdp_plugin_spec: is of the type FSDP, and has the plugin in its state" },
  { "parallelism_config, torch_device_mesh, tensor_parallel_rank, data_parallel_rank, " ..
    "data_parallel_shard_rank",
    spec = {
      "sharded/parallelism_spec: gives each rank its place in the mesh",
      "sharded/parallelism_spec: needs a config for the places" } },
  { "should_save_model", spec = {
    "accelerate/accelerator_spec: takes nothing, and has Accelerate's defaults",
    "sharded/parallelism_spec: gives each rank its place in the mesh" } },
  { "deepspeed_plugin", spec = {
    "deepspeed/accelerator_spec: is of the type DEEPSPEED, and has its plugin",
    "accelerate/accelerator_spec: has fields for what other engines would have" } },
  { "_models, _optimizers, _schedulers, _dataloaders, _custom_objects", spec = {
    "accelerate/accelerator_steps_spec: returns objects in the order given, whatever that is",
    "accelerate/accelerator_weights_spec: is registered in order, and only what can be saved" } },
}
