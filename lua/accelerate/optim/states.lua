--- What is kept of an optimizer's parameters: in the core, and as tables for scripts that look.
---
--- The core's object of a parameter group (core.optim_group) holds states and counts.
--- `optimizer.state` is made of them when it is read for the first time. From then on both are kept
--- alike: a step takes over what the script has changed in the tables, and brings them up to date.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local parts = require "accelerate.nn.parts"

local fail = options.fail

local M = {}

--- Makes the core's object of a group, which knows complex parameters by their parts.
---@param self accelerate.optim.Optimizer
---@param group table
---@return { object: userdata, count: integer, list: accelerate.Tensor[], complex: boolean }
function M.make(self, group)
  local params = group.params
  local list = parts.list(params)
  return { object = core.optim_group(self._kind, list, self.__name), count = #params, list = list,
    complex = not rawequal(list, params) }
end

-- Have complex parameters other memory than at the last step?  They were converted then.
local function moved(known, params)
  if not known.complex then return false end
  for i, p in ipairs(params) do
    if not rawequal(parts.of(p), known.list[i]) then return true end
  end
  return false
end

-- Gives a new object the states of the former one, by the parameters' places.
local function give(made, known)
  known.object:settle()
  for i = 1, known.count do
    local kept = known.object:get(i)
    if kept then made.object:load(i, kept) end
  end
end

--- The core's object of a group, made anew when the group got more parameters; and whether there
--- are complex ones.
---@param self accelerate.optim.Optimizer
---@param group table
function M.core_of(self, group)
  local known = self._cores[group]
  local anew = known and moved(known, group.params)
  if known and not anew and known.count == #group.params then return known.object, known.complex end
  local made = M.make(self, group)
  if anew then
    give(made, known)
    self._view = false
  elseif known then
    known.object:settle()
    made.object:inherit(known.object)
  end
  self._cores[group] = made
  return made.object, made.complex
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

-- The table of a complex parameter is that of its parts.
local BY_PARTS = { __index = function(view, p)
  local real = core.is_tensor(p) and parts.of(p) or nil
  if real ~= nil and not rawequal(real, p) then return rawget(view, real) end
end }

--- The tables by parameter.  Waits for a device that may have skipped steps.
---@return table<accelerate.Tensor, table>
function M.view(self)
  M.take(self)
  M.settle(self)
  self._view = self._view or setmetatable({}, BY_PARTS)
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
