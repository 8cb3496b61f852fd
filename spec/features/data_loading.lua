return {
  group = "H", title = "Data loading",
  { "BatchSamplerShard (split_batches=false)",
    spec = {
      "accelerate/sharding_spec: gives every rank the batches and lengths that Accelerate gives",
      "accelerate/data_loader_dispatch_spec: shares out the same batches, " ..
        "with the same lengths and remainders",
      "accelerate/data_loader_spec: gives each rank its batches and fills the last ones from the start",
      "accelerate/data_loader_fuzz_spec: gives every item exactly once",
    } },
  { "BatchSamplerShard (split_batches=true)",
    spec = {
      "accelerate/sharding_spec: gives every rank the batches and lengths that Accelerate gives",
      "accelerate/data_loader_dispatch_spec: shares out the same batches, " ..
        "with the same lengths and remainders",
      "accelerate/data_loader_spec: cuts batches with split_batches, which must fit the ranks",
    } },
  { "even_batches=false",
    spec = {
      "accelerate/sharding_spec: gives every rank the batches and lengths that Accelerate gives",
      "accelerate/data_loader_dispatch_spec: shares out the same batches, " ..
        "with the same lengths and remainders",
      "accelerate/data_loader_spec: gives each rank its batches and fills the last ones from the start",
    } },
  { "drop_last",
    spec = {
      "accelerate/sharding_spec: gives every rank the batches and lengths that Accelerate gives",
      "accelerate/data_loader_dispatch_spec: shares out the same batches, " ..
        "with the same lengths and remainders",
      "accelerate/data_loader_fuzz_spec: gives every item exactly once",
    } },
  { "samplers without a fixed batch size",
    spec = {
      "accelerate/sharding_spec: hands lists of any length round whole, and repeats the first ones",
      "accelerate/data_loader_kinds_spec: batch samplers of one's own hands their lists round",
    } },
  { "length of a sharded loader",
    spec = {
      "accelerate/sharding_spec: gives every rank the batches and lengths that Accelerate gives",
      "accelerate/data_loader_dispatch_spec: shares out the same batches, " ..
        "with the same lengths and remainders",
      "accelerate/data_loader_kinds_spec: its sizes tells them",
      "accelerate/data_loader_fuzz_spec: gives every item exactly once",
    } },
  { "one process",
    spec = "accelerate/data_loader_spec: leaves the sampling alone: the short last batch stays short" },
  { "IterableDatasetShard",
    spec = {
      "accelerate/sharding_spec: gives every rank the items that Accelerate gives",
      "accelerate/data_loader_dispatch_spec: shares out the same batches, " ..
        "with the same lengths and remainders",
      "accelerate/data_loader_kinds_spec: streams of known length counts its batches",
    } },
  { "natively shardable iterable data sets",
    spec = "accelerate/data_loader_kinds_spec: streams in shards gives every rank whole ones" },
  { "DataLoaderShard",
    spec = {
      "accelerate/data_loader_spec: knows the last batch while it is in use",
      "accelerate/data_loader_spec: knows the last batch of a stream",
      "accelerate/data_loader_spec: ends at once when there is nothing",
      "accelerate/random_spec: happens at the start of each pass, as rng_types says",
      "accelerate/data_loader_kinds_spec: set_epoch tells everybody who wants to know",
    } },
  { "DataLoaderDispatcher",
    spec = {
      "accelerate/data_loader_dispatch_spec: dispatches the same batches, " ..
        "with the same lengths and remainders",
      "accelerate/data_loader_dispatch_spec: reads on rank 0 alone",
      "accelerate/data_loader_dispatch_spec: gives tensors, strings, " ..
        "tables and numbers their slices, in any nesting",
      "accelerate/data_loader_dispatch_spec: says on every rank what cannot be joined, with advice",
      "accelerate/data_loader_dispatch_spec: needs device placement",
      "accelerate/data_loader_dispatch_spec: reads with worker processes on rank 0",
    } },
  { "dispatcher, last step",
    spec = {
      "accelerate/data_loader_dispatch_spec: dispatches the same batches, " ..
        "with the same lengths and remainders",
      "accelerate/data_loader_dispatch_spec: gives the same items to metrics",
      "accelerate/data_loader_dispatch_spec: with fewer items than ranks repeats them",
    } },
  { "slice_fn_for_dispatch",
    spec = "accelerate/data_loader_dispatch_spec: cuts by a function of one's own" },
  { "DataLoaderStateMixin",
    spec = {
      "accelerate/data_loader_kinds_spec: makes a loader of one's own the active one",
      "accelerate/data_loader_kinds_spec: is what prepared loaders do",
      "accelerate/data_loader_spec: gives the outer loader's flags back after an inner pass",
      "accelerate/data_loader_spec: ends inner passes that were left by break when the outer one goes " ..
        "on, ends, or starts again",
    } },
  { "skip_first_batches(loader, num_batches=0)",
    spec = {
      "accelerate/data_loader_spec: skip_first_batches leaves the original alone",
      "accelerate/data_loader_spec: skips this rank's batches",
      "accelerate/data_loader_resume_spec: is O(1) with samplers that can seek, also where the first " ..
        "batches may be needed to fill",
      "accelerate/data_loader_resume_spec: keeps the order and the random numbers of the whole pass",
      "accelerate/data_loader_resume_spec: of a dispatched loader leaves out whole steps, " ..
        "and fills from the first one",
    } },
  { "SkipBatchSampler, SkipDataLoader",
    spec = {
      "accelerate/data_loader_resume_spec: with SkipBatchSampler and SkipDataLoader shortens what they count",
      "accelerate/sharding_spec: leaves out the first batches, also more than there are",
    } },
  { "total_batch_size, total_dataset_length",
    spec = {
      "accelerate/data_loader_kinds_spec: its sizes tells them",
      "accelerate/data_loader_kinds_spec: batch samplers of one's own hands their lists round",
    } },
  { "set_epoch(epoch)",
    spec = {
      "accelerate/data_loader_kinds_spec: set_epoch tells everybody who wants to know",
      "accelerate/data_loader_spec: tells samplers and data sets of the script's own which pass comes",
    } },
  { "use_seedable_sampler / SeedableRandomSampler",
    spec = {
      "accelerate/data_loader_kinds_spec: use_seedable_sampler has an order of the seed and the pass alone",
      "accelerate/data_loader_kinds_spec: a SeedableRandomSampler by itself counts the passes that are " ..
        "walked to their end",
    } },
  { "use_stateful_dataloader",
    spec = {
      "accelerate/data_loader_dispatch_spec: goes on after a state was loaded, while any batch was in use",
      "accelerate/data_loader_resume_spec: is of the pass that was left by break, of the next one in its " ..
        "last batch, and is given back until it is used",
      "accelerate/data_loader_resume_spec: of any rank serves all, with every way of sharing out",
      "accelerate/data_loader_resume_spec: reads nothing of what comes before",
    } },
  { "non_blocking, pin_memory",
    spec = "accelerate/data_loader_kinds_spec: " ..
      "pin_memory and non_blocking gives the same batches on the CPU" },
  { "custom batch samplers, a sampler that is a batch sampler, batch_size none",
    spec = {
      "accelerate/data_loader_kinds_spec: batch samplers of one's own hands their lists round",
      "accelerate/data_loader_kinds_spec: a sampler that is a batch sampler, and without batches",
    } },
  { "mesh-aware loading",
    later = "prepare_data_loader: torch_device_mesh: tensor, " ..
    "context and sequence parallelism are not there yet",
    spec = "accelerate/data_loader_kinds_spec: says that meshes and XLA's loader are not there" },
  { "worker settings",
    spec = "accelerate/data_loader_kinds_spec: worker settings takes them over" },
  { "XLA loader wrapper",
    later = "accelerate.data_loader.MpDeviceLoaderWrapper is not there yet: it is for XLA devices",
    spec = "accelerate/data_loader_kinds_spec: says that meshes and XLA's loader are not there" },
  { "non-tensor leaves in batches",
    spec = {
      "accelerate/data_loader_kinds_spec: leaves that are no tensors leaves them as they are",
      "accelerate/data_loader_dispatch_spec: gives tensors, strings, " ..
        "tables and numbers their slices, in any nesting",
      "accelerate/data_loader_dispatch_spec: says on every rank what cannot be joined, with advice",
    } },
}
