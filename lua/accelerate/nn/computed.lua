--- Attributes of modules that are computed when they are read: what parametrizations are made of.
---
--- The attribute has no entry in `_values`, whose metatable computes it; layers that read
--- `self._values.weight` need not know.

local M = {}

-- The metatable of a module's values.
local function lookup(module)
  return { __index = function(_, key)
    local computed = module._registered.computed
    local entry = computed and computed[key]
    if entry then return entry.read(module) end
  end }
end

--- Makes `name` an attribute that is computed. It must not be registered.
---@param module accelerate.nn.Module
---@param name string
---@param entry { read: fun(module: accelerate.nn.Module): any, assign: fun(module:
---  accelerate.nn.Module, value: any) }
function M.set(module, name, entry)
  local members = module._registered
  members.computed = members.computed or {}
  members.computed[name] = entry
  module._values[name] = nil
  if getmetatable(module._values) == nil then setmetatable(module._values, lookup(module)) end
end

--- Takes that away; the module has no such attribute then.
---@param module accelerate.nn.Module
---@param name string
function M.clear(module, name)
  local members = module._registered
  members.computed[name] = nil
  if next(members.computed) == nil then
    members.computed = nil
    setmetatable(module._values, nil)
  end
end

--- Gives a copy of a module the attributes of the original.
---@param from accelerate.nn.Module
---@param to accelerate.nn.Module
function M.copy(from, to)
  for name, entry in next, from._registered.computed or {} do M.set(to, name, entry) end
end

return M
