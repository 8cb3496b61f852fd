return {
  group = "D", title = "Backward, accumulation, synchronisation",
  { "backward(loss, **kwargs)",
    spec = {
      "accelerate/accelerator_steps_spec: divides the loss by the number of steps, also in a short window",
      "accelerate/accelerator_steps_spec: refuses a loss that is no tensor, " ..
        "and options that it does not know",
      "accelerate/parallel_spec: with weights are the sum over the sum of weights, however items are split",
      "dist/loops_spec: give the same update for any split into micro-batches and ranks",
      "accelerate/lomo_spec: update in accelerator:backward and in lomo_backward, " ..
        "and step does nothing more" } },
  { "accumulate(*models)",
    spec = {
      "accelerate/accelerator_steps_spec: syncs on every n-th batch and on the last, and starts again " ..
        "in the next pass",
      "accelerate/accelerator_steps_spec: puts the state back when the function raises, " ..
        "with the script's line",
      "accelerate/training_spec: holds back the gradients of all that are named, and of no others",
      "dist/loops_spec: of gradient accumulation update at every second batch and at the last, and move " ..
        "the schedule then" } },
  { "effect on optimizer/scheduler",
    spec = {
      "accelerate/preparing_spec: step with a closure, and only when gradients are synchronised",
      "accelerate/accelerator_steps_spec: moves as Accelerate's does" } },
  { "end of loader",
    spec = {
      "accelerate/accelerator_steps_spec: syncs on every n-th batch and on the last, and starts again " ..
        "in the next pass",
      "accelerate/accelerator_steps_spec: with sync_with_dataloader = false counts on over passes",
      "accelerate/data_loader_spec: knows the last batch while it is in use",
      "accelerate/data_loader_spec: knows the last batch of a stream" } },
  { "no_sync(model)",
    spec = {
      "accelerate/parallel_spec: stay on the rank under no_sync, and the next reduction takes them along",
      "accelerate/training_spec: no_sync nests, takes several models or all, and " ..
        "trigger_sync_in_backward reduces what came before" } },
  { "trigger_sync_in_backward(model)",
    spec = "accelerate/training_spec: no_sync nests, takes several models or all, and " ..
    "trigger_sync_in_backward reduces what came before" },
  { "join_uneven_inputs(joinables, even_batches=None)",
    spec = {
      "accelerate/uneven_inputs_spec: takes ranks without batches along in the others' reductions",
      "accelerate/uneven_inputs_spec: gives the numbers that PyTorch's Join gives",
      "accelerate/uneven_inputs_spec: leaves optimizers and schedulers alike on all ranks",
      "accelerate/uneven_inputs_spec: is off when even_batches is true, " ..
        "and undoes what it overrode after an error",
      "accelerate/uneven_inputs_spec: warns of dispatched loaders, once, on the main process",
      "accelerate/uneven_inputs_spec: does nothing on one process" } },
  { "set_trigger / check_trigger",
    spec = {
      "accelerate/operations_spec: triggers reach all ranks, once",
      "accelerate/training_spec: are seen once by all ranks, whoever set them, any number of times",
      "dist/loops_spec: with a trigger stop all ranks at the step at which one of them saw a reason" } },
  { "clip_grad_norm_(parameters, max_norm, norm_type=2)",
    spec = {
      "accelerate/training_spec: by norm takes every kind of norm, and gives what PyTorch gives",
      "accelerate/training_spec: says what is wrong",
      "dist/loops_spec: of gradient clipping clip what all ranks have together",
      "accelerate/grad_scaler_spec: skips a step on all ranks when one of them has overflown, and keeps " ..
        "what it says between real steps" } },
  { "clip_grad_value_(parameters, clip_value)",
    spec = {
      "accelerate/training_spec: by value limits every element",
      "accelerate/training_spec: says what is wrong",
      "dist/loops_spec: of gradient clipping clip what all ranks have together" } },
  { "unscale_gradients(optimizer=None)",
    spec = {
      "accelerate/grad_scaler_spec: skips a step on all ranks when one of them has overflown, and keeps " ..
        "what it says between real steps",
      "accelerate/grad_scaler_spec: unscales once for each step, and counts several optimizers",
      "accelerate/training_spec: has no loss scale to take out without fp16, but knows its optimizers" } },
  { "lomo_backward(loss, learning_rate)",
    spec = {
      "accelerate/lomo_spec: update in accelerator:backward and in lomo_backward, and step does nothing more",
      "accelerate/lomo_spec: say what is wrong" } },
  { "LOMO/AdaLomo support",
    spec = {
      "accelerate/lomo_spec: follow their authors' trajectories",
      "accelerate/lomo_spec: never hold all gradients at once",
      "accelerate/lomo_spec: give ranks what one rank has on the whole batch, " ..
        "whichever parameters their losses reach",
      "accelerate/lomo_spec: keep their state in a state dict",
      "accelerate/lomo_spec: leave the parameters of other optimizers alone" } },
  { "gradient averaging",
    spec = "accelerate/parallel_spec: are the mean over ranks after a backward pass" },
  { "schedule-free optimizers",
    spec = "accelerate/preparing_spec: pass on what they do not have themselves" },
}
