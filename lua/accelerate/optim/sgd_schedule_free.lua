--- optim.SGDScheduleFree, as schedulefree.SGDScheduleFree.

local class = require "accelerate.utils.class"
local ScheduleFree = require "accelerate.optim.schedule_free"
local positions = require "accelerate.utils.positions"

--- Gradient descent with momentum that needs no learning rate schedule:
--- `optim.SGDScheduleFree(model:parameters(), { lr = 1 })`. Call optimizer:train() before training
--- and optimizer:eval() before an evaluation or a checkpoint. warmup_steps: the learning rate rises
--- linearly over that many steps. The weight of step k in the mean is k ^ r * (the largest learning
--- rate so far) ^ weight_lr_power.
---@class accelerate.optim.SGDScheduleFree : accelerate.optim.ScheduleFree
local SGDScheduleFree = class("SGDScheduleFree", ScheduleFree)

SGDScheduleFree._kind = "sgd_schedule_free"
SGDScheduleFree._schema = ScheduleFree.schema {
  lr = { "number", default = 1, min = 0 },
  momentum = { "number", default = 0.9, above = 0, below = 1 },
}

SGDScheduleFree.init = positions.arrange("SGDScheduleFree",
  "params [lr] [momentum] [weight_decay]", SGDScheduleFree.init, true)

return SGDScheduleFree
