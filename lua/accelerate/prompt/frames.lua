--- The functions that are under way, with their locals and upvalues, for the debugger: those of a
--- script that stands, which are read and set where they are, and those of an error, which are kept
--- as they were when it was raised.
local environment = require "accelerate.utils.environment"
local source = require "accelerate.messages.source"

local M = {}

local getinfo = debug.getinfo

local LIBRARY = getinfo(1, "S").source:match("^(@.*[/\\])prompt[/\\]frames%.lua$")
local SHOWS_ALL = environment.flag("ACCELERATE_DEBUG_MODE", false)
local INNERMOST, OUTERMOST = 180, 20 -- frames of an error that are kept

---@class accelerate.prompt.Frame
---@field fn function
---@field path string the source's name, as messages.source takes it
---@field place string "train.lua:12"
---@field line integer
---@field label string "function 'step'"
---@field thread thread?
---@field height integer its place in the stack, from 1 at the bottom
---@field kept { name: string, value: any }[]? the locals of an error's frame
---@field extra any[]? its variable arguments, with their number as n
local Frame = {}
Frame.__index = Frame

--- Returns whether a source, as debug.getinfo gives it, is this library's. ACCELERATE_DEBUG_MODE
--- makes all sources the script's.
---@param name string
---@return boolean
function M.in_library(name)
  return not SHOWS_ALL and (name:sub(1, #LIBRARY) == LIBRARY or name == "=pcall")
end

-- ---- levels

--- Returns the height of the function that calls this one: how many there are from the bottom of
--- the stack.
---@return integer
function M.height()
  local low, high = 2, 4
  while getinfo(high, "l") do low, high = high, 2 * high end
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if getinfo(middle, "l") then low = middle else high = middle end
  end
  return low - 1
end

local function label_of(info)
  if info.what == "main" then return "main chunk" end
  if info.name then return ("function '%s'"):format(info.name) end
  if info.linedefined == 1 and source.is_chunk(info.source:sub(2)) then return "main chunk" end
  return ("function <%s:%d>"):format(info.short_src, info.linedefined)
end

local function frame_of(info, height)
  return setmetatable({ fn = info.func, path = info.source:sub(2), line = info.currentline,
    place = ("%s:%d"):format(info.short_src, info.currentline), label = label_of(info),
    thread = coroutine.running(), height = height }, Frame)
end

-- ---- locals and upvalues

local function is_name(name) return name:find("^[%a_]") ~= nil and not name:find("^__prompt_") end

local function read_locals(level)
  local list = {}
  for i = 1, math.huge do
    local name, value = debug.getlocal(level + 1, i)
    if not name then return list end
    if is_name(name) then list[#list + 1] = { name = name, value = value, number = i } end
  end
end

local function read_extra(level)
  local list = { n = 0 }
  for i = 1, math.huge do
    local name, value = debug.getlocal(level + 1, -i)
    if not name then return list end
    list[i], list.n = value, i
  end
end

-- Whether the frame is there to be read.
local function is_live(frame) return not frame.kept and coroutine.running() == frame.thread end

--- Returns the locals in scope, innermost last.
---@return { name: string, value: any, number: integer }[]
function Frame:locals()
  if self.kept then return self.kept end
  if not is_live(self) then return {} end
  local level = M.height() - self.height + 1
  local list = read_locals(level)
  return list
end

--- Returns the variable arguments, with their number as n.
---@return any[]
function Frame:arguments()
  if self.extra then return self.extra end
  if not is_live(self) then return { n = 0 } end
  local level = M.height() - self.height + 1
  local list = read_extra(level)
  return list
end

--- Returns the upvalues.
---@return { name: string, value: any, number: integer }[]
function Frame:upvalues()
  local list = {}
  for i = 1, 255 do
    local name, value = debug.getupvalue(self.fn, i)
    if not name then break end
    if is_name(name) then list[#list + 1] = { name = name, value = value, number = i } end
  end
  return list
end

local function last_of(list, name)
  for i = #list, 1, -1 do
    if list[i].name == name then return list[i] end
  end
end

-- The variable that a name is, and whether it is a local.
local function variable(frame, name)
  local found = last_of(frame:locals(), name)
  if found then return found, true end
  return last_of(frame:upvalues(), name), false
end

--- Returns whether a local or an upvalue has this name, and its value.
---@param name string
---@return boolean
---@return any
function Frame:get(name)
  local found = variable(self, name)
  return found ~= nil, found and found.value
end

--- Sets the local or upvalue of a name. Returns whether there is one.
---@param name string
---@param value any
---@return boolean
function Frame:set(name, value)
  local found, is_local = variable(self, name)
  if not found then return false end
  if not is_local then
    debug.setupvalue(self.fn, found.number, value)
  elseif self.kept then
    found.value = value
  else
    debug.setlocal(M.height() - self.height + 1, found.number, value)
  end
  return true
end

--- Returns the environment of a text that is evaluated in the frame: its locals, upvalues and
--- globals.
---@return table
function Frame:environment()
  local globals = getfenv(self.fn)
  return setmetatable({}, {
    __index = function(_, name)
      local found, value = self:get(name)
      if found then return value end
      return globals[name]
    end,
    __newindex = function(_, name, value)
      if not self:set(name, value) then globals[name] = value end
    end,
  })
end

-- ---- stacks

-- The Lua functions from a level on, innermost first, with their levels.
local function infos(level)
  local list = {}
  for at = level + 1, math.huge do
    local info = getinfo(at, "Slnf")
    if not info then return list end
    if info.what ~= "C" then list[#list + 1] = { info = info, level = at - 1 } end
  end
end

-- Those of the script, or all where none is.
local function of_script(list)
  local own = {}
  for _, entry in ipairs(list) do
    if not M.in_library(entry.info.source) then own[#own + 1] = entry end
  end
  return own
end

--- Returns the script's functions that are under way, innermost first.
---@param level integer where to begin, as the function that calls this one counts
---@return accelerate.prompt.Frame[]
function M.live(level)
  local height, frames = M.height(), {}
  for _, entry in ipairs(of_script(infos(level + 1))) do
    frames[#frames + 1] = frame_of(entry.info, height - entry.level + 1)
  end
  return frames
end

--- The last error that nothing caught: its message and its frames. nil: there was none, or one for
--- lack of memory, whose tensors are let go.
---@type { message: string, frames: accelerate.prompt.Frame[] }?
M.last = nil

--- The error of `quit`, after which there is nothing to look at.
M.LEFT = "the debugger was left with quit"

--- Keeps the stack of an error; called where it is raised.
---@param message any
function M.keep(message)
  M.last = nil
  local text = tostring(message)
  if text:find("out of memory", 1, true) or text == M.LEFT then return end
  local height, frames = M.height(), {}
  local list = of_script(infos(2))
  for i, entry in ipairs(list) do
    if i <= INNERMOST or i > #list - OUTERMOST then
      local frame = frame_of(entry.info, height - entry.level + 1)
      frame.kept, frame.extra = read_locals(entry.level), read_extra(entry.level)
      frames[#frames + 1] = frame
    end
  end
  if #frames > 0 then M.last = { message = text, frames = frames } end
end

return M
