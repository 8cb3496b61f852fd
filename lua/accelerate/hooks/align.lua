--- Hooks that bring inputs, and where they are offloaded weights, to the device that computes.
local base = require "accelerate.hooks.base"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local nested = require "accelerate.utils.nested"
local offload = require "accelerate.utils.offload"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local scope = require "accelerate.utils.scope"
local tensors = require "accelerate.hooks.tensors"

local fail, device_name = options.fail, tensors.device_name

local M = {}

---@class accelerate.AlignDevicesHook : accelerate.ModelHook
---@field execution_device string?
---@field offload boolean
---@field io_same_device boolean
---@field weights_map table<string, accelerate.Tensor>?
---@field offload_buffers boolean
---@field place_submodules boolean
---@field skip_keys string|string[]|nil
--- Brings the arguments of a module to a device, and its weights: once, or with `offload` for each
--- forward, after which they are left without elements, on the device "meta".
local AlignDevicesHook = class("AlignDevicesHook", base.ModelHook)
class.optional(AlignDevicesHook, "execution_device weights_map skip_keys _stays")
M.AlignDevicesHook = AlignDevicesHook

local ALIGN = {
  execution_device = { "string|integer", optional = true },
  offload = { "boolean", default = false },
  io_same_device = { "boolean", default = false },
  weights_map = { "table", optional = true },
  offload_buffers = { "boolean", default = false },
  place_submodules = { "boolean", default = false },
  skip_keys = { "string|list", optional = true },
}

--- Makes the hook.
---@param opts? { execution_device: string|integer?, offload: boolean?, io_same_device: boolean?,
---  weights_map: table<string, accelerate.Tensor>?, offload_buffers: boolean?, place_submodules:
---  boolean?, skip_keys: string|string[]? } execution_device: nil leaves all where it is; offload:
---  the weights come for each forward; io_same_device: results go to where the arguments were;
---  weights_map: the weights by name, which may read them when they are indexed; default copies on
---  the CPU; offload_buffers: buffers come and go as well; place_submodules: the tensors of the
---  modules below as well; skip_keys: entries of tables that stay where they are
function AlignDevicesHook:init(opts)
  local o = options.check("AlignDevicesHook", opts, ALIGN)
  for name, value in next, o do self[name] = value end
  self.execution_device = o.execution_device and device_name(o.execution_device) or nil
end

function AlignDevicesHook:__tostring()
  return ("AlignDevicesHook(execution_device=%s, offload=%s, io_same_device=%s, offload_buffers=%s, " ..
    "place_submodules=%s)"):format(tostring(self.execution_device), tostring(self.offload),
    tostring(self.io_same_device), tostring(self.offload_buffers), tostring(self.place_submodules))
end

-- The tensors that come and go: not those that modules have, too, whose weights stay.
function AlignDevicesHook:_offloaded(module)
  local each = tensors.named_module_tensors(module, { include_buffers = self.offload_buffers,
    recurse = self.place_submodules, remove_non_persistent = true })
  local stays = self._stays
  if not stays then return each end
  return function()
    local name, t
    repeat name, t = each() until not stays[t]
    return name, t
  end
end

-- Puts the tensors on the execution device, but those that come and go.
function AlignDevicesHook:_place(module, come_and_go)
  for name, t in tensors.named_module_tensors(module, { recurse = self.place_submodules }) do
    if not come_and_go[t] then tensors.set_module_tensor_to_device(module, name, self.execution_device) end
  end
end

-- What hooks without a weights_map keep of the tensors that they left without elements: a tied one
-- comes to several hooks.
local kept = setmetatable({}, { __mode = "k" })

-- The weights on the CPU, by name.
local function on_cpu(module, each)
  local map = ordered.new()
  for name, t in each do
    if t.device ~= "meta" then kept[t] = t:detach():to("cpu") end
    map[name] = kept[t]
    if not kept[t] then
      fail("%s: '%s' is on the device \"meta\", without elements; give the option 'weights_map'",
        module.__name,
        name)
    end
  end
  return map
end

function AlignDevicesHook:init_hook(module)
  if not self.offload then
    if self.execution_device then self:_place(module, {}) end
    return module
  end
  self.original_devices = ordered.new()
  for name, t in tensors.named_module_tensors(module, { recurse = self.place_submodules }) do
    self.original_devices[name] = t.device
  end
  if not self.weights_map then self.weights_map = on_cpu(module, self:_offloaded(module)) end
  local gone = {}
  for name, t in self:_offloaded(module) do
    gone[t] = true
    tensors.set_module_tensor_to_device(module, name, "meta")
  end
  if self.execution_device then self:_place(module, gone) end
  return module
end

-- Loads what is not there: a tied weight may have been loaded by a module around this one.
function AlignDevicesHook:_load(module)
  self.loaded = {}
  for name, t in self:_offloaded(module) do
    local value = self.weights_map[name]
    if value == nil then fail("%s: weights_map has no weight '%s'", module.__name, name) end
    if t.device == "meta" then
      self.loaded[#self.loaded + 1] = name
      tensors.set_module_tensor_to_device(module, name, self.execution_device or value.device,
        { value = value })
    end
  end
end

function AlignDevicesHook:_unload(module)
  for _, name in ipairs(self.loaded) do tensors.set_module_tensor_to_device(module, name, "meta") end
end

-- Moves each value to a device.
local function moved(device, skip_keys, ...)
  local values = scope.pack(...)
  for i = 1, values.n do
    values[i] = nested.send_to_device(values[i], device, { skip_keys = skip_keys })
  end
  return unpack(values, 1, values.n)
end

function AlignDevicesHook:pre_forward(module, ...)
  if self.io_same_device then
    self.input_device = nil
    for i = 1, select("#", ...) do
      self.input_device = self.input_device or nested.find_device((select(i, ...)))
    end
  end
  if self.offload then self:_load(module) end
  if not self.execution_device then return ... end
  return moved(self.execution_device, self.skip_keys, ...)
end

function AlignDevicesHook:post_forward(module, ...)
  if self.offload then self:_unload(module) end
  if not (self.io_same_device and self.input_device) then return ... end
  return moved(self.input_device, self.skip_keys, ...)
end

function AlignDevicesHook:detach_hook(module)
  for name, device in ordered.pairs(self.offload and self.original_devices or {}) do
    local value = self.weights_map[name]
    if device ~= "meta" and value ~= nil then
      tensors.set_module_tensor_to_device(module, name, device, { value = value })
    end
  end
  return module
end

-- ---- putting them on a model

local EXECUTION = { skip_keys = ALIGN.skip_keys, preload_module_classes = { "list", optional = true } }

local function is_preloaded(module, classes)
  for _, name in ipairs(classes or {}) do
    if module.__name == name then return true end
  end
  return false
end

local function execution_hooks(module, device, o)
  if not base.hook_of(module) and next(module:state_dict()) ~= nil then
    base.add_hook_to_module(module, AlignDevicesHook { execution_device = device, skip_keys = o.skip_keys })
  end
  if is_preloaded(module, o.preload_module_classes) then return end
  for _, child in ipairs(module:children()) do execution_hooks(child, device, o) end
end

--- Puts a hook that brings arguments and weights to a device around a module and all modules below
--- it that have tensors and no hook yet.
---@param module accelerate.nn.Module
---@param execution_device string|integer
---@param opts? { skip_keys: string|string[]?, preload_module_classes: string[]? }
---  preload_module_classes: modules of these classes get a hook, those below them none
function M.attach_execution_device_hook(module, execution_device, opts)
  tensors.check_model("attach_execution_device_hook", module)
  execution_hooks(module, execution_device, options.check("attach_execution_device_hook", opts, EXECUTION))
end

local ATTACH = { execution_device = ALIGN.execution_device, offload = ALIGN.offload,
  weights_map = ALIGN.weights_map, offload_buffers = ALIGN.offload_buffers,
  module_name = { "string", default = "" }, skip_keys = ALIGN.skip_keys,
  preload_module_classes = EXECUTION.preload_module_classes }

local function joined(path, name) return path == "" and name or path .. "." .. name end

-- A map whose names are those of the module at `path`.
local function part_of(map, path)
  if not map or path == "" then return map end
  return offload.PrefixedDataset(map, path .. ".")
end

local function align_hooks(module, path, o)
  local whole = o.offload and is_preloaded(module, o.preload_module_classes)
  if whole or tensors.named_module_tensors(module)() then
    local hook = AlignDevicesHook { execution_device = o.execution_device, offload = o.offload,
      weights_map = part_of(o.weights_map, path), offload_buffers = o.offload_buffers,
      place_submodules = whole, skip_keys = o.skip_keys }
    hook._stays = o.stays
    base.add_hook_to_module(module, hook, { append = true })
  end
  if whole then return end
  for name, child in module:named_children() do align_hooks(child, joined(path, name), o) end
end

--- Puts an AlignDevicesHook around each module that has tensors of its own, behind a hook that is
--- there.
---@param module accelerate.nn.Module
---@param opts? { execution_device: string|integer?, offload: boolean?, weights_map: table?,
---  offload_buffers: boolean?, module_name: string?, skip_keys: string|string[]?,
---  preload_module_classes: string[]? } module_name: the module's path in weights_map; default "";
---  preload_module_classes: modules of these classes load what is below them at once
function M.attach_align_device_hook(module, opts)
  tensors.check_model("attach_align_device_hook", module)
  local o = options.check("attach_align_device_hook", opts, ATTACH)
  align_hooks(module, o.module_name, o)
end

local BLOCKS = {}
for name, entry in next, ATTACH do BLOCKS[name] = entry end
BLOCKS.execution_device = { "string|integer|table", optional = true }
BLOCKS.offload = { "boolean|table", default = false }

-- The options of align_hooks for a block.
local function offloading(o, device)
  local result = {}
  for name, value in next, o do result[name] = value end
  result.execution_device, result.offload = device, true
  return result
end

-- A hook that offloads nothing; with `buffers` it says whether others do.
local function block_hook(module, device, o, io, whole, buffers)
  base.add_hook_to_module(module, AlignDevicesHook { execution_device = device, io_same_device = io,
    offload_buffers = buffers and o.offload_buffers, place_submodules = whole, skip_keys = o.skip_keys })
end

local function block_hooks(module, path, devices, off, o)
  local device = devices[path]
  if device ~= nil and off[path] == false then
    block_hook(module, device, o, path == "", true, true)
    execution_hooks(module, device, { skip_keys = o.skip_keys })
  elseif device ~= nil and off[path] then
    align_hooks(module, path, offloading(o, device))
    if not base.hook_of(module) then block_hook(module, device, o, path == "", false) end
    execution_hooks(module, device, o)
  elseif path == "" then
    block_hook(module, device, o, true, false)
  end
  for name, child in module:named_children() do block_hooks(child, joined(path, name), devices, off, o) end
end

-- The tensors that modules have whose weights are not offloaded, some with other modules.
local function staying(module, path, devices, off, set)
  if devices[path] ~= nil and off[path] then return set end
  for _, t in tensors.named_module_tensors(module) do set[t] = true end
  for name, child in module:named_children() do staying(child, joined(path, name), devices, off, set) end
  return set
end

-- One value for all names of another map.
local function for_all(value, names)
  if type(value) == "table" then return value end
  local map = {}
  for name in next, names do map[name] = value end
  return map
end

--- Puts AlignDevicesHooks around the blocks of a model that two maps name: the device that
--- computes, and whether the weights are offloaded. With one device and one choice the model is one
--- block, and preload_module_classes makes no difference.
---@param module accelerate.nn.Module
---@param opts? { execution_device: string|integer|table<string, string|integer>?, offload:
---  boolean|table<string, boolean>?, weights_map: table?, offload_buffers: boolean?, module_name:
---  string?, skip_keys: string|string[]?, preload_module_classes: string[]? }
function M.attach_align_device_hook_on_blocks(module, opts)
  local where = "attach_align_device_hook_on_blocks"
  tensors.check_model(where, module)
  local o = options.check(where, opts, BLOCKS)
  local devices, off = o.execution_device, o.offload
  if type(devices) ~= "table" and type(off) ~= "table" then
    o.preload_module_classes = nil -- as in Accelerate
    if off then return align_hooks(module, o.module_name, o) end
    return block_hook(module, devices, o, true, true)
  end
  devices = for_all(devices, off)
  off = for_all(off, devices)
  o.stays = staying(module, o.module_name, devices, off, {})
  block_hooks(module, o.module_name, devices, off, o)
end

-- ---- offloaded weights on request

--- Returns whether a module's hook offloads its weights.
---@param module accelerate.nn.Module
---@return boolean
function M.has_offloaded_params(module)
  local hook = base.hook_of(tensors.check_model("has_offloaded_params", module))
  return class.is(hook, AlignDevicesHook) and hook.offload
end

-- What brings the weights of a module with an offloading hook, and what takes them away.
local function around_offloaded(module, device)
  local hook = base.hook_of(module)
  local former = hook.execution_device
  return function()
    hook.execution_device = device or former
    hook:pre_forward(module)
  end, function()
    hook:post_forward(module)
    hook.execution_device = former
  end
end

local function around_plain(module, device)
  local devices = ordered.new()
  return function()
    for name, p in module:named_parameters { recurse = false } do
      devices[name] = p.device
      tensors.set_module_tensor_to_device(module, name, device)
    end
  end, function()
    for name, former in ordered.pairs(devices) do
      tensors.set_module_tensor_to_device(module, name, former)
    end
  end
end

--- Calls fn(...) while a module's own parameters are on a device: offloaded ones are loaded, others
--- moved, and all are put back afterwards.
---@param module accelerate.nn.Module
---@param execution_device string|integer|nil nil: where its hook computes
---@param fn fun(...): any
---@param ... any what fn gets
---@return any ... results of fn
function M.align_module_device(module, execution_device, fn, ...)
  tensors.check_model("align_module_device", module)
  options.value("align_module_device", "fn", fn, { "function" })
  local device = execution_device and device_name(execution_device)
  if M.has_offloaded_params(module) then
    local enter, leave = around_offloaded(module, device)
    return scope.run(enter, leave, fn, ...)
  end
  if not device then return fn(...) end
  local enter, leave = around_plain(module, device)
  return scope.run(enter, leave, fn, ...)
end

--- Returns the state dict of a model whose hooks offload weights: they are loaded module by module,
--- and everything is on the CPU. Tensors that stay without elements get a notice.
---@param model accelerate.nn.Module
---@return table<string, accelerate.Tensor> ordered
function M.get_state_dict_offloaded_model(model)
  tensors.check_model("get_state_dict_offloaded_model", model)
  local dict, empty = ordered.new(), {}
  for _, name in ipairs(ordered.keys(model:state_dict())) do
    local module, last = tensors.owner(model, name)
    M.align_module_device(module, "cpu", function()
      local t = module:state_dict()[last]
      if t.device == "meta" then empty[#empty + 1] = name
      else dict[name] = core.is_tensor(t) and t:to("cpu") or t end
    end)
  end
  if #empty > 0 then
    require("accelerate.messages.notice").main("get_state_dict_offloaded_model: these are on the device " ..
      "\"meta\" and were left out: %s", table.concat(empty, ", "))
  end
  return dict
end

--- Fills a state dict's entries of the module that `module_name` is in with its tensors, loaded to
--- a device where a hook offloads them.
---@param module accelerate.nn.Module
---@param module_name string a tensor's name, "block.fc.weight"
---@param state_dict table<string, any> is changed
---@param device_to_put_offload? string|integer default "cpu"
---@return table<string, any> state_dict
function M.get_state_dict_from_offload(module, module_name, state_dict, device_to_put_offload)
  local where = "get_state_dict_from_offload"
  tensors.check_model(where, module)
  options.value(where, "module_name", module_name, { "string" })
  options.value(where, "state_dict", state_dict, { "table" })
  local root = module_name:match "^(.*)%.[^.]*$" or ""
  local device = M.has_offloaded_params(module) and (device_to_put_offload or "cpu") or nil
  M.align_module_device(module, device, function()
    for name, t in ordered.pairs(module:state_dict()) do
      local whole = root .. "." .. name
      if state_dict[whole] ~= nil then state_dict[whole] = t end
    end
  end)
  return state_dict
end

return M
