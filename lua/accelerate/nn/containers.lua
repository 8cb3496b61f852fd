--- Modules that hold modules: Sequential, ModuleList.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"

local fail, is_module = options.fail, Module._is_module

-- The children as a list. Kept until something is registered or removed.
local function list_of(self)
  local list = rawget(self, "_children")
  if list then return list end
  list = {}
  for i, item in ipairs(self:_own("module")) do list[i] = item[2] end
  rawset(self, "_children", list)
  return list
end

local function not_a_module(where, at, value)
  if class.derives(value, Module) then
    fail("%s: entry %s is the class %s; make a module of it: nn.%s(...)", where, at, value.__name, value.__name)
  end
  fail("%s: entry %s must be a module, got %s", where, at, options.show(value))
end

-- Children are named "0", "1", …, as in PyTorch's files.
local function append(self, module)
  if not is_module(module) then not_a_module(self.__name, #list_of(self) + 1, module) end
  local n = #list_of(self)
  while rawget(self, "_kinds")[tostring(n)] do n = n + 1 end
  self[tostring(n)] = module
  return self
end

local function position(self, i)
  local n = #list_of(self)
  local at = i < 0 and n + 1 + i or i
  if at < 1 or at > n or at % 1 ~= 0 then
    fail("%s: position %s is out of range: it has %d module%s", self.__name, tostring(i), n, n == 1 and "" or "s")
  end
  return at
end

local function index(self, key)
  if type(key) ~= "number" then return Module.__index(self, key) end
  if key == #list_of(self) + 1 then return nil end  -- where a loop over 1, 2, … ends
  return list_of(self)[position(self, key)]
end

local function newindex(self, key, value)
  if type(key) ~= "number" then return Module.__newindex(self, key, value) end
  if key == #list_of(self) + 1 then return append(self, value) end
  if not is_module(value) then not_a_module(self.__name, key, value) end
  local at = position(self, key)
  self[self:_own("module")[at][1]] = value
end

local function len(self) return #list_of(self) end

-- ---- Sequential ------------------------------------------------------------------------------------------------

---@class accelerate.nn.Sequential : accelerate.nn.Module
local Sequential = class("Sequential", Module)
Sequential.__index, Sequential.__newindex = index, newindex

--- `nn.Sequential(a, b, c)`, or with names: `nn.Sequential({ { "conv", a }, { "act", b } })`. model[1] is the first module.
function Sequential:init(...)
  local given, n = { ... }, select("#", ...)
  if n == 1 and type(given[1]) == "table" and getmetatable(given[1]) == nil then given, n = given[1], #given[1] end
  for i = 1, n do
    local item = given[i]
    if type(item) == "table" and getmetatable(item) == nil and type(item[1]) == "string" then
      if not is_module(item[2]) then not_a_module("Sequential", "'" .. item[1] .. "'", item[2]) end
      self[item[1]] = item[2]
    else
      append(self, item)
    end
  end
end

--- Adds a module at the end.
---@param module accelerate.nn.Module
---@return accelerate.nn.Sequential self
Sequential.append = append
--- How many modules there are.
---@return integer
Sequential.len = len

-- A layer of this library, as it came: nothing but itself sees its input and its result.
local function is_plain(layer)
  return rawget(getmetatable(layer), "_builtin") and rawget(layer, "_values").forward == nil
    and not rawget(layer, "_forward_hooks") and not rawget(layer, "_forward_pre_hooks")
end

--- What lies between two plain layers is let go of as soon as it is used: the tape keeps what it needs, and a dead handle
--- that waits for the collector would keep the rest.
function Sequential:forward(x)
  local list = list_of(self)
  local ours = false  -- x was made by a plain layer in this loop, so nobody else has it
  for i = 1, #list do
    local layer = list[i]
    local plain = is_plain(layer)
    local y = layer(x)
    if not rawequal(y, x) then
      if ours and plain then core.release(x) end
      ours = plain
    elseif not plain then
      ours = false  -- a user's module gave it back, and may have kept it
    end
    x = y
  end
  return x
end

-- ---- ModuleList ------------------------------------------------------------------------------------------------

---@class accelerate.nn.ModuleList : accelerate.nn.Module
local ModuleList = class("ModuleList", Module)
ModuleList.__index, ModuleList.__newindex = index, newindex

--- A list whose modules are registered: `self.layers = nn.ModuleList({ a, b })`; `for i = 1, layers:len() do x =
--- layers[i](x) end`.
---@param modules? accelerate.nn.Module[]
function ModuleList:init(modules)
  if modules == nil then return end
  if type(modules) ~= "table" or getmetatable(modules) ~= nil then
    fail("ModuleList: expected a list of modules, got %s", options.show(modules))
  end
  for i = 1, #modules do append(self, modules[i]) end
end

ModuleList.append = append
ModuleList.len = len

--- Adds every module of a list.
---@param modules accelerate.nn.Module[]
---@return accelerate.nn.ModuleList self
function ModuleList:extend(modules)
  for i = 1, #modules do append(self, modules[i]) end
  return self
end

function ModuleList:forward()
  fail("ModuleList is a list and cannot be called; call its modules: list[1](x)")
end

return { Sequential = Sequential, ModuleList = ModuleList }
