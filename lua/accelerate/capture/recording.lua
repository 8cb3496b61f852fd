--- The host's part of a captured step (accelerate.utils.capture): optimizers count their steps,
--- schedules move.
---
--- Code that changes such state checks `recording.active`, which is nil outside a recording or a
--- comparison. There it registers how to repeat the change and how to undo it. A change that cannot
--- be repeated is refused.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"

local fail = options.fail

local M = {}

---@class accelerate.Recording
---@field kind "record"|"compare" compare: the step runs eagerly and is undone
---@field again function[] what a replay repeats on the host, in order; each gets the core's capture
---@field fits fun(): (string?)[] each returns why a replay would be wrong now, or nil
---@field undo function[] in order of doing
---@field inside boolean within an action that is registered as a whole: its parts do not register
---  again

---@type accelerate.Recording?
M.active = nil

---@type table? modules that were called, in order, and their modes: { module, ..., [module] =
---  training }
M.modules = nil

---@type table? optimizers that stepped, as keys
M.optimizers = nil

---@type table<function, function|false> a forward that preparing has put around a model's -> the
---  model's own former one (false: its class's)
M.wrapped_forwards = setmetatable({}, { __mode = "k" })

---@return accelerate.Recording
function M.new(kind) return { kind = kind, again = {}, fits = {}, undo = {}, inside = false } end

--- Returns the flags of a list of objects as a word of "t" and "f". The word of the last call is
--- kept in `memo` and is made anew only when a flag has changed.
---@param memo table
---@param list table[]
---@param flag string the name of the field
---@return string
function M.flags(memo, list, flag)
  local changed = memo.n ~= #list
  for i = 1, #list do
    local letter = list[i][flag] and "t" or "f"
    if memo[i] ~= letter then memo[i], changed = letter, true end
  end
  if changed then memo.n, memo.word = #list, table.concat(memo, "", 1, #list) end
  return memo.word
end

--- Registers an action that was just done.
---@param again function(capture) repeats it
---@param undo function
function M.register(again, undo)
  local active = M.active
  if not active or active.inside then return end
  active.again[#active.again + 1] = again
  active.undo[#active.undo + 1] = undo
end

--- Raises while a step is captured.
---@param what string what cannot be recorded: "LOMO's backward"
---@param why string
function M.refuse(what, why)
  if M.active then fail("%s cannot be part of a captured step: %s", what, why) end
end

--- Undoes all registered actions, the last one first.
---@param active accelerate.Recording
function M.undo(active)
  for i = #active.undo, 1, -1 do active.undo[i]() end
end

-- What xpcall returned: the results, which may be nil in between, or nil and the message.
local function outcome(ok, ...)
  if ok then return scope.pack(...) end
  return nil, (...)
end

--- Runs fn(...), whose actions on the host register themselves in `active`.
---@param active accelerate.Recording? nil: in the one around
---@param calls { modules: table, optimizers: table }? gets what fn calls; nil: as around
---@return { n: integer }? results nil where fn raised
---@return string? message
function M.run(active, calls, fn, ...)
  local former, modules, optimizers = M.active, M.modules, M.optimizers
  M.active = active or former
  if calls then M.modules, M.optimizers = calls.modules, calls.optimizers end
  local results, message = outcome(xpcall(fn, scope.traced, ...))
  M.active, M.modules, M.optimizers = former, modules, optimizers
  return results, message
end

--- Records on `device` what run(active, capture) does, which ends in M.run; finish(capture,
--- results, active) ends the capture. Where one of them fails, nothing of the recording is left.
---@param device string
---@param run fun(active: accelerate.Recording, capture: any): { n: integer }?, string?
---@param finish fun(capture: any, results: { n: integer }, active: accelerate.Recording): any
---@return any capture the core's
---@return any result of finish
---@return accelerate.Recording active
function M.record(device, run, finish)
  local active = M.new "record"
  collectgarbage()
  collectgarbage()
  local capture = core.capture_begin(device)
  active.capture = capture
  local results, message = run(active, capture)
  if results then
    local ok, result = pcall(finish, capture, results, active)
    if ok then return capture, result, active end
    message = result
  end
  core.capture_free(capture)
  M.undo(active)
  error(message, 0)
end

-- Copies the options of all groups, which schedules change.
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

--- Returns a word that is different for different plain values. A recording computes with the
--- numbers that it was made with, so each number has recordings of its own.
---@param value number|string|boolean|nil
---@return string
function M.word(value)
  local kind = type(value)
  return kind:sub(1, 1) .. (kind == "number" and ("%.17g"):format(value) or tostring(value))
end

--- Runs a schedule's step(self, ...) and registers it.
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
  M.register(function() step(self, unpack(given, 1, n)) end, function()
    self:load_state_dict(state)
    put_back(groups, rates)
  end)
  return result
end

return M
