--- nn.Module: parameters, buffers and submodules registered by assignment, in the order of
--- assignment.
---
---   local Net = nn.class("Net")
---   function Net:init(width) self.fc = nn.Linear(width, 10) end
---   function Net:forward(x) return self.fc(x) end
---   local net = Net(64)
---
--- An instance has four fields. __new makes them and they are never nil, so reading and assigning
--- them calls no metamethod:
---
---   training
---   _values      what is assigned to the instance, by name; each assignment passes __newindex. A
---                layer of the library reads its own attributes there: `self._values.weight` is
---                `self.weight` without a call.
---   _registered  which of the values are registered:
---                kinds      name -> "parameter" | "buffer" | "module"
---                order      the names, in order of registration
---                transient  name -> true for buffers that are not saved
---                vacant     name -> "saved" or "transient" for buffers that are nil
---                computed   nil, or name -> how an attribute is computed (nn/computed.lua)
---                children   the modules as a list, or nil (_child_list)
---                listed     what parameters() returned last, or nil
---                state_hooks  nil, or the lists of hooks of state dicts by kind (nn/hooks.lua)
---   _hooked      false, or the lists of hooks by kind (nn/hooks.lua)
---
--- Lua does not say in which order `self.a, self.b = X(), Y()` assigns (LuaJIT: the last first),
--- and the order of registration is that of parameters, files and optimizer state: assign modules
--- and parameters one by one.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local recording = require "accelerate.capture.recording"
local description = require "accelerate.nn.description"
local hooks = require "accelerate.nn.hooks"
local members = require "accelerate.nn.members"
local parameter = require "accelerate.nn.parameter"
local positions = require "accelerate.utils.positions"
local Module = require "accelerate.nn.attributes"

local fail = options.fail

-- ---- calling

local function pass(...) return ... end

--- Calling a module runs its pre-hooks, forward and its hooks. Not a tail call: errors find their
--- layer by this frame.
function Module.__call(self, ...)
  local seen = recording.modules
  if seen and not seen[self] then seen[#seen + 1], seen[self] = self, true end
  if self._hooked or hooks.everywhere then return pass(hooks.call(self, ...)) end
  return pass(self:forward(...))
end

--- Computes the module's results. Every class that is called defines its own.
function Module:forward()
  fail("%s has no forward method: define `function %s:forward(x) ... end`", self.__name, self.__name)
end

-- Classes of scripts define forward as they like; those of the library take what theirs says.
Module.__exact = { forward = true }

hooks.install(Module)

-- ---- modes, gradients, placement

--- Puts the module and everything below it into training mode (dropout on), or out of it.
---@param mode? boolean|{ mode: boolean } default true
---@return accelerate.nn.Module self
function Module:train(mode, ...)
  if type(mode) == "table" or select("#", ...) > 0 then
    mode = options.read("train", { "mode" }, { mode = { "any", optional = true } }, mode, ...).mode
  end
  if mode == nil then mode = true end
  options.value(self.__name, "train's mode", mode, { "boolean" })
  for _, module in ipairs(self:modules()) do module.training = mode end
  return self
end

--- Puts the module and everything below it into evaluation mode (dropout off): `train(false)`.
---@return accelerate.nn.Module self
function Module:eval() return self:train(false) end

local REQUIRES = { requires_grad = { "boolean", default = true } }

--- Calls fn(module) for everything below the module, children first, and last for the module
--- itself.
---@param fn fun(module: accelerate.nn.Module)
---@return accelerate.nn.Module self
function Module:apply(fn)
  options.value(self.__name, "apply's function", fn, { "function" })
  for _, child in ipairs(self:children()) do child:apply(fn) end
  fn(self)
  return self
end

--- Sets whether the parameters require gradients from now on.
---@param ... any requires_grad = true, or a table with it
---@return accelerate.nn.Module self
function Module:requires_grad_(...)
  local on = options.read("requires_grad_", { "requires_grad" }, REQUIRES, ...).requires_grad
  for name, p in self:named_parameters() do
    if on and not core._is_float(p) and not p:is_complex() then
      fail("requires_grad_: '%s' is %s, and only floating numbers have gradients; set requires_grad of " ..
        "those that are to be trained", name, p.dtype)
    end
  end
  for _, p in ipairs(self:parameters()) do p.requires_grad = on end
  return self
end

--- Drops all gradients, or with set_to_none = false fills them with zeros.
---@param set_to_none? boolean|{ set_to_none: boolean } default true
function Module:zero_grad(set_to_none, ...)
  parameter.zero_grad(self:parameters(), set_to_none, ...)
end

--- Converts parameters and buffers of floating type to a type, and moves all to a device. The
--- tensors stay the same objects, so ties and optimizers hold.
---@param target string|accelerate.Tensor|{ dtype: string?, device: string?, non_blocking: boolean?
---  } a dtype, a device, both by name, or a tensor that has them
---@param ... any the one of the two that `target` is not; non_blocking (without effect), or a table
---  with it
---@return accelerate.nn.Module self
function Module:to(target, ...)
  local dtype, device = parameter.destination(self.__name, target, ...)
  local seen = {}
  for _, kind in ipairs { "parameter", "buffer" } do
    for _, item in ipairs(members.collect(self, kind,
      { recurse = true, remove_duplicate = true, prefix = "" })) do
      if not seen[item[2]] then parameter.convert(item[2], dtype, device) end
      seen[item[2]] = true
    end
  end
  return self
end

--- Converts parameters and buffers of floating type to float32: `to("float32")`.
function Module:float() return self:to("float32") end
--- Converts parameters and buffers of floating type to float64: `to("float64")`.
function Module:double() return self:to("float64") end
--- Converts parameters and buffers of floating type to float16: `to("float16")`.
function Module:half() return self:to("float16") end
--- Converts parameters and buffers of floating type to bfloat16: `to("bfloat16")`.
function Module:bfloat16() return self:to("bfloat16") end
--- Moves parameters and buffers to the CPU: `to("cpu")`.
function Module:cpu() return self:to({ device = "cpu" }) end
--- Moves parameters and buffers to the GPU: `to("cuda")`.
function Module:cuda() return self:to({ device = "cuda" }) end
--- Converts parameters and buffers of floating type to a dtype: `to(dtype)`.
---@param dtype accelerate.DType
function Module:type(dtype) return self:to({ dtype = dtype }) end

description.install(Module)
positions.methods(Module, {
  apply = "fn",
  get_submodule = "target",
  get_parameter = "target",
  get_buffer = "target",
  set_submodule = "target module",
  register_forward_pre_hook = "hook",
  register_forward_hook = "hook",
  register_full_backward_hook = "hook",
  register_full_backward_pre_hook = "hook",
})

return Module
