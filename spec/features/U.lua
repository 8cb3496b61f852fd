return {
  group = "U", title = "Logging, progress, debugging, profiling",
  { "get_logger(name, log_level=None)" },
  { "warning_once" },
  { "utils.tqdm(main_process_only=true)" },
  { "debug mode" },
  { "profile(profile_handler=None)" },
  { "rich tracebacks" },
  { "stack location" },
}
