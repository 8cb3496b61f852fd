--- A pass of a prepared loader, from the first batch to the last: where it is in the data, the seed
--- of what reading draws, and a batch's way to the device. shard.lua and dispatcher.lua walk it:
---
---   start       makes the ranks' generators alike, passes the epoch on to the samplers, and takes
---               up
---               the position that load_state_dict has left
---   draw_seed   the seed of the random numbers that reading draws
---   send        starts a batch's copy to the device while the batch before it is in use
---   place       waits for that copy
---   give        counts the batch, and says whether it is the last one: `end_of_dataloader`, which
---               the Accelerator reads through GradientState
---   finish      ends the pass
local core = require "accelerate.core"
local order = require "accelerate.data_loader.order"
local random = require "accelerate.utils.random"
local sending = require "accelerate.data.transfer"

local M = {}

---@class accelerate.LoaderPass position in a pass
---@field iteration integer number of the pass
---@field snapshot table positions of the samplers at its start
---@field taken integer batches returned, including those skipped at the start
---@field resumed integer? seed of a resumed pass
---@field seed integer? seed of the random numbers that reading draws
local Pass = {}
Pass.__index = Pass

local function agree(loader)
  for _, kind in ipairs(loader._rng_types) do
    if kind ~= "generator" then random.synchronize_rng_state(kind) end
  end
  order.read_seeds(loader)
  for _, kind in ipairs(loader._rng_types) do
    if kind == "generator" and loader._generator then
      random.synchronize_rng_state(kind, loader._generator)
    end
  end
end

--- Starts a pass: synchronizes generators, calls set_epoch, and keeps the position for state_dict.
---@param loader accelerate.PreparedLoader
---@return accelerate.LoaderPass
function M.start(loader)
  local resume = loader._resume
  loader._resume = nil
  if resume and resume.iteration ~= loader._iteration then resume = nil end -- set_epoch chose another pass
  if loader._num_processes > 1 then agree(loader) end
  -- Our own samplers draw a new order in each pass, so a pass that ended with `break` is not
  -- repeated.
  for _, part in ipairs(loader._epoch_parts) do part:set_epoch(loader._iteration) end
  loader._pass = setmetatable({ _loader = loader, iteration = loader._iteration,
    snapshot = order.capture(loader), taken = loader._skip + (resume and resume.batches or 0),
    resumed = resume and resume.seed }, Pass)
  return loader._pass
end

--- Returns the seed of the random numbers that reading draws in this pass.
---@param rank integer the rank that draws them
---@param shared boolean? rank 0's seed for all ranks, which read one stream
function Pass:draw_seed(rank, shared)
  local seed = self.resumed or require("accelerate.data.seeding").pass(self.iteration, rank)
  if shared and core.dist.world_size() > 1 then
    local first = self._loader._process_index == 0
    seed = tonumber(core.dist.broadcast_bytes(first and ("%.17g"):format(seed) or nil, 0))
  end
  self.seed = seed
  return seed
end

--- Starts copying a batch that was read ahead to the device. Returns nil for nil. own: nobody else
--- holds its tensors.
function Pass:send(batch, own)
  local loader = self._loader
  return batch and sending.start(batch, loader._device, loader._non_blocking or loader._base.pin_memory, own)
end

--- Returns the batch's parts on the device.
function Pass:place(batch) return sending.finish(batch, self._loader._device, self._loader._non_blocking) end

--- Counts a batch that is about to be returned.
---@param is_last boolean
---@param remainder integer? real items of the last round, where they are known now
function Pass:give(is_last, remainder)
  local loader = self._loader
  self.taken = self.taken + 1
  loader._pass, loader._end = self, is_last
  if is_last and remainder then loader._remainder = remainder end
end

--- Ends the pass.
---@param whole boolean its last batch was in use: the next pass has the next number
function Pass:finish(whole)
  local loader = self._loader
  if whole then loader._iteration = loader._iteration + 1 end
  if loader._pass == self then loader._pass = nil end
  loader:finish()
end

return M
