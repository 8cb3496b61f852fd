--- optim.Lion, as in "Symbolic Discovery of Optimization Algorithms" (Chen et al. 2023).

local class = require "accelerate.utils.class"
local Optimizer = require "accelerate.optim.optimizer"
local positions = require "accelerate.utils.positions"

--- Steps by the sign of a mean gradient: `optim.Lion(model:parameters(), { lr = 1e-4, weight_decay
--- = 0.1 })`. p shrinks by lr * weight_decay of itself and loses lr * sign(beta1 * m + (1 - beta1)
--- * g); then m = beta2 * m + (1 - beta2) * g. Its authors take a learning rate 3 to 10 times below
--- AdamW's and a weight decay as many times above. One state tensor.
---@class accelerate.optim.Lion : accelerate.optim.Optimizer
local Lion = class("Lion", Optimizer)

Lion._kind = "lion"
Lion._schema = {
  lr = { "number", default = 1e-4, min = 0 },
  betas = { "list", default = { 0.9, 0.99 } },
  weight_decay = { "number", default = 0, min = 0 },
  maximize = { "boolean", default = false },
}

-- Other implementations count no steps.
function Lion:_check_saved(entry, p, number, kept)
  return Optimizer._check_saved(self, { step = entry.step or 0, exp_avg = entry.exp_avg }, p, number, kept)
end

Lion.init = positions.arrange("Lion", "params [lr] [betas] [weight_decay]", Lion.init, true)

return Lion
