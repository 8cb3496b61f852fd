return {
  group = "V", title = "Memory helpers",
  { "find_executable_batch_size(function, starting_batch_size=128, reduce_batch_size_fn=None)" },
  { "should_reduce_batch_size" },
  { "release_memory(*objects)" },
  { "clear_device_cache(garbage_collection=false)" },
}
