--- The optimizer and the schedule that a DeepSpeed configuration describes in its blocks
--- `optimizer` and `scheduler`. The functions return what is made, or nil and a reason.
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local M = {}

-- Names that DeepSpeed has of its own, in any letters: the class here, and the defaults that differ
-- from PyTorch's.
local OWN = {
  adam = { class = "Adam", defaults = { weight_decay = 0 } },
  adamw = { class = "AdamW", defaults = { weight_decay = 0 } },
  adagrad = { class = "Adagrad", defaults = {} },
  lion = { class = "Lion", defaults = { lr = 1e-3, betas = { 0.9, 0.999 } } },
}

-- DeepSpeed's own names that are not here.
local REFUSED = {
  lamb = "AdamW", onebitadam = "AdamW", zerooneadam = "AdamW", onebitlamb = "AdamW", muadam = "Adam",
  muadamw = "AdamW", musgd = "SGD", muon = "AdamW, or give prepare an optim.Muon of your own",
}

-- Classes of optim that PyTorch has, and that need no closure.
local TORCH = lists.set { "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "RMSprop",
  "Adadelta", "Rprop", "ASGD", "Adafactor" }

-- Parameters that choose an implementation (there is one here), and those that must have one value.
local IMPLEMENTATIONS = lists.set { "fp32_optimizer_states", "foreach", "fused", "set_grad_none",
  "capturable", "differentiable" }
local FIXED = { bias_correction = true, max_grad_norm = 0 }
local WHY = { bias_correction = "the means are corrected for their start at zero always",
  max_grad_norm = "gradient_clipping beside the block is the setting" }

-- The message of an error without the place in front of it.
local function reason(message) return (tostring(message):gsub("^[^\n]-:%d+: ", "")) end

local function try(make, ...)
  local fine, result = pcall(make, ...)
  if fine then return result end
  return nil, reason(result)
end

-- What Adam and AdamW are: DeepSpeed's Adam decays as AdamW does unless adam_w_mode is false, and
-- torch_adam has PyTorch's defaults.
local function adam_class(own, params)
  local decoupled = own.class == "AdamW" or params.adam_w_mode ~= false
  local torch = params.torch_adam == true
  params.adam_w_mode, params.torch_adam = nil, nil
  return decoupled and "AdamW" or "Adam", torch and {} or own.defaults
end

-- The class by its name and the defaults, or nil and a reason.
local function class_of(name, params)
  local low = name:lower()
  local own = OWN[low]
  if own and low:find "^adamw?$" then return adam_class(own, params) end
  if own then return own.class, own.defaults end
  if REFUSED[low] then return nil, ("%s is not there; the nearest is %s"):format(name, REFUSED[low]) end
  if TORCH[name] then return name, {} end
  local known = ordered.sorted_keys(TORCH)
  return nil, ("there is no optimizer '%s'%s"):format(name, options.hint(name, known))
end

--- Makes the optimizer of the block.
---@param block { type: string, params: table? } without 'auto'
---@param params accelerate.Tensor[]|table[]
---@return accelerate.optim.Optimizer? optimizer
---@return string? reason
function M.optimizer(block, params)
  if type(block.type) ~= "string" then return nil, "optimizer.type is missing" end
  local o = lists.copied(block.params or {})
  for name in pairs(IMPLEMENTATIONS) do o[name] = nil end
  for _, name in ipairs(ordered.sorted_keys(FIXED)) do
    if o[name] ~= nil and o[name] ~= FIXED[name] then
      return nil, ("optimizer.params.%s = %s is not there: %s"):format(name, tostring(o[name]), WHY[name])
    end
    o[name] = nil
  end
  local name, defaults = class_of(block.type, o)
  if not name then return nil, defaults end
  for key, value in pairs(defaults) do
    if o[key] == nil then o[key] = value end
  end
  return try(require("accelerate.optim")[name], params, o)
end

--- Makes the schedule of the block: one of DeepSpeed's, or one of PyTorch's.
---@param block { type: string, params: table? } without 'auto'
---@param optimizer accelerate.optim.Optimizer
---@return accelerate.optim.LRScheduler? schedule
---@return string? reason
function M.schedule(block, optimizer)
  if type(block.type) ~= "string" then return nil, "scheduler.type is missing" end
  local schedules = require("accelerate.optim").lr_scheduler
  local Schedule = rawget(schedules, block.type)
  if not Schedule or not block.type:find "^%u" then
    local known = {}
    for _, name in ipairs(ordered.sorted_keys(schedules)) do
      if name:find "^%u" then known[#known + 1] = name end
    end
    return nil, ("there is no schedule '%s'%s"):format(block.type, options.hint(block.type, known))
  end
  return try(Schedule, optimizer, lists.copied(block.params or {}))
end

return M
