--- The loaders that `prepare` returns, and loaders that skip their first batches.
---
--- DataLoaderShard reads this rank's share of the batches. DataLoaderDispatcher lets rank 0 read
--- for all ranks. Both read one batch ahead, so they know while the last batch is in use, and save
--- their position with state_dict.
---
---   local loader = accelerator:prepare(data.DataLoader(images, { batch_size = 64, shuffle = true
---     }))
---   for x, y in loader:iter() do ... end          -- loader.end_of_dataloader, loader.remainder
local preparing, sharding = "accelerate.data_loader.prepare:", "accelerate.data_loader.shard_samplers:"

return require("accelerate.utils.properties").lazy("accelerate.data_loader", {
  prepare_data_loader = preparing .. "prepare_data_loader",
  skip_first_batches = preparing .. "skip_first_batches",
  is_loader = preparing .. "is_loader",
  is_prepared = preparing .. "is_prepared",
  is_dispatched = preparing .. "is_dispatched",
  DataLoaderShard = preparing .. "DataLoaderShard",
  DataLoaderDispatcher = preparing .. "DataLoaderDispatcher",
  DataLoaderStateMixin = "accelerate.data_loader.prepared:DataLoaderStateMixin",
  SkipDataLoader = "accelerate.data_loader.skip:SkipDataLoader",
  SkipBatchSampler = sharding .. "SkipBatchSampler",
  BatchSamplerShard = sharding .. "BatchSamplerShard",
  IterableDatasetShard = sharding .. "IterableDatasetShard",
  SeedableRandomSampler = "accelerate.data.sampler:SeedableRandomSampler",
}, {
  MpDeviceLoaderWrapper = "it is for XLA devices",
})
