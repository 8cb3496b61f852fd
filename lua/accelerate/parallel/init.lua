--- Training on several ranks: prepared models as replicas of one another (replica), their
--- parameters in flat buffers (flat), the reduction of gradients in buckets (buckets, comm_hooks),
--- weighted windows (windows), whether ranks still agree to the bit (identical), and ranks with
--- different numbers of batches (uneven_inputs). This file runs one backward pass.
local buckets = require "accelerate.parallel.replicated.buckets"
local core = require "accelerate.core"
local flat_buffers = require "accelerate.parallel.flat"
local identical = require "accelerate.parallel.replicated.identical"
local records = require "accelerate.parallel.record"
local pieces = require "accelerate.parallel.sharded.pieces"
local sharded = require "accelerate.parallel.sharded"
require "accelerate.parallel.sharded.averages"
local state = require "accelerate.state"
local windows = require "accelerate.parallel.windows"

local M = {
  record_of = records.of, prepare = records.prepare, fuse = records.fuse, reduce = records.reduce,
    mean_gradient = records.mean_gradient,
  flush = records.flush, no_sync = records.no_sync, with_sync = records.with_sync,
    local_only = records.local_only,
  average_parameters = records.average_parameters, any_gradient = windows.any_gradient,
    open_window = windows.open_window,
  close_windows = windows.close_windows, check_identical = identical.check,
}

--- Returns whether full buckets may be reduced during backward. Not with several models, whose
--- order may differ between ranks; not with uneven inputs, where ranks announce each reduction
--- first.
local function may_overlap(one)
  if one.no_sync_depth > 0 or one.local_only or not one.watched or records.uneven_inputs then return false end
  for _, flat in ipairs(one.flats) do
    if flat.device == "cpu" or flat.fused then return false end
  end
  return true
end

--- Returns whether gradients that are cut are delivered in a pass.
local function delivers_now(one, due)
  return one.delivers and (due and one.no_sync_depth == 0 or not one.plan.whole_in_no_sync)
end

--- Prepares a backward pass of Accelerator:backward.
---@param models accelerate.nn.Module[]
---@param due boolean whether the gradients are reduced in this pass or after it
function M.begin(models, due)
  for _, model in ipairs(models) do
    local one = records.of(model)
    one.begun_at, one.overlapping, one.captures, one.reduced_at = records.reached(one), false, false, nil
    if one.delivers then sharded.expect(one, #models == 1 and delivers_now(one, due)) end
    if due and #models == 1 and not one.plan and state.PartialState().num_processes > 1
      and may_overlap(one) then
      if one.captured and not one.hook and not core.is_recording() then
        one.captures = true
        return
      end
      one.overlapping = not one.ddp.static_graph or one.counted or false
      one.counting = not one.overlapping
      buckets.expect(one, one.overlapping)
    end
  end
end

--- Returns what a recording of the model's backward pass takes to contain its reduction
--- (accelerate.capture.model).
---@param model accelerate.nn.Module a prepared one
function M.recorded_reduction(model)
  local one = records.of(model)
  one.captured = true
  return {
    due = function() return one.delivers or one.captures or false end,
    run = function(pass)
      if one.delivers then sharded.expect(one, true)
      else
        one.overlapping = not one.ddp.static_graph or one.counted or false
        one.counting = not one.overlapping
        buckets.expect(one, one.overlapping)
      end
      pass()
      records.reduce(model)
    end,
    replayed = function(reduces)
      one.replays = one.replays + 1  -- the core counts no gradients in a replay
      one.captures = false
      if reduces and one.delivers then
        sharded.ignore(one)
        records.drop_touched(one)
      end
      one.reduced_at = reduces and records.reached(one) or nil
    end,
  }
end

--- Ends a backward pass: reduces the models that it reached. With one model all ranks take part,
--- even where a rank's loss did not reach it.
---@param models accelerate.nn.Module[]
---@param sync boolean whether a weighted window ends here; plain gradients are reduced in each pass
---  outside no_sync
---@param weight number? weight of this rank's loss, in a weighted window
function M.finish(models, sync, weight)
  local distributed = state.PartialState().num_processes > 1
  local single = #models == 1
  for _, model in ipairs(models) do
    local one = records.of(model)
    local reached = single or (one.watched and records.reached(one) ~= one.begun_at)
    if weight and reached then one.weight = one.weight + weight end
    local due = sync or not weight
    if due and one.local_only then
      if weight then windows.divide(model) end
    elseif delivers_now(one, due) and reached then
      if one.reduced_at ~= records.reached(one) then records.reduce(model) end
      if due and weight then windows.divide(model) end
    elseif due and one.no_sync_depth == 0 and (records.is_touched(one) or (single and one.watched)) then
      -- A replay has reduced what had arrived until then. What came behind it is each rank's own,
      -- and the mean of a mean stays what it is.
      if distributed and one.reduced_at ~= records.reached(one) then records.reduce(model) end
      records.drop_touched(one)
      if weight then windows.divide(model) end
    end
    sharded.finish(one)
  end
end

--- Before an optimizer's step: see accelerate.parallel.sharded.
---@param models accelerate.nn.Module[]
function M.steps(models)
  for _, model in ipairs(models) do sharded.steps(records.of(model)) end
end

--- After an optimizer's step: see accelerate.parallel.sharded.
---@param models accelerate.nn.Module[]
---@param groups table[] its param_groups
function M.stepped(models, groups)
  for _, model in ipairs(models) do sharded.stepped(records.of(model), groups) end
end

--- Returns this rank's pieces of a prepared model's parameters; see
--- accelerate.parallel.sharded.pieces.
---@param model accelerate.nn.Module
---@return accelerate.Piece[]
function M.pieces_of(model) return pieces.of_model(model, records.of(model)) end

--- After pieces of a prepared model were written.
---@param model accelerate.nn.Module
function M.pieces_changed(model) pieces.changed(records.of(model)) end

--- Returns this rank's pieces of an optimizer's states.
---@param optimizer accelerate.optim.Optimizer
---@return accelerate.StatePiece[]
function M.state_pieces(optimizer) return pieces.of_optimizer(optimizer) end

--- Runs fn(...) with the whole values of a prepared model, or of a module that has parameters of
--- one; see accelerate.parallel.sharded.
---@param model accelerate.nn.Module
function M.summon(model, write, from, fn, ...)
  local one = records.of(model)
  if not one then return sharded.gather(model:parameters(), write, from, fn, ...) end
  if not one.plan then return fn(...) end
  return sharded.summon(one, write, from, fn, ...)
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
