--- What a recorded step (accelerate.utils.capture) has to know of what happens on the host:
--- optimizers count their steps, schedules move.
---
--- Who changes such a thing asks `recording.active` first, which is nil nearly always.  While a
--- step is recorded, or run to be compared with its replay, it tells how to do the same again and
--- how to undo it; what cannot be done again it refuses.
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

---@class accelerate.Recording
---@field kind "record"|"compare" compare: the step runs eagerly, to be undone
---@field again function[] what a replay does on the host, in order; each gets the recording in C
---@field fits fun(): (string?)[] each says why a replay would be wrong now, or nil
---@field undo function[] in order of doing
---@field inside boolean within an action that tells by itself: what it calls does not tell once
---  more

---@type accelerate.Recording?
M.active = nil

---@type table? modules that were called, in order, and their mode: { module, ..., [module] =
---  training }
M.modules = nil

---@type table? optimizers that stepped, as keys
M.optimizers = nil

---@return accelerate.Recording
function M.new(kind) return { kind = kind, again = {}, fits = {}, undo = {}, inside = false } end

--- Tells of something that was just done.
---@param again function(capture) does it again
---@param undo function
function M.tell(again, undo)
  local active = M.active
  if not active or active.inside then return end
  active.again[#active.again + 1] = again
  active.undo[#active.undo + 1] = undo
end

--- Raises while a step is recorded.
---@param what string what cannot be done: "LOMO's backward"
---@param why string
function M.refuse(what, why)
  if M.active then fail("%s cannot be part of a captured step: %s", what, why) end
end

--- Puts back what was done, the last first.
---@param active accelerate.Recording
function M.undo(active)
  for i = #active.undo, 1, -1 do active.undo[i]() end
end

-- The options of all groups, which schedules change.
local function options_of(groups)
  local list = {}
  for i, group in ipairs(groups) do
    list[i] = {}
    for name, value in next, group do
      if name ~= "params" then list[i][name] = type(value) == "table" and { unpack(value) } or value end
    end
  end
  return list
end

local function put_back(groups, list)
  for i, saved in ipairs(list) do
    for name, value in next, saved do groups[i][name] = value end
  end
end

--- Runs a schedule's step(self, ...), and tells of it.
---@param step function
function M.schedule(self, step, ...)
  local active = M.active
  if not active or active.inside then return step(self, ...) end
  local groups = self.optimizer and self.optimizer.param_groups or {}
  local state, rates, n, given = self:state_dict(), options_of(groups), select("#", ...), { ... }
  for i = 1, n do
    if type(given[i]) ~= "number" and given[i] ~= nil then
      fail("%s: step: a captured step cannot move a schedule by a tensor's value; call it outside the step",
        self.__name or "scheduler")
    end
  end
  active.inside = true
  local ok, result = pcall(step, self, ...)
  active.inside = false
  if not ok then error(result, 0) end
  M.tell(function() step(self, unpack(given, 1, n)) end, function()
    self:load_state_dict(state)
    put_back(groups, rates)
  end)
  return result
end

return M
