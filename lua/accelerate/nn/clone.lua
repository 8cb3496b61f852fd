--- Copies of modules: Module:clone() and what utils.deepcopy does with a module.

local class = require "accelerate.utils.class"
local deepcopy = require "accelerate.utils.copy"
local computed = require "accelerate.nn.computed"
local hooks = require "accelerate.nn.hooks"
local Module = require "accelerate.nn.module"
local recording = require "accelerate.capture.recording"

-- A forward that preparing has wrapped runs the original; the copy gets the one that was there
-- before.
local function own_forward(values)
  local forward = values.forward
  while recording.wrapped_forwards[forward] ~= nil do forward = recording.wrapped_forwards[forward] end
  return forward or nil
end

-- The method of utils.deepcopy; `seen` maps originals to copies.
function Module.__deepcopy(self, copy, seen)
  local Class = class.of(self)
  local made = Class.__new(Class)
  seen[self] = made
  made.training = self.training
  local from, to, values = self._registered, made._registered, made._values
  for i, name in ipairs(from.order) do to.order[i] = name end
  for name, kind in next, from.kinds do to.kinds[name] = kind end
  for name in next, from.transient do to.transient[name] = true end
  for name, how in next, from.vacant do to.vacant[name] = how end
  for name, value in next, self._values do
    if name ~= "forward" then values[name] = copy(value, seen) end
  end
  values.forward = own_forward(self._values)
  computed.copy(self, made)
  hooks.copy(self, made)
  local finish = values._copied -- a model's own last step of copying
  if finish then finish(made) end
  return made
end

--- Returns a copy that shares no tensor with the module: parameters, buffers and other attributes,
--- modes, requires_grad and hooks are the original's; tied weights are tied in the copy. Gradients
--- are not copied, and a prepared model's copy is not prepared. The copy of an offloaded model has
--- its weights where they compute. Functions among attributes and hooks are shared.
---@return accelerate.nn.Module
function Module:clone() return deepcopy(self) end

return Module
