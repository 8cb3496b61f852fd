--- optim.AdamW, as torch.optim.AdamW.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Optimizer = require "accelerate.optim.optimizer"

--- Adam with decoupled weight decay: `optim.AdamW(model:parameters(), { lr = 2e-3 })`. A step first shrinks p by lr *
--- weight_decay of itself, then moves it by lr * m / (sqrt(v) + eps), where m and v are the running means of the gradient
--- and of its square (betas), corrected for their start at zero.
---@class accelerate.optim.AdamW : accelerate.optim.Optimizer
local AdamW = class("AdamW", Optimizer)

AdamW._kind = "adamw"
AdamW._tensors = { "exp_avg", "exp_avg_sq" }
AdamW._schema = {
  lr = { "number", default = 1e-3, min = 0 },
  betas = { "list", default = { 0.9, 0.999 } },
  eps = { "number", default = 1e-8, min = 0 },
  weight_decay = { "number", default = 1e-2, min = 0 },
  maximize = { "boolean", default = false },
}

function AdamW:_state_names() return AdamW._tensors end

function AdamW:_hyper(group, hyper)
  hyper.lr, hyper.betas, hyper.eps = group.lr, group.betas, group.eps
  hyper.weight_decay, hyper.maximize = group.weight_decay, group.maximize
end

function AdamW:_check_saved(entry, number)
  for _, name in ipairs { "step", "exp_avg", "exp_avg_sq" } do
    if entry[name] == nil then options.fail("AdamW:load_state_dict: parameter %d has no %s", number, name) end
  end
end

return AdamW
