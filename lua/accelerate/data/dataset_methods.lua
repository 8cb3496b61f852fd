--- Methods that derive datasets from any dataset with get(i) and len(), under Hugging Face's names.
--- Tables (data.TableDataset) have their own `map`, which works on columns.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local dataset = require "accelerate.data.dataset"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"

local fail, show = options.fail, options.show
local Subset = dataset.Subset

local M = {}

--- Samples that were computed once and are kept.
---@class accelerate.ListDataset: accelerate.Dataset
local ListDataset = class("ListDataset", dataset.Dataset)

function ListDataset:init(samples) self.samples = samples end
function ListDataset:len() return #self.samples end
function ListDataset:get(i)
  dataset.check_position("ListDataset:get", i, #self.samples)
  local sample = self.samples[i]
  return unpack(sample, 1, sample.n)
end

--- Applies a function to a sample each time it is read.
---@class accelerate.TransformedDataset: accelerate.Dataset
local Transformed = class("TransformedDataset", dataset.Dataset)

function Transformed:init(base, fn) self.dataset, self.transform = base, fn end
function Transformed:len() return self.dataset:len() end
function Transformed:get(i) return self.transform(self.dataset:get(i)) end
function Transformed:set_epoch(epoch)
  if type(self.dataset.set_epoch) == "function" then self.dataset:set_epoch(epoch) end
end

local function check_function(where, fn)
  options.value(where, "argument 1", fn, { "function" })
  return fn
end

local WITH_INDICES = { with_indices = { "boolean", default = false } }

--- Returns a dataset of fn(sample…), computed once, now. with_indices passes fn the position as
--- its last argument. Use with_transform for work that must be repeated at each reading
--- (augmentation).
---@param fn function takes the parts of a sample and returns those of the new one
---@param opts? { with_indices: boolean? }
function M.map(self, fn, opts)
  check_function("map", fn)
  local o = options.check("map", opts, WITH_INDICES)
  local samples = {}
  for i = 1, self:len() do
    local sample = scope.pack(self:get(i))
    if o.with_indices then
      sample.n = sample.n + 1
      sample[sample.n] = i
    end
    samples[i] = scope.pack(fn(unpack(sample, 1, sample.n)))
    if samples[i].n == 0 or samples[i][1] == nil then
      fail("map: the function gave nothing for sample %d", i)
    end
  end
  return ListDataset(samples)
end

--- Calls fn for each sample when it is read. fn returns the sample's new parts. It runs in the
--- worker processes if there are any, and its random numbers depend on the batch only.
---@param fn function
function M.with_transform(self, fn) return Transformed(self, check_function("with_transform", fn)) end

--- Returns the samples for which fn(sample…) is true.
---@param fn function
---@param opts? { with_indices: boolean? }
function M.filter(self, fn, opts)
  check_function("filter", fn)
  local o = options.check("filter", opts, WITH_INDICES)
  local indices = {}
  for i = 1, self:len() do
    local sample = scope.pack(self:get(i))
    if o.with_indices then
      sample.n = sample.n + 1
      sample[sample.n] = i
    end
    if fn(unpack(sample, 1, sample.n)) then indices[#indices + 1] = i end
  end
  return self:select(indices)
end

--- Returns the samples at these positions, in this order.
---@param indices integer[] from 1
function M.select(self, indices) return Subset(self, indices) end

local SHUFFLE = { seed = { "integer", optional = true }, generator = { "Generator", optional = true } }

--- Returns positions 1 to n in random order.
---@return integer[]
function M.permutation(where, n, opts)
  local o = options.check(where, opts, SHUFFLE)
  if o.seed and o.generator then fail("%s: give a generator or a seed, not both", where) end
  local order = core.randperm(n, { generator = o.generator or o.seed and core.Generator(o.seed)
    or core._common_generator() }):totable()
  for j = 1, #order do order[j] = order[j] + 1 end
  return order
end

--- Returns the samples in random order, shuffled once. The loader's `shuffle` shuffles anew in each
--- pass.
---@param opts? { seed: integer?, generator: accelerate.Generator? }
function M.shuffle(self, opts) return self:select(M.permutation("shuffle", self:len(), opts)) end

local function check_count(where, n) return options.value(where, "argument 1", n, { "integer", min = 0 }) end

--- Returns the first n samples, or all if there are fewer.
function M.take(self, n) return self:select(lists.range(1, math.min(check_count("take", n), self:len()))) end

--- Returns the samples after the first n.
function M.skip(self, n) return self:select(lists.range(check_count("skip", n) + 1, self:len())) end

local SHARD = {
  num_shards = { "integer", min = 1 }, index = { "integer", min = 0 },
  contiguous = { "boolean", default = true },
}

--- Returns part `index` (from 0) of num_shards parts: consecutive samples, or with contiguous =
--- false every num_shards-th sample.
---@param opts { num_shards: integer, index: integer, contiguous: boolean? }
function M.shard(self, opts)
  local o = options.check("shard", opts, SHARD)
  if o.index >= o.num_shards then
    fail("shard: option 'index' must be 0 to %d, got %d", o.num_shards - 1, o.index)
  end
  local n, list = self:len(), {}
  if o.contiguous then
    local least, more = math.floor(n / o.num_shards), n % o.num_shards
    local from = o.index * least + math.min(o.index, more)
    return self:select(lists.range(from + 1, from + least + (o.index < more and 1 or 0)))
  end
  for i = o.index + 1, n, o.num_shards do list[#list + 1] = i end
  return self:select(list)
end

local SPLIT = {
  test_size = { "number", optional = true, above = 0 }, train_size = { "number", optional = true, above = 0 },
  shuffle = { "boolean", default = true }, seed = { "integer", optional = true },
  generator = { "Generator", optional = true },
}

-- Converts a share (below 1) or a number of samples to a count.
local function to_count(name, size, n, round)
  if size < 1 then return round(size * n) end
  if size % 1 ~= 0 or size > n then
    fail("train_test_split: option '%s' must be a share below 1 or a number of samples, at most %d, got %g",
      name, n, size)
  end
  return size
end

--- Splits the samples into a DatasetDict: { train = …, test = … }. Sizes are shares (below 1)
--- or numbers of samples. By default the test part is a quarter, rounded up.
---@param opts? { test_size: number?, train_size: number?, shuffle: boolean?, seed: integer?,
---  generator: accelerate.Generator? }
---@return accelerate.DatasetDict
function M.train_test_split(self, opts)
  local o = options.check("train_test_split", opts, SPLIT)
  local n = self:len()
  local test = o.test_size and to_count("test_size", o.test_size, n, math.ceil)
  local train = o.train_size and to_count("train_size", o.train_size, n, math.floor)
  if not test and not train then test = math.ceil(n / 4) end
  test, train = test or n - train, train or n - test
  if test + train > n or test < 1 or train < 1 then
    fail("train_test_split: %d samples to train on and %d to test with cannot be had from %d", train, test, n)
  end
  local order = o.shuffle and M.permutation("train_test_split", n, { seed = o.seed, generator = o.generator })
    or lists.range(1, n)
  -- shuffled: the test part comes first, as in scikit-learn; in order: it is the end of the data
  local at = o.shuffle and { test + 1, test + train, 1, test } or { 1, train, train + 1, train + test }
  local function part(from, to)
    local list = {}
    for j = from, to do list[#list + 1] = order[j] end
    return self:select(list)
  end
  return require("accelerate.data.dataset_dict").DatasetDict { train = part(at[1], at[2]),
    test = part(at[3], at[4]) }
end

M.show, M.check_function = show, check_function

return M
