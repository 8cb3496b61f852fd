--- The common part of prepared loaders: their fields, their position in a pass, and their state for
--- resuming.
---
--- Two kinds stand on it: shard.lua (each rank reads its share) and dispatcher.lua (rank 0 reads
--- for all). Each has its own `iter`, which goes through a pass so:
---
---   _start_pass   makes the ranks' generators alike, passes the epoch on to the samplers, and
---                 takes up
---                 the
---                 position that load_state_dict has left
---   _seed_pass    the seed of the random numbers that reading draws
---   _sent         starts a batch's copy to the device while the batch before it is in use
---   _placed       waits for that copy
---   _give         counts the batch, and says whether it is the last one: `end_of_dataloader`,
---                 which
---                 the Accelerator reads through GradientState
---   _finish       ends the pass
---
--- `capture` and `restore` keep what decides the order of a pass (generators, samplers, the epoch);
--- state_dict adds the number of batches given.
local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local enumerable = require "accelerate.utils.enumerable"
local random = require "accelerate.utils.random"
local sending = require "accelerate.data.transfer"
local state = require "accelerate.state"

local fail = options.fail
local gradient_state = state.GradientState()

local M = {}

local function data() return require "accelerate.data" end

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

-- ---- for loaders that a script writes -----------------------------------------------------------

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

-- ---- what decides the order ---------------------------------------------------------------------

local function hex(bytes) return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end)) end
local function unhex(text)
  return (text:gsub("%x%x", function(pair) return string.char(tonumber(pair, 16)) end))
end

-- Returns the batch sampler inside samplers that skip or shard.
local function innermost(batch_sampler)
  while type(batch_sampler) == "table" and type(batch_sampler.batch_sampler) == "table" do
    batch_sampler = batch_sampler.batch_sampler
  end
  return batch_sampler
end

local PARTS = { "batch_sampler", "sampler", "dataset" } -- in the order of calls

local function parts_of(self)
  return { batch_sampler = innermost(self._batch_sampler), sampler = innermost(self._sampler),
    dataset = self._base.dataset }
end

local function copied(value)
  if type(value) ~= "table" or getmetatable(value) ~= nil then return value end
  local copy = {}
  for key, item in pairs(value) do copy[key] = copied(item) end
  return copy
end

local function has_state(part)
  return type(part) == "table" and type(part.state_dict) == "function"
    and type(part.load_state_dict) == "function"
end
local function has_generator(part)
  return type(part) == "table" and random.is_generator(rawget(part, "generator"))
end

-- Makes samplers that follow tensor.manual_seed read the seed of the pass that begins.
local function read_seeds(self)
  local parts = parts_of(self)
  for _, name in ipairs(PARTS) do
    if class.is(parts[name], data().DrawnSampler) then parts[name]:read_seed() end
  end
end

--- Returns the positions of the samplers and the data set: the state of their generators, or their
--- own state_dict.
local function capture(self)
  local found = {}
  local parts = parts_of(self)
  for _, name in ipairs(PARTS) do
    local part = parts[name]
    if has_state(part) then
      found[name] = { state = copied(part:state_dict()) }
    elseif has_generator(part) then
      local drawn = class.is(part, data().DrawnSampler)
      if drawn then part:read_seed() end
      found[name] = { generator = hex(part.generator:get_state()), epoch = drawn and part.epoch or nil }
    end
  end
  return found
end

-- Sets the samplers and the data set to the positions in `found`. Entries for parts that this
-- loader lacks are ignored.
local function restore(self, found)
  for name, entry in pairs(found) do
    local generator = type(entry) == "table" and entry.generator
    if type(entry) ~= "table" or generator and not (type(generator) == "string" and generator:match("^%x+$")
      and #generator == 32) then
      fail("load_state_dict: what the state says of '%s' is damaged", tostring(name))
    end
  end
  local parts = parts_of(self)
  for _, name in ipairs(PARTS) do
    local part, entry = parts[name], found[name]
    if entry and entry.state ~= nil and has_state(part) then
      part:load_state_dict(copied(entry.state))
    elseif entry and entry.generator and has_generator(part) then
      local generator_state = unhex(entry.generator)
      if class.is(part, data().DrawnSampler) then
        part:load_place(generator_state, entry.epoch)
      else
        part.generator:set_state(generator_state)
      end
    end
  end
end

--- Returns the generator that decides the order, or nil when there is none.
local function generator_of(self)
  for _, name in ipairs { "sampler", "batch_sampler", "dataset" } do
    local owner = parts_of(self)[name]
    if owner and has_generator(owner) then return owner.generator end
  end
end

--- Returns the parts whose set_epoch is called in each pass. Our own samplers count passes
--- themselves, so they are left out unless their order is a function of the pass number.
local function parts_with_epochs(self)
  local ours, parts = data(), {}
  for _, name in ipairs(PARTS) do
    local part = parts_of(self)[name]
    local wants = type(part) == "table" and type(part.set_epoch) == "function"
    local counts = class.is(part, ours.DrawnSampler) and not class.is(part, ours.SeedableRandomSampler)
    -- a BatchSampler only passes the call on to its sampler, which is in the list itself
    if wants and not counts and not class.is(part, ours.BatchSampler) then parts[#parts + 1] = part end
  end
  return parts
end

--- Chooses the samplers of a prepared loader: the loader's own, or with use_seedable_sampler
--- samplers whose order depends on the seed and the pass number only.
local function choose_samplers(self, loader, config)
  local ours = data()
  self._batch_sampler, self._sampler = loader.batch_sampler, loader.sampler
  local inner = self._sampler
  if not config.use_seedable_sampler or not class.is(inner, ours.RandomSampler)
    or class.is(inner, ours.SeedableRandomSampler) then
    return
  end
  local seedable = ours.SeedableRandomSampler(inner.data_source, {
    data_seed = config.data_seed, replacement = inner.replacement, num_samples = inner._num_samples,
  })
  local batches = self._batch_sampler
  self._sampler = seedable
  if class.of(batches) == ours.BatchSampler then
    self._batch_sampler = ours.BatchSampler(seedable,
      { batch_size = batches.batch_size, drop_last = batches.drop_last })
  elseif batches then -- a script's own batch sampler keeps its way of making batches
    innermost(batches).sampler = seedable
  end
end

-- ---- a loader -----------------------------------------------------------------------------------

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
  choose_samplers(self, loader, config)
  self._epoch_parts = parts_with_epochs(self)
  self._generator = generator_of(self)
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
  self._remainder = self:_first_remainder()
  gradient_state:_enter(self)
end

--- Ends a pass and makes the enclosing loader active again.
function Loader:finish() gradient_state:_leave(self) end
Loader["end"] = renamed

---@class accelerate.LoaderPass position in a pass
---@field iteration integer number of the pass
---@field snapshot table positions of the samplers at its start
---@field taken integer batches returned, including those skipped at the start
---@field resumed integer? seed of a resumed pass
---@field seed integer? seed of the random numbers that reading draws

--- Starts a pass: synchronizes generators, calls set_epoch, and keeps the position for state_dict.
---@return accelerate.LoaderPass
function Loader:_start_pass()
  local resume = self._resume
  self._resume = nil
  if resume and resume.iteration ~= self._iteration then resume = nil end -- set_epoch chose another pass
  if self._num_processes > 1 then
    for _, kind in ipairs(self._rng_types) do
      if kind ~= "generator" then random.synchronize_rng_state(kind) end
    end
    read_seeds(self)
    for _, kind in ipairs(self._rng_types) do
      if kind == "generator" and self._generator then random.synchronize_rng_state(kind, self._generator) end
    end
  end
  -- Our own samplers draw a new order in each pass, so a pass that ended with `break` is not
  -- repeated.
  for _, part in ipairs(self._epoch_parts) do part:set_epoch(self._iteration) end
  self._pass = { iteration = self._iteration, snapshot = capture(self),
    taken = self._skip + (resume and resume.batches or 0),
    resumed = resume and resume.seed }
  return self._pass
end

--- Returns the seed of the random numbers that reading draws in this pass.
---@param rank integer the rank that draws them
---@param shared boolean? rank 0's seed for all ranks, which read one stream
function Loader:_seed_pass(pass, rank, shared)
  local seed = pass.resumed or require("accelerate.data.seeding").pass(pass.iteration, rank)
  if shared and core.dist.world_size() > 1 then
    seed = tonumber(core.dist.broadcast_bytes(self._process_index == 0 and ("%.17g"):format(seed) or nil, 0))
  end
  pass.seed = seed
  return seed
end

--- Counts a batch of `pass` that is about to be returned.
function Loader:_give(pass, is_last)
  pass.taken = pass.taken + 1
  self._pass, self._end = pass, is_last
end

--- Ends `pass`.
function Loader:_finish(pass)
  if self._pass == pass then self._pass = nil end
  self:finish()
end

--- Starts copying a batch that was read ahead to the device. Returns nil for nil. own: nobody else
--- holds its tensors.
function Loader:_sent(batch, own)
  return batch and sending.start(batch, self._device, self._non_blocking or self._base.pin_memory, own)
end

--- Returns the batch's parts on the device.
function Loader:_placed(batch) return sending.finish(batch, self._device, self._non_blocking) end

--- Sets the number of the next pass, also for the batch sampler, the sampler and the data set where
--- they have set_epoch.
---@param epoch integer from 0
function Loader:set_epoch(epoch)
  options.value("set_epoch", "epoch", epoch, { "integer", min = 0 })
  self._iteration = epoch
  local parts = parts_of(self)
  for _, name in ipairs(PARTS) do
    local part = parts[name]
    if type(part) == "table" and type(part.set_epoch) == "function" then part:set_epoch(epoch) end
  end
end

-- ---- state --------------------------------------------------------------------------------------

--- Returns the loader's position: a plain table of strings, numbers and the state_dict() of
--- samplers and data set. A loader that loads a position saved while batch k is in use, or after
--- `break` at batch k, continues with batch k + 1; saved during the last batch, it continues with
--- the next pass. The position holds the seeds and generator states that the order is computed
--- from, not the order.
---@return table
function Loader:state_dict()
  if self._resume then return copied(self._resume.whole) end
  local found = { iteration = self._iteration, batches = 0, num_processes = self._num_processes,
    process_index = self._process_index,
    total_batch_size = self.total_batch_size }
  local pass = self._pass
  if pass and not self._end then
    found.iteration, found.batches, found.seed, found.parts = pass.iteration, pass.taken, pass.seed,
      copied(pass.snapshot)
  else
    if pass then found.iteration = pass.iteration + 1 end -- its last batch is in use
    found.parts = capture(self)
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
      "whose batches were read; this "
      .. "loader has %d in a batch, and %d items are no whole number of them", theirs, found.batches, mine,
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
  restore(self, checked.parts)
  self._iteration = checked.iteration
  self:reset()
  self._pass = nil
  -- Reading draws random numbers by rank, except with streams that all ranks read.
  local seed = (self._shares_seed or checked.process_index == self._process_index) and checked.seed or nil
  self._resume = { iteration = checked.iteration, batches = math.max(0, batches - self._skip), seed = seed,
    whole = copied(found) }
end

-- ---- fields -------------------------------------------------------------------------------------

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
