--- Makes prepared loaders: chooses their kind, and skips first batches.
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local shard = require "accelerate.data_loader.shard"
local state = require "accelerate.state"

local fail = options.fail

local M = {}

local function dispatcher() return require "accelerate.data_loader.dispatcher" end

--- Returns whether rank 0 of this loader reads for all ranks.
---@return boolean
function M.is_dispatched(value)
  return package.loaded["accelerate.data_loader.dispatcher"] ~= nil and dispatcher().is(value)
end

---@return boolean
function M.is_prepared(value) return shard.is(value) or M.is_dispatched(value) end

--- Returns whether `value` is a loader, prepared or not.
---@return boolean
function M.is_loader(value)
  return M.is_prepared(value) or class.is(value, require("accelerate.data").DataLoader)
end

-- ---- preparing

local PREPARE = {
  device = { "string", optional = true },
  num_processes = { "integer", optional = true, min = 1 },
  process_index = { "integer", optional = true, min = 0 },
  put_on_device = { "boolean", default = false },
  rng_types = { "list", optional = true },
  slice_fn_for_dispatch = { "function", optional = true },
  config = { "table", optional = true },
  torch_device_mesh = { "any", optional = true },
}
-- Options that may be in a configuration object or by themselves.
local CONFIGURED = {
  split_batches = { "boolean", optional = true }, dispatch_batches = { "boolean", optional = true },
  even_batches = { "boolean", optional = true }, use_seedable_sampler = { "boolean", optional = true },
  data_seed = { "integer", optional = true }, non_blocking = { "boolean", optional = true },
  use_stateful_dataloader = { "boolean", optional = true },
}
for name, entry in pairs(CONFIGURED) do PREPARE[name] = entry end

local function configuration(o)
  local given = {}
  for name in pairs(CONFIGURED) do given[name] = o[name] end
  if not o.config then return require("accelerate.config.dataclasses").DataLoaderConfiguration(given) end
  local name = next(given)
  if name then fail("prepare_data_loader: give option '%s' in the config, which is given, too", name) end
  return o.config
end

local function check_split(loader, ranks, dispatched)
  local batch_size_of = require("accelerate.data_loader.prepared").batch_size_of
  local size = loader.batch_size or batch_size_of(loader.batch_sampler or loader.sampler)
  if not size then
    fail("prepare: split_batches needs a loader, or a batch sampler, that has a batch_size")
  end
  -- collate_fn may turn one sample into a batch of many, which a dispatched loader can cut.
  if size % ranks ~= 0 and not (dispatched and size == 1) then
    fail("prepare: split_batches needs a batch size that is a multiple of the %d processes, got %d", ranks,
      size)
  end
end

--- Returns whether rank 0 reads for all ranks: as configured; by default for streams whose batches
--- are placed on the device.
local function dispatches(loader, o)
  local asked = o.config.dispatch_batches
  if asked == nil then return o.put_on_device and not loader.sampler and not loader.batch_sampler end
  if asked and not o.put_on_device then
    fail("prepare: dispatch_batches = true places batches on the device; " ..
      "it cannot be had with device placement off")
  end
  return asked
end

-- A sampler that gives each rank its share already would be shared out once more, and most samples
-- would never be read.
local function check_not_shared(loader, ranks)
  local batch_sampler = loader.batch_sampler
  local sampler = loader.sampler or type(batch_sampler) == "table" and batch_sampler.sampler
  if ranks == 1 or not class.is(sampler, require("accelerate.data").DistributedSampler) then return end
  if sampler.num_replicas == 1 then return end
  fail("prepare: the loader's DistributedSampler gives each rank its share, and a prepared loader shares " ..
    "out what it reads: every rank would see 1 of %d samples; leave the sampler out and give the " ..
    "loader shuffle = %s, or do not prepare it", ranks * sampler.num_replicas, tostring(sampler.shuffle))
end

--- Makes a prepared loader: a DataLoaderShard or a DataLoaderDispatcher. Returns a prepared loader
--- as it is.
---@param loader accelerate.DataLoader
---@param opts { device: string?, put_on_device: boolean?, rng_types: string[]?, config: table?,
---  num_processes: integer?, process_index: integer?, slice_fn_for_dispatch: function?,
---  split_batches: boolean?, dispatch_batches: boolean?, even_batches: boolean?,
---  use_seedable_sampler: boolean?, data_seed: integer?, non_blocking: boolean?,
---  use_stateful_dataloader: boolean? }? put_on_device: default false. num_processes,
---  process_index: default those of this run. config: a DataLoaderConfiguration that replaces the
---  options from split_batches on. slice_fn_for_dispatch(batch, { first, last }, process_index,
---  num_processes): returns this rank's items, `first` to `last` (from 1), of the batch that rank 0
---  read
function M.prepare_data_loader(loader, opts)
  local o = options.check("prepare_data_loader", opts, PREPARE)
  if not M.is_loader(loader) then
    fail("prepare_data_loader: expected a loader, got %s", options.show(loader))
  end
  if M.is_prepared(loader) then return loader end
  if o.torch_device_mesh ~= nil then
    fail("prepare_data_loader: torch_device_mesh: tensor, context and sequence parallelism are not there " ..
      "yet; leave the option out")
  end
  local here = state.PartialState()
  o.config = configuration(o)
  o.num_processes = o.num_processes or here.num_processes
  o.process_index = o.process_index or here.process_index
  o.rng_types = o.rng_types or { "generator" }
  if o.process_index >= o.num_processes then
    fail("prepare_data_loader: option 'process_index' must be 0 to %d, got %d", o.num_processes - 1,
      o.process_index)
  end
  check_not_shared(loader, o.num_processes)
  local dispatched = dispatches(loader, o)
  if o.config.split_batches then check_split(loader, o.num_processes, dispatched) end
  if not dispatched then return shard.make(loader, o) end
  if o.num_processes ~= here.num_processes then
    fail("prepare_data_loader: dispatch_batches needs all %d processes that there are, got option " ..
      "'num_processes' = %d",
      here.num_processes, o.num_processes)
  end
  return dispatcher().make(loader, o)
end

local function made_by(name, dispatch)
  return properties.callable(name, function(loader, opts)
    if not class.is(loader, require("accelerate.data").DataLoader) then
      fail("%s: expected a loader that is not prepared, got %s", name, options.show(loader))
    end
    local given = options.check(name, opts, PREPARE)
    if given.config == nil then given.dispatch_batches = dispatch end
    if dispatch and (opts == nil or opts.put_on_device == nil) then given.put_on_device = true end
    local made = M.prepare_data_loader(loader, given)
    if M.is_dispatched(made) ~= dispatch then
      fail("%s: the config has dispatch_batches = %s", name,
        tostring(given.config and given.config.dispatch_batches))
    end
    return made
  end)
end

--- Returns a loader that reads this rank's share: prepare_data_loader with dispatch_batches =
--- false.
---@param loader accelerate.DataLoader
---@param opts? table as for prepare_data_loader
M.DataLoaderShard = made_by("DataLoaderShard", false)

--- Returns a loader whose rank 0 reads for all ranks: prepare_data_loader with dispatch_batches =
--- true.
---@param loader accelerate.DataLoader
---@param opts? table as for prepare_data_loader
M.DataLoaderDispatcher = made_by("DataLoaderDispatcher", true)

--- Sets even_batches of loaders that shard a data set with get(i).
---@param loaders table[] prepared loaders
---@param even boolean
---@return fun() undo
---@return integer refused number of dispatched loaders among them, which are left unchanged
function M.override_even_batches(loaders, even)
  local undo, refused = {}, 0
  for _, loader in ipairs(loaders) do
    if M.is_dispatched(loader) then
      refused = refused + 1
    elseif loader._shard then
      undo[#undo + 1] = shard.override_even_batches(loader, even)
    end
  end
  return function()
    for i = #undo, 1, -1 do undo[i]() end
  end, refused
end

local SKIP = { num_batches = { "integer", default = 0, min = 0 } }

--- Returns a loader that skips the first `num_batches` batches (of this rank) of each pass. The
--- original is unchanged and keeps its own count of passes. Samples of a data set with get(i) are
--- skipped without reading them; a stream is read and dropped. When the original has just loaded a
--- state, the copy skips from the beginning of that pass, and the original's next pass starts at
--- its beginning.
---@param loader table
---@param num_batches integer|{ num_batches: integer }|nil default 0
function M.skip_first_batches(loader, num_batches, ...)
  num_batches = options.read("skip_first_batches", { "num_batches" }, SKIP, num_batches, ...).num_batches
  if M.is_prepared(loader) then return loader:_without(num_batches) end
  if not M.is_loader(loader) then
    fail("skip_first_batches: expected a loader, got %s", options.show(loader))
  end
  return require("accelerate.data_loader.skip").without_beginning(loader, num_batches)
end

return M
