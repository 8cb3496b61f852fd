--- optim.Adamax, as torch.optim.Adamax.

local class = require "accelerate.utils.class"
local Optimizer = require "accelerate.optim.optimizer"
local positions = require "accelerate.utils.positions"

--- Adam with the infinity norm: `optim.Adamax(model:parameters(), { lr = 2e-3 })`. In place of the
--- root of a mean of squares stands u = max(beta2 * u, |g| + eps).
---@class accelerate.optim.Adamax : accelerate.optim.Optimizer
local Adamax = class("Adamax", Optimizer)

Adamax._kind = "adamax"
Adamax._schema = {
  lr = { "number", default = 2e-3, min = 0 },
  betas = { "list", default = { 0.9, 0.999 } },
  eps = { "number", default = 1e-8, min = 0 },
  weight_decay = { "number", default = 0, min = 0 },
  maximize = { "boolean", default = false },
}

Adamax.init = positions.arrange("Adamax", "params [lr] [betas] [eps] [weight_decay]", Adamax.init, true)

return Adamax
