--- Hooks of modules: functions that run before and after forward, when gradients have passed
--- through a module, and when its state is saved or loaded.
---
--- A module's `_hooked` is false without hooks; otherwise it holds the lists of handles by kind:
--- forward_pre, forward, backward_pre, backward. A list is never changed but replaced, so a hook
--- may remove itself while the list is in use. Hooks of state dicts do not concern calls, and are
--- in `_registered.state_hooks`: nil or lists by kind, state_dict_pre, state_dict_post,
--- load_state_dict_pre, load_state_dict_post (nn/state_dict.lua runs them).

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local notice = require "accelerate.messages.notice"
local scope = require "accelerate.utils.scope"

local fail = options.fail

local M = {}

local NONE = {}

-- Hooks of all modules, by kind. `M.everywhere`: whether there are any.
local global = {}
M.everywhere = false

local function own_list(module, kind)
  local lists = module._hooked
  return lists and lists[kind] or NONE
end

-- A module's hooks behind those of all modules.
local function list_of(module, kind)
  local own, all = own_list(module, kind), global[kind]
  if not all or not all[1] then return own end
  local list = { unpack(all) }
  for i = 1, #own do list[#list + 1] = own[i] end
  return list
end

--- Returns the handles of a kind of hooks of calls, in order; do not change the list.
---@param module accelerate.nn.Module
---@param kind "forward_pre"|"forward"|"backward_pre"|"backward"
---@return table[]
M.list = list_of

-- A hook that returns nothing (or nil) leaves the values unchanged.
local function replaced(values, ...)
  if select("#", ...) > 0 and (...) ~= nil then return scope.pack(...) end
  return values
end

local function is_list(value)
  return type(value) == "table" and getmetatable(value) == nil and value[1] ~= nil
end

-- The arguments that a pre-hook returned, one by one or as a list, PyTorch's tuple. Of a module
-- that was called with one list, a list of tensors is that argument.
local function given_again(args, ...)
  local list = (...)
  if select("#", ...) ~= 1 or not is_list(list) then return replaced(args, ...) end
  if rawequal(list, args) then return args end
  if args.n == 1 and is_list(args[1]) and not is_list(list[1]) then return replaced(args, list) end
  return scope.pack(unpack(list, 1, list.n))
end

-- ---- gradients
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

-- ---- calling

-- Runs forward with its hooks. `state` gets what hooks that always run see when it fails: the
-- arguments, the results, and which of these hooks have run.
local function run(self, state, ...)
  local args = scope.pack(...)
  state.args = args
  for _, handle in ipairs(list_of(self, "forward_pre")) do
    args = given_again(args, handle.hook(self, args))
    state.args = args
  end
  local watched = core.is_grad_enabled()
    and (list_of(self, "backward")[1] or list_of(self, "backward_pre")[1])
  local around = watched and { module = self }
  if watched then args, around.entered = through(enter, around, args) end
  local out = scope.pack(self:forward(unpack(args, 1, args.n)))
  state.out = out
  for _, handle in ipairs(list_of(self, "forward")) do
    state[handle] = true
    out = replaced(out, handle.hook(self, args, unpack(out, 1, out.n)))
    state.out = out
  end
  if watched then out = through(leave, around, out) end
  return unpack(out, 1, out.n)
end

-- After an error: the hooks that always run and have not, whose own errors do not hide it.
local function run_always(self, state)
  for _, handle in ipairs(list_of(self, "forward")) do
    if handle.always_call and not state[handle] then
      local out = state.out or { n = 0 }
      local results = scope.pack(pcall(handle.hook, self, state.args, unpack(out, 1, out.n)))
      if results[1] then state.out = replaced(out, unpack(results, 2, results.n))
      else
        notice.here("%s: a forward hook with always_call = true failed after forward had, " ..
          "which is raised: %s", self.__name, tostring(results[2]))
      end
    end
  end
end

local function finish(self, state, fine, ...)
  if fine then return ... end
  run_always(self, state)
  error((...), 0)
end

local function always(self)
  for _, handle in ipairs(list_of(self, "forward")) do
    if handle.always_call then return true end
  end
  return false
end

--- Runs forward with its hooks.
function M.call(self, ...)
  local state = {}
  if always(self) then return finish(self, state, pcall(run, self, state, ...)) end
  return run(self, state, ...)
end

-- ---- handles

local Handle = class("RemovableHandle")

function Handle:init(module, kind, hook, always_call)
  self.module, self.kind, self.hook, self.always_call = module, kind, hook, always_call
end

--- Returns the handles of a kind of hooks of state dicts, in order; do not change the list.
---@param module accelerate.nn.Module
---@param kind string
---@return table[]
function M.of_state(module, kind)
  local lists = module._registered.state_hooks
  return lists and lists[kind] or NONE
end

local function is_of_state(kind) return kind:find("state_dict", 1, true) ~= nil end

local function present(module, kind)
  if not module then return global[kind] or NONE end
  return is_of_state(kind) and M.of_state(module, kind) or own_list(module, kind)
end

-- Replaces a list. `_hooked` becomes false when the last list is empty, so that Module.__call has
-- one test for all kinds.
local function replace(module, kind, list)
  if not module then
    global[kind] = list[1] and list or nil
    M.everywhere = next(global) ~= nil
    return
  end
  local of_state = is_of_state(kind)
  local lists = of_state and module._registered.state_hooks or not of_state and module._hooked or {}
  lists[kind] = list[1] and list or nil
  lists = next(lists) ~= nil and lists
  if of_state then module._registered.state_hooks = lists or nil else module._hooked = lists end
end

--- Removes the hook. A second call does nothing.
function Handle:remove()
  local module = self.module
  if module == nil then return end
  local kept = {}
  for _, handle in ipairs(present(module, self.kind)) do
    if handle ~= self then kept[#kept + 1] = handle end
  end
  replace(module, self.kind, kept)
  self.module = nil
end

local PREPEND = { "boolean", default = false }
local OPTIONS = {
  forward_pre = { prepend = PREPEND, with_kwargs = { "boolean", default = false } },
  forward = { prepend = PREPEND, with_kwargs = { "boolean", default = false },
    always_call = { "boolean", default = false } },
  backward_pre = { prepend = PREPEND },
  backward = { prepend = PREPEND },
  state_dict_pre = {},
  state_dict_post = {},
  load_state_dict_pre = {},
  load_state_dict_post = {},
}

--- Adds a hook to a module.
---@param self accelerate.nn.Module|false false: to all modules
---@param kind string
---@param hook function
---@param o? { prepend: boolean?, always_call: boolean? }
---@return table handle
function M.add(self, kind, hook, o)
  o = o or {}
  local handle = Handle(self, kind, hook, o.always_call)
  local list = { unpack(present(self, kind)) }
  table.insert(list, o.prepend and 1 or #list + 1, handle)
  replace(self, kind, list)
  return handle
end

local function register(self, where, kind, hook, opts)
  options.value(self.__name, "hook", hook, { "function" })
  local o = options.check(where, opts, OPTIONS[kind])
  if o.with_kwargs then
    fail("%s: with_kwargs: calls have no keyword arguments in Lua; a table of options is the last entry " ..
      "of the hook's args", where)
  end
  return M.add(self, kind, hook, o)
end

-- Adds a hook to all modules.
local function register_everywhere(where, kind, hook, opts)
  options.value(where, "hook", hook, { "function" })
  local o = options.check(where, opts, OPTIONS[kind])
  if o.with_kwargs then
    fail("%s: with_kwargs: calls have no keyword arguments in Lua; a table of options is the last entry " ..
      "of the hook's args", where)
  end
  return M.add(false, kind, hook, { always_call = o.always_call })
end

--- Hooks that run at each call of any module, before the module's own.
M.registering = {}

--- Registers `hook(module, args)`, which runs before the forward of each module.
---@param hook fun(module: accelerate.nn.Module, args: table): ...
---@return table handle with handle:remove()
function M.registering.register_module_forward_pre_hook(hook)
  return register_everywhere("register_module_forward_pre_hook", "forward_pre", hook)
end

--- Registers `hook(module, args, output, ...)`, which runs after the forward of each module.
---@param hook fun(module: accelerate.nn.Module, args: table, ...): ...
---@param opts? { always_call: boolean } always_call: it runs also when the call raises
---@return table handle with handle:remove()
function M.registering.register_module_forward_hook(hook, opts)
  return register_everywhere("register_module_forward_hook", "forward", hook, opts)
end

--- Registers `hook(module, grad_input, grad_output)`, which runs when gradients have passed through
--- a module, as Module:register_full_backward_hook has it.
---@param hook fun(module: accelerate.nn.Module, grad_input: table, grad_output: table): table|nil
---@return table handle with handle:remove()
function M.registering.register_module_full_backward_hook(hook)
  return register_everywhere("register_module_full_backward_hook", "backward", hook)
end

--- Registers `hook(module, grad_output)`, which runs before gradients pass through a module.
---@param hook fun(module: accelerate.nn.Module, grad_output: table): table|nil
---@return table handle with handle:remove()
function M.registering.register_module_full_backward_pre_hook(hook)
  return register_everywhere("register_module_full_backward_pre_hook", "backward_pre", hook)
end

--- Returns whether functions of a script see a module's arguments or results.
function M.watch_forward(module)
  return list_of(module, "forward_pre")[1] ~= nil or list_of(module, "forward")[1] ~= nil
end

--- Gives a copy of a module the module's hooks.
---@param from accelerate.nn.Module
---@param to accelerate.nn.Module
function M.copy(from, to)
  for _, lists in ipairs { from._hooked or NONE, from._registered.state_hooks or NONE } do
    for kind, list in next, lists do
      for _, handle in ipairs(list) do M.add(to, kind, handle.hook, { always_call = handle.always_call }) end
    end
  end
end

--- Adds the methods to nn.Module.
function M.install(Module)
  --- Registers `hook(module, args)`, which runs before forward. args is the list of arguments
  --- (args.n of them), which the hook may edit. What it returns, if anything, replaces the
  --- arguments: `return x, y`, or a list of them, `return { x, y }`.
  ---@param hook fun(module: accelerate.nn.Module, args: table): ...
  ---@param opts? { prepend: boolean } prepend: it runs before those that are there
  ---@return table handle with handle:remove()
  function Module:register_forward_pre_hook(hook, opts)
    return register(self, "register_forward_pre_hook", "forward_pre", hook, opts)
  end

  --- Registers `hook(module, args, output, ...)`, which runs after forward. What it returns, if
  --- anything, replaces the results.
  ---@param hook fun(module: accelerate.nn.Module, args: table, ...): ...
  ---@param opts? { prepend: boolean, always_call: boolean } always_call: it runs also when the call
  ---  raises, with the results that there are (none when forward raised)
  ---@return table handle with handle:remove()
  function Module:register_forward_hook(hook, opts)
    return register(self, "register_forward_hook", "forward", hook, opts)
  end

  --- Registers `hook(module, grad_input, grad_output)`, which runs in backward when the gradients
  --- of the module's arguments are complete. grad_input and grad_output are lists (of n entries)
  --- with the gradients of its floating-point arguments and results, in order, nil where there is
  --- none; grad_input is empty when no argument requires a gradient. A list that the hook returns
  --- replaces grad_input. Tensors inside tables do not count. forward gets new objects for its
  --- tensor arguments.
  ---@param hook fun(module: accelerate.nn.Module, grad_input: table, grad_output: table): table?
  ---@param opts? { prepend: boolean }
  ---@return table handle with handle:remove()
  function Module:register_full_backward_hook(hook, opts)
    return register(self, "register_full_backward_hook", "backward", hook, opts)
  end

  --- Registers `hook(module, grad_output)`, which runs in backward before gradients pass through
  --- the module. A list that it returns replaces them.
  ---@param hook fun(module: accelerate.nn.Module, grad_output: table): table?
  ---@param opts? { prepend: boolean }
  ---@return table handle with handle:remove()
  function Module:register_full_backward_pre_hook(hook, opts)
    return register(self, "register_full_backward_pre_hook", "backward_pre", hook, opts)
  end

  --- Registers `hook(module, prefix, keep_vars)`, which runs in state_dict before the module's
  --- tensors are listed. prefix is the module's path with a dot after it, "" for the whole.
  ---@param hook fun(module: accelerate.nn.Module, prefix: string, keep_vars: boolean)
  ---@return table handle with handle:remove()
  function Module:register_state_dict_pre_hook(hook)
    return register(self, "register_state_dict_pre_hook", "state_dict_pre", hook)
  end

  --- Registers `hook(module, state_dict, prefix, local_metadata)`, which runs in state_dict when
  --- the tensors of the module and of those below it are listed. It may change the table, and
  --- returns nothing. local_metadata is an empty table: modules have no versions.
  ---@param hook fun(module: accelerate.nn.Module, state_dict: table, prefix: string,
  ---  local_metadata: table)
  ---@return table handle with handle:remove()
  function Module:register_state_dict_post_hook(hook)
    return register(self, "register_state_dict_post_hook", "state_dict_post", hook)
  end

  --- Registers `hook(module, state_dict, prefix, local_metadata, strict, missing_keys,
  --- unexpected_keys, error_msgs)`, which runs in load_state_dict before the module's tensors are
  --- looked up. state_dict is a table that the hook may change, of the entries that begin with
  --- prefix; what the hook adds to the lists is reported. strict is always true, as in PyTorch. The
  --- hooks of all modules run before anything is copied, so that faults change nothing.
  ---@param hook fun(module: accelerate.nn.Module, state_dict: table, prefix: string,
  ---  local_metadata: table, strict: boolean, missing_keys: string[], unexpected_keys: string[],
  ---  error_msgs: string[])
  ---@return table handle with handle:remove()
  function Module:register_load_state_dict_pre_hook(hook)
    return register(self, "register_load_state_dict_pre_hook", "load_state_dict_pre", hook)
  end

  --- Registers `hook(module, incompatible_keys)`, which runs in load_state_dict when the module and
  --- those below it are loaded. incompatible_keys is what load_state_dict returns; the hook may
  --- change its lists, by which strict goes then. It returns nothing.
  ---@param hook fun(module: accelerate.nn.Module, incompatible_keys: { missing_keys: string[],
  ---  unexpected_keys: string[] })
  ---@return table handle with handle:remove()
  function Module:register_load_state_dict_post_hook(hook)
    return register(self, "register_load_state_dict_post_hook", "load_state_dict_post", hook)
  end
end

return M
