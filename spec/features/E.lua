return {
  group = "E", title = "Mixed precision",
  { "autocast(autocast_handler=None)" },
  { "prepared forward" },
  { "fp16" },
  { "bf16" },
  { "dynamic loss scale" },
  { "skip detection" },
  { "FSDP scaler" },
  { "downcast_bf16" },
  { "TF32" },
  { "FSDP upcast" },
}
