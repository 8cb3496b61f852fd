--- Objects with computed fields that refuse names they do not have: `accelerator.sync_gradient`
--- raises and names
--- `sync_gradients`, where a plain table would return nil.
local methods = require "accelerate.messages.methods"
local options = require "accelerate.utils.options"

local M = {}

--- The classes made by `define`, by name, with what they have: the reference pages are written from
--- it.
M.defined = {}

local function names_of(...)
  local list = {}
  for _, map in ipairs { ... } do
    for name in pairs(map) do
      if type(name) == "string" and name:sub(1, 1) ~= "_" then list[#list + 1] = name end
    end
  end
  table.sort(list)
  return list
end

local function unknown(what, name, list)
  local near = type(name) == "string" and options.nearest(name, list)
  local walk = require("accelerate.messages.elsewhere").WALKS[name]
  return ("%s has no %s%s"):format(what, type(name) == "string" and ("'" .. name .. "'") or tostring(name),
    walk and "; " .. walk or near and ("; did you mean '" .. near .. "'?") or "")
end

-- Of a module: another one may have the name.
local function unknown_member(module, name, list)
  local near = type(name) == "string" and options.nearest(name, list)
  return ("%s has no %s%s"):format(module, type(name) == "string" and ("'" .. name .. "'") or tostring(name),
    require("accelerate.messages.elsewhere").hint(name, near or nil, module, "'"))
end

--- Returns the methods, wrapped to refuse calls with '.' in place of ':'.
---@param class table the metatable of the objects
---@param name string used in messages
---@param list table<string, function>
---@return table<string, function>
function M.guarded(class, name, list)
  local guarded, noun = {}, name:gsub("^Accelerated", ""):lower()
  for key, method in pairs(list) do -- each by itself
    guarded[key] = type(method) == "function" and methods.guard(class, name, noun, key, method) or method
  end
  return guarded
end

--- Makes a class.  Private fields (names that begin with `_`) are plain fields of the object; every
--- public name is a method or has a getter (and, when it may be assigned, a setter).
---@param name string used in messages
---@param spec { get: table, set: table, methods: table, missing: (fun(self: table, name: string):
---  any)?, tostring: function?, call: function? } `missing` is called for names that the class
---  lacks, before the error
---@return table class call class.new() for an empty object
function M.define(name, spec)
  local get, set, list = spec.get or {}, spec.set or {}, spec.methods or {}
  local class = { __name = name }
  M.defined[name] = { get = get, set = set, methods = list }
  local guarded = M.guarded(class, name, list)
  function class.__index(self, key)
    local method = guarded[key]
    if method ~= nil then return method end
    local getter = get[key]
    if getter then return getter(self) end
    if type(key) == "string" and key:sub(1, 1) == "_" then return nil end
    if spec.missing then
      local value = spec.missing(self, key)
      if value ~= nil then return value end
    end
    error(unknown(name, key, names_of(get, list)), 2)
  end
  function class.__newindex(self, key, value)
    local setter = set[key]
    if setter then return setter(self, value) end
    if type(key) == "string" and key:sub(1, 1) == "_" then return rawset(self, key, value) end
    if get[key] or list[key] ~= nil then error(("%s: '%s' cannot be assigned"):format(name, key), 2) end
    error(unknown(name, key, names_of(set)), 2)
  end
  class.__tostring = spec.tostring or function() return name end
  class.__call = spec.call
  function class.new() return setmetatable({}, class) end
  return class
end

local function forward(field, method)
  return function(self, ...)
    local inner = self[field]
    return inner[method](inner, ...) -- a tail call: no frame of its own
  end
end

--- Makes a class of objects that stand for another one, which is in their field `field`: what the
--- class does not have is read from that one and assigned to it. The fields of an object are those
--- that `new` was given; none of them is nil.
---@param name string used in messages
---@param field string
---@param spec { methods: table<string, function>, get: table<string, function>?, forward:
---  string[]?, optional: string[]? } forward: methods that call the other object's; optional: such
---  that do nothing where the other object lacks them
---@return { new: (fun(fields: table): table), is: (fun(value: any): boolean), unwrap: (fun(value:
---  any): any) } unwrap: the object behind one of this class, any other value as it is
function M.wrapper(name, field, spec)
  local own, get, meta = M.merge(spec.methods, {}), spec.get or {}, { __name = name }
  for _, method in ipairs(spec.forward or {}) do own[method] = forward(field, method) end
  for _, method in ipairs(spec.optional or {}) do
    local call = forward(field, method)
    own[method] = function(self, ...)
      if type(self[field][method]) == "function" then return call(self, ...) end
    end
  end
  local guarded = M.guarded(meta, name, own)
  function meta.__index(self, key)
    local method = guarded[key]
    if method ~= nil then return method end
    local getter = get[key]
    if getter then return getter(self) end
    local object = self[field]
    local value = object[key]
    -- a method of the object's class gets the object, not its wrapper
    if type(value) == "function" and rawget(object, key) == nil then return forward(field, key) end
    return value
  end
  function meta.__newindex(self, key, value)
    if own[key] ~= nil or get[key] then options.fail("%s: '%s' cannot be assigned", name, tostring(key)) end
    self[field][key] = value
  end
  function meta.__tostring(self) return ("%s(%s)"):format(name, tostring(self[field])) end
  local function is(value) return type(value) == "table" and getmetatable(value) == meta end
  return {
    new = function(fields) return setmetatable(fields, meta) end,
    is = is,
    unwrap = function(value) return is(value) and value[field] or value end,
  }
end

--- One table with the entries of both; `b` wins.
function M.merge(a, b)
  local both = {}
  for key, value in pairs(a) do both[key] = value end
  for key, value in pairs(b) do both[key] = value end
  return both
end

--- A class whose call is `make` and whose fields are `statics`.
function M.callable(name, make, statics)
  return setmetatable(statics or {}, {
    __name = name,
    __call = function(_, ...) return make(...) end,
    __make = make,
    __index = function(_, key)
      if type(key) == "string" and key:sub(1, 1) == "_" then return nil end
      error(unknown(name, key, names_of(statics or {})), 2)
    end,
    __tostring = function() return "class " .. name end,
  })
end

--- A table of names whose values are their own text: `DistributedType.MULTI_CPU == "MULTI_CPU"`.
---@param name string
---@param values string[]
---@param aliases table<string, string>? further names, and the values that they stand for
function M.enum(name, values, aliases)
  local map = M.merge(aliases or {}, {})
  for _, value in ipairs(values) do map[value:upper()] = value end
  return setmetatable(map, {
    __index = function(_, key) error(unknown(name, key, names_of(map)), 2) end,
    __newindex = function() error(name .. " cannot be changed", 2) end,
    __tostring = function() return name end,
  })
end

--- Makes reading a name that a module's table lacks an error that names the nearest one.
--- rawget(module, name) and utils.hasattr ask without one.
---@generic T: table
---@param name string "accelerate.nn"
---@param module T
---@param public? string[] the names that scripts use, for the reference pages and for messages;
---  default: all
---@param computed? table<string, function> names whose values are made at each reading
---@return T module
function M.strict(name, module, public, computed)
  return setmetatable(module, {
    __members = public,
    __index = function(self, key)
      local make = computed and computed[key]
      if make then return make() end
      error(unknown_member(name, key, public or names_of(self, computed or {})), 2)
    end,
  })
end

--- A module's table whose members are loaded from other modules at their first use.
---@param name string
---@param members table<string, string|function> member name -> module that is the member,
---  "module:field", or a loader
---@param absent table<string, string>? names that upstream has here alone and we do not have yet ->
---  what to say; messages.absent has those of several modules
function M.lazy(name, members, absent)
  local meta = {
    __index = function(self, key)
      local from = members[key]
      if from == nil then
        if absent and absent[key] then
          error(("%s.%s is not there yet: %s"):format(name, key, absent[key]), 2)
        end
        local part_of = require("accelerate.messages.absent")[key]
        if part_of then error(("%s.%s is not there yet: it belongs to %s"):format(name, key, part_of), 2) end
        error(unknown_member(name, key, names_of(members)), 2)
      end
      local value
      if type(from) == "function" then
        value = from()
      else
        local module, field = from:match("^(.-):(.+)$")
        value = require(module or from)
        if field then value = value[field] end
      end
      rawset(self, key, value)
      return value
    end,
  }
  -- Sorted at first use: a script that only starts does not wait for it.
  setmetatable(meta,
    { __index = function(_, key) return key == "__members" and names_of(members) or nil end })
  return setmetatable({}, meta)
end

return M
