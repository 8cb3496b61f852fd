return {
  group = "S", title = "Quantisation (bitsandbytes)",
  { "BnbQuantizationConfig",
    spec = { "quantised/models_spec: takes exactly one of 4 and 8 bits",
      "quantised/models_spec: has Accelerate's defaults" } },
  { "load_and_quantize_model",
    spec = { "quantised/models_spec: keeps the last layer, and casts what it keeps to torch_dtype",
      "quantised/models_spec: skips and keeps by name, by path and below a module",
      "quantised/models_spec: loads a model without values from plain and from encoded files" } },
  { "training quantised models",
    spec = { "quantised/models_spec: lets adapters and inputs have gradients, and the codes none",
      "peft/lora_spec: over nf4, near the loss over float32" } },
}
