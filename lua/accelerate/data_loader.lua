--- The loader that `prepare` returns: this rank's batches, on this rank's device, read one ahead.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local operations = require "accelerate.utils.operations"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local random = require "accelerate.utils.random"
local sharding = require "accelerate.sharding"
local state = require "accelerate.state"

local fail = options.fail
local gradient_state = state.GradientState()

local M = {}

local function data() return require "accelerate.data" end

-- ---- where the batches of a pass come from -----------------------------------------------------------------------

local function length_of(object)
  if type(object) == "table" and type(object.len) == "function" then
    local known, length = pcall(object.len, object)
    return known and length or nil
  end
end

--- A function that gives the next batch's parts as { n = count, ... }, or nil.
local function reader(self)
  local pass = { skip = self._skip, epoch = self._iteration, rank = self._process_index }
  if self._stream then return self._stream:_start(pass) end
  pass.source = self._shard
  return self._base:_start(pass)
end

-- ---- passes ------------------------------------------------------------------------------------------------------

---@class accelerate.DataLoaderShard
local Loader = {}

--- What of the last round is real: the data set's length modulo the batch over all ranks; -1 when it is not known.
local function remainder_of(self)
  if self._drop_last then return -1 end
  local length, total = self.total_dataset_length, self.total_batch_size
  if not length or not total then return -1 end
  return length % total
end

local function synchronise(self)
  if state.PartialState().num_processes == 1 then return end
  for _, kind in ipairs(self._rng_types) do
    if kind ~= "generator" or self._generator then random.synchronize_rng_state(kind, self._generator) end
  end
end

--- Tells samplers and data sets of the script's own which pass comes.  Ours draw a new order for each pass by themselves,
--- so that a pass that was left by break is not repeated.
local function announce_pass(self)
  for _, part in ipairs(self._epoch_parts) do part:set_epoch(self._iteration) end
end

--- Starts a pass: `for x, y in loader:iter() do ... end`.
---@return function
function Loader:iter()
  synchronise(self)
  announce_pass(self)
  if self._close then self._close() end -- a pass that was left by break ends now, and its worker processes with it
  local next_batch, close = reader(self)
  self._close = close
  local over = false
  self._end, self._remainder = false, remainder_of(self)
  gradient_state:_enter(self)
  local ahead = next_batch()

  local function finish()
    over = true
    gradient_state:_leave(self)
  end
  if not ahead then finish() end

  return function()
    if over then return nil end
    if not ahead then  -- the last batch was in use until now
      self._iteration = self._iteration + 1
      gradient_state:_enter(self)  -- passes inside this one that were left by break end with it
      finish()
      return nil
    end
    gradient_state:_enter(self)
    local batch = ahead
    ahead = next_batch()
    self._end = ahead == nil
    if self._end and self._items and self._items.real_items and not self._drop_last then
      self._remainder = self._items.real_items % self.total_batch_size  -- a stream's length is known by now
    end
    local device = self._device
    if device and device ~= "cpu" then
      for i = 1, batch.n do batch[i] = operations.send_to_device(batch[i], device) end
    end
    return unpack(batch, 1, batch.n)
  end
end

--- The number of batches that this rank gets.
---@return integer
function Loader:len()
  local whole
  if self._stream then
    whole = self._stream:len()
  elseif self._shard then
    whole = self._shard:len()
  else
    whole = self._base:len()
  end
  return math.max(0, whole - self._skip)
end

--- Says which pass comes next, to the batch sampler, the sampler and the data set, as far as they want to know.
---@param epoch integer from 0
function Loader:set_epoch(epoch)
  self._base:set_epoch(epoch)
  self._iteration = epoch
end

local GET = {
  --- True while the last batch of the pass is in use.
  end_of_dataloader = function(self) return self._end end,
  --- How many items of the last round over all ranks are real; 0: all, -1: unknown.
  remainder = function(self) return self._remainder end,
  --- The batch over all ranks; nil when batches have no fixed size.
  total_batch_size = function(self)
    local base = self._base
    local size = base.batch_size or (base.batch_sampler and base.batch_sampler.batch_size)
    if not size then return nil end
    return self._split_batches and size or size * self._num_processes
  end,
  --- How many items a pass over all ranks reads; nil when that is not known.
  total_dataset_length = function(self)
    local base = self._base
    return length_of(base.sampler or base.dataset)
  end,
  batch_sampler = function(self) return self._shard or self._base.batch_sampler end,
  base_dataloader = function(self) return self._base end,
  device = function(self) return self._device end,
  iteration = function(self) return self._iteration end,
  gradient_state = function() return gradient_state end,
  rng_types = function(self) return self._rng_types end,
  synchronized_generator = function(self) return self._generator end,
}
for _, name in ipairs { "dataset", "batch_size", "drop_last", "sampler", "collate_fn", "generator" } do
  GET[name] = function(self) return self._base[name] end
end

local Class = properties.define("DataLoaderShard", { get = GET, methods = Loader })

---@return boolean
function M.is_prepared(value) return type(value) == "table" and getmetatable(value) == Class end

--- Whether `value` is a loader, prepared or not.
---@return boolean
function M.is_loader(value) return M.is_prepared(value) or class.is(value, data().DataLoader) end

-- ---- preparing ---------------------------------------------------------------------------------------------------

--- The generator that decides the order, where there is one to share.
local function generator_of(loader)
  for _, owner in ipairs { loader.sampler or false, loader.batch_sampler or false, loader.dataset } do
    local generator = owner and owner.generator
    if type(generator) == "userdata" and generator.get_state then return generator end
  end
end

--- Parts of a loader that want to hear of each pass: not our own samplers, which count by themselves.
local function parts_with_epochs(loader)
  local ours, parts = data().DrawnSampler, {}
  local function add(part)
    if type(part) ~= "table" or type(part.set_epoch) ~= "function" then return end
    if class.is(part, ours) then return end
    if class.is(part, data().BatchSampler) then return end  -- it only passes on to its sampler, which is asked itself
    parts[#parts + 1] = part
  end
  add(loader.batch_sampler)
  add(loader.sampler)
  add(loader.dataset)
  return parts
end

--- With use_seedable_sampler the order of a pass is a function of the seed and the pass number alone.
local function seed_sampler(loader, config)
  local sampler = loader.sampler
  if not class.is(sampler, data().DrawnSampler) then return nil end
  sampler.generator = core.Generator(config.data_seed or core.default_generator():initial_seed())
  return sampler
end

local function check_split(loader, ranks)
  local size = loader.batch_size or (loader.batch_sampler and loader.batch_sampler.batch_size)
  if not size then fail("prepare: split_batches needs a loader, or a batch sampler, that has a batch_size") end
  if size > 1 and size % ranks ~= 0 then
    fail("prepare: split_batches needs a batch size that is a multiple of the %d processes, got %d", ranks, size)
  end
end

--- A loader over this rank's slice of a stream.
local function shard_stream(loader, self)
  local size, split = loader.batch_size, self._split_batches
  if size == false then
    fail("prepare: a stream without batches (batch_size = false) cannot be shared out; give the loader a batch size")
  end
  self._items = sharding.IterableDatasetShard(loader.dataset, {
    batch_size = size, drop_last = loader.drop_last, num_processes = self._num_processes, process_index = self._process_index,
    split_batches = split,
  })
  local opts = loader:_carried()
  opts.batch_size, opts.drop_last = split and math.max(1, size / self._num_processes) or size, loader.drop_last
  self._stream = data().DataLoader(self._items, opts)
end

--- Makes a DataLoaderShard.
---@param loader accelerate.DataLoader
---@param opts { device: string?, put_on_device: boolean?, rng_types: string[]?, config: table?, num_processes: integer?,
---  process_index: integer?, slice_fn_for_dispatch: function? }? config: a DataLoaderConfiguration
function M.prepare_data_loader(loader, opts)
  opts = opts or {}
  local here = state.PartialState()
  local config = opts.config or require("accelerate.dataclasses").DataLoaderConfiguration()
  if config.dispatch_batches or opts.slice_fn_for_dispatch then
    fail("prepare: dispatch_batches = true (one rank reads for all) is not there yet; every rank reads its own share")
  end
  if config.use_stateful_dataloader then fail("prepare: use_stateful_dataloader = true is not there yet") end
  local self = Class.new()
  self._base, self._skip, self._iteration = loader, 0, 0
  self._num_processes = opts.num_processes or here.num_processes
  self._process_index = opts.process_index or here.process_index
  self._split_batches = config.split_batches
  self._device = opts.put_on_device ~= false and opts.device or nil
  self._rng_types = opts.rng_types or { "generator" }
  self._end, self._remainder = false, -1
  self._drop_last = loader.drop_last or (loader.batch_sampler ~= nil and loader.batch_sampler.drop_last) or false
  self._epoch_parts = parts_with_epochs(loader)
  if config.use_seedable_sampler then table.insert(self._epoch_parts, seed_sampler(loader, config)) end
  self._generator = generator_of(loader)
  if self._split_batches then check_split(loader, self._num_processes) end
  if self._num_processes > 1 then
    local source = loader.batch_sampler or loader.sampler
    if source then
      self._shard = sharding.BatchSamplerShard(source, {
        num_processes = self._num_processes, process_index = self._process_index, split_batches = self._split_batches,
        even_batches = function() return config.even_batches end,
      })
    else
      shard_stream(loader, self)
    end
  end
  return self
end

-- ---- leaving out the beginning -----------------------------------------------------------------------------------

--- An unprepared loader without its first batches.
local Skipping = class("SkipDataLoader")

function Skipping:init(loader, skip) self.base_dataloader, self.skip_batches = loader, skip end
function Skipping:len() return math.max(0, self.base_dataloader:len() - self.skip_batches) end
function Skipping:set_epoch(epoch) self.base_dataloader:set_epoch(epoch) end

function Skipping:iter()
  local nexts, control, input = self.base_dataloader:iter()
  local left = self.skip_batches
  local function later(...)
    control = ...
    return ...
  end
  return function()
    while left > 0 do
      left = left - 1
      if later(nexts(input, control)) == nil then
        left, nexts = 0, function() end
      end
    end
    return later(nexts(input, control))
  end
end

--- A loader without the first `num_batches` batches (of this rank) of its passes; the original is left alone.  No sample
--- of a data set with get(i) is read for it; a stream is read and thrown away.
---@param loader table
---@param num_batches integer
function M.skip_first_batches(loader, num_batches)
  options.value("skip_first_batches", "num_batches", num_batches, { "integer", default = 0, min = 0 })
  num_batches = num_batches or 0
  if M.is_prepared(loader) then
    local copy = Class.new()
    for name, value in pairs(loader) do rawset(copy, name, value) end
    copy._close = nil
    copy._skip = loader._skip + num_batches
    copy._end, copy._remainder = false, -1
    return copy
  end
  if not M.is_loader(loader) then fail("skip_first_batches: expected a loader, got %s", options.show(loader)) end
  if loader.batch_sampler then
    local opts = loader:_carried()
    opts.batch_sampler = sharding.SkipBatchSampler(loader.batch_sampler, num_batches)
    local made = data().DataLoader(loader.dataset, opts)
    made._epoch, made._skipped = loader._epoch, (loader._skipped or 0) + num_batches -- the random numbers are those of the whole pass
    return made
  end
  return Skipping(loader, num_batches)
end

return M
