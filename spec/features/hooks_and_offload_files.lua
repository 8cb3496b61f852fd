return {
  group = "R", title = "Hooks and offload files",
  { "ModelHook",
    spec = "big/hooks_spec: changes arguments before and results after forward" },
  { "SequentialHook, add_hook_to_module(append), remove_hook_from_module(recurse), " ..
    "remove_hook_from_submodules",
    spec = "big/hooks_spec: takes the place of another one, or follows it with append" },
  { "AlignDevicesHook, attach_align_device_hook(_on_blocks), attach_execution_device_hook",
    spec = "big/hooks_spec: leaves weights without elements between calls" },
  { "CpuOffload, UserCpuOffloadHook, LayerwiseCastingHook",
    spec = "big/hooks_spec: brings the previous model back before its own comes" },
}
