return {
  group = "M", title = "Configuration and handler objects",
  { "DataLoaderConfiguration", spec = "accelerate/config_spec: of loaders have Accelerate's fields" },
  { "ProjectConfiguration",
    spec = "accelerate/config_spec: of projects have Accelerate's fields, and logs go to the project " ..
    "unless they have a place" },
  { "GradientAccumulationPlugin", spec = {
    "accelerate/config_spec: of accumulation have Accelerate's fields",
    "accelerate/accelerator_spec: sets the steps of accumulation for all accelerators" } },
  { "KwargsHandler.to_kwargs", spec = "accelerate/config_spec: give what differs from their defaults" },
  { "AutocastKwargs", spec = "accelerate/config_spec: for casting have Accelerate's fields" },
  { "DistributedDataParallelKwargs", spec = {
    "accelerate/config_spec: for data parallelism check every field, and which go together",
    "dist/comm_hooks_spec: tell about parameters that a loss did not reach only where the script " ..
      "promised otherwise",
    "dist/comm_hooks_spec: broadcast rank 0's buffers unless told not to" } },
  { "DDP communication hooks", spec = {
    "dist/comm_hooks_spec: train as PyTorch's do",
    "dist/comm_hooks_spec: lose nothing where gradients have the rank that is sent, and keep ranks " ..
      "together on any number of them" } },
  { "GradScalerKwargs",
    spec = {
      "accelerate/config_spec: for the loss scaler check every field",
      "accelerate/grad_scaler_spec: on a device scales the loss, skips steps that overflow, and lets the " ..
        "schedule wait for them" } },
  { "InitProcessGroupKwargs", spec = {
    "accelerate/config_spec: for the process group check every field",
    "accelerate/config_spec: sets how long ranks wait, which the launcher's --timeout says otherwise",
    "accelerate/config_spec: takes the group that there is, and no other" } },
  { "ProfileKwargs",
    spec = {
      "accelerate/config_spec: for profiling check every field",
      "accelerate/profiler_spec: takes a handler among kwargs_handlers, and names what is wrong",
      "accelerate/profiler_spec: shows shapes, memory, the stack and the modules where they are asked for",
      "accelerate/profiler_spec: follows the schedule",
      "accelerate/profiler_spec: calls on_trace_ready at the end where there is no schedule, " ..
        "and keeps the events" } },
  { "AORecipeKwargs, TERecipeKwargs, MSAMPRecipeKwargs, FP8RecipeKwargs (deprecated)",
    spec = {
      "accelerate/float8_spec: have Accelerate's fields and defaults",
      "accelerate/float8_spec: say what is wrong, and what is not there",
      "accelerate/float8_spec: takes scales from earlier steps, as transformer-engine does" } },
}
