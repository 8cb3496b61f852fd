return {
  group = "G", title = "Process control",
  { "on_main_process, on_local_main_process, on_last_process" },
  { "on_process(process_index=), on_local_process(local_process_index=)" },
  { "main_process_first, local_main_process_first" },
  { "print(...)" },
  { "end_training()" },
  { "destroy_process_group(group=None)" },
  { "default process-group timeout" },
  { "CPU affinity" },
  { "CPU threads" },
  { "RTX 40xx" },
  { "old kernel warning" },
}
