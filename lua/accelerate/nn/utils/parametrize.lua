--- nn.utils.parametrize: parameters that are computed from others.
---
---   parametrize.register_parametrization(layer, "weight", Symmetric())
---
--- `layer.weight` is then Symmetric's result of `layer.parametrizations.weight.original`, which is
--- what is trained and saved, under the names that PyTorch gives it.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"
local Module = require "accelerate.nn.module"
local computed = require "accelerate.nn.computed"
local containers = require "accelerate.nn.containers"
local parameter = require "accelerate.nn.parameter"

local fail = options.fail

---@class accelerate.nn.utils.parametrize
local M = {}

-- ---- the chain of one attribute

---@class accelerate.nn.ParametrizationList : accelerate.nn.Module
local List = class("ParametrizationList", Module)
List._builtin = true

-- The parametrizations in the order in which they are applied: submodules "0", "1" ..
local function chain(list)
  local steps = {}
  while list._values[tostring(#steps)] do steps[#steps + 1] = list._values[tostring(#steps)] end
  return steps
end

-- The trained tensors: `original`, or original0, original1 ..
local function originals(list)
  if list.is_tensor then return { list.original } end
  local all = {}
  for i = 1, list.ntensors do all[i] = list._values["original" .. (i - 1)] end
  return all
end

-- list[1], list[-1]: the parametrizations, in the order in which they are applied.
function List.__index(self, key)
  if type(key) ~= "number" then return Module.__index(self, key) end
  local steps = chain(self)
  return steps[key < 0 and #steps + 1 + key or key]
end

function List.__len(self) return #chain(self) end

function List:forward()
  local x
  for i, step in ipairs(chain(self)) do
    if i == 1 then x = step(unpack(originals(self))) else x = step(x) end
  end
  return x
end

local function check_tensor(where, step, x)
  if core.is_tensor(x) then return x end
  fail("%s: %s must return a tensor, got %s", where, step.__name, options.show(x))
end

-- What right_inverse makes of a value, from the last step to the first: a list of tensors.
local function inverse(where, steps, value)
  local list = { value }
  for i = #steps, 1, -1 do
    local step = steps[i]
    if step.right_inverse then
      list = { step:right_inverse(list[1]) }
      if #list > 1 and i > 1 then
        fail("%s: right_inverse of %s returns %d tensors; only the first parametrization may", where,
          step.__name, #list)
      end
      for _, t in ipairs(list) do check_tensor(where, step, t) end
      if #list == 0 then check_tensor(where, step, nil) end
    end
  end
  return list
end

-- Gives a trained tensor the elements of another one; the object stays the same.
local function take_over(tensor, value)
  core.no_grad(function()
    if table.concat(tensor.shape, ",") == table.concat(value.shape, ",") then tensor:copy_(value)
    else tensor.data = value:detach():clone() end
  end)
end

local function assign(module, name, value)
  local list = module.parametrizations._values[name]
  local where = ("%s.%s"):format(module.__name, name)
  if not core.is_tensor(value) then
    fail("%s: is parametrized and can be set to a tensor, got %s", where, options.show(value))
  end
  local new = core.no_grad(function() return inverse(where, chain(list), value:detach()) end)
  local old = originals(list)
  if #new ~= #old then
    fail("%s: right_inverse gave %d tensors, expected %d", where, #new, #old)
  end
  for i, tensor in ipairs(old) do take_over(tensor, new[i]) end
end

-- ---- values that are kept for a while

local depth, kept = 0, {}

--- Calls fn(...). While it runs, each parametrized attribute is computed once and then kept, so
--- that a tensor that several layers read (or a recurrent one, at each step) costs one computation.
--- Values are forgotten at the end.
---@param fn function
---@return any ... what fn returns
function M.cached(fn, ...)
  options.value("parametrize.cached", "fn", fn, { "function" })
  depth = depth + 1
  local results = scope.pack(xpcall(fn, scope.traced, ...))
  depth = depth - 1
  if depth == 0 then kept = {} end
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2, results.n)
end

local function read(name)
  return function(module)
    local list = module._values.parametrizations._values[name]
    if depth == 0 then return list() end
    local values = kept[list]
    if values == nil then
      values = list()
      kept[list] = values
    end
    return values
  end
end

-- ---- registering

local function is_parametrized(module, name)
  local entries = module._registered.computed
  local list = module._values.parametrizations
  if not entries or list == nil then return false end
  return name == nil and next(entries) ~= nil or name ~= nil and entries[name] ~= nil
end

local function check_module(where, module, name)
  if not Module._is_module(module) then
    fail("%s: expected a module, got %s", where, options.show(module))
  end
  if name ~= nil then options.value(where, "tensor_name", name, { "string" }) end
end

--- Returns whether a module has parametrized attributes, or whether this one is.
---@param module accelerate.nn.Module
---@param tensor_name? string
---@return boolean
function M.is_parametrized(module, tensor_name)
  check_module("is_parametrized", module, tensor_name)
  return is_parametrized(module, tensor_name)
end

local function same_form(a, b)
  return a.dtype == b.dtype and table.concat(a.shape, ",") == table.concat(b.shape, ",")
end

-- A parametrization must keep type and shape, unless it is called unsafe.
local function check_value(where, step, before, after)
  check_tensor(where, step, after)
  if not same_form(before, after) then
    fail("%s: %s makes %s of %s; a parametrization keeps type and shape (unsafe = true allows others)", where,
      step.__name, options.show(after), options.show(before))
  end
end

-- The first parametrization of an attribute: the parameter (or buffer) becomes its original.
local function begin(where, module, name, step, unsafe)
  local kind, tensor = module:_kind_of(name), module._values[name]
  local new = core.no_grad(function() return inverse(where, { step }, tensor:detach()) end)
  local list = List()
  list.is_tensor, list.ntensors = #new == 1, #new
  module[name] = nil
  local function keep(key, t)
    if kind == "parameter" then list[key] = parameter.is(t) and t
      or parameter.new(t:detach():clone(), { requires_grad = tensor.requires_grad })
    else list:register_buffer(key, t:detach():clone()) end
  end
  if #new == 1 then
    if kind == "parameter" then
      take_over(tensor, new[1])
      keep("original", tensor)
    else keep("original", new[1]) end
  else
    for i, t in ipairs(new) do keep("original" .. (i - 1), t) end
  end
  list:add_module("0", step)
  local ok, message = pcall(function()
    local value = core.no_grad(function() return list() end)
    if unsafe then check_tensor(where, step, value) else check_value(where, step, tensor, value) end
  end)
  if not ok then
    if kind == "parameter" then module[name] = tensor else module:register_buffer(name, tensor) end
    error(message, 0)
  end
  if not module._values.parametrizations then module.parametrizations = containers.ModuleDict() end
  module.parametrizations:update({ [name] = list })
  computed.set(module, name,
    { read = read(name), assign = function(self, value) assign(self, name, value) end })
end

local UNSAFE = { unsafe = { "boolean", default = false } }

--- Makes an attribute of a module what `parametrization` computes of the tensor that is there now,
--- which stays the one that is trained: `module.parametrizations[tensor_name].original`. If the
--- parametrization has a method right_inverse, it first makes the original of the present value (or
--- several: then forward gets them all). A second one for the same attribute is applied to the
--- first one's result.
---@param module accelerate.nn.Module
---@param tensor_name string a parameter or a buffer of it
---@param parametrization accelerate.nn.Module with forward(x), and right_inverse(y) where the
---  attribute is to be assigned
---@param opts? { unsafe: boolean } true: it may change the tensor's type and shape
---@return accelerate.nn.Module module
function M.register_parametrization(module, tensor_name, parametrization, opts)
  local where = "register_parametrization"
  check_module(where, module, tensor_name)
  local o = options.check(where, opts, UNSAFE)
  if not Module._is_module(parametrization) then
    fail("%s: parametrization: expected a module, got %s", where, options.show(parametrization))
  end
  parametrization:train(module.training)
  if is_parametrized(module, tensor_name) then
    local list = module.parametrizations._values[tensor_name]
    if not o.unsafe then
      core.no_grad(function()
        local before = list()
        check_value(where, parametrization, before, parametrization(before))
      end)
    end
    list:add_module(tostring(#chain(list)), parametrization)
    return module
  end
  local kind = module:_kind_of(tensor_name)
  if kind ~= "parameter" and kind ~= "buffer" then
    fail("%s: %s has no parameter or buffer '%s'", where, module.__name, tensor_name)
  end
  begin(where, module, tensor_name, parametrization, o.unsafe)
  return module
end

local LEAVE = { leave_parametrized = { "boolean", default = true } }

--- Makes a parametrized attribute a parameter (or buffer) again.
---@param module accelerate.nn.Module
---@param tensor_name string
---@param opts? { leave_parametrized: boolean } true (default): with the computed value; false: with
---  the original one, if there is one only
---@return accelerate.nn.Module module
function M.remove_parametrizations(module, tensor_name, opts)
  local where = "remove_parametrizations"
  check_module(where, module, tensor_name)
  local o = options.check(where, opts, LEAVE)
  if type(tensor_name) ~= "string" or not is_parametrized(module, tensor_name) then
    fail("%s: '%s' of %s is not parametrized", where, tostring(tensor_name), module.__name)
  end
  local all = module.parametrizations
  local list = all._values[tensor_name]
  if not o.leave_parametrized and not list.is_tensor then
    fail("%s: leave_parametrized = false: '%s' has several originals", where, tensor_name)
  end
  local first = originals(list)[1]
  local tensor = first
  local trained = list:_kind_of(list.is_tensor and "original" or "original0") == "parameter"
  if list.is_tensor then
    if o.leave_parametrized then take_over(tensor, core.no_grad(function() return list() end)) end
  else
    local value = core.no_grad(function() return list() end):detach():clone()
    tensor = trained and parameter.new(value, { requires_grad = first.requires_grad }) or value
  end
  computed.clear(module, tensor_name)
  all[tensor_name] = nil
  if #all:children() == 0 then module.parametrizations = nil end
  if trained then module[tensor_name] = tensor else module:register_buffer(tensor_name, tensor) end
  return module
end

return require("accelerate.utils.properties").strict("accelerate.nn.utils.parametrize", M)
