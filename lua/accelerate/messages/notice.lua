--- Notices: what the library has to say while a script goes on. A line on stderr, with one prefix.
---
--- `here` is for what concerns this rank, `main` for what is the same on all ranks: only rank 0
--- writes it. Their `_once`
--- forms write a text once in a process. `trap` is for what a script hardly ever means.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local terminal = require "accelerate.utils.terminal"

local M = {}

local seen = {}

--- Writes a line. One write, so that lines of several ranks do not run into each other.
---@param message string a format
---@param ... any its arguments; none: `message` is taken as it is
function M.here(message, ...)
  if select("#", ...) > 0 then message = message:format(...) end
  local text = options.clean("accelerate: " .. message .. "\n")
  terminal.beside_bars(function() io.stderr:write(text) end)
end

--- Writes a line on rank 0.
---@param message string a format
function M.main(message, ...)
  if core.dist.rank() == 0 then M.here(message, ...) end
end

-- Whether `text` is new in this process.
local function first(text)
  if seen[text] then return false end
  seen[text] = true
  return true
end

--- Writes a line, unless the process has written it before.
---@param message string a format
function M.here_once(message, ...)
  if select("#", ...) > 0 then message = message:format(...) end
  if first(message) then M.here("%s", message) end
end

--- Writes a line on rank 0, unless the process has written it before.
---@param message string a format
function M.main_once(message, ...)
  if select("#", ...) > 0 then message = message:format(...) end
  if first(message) then M.main("%s", message) end
end

-- The script's line that is running, as "train.lua:12: "; "" when there is none.
local function line()
  local level = options.caller_level()
  local info = level > 0 and debug.getinfo(level, "Sl")
  return info and info.currentline > 0 and ("%s:%d: "):format(info.short_src, info.currentline) or ""
end

--- Points out, on rank 0 and with the script's line, what is no error but is hardly ever meant.
--- Once for each kind.
---@param kind string
---@param message string a format
function M.trap(kind, message, ...)
  if not first("trap: " .. kind) then return end
  local where = line() -- not in the call's arguments: that would be a tail call, which hides a level
  M.main("%s%s", where, message:format(...))
end

--- Forgets what was written, for tests.
function M.reset() seen = {} end

return M
