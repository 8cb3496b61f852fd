--- optim.Adadelta, as torch.optim.Adadelta.

local class = require "accelerate.utils.class"
local Optimizer = require "accelerate.optim.optimizer"
local positions = require "accelerate.utils.positions"

--- Scales the gradient by the root of the mean of squared updates over that of squared gradients:
--- `optim.Adadelta(model:parameters())`. With v = rho * v + (1 - rho) * g^2 and d = sqrt(u + eps) /
--- sqrt(v + eps) * g, p loses lr * d, and u = rho * u + (1 - rho) * d^2.
---@class accelerate.optim.Adadelta : accelerate.optim.Optimizer
local Adadelta = class("Adadelta", Optimizer)

Adadelta._kind = "adadelta"
Adadelta._schema = {
  lr = { "number", default = 1, min = 0 },
  rho = { "number", default = 0.9, min = 0, max = 1 },
  eps = { "number", default = 1e-6, min = 0 },
  weight_decay = { "number", default = 0, min = 0 },
  maximize = { "boolean", default = false },
}

Adadelta.init = positions.arrange("Adadelta", "params [lr] [rho] [eps] [weight_decay]", Adadelta.init, true)

return Adadelta
