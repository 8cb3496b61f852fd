return {
  group = "V", title = "Memory helpers",
  { "find_executable_batch_size(function, starting_batch_size=128, reduce_batch_size_fn=None)",
    spec = { "accelerate/memory_helpers_spec: multiplies the size by 0.9, rounded down, " ..
    "until it fits, and keeps it",
      "accelerate/memory_helpers_spec: notices a size that is passed by hand, and wrong arguments",
      "accelerate/memory_helpers_spec: raises when it comes to 0, and lets other errors pass" } },
  { "should_reduce_batch_size",
    spec = "accelerate/memory_helpers_spec: should_reduce_batch_size knows the messages of a full " ..
    "memory, ours and others'" },
  { "release_memory(*objects)",
    spec = "accelerate/memory_helpers_spec: release_memory gives a nil for each argument, " ..
      "and the memory back" },
  { "clear_device_cache(garbage_collection=false)",
    spec = "accelerate/memory_helpers_spec: clear_device_cache empties the cache, " ..
    "and collects only when asked" },
}
