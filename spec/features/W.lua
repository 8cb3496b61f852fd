return {
  group = "W", title = "Local SGD",
  { "LocalSGD(accelerator, model, local_sgd_steps, enabled=true)" },
}
