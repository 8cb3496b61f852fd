--- optim.AdamW, as torch.optim.AdamW.

local class = require "accelerate.utils.class"
local Adam = require "accelerate.optim.adam"
local positions = require "accelerate.utils.positions"

--- Adam with decoupled weight decay: `optim.AdamW(model:parameters(), { lr = 2e-3 })`. A step first
--- shrinks p by lr * weight_decay of itself, then moves it as Adam does without a weight decay.
---@class accelerate.optim.AdamW : accelerate.optim.Adam
local AdamW = class("AdamW", Adam)

AdamW._schema = {}
for name, entry in next, Adam._schema do AdamW._schema[name] = entry end
AdamW._schema.weight_decay = { "number", default = 1e-2, min = 0 }
AdamW._schema.decoupled_weight_decay = nil

function AdamW:_hyper(group, hyper)
  Adam._hyper(self, group, hyper)
  hyper.decoupled_weight_decay = true
end

AdamW.init = positions.arrange("AdamW",
  "params [lr] [betas] [eps] [weight_decay] [amsgrad]", AdamW.init, true)

return AdamW
