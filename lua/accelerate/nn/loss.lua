--- Losses as modules: CrossEntropyLoss, MSELoss.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"
local functional = require "accelerate.nn.functional"

local REDUCTION = { "string", default = "mean", one_of = { "mean", "sum", "none" } }

---@class accelerate.nn.CrossEntropyLoss : accelerate.nn.Module
local CrossEntropyLoss = class("CrossEntropyLoss", Module)

--- -log softmax(input)[target]: input (N, C) or (C), target int64 class labels (counted from 0). Labels equal to
--- ignore_index add nothing, and mean divides by the number of the others.
---@param opts? { reduction: "mean"|"sum"|"none", ignore_index: integer }
function CrossEntropyLoss:init(opts)
  local o = options.check("CrossEntropyLoss", opts, { reduction = REDUCTION, ignore_index = { "integer", default = -100 } })
  self.reduction, self.ignore_index = o.reduction, o.ignore_index
end

local cross_entropy = functional.cross_entropy

function CrossEntropyLoss:forward(input, target)
  return self:_run(cross_entropy, input, target, self.ignore_index, self.reduction)
end

function CrossEntropyLoss:extra_repr()
  return self.ignore_index == -100 and "" or ("ignore_index=%d"):format(self.ignore_index)
end

---@class accelerate.nn.MSELoss : accelerate.nn.Module
local MSELoss = class("MSELoss", Module)

--- (input - target)^2; the shapes must be the same.
---@param opts? { reduction: "mean"|"sum"|"none" }
function MSELoss:init(opts)
  self.reduction = options.check("MSELoss", opts, { reduction = REDUCTION }).reduction
end

function MSELoss:forward(input, target)
  return self:_run(functional._mse_loss, input, target, self.reduction)
end

return { CrossEntropyLoss = CrossEntropyLoss, MSELoss = MSELoss }
