return {
  group = "AG", title = "Usage rules the seeds state",
  { "make the Accelerator early" },
  { "optimizer after moving the model" },
  { "lengths after prepare" },
  { "effective batch size" },
  { "loss inside the model or in autocast" },
  { "local versus global main" },
  { "unwrap before saving and loading" },
  { "checkpoints in the same script" },
  { "skip the scheduler by hand" },
  { "local generators" },
  { "static shapes on TPU" },
}
