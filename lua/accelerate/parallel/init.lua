--- Training on several ranks, for the rest of the library: prepared models (record), their
--- parameters in flat buffers (flat), weighted windows (windows), and what ranks exchange, which
--- their strategy decides (strategy, with the tenants replicated/ and sharded/). This file says
--- which strategy serves a plan, and takes the prepared models of an Accelerator through a step.
local flat_buffers = require "accelerate.parallel.flat"
local identical = require "accelerate.parallel.replicated.identical"
local pieces = require "accelerate.parallel.pieces"
local records = require "accelerate.parallel.record"
local sharded = require "accelerate.parallel.sharded"
require "accelerate.parallel.sharded.averages"
local uneven_inputs = require "accelerate.parallel.replicated.uneven_inputs"
local windows = require "accelerate.parallel.windows"

local Replicated = require "accelerate.parallel.replicated"

local M = {
  record_of = records.of, prepare = records.prepare, no_sync = records.no_sync, with_sync = records.with_sync,
  local_only = records.local_only, mean_gradient = Replicated.mean_gradient,
  any_gradient = windows.any_gradient, open_window = windows.open_window,
  close_windows = windows.close_windows, window_states = windows.states, restore_windows = windows.restore,
  check_identical = identical.check, join = uneven_inputs.join, check_joinable = uneven_inputs.check,
  is_formed = pieces.is_formed, take_formed = pieces.take_formed, gradient_of = pieces.gradient_of,
  set_gradient = pieces.set_gradient, state_pieces = pieces.of_optimizer,
}

--- The strategies. The first that serves a plan is the plan's.
M.TENANTS = { require "accelerate.parallel.sharded.strategy", Replicated }

--- Returns the strategy for a plan.
---@param plan accelerate.ShardingPlan? nil: every rank has the whole model
---@param handler accelerate.DistributedDataParallelKwargs?
---@return accelerate.Strategy
function M.strategy(plan, handler)
  for _, Strategy in ipairs(M.TENANTS) do
    if Strategy.serves(plan) then return Strategy(plan, handler) end
  end
end

--- Leaves the gradients of these parameters to an optimizer that applies them inside backward.
---@param models accelerate.nn.Module[] prepared ones, whose strategy has taken the optimizer
---@param params accelerate.Tensor[]
function M.fuse(models, params)
  for _, p in ipairs(params) do flat_buffers.fused[p] = true end
  for _, model in ipairs(models) do
    local record = records.of(model)
    record.strategy:fuse(record, model)
  end
end

-- ---- a step

--- Prepares a backward pass of Accelerator:backward.
---@param models accelerate.nn.Module[]
---@param due boolean whether the gradients are reduced in this pass or after it
---@param history boolean? whether gradients get a history (create_graph)
function M.begin(models, due, history)
  local pass = { due = due, alone = #models == 1, history = history }
  for _, model in ipairs(models) do
    local record = records.of(model)
    record.begun_at = records.reached(record)
    record.strategy:begin_pass(record, pass)
  end
end

--- Ends a backward pass: reduces the models that it reached. With one model all ranks take part,
--- even where a rank's loss did not reach it.
---@param models accelerate.nn.Module[]
---@param sync boolean whether a weighted window ends here; plain gradients are reduced in each pass
---  outside no_sync
---@param weight number? weight of this rank's loss, in a weighted window
function M.finish(models, sync, weight)
  local pass = { due = sync or not weight, alone = #models == 1 }
  for _, model in ipairs(models) do
    local record = records.of(model)
    local strategy = record.strategy
    pass.reached = pass.alone or (record.watched and records.reached(record) ~= record.begun_at)
    if weight and pass.reached then record.weight = record.weight + weight end
    local final = pass.due and record.local_only or strategy:finish_pass(record, model, pass)
    if final and weight then strategy:divide(record, model) end
    strategy:rest(record)
  end
end

--- Reduces the gradients of backward passes outside Accelerator:backward (`loss:backward()`).
---@param models accelerate.nn.Module[]
function M.flush(models)
  for _, model in ipairs(models) do
    local record = records.of(model)
    if record.no_sync_depth == 0 and records.is_touched(record) then
      record.strategy:reduce(record, model)
      record.strategy:rest(record)
    end
  end
end

--- Before an optimizer's step.
---@param models accelerate.nn.Module[]
function M.steps(models)
  for _, model in ipairs(models) do
    local record = records.of(model)
    record.strategy:before_step(record)
  end
end

--- After an optimizer's step.
---@param models accelerate.nn.Module[]
---@param groups table[] its param_groups
function M.stepped(models, groups)
  for _, model in ipairs(models) do
    local record = records.of(model)
    record.strategy:after_step(record, groups)
  end
end

--- Returns what a recording of a model's backward pass takes to contain its reduction
--- (accelerate.capture.model).
---@param model accelerate.nn.Module a prepared one
---@return table?
function M.recorded_reduction(model)
  local record = records.of(model)
  return record.strategy:recorded_reduction(record, model)
end

-- ---- values

--- Averages the parameters of a prepared model over all ranks.
---@param model accelerate.nn.Module
function M.average_parameters(model)
  local record = records.of(model)
  record.strategy:average(record, model)
end

--- Returns whether ranks have buffers of their own in a prepared model.
---@param model accelerate.nn.Module
---@return boolean
function M.keeps_buffers(model)
  local record = records.of(model)
  return record.strategy:keeps_buffers(record)
end

--- Returns whether each rank has the whole of a prepared model, which it can train by itself.
---@param model accelerate.nn.Module
---@return boolean
function M.is_replicated(model) return records.of(model).strategy.replicas end

--- Returns whether a model's values are cut over ranks.
---@param model accelerate.nn.Module
---@return boolean
function M.cuts_values(model)
  local record = records.of(model)
  return record ~= nil and record.strategy:cuts_values()
end

--- Returns whether the values of a model are cut over ranks and this rank can read its part alone.
--- Ranks of one machine may have one copy between them, which all read.
---@param model accelerate.nn.Module
---@return boolean
function M.reads_part(model)
  local record = records.of(model)
  return record ~= nil and record.gathers or false
end

--- Returns the plan of a prepared model.
---@param model accelerate.nn.Module
---@return accelerate.ShardingPlan
function M.plan_of(model) return records.of(model).strategy.plan end

--- Returns this rank's pieces of a prepared model's parameters; see
--- accelerate.parallel.pieces.
---@param model accelerate.nn.Module
---@return accelerate.Piece[]
function M.pieces_of(model)
  local record = records.of(model)
  return record.strategy:pieces(record, model)
end

--- Before pieces of a prepared model are written.
---@param model accelerate.nn.Module
function M.meet(model)
  local record = records.of(model)
  record.strategy:meet(record)
end

--- After pieces of a prepared model were written.
---@param model accelerate.nn.Module
function M.pieces_changed(model)
  local record = records.of(model)
  record.strategy:changed(record)
end

--- Runs fn(...) with the whole values of a prepared model, or of a module that has parameters of
--- one; see accelerate.parallel.sharded.
---@param model accelerate.nn.Module
function M.summon(model, write, from, fn, ...)
  local record = records.of(model)
  if not record then return sharded.gather(model:parameters(), write, from, fn, ...) end
  return record.strategy:summon(record, write, from, fn, ...)
end

--- Returns whether a parameter's values are cut over ranks.
---@param p accelerate.Tensor
---@return boolean
function M.is_cut(p)
  local flat = flat_buffers.of(p)
  return flat ~= nil and flat.cut_values or false
end

--- Runs fn(...) with the whole values of some parameters; see accelerate.parallel.sharded.
---@param params accelerate.Tensor[]
function M.gather(params, write, from, fn, ...) return sharded.gather(params, write, from, fn, ...) end

return M
