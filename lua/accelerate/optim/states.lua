--- What is kept of an optimizer's parameters: in the core, and as tables for scripts that look.
---
--- The core's object of a parameter group (core.optim_group) holds states and counts.
--- `optimizer.state` is made of them when it is read for the first time. From then on both are kept
--- alike: a step takes over what the script has changed in the tables, and brings them up to date.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

--- The core's object of a group, made anew when the group got more parameters.
---@param self accelerate.optim.Optimizer
---@param group table
function M.core_of(self, group)
  local known, params = self._cores[group], group.params
  if known and known.count == #params then return known.object end
  local object = core.optim_group(self._kind, params, self.__name)
  if known then
    known.object:settle()
    object:inherit(known.object)
  end
  self._cores[group] = { object = object, count = #params }
  return object
end

local function each(self, method, ...)
  for _, group in ipairs(self.param_groups) do
    local object = M.core_of(self, group)
    object[method](object, ...)
  end
end

--- Takes over what the script has changed in `state`.
function M.take(self)
  local view = self._view
  if view then each(self, "take", view) end
end

--- Brings `state` up to date.
function M.show(self)
  local view = self._view
  if view then each(self, "show", view) end
end

--- Takes steps that a device has skipped out of the counts; waits for it.
function M.settle(self) each(self, "settle") end

--- The tables by parameter.  Waits for a device that may have skipped steps.
---@return table<accelerate.Tensor, table>
function M.view(self)
  M.take(self)
  M.settle(self)
  self._view = self._view or {}
  M.show(self)
  return self._view
end

--- Returns the state of one parameter, after M.settle: the script's table where there are tables,
--- else a new one.
---@return table?
function M.of(self, group, index)
  local view = self._view
  if view then return view[group.params[index]] end
  return M.core_of(self, group):get(index)
end

--- Is anything kept of any parameter?
---@return boolean
function M.any(self)
  for _, group in ipairs(self.param_groups) do
    for index = 1, #group.params do
      if M.of(self, group, index) then return true end
    end
  end
  return false
end

--- The script assigned `state`.
function M.replace(self, value)
  if type(value) ~= "table" then
    fail("%s: state must be a table by parameter, got %s", self.__name, options.show(value))
  end
  self._view = value
  M.take(self)
end

return M
