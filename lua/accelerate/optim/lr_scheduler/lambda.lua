--- Schedules defined by functions: LambdaLR and MultiplicativeLR.

local class = require "accelerate.utils.class"
local python = require "accelerate.utils.python"
local base = require "accelerate.optim.lr_scheduler.base"

local LRScheduler = base.LRScheduler

-- Returns everything but the optimizer and the functions: PyTorch has None for each function.
local function without_functions(self)
  local dict = LRScheduler.state_dict(self)
  dict.lr_lambdas = {}
  for i = 1, #self.lr_lambdas do
    dict.lr_lambdas[i] = false
    python.none(dict.lr_lambdas, i)
  end
  return dict
end

--- lr = initial_lr * fn(number of steps): `LambdaLR(optimizer, function(step) return math.min(1,
--- (step + 1) / 100) end)`.
---@class accelerate.optim.LambdaLR : accelerate.optim.LRScheduler
local LambdaLR = class("LambdaLR", LRScheduler)

---@param optimizer table
---@param lr_lambda (fun(step: integer): number)|(fun(step: integer): number)[] one for all groups,
---  or a list with one for each
---@param opts? { last_epoch: integer }
function LambdaLR:init(optimizer, lr_lambda, opts)
  local o = base.check(self, opts, {})
  self.lr_lambdas = base.function_for_each_group(self, base.groups_of(self, optimizer), lr_lambda)
  self:_attach(optimizer, o.last_epoch)
end

function LambdaLR:get_lr()
  local rates = {}
  for i, rate in ipairs(self.base_lrs) do rates[i] = rate * base.ask(self, i) end
  return rates
end

LambdaLR.state_dict = without_functions

--- lr is multiplied by fn(number of steps) at each step: `MultiplicativeLR(optimizer,
--- function(step) return 0.95 end)`.
---@class accelerate.optim.MultiplicativeLR : accelerate.optim.LRScheduler
local MultiplicativeLR = class("MultiplicativeLR", LRScheduler)

---@param optimizer table
---@param lr_lambda (fun(step: integer): number)|(fun(step: integer): number)[] one for all groups,
---  or a list with one for each
---@param opts? { last_epoch: integer }
function MultiplicativeLR:init(optimizer, lr_lambda, opts)
  local o = base.check(self, opts, {})
  self.lr_lambdas = base.function_for_each_group(self, base.groups_of(self, optimizer), lr_lambda)
  self:_attach(optimizer, o.last_epoch)
end

function MultiplicativeLR:get_lr()
  local rates = base.scaled(self)
  if self._is_initial then return rates end
  for i = 1, #rates do rates[i] = rates[i] * base.ask(self, i) end
  return rates
end

MultiplicativeLR.state_dict = without_functions

return { LambdaLR = LambdaLR, MultiplicativeLR = MultiplicativeLR }
