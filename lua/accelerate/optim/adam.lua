--- optim.Adam, as torch.optim.Adam.

local class = require "accelerate.utils.class"
local Optimizer = require "accelerate.optim.optimizer"
local positions = require "accelerate.utils.positions"

--- Adam: `optim.Adam(model:parameters(), { lr = 1e-3 })`. A step moves p by lr * m / (sqrt(v) +
--- eps), where m and v are the running means of the gradient and of its square (betas), corrected
--- for their start at zero; with amsgrad, v is the largest that it ever was. weight_decay * p is
--- added to the gradient, or, with decoupled_weight_decay (AdamW), lr * weight_decay * p taken from
--- p.
---@class accelerate.optim.Adam : accelerate.optim.Optimizer
local Adam = class("Adam", Optimizer)

Adam._kind = "adam"
Adam._schema = {
  lr = { "number", default = 1e-3, min = 0 },
  betas = { "list", default = { 0.9, 0.999 } },
  eps = { "number", default = 1e-8, min = 0 },
  weight_decay = { "number", default = 0, min = 0 },
  amsgrad = { "boolean", default = false },
  maximize = { "boolean", default = false },
  decoupled_weight_decay = { "boolean", default = false },
}

Adam.init = positions.arrange("Adam", "params [lr] [betas] [eps] [weight_decay] [amsgrad]", Adam.init, true)

return Adam
