--- optim.RAdam, as torch.optim.RAdam.

local class = require "accelerate.utils.class"
local Optimizer = require "accelerate.optim.optimizer"
local positions = require "accelerate.utils.positions"

--- Rectified Adam: `optim.RAdam(model:parameters(), { lr = 1e-3 })`. While the mean of squares
--- covers too few steps for its variance to be known, a step is lr times the mean gradient; after
--- that, Adam's with a factor that makes up for it.
---@class accelerate.optim.RAdam : accelerate.optim.Optimizer
local RAdam = class("RAdam", Optimizer)

RAdam._kind = "radam"
RAdam._schema = {
  lr = { "number", default = 1e-3, min = 0 },
  betas = { "list", default = { 0.9, 0.999 } },
  eps = { "number", default = 1e-8, min = 0 },
  weight_decay = { "number", default = 0, min = 0 },
  decoupled_weight_decay = { "boolean", default = false },
  maximize = { "boolean", default = false },
}

RAdam.init = positions.arrange("RAdam",
  "params [lr] [betas] [eps] [weight_decay] [decoupled_weight_decay]", RAdam.init, true)

return RAdam
