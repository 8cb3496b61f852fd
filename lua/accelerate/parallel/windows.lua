--- Weighted windows: several backward passes with weights. At the sync the gradients become their
--- sum over the window and all ranks, divided by the sum of the weights.
local core = require "accelerate.core"
local flat_buffers = require "accelerate.parallel.flat"
local options = require "accelerate.utils.options"
local records = require "accelerate.parallel.record"
local state = require "accelerate.state"

local fail = options.fail

local M = {}

local function scale(record, factor)
  for _, flat in ipairs(record.flats) do flat.layout:scale_grads(factor) end
end

--- Returns whether any parameter of these models has a gradient.
---@param models accelerate.nn.Module[]
function M.any_gradient(models)
  for _, model in ipairs(models) do
    for _, flat in ipairs(records.of(model).flats) do
      if flat.layout:has_grad() then return true end
    end
  end
  return false
end

--- Prepares a weighted backward pass: turns gradients that this window has divided back into sums.
---@param models accelerate.nn.Module[]
function M.open_window(models)
  for _, model in ipairs(models) do
    local record = records.of(model)
    records.watch(record)
    if record.weight > 0 or record.divisor > 0 then
      if not M.any_gradient { model } then
        record.weight, record.divisor = 0, 0  -- gradients were cleared by hand: a new window
      elseif record.divisor > 0 and not record.as_sums then
        scale(record, record.divisor)
        record.as_sums = true
      end
    end
  end
end

--- At a sync, after the reduction, turns the mean over ranks into the sum of gradients over the sum
--- of weights.
---@param record accelerate.ModelRecord
function M.divide(record)
  local mine = record.weight
  if not record.local_only and state.PartialState().num_processes > 1 then
    mine = core.dist.all_reduce(core.tensor({ mine }, { dtype = "float64" }), "mean"):totable()[1]
  end
  local total = record.divisor + mine
  if not (total > 0) then
    fail("backward: the weights of this window sum to %g on all ranks; expected more than 0", total)
  end
  scale(record, 1 / total)
  record.weight, record.divisor, record.as_sums = 0, total, false
end

--- Forgets the open window of a weighted backward pass.
---@param model accelerate.nn.Module
function M.drop_window(model)
  local record = records.of(model)
  record.weight, record.divisor, record.as_sums = 0, 0, false
  records.untouch(record)
end

--- Returns how far the windows of models are, model by model, for checkpoints.
---@param models accelerate.nn.Module[]
---@return { weight: number, divisor: number, as_sums: boolean }[]
function M.states(models)
  local list = {}
  for i, model in ipairs(models) do
    local record = records.of(model)
    list[i] = { weight = record.weight, divisor = record.divisor, as_sums = record.as_sums }
  end
  return list
end

--- Goes on with windows as they were saved.
---@param models accelerate.nn.Module[]
---@param states { weight: number, divisor: number, as_sums: boolean }[] what `states` returned
function M.restore(models, states)
  for i, model in ipairs(models) do
    local record, saved = records.of(model), states[i]
    if saved then
      record.weight, record.divisor, record.as_sums = saved.weight, saved.divisor, saved.as_sums
    end
  end
end

--- Ends the windows of models whose gradients an optimizer has applied.
---@param models accelerate.nn.Module[]
---@param groups table[] an optimizer's param_groups
function M.close_windows(models, groups)
  local applied = flat_buffers.of_groups(groups)
  for _, model in ipairs(models) do
    local record = records.of(model)
    for _, flat in ipairs(record.flats) do
      if applied[flat] then record.weight, record.divisor, record.as_sums = 0, 0, false end
    end
  end
end

return M
