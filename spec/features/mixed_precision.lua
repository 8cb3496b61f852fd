return {
  group = "E", title = "Mixed precision",
  { "autocast(autocast_handler=None)",
    spec = {
      "accelerate/training_spec: nests, is overridden by a handler, and comes back after an error",
      "accelerate/mixed_precision_spec: casts what runs in accelerator:autocast, as its handler says" } },
  { "prepared forward",
    spec = {
      "accelerate/mixed_precision_spec: runs a prepared model's forward in bfloat16 and returns float32",
      "accelerate/mixed_precision_spec: converts nested outputs, and only floating ones of half types" } },
  { "fp16",
    spec = {
      "accelerate/accelerator_spec: says fp16 on a CPU and computes in float32, which it tells once",
      "accelerate/grad_scaler_spec: on a device scales the loss, skips steps that overflow, and lets the " ..
        "schedule wait for them" } },
  { "bf16",
    spec = {
      "accelerate/mixed_precision_spec: trains as PyTorch's autocast does",
      "dist/loops_spec: of mixed precision compute in bfloat16 and agree as well" } },
  { "dynamic loss scale",
    spec = "accelerate/grad_scaler_spec: scales, skips and adapts as torch.amp.GradScaler" },
  { "skip detection",
    spec = {
      "accelerate/grad_scaler_spec: skips a step on all ranks when one of them has overflown, and keeps " ..
        "what it says between real steps",
      "accelerate/grad_scaler_spec: on a device scales the loss, skips steps that overflow, and lets the " ..
        "schedule wait for them" } },
  { "FSDP scaler",
    later = "fully sharded data parallel is not there yet; leave the option out",
    spec = "accelerate/accelerator_spec: says which engines are not there yet" },
  { "downcast_bf16",
    later = "there is no option --downcast_bf16: it is a TPU's",
    spec = "accelerate/preparing_spec: says which engines would refuse what" },
  { "TF32",
    later = "graph compilation, which would switch it on, is not there yet",
    spec = "accelerate/accelerator_spec: says which engines are not there yet" },
  { "FSDP upcast",
    later = "fully sharded data parallel is not there yet; leave the option out",
    spec = "accelerate/accelerator_spec: says which engines are not there yet" },
}
