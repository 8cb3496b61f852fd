--- The optimizer that `prepare` returns: it steps and clears gradients only when gradients are
--- synchronised.
local first_step = require "accelerate.optim.first_step"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local recording = require "accelerate.capture.recording"
local state = require "accelerate.state"

local fail = options.fail

local M = {}

local gradient_state = state.GradientState()

---@class accelerate.AcceleratedOptimizer
---@field optimizer table the optimizer that it wraps; every other field and method is that one's
---@field step_was_skipped boolean whether the last real step was skipped for overflow; always false
---  without a loss scaler; after a step with gradients on a device, reading it waits for the device
local Accelerated = {}

-- A closure that reduces what it computes: it may call loss:backward() itself.
local function reduced(closure, owner)
  return function(...)
    local loss = closure(...)
    owner:_before_step()
    return loss
  end
end

local function apply(self, inner, scaler, closure)
  self._owner:_before_update()
  if not scaler then return inner:step(closure) end
  local result, stepped = scaler:step(inner, closure)
  scaler:update()
  local former, skipped = self._skipped, stepped or false -- or what the device found
  if type(stepped) == "boolean" then skipped = not stepped end
  self._skipped = skipped
  if recording.active then
    recording.register(function() self._skipped = skipped end, function() self._skipped = former end)
  end
  if closure then return result end
end

--- Applies the gradients. Does nothing while they are being accumulated. With a loss scaler it
--- skips the step if a gradient is infinite or NaN.
---@param closure function? as the inner optimizer's
function Accelerated:step(closure)
  if not gradient_state.sync_gradients then return end
  local inner, owner = self.optimizer, self._owner
  if not owner then return inner:step(closure) end
  if not first_step.seen[inner] then first_step.optimizer(inner, owner._models) end
  owner:_before_step()
  if closure ~= nil then
    if type(closure) ~= "function" then
      fail("step: argument 1 (closure) must be a function, got %s", options.show(closure))
    end
    closure = reduced(closure, owner)
  end
  local result
  if owner:_engine_before_step(inner, closure) then
    if not owner._scaler then self._skipped = false end
    result = apply(self, inner, owner._scaler, closure)
  else
    self._skipped = true
  end
  owner:_after_step(inner)
  owner:_engine_after_step(self)
  if closure then return result end
end

--- Clears the gradients. Does nothing while they are being accumulated, so a script may call it for
--- every batch.
---@param set_to_none boolean? default true
function Accelerated:zero_grad(set_to_none)
  if not gradient_state.sync_gradients then return end
  if set_to_none == nil then set_to_none = true end
  local inner, owner = self.optimizer, self._owner
  inner:zero_grad(set_to_none)
  if owner and owner._scaler then owner._scaler:_drop(inner) end
end

--- Adds parameters. Parameters added later to a prepared model join its flat buffers.
function Accelerated:add_param_group(group)
  self.optimizer:add_param_group(group)
  if self._owner then self._owner:_adopt_parameters() end
end

local Wrapper = properties.wrapper("AcceleratedOptimizer", "optimizer", {
  methods = Accelerated,
  forward = { "state_dict", "load_state_dict" },
  optional = { "train", "eval" },
  get = {
    -- What the device found is not kept: a replay of a captured step finds it again.
    step_was_skipped = function(self)
      local skipped = self._skipped
      if type(skipped) == "boolean" then return skipped end
      return skipped:item() ~= 0
    end,
  },
})

--- Wraps `optimizer`. Each real step notifies `owner` (an Accelerator) before and after.
function M.AcceleratedOptimizer(optimizer, owner)
  first_step.prepared(optimizer)
  return Wrapper.new { optimizer = optimizer, _owner = owner or false, _skipped = false }
end

M.is_accelerated, M.unwrap = Wrapper.is, Wrapper.unwrap

return M
