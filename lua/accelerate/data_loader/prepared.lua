--- The common part of prepared loaders: their fields, their position in a pass, and their state for
--- resuming.
---
--- Two kinds stand on it: shard.lua (each rank reads its share) and dispatcher.lua (rank 0 reads
--- for all). Each has its own `iter`, which goes through a pass with an object of pass.lua;
--- order.lua keeps what decides the order.
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local enumerable = require "accelerate.utils.enumerable"
local order = require "accelerate.data_loader.order"
local state = require "accelerate.state"

local fail = options.fail
local gradient_state = state.GradientState()

local M = {}

--- Returns the length of an object; nil when it has none.
---@return integer?
function M.length_of(object)
  if type(object) == "table" and type(object.len) == "function" then
    local known, length = pcall(object.len, object)
    return known and length or nil
  end
end
local length_of = M.length_of

-- `loader["end"](loader)`, which is awkward to write in Lua.
local function renamed(self)
  fail("%s: the end of a pass is loader:finish(), in place of loader[\"end\"](loader)", self.__name)
end

-- ---- for loaders that a script writes

--- Base of a script's own loaders, `class("Mine", DataLoaderStateMixin)`, that lets them count as
--- the active loader. Its iter calls self:begin() at the start of a pass and self:finish() at the
--- end, and sets end_of_dataloader before it returns the last batch.
---@class accelerate.DataLoaderStateMixin
---@field end_of_dataloader boolean true while the last batch is in use
---@field remainder integer number of real items in the last round over all ranks; 0: all, -1:
---  unknown
local Mixin = class("DataLoaderStateMixin")
Mixin.end_of_dataloader, Mixin.remainder = false, -1
M.DataLoaderStateMixin = Mixin

--- Resets the fields to those before the first pass.
function Mixin:reset() self.end_of_dataloader, self.remainder = false, -1 end

--- Begins a pass and makes this the active loader. The remainder is computed from
--- total_dataset_length (or dataset:len()) and total_batch_size when both are known and drop_last
--- is not set.
function Mixin:begin()
  self:reset()
  local length, total = self.total_dataset_length or length_of(self.dataset), self.total_batch_size
  if length and total and not (self.drop_last or self._drop_last) then self.remainder = length % total end
  gradient_state:_enter(self)
end

--- Ends a pass and makes the enclosing loader active again.
function Mixin:finish() gradient_state:_leave(self) end
Mixin["end"] = renamed

-- ---- a loader

---@class accelerate.PreparedLoader
local Loader = {}
M.methods = Loader

--- Fills in a new loader.
---@param self table
---@param loader accelerate.DataLoader
---@param o table see prepare_data_loader
function M.fill(self, loader, o)
  local config = o.config
  self._base, self._skip, self._iteration = loader, 0, 0
  self._num_processes, self._process_index = o.num_processes, o.process_index
  self._split_batches, self._non_blocking = config.split_batches, config.non_blocking
  self._device = o.put_on_device and o.device or nil
  self._rng_types = o.rng_types
  self._end, self._remainder = false, -1
  self._drop_last = loader.drop_last or (loader.batch_sampler ~= nil and loader.batch_sampler.drop_last)
    or false
  order.choose_samplers(self, loader, config)
  self._epoch_parts = order.parts_with_epochs(self)
  self._generator = order.generator_of(self)
end

--- Returns a copy that skips `num_batches` more batches of each pass.
---@param num_batches integer
function Loader:_without(num_batches)
  local copy = getmetatable(self).new()
  for name, value in next, self do copy[name] = value end
  copy._skip = self._skip + num_batches
  copy._end, copy._remainder, copy._pass = false, -1, nil
  -- A script that skips batches after load_state_dict has restored the position itself, so the
  -- original's next pass starts at its beginning.
  copy._resume, self._resume = nil, nil
  return copy
end

--- Resets end_of_dataloader to false and remainder to -1, as before the first pass.
function Loader:reset() self._end, self._remainder = false, -1 end

--- Begins a pass and makes this the active loader. iter() calls it.
function Loader:begin()
  self:reset()
  if self._repeats then self._remainder = M.remainder_of(self) end
  gradient_state:_enter(self)
end

--- Ends a pass and makes the enclosing loader active again.
function Loader:finish() gradient_state:_leave(self) end
Loader["end"] = renamed

--- Sets the number of the next pass, also for the batch sampler, the sampler and the data set where
--- they have set_epoch.
---@param epoch integer from 0
function Loader:set_epoch(epoch)
  options.value("set_epoch", "epoch", epoch, { "integer", min = 0 })
  self._iteration = epoch
  order.set_epoch(self, epoch)
end

-- ---- state

--- Returns the loader's position: a plain table of strings, numbers and the state_dict() of
--- samplers and data set. A loader that loads a position saved while batch k is in use, or after
--- `break` at batch k, continues with batch k + 1; saved during the last batch, it continues with
--- the next pass. The position holds the seeds and generator states that the order is computed
--- from, not the order.
---@return table
function Loader:state_dict()
  if self._resume then return order.copied(self._resume.whole) end
  local found = { iteration = self._iteration, batches = 0, num_processes = self._num_processes,
    process_index = self._process_index,
    total_batch_size = self.total_batch_size }
  local pass = self._pass
  if pass and not self._end then
    found.iteration, found.batches, found.seed, found.parts = pass.iteration, pass.taken, pass.seed,
      order.copied(pass.snapshot)
  else
    if pass then found.iteration = pass.iteration + 1 end -- its last batch is in use
    found.parts = order.capture(self)
  end
  return found
end

local STATE = {
  iteration = { "integer", min = 0 }, batches = { "integer", min = 0 }, parts = { "table" },
  num_processes = { "integer", min = 1 }, process_index = { "integer", min = 0 },
  total_batch_size = { "integer", min = 1, optional = true }, seed = { "number", optional = true },
}

-- Converts a number of batches of the saved loader, whose batch size or number of ranks may differ,
-- to batches of this one.
local function batches_here(self, found)
  local mine, theirs = self.total_batch_size, found.total_batch_size
  if not mine or not theirs or mine == theirs then return found.batches end
  local items = found.batches * theirs
  if items % mine ~= 0 then
    fail("load_state_dict: the state is that of a loader with %d items in a batch over all ranks, %d of " ..
      "whose batches were read; this " ..
      "loader has %d in a batch, and %d items are no whole number of them", theirs, found.batches, mine,
        items)
  end
  return items / mine
end

--- Continues the next pass at a saved position; later passes start at their beginning. Samples
--- before the position are skipped without reading when the data set has get(i); a stream is read
--- and dropped.
---@param found table from state_dict()
function Loader:load_state_dict(found)
  if type(found) ~= "table" then
    fail("load_state_dict: expected what state_dict() gave, got %s", options.show(found))
  end
  local checked = options.check("load_state_dict", found, STATE)
  local batches = batches_here(self, checked)
  order.restore(self, checked.parts)
  self._iteration = checked.iteration
  self:reset()
  self._pass = nil
  -- Reading draws random numbers by rank, except with streams that all ranks read.
  local seed = (self._shares_seed or checked.process_index == self._process_index) and checked.seed or nil
  self._resume = { iteration = checked.iteration, batches = math.max(0, batches - self._skip), seed = seed,
    whole = order.copied(found) }
end

-- ---- fields

local GET = {
  --- True while the last batch of the pass is in use.
  end_of_dataloader = function(self) return self._end end,
  --- Number of real items in the last round over all ranks; 0: all, -1: unknown.
  remainder = function(self) return self._remainder end,
  --- Size of a batch over all ranks; nil when batches have no fixed size.
  total_batch_size = function(self)
    local size = self._base.batch_size or M.batch_size_of(self._batch_sampler or self._sampler)
    if not size then return nil end
    return self._split_batches and size or size * self._num_processes
  end,
  --- Number of items in the whole data set; nil when unknown.
  total_dataset_length = function(self)
    local dataset = self._base.dataset
    return type(dataset.total_length) == "number" and dataset.total_length or length_of(dataset)
  end,
  batch_sampler = function(self) return self._shard or self._batch_sampler end,
  sampler = function(self) return self._sampler end,
  base_dataloader = function(self) return self._base end,
  device = function(self) return self._device end,
  iteration = function(self) return self._iteration end,
  skip_batches = function(self) return self._skip end,
  split_batches = function(self) return self._split_batches end,
  non_blocking = function(self) return self._non_blocking end,
  gradient_state = function() return gradient_state end,
  rng_types = function(self) return self._rng_types end,
  synchronized_generator = function(self) return self._generator end,
}
for _, name in ipairs { "dataset", "batch_size", "drop_last", "collate_fn", "generator", "num_workers",
  "prefetch_factor",
  "persistent_workers", "worker_init_fn", "timeout", "pin_memory" } do
  GET[name] = function(self) return self._base[name] end
end

--- Returns a batch sampler's batch size; nil when it has none, or is not a batch sampler.
function M.batch_size_of(batch_sampler)
  local size = type(batch_sampler) == "table" and batch_sampler.batch_size
  return type(size) == "number" and size or nil
end

--- Makes a class of prepared loaders.
---@param name string
---@param methods table
function M.define(name, methods)
  local Class = properties.define(name, { get = GET, methods = properties.merge(Loader, methods),
    call = function()
      fail("%s: a loader is walked by its iter: for x, y in loader:iter() do ... end", name)
    end })
  enumerable.of_iter(Class)
  return Class
end

--- Returns the number of real items in the last round: the length of a pass modulo the batch over
--- all ranks; -1 when unknown.
function M.remainder_of(self)
  if self._drop_last then return -1 end
  local length, total, batches = length_of(self._sampler)
    or self.total_dataset_length, self.total_batch_size, self._batch_sampler
  if not length or not total then return -1 end
  local left_out = batches and batches.skip_batches and batches.skip_batches * (batches.batch_size or 0) or 0
  return math.max(0, length - left_out) % total
end

return M
