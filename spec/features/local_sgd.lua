return {
  group = "W", title = "Local SGD",
  { "LocalSGD(accelerator, model, local_sgd_steps, enabled=true)",
    spec = {
      "accelerate/local_sgd_spec: averages the parameters after every so many steps and at the end, and " ..
        "nothing in between",
      "accelerate/local_sgd_spec: only calls on one process, and checks its arguments" } },
}
