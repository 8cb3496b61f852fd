--- Hooks of modules: functions that run before and after forward, and when gradients have passed
--- through a module.
---
--- A module's `_hooked` is false without hooks; otherwise it holds the lists of handles by kind:
--- forward_pre, forward, backward_pre, backward. A list is never changed but replaced, so a hook
--- may remove itself while the list is in use.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"

local fail = options.fail

local M = {}

local NONE = {}

local function list_of(module, kind)
  local lists = module._hooked
  return lists and lists[kind] or NONE
end

-- A hook that returns nothing (or nil) leaves the values unchanged.
local function replaced(values, ...)
  if select("#", ...) > 0 and (...) ~= nil then return scope.pack(...) end
  return values
end

-- ---- gradients ----------------------------------------------------------------------------------
--
-- Two identity functions surround forward. The outer one sees the gradients of the results as they
-- arrive, the inner one those of the arguments when they are complete.

local function place(where, given, grads)
  if given == nil then return grads end
  if type(given) ~= "table" or getmetatable(given) ~= nil then
    fail("%s: the hook must return a list of gradients or nil, got %s", where, options.show(given))
  end
  given.n = grads.n
  return given
end

local function run_hooks(module, state)
  local grads = state.inputs
  for _, handle in ipairs(list_of(module, "backward")) do
    grads = place(module.__name .. ": backward hook", handle.hook(module, grads, state.outputs), grads)
  end
  return grads
end

local enter = core.Function {
  name = "BackwardHook",
  forward = function(ctx, state, ...)
    ctx.state = state
    return ...
  end,
  backward = function(ctx, ...)
    local state = ctx.state
    state.inputs = scope.pack(...)
    local grads = run_hooks(state.module, state)
    return nil, unpack(grads, 1, grads.n)
  end,
}

local leave = core.Function {
  name = "BackwardHook",
  forward = function(ctx, state, ...)
    ctx.state = state
    return ...
  end,
  backward = function(ctx, ...)
    local state = ctx.state
    local grads = scope.pack(...)
    for _, handle in ipairs(list_of(state.module, "backward_pre")) do
      grads = place(state.module.__name .. ": backward pre-hook", handle.hook(state.module, grads), grads)
    end
    state.outputs = grads
    if not state.entered then  -- no argument requires a gradient: nothing comes after this
      state.inputs = { n = 0 }
      run_hooks(state.module, state)
    end
    return nil, unpack(grads, 1, grads.n)
  end,
}

-- Passes the tensors of `values` that gradients flow through to fn; the others stay.
local function through(fn, state, values)
  local list, at = {}, {}
  for i = 1, values.n do
    local v = values[i]
    if core._is_float(v) then
      list[#list + 1] = v
      at[#at + 1] = i
    end
  end
  if #list == 0 then return values, false end
  local wanted = false
  for _, t in ipairs(list) do wanted = wanted or t.requires_grad end
  if not wanted then return values, false end
  local results = { fn(state, unpack(list)) }
  local out = { n = values.n }
  for i = 1, values.n do out[i] = values[i] end
  for k, i in ipairs(at) do out[i] = results[k] end
  return out, true
end

-- ---- calling ------------------------------------------------------------------------------------

--- Runs forward with its hooks.
function M.call(self, ...)
  local args = scope.pack(...)
  for _, handle in ipairs(list_of(self, "forward_pre")) do
    args = replaced(args, handle.hook(self, args))
  end
  local watched = core.is_grad_enabled()
    and (list_of(self, "backward")[1] or list_of(self, "backward_pre")[1])
  local state = watched and { module = self }
  if watched then args, state.entered = through(enter, state, args) end
  local out = scope.pack(self:forward(unpack(args, 1, args.n)))
  for _, handle in ipairs(list_of(self, "forward")) do
    out = replaced(out, handle.hook(self, args, unpack(out, 1, out.n)))
  end
  if watched then out = through(leave, state, out) end
  return unpack(out, 1, out.n)
end

-- ---- handles ------------------------------------------------------------------------------------

local Handle = class("RemovableHandle")

function Handle:init(module, kind, hook)
  self.module, self.kind, self.hook = module, kind, hook
end

-- Replaces a list. `_hooked` becomes false when the last list is empty, so that Module.__call has
-- one test for all kinds.
local function replace(module, kind, list)
  local lists = module._hooked or {}
  lists[kind] = list[1] and list or nil
  module._hooked = next(lists) ~= nil and lists
end

--- Removes the hook. A second call does nothing.
function Handle:remove()
  local module = self.module
  if not module then return end
  local kept = {}
  for _, handle in ipairs(list_of(module, self.kind)) do
    if handle ~= self then kept[#kept + 1] = handle end
  end
  replace(module, self.kind, kept)
  self.module = nil
end

function M.add(self, kind, hook)
  options.value(self.__name, "hook", hook, { "function" })
  local handle = Handle(self, kind, hook)
  local list = { unpack(list_of(self, kind)) }
  list[#list + 1] = handle
  replace(self, kind, list)
  return handle
end

--- Returns whether functions of a script see a module's arguments or results.
function M.watch_forward(module)
  return list_of(module, "forward_pre")[1] ~= nil or list_of(module, "forward")[1] ~= nil
end

--- Adds the methods to nn.Module.
function M.install(Module)
  --- Registers `hook(module, args)`, which runs before forward. args is the list of arguments
  --- (args.n of them), which the hook may edit. What it returns, if anything, replaces the
  --- arguments.
  ---@param hook fun(module: accelerate.nn.Module, args: table): ...
  ---@return table handle with handle:remove()
  function Module:register_forward_pre_hook(hook) return M.add(self, "forward_pre", hook) end

  --- Registers `hook(module, args, output, ...)`, which runs after forward. What it returns, if
  --- anything, replaces the results.
  ---@param hook fun(module: accelerate.nn.Module, args: table, ...): ...
  ---@return table handle with handle:remove()
  function Module:register_forward_hook(hook) return M.add(self, "forward", hook) end

  --- Registers `hook(module, grad_input, grad_output)`, which runs in backward when the gradients
  --- of the module's arguments are complete. grad_input and grad_output are lists (of n entries)
  --- with the gradients of its floating-point arguments and results, in order, nil where there is
  --- none; grad_input is empty when no argument requires a gradient. A list that the hook returns
  --- replaces grad_input. Tensors inside tables do not count. forward gets new objects for its
  --- tensor arguments.
  ---@param hook fun(module: accelerate.nn.Module, grad_input: table, grad_output: table): table?
  ---@return table handle with handle:remove()
  function Module:register_full_backward_hook(hook) return M.add(self, "backward", hook) end

  --- Registers `hook(module, grad_output)`, which runs in backward before gradients pass through
  --- the module. A list that it returns replaces them.
  ---@param hook fun(module: accelerate.nn.Module, grad_output: table): table?
  ---@return table handle with handle:remove()
  function Module:register_full_backward_pre_hook(hook) return M.add(self, "backward_pre", hook) end
end

return M
