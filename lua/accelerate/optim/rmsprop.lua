--- optim.RMSprop, as torch.optim.RMSprop.

local class = require "accelerate.utils.class"
local Optimizer = require "accelerate.optim.optimizer"
local positions = require "accelerate.utils.positions"

--- Divides the gradient by the root of the running mean of its squares (alpha):
--- `optim.RMSprop(model:parameters(), { lr = 0.01, momentum = 0.9 })`. With centered, the square of
--- the mean gradient is taken from that mean first. With momentum the quotients are summed up in a
--- buffer, which shrinks by momentum at each step, and p loses lr times the buffer.
---@class accelerate.optim.RMSprop : accelerate.optim.Optimizer
local RMSprop = class("RMSprop", Optimizer)

RMSprop._kind = "rmsprop"
RMSprop._schema = {
  lr = { "number", default = 1e-2, min = 0 },
  alpha = { "number", default = 0.99, min = 0 },
  eps = { "number", default = 1e-8, min = 0 },
  weight_decay = { "number", default = 0, min = 0 },
  momentum = { "number", default = 0, min = 0 },
  centered = { "boolean", default = false },
  maximize = { "boolean", default = false },
}

RMSprop.init = positions.arrange("RMSprop",
  "params [lr] [alpha] [eps] [weight_decay] [momentum] [centered]", RMSprop.init, true)

return RMSprop
