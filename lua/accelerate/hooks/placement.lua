--- Hooks that move or cast a whole module around its forward.
local base = require "accelerate.hooks.base"
local class = require "accelerate.utils.class"
local nn = require "accelerate.nn"
local nested = require "accelerate.utils.nested"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"
local tensors = require "accelerate.hooks.tensors"

local M = {}

---@class accelerate.CpuOffload : accelerate.ModelHook
--- Brings a model to a device when it is called, where it stays. init_hook brings it to the CPU.
local CpuOffload = class("CpuOffload", base.ModelHook)
M.CpuOffload = CpuOffload

local CPU_OFFLOAD = { execution_device = { "string|integer", optional = true },
  prev_module_hook = { "any", optional = true } }

--- Makes the hook.
---@param opts? { execution_device: string|integer?, prev_module_hook:
---  accelerate.UserCpuOffloadHook? } execution_device: default GPU 0 where there is one, else the
---  CPU; prev_module_hook: its model goes to the CPU before this one comes
function CpuOffload:init(opts)
  local o = options.check("CpuOffload", opts, CPU_OFFLOAD)
  local device = o.execution_device or require("accelerate.state").PartialState().default_device
  self.execution_device = tensors.device_name(device)
  if o.prev_module_hook ~= nil and not class.is(o.prev_module_hook, M.UserCpuOffloadHook) then
    options.fail("CpuOffload: prev_module_hook must be what cpu_offload_with_hook returned, got %s",
      options.show(o.prev_module_hook))
  end
  self.prev_module_hook = o.prev_module_hook
end

function CpuOffload:init_hook(module) return module:to("cpu") end

local function device_of(module)
  local p = module:parameters()[1]
  return p and p.device
end

function CpuOffload:pre_forward(module, ...)
  local before = self.prev_module_hook
  if before and device_of(before.model) ~= "cpu" then
    before:offload()
    require("accelerate.utils.memory").clear_device_cache()
  end
  if device_of(module) == self.execution_device then return ... end
  module:to(self.execution_device)
  local values = scope.pack(...)
  for i = 1, values.n do values[i] = nested.send_to_device(values[i], self.execution_device) end
  return unpack(values, 1, values.n)
end

---@class accelerate.UserCpuOffloadHook
---@field model accelerate.nn.Module
---@field hook accelerate.CpuOffload
--- What cpu_offload_with_hook returns.
local UserCpuOffloadHook = class "UserCpuOffloadHook"
M.UserCpuOffloadHook = UserCpuOffloadHook
-- It stands for another model, which is not copied with the one whose hook has it.
function UserCpuOffloadHook:__deepcopy() return self end

---@param model accelerate.nn.Module
---@param hook accelerate.ModelHook
function UserCpuOffloadHook:init(model, hook) self.model, self.hook = model, hook end

--- Brings the model back to the CPU.
function UserCpuOffloadHook:offload() self.hook:init_hook(self.model) end

--- Takes the hook off the model, which stays where it is.
function UserCpuOffloadHook:remove() base.remove_hook_from_module(self.model) end

-- ---- casting

---@class accelerate.LayerwiseCastingHook : accelerate.ModelHook
--- Keeps a module's floating tensors in one type and computes in another.
local LayerwiseCastingHook = class("LayerwiseCastingHook", base.ModelHook)
M.LayerwiseCastingHook = LayerwiseCastingHook

---@param storage_dtype string between calls
---@param compute_dtype string during calls
---@param ... any non_blocking (without effect: casts do not wait), or a table with it
function LayerwiseCastingHook:init(storage_dtype, compute_dtype, ...)
  options.value("LayerwiseCastingHook", "storage_dtype", storage_dtype, { "string" })
  options.value("LayerwiseCastingHook", "compute_dtype", compute_dtype, { "string" })
  options.read("LayerwiseCastingHook", { "non_blocking" }, { non_blocking = { "boolean", default = false } },
    ...)
  self.storage_dtype, self.compute_dtype = storage_dtype, compute_dtype
end

function LayerwiseCastingHook:init_hook(module) return module:to(self.storage_dtype) end

function LayerwiseCastingHook:pre_forward(module, ...)
  module:to(self.compute_dtype)
  return ...
end

function LayerwiseCastingHook:post_forward(module, ...)
  module:to(self.storage_dtype)
  return ...
end

-- Layers whose weights are cast; others are left alone.
local function is_cast(module)
  for _, name in ipairs { "Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d",
    "ConvTranspose3d" } do
    if class.is(module, nn[name]) then return true end
  end
  return false
end

local LAYERWISE = {
  skip_modules_pattern = { "string|list", optional = true },
  skip_modules_classes = { "list", optional = true },
  non_blocking = { "boolean", default = false },
}

local function skipped(module, path, o)
  for _, Class in ipairs(o.skip_modules_classes or {}) do
    if class.itself(Class) and class.is(module, Class) or module.__name == Class then return true end
  end
  for _, pattern in ipairs(o.skip_modules_pattern or {}) do
    if path:find(pattern) then return true end
  end
  return false
end

local function cast_hooks(module, path, storage, compute, o)
  if skipped(module, path, o) then return end
  if is_cast(module) then
    base.add_hook_to_module(module, LayerwiseCastingHook(storage, compute), { append = true })
    return
  end
  for name, child in module:named_children() do
    cast_hooks(child, path == "" and name or path .. "." .. name, storage, compute, o)
  end
end

--- Keeps the weights of a model's linear layers and convolutions in a small type, and raises them
--- around each of their calls.
---@param module accelerate.nn.Module
---@param storage_dtype string such as "bfloat16"
---@param compute_dtype string such as "float32"
---@param opts? { skip_modules_pattern: string|string[]?, skip_modules_classes: (string|table)[]?,
---  non_blocking: boolean? } skip_modules_pattern: Lua patterns, looked for in the names of
---  modules; skip_modules_classes: classes, or their names
function M.attach_layerwise_casting_hooks(module, storage_dtype, compute_dtype, opts)
  local where = "attach_layerwise_casting_hooks"
  tensors.check_model(where, module)
  local o = options.check(where, opts, LAYERWISE)
  if type(o.skip_modules_pattern) == "string" then o.skip_modules_pattern = { o.skip_modules_pattern } end
  cast_hooks(module, "", storage_dtype, compute_dtype, o)
end

return M
