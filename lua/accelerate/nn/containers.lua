--- Modules that hold modules: Sequential and ModuleList; ModuleDict (module_dict.lua), and lists
--- and dictionaries of parameters (parameter_list.lua).

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local dictionary = require "accelerate.nn.module_dict"
local parameters = require "accelerate.nn.parameter_list"
local hooks = require "accelerate.nn.hooks"
local Module = require "accelerate.nn.module"
local Linear = require("accelerate.nn.linear").Linear
local GELU = require("accelerate.nn.activation").GELU

local fail, is_module = options.fail, Module._is_module
local list_of, not_a_module = Module._child_list, dictionary.not_a_module

-- Children are named "0", "1", …, as in PyTorch's files.
local function append(self, module)
  if not is_module(module) then not_a_module(self.__name, #list_of(self) + 1, module) end
  local n = #list_of(self)
  while self:_kind_of(tostring(n)) do n = n + 1 end
  self[tostring(n)] = module
  return self
end

local function position(self, i)
  local n = #list_of(self)
  local at = i < 0 and n + 1 + i or i
  if at < 1 or at > n or at % 1 ~= 0 then
    fail("%s: position %s is out of range: it has %d module%s", self.__name, tostring(i), n, n == 1 and ""
      or "s")
  end
  return at
end

local sliced -- Sequential and ModuleList are made below

-- The positions of container[{ { first, last, step } }], which is written as for a tensor.
local function range(self, key)
  local part, n = #key == 1 and key[1], #list_of(self)
  if type(part) ~= "table" or getmetatable(part) ~= nil or #part == 1 or #part > 3 then
    fail("%s: expected a position or a range, such as [1], [-1] or [{ { 1, -1 } }], got [%s]", self.__name,
      options.show(key))
  end
  local first, last, step = part[1] or 1, part[2] or n, part[3] or 1
  for _, bound in ipairs { first, last, step } do
    options.value(self.__name, "a bound of a range", bound, { "integer" })
  end
  if step < 1 then fail("%s: the step of a range must be at least 1, got %d", self.__name, step) end
  if first >= 1 and last == first - 1 then return 1, 0, 1 end
  first, last = position(self, first), position(self, last)
  if first > last + 1 then
    fail("%s: the range { %d, %d } ends before it begins", self.__name, part[1], part[2])
  end
  return first, last, step
end

local function index(self, key)
  if type(key) == "table" and getmetatable(key) == nil then return sliced(self, range(self, key)) end
  if type(key) ~= "number" then return Module.__index(self, key) end
  if key == #list_of(self) + 1 then return nil end  -- where a loop over 1, 2, … ends
  return list_of(self)[position(self, key)]
end

local pop

local function newindex(self, key, value)
  if type(key) ~= "number" then return Module.__newindex(self, key, value) end
  if value == nil then return pop(self, key) end  -- Python's `del list[i]`
  if key == #list_of(self) + 1 then return append(self, value) end
  if not is_module(value) then not_a_module(self.__name, key, value) end
  local at = position(self, key)
  self[self:_own("module")[at][1]] = value
end

local function len(self) return #list_of(self) end

-- Gives the container these modules, under "0", "1", … (a Sequential with names of its own loses
-- them).
local function renumber(self, list)
  for _, item in ipairs(self:_own("module")) do self[item[1]] = nil end
  for i, module in ipairs(list) do self[tostring(i - 1)] = module end
  return self
end

local function insert(self, at, module)
  local list, n = {}, #list_of(self)
  if not is_module(module) then not_a_module(self.__name, tostring(at), module) end
  if type(at) ~= "number" or at % 1 ~= 0 or at < -n or at == 0 or at > n + 1 then
    fail("%s: insert: the position must be in 1..%d, got %s", self.__name, n + 1, options.show(at))
  end
  for i, own in ipairs(list_of(self)) do list[i] = own end
  table.insert(list, at < 0 and n + 1 + at or at, module)
  return renumber(self, list)
end

function pop(self, at)
  at = position(self, at or -1)
  local list, taken = {}, list_of(self)[at]
  for i, own in ipairs(list_of(self)) do
    if i ~= at then list[#list + 1] = own end
  end
  renumber(self, list)
  return taken
end

local function extend(self, modules)
  local list = {}
  if is_module(modules) and modules.len then
    for i = 1, modules:len() do list[i] = modules[i] end
  elseif type(modules) == "table" and getmetatable(modules) == nil then
    list = modules
  else
    fail("%s: extend takes a list of modules, got %s", self.__name, options.show(modules))
  end
  for i = 1, #list do append(self, list[i]) end
  return self
end

-- `for i, module in model:iter() do`
local function iter(self)
  local list, i = list_of(self), 0
  return function()
    i = i + 1
    if list[i] then return i, list[i] end
  end
end

-- The modules first..last as a container of the same kind.
local function slice(self, first, last)
  local n, Class = #list_of(self), getmetatable(self)
  first, last = first or 1, last or n
  if first < 0 then first = n + 1 + first end
  if last < 0 then last = n + 1 + last end
  local part = Class()
  for i = math.max(first, 1), math.min(last, n) do append(part, list_of(self)[i]) end
  return part
end

local function pairs_of(self) return ipairs(list_of(self)) end

local function add_methods(Class)
  -- #list; `for i, module in ipairs(list) do`; pairs is the same.
  Class.__len, Class.__ipairs, Class.__pairs = len, pairs_of, pairs_of
  --- Adds a module at the end.
  ---@param module accelerate.nn.Module
  ---@return accelerate.nn.Module self
  Class.append = append
  --- Adds every module of a list, or of another container.
  ---@param modules accelerate.nn.Module[]|accelerate.nn.Module
  ---@return accelerate.nn.Module self
  Class.extend = extend
  --- Inserts a module before position `at`. Later modules move up.
  ---@param at integer
  ---@param module accelerate.nn.Module
  ---@return accelerate.nn.Module self
  Class.insert = insert
  --- Removes a module. Later modules move down.
  ---@param at? integer default -1, the last
  ---@return accelerate.nn.Module
  Class.pop = pop
  --- `for i, module in list:iter() do`
  Class.iter = iter
  --- Returns a container of the same kind with the modules first..last (negative positions count
  --- from the end).
  Class.slice = slice
  --- Returns how many modules there are, as `#list` does.
  ---@return integer
  Class.len = len
end

-- A table of modules by name has no order, and what ipairs does not reach would be lost.
local function refuse_names(title, list, instead)
  for key in next, list do
    if type(key) ~= "number" then
      fail("%s: expected a list of modules, got one with the key %s; write %s", title, options.show(key),
        instead)
    end
  end
end

-- ---- Sequential

---@class accelerate.nn.Sequential : accelerate.nn.Module
local Sequential = class("Sequential", Module)
Sequential.__index, Sequential.__newindex = index, newindex

--- `nn.Sequential(a, b, c)`, or with names: `nn.Sequential({ { "conv", a }, { "act", b } })`.
--- model[1] is the first module, model[{ { 1, -2 } }] a Sequential of all but the last.
function Sequential:init(...)
  local given, n = { ... }, select("#", ...)
  if n == 1 and type(given[1]) == "table" and getmetatable(given[1]) == nil then
    refuse_names("Sequential", given[1], 'nn.Sequential({ { "conv", a }, { "act", b } })')
    given, n = given[1], #given[1]
  end
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

add_methods(Sequential)

-- A layer of this library, as it came: nothing but itself sees its input and its result.
local function is_plain(layer)
  return rawget(getmetatable(layer), "_builtin") and layer._values.forward == nil
    and not layer._hooked and not hooks.everywhere
end

local linear_gelu = core.linear_gelu
local function is_tanh_gelu(layer)
  return layer ~= nil and getmetatable(layer) == GELU and is_plain(layer)
    and layer._values.approximate == "tanh"
end

--- Calls the modules in order. A result between two plain layers is released as soon as it is used:
--- the tape keeps its saved tensors, and a dead handle that waits for the collector would keep the
--- rest. A Linear and the GELU("tanh") after it are one op, which GPUs do in one kernel.
function Sequential:forward(x)
  local list = list_of(self)
  local ours = false  -- x was made by a plain layer in this loop, so no one else holds it
  local i, n = 1, #list
  while i <= n do
    local layer = list[i]
    local plain = is_plain(layer)
    local y
    if plain and getmetatable(layer) == Linear and is_tanh_gelu(list[i + 1]) then
      local values = layer._values
      y = layer:_run(linear_gelu, x, values.weight, values.bias)
      i = i + 1
    else
      y = layer(x)
    end
    i = i + 1
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

-- ---- ModuleList

---@class accelerate.nn.ModuleList : accelerate.nn.Module
local ModuleList = class("ModuleList", Module)
ModuleList.__index, ModuleList.__newindex = index, newindex

--- A list whose modules are registered: `self.layers = nn.ModuleList({ a, b })`; `for i, layer in
--- ipairs(self.layers) do x = layer(x) end`; `#self.layers`, `self.layers[1]`, `self.layers[-1]`,
--- `self.layers[{ { 2, -1 } }]`: a ModuleList of all but the first.
---@param modules? accelerate.nn.Module[]
function ModuleList:init(modules)
  if modules == nil then return end
  if type(modules) ~= "table" or getmetatable(modules) ~= nil then
    fail("ModuleList: expected a list of modules, got %s", options.show(modules))
  end
  refuse_names("ModuleList", modules, "nn.ModuleDict for modules by name")
  for i = 1, #modules do append(self, modules[i]) end
end

add_methods(ModuleList)

--- Returns a list of the modules of both: `layers + { a, b }`. One of them may be a plain list.
function ModuleList.__add(first, second) return ModuleList():extend(first):extend(second) end

-- A new container of the same modules. A Sequential keeps their names, as PyTorch's does.
function sliced(self, first, last, step)
  local named, modules = {}, {}
  for i = first, last, step do
    modules[#modules + 1] = list_of(self)[i]
    named[#named + 1] = { self:_own("module")[i][1], list_of(self)[i] }
  end
  if class.is(self, Sequential) then return Sequential(named) end
  return ModuleList(modules)
end

--- Neighbours that print alike come as one: "(0-5): 6 x Linear(...)".
function ModuleList:_child_lines()
  local lines, texts, children = {}, {}, self:_own("module")
  for i, child in ipairs(children) do texts[i] = tostring(child[2]) end
  local i = 1
  while i <= #children do
    local last = i
    while texts[last + 1] == texts[i] do last = last + 1 end
    local text = Module._indented(texts[i])
    if last > i then lines[#lines + 1] = ("(%d-%d): %d x %s"):format(i - 1, last - 1, last - i + 1, text)
    else lines[#lines + 1] = ("(%d): %s"):format(i - 1, text) end
    i = last + 1
  end
  return lines
end

function ModuleList:forward()
  fail("ModuleList is a list and cannot be called; call its modules: list[1](x), or walk it: " ..
    "for i, m in ipairs(list) do ... end")
end
return { Sequential = Sequential, ModuleList = ModuleList, ModuleDict = dictionary.ModuleDict,
  ParameterList = parameters.ParameterList, ParameterDict = parameters.ParameterDict }
