--- The hook around a module's forward: its base, chains of hooks, putting one on and off.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local tensors = require "accelerate.hooks.tensors"

local fail = options.fail

local M = {}

---@class accelerate.ModelHook
---@field no_grad boolean whether forward runs inside no_grad; default false
--- The base of hooks, which changes nothing.
local ModelHook = class "ModelHook"
ModelHook.no_grad = false
ModelHook.__deepcopy = class.copied
M.ModelHook = ModelHook

--- Runs when the hook is put on a module.
---@param module accelerate.nn.Module
---@return accelerate.nn.Module module
function ModelHook:init_hook(module) return module end

--- Runs before forward. Returns the arguments that forward gets.
---@param _ accelerate.nn.Module
---@param ... any the arguments of the call
---@return any ...
function ModelHook:pre_forward(_, ...) return ... end

--- Runs after forward. Returns the results of the call.
---@param _ accelerate.nn.Module
---@param ... any what forward returned
---@return any ...
function ModelHook:post_forward(_, ...) return ... end

--- Runs when the hook is taken off a module.
---@param module accelerate.nn.Module
---@return accelerate.nn.Module module
function ModelHook:detach_hook(module) return module end

---@class accelerate.SequentialHook : accelerate.ModelHook
---@field hooks accelerate.ModelHook[]
--- Several hooks, which run one after the other at each event.
local SequentialHook = class("SequentialHook", ModelHook)
M.SequentialHook = SequentialHook

---@param ... accelerate.ModelHook
function SequentialHook:init(...)
  self.hooks = { ... }
  for i, hook in ipairs(self.hooks) do
    if not class.is(hook, ModelHook) then
      fail("SequentialHook: hook %d must be a ModelHook, got %s", i, options.show(hook))
    end
  end
end

function SequentialHook:init_hook(module)
  for _, hook in ipairs(self.hooks) do module = hook:init_hook(module) end
  return module
end

-- The values of the first hook go through the others.
local function through(hooks, i, event, module, ...)
  if not hooks[i] then return ... end
  return through(hooks, i + 1, event, module, hooks[i][event](hooks[i], module, ...))
end

function SequentialHook:pre_forward(module, ...) return through(self.hooks, 1, "pre_forward", module, ...) end

function SequentialHook:post_forward(module, ...)
  return through(self.hooks, 1, "post_forward", module, ...)
end

function SequentialHook:detach_hook(module)
  for _, hook in ipairs(self.hooks) do module = hook:detach_hook(module) end
  return module
end

-- ---- on modules

--- Returns the hook that stands around a module, or nil.
---@param module accelerate.nn.Module
---@return accelerate.ModelHook?
function M.hook_of(module) return module._values._hf_hook end

-- The values that a module has while a hook stands around it: the hook, its own former forward, and
-- whether it had one (else its class's is found again).
local function restore_forward(module)
  local values = module._values
  if values._old_forward == nil then return end
  module.forward = values._had_forward and values._old_forward or nil
  module._old_forward, module._had_forward = nil, nil
end

local function hooked_forward(self, ...)
  local hook, forward = self._hf_hook, self._old_forward
  if hook.no_grad then
    return hook:post_forward(self, core.no_grad(forward, self, hook:pre_forward(self, ...)))
  end
  return hook:post_forward(self, forward(self, hook:pre_forward(self, ...)))
end

local ADD = { append = { "boolean", default = false } }

--- Puts a hook around a module. One that is there is replaced, without a call of its detach_hook;
--- with append = true it runs before the new one.
---@param module accelerate.nn.Module
---@param hook accelerate.ModelHook
---@param ... any append = false, or a table with it
---@return accelerate.nn.Module module
function M.add_hook_to_module(module, hook, ...)
  local where = "add_hook_to_module"
  tensors.check_model(where, module)
  if not class.is(hook, ModelHook) then
    fail("%s: hook must be a ModelHook, got %s", where, options.show(hook))
  end
  local former = M.hook_of(module)
  if options.read(where, { "append" }, ADD, ...).append and former then
    M.remove_hook_from_module(module)
    hook = SequentialHook(former, hook)
  end
  if not module._values._old_forward then
    module._had_forward = module._values.forward ~= nil
    module._old_forward = module.forward
  end
  module = hook:init_hook(module)
  module._hf_hook = hook
  module.forward = hooked_forward
  return module
end

local REMOVE = { recurse = { "boolean", default = false } }

--- Takes the hook off a module, and calls its detach_hook. A module without one stays.
---@param module accelerate.nn.Module
---@param ... any recurse = false (true: off the modules below it, too), or a table with it
---@return accelerate.nn.Module module
function M.remove_hook_from_module(module, ...)
  tensors.check_model("remove_hook_from_module", module)
  local recurse = options.read("remove_hook_from_module", { "recurse" }, REMOVE, ...).recurse
  local hook = M.hook_of(module)
  if hook then
    hook:detach_hook(module)
    module._hf_hook = nil
  end
  restore_forward(module)
  if module._values._undispatch then module._values._undispatch(module) end
  for _, child in ipairs(recurse and module:children() or {}) do
    M.remove_hook_from_module(child, { recurse = true })
  end
  return module
end

--- Takes the hooks off a module and all modules below it.
---@param module accelerate.nn.Module
function M.remove_hook_from_submodules(module) M.remove_hook_from_module(module, { recurse = true }) end

return M
