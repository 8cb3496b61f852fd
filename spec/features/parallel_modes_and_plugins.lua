return {
  group = "N", title = "Parallel modes and plugins",
  { "DeepSpeedPlugin", spec = {
    "deepspeed/plugin_spec: makes a configuration of its arguments, as Accelerate does",
    "deepspeed/plugin_spec: has Accelerate's defaults",
    "deepspeed/plugin_spec: refuses MS-AMP, and arguments of other kinds, by name" } },
  { "DeepSpeed config handling", spec = {
    "deepspeed/accelerator_spec: fills 'auto' from the run",
    "deepspeed/plugin_spec: refuses settings of the accelerate config beside deepspeed_config_file",
    "deepspeed/plugin_spec: names all that contradicts each other in one message, each with its place",
    "deepspeed/accelerator_spec: names all that does not fit in one message, each value with its origin",
    "deepspeed/accelerator_spec: has several plugins by name, of which one is in force" } },
  { "DeepSpeed accumulation", spec = {
    "deepspeed/accelerator_spec: happens at the end of a window, and returns the last norm before it",
    "deepspeed/accelerator_spec: takes the configuration's windows, and says so where the Accelerator has " ..
    "others" } },
}
