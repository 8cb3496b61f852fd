--- Averages of models that are cut (optim.swa_utils): the copy is cut as the model is, and each
--- rank averages its parts.
local core = require "accelerate.core"
local pieces = require "accelerate.parallel.pieces"
local records = require "accelerate.parallel.record"
local sharded = require "accelerate.parallel.sharded"
local swa_utils = require "accelerate.optim.swa_utils"

local M = {}

--- Returns a copy of a prepared model that is cut, which is cut alike and has no gradients; nil of
--- another model. A collective.
---@param model accelerate.nn.Module
---@return accelerate.nn.Module?
function M.clone(model)
  local one = records.of(model)
  if not one or one.strategy.replicas then return nil end
  local copy = sharded.summon(one, nil, nil, model.clone, model)
  local params = model:parameters()
  for i, p in ipairs(copy:parameters()) do
    p.requires_grad = false
    sharded.group_like(p, params[i]) -- so that this rank has the same elements of both
  end
  records.prepare(copy, one.strategy)
  return copy
end

--- Returns this rank's elements of an average and of the model's value beside them, one dim; the
--- tensors themselves where the average is whole, and nil where this rank has nothing of it.
---@param averaged accelerate.Tensor
---@param current accelerate.Tensor
---@return accelerate.Tensor? averaged
---@return accelerate.Tensor? current
function M.beside(averaged, current)
  local from, n, cut, own = pieces.of(averaged)
  if not cut then return averaged:detach(), current:detach() end
  if n == 0 then return nil, nil end
  local at, count, is_cut, piece = pieces.of(current)
  if is_cut and at == from and count == n then return own, piece end
  return own, current:detach():reshape(-1):narrow(1, from + 1, n)
end

--- Runs fn, which writes averages: before it and after it the ranks meet.
---@param averaged accelerate.nn.Module
---@param fn function
function M.write(averaged, fn)
  local one = records.of(averaged)
  if not one or one.strategy.replicas then return fn() end
  pieces.meet(one)
  fn()
  core.no_grad(pieces.changed, one)
end

swa_utils.parts = M

return M
