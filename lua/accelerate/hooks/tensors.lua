--- The tensors of modules by name: listing them, and moving or replacing one.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local Module = require("accelerate.nn").Module

local fail = options.fail

local M = {}

--- Returns the model, or raises where it is none.
---@param where string what messages begin with
---@param model any
---@return accelerate.nn.Module
function M.check_model(where, model)
  if not class.is(model, Module) then
    fail("%s: model must be a module, got %s", where, options.show(model))
  end
  return model
end

local NAMED = { include_buffers = { "boolean", default = true }, recurse = { "boolean", default = false },
  remove_non_persistent = { "boolean", default = false } }

-- The buffers, by tensor, that state_dict leaves out.
local function transient_buffers(module, recurse)
  local set = {}
  for _, m in ipairs(recurse and module:modules() or { module }) do
    for _, item in ipairs(m:_own("buffer")) do
      if m:_is_transient(item[1]) then set[item[2]] = true end
    end
  end
  return set
end

--- Iterates over a module's parameters, then its buffers, by name.
---@param module accelerate.nn.Module
---@param ... any include_buffers = true, recurse = false (true: also the tensors of the modules
---  below), remove_non_persistent = false (true: without the buffers that state_dict leaves out),
---  or a table
---@return fun(): string, accelerate.Tensor
function M.named_module_tensors(module, ...)
  M.check_model("named_module_tensors", module)
  local o = options.read("named_module_tensors", { "include_buffers", "recurse", "remove_non_persistent" },
    NAMED, ...)
  local list, i = {}, 0
  for name, t in module:named_parameters { recurse = o.recurse } do list[#list + 1] = { name, t } end
  local skipped = o.remove_non_persistent and transient_buffers(module, o.recurse) or {}
  if o.include_buffers then
    for name, t in module:named_buffers { recurse = o.recurse } do
      if not skipped[t] then list[#list + 1] = { name, t } end
    end
  end
  return function()
    i = i + 1
    if list[i] then return list[i][1], list[i][2] end
  end
end

--- Returns the module that has a tensor of this name, and the name's last part.
---@param model accelerate.nn.Module
---@param name string
---@return accelerate.nn.Module
---@return string
function M.owner(model, name)
  local path, last = name:match "^(.*)%.([^.]*)$"
  if not path then return model, name end
  return model:get_submodule(path), last
end

--- Returns whether a name is that of a parameter or a buffer.
---@param model accelerate.nn.Module
---@param name string
---@return boolean
function M.is_tensor_of(model, name)
  local path, last = name:match "^(.*)%.([^.]*)$"
  local fine, module = true, model
  if path then fine, module = pcall(model.get_submodule, model, path) end
  local kind = fine and module:_kind_of(last or name)
  return kind == "parameter" or kind == "buffer"
end

--- Returns a device as tensors name it: "cuda:0" for 0 and for "cuda".
---@param device string|integer
---@return string
function M.device_name(device)
  if type(device) == "number" then return ("cuda:%d"):format(device) end
  return device == "cuda" and "cuda:0" or device
end

--- Makes a tensor that a module has show the elements of `value`, with its type and device. The
--- object stays, and so do ties and what an optimizer knows of it.
---@param t accelerate.Tensor
---@param value accelerate.Tensor
function M.adopt(t, value)
  t.grad = nil
  t.data = value:detach()
end

local SET = { value = { "tensor", optional = true }, dtype = { "string", optional = true } }

local function tensor_of(model, name)
  local module, last = M.owner(model, name)
  local kind = module:_kind_of(last)
  if kind ~= "parameter" and kind ~= "buffer" then
    fail("set_module_tensor_to_device: %s has no parameter or buffer named '%s'", module.__name, last)
  end
  return module[last], kind
end

local function check_value(t, name, value, device)
  if value == nil and t.device == "meta" and device ~= "meta" then
    fail("set_module_tensor_to_device: '%s' is on the device \"meta\", without elements; give the option " ..
      "'value' to put it on %s", name, device)
  end
  if value ~= nil and not lists.same(value.shape, t.shape) then
    fail("set_module_tensor_to_device: '%s' has the shape %s, the value has %s", name, lists.shape_text(t),
      lists.shape_text(value))
  end
end

--- Moves a parameter or a buffer of a model to a device, or gives it a value there. The tensor
--- stays the same object. Raises for another shape, and for a tensor of the device "meta" without a
--- value.
---@param module accelerate.nn.Module
---@param tensor_name string such as "fc.weight"
---@param device string|integer "cpu", "cuda:0" or 0, "meta"
---@param opts? { value: accelerate.Tensor?, dtype: string? } value: its elements; dtype: the type
---  they get, where it is a floating type; default the tensor's own for a value
function M.set_module_tensor_to_device(module, tensor_name, device, opts)
  local where = "set_module_tensor_to_device"
  M.check_model(where, module)
  options.value(where, "tensor_name", tensor_name, { "string" })
  device = M.device_name(options.value(where, "device", device, { "string|integer" }))
  local o = options.check(where, opts, SET)
  local t, kind = tensor_of(module, tensor_name)
  check_value(t, tensor_name, o.value, device)
  local value = o.value or t:detach()
  local dtype = o.dtype or o.value and t.dtype or value.dtype
  if o.dtype and not core._is_float(value) then dtype = value.dtype end
  if device == "meta" then
    M.adopt(t, core.empty(t.shape, { dtype = dtype, device = "meta" }))
  elseif o.value or value.device ~= device or value.dtype ~= dtype then
    local moved = value:to({ dtype = dtype, device = device })
    if kind == "parameter" and t.requires_grad and not core._is_float(moved) then
      fail("%s: '%s' requires a gradient and cannot become %s", where, tensor_name, moved.dtype)
    end
    M.adopt(t, moved)
  end
end

return M
