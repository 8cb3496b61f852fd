--- What was typed before, in a file of the user's state folder. Each entry is appended at once, so
--- that several prompts and one that is killed lose nothing of each other's.
---
--- An entry is a line; a line break within it is "\n" and a backslash "\\".
local ffi = require "ffi"

ffi.cdef [[
int open(const char *path, int flags, ...);
int close(int fd);
int flock(int fd, int operation);
long write(int fd, const void *data, size_t size);
]]

local O_WRONLY, O_CREAT, O_APPEND, O_CLOEXEC, LOCK_EX = 1, 64, 1024, 524288, 2
local MODE = 384 -- 0600: what one types may hold passwords

local MOST = 10000 -- entries; a file with a tenth more is cut
local LONGEST = 65536 -- bytes of an entry: nobody looks for pasted data again

local M = {}

--- Returns the file: ACCELERATE_HISTORY when that is set (empty: no file), else accel/history below
--- XDG_STATE_HOME, which is ~/.local/state by default; nil: there is none.
---@return string?
function M.path()
  local given = os.getenv("ACCELERATE_HISTORY")
  if given then return given ~= "" and given or nil end
  local state = os.getenv("XDG_STATE_HOME")
  if not state or state:sub(1, 1) ~= "/" then
    local home = require("accelerate.host").home()
    if not home then return nil end
    state = home .. "/.local/state"
  end
  return state .. "/accel/history"
end

local function encoded(entry) return (entry:gsub("\\", "\\\\"):gsub("\n", "\\n")) end

local function decoded(line)
  return (line:gsub("\\(.)", function(c) return c == "n" and "\n" or c end))
end

-- Calls fn while no other prompt writes the file; without the lock where the folder has none.
local function locked(path, fn)
  local fd = ffi.C.open(path .. ".lock", O_WRONLY + O_CREAT + O_CLOEXEC, ffi.cast("int", MODE))
  if fd >= 0 then ffi.C.flock(fd, LOCK_EX) end
  local fine, result = pcall(fn)
  if fd >= 0 then ffi.C.close(fd) end
  return fine and result
end

local function read_lines(path)
  local file, lines = io.open(path, "rb"), {}
  if not file then return lines end
  for line in file:lines() do
    if line ~= "" and #line <= 2 * LONGEST then lines[#lines + 1] = line end
  end
  file:close()
  return lines
end

local function append(path, text)
  local fd = ffi.C.open(path, O_WRONLY + O_CREAT + O_APPEND + O_CLOEXEC, ffi.cast("int", MODE))
  if fd < 0 then return end
  ffi.C.write(fd, text, #text)
  ffi.C.close(fd)
end

-- Leaves the last MOST entries in the file.
local function cut(path)
  locked(path, function()
    local lines = read_lines(path)
    if #lines <= MOST then return end
    os.remove(path .. ".new")
    append(path .. ".new", table.concat(lines, "\n", #lines - MOST + 1) .. "\n")
    os.rename(path .. ".new", path)
  end)
end

--- Returns the entries so far, oldest first.
---@return string[]
function M.load()
  local path = M.path()
  local lines = path and read_lines(path) or {}
  if #lines > MOST * 1.1 then cut(path) end
  local list = {}
  for i = math.max(1, #lines - MOST + 1), #lines do list[#list + 1] = decoded(lines[i]) end
  return list
end

--- Returns whether an entry is kept: it has text, and not too much.
---@param entry string
---@return boolean
function M.keeps(entry) return #entry <= LONGEST and entry:find("%S") ~= nil end

--- Adds an entry to the file, if it is one that is kept. A file that cannot be written is left
--- alone.
---@param entry string
function M.add(entry)
  local path = M.path()
  if not path or not M.keeps(entry) then return end
  if not os.getenv("ACCELERATE_HISTORY") then
    pcall(require("accelerate.utils.fs").make_dirs, path:match("^(.*)/"))
  end
  locked(path, function() append(path, encoded(entry) .. "\n") end)
end

return M
