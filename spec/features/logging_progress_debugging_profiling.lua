return {
  group = "U", title = "Logging, progress, debugging, profiling",
  { "get_logger(name, log_level=None)",
    spec = { "accelerate/logging_spec: raises when it is used before any state",
    "accelerate/logging_spec: takes its level from the argument, from ACCELERATE_LOG_LEVEL, or is at " ..
      "WARNING; and sets the root's",
    "accelerate/logging_spec: logs on the main process, on all, or on all in order, " ..
      "with the rank before the text" } },
  { "warning_once", spec = "accelerate/logging_spec: says the same only once" },
  { "utils.tqdm(main_process_only=true)",
    spec = { "accelerate/logging_spec: writes whole lines where there is no terminal, " ..
    "on the local main process only",
    "accelerate/accelerator_spec: goes through a loader and refuses a boolean" } },
  { "debug mode", spec = "accelerate/operations_spec: in debug mode names the shapes of all ranks" },
  { "profile(profile_handler=None)",
    spec = { "accelerate/profiler_spec: adds up ops by name and script line, gradients by the line of " ..
    "their forward pass",
    "accelerate/profiler_spec: counts the operations of products and convolutions",
    "accelerate/profiler_spec: follows the schedule",
    "accelerate/profiler_spec: takes a handler among kwargs_handlers, and names what is wrong",
    "accelerate/profiler_spec: writes a file for each rank, collectives among the events" } },
  -- Upstream installs a Python library that colours tracebacks.  Ours name rank, line and stack as
  -- they are: the variable changes nothing.
  { "rich tracebacks", spec = "accelerate/logging_spec: name the rank and the line, whatever " ..
    "ACCELERATE_ENABLE_RICH says" },
  { "stack location",
    spec = "accelerate/logging_spec: points at the line that calls, also through wrappers" },
}
