--- DataLoaderShard: each rank reads its share.
---
--- Accelerator:prepare calls `make`, which puts a sampler of shard_samplers.lua before the loader's
--- own (or shards a stream), so that the loader reads this rank's batches alone. `iter` runs one
--- batch ahead of the script: only who has looked for the next batch knows that this one is the
--- last. pass.lua has the steps of a pass.
---
--- What is left over on the last round is `remainder`: gather_for_metrics cuts off the items that
--- were repeated to make the ranks even.
local passes = require "accelerate.data_loader.pass"
local prepared = require "accelerate.data_loader.prepared"
local sharding = require "accelerate.data_loader.shard_samplers"
local signals = require "accelerate.utils.signals"
local state = require "accelerate.state"

local gradient_state = state.GradientState()

local M = {}

local function data() return require "accelerate.data" end

--- Gives this rank's batches on this rank's device. It reads one batch ahead, so that the last one
--- is known while it is in use; a batch's copy to a GPU overlaps with the step before it.
---@class accelerate.DataLoaderShard: accelerate.PreparedLoader
---@field end_of_dataloader boolean true while the last batch of the pass is in use
---@field remainder integer number of real items in the last round over all ranks; 0: all, -1:
---  unknown
---@field total_batch_size integer? size of a batch over all ranks; nil when batches have no fixed
---  size
---@field total_dataset_length integer? number of items in the whole data set; nil when unknown
---@field base_dataloader accelerate.DataLoader the loader that was prepared
---@field dataset table
---@field batch_sampler table? source of this rank's batches; a BatchSamplerShard on several ranks
---@field sampler table?
---@field batch_size integer|false|nil batch size of one rank, or with split_batches of all ranks
---@field drop_last boolean
---@field collate_fn function?
---@field generator accelerate.Generator?
---@field num_workers integer
---@field prefetch_factor integer?
---@field persistent_workers boolean
---@field worker_init_fn function?
---@field timeout number seconds
---@field pin_memory boolean
---@field device string? device that batches are placed on; nil: they stay where they are
---@field non_blocking boolean
---@field split_batches boolean
---@field rng_types string[]
---@field synchronized_generator accelerate.Generator? generator that decides the order; made equal
---  on all ranks at the start of each pass
---@field iteration integer number of the next pass, from 0
---@field skip_batches integer number of batches skipped at the start of each pass
---@field gradient_state accelerate.GradientState
local Shard = {}

--- Returns a function that reads the next batch's parts, { n = count, ... }; nil at the end.
local function reader(self, pass)
  -- Ranks that read one stream and keep their slices of it must draw equal random numbers.
  local seed = pass:draw_seed(self._items and 0 or self._process_index, self._items ~= nil)
  local start = { skip = pass.taken, epoch = pass.iteration, rank = self._process_index, seed = seed }
  if self._stream then return (self._stream:_start(start)) end
  start.source = self._shard or self._batch_sampler or self._sampler
  return (self._base:_start(start))
end

-- The remainder of a round that was read is exact; nil: it is what it was thought to be.
local function last_remainder(self)
  if self._drop_last or not self._shard and not self._items then return nil end
  local real, total = (self._shard or self._items).real_items, self.total_batch_size
  if real then return total and real % total or real end
  -- batches are lists of any length, and no list is missing
  if self._shard and not total and self._shard.even_batches then return 0 end
end

--- Starts a pass: `for x, y in loader:iter() do ... end`.
---@return function
function Shard:iter()
  local pass = passes.start(self)
  local next_batch = reader(self, pass)
  self:begin()
  local own = (self._base.num_workers or 0) > 0  -- a worker makes each of its batches anew
  local ahead, over = pass:send(next_batch(), own), false
  if not ahead then
    over = true
    pass:finish(false)
  end

  return function()
    if over then return nil end
    signals.check_signal()
    gradient_state:_enter(self)  -- inner passes that ended with `break` end here
    if not ahead then  -- the last batch was in use until now
      over = true
      pass:finish(true)
      return nil
    end
    local batch = ahead
    ahead = pass:send(next_batch(), own)
    pass:give(ahead == nil, not ahead and last_remainder(self) or nil)
    pass:place(batch)
    return unpack(batch, 1, batch.n)
  end
end

--- Returns the number of batches for this rank.
---@return integer
function Shard:len()
  local whole
  local items = self._items and prepared.length_of(self._items.dataset)
  if items then
    local round = self._split_batches and self._items.batch_size
      or self._items.batch_size * self._num_processes
    whole = (self._drop_last and math.floor or math.ceil)(items / round)
  elseif self._stream then
    whole = self._stream:len()
  elseif self._shard then
    whole = self._shard:len()
  else
    whole = self._base:len()
  end
  return math.max(0, whole - self._skip)
end

M.Class = prepared.define("DataLoaderShard", Shard)

-- ---- making one

-- Returns the data set of a loader, without a stream's first items if they are to be skipped.
local function without_beginning(loader)
  local items = (loader.skip_batches or 0) * (loader.batch_size or 1)
  if items == 0 then return loader.dataset end
  return require("accelerate.data.streams").skip(loader.dataset, items)
end

--- Returns the number of shards of a stream; nil when it has no shards.
local function shards_of(dataset)
  if type(dataset.shard) ~= "function" then return nil end
  local count = dataset.num_shards or dataset.n_shards
  return type(count) == "number" and count or nil
end

--- Makes a loader over this rank's part of a stream: whole shards when there are enough of them,
--- otherwise a slice of each round.
local function shard_stream(self, loader)
  local size, split, ranks = loader.batch_size, self._split_batches, self._num_processes
  local opts = loader:_carried()
  opts.drop_last = loader.drop_last or nil
  local shards = not split and shards_of(loader.dataset)
  if shards and shards >= ranks and (loader.skip_batches or 0) == 0 then
    self._repeats = false
    opts.batch_size = size
    self._stream = data().DataLoader(loader.dataset:shard { num_shards = ranks, index = self._process_index },
      opts)
    return
  end
  self._shares_seed = true
  -- without batches, ranks take single items in turn
  self._items = sharding.IterableDatasetShard(without_beginning(loader), {
    batch_size = size or 1, drop_last = loader.drop_last, num_processes = ranks,
    process_index = self._process_index,
    split_batches = split,
  })
  opts.batch_size = size and split and size / ranks or size
  self._stream = data().DataLoader(self._items, opts)
end

-- Makes a DataLoaderShard from a loader.
--@param loader accelerate.DataLoader
--@param o table see prepare_data_loader
function M.make(loader, o)
  local self = M.Class.new()
  prepared.fill(self, loader, o)
  self._repeats = true -- items, to make the ranks even
  if self._num_processes == 1 then return self end
  local config, source = o.config, self._batch_sampler or self._sampler
  if not source then
    shard_stream(self, loader)
    return self
  end
  self._shard = sharding.BatchSamplerShard(source, {
    num_processes = self._num_processes, process_index = self._process_index,
    split_batches = self._split_batches,
    even_batches = function() return config.even_batches end,
  })
  return self
end

--- Sets a prepared loader's even_batches, until the returned function is called.
---@return fun() undo
function M.override_even_batches(loader, even)
  local shard = loader._shard
  local former = rawget(shard, "_even_batches")
  shard.even_batches = even
  return function() shard.even_batches = former end
end

M.is = function(value) return type(value) == "table" and getmetatable(value) == M.Class end

return M
