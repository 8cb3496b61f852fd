return {
  group = "T", title = "Experiment trackers",
  { "init_trackers(project_name, config=None, init_kwargs={})",
    spec = { "accelerate/tracking_spec: is called in order, with the step and its own options",
    "accelerate/tracking_spec: finds registered classes by name, and says when one is replaced",
    "accelerate/tracking_spec: name what is wrong with a call" } },
  { "log(values, step=None, log_kwargs={})",
    spec = { "accelerate/tracking_spec: is called in order, with the step and its own options",
    "accelerate/tracking_spec: write on the main process only, unless the tracker says otherwise" } },
  { "get_tracker(name, unwrap=false)",
    spec = { "accelerate/tracking_spec: give a blank tracker before init_trackers, whose methods do nothing",
    "accelerate/tracking_spec: must have name, requires_logging_directory and tracker",
    "accelerate/tracking_spec: name what is wrong with a call" } },
  { "GeneralTracker", spec = { "accelerate/tracking_spec: must have name, " ..
    "requires_logging_directory and tracker",
    "accelerate/tracking_spec: that raises is told about once and left out; " ..
    "training goes on, and so do the others" } },
  { "built-in trackers", spec = { "accelerate/tracking_files_spec: come from accelerator:log: numbers, " ..
    "texts, maps, settings",
    "accelerate/tracking_files_spec: hold the bytes that TensorBoard's own writer makes",
    "accelerate/tracking_files_spec: tell of hyper-parameters as TensorBoard's plugin does",
    "accelerate/tracking_offline_spec: is the log that wandb sync reads",
    "accelerate/tracking_offline_spec: is the archive that comet upload takes",
    "accelerate/tracking_folders_spec: has a file for each metric, param and tag",
    "accelerate/tracking_folders_spec: has a table for each metric, the last values, and the settings",
    "accelerate/tracking_folders_spec: is what Task.import_offline_session takes",
    "accelerate/tracking_files_spec: jsonl: one object a line, values that JSON lacks as texts",
    "accelerate/tracking_files_spec: csv: columns as they come up, also in a file that is there already",
    "accelerate/tracking_spec: refuses unknown names, leaves out those that are not there, " ..
    "and wants a directory" } },
  { "register_tracker_class",
    spec = "accelerate/tracking_spec: finds registered classes by name, and says when one is replaced" },
  { "filter_trackers, get_available_trackers, LoggerType",
    spec = { "accelerate/tracking_spec: takes a name, an object, a list of them, 'all'",
    "accelerate/tracking_spec: refuses unknown names, leaves out those that are not there, " ..
      "and wants a directory" } },
  { "values", spec = { "accelerate/tracking_files_spec: come from accelerator:log: " ..
    "numbers, texts, maps, settings",
    "accelerate/tracking_spec: leave out what no tracker can keep, and say so once" } },
}
