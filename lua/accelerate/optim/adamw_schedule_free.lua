--- optim.AdamWScheduleFree, as schedulefree.AdamWScheduleFree.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local ScheduleFree = require "accelerate.optim.schedule_free"
local positions = require "accelerate.utils.positions"

--- AdamW that needs no learning rate schedule: `optim.AdamWScheduleFree(model:parameters(), { lr =
--- 0.0025 })`. Call optimizer:train() before training and optimizer:eval() before an evaluation or
--- a checkpoint. betas[1] is the share of the mean in the point where gradients are taken.
--- warmup_steps: the learning rate rises linearly over that many steps. The weight of step k in the
--- mean is k ^ r * (the largest learning rate so far) ^ weight_lr_power.
---@class accelerate.optim.AdamWScheduleFree : accelerate.optim.ScheduleFree
local AdamWScheduleFree = class("AdamWScheduleFree", ScheduleFree)

AdamWScheduleFree._kind = "adamw_schedule_free"
AdamWScheduleFree._schema = ScheduleFree.schema {
  lr = { "number", default = 0.0025, min = 0 },
  betas = { "list", default = { 0.9, 0.999 } },
  eps = { "number", default = 1e-8, min = 0 },
}

function AdamWScheduleFree:_checked(given, schema)
  local o = ScheduleFree._checked(self, given, schema)
  if o.betas[1] == 0 then options.fail("%s: betas[1] must be above 0, got 0", self.__name) end
  return o
end

function AdamWScheduleFree:_hyper(group, hyper)
  ScheduleFree._hyper(self, group, hyper)
  hyper.bias2 = 1 - group.betas[2] ^ math.max(group.k, 1)
end

AdamWScheduleFree.init = positions.arrange("AdamWScheduleFree",
  "params [lr] [betas] [eps] [weight_decay]", AdamWScheduleFree.init, true)

return AdamWScheduleFree
