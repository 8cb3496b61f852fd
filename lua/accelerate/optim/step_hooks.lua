--- Hooks of optimizers: functions that run before and after a step.
---
--- An optimizer with hooks has a `step` of its own, which runs them around its class's: one without
--- hooks pays nothing, and a loss scaler sees that the host has to decide whether it steps.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local recording = require "accelerate.capture.recording"
local scope = require "accelerate.utils.scope"

local M = {}

local Handle = class("RemovableHandle")

local base -- the class of all optimizers

-- The step of an optimizer whose `_step_hooks` are { before = handles, after = handles }. A list is
-- never changed but replaced, so a hook may remove itself while the list is in use.
local function step(optimizer, ...)
  if not class.is(optimizer, base) then return base.step(optimizer, ...) end -- which refuses it
  local known = optimizer._step_hooks
  if not known then return getmetatable(optimizer).step(optimizer, ...) end
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

function Handle:init(optimizer, kind, hook)
  self.optimizer, self.kind, self.hook = optimizer, kind, hook
end

--- Removes the hook. A second call does nothing.
function Handle:remove()
  local optimizer = self.optimizer
  if not optimizer then return end
  self.optimizer = nil
  local known, kept = optimizer._step_hooks, {}
  for _, handle in ipairs(known[self.kind]) do
    if handle ~= self then kept[#kept + 1] = handle end
  end
  known[self.kind] = kept
  if not known.before[1] and not known.after[1] then optimizer.step, optimizer._step_hooks = nil, nil end
end

local function add(optimizer, kind, hook)
  options.value(optimizer.__name, "hook", hook, { "function" })
  local known = optimizer._step_hooks or { before = {}, after = {} }
  optimizer._step_hooks = known
  local handle, list = Handle(optimizer, kind, hook), { unpack(known[kind]) }
  list[#list + 1] = handle
  known[kind] = list
  optimizer.step = step
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
  function Optimizer:register_step_pre_hook(hook) return add(self, "before", hook) end

  --- Registers `hook(optimizer, args)`, which runs after each step, with the step's arguments.
  ---@param hook fun(optimizer: accelerate.optim.Optimizer, args: table)
  ---@return table handle with handle:remove()
  function Optimizer:register_step_post_hook(hook) return add(self, "after", hook) end
end

return M
