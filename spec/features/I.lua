return {
  group = "I", title = "Random numbers",
  { "synchronize_rng_state(s)(types, generator)" },
  { "sampler generator" },
  { "set_seed(seed, device_specific=false, deterministic=false)" },
  { "RNGType" },
}
