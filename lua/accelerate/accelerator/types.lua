--- Which kind of object a script handed over.
local class = require "accelerate.utils.class"
local optimizers = require "accelerate.accelerator.optimizer"
local schedulers = require "accelerate.accelerator.scheduler"

local M = {}

function M.is_accelerator(value)
  local Class = class.of(value)
  return Class ~= nil and Class.__name == "Accelerator"
end

function M.is_model(value) return class.is(value, require("accelerate.nn").Module) end

function M.is_optimizer(value)
  return optimizers.is_accelerated(value) or class.is(value, require("accelerate.optim").Optimizer)
end

function M.is_scheduler(value)
  return schedulers.is_accelerated(value)
    or class.is(value, require("accelerate.optim").lr_scheduler.LRScheduler)
end

return M
