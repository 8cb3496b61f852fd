--- What a terminal can do: its width, and whether it shows colours.
local ffi = require "ffi"

ffi.cdef [[
int isatty(int fd);
struct accelerate_winsize { unsigned short rows, columns, x, y; };
int ioctl(int fd, unsigned long request, ...);
]]

local TIOCGWINSZ = 0x5413

--- `notebook`: what is written goes into a notebook's cell, which knows "\r". `bars`: the progress
--- bars that are drawn, { open = list, hide = function, show = function }; nil before the first
--- one.
local M = { STDIN = 0, STDOUT = 1, STDERR = 2, notebook = false, bars = nil }

--- Calls write(...), which writes whole lines, with the progress bars off the terminal meanwhile.
---@param write function
function M.beside_bars(write, ...)
  local bars = M.bars
  if not bars or #bars.open == 0 or M.notebook then return write(...) end
  bars.hide()
  write(...)
  io.stdout:flush()
  bars.show()
end

--- Returns whether the file is a terminal.
---@param fd integer
---@return boolean
function M.is_terminal(fd) return ffi.C.isatty(fd) == 1 end

--- Returns the width of the terminal in characters; 80 where the file is none, or does not know.
---@param fd integer
---@return integer
function M.columns(fd)
  local size = ffi.new("struct accelerate_winsize")
  if ffi.C.ioctl(fd, TIOCGWINSZ, size) ~= 0 or size.columns == 0 then return 80 end
  return size.columns
end

--- Returns whether to write colours: the file is a terminal that has them, and NO_COLOR is not set.
---@param fd integer
---@return boolean
function M.has_colours(fd)
  local refused, term = os.getenv("NO_COLOR"), os.getenv("TERM")
  if refused and refused ~= "" then return false end
  return term ~= nil and term ~= "" and term ~= "dumb" and M.is_terminal(fd)
end

--- Returns whether texts are UTF-8, as the locale's name says.
---@return boolean
function M.has_utf8()
  for _, name in ipairs { "LC_ALL", "LC_CTYPE", "LANG" } do
    local value = os.getenv(name)
    if value and value ~= "" then return value:lower():find("utf%-?8") ~= nil end
  end
  return M.notebook
end

--- Returns the number of columns that a text in UTF-8 takes: its characters, without combining
--- marks; East Asian characters and emoji take two.
---@param text string
---@return integer
function M.width(text)
  local n = 0
  for lead, rest in text:gmatch("([%z\1-\127\192-\255])([\128-\191]*)") do
    local a, b = lead:byte(), rest:byte()
    local combining = a == 0xcc or a == 0xcd and b and b < 0xb0
    local wide = a >= 0xe3 and a <= 0xed and not (a == 0xed and b and b > 0x9e) or a == 0xf0
    n = n + (combining and 0 or wide and 2 or 1)
  end
  return n
end

return M
