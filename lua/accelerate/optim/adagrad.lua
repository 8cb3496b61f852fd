--- optim.Adagrad, as torch.optim.Adagrad.

local class = require "accelerate.utils.class"
local Optimizer = require "accelerate.optim.optimizer"

--- Divides the gradient by the root of the sum of all its squares:
--- `optim.Adagrad(model:parameters(), { lr = 0.01 })`. The learning rate of step t is lr / (1 + (t
--- - 1) * lr_decay); the sums begin at initial_accumulator_value.
---@class accelerate.optim.Adagrad : accelerate.optim.Optimizer
local Adagrad = class("Adagrad", Optimizer)

Adagrad._kind = "adagrad"
Adagrad._schema = {
  lr = { "number", default = 1e-2, min = 0 },
  lr_decay = { "number", default = 0, min = 0 },
  weight_decay = { "number", default = 0, min = 0 },
  initial_accumulator_value = { "number", default = 0, min = 0 },
  eps = { "number", default = 1e-10, min = 0 },
  maximize = { "boolean", default = false },
}

return Adagrad
