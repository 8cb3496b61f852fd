--- Hooks of optimizers: functions that run before and after a step, and around the saving and
--- loading of states.
---
--- An optimizer with hooks has a `step` of its own, which runs them around its class's: one without
--- hooks pays nothing, and a loss scaler sees that the host has to decide whether it steps. So it
--- is with `state_dict` and `load_state_dict`.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local recording = require "accelerate.capture.recording"
local scope = require "accelerate.utils.scope"

local M = {}

local Handle = class("RemovableHandle")

local base -- the class of all optimizers

-- Method -> what stands in its place where the optimizer has hooks for it. `known` is { before =
-- handles, after = handles }. A list is never changed but replaced, so a hook may remove itself
-- while the list is in use.
local around = {}

function around.step(known, optimizer, ...)
  recording.refuse("a step with hooks", "they would run once, when it is recorded")
  local args = scope.pack(...)
  for _, handle in ipairs(known.before) do
    local given = scope.pack(handle.hook(optimizer, args))
    if given.n > 0 and given[1] ~= nil then args = given end
  end
  local results = scope.pack(getmetatable(optimizer).step(optimizer, unpack(args, 1, args.n)))
  for _, handle in ipairs(known.after) do handle.hook(optimizer, args) end
  return unpack(results, 1, results.n)
end

function around.state_dict(known, optimizer)
  for _, handle in ipairs(known.before) do handle.hook(optimizer) end
  local dict = getmetatable(optimizer).state_dict(optimizer)
  for _, handle in ipairs(known.after) do
    local made = handle.hook(optimizer, dict)
    if made ~= nil then dict = made end
  end
  return dict
end

function around.load_state_dict(known, optimizer, given)
  local dict = given
  if type(given) == "table" then -- a hook may set its entries: the caller's table stays as it is
    dict = {}
    for name, value in next, given do dict[name] = value end
  end
  for _, handle in ipairs(known.before) do
    local made = handle.hook(optimizer, dict)
    if made ~= nil then dict = made end
  end
  getmetatable(optimizer).load_state_dict(optimizer, dict)
  for _, handle in ipairs(known.after) do handle.hook(optimizer) end
end

local wrapped = {}
for method, run in next, around do
  wrapped[method] = function(optimizer, ...)
    if not class.is(optimizer, base) then return base[method](optimizer, ...) end -- which refuses it
    local known = rawget(optimizer, "_hooks")
    if not known or not known[method] then return getmetatable(optimizer)[method](optimizer, ...) end
    return run(known[method], optimizer, ...)
  end
end

function Handle:init(optimizer, method, kind, hook)
  self.optimizer, self.method, self.kind, self.hook = optimizer, method, kind, hook
end

--- Removes the hook. A second call does nothing.
function Handle:remove()
  local optimizer, method = self.optimizer, self.method
  if not optimizer then return end
  self.optimizer = nil
  local known, kept = optimizer._hooks[method], {}
  for _, handle in ipairs(known[self.kind]) do
    if handle ~= self then kept[#kept + 1] = handle end
  end
  known[self.kind] = kept
  if not known.before[1] and not known.after[1] then
    optimizer._hooks[method] = nil
    optimizer[method] = nil
  end
end

local OPTIONS = { prepend = { "boolean", default = false } }

local function add(optimizer, method, kind, hook, ...)
  options.value(optimizer.__name, "hook", hook, { "function" })
  local prepend = options.read(optimizer.__name, { "prepend" }, OPTIONS, ...).prepend
  if not rawget(optimizer, "_hooks") then rawset(optimizer, "_hooks", {}) end
  local known = optimizer._hooks[method] or { before = {}, after = {} }
  optimizer._hooks[method] = known
  local handle, list = Handle(optimizer, method, kind, hook), { unpack(known[kind]) }
  table.insert(list, prepend and 1 or #list + 1, handle)
  known[kind] = list
  rawset(optimizer, method, wrapped[method])
  return handle
end

--- Adds the methods to Optimizer.
function M.install(Optimizer)
  base = Optimizer

  --- Registers `hook(optimizer, args)`, which runs before each step. args is the list of arguments
  --- of step (args.n of them: the closure, or none). What the hook returns, if anything, replaces
  --- them. A step that a loss scaler skips runs no hooks.
  ---@param hook fun(optimizer: accelerate.optim.Optimizer, args: table): ...
  ---@return table handle with handle:remove()
  function Optimizer:register_step_pre_hook(hook) return add(self, "step", "before", hook) end

  --- Registers `hook(optimizer, args)`, which runs after each step, with the step's arguments.
  ---@param hook fun(optimizer: accelerate.optim.Optimizer, args: table)
  ---@return table handle with handle:remove()
  function Optimizer:register_step_post_hook(hook) return add(self, "step", "after", hook) end

  --- Registers `hook(optimizer)`, which runs before each state_dict.
  ---@param hook fun(optimizer: accelerate.optim.Optimizer)
  ---@param ... any prepend = false, or a table with it; true: it runs before those that are there
  ---@return table handle with handle:remove()
  function Optimizer:register_state_dict_pre_hook(hook, ...)
    return add(self, "state_dict", "before", hook, ...)
  end

  --- Registers `hook(optimizer, state_dict)`, which runs after each state_dict and may change the
  --- table. What it returns, if anything, replaces it.
  ---@param hook fun(optimizer: accelerate.optim.Optimizer, state_dict: table): table|nil
  ---@param ... any prepend = false, or a table with it
  ---@return table handle with handle:remove()
  function Optimizer:register_state_dict_post_hook(hook, ...)
    return add(self, "state_dict", "after", hook, ...)
  end

  --- Registers `hook(optimizer, state_dict)`, which runs before each load_state_dict, with a
  --- shallow copy of what it was called with. What the hook returns, if anything, is loaded in its
  --- place.
  ---@param hook fun(optimizer: accelerate.optim.Optimizer, state_dict: table): table|nil
  ---@param ... any prepend = false, or a table with it
  ---@return table handle with handle:remove()
  function Optimizer:register_load_state_dict_pre_hook(hook, ...)
    return add(self, "load_state_dict", "before", hook, ...)
  end

  --- Registers `hook(optimizer)`, which runs after each load_state_dict.
  ---@param hook fun(optimizer: accelerate.optim.Optimizer)
  ---@param ... any prepend = false, or a table with it
  ---@return table handle with handle:remove()
  function Optimizer:register_load_state_dict_post_hook(hook, ...)
    return add(self, "load_state_dict", "after", hook, ...)
  end
end

return M
