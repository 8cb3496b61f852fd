--- The loader that reads this rank's share: DataLoaderShard.
local prepared = require "accelerate.data_loader.prepared"
local sharding = require "accelerate.data_loader.shard_samplers"
local state = require "accelerate.state"

local gradient_state = state.GradientState()

local M = {}

local function data() return require "accelerate.data" end

--- This rank's batches, on this rank's device, read one ahead, so that the last one is known while
--- it is in use; its copy to a GPU runs beside the step before.
---@class accelerate.DataLoaderShard: accelerate.PreparedLoader
---@field end_of_dataloader boolean true while the last batch of the pass is in use
---@field remainder integer how many items of the last round over all ranks are real; 0: all, -1:
---  unknown
---@field total_batch_size integer? the batch over all ranks; nil when batches have no fixed size
---@field total_dataset_length integer? items of the whole data set; nil when that is not known
---@field base_dataloader accelerate.DataLoader the loader that was prepared
---@field dataset table
---@field batch_sampler table? what this rank's batches come from; a BatchSamplerShard on several
---  ranks
---@field sampler table?
---@field batch_size integer|false|nil of one rank, or with split_batches of all
---@field drop_last boolean
---@field collate_fn function?
---@field generator accelerate.Generator?
---@field num_workers integer
---@field prefetch_factor integer?
---@field persistent_workers boolean
---@field worker_init_fn function?
---@field timeout number seconds
---@field pin_memory boolean
---@field device string? where batches are put; nil: they stay
---@field non_blocking boolean
---@field split_batches boolean
---@field rng_types string[]
---@field synchronized_generator accelerate.Generator? that decides the order, and is made equal on
---  all ranks in each pass
---@field iteration integer the number of the next pass, from 0
---@field skip_batches integer left out at the start of each pass
---@field gradient_state accelerate.GradientState
local Shard = {}

function Shard:_first_remainder()
  if self._natively_sharded then return -1 end -- nothing is added
  return prepared.remainder_of(self)
end

--- A function that gives the next batch's parts as { n = count, ... }, or nil.
local function reader(self, pass)
  -- Ranks that read the same stream, each keeping its slice, must draw the same numbers.
  local seed = self:_seed_pass(pass, self._items and 0 or self._process_index, self._items ~= nil)
  local start = { skip = pass.taken, epoch = pass.iteration, rank = self._process_index, seed = seed }
  if self._stream then return (self._stream:_start(start)) end
  start.source = self._shard or self._batch_sampler or self._sampler
  return (self._base:_start(start))
end

-- How much of the last round is real is known for sure when it was read.
local function last_remainder(self)
  if self._drop_last or not self._shard and not self._items then return self._remainder end
  local real, total = (self._shard or self._items).real_items, self.total_batch_size
  if real then return total and real % total or real end
  -- whole lists, and no list is missing
  if self._shard and not total and self._shard.even_batches then return 0 end
  return self._remainder
end

--- Starts a pass: `for x, y in loader:iter() do ... end`.
---@return function
function Shard:iter()
  local pass = self:_start_pass()
  local next_batch = reader(self, pass)
  self:begin()
  local ahead, over = self:_sent(next_batch()), false
  if not ahead then
    over = true
    self:_finish(pass)
  end

  return function()
    if over then return nil end
    gradient_state:_enter(self)  -- passes inside this one that were left by break end with it
    if not ahead then  -- the last batch was in use until now
      over = true
      self._iteration = self._iteration + 1
      self:_finish(pass)
      return nil
    end
    local batch = ahead
    ahead = self:_sent(next_batch())
    self:_give(pass, ahead == nil)
    if self._end then self._remainder = last_remainder(self) end
    self:_placed(batch)
    return unpack(batch, 1, batch.n)
  end
end

--- The number of batches that this rank gets.
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

-- ---- making one ---------------------------------------------------------------------------------

-- What a loader reads when a stream's own first items are to be left out.
local function without_beginning(loader)
  local items = (loader.skip_batches or 0) * (loader.batch_size or 1)
  if items == 0 then return loader.dataset end
  return require("accelerate.data.streams").skip(loader.dataset, items)
end

--- The number of shards that a stream says it consists of; nil: it cannot be shared out by them.
local function shards_of(dataset)
  if type(dataset.shard) ~= "function" then return nil end
  local count = dataset.num_shards or dataset.n_shards
  return type(count) == "number" and count or nil
end

--- A loader over this rank's part of a stream: whole shards of it, where it has enough of them, or
--- a slice of each round.
local function shard_stream(self, loader)
  local size, split, ranks = loader.batch_size, self._split_batches, self._num_processes
  local opts = loader:_carried()
  opts.drop_last = loader.drop_last or nil
  local shards = not split and shards_of(loader.dataset)
  if shards and shards >= ranks and (loader.skip_batches or 0) == 0 then
    self._natively_sharded = true
    opts.batch_size = size
    self._stream = data().DataLoader(loader.dataset:shard { num_shards = ranks, index = self._process_index },
      opts)
    return
  end
  self._shares_seed = true
  -- without batches, what the stream gives goes round as it is
  self._items = sharding.IterableDatasetShard(without_beginning(loader), {
    batch_size = size or 1, drop_last = loader.drop_last, num_processes = ranks,
      process_index = self._process_index,
    split_batches = split,
  })
  opts.batch_size = size and split and size / ranks or size
  self._stream = data().DataLoader(self._items, opts)
end

-- Makes a DataLoaderShard of a loader.
---@param loader accelerate.DataLoader
---@param o table see prepare_data_loader
function M.make(loader, o)
  local self = M.Class.new()
  prepared.fill(self, loader, o)
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

--- Makes the even_batches of a prepared loader another one, until the function that is returned is
--- called.
---@return fun() undo
function M.override_even_batches(loader, even)
  local shard = loader._shard
  local former = rawget(shard, "_even_batches")
  shard.even_batches = even
  return function() shard.even_batches = former end
end

M.is = function(value) return type(value) == "table" and getmetatable(value) == M.Class end

return M
