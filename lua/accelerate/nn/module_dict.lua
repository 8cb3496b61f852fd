--- ModuleDict, and what dictionaries of modules and of parameters share.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local Module = require "accelerate.nn.module"

local fail, is_module = options.fail, Module._is_module

local M = {}

--- Raises for an entry of a container that is no module.
---@param where string
---@param at string
---@param value any
function M.not_a_module(where, at, value)
  if class.derives(value, Module) then
    fail("%s: entry %s is the class %s; make a module of it: nn.%s(...)", where, at, value.__name,
      value.__name)
  end
  fail("%s: entry %s must be a module, got %s%s", where, at, options.show(value),
    not value and "; nn.Identity() holds a place without a module" or "")
end

-- What ModuleDict and ParameterDict share. `kind`: what they hold; read(self, name, value) -> the
-- value to register.
function M.make_dict(name, kind, read)
  local Class = class(name, Module)

  local function check(self, key)
    if type(key) == "string" and rawget(Class, key) ~= nil then
      fail("%s: '%s' is the name of a method; call the entry something else", name, key)
    end
    return self
  end

  local function set(self, key, value) check(self, key)[key] = read(self, key, value) end

  --- Adds what a table (walked in sorted order), a list of { name, value } pairs or another
  --- dictionary holds.
  function Class:update(entries)
    if class.is(entries, Class) then
      for key, value in entries:items() do set(self, key, value) end
      return self
    end
    if type(entries) ~= "table" then
      fail("%s: expected a table by name, got %s", name, options.show(entries))
    end
    if type(entries[1]) == "table" and getmetatable(entries[1]) == nil then
      for _, item in ipairs(entries) do set(self, item[1], item[2]) end
      return self
    end
    for key, value in ordered.pairs(entries) do set(self, key, value) end
    return self
  end

  function Class:init(entries)
    if entries ~= nil then self:update(entries) end
  end

  --- Returns the names in order of registration.
  ---@return string[]
  function Class:keys()
    local list = {}
    for i, item in ipairs(self:_own(kind)) do list[i] = item[1] end
    return list
  end

  --- Returns the values, in the order of the names.
  function Class:values()
    local list = {}
    for i, item in ipairs(self:_own(kind)) do list[i] = item[2] end
    return list
  end

  --- `for name, value in dict:items() do`, in order of registration.
  function Class:items()
    local list, i = self:_own(kind), 0
    return function()
      i = i + 1
      if list[i] then return list[i][1], list[i][2] end
    end
  end

  -- `for name, value in pairs(dict) do`, in order of registration; ipairs counts the values in that
  -- order.
  Class.__pairs = Class.items
  function Class:__ipairs() return ipairs(self:values()) end

  --- Returns whether there is an entry of this name.
  function Class:contains(key) return self:_kind_of(key) == kind end
  --- Returns the entry of this name, or nil.
  function Class:get(key) return self:_kind_of(key) == kind and self[key] or nil end
  --- Returns how many entries there are, as `#dict` does.
  ---@return integer
  function Class:len() return #self:_own(kind) end
  Class.__len = Class.len

  --- Removes an entry and returns it. Raises if there is none of that name.
  function Class:pop(key)
    if not self:contains(key) then
      fail("%s: there is no '%s'%s", name, tostring(key), options.hint(tostring(key), self:keys()))
    end
    local value = self[key]
    self[key] = nil
    return value
  end

  --- Removes all entries.
  function Class:clear()
    for _, key in ipairs(self:keys()) do self[key] = nil end
  end

  function Class:forward()
    fail("%s is a dictionary and cannot be called; call what it holds: dict.name(x), or walk it: " ..
      "for name, value in dict:items() do ... end", name)
  end

  return Class
end

--- Modules by name: `self.heads = nn.ModuleDict({ cat = nn.Linear(8, 2), dog = nn.Linear(8, 3) })`;
--- `self.heads.cat(x)`,
--- `self.heads[name](x)`. A table's entries are registered in sorted order; a list of pairs keeps
--- its own: { { "a", m }, { "b", n } }.
---@class accelerate.nn.ModuleDict : accelerate.nn.Module
local ModuleDict = M.make_dict("ModuleDict", "module", function(self, key, value)
  if not is_module(value) then M.not_a_module(self.__name, "'" .. tostring(key) .. "'", value) end
  return value
end)

M.ModuleDict = ModuleDict

return M
