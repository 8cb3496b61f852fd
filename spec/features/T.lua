return {
  group = "T", title = "Experiment trackers",
  { "init_trackers(project_name, config=None, init_kwargs={})" },
  { "log(values, step=None, log_kwargs={})" },
  { "get_tracker(name, unwrap=false)" },
  { "GeneralTracker" },
  { "built-in trackers" },
  { "register_tracker_class" },
  { "filter_trackers, get_available_trackers, LoggerType" },
  { "values" },
}
