--- Loaders that are not prepared, without their first batches.
local DataLoader = require "accelerate.data.loader"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local sharding = require "accelerate.data_loader.shard_samplers"

local M = {}

--- A loader that skips the first skip_batches batches of each pass. Samples of a data set with
--- get(i) are skipped without reading them; a stream is read and dropped. Its length does not count
--- the skipped batches.
---@class accelerate.SkipDataLoader: accelerate.DataLoader
---@field skip_batches integer
local SkipDataLoader = class("SkipDataLoader", DataLoader)
M.SkipDataLoader = SkipDataLoader

--- Takes DataLoader's options, and skip_batches (default 0).
---@param dataset table
---@param opts? table
function SkipDataLoader:init(dataset, opts)
  local rest, skip = {}, 0
  if type(opts) == "table" then
    for key, value in next, opts do rest[key] = value end
    skip = options.value("SkipDataLoader", "option 'skip_batches'", opts.skip_batches,
      { "integer", default = 0, min = 0 })
    rest.skip_batches = nil
  end
  DataLoader.init(self, dataset, opts and rest)
  self.skip_batches = skip
  if self.batch_sampler then
    self.batch_sampler = sharding.SkipBatchSampler(self.batch_sampler, skip)
    self._skipped = skip -- samples keep the random numbers that they have in a whole pass
  elseif self.sampler then
    self.sampler = sharding.SkipBatchSampler(self.sampler, skip)
    self._skipped = skip
  end
end

function SkipDataLoader:_start(opts)
  if self.sampler or self.batch_sampler then return DataLoader._start(self, opts) end
  local late = {}
  for key, value in next, opts or {} do late[key] = value end
  late.skip = (late.skip or 0) + self.skip_batches
  return DataLoader._start(self, late)
end

function SkipDataLoader:len()
  local whole = DataLoader.len(self)
  if self.sampler or self.batch_sampler then return whole end -- the sampler's length is already less
  return math.max(0, whole - self.skip_batches)
end

--- Returns a loader like `loader`, without its first batches.
function M.without_beginning(loader, num_batches)
  local opts = loader:_carried()
  opts.skip_batches = num_batches + (not (loader.sampler or loader.batch_sampler) and loader.skip_batches
    or 0)
  if loader.batch_sampler then
    opts.batch_sampler = loader.batch_sampler
  else
    opts.sampler, opts.batch_size, opts.drop_last = loader.sampler, loader.batch_size, loader.drop_last or nil
  end
  local made = SkipDataLoader(loader.dataset, opts)
  made.drop_last, made.generator = loader.drop_last, loader.generator
  made._epoch, made._announced = loader._epoch, loader._announced
  if made._skipped then made._skipped = made._skipped + (loader._skipped or 0) end
  return made
end

return M
