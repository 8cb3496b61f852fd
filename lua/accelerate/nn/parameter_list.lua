--- ParameterList and ParameterDict.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local dictionary = require "accelerate.nn.module_dict"
local parameter = require "accelerate.nn.parameter"
local Module = require "accelerate.nn.module"

local fail = options.fail

-- A tensor becomes a parameter.
local function as_parameter(self, at, value)
  if parameter.is(value) then return value end
  if not core.is_tensor(value) then
    fail("%s: entry %s must be a parameter or a tensor, got %s", self.__name, tostring(at),
      options.show(value))
  end
  return parameter.new(value, { requires_grad = core._is_float(value) })
end

local function parameter_lines(self)
  local lines = {}
  for i, item in ipairs(self:_own("parameter")) do
    lines[i] = ("  (%s): Parameter containing: [%s of size %s]"):format(item[1], item[2].dtype,
      table.concat(item[2].shape, "x"))
  end
  return lines
end

local function parameters_text(self)
  local lines = parameter_lines(self)
  if #lines == 0 then return self.__name .. "()" end
  return ("%s(\n  %s\n)"):format(self.__name, table.concat(lines, "\n  "))
end

--- Parameters by name. Tensors become parameters.
---@class accelerate.nn.ParameterDict : accelerate.nn.Module
local ParameterDict = dictionary.make_dict("ParameterDict", "parameter", as_parameter)
ParameterDict.__tostring = parameters_text

-- dict.name = tensor, which becomes a parameter, as in the list.
function ParameterDict.__newindex(self, key, value)
  if core.is_tensor(value) then value = as_parameter(self, "'" .. tostring(key) .. "'", value) end
  Module.__newindex(self, key, value)
end

---@class accelerate.nn.ParameterList : accelerate.nn.Module
local ParameterList = class("ParameterList", Module)

--- A list of parameters: `self.scales = nn.ParameterList({ tensor.ones(3), tensor.ones(4) })`;
--- `self.scales[1]`. Tensors become parameters.
---@param values? accelerate.Tensor[]
function ParameterList:init(values)
  if values ~= nil then self:extend(values) end
end

--- Returns how many parameters there are, as `#list` does.
---@return integer
function ParameterList:len() return #self:_own("parameter") end
ParameterList.__len = ParameterList.len

---@param value accelerate.Tensor
---@return accelerate.nn.ParameterList self
function ParameterList:append(value)
  local n = self:len()
  self[tostring(n)] = as_parameter(self, n + 1, value)
  return self
end

---@param values accelerate.Tensor[]|accelerate.nn.ParameterList
---@return accelerate.nn.ParameterList self
function ParameterList:extend(values)
  if class.is(values, ParameterList) then values = values:values() end
  if type(values) ~= "table" or getmetatable(values) ~= nil then
    fail("ParameterList: expected a list of tensors, got %s", options.show(values))
  end
  for key in next, values do
    if type(key) ~= "number" then
      fail("ParameterList: expected a list of tensors, got one with the key %s; " ..
        "write nn.ParameterDict for parameters by name", options.show(key))
    end
  end
  for i = 1, #values do self:append(values[i]) end
  return self
end

--- Returns a list of the parameters of both: `scales + { tensor.ones(3) }`. One of them may be a
--- plain list.
function ParameterList.__add(first, second) return ParameterList():extend(first):extend(second) end

---@return accelerate.Tensor[]
function ParameterList:values()
  local list = {}
  for i, item in ipairs(self:_own("parameter")) do list[i] = item[2] end
  return list
end

--- `for i, p in list:iter() do`
function ParameterList:iter() return ipairs(self:values()) end
ParameterList.__ipairs, ParameterList.__pairs = ParameterList.iter, ParameterList.iter

function ParameterList.__index(self, key)
  if type(key) ~= "number" then return Module.__index(self, key) end
  return self._values[tostring((key < 0 and self:len() + 1 + key or key) - 1)]
end

function ParameterList.__newindex(self, key, value)
  if type(key) ~= "number" then return Module.__newindex(self, key, value) end
  local n = self:len()
  if key == n + 1 then
    self:append(value)
    return
  end
  if key % 1 ~= 0 or key < 1 or key > n then
    fail("ParameterList: position %s is out of range: it has %d parameters", tostring(key), n)
  end
  self[tostring(key - 1)] = as_parameter(self, key, value)
end

function ParameterList:forward() fail("ParameterList is a list and cannot be called") end

ParameterList.__tostring = parameters_text

return { ParameterList = ParameterList, ParameterDict = ParameterDict }
