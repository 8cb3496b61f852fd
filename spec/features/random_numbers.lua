return {
  group = "I", title = "Random numbers",
  { "synchronize_rng_state(s)(types, generator)",
    spec = {
      "accelerate/random_spec: gives every rank the state of rank 0's generators",
      "accelerate/random_spec: happens at the start of each pass, as rng_types says",
      "accelerate/random_spec: says what it cannot do",
    } },
  { "sampler generator",
    spec = {
      "accelerate/random_spec: without a generator follows the default one's seed, and all ranks share " ..
        "rank 0's order in each pass",
      "accelerate/data_loader_spec: uses rank 0's order on all ranks, whatever each was seeded with",
    } },
  { "set_seed(seed, device_specific=false, deterministic=false)",
    spec = {
      "accelerate/random_spec: seeds tensors and math.random, with the rank added where asked",
      "accelerate/random_spec: refuses what is no seed",
    } },
  { "RNGType",
    spec = "accelerate/random_spec: knows the names of all kinds" },
}
