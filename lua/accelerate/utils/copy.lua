--- accelerate.utils.deepcopy: a copy that shares nothing with the original, except what there is
--- one of in a process.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

--- Classes whose objects stand for the whole process: a copy would be a second one.
local ONE = { Accelerator = true, AcceleratorState = true, PartialState = true, GradientState = true }

local function copy_tensor(t)
  local parameter, made = package.loaded["accelerate.nn.parameter"], t:detach():clone()
  made.requires_grad = t.requires_grad
  if parameter and parameter.is(t) then parameter.mark(made) end -- without nn there are none
  return made
end

local function copy(value, seen)
  if core.is_tensor(value) then
    seen[value] = seen[value] or copy_tensor(value)
    return seen[value]
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
  if meta ~= nil then
    if Class and ONE[Class.__name] then return value end
    local own = type(meta) == "table" and rawget(meta, "__deepcopy")
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
