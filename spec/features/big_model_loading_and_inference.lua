return {
  group = "Q", title = "Big-model loading and inference",
  { "init_empty_weights(include_buffers=None)",
    spec = "accelerate/big_modeling_spec: makes models of every kind of layer without memory or draws" },
  { "init_on_device(device, include_buffers)",
    spec = "accelerate/big_modeling_spec: makes parameters on a device, with values where it has memory" },
}
