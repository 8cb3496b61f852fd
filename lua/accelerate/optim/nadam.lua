--- optim.NAdam, as torch.optim.NAdam.

local class = require "accelerate.utils.class"
local Optimizer = require "accelerate.optim.optimizer"
local positions = require "accelerate.utils.positions"

--- Adam with Nesterov momentum: `optim.NAdam(model:parameters(), { lr = 2e-3 })`. The momentum of
--- step t is beta1 * (1 - 0.96 ^ (t * momentum_decay) / 2); the product of those so far is part of
--- the state.
---@class accelerate.optim.NAdam : accelerate.optim.Optimizer
local NAdam = class("NAdam", Optimizer)

NAdam._kind = "nadam"
NAdam._schema = {
  lr = { "number", default = 2e-3, min = 0 },
  betas = { "list", default = { 0.9, 0.999 } },
  eps = { "number", default = 1e-8, min = 0 },
  weight_decay = { "number", default = 0, min = 0 },
  momentum_decay = { "number", default = 4e-3, min = 0 },
  decoupled_weight_decay = { "boolean", default = false },
  maximize = { "boolean", default = false },
}

NAdam.init = positions.arrange("NAdam",
  "params [lr] [betas] [eps] [weight_decay] [momentum_decay] [decoupled_weight_decay]", NAdam.init, true)

return NAdam
