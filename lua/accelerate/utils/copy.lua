--- accelerate.utils.deepcopy: a copy that shares nothing with the original, except what there is
--- one of in a process.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

--- Classes whose objects stand for the whole process: a copy would be a second one.
local ONE = { Accelerator = true, AcceleratorState = true, PartialState = true, GradientState = true }

local function copy(value, seen)
  if core.is_tensor(value) then
    local made = seen[value] or value:detach():clone()
    if not seen[value] then made.requires_grad = value.requires_grad end
    seen[value] = made
    return made
  end
  if type(value) ~= "table" then return value end
  if seen[value] then return seen[value] end
  if ordered.is_ordered(value) then
    local made = ordered.new()
    seen[value] = made
    for key, item in ordered.pairs(value) do made[key] = copy(item, seen) end
    return made
  end
  local meta, Class = getmetatable(value), class.of(value)
  if type(meta) == "table" then
    if Class and ONE[Class.__name] then return value end
    local own = rawget(meta, "__deepcopy")
    if own then return own(value, copy, seen) end
    options.fail("deepcopy: cannot copy %s: its class has no __deepcopy; copy its state_dict() instead",
      options.show(value))
  end
  local made = {}
  seen[value] = made
  for key, item in next, value do made[copy(key, seen)] = copy(item, seen) end
  return made
end

--- Copies nested tables and the tensors in them. A value that occurs twice stays one value in the
--- copy. An Accelerator and the states that it shares are not copied: there is one in a process.
--- Modules are copied as module:clone() copies them; tables that remember their order do so in the
--- copy. Objects of other classes are copied by their metatable's `__deepcopy(value, copy, seen)`;
--- without it this raises.
---@param value any
---@return any
return function(value) return copy(value, {}) end
