--- The class of modules, and what assigning to one does: parameters, buffers and submodules are
--- registered, in the order of assignment (nn/module.lua says how an instance keeps them).

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local parameter = require "accelerate.nn.parameter"
local positions = require "accelerate.utils.positions"
local strictness = require "accelerate.messages.strictness"

local fail, is_parameter = options.fail, parameter.is

---@class accelerate.nn.Module
---@field training boolean
---@field [string] any the parameters, buffers and modules of its own
local Module = class("Module")

-- ---- attributes

function Module.__new(Class)
  local members = { kinds = {}, order = {}, transient = {}, vacant = {} }
  return setmetatable({ training = true, _values = {}, _registered = members, _hooked = false }, Class)
end

-- rawget: of a table that __new did not make, `_values` would be looked up here again.
function Module.__index(self, key)
  local value = rawget(self, "_values")[key]
  if value ~= nil then return value end
  return getmetatable(self)[key]
end

-- What scripts write for members that PyTorch's modules have, and that would be nil here.
local INSTEAD = {
  _modules = "the modules in it are named_children() and children(), and one of a name is module.name",
  _parameters = "its own parameters are named_parameters { recurse = false }, " ..
    "and one of a name is module.name",
  _buffers = "its own buffers are named_buffers { recurse = false }, and one of a name is module.name",
  register_backward_hook = "its hooks are register_full_backward_hook(hook) and register_forward_hook(hook)",
  __class__ = "its class is getmetatable(module), the class's name module.__name, and " ..
    "accelerate.utils.isinstance(module, Class) asks for a class",
}

-- Members that modules may have or not, as they were made: nil is an answer.
class.optional(Module, [[bias weight in_proj_weight in_proj_bias q_proj_weight k_proj_weight
  v_proj_weight bias_k bias_v running_mean running_var num_batches_tracked padding_idx max_norm
  norm kdim vdim output_padding scale_factor size]])

-- Where a name is in no class: it is not called for members that are there.
getmetatable(Module).__index = function(_, key)
  local instead = INSTEAD[key]
  if instead then fail("modules have no '%s': %s", key, instead) end
  if not Module._optional[key] then strictness.missed_field(Module, key) end
end

local function is_module(value)
  return type(value) == "table" and class.is(value, Module)
end

local function kind_of(value)
  if is_parameter(value) then return "parameter" end
  if is_module(value) then return "module" end
end

local function check_name(self, key, kind)
  if type(key) ~= "string" or key == "" or key:find(".", 1, true) then
    fail("%s: a %s's name must be a string without dots that is not empty, got %s", self.__name, kind,
      options.show(key))
  end
  if Module[key] ~= nil or rawget(self, key) ~= nil then
    fail("%s: '%s' is a name of nn.Module's own; call the %s something else", self.__name, key, kind)
  end
end

-- Counts registrations of all modules: what was listed before the last one may be out of date.
local registrations = 0
function Module._registrations() return registrations end

local function unregister(self, key)
  registrations = registrations + 1
  local members = self._registered
  members.kinds[key], members.transient[key], members.children = nil, nil, nil
  local order = members.order
  for i = 1, #order do
    if order[i] == key then
      table.remove(order, i)
      break
    end
  end
end

local function register(self, key, value, kind)
  registrations = registrations + 1
  local members = self._registered
  local kinds, order = members.kinds, members.order
  if kinds[key] ~= kind then
    check_name(self, key, kind)
    if kinds[key] then unregister(self, key) end
    kinds[key] = kind
    order[#order + 1] = key
  end
  members.children = nil
  self._values[key] = value
end

function Module.__newindex(self, key, value)
  local kind, former = kind_of(value), self._registered.kinds[key]
  local computed = self._registered.computed
  if computed and computed[key] then return computed[key].assign(self, value) end
  local vacant = self._registered.vacant
  if kind then
    vacant[key] = nil
    register(self, key, value, kind)
  elseif former == nil and vacant[key] and core.is_tensor(value) then
    register(self, key, parameter.buffer(value), "buffer")
    self._registered.transient[key] = vacant[key] == "transient" or nil
    vacant[key] = nil
  elseif former == nil then
    self._values[key] = value
  elseif value == nil then
    if former == "buffer" then vacant[key] = self._registered.transient[key] and "transient" or "saved" end
    unregister(self, key)
    self._values[key] = nil
  elseif former == "buffer" and core.is_tensor(value) then
    self._values[key] = value
  else
    local wanted = former == "parameter" and "an nn.Parameter" or former == "buffer" and "a tensor"
      or "a module"
    fail("%s: '%s' is a %s and can be set to %s or nil, got %s", self.__name, key, former, wanted,
      options.show(value))
  end
end

-- Raises when something else has the name: what is registered by a method never takes its place.
local function check_free(self, key, kind)
  local former = self._registered.kinds[key]
  if former ~= nil and former ~= kind or former == nil and self._values[key] ~= nil then
    fail("%s: '%s' is %s already, and cannot be a %s, too; call the %s something else, " ..
      "or set the attribute to nil first", self.__name, tostring(key),
      former and "a " .. former or "an attribute", kind, kind)
  end
end

--- Registers a parameter under `name`, as `self[name] = value` does; nil removes it. Raises when a
--- buffer, a module or another attribute has the name.
---@param name string
---@param param accelerate.Tensor?
function Module:register_parameter(name, param)
  if param ~= nil and not is_parameter(param) then
    fail("%s: register_parameter('%s') takes an nn.Parameter, got %s", self.__name, tostring(name),
      options.show(param))
  end
  check_name(self, name, "parameter")
  check_free(self, name, "parameter")
  self[name] = param
end

--- Registers a submodule under `name`. Raises when a parameter, a buffer or another attribute has
--- the name.
---@param name string
---@param module accelerate.nn.Module
function Module:add_module(name, module)
  if not is_module(module) then
    fail("%s: add_module('%s') takes a module, got %s", self.__name, tostring(name), options.show(module))
  end
  check_free(self, name, "module")
  self[name] = module
end
Module.register_module = Module.add_module

local BUFFER = { persistent = { "boolean", default = true } }

--- Registers a tensor that is not trained but belongs to the state: it is saved (unless persistent
--- = false) and follows to(). Raises when a parameter, a module or another attribute has the name.
--- With nil the name is a buffer's from the first tensor on that is assigned to it, as after
--- `self[name]
--- = nil`.
---@param name string
---@param tensor accelerate.Tensor?
---@param ... any persistent = true, or a table with it
function Module:register_buffer(name, tensor, ...)
  local o = options.read("register_buffer", { "persistent" }, BUFFER, ...)
  if tensor ~= nil and not core.is_tensor(tensor) then
    fail("%s: register_buffer('%s') takes a tensor, got %s", self.__name, tostring(name),
      options.show(tensor))
  end
  check_name(self, name, "buffer")
  check_free(self, name, "buffer")
  if tensor == nil then
    if self._registered.kinds[name] then self[name] = nil end
    self._registered.vacant[name] = o.persistent and "saved" or "transient"
    return
  end
  self._registered.vacant[name] = nil
  register(self, name, parameter.buffer(tensor), "buffer")
  self._registered.transient[name] = not o.persistent or nil
end

positions.methods(Module, {
  register_parameter = "name param",
  register_buffer = "name tensor [persistent]",
  add_module = "name module",
  register_module = "name module",
})

Module._is_module = is_module

return Module
