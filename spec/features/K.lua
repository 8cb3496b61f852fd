return {
  group = "K", title = "Optimizer and scheduler wrappers",
  { "AcceleratedOptimizer" },
  { "step_was_skipped" },
  { "AcceleratedScheduler.step" },
  { "one-cycle protection" },
  { "adjust_scheduler" },
  { "pass-through" },
  { "DeepSpeed wrappers" },
  { "when to prepare a scheduler" },
}
