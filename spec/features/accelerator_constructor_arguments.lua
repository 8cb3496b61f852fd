return {
  group = "A", title = "Accelerator constructor arguments",
  { "device_placement", spec = {
    "accelerate/accelerator_spec: places what it prepares, unless told not to",
    "accelerate/accelerator_spec: takes each argument, and shows it" } },
  { "split_batches (old; argument now dead)",
    spec = "accelerate/accelerator_spec: honours loader arguments in both places, once" },
  { "dispatch_batches, even_batches, use_seedable_sampler (old)", spec = {
    "accelerate/accelerator_spec: honours loader arguments in both places, once",
    "accelerate/accelerator_spec: takes each argument, and shows it" } },
  { "mixed_precision", spec = {
    "accelerate/accelerator_spec: refuses wrong values",
    "accelerate/accelerator_spec: lets the environment replace gradient_accumulation_steps, but not " ..
      "mixed_precision",
    "accelerate/accelerator_spec: shares state with a second one, " ..
      "which must not ask for another precision" } },
  { "gradient_accumulation_steps", spec = {
    "accelerate/accelerator_spec: lets the environment replace gradient_accumulation_steps, but not " ..
      "mixed_precision",
    "accelerate/accelerator_spec: refuses wrong values" } },
  { "cpu", spec = {
    "accelerate/accelerator_spec: places what it prepares, unless told not to",
    "accelerate/accelerator_spec: takes no device that is not there, " ..
      "nor a rank that another program started" } },
  { "dataloader_config", spec = "accelerate/accelerator_spec: takes each argument, and shows it" },
  { "deepspeed_plugin / deepspeed_plugins",
    spec = { "deepspeed/accelerator_spec: takes the plugin's fields as a table, and ACCELERATE_USE_DEEPSPEED",
      "deepspeed/accelerator_spec: has several plugins by name, of which one is in force" } },
  { "fsdp_plugin",
    spec = {
      "sharded/fsdp_plugin_spec: is of the type FSDP, and has the plugin in its state",
      "sharded/fsdp_plugin_spec: takes a plain table, and the environment's wish" } },
  { "torch_tp_plugin",
    later = "tensor parallelism is not there yet; leave the option out",
    spec = "accelerate/accelerator_spec: says which engines are not there yet" },
  { "megatron_lm_plugin",
    later = "Megatron-LM parallelism is not there yet; leave the option out",
    spec = "accelerate/accelerator_spec: says which engines are not there yet" },
  { "rng_types", spec = {
    "accelerate/accelerator_spec: takes each argument, and shows it",
    "accelerate/accelerator_spec: refuses wrong values" } },
  { "log_with",
    spec = {
      "accelerate/accelerator_spec: takes each argument, and shows it",
      "accelerate/tracking_spec: takes a name, an object, a list of them, 'all'",
      "accelerate/tracking_spec: refuses unknown names, leaves out those that are not there, " ..
        "and wants a directory" } },
  { "project_dir", spec = "accelerate/accelerator_spec: reads projects" },
  { "project_config", spec = {
    "accelerate/accelerator_spec: reads projects",
    "accelerate/config_spec: of projects have Accelerate's fields, and logs go to the project unless " ..
      "they have a place" } },
  { "gradient_accumulation_plugin", spec = {
    "accelerate/accelerator_spec: sets the steps of accumulation for all accelerators",
    "accelerate/accelerator_spec: refuses wrong values" } },
  { "step_scheduler_with_optimizer",
    spec = "accelerate/accelerator_spec: takes each argument, and shows it" },
  { "kwargs_handlers",
    spec = "accelerate/accelerator_spec: takes one handler of each class, and nothing else" },
  { "dynamo_backend / dynamo_plugin",
    later = "graph compilation is not there yet; use 'no'",
    spec = "accelerate/accelerator_spec: says which engines are not there yet" },
  { "parallelism_config",
    spec = {
      "sharded/parallelism_spec: gives each rank its place in the mesh",
      "sharded/parallelism_spec: checks the sizes against the run" } },
}
