--- What an Accelerator says about its sharding plan. Methods of accelerate.Accelerator.
local kinds = require "accelerate.accelerator.types"
local options = require "accelerate.utils.options"
local parallel = require "accelerate.parallel"
local plans = require "accelerate.parallel.plan"

local fail = options.fail

---@class accelerate.Accelerator
local Accelerator = {}

-- The prepared optimizer that has a parameter of the model.
local function optimizer_of(self, model)
  local first = model:parameters()[1]
  for _, optimizer in ipairs(self._optimizers) do
    for _, group in ipairs(optimizer.param_groups) do
      for _, p in ipairs(group.params) do
        if rawequal(p, first) then return optimizer end
      end
    end
  end
end

--- Returns the strategy of the plan that is in force.
---@return accelerate.Strategy
function Accelerator:_strategy()
  local kept = self._kept_strategy
  if not kept or kept.plan ~= self._plan then
    kept = { plan = self._plan, strategy = parallel.strategy(self._plan, self._ddp_handler) }
    self._kept_strategy = kept
  end
  return kept.strategy
end

local EXPLAIN = { optimizer = { "any", optional = true } }

--- Prints, on each machine's main process, how a model is or will be sharded: each setting with
--- where it came from, the bytes of a rank, and what a step moves. Exchanges nothing.
---@param model accelerate.nn.Module
---@param opts { optimizer: accelerate.optim.Optimizer? }? whose states are counted; default: the
---  prepared one of the model, else Adam
---@return string text the printed table
function Accelerator:explain_sharding(model, opts)
  local o = options.check("explain_sharding", opts, EXPLAIN)
  if not kinds.is_model(model) then
    fail("explain_sharding: expected a module, got %s", options.show(model))
  end
  local optimizer = o.optimizer or optimizer_of(self, model)
  if optimizer and not kinds.is_optimizer(optimizer) then
    fail("explain_sharding: option 'optimizer' must be an optimizer, got %s", options.show(optimizer))
  end
  local record = parallel.record_of(model)
  local text = plans.show(self:_strategy().plan, model,
    { optimizer = optimizer, shared = record and record.shared })
  self:print(text)
  return text
end

return Accelerator
