return {
  group = "U", title = "Logging, progress, debugging, profiling",
  { "get_logger(name, log_level=None)", spec = { "accelerate/logging_spec: raises when it is used before any state",
    "accelerate/logging_spec: takes its level from the argument, from ACCELERATE_LOG_LEVEL, or is at WARNING; and sets the root's",
    "accelerate/logging_spec: logs on the main process, on all, or on all in order, with the rank before the text" } },
  { "warning_once", spec = "accelerate/logging_spec: says the same only once" },
  { "utils.tqdm(main_process_only=true)", spec = { "accelerate/logging_spec: writes whole lines where there is no terminal, on the local main process only",
    "accelerate/accelerator_spec: goes through a loader and refuses a boolean" } },
  { "debug mode" },
  { "profile(profile_handler=None)" },
  { "rich tracebacks" },
  { "stack location", spec = "accelerate/logging_spec: points at the line that calls, also through wrappers" },
}
