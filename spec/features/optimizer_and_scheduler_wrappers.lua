return {
  group = "K", title = "Optimizer and scheduler wrappers",
  { "AcceleratedOptimizer",
    spec = {
      "accelerate/preparing_spec: step with a closure, and only when gradients are synchronised",
      "accelerate/accelerator_steps_spec: an accelerated optimizer passes everything else through" } },
  { "step_was_skipped",
    spec = {
      "accelerate/grad_scaler_spec: skips a step on all ranks when one of them has overflown, and keeps " ..
        "what it says between real steps",
      "accelerate/preparing_spec: pass on what they do not have themselves" } },
  { "AcceleratedScheduler.step",
    spec = {
      "accelerate/accelerator_steps_spec: moves as Accelerate's does",
      "accelerate/grad_scaler_spec: on a device scales the loss, skips steps that overflow, and lets the " ..
        "schedule wait for them" } },
  { "one-cycle protection",
    spec = {
      "accelerate/accelerator_steps_spec: does not move a one-cycle schedule past its end",
      "accelerate/preparing_spec: end a one-cycle schedule where it ends, however many ranks move it" } },
  { "adjust_scheduler",
    spec = "accelerate/preparing_spec: move a schedule once a call without " ..
    "step_scheduler_with_optimizer, and adjust_scheduler changes nothing" },
  { "pass-through",
    spec = "accelerate/preparing_spec: pass on what they do not have themselves" },
  { "DeepSpeed wrappers",
    spec = {
      "deepspeed/accelerator_spec: moves the schedule of the configuration once, and the schedule's own " ..
    "step does nothing", "deepspeed/accelerator_spec: moves what lr_scheduler_callable makes, and " ..
    "DeepSpeed's own classes" } },
  { "when to prepare a scheduler",
    spec = {
      "dist/loops_spec: of mixed precision compute in bfloat16 and agree as well",
      "accelerate/preparing_spec: move a schedule once a call without step_scheduler_with_optimizer, and " ..
        "adjust_scheduler changes nothing" } },
}
