--- Data: datasets, samplers and the loader that makes batches of them.
---
---   local data = require "accelerate.data"
---   local train = data.FashionMNIST{ split = "train" }
---   local loader = data.DataLoader(train, { batch_size = 64, shuffle = true })
---   for images, labels in loader:iter() do … end
---
--- A dataset is any object with `get(i)` (i from 1; it returns several values, the parts of a
--- sample, or one table) and `len()`; a stream has `iter()` instead. A sampler is any object with
--- `iter()`, which yields positions, from 1; a batch sampler's `iter()` yields lists of positions.
--- Iterators work with a generic `for`.
--- `iter()` gives lists of positions. Iterators are what a generic `for` takes.
return require("accelerate.utils.properties").lazy("accelerate.data", {
  class = "accelerate.data.dataset:class",
  Dataset = "accelerate.data.dataset:Dataset",
  IterableDataset = "accelerate.data.dataset:IterableDataset",
  TensorDataset = "accelerate.data.dataset:TensorDataset",
  Subset = "accelerate.data.dataset:Subset",
  random_split = "accelerate.data.dataset:random_split",
  ConcatDataset = "accelerate.data.combine:ConcatDataset",
  StackDataset = "accelerate.data.combine:StackDataset",
  ChainDataset = "accelerate.data.combine:ChainDataset",
  TableDataset = "accelerate.data.table",
  DatasetDict = "accelerate.data.dataset_dict:DatasetDict",
  concatenate_datasets = "accelerate.data.table:concatenate",
  read_csv = "accelerate.data.readers:read_csv",
  read_json = "accelerate.data.readers:read_json",
  read_idx = "accelerate.data.readers:read_idx",
  read_npy = "accelerate.data.readers:read_npy",
  read_npz = "accelerate.data.readers:read_npz",
  read_image = "accelerate.data.readers:read_image",
  decode_image = "accelerate.data.readers:decode_image",
  write_csv = "accelerate.data.writers:write_csv",
  write_npy = "accelerate.data.writers:write_npy",
  write_npz = "accelerate.data.writers:write_npz",
  write_image = "accelerate.data.writers:write_image",
  TokenDataset = "accelerate.data.tokens",
  write_token_shards = "accelerate.data.text:write_token_shards",
  JsonLines = "accelerate.data.text:JsonLines",
  load_glue = "accelerate.data.glue:load_glue",
  CIFAR10 = "accelerate.data.cifar:CIFAR10",
  CIFAR100 = "accelerate.data.cifar:CIFAR100",
  ImageFolder = "accelerate.data.image_folder",
  transforms = "accelerate.data.transforms",
  load_dataset = "accelerate.data.dataset_dict:load_dataset",
  FashionMNIST = "accelerate.data.fashion_mnist",
  SequentialSampler = "accelerate.data.sampler:SequentialSampler",
  RandomSampler = "accelerate.data.sampler:RandomSampler",
  SeedableRandomSampler = "accelerate.data.sampler:SeedableRandomSampler",
  BatchSampler = "accelerate.data.sampler:BatchSampler",
  DrawnSampler = "accelerate.data.sampler:DrawnSampler",
  WeightedRandomSampler = "accelerate.data.weighted_sampler:WeightedRandomSampler",
  SubsetRandomSampler = "accelerate.data.sampler:SubsetRandomSampler",
  LengthGroupedSampler = "accelerate.data.text:LengthGroupedSampler",
  DistributedSampler = "accelerate.data.sampler:DistributedSampler",
  collate = "accelerate.data.collate",
  default_collate = "accelerate.data.collate:default_collate",
  pad_sequence = "accelerate.data.padding:pad_sequence",
  DataCollatorWithPadding = "accelerate.data.padding:DataCollatorWithPadding",
  DataLoader = "accelerate.data.loader",
  get_worker_info = "accelerate.data.workers:get_worker_info",
})
