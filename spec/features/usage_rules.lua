return {
  group = "AG", title = "Usage rules",
  { "make the Accelerator early",
    spec = "accelerate/state_spec: is only made by an Accelerator" },
  { "optimizer after moving the model",
    spec = "accelerate/preparing_spec: places each object as its entry of device_placement says, state " ..
    "of optimizers included" },
  { "lengths after prepare",
    spec = "dist/loops_spec: base and migrated: the migrated one does on any number of ranks what the " ..
    "base loop does on one" },
  { "effective batch size",
    spec = {
      "dist/loops_spec: base and migrated: the migrated one does on any number of ranks what the base " ..
        "loop does on one",
      "dist/loops_spec: with split_batches take the script's batch size for that of all ranks, in the " ..
        "order of one rank" } },
  { "loss inside the model or in autocast",
    spec = {
      "dist/loops_spec: of mixed precision compute in bfloat16 and agree as well",
      "accelerate/mixed_precision_spec: casts what runs in accelerator:autocast, as its handler says" } },
  { "local versus global main",
    spec = {
      "accelerate/state_spec: shows each rank its own numbers",
      "accelerate/state_spec: prints once" } },
  { "unwrap before saving and loading",
    spec = {
      "accelerate/preparing_spec: unwraps to the model itself, with the parameters it has and, if asked, " ..
        "its own forward",
      "dist/loops_spec: of deferred execution wait for the main process, and save what all have trained" } },
  { "checkpoints in the same script",
    spec = "accelerate/checkpoint_runs_spec: at any moment goes on with the same bits" },
  { "skip the scheduler by hand",
    spec = {
      "dist/loops_spec: of mixed precision compute in bfloat16 and agree as well",
      "accelerate/grad_scaler_spec: skips a step on all ranks when one of them has overflown, and keeps " ..
        "what it says between real steps" } },
  { "local generators",
    spec = "accelerate/training_spec: comes from its own generator, so that sharing it leaves the ranks' " ..
    "augmentation alone" },
  { "static shapes on TPU",
    later = "there is no TPU here; tied weights stay tied, and lengths may differ from step to step",
    spec = "accelerate/parallel_spec: give tied weights one slot" },
}
