--- accelerate.utils.deepcopy: a copy that shares nothing with the original, except what there is
--- one of in a process.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local python = require "accelerate.utils.python"

--- Classes whose objects stand for the whole process: a copy would be a second one.
local ONE = { Accelerator = true, AcceleratorState = true, PartialState = true, GradientState = true }

local function copy_tensor(t)
  local parameter, made = package.loaded["accelerate.nn.parameter"]
  local recipe = parameter and parameter.is(t) and core._deferred(t)
  if recipe then made = core._deferred_new(t.shape, t.dtype, t.device, recipe:copy()) -- drawn when it is used
  else made = t:detach():clone() end
  made.requires_grad = t.requires_grad
  if parameter then parameter.mark_as(made, t) end -- without nn there are no marks
  return made
end

local copy

-- The copy of a value. A table is made without contents: it goes onto `todo`, so that a long chain
-- of tables needs no deep stack.
local function begin(value, seen, todo)
  if core.is_tensor(value) then
    seen[value] = seen[value] or copy_tensor(value)
    return seen[value]
  end
  if type(value) ~= "table" then return value end
  if seen[value] then return seen[value] end
  local meta, Class = getmetatable(value), class.of(value)
  local is_ordered = ordered.is_ordered(value)
  if meta ~= nil and not is_ordered then
    if Class and ONE[Class.__name] then return value end
    local own = type(meta) == "table" and rawget(meta, "__deepcopy")
    if own then return own(value, copy, seen) end
    options.fail("deepcopy: cannot copy %s: its class has no __deepcopy; copy its state_dict() instead",
      options.show(value))
  end
  seen[value] = is_ordered and ordered.new() or {}
  python.copy(value, seen[value])
  todo[#todo + 1] = value
  return seen[value]
end

-- The whole copy of a value: what classes call for their contents.
function copy(value, seen)
  local todo = {}
  local whole = begin(value, seen, todo)
  while #todo > 0 do
    local from = table.remove(todo)
    local made = seen[from]
    if ordered.is_ordered(from) then
      for key, item in ordered.pairs(from) do made[key] = begin(item, seen, todo) end
    else
      for key, item in next, from do made[begin(key, seen, todo)] = begin(item, seen, todo) end
    end
  end
  return whole
end

--- Copies nested tables and the tensors in them. A value that occurs twice stays one value in the
--- copy. An Accelerator and the states that it shares are not copied: there is one in a process.
--- Modules are copied as module:clone() copies them; tables that remember their order do so in the
--- copy. Tables may be nested to any depth. Objects of other classes are copied by their
--- metatable's
--- `__deepcopy(value, copy, seen)`; without it this raises.
---@param value any
---@return any
return function(value) return copy(value, {}) end
