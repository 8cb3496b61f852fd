-- What this process has in memory, without the files of programs and libraries: how much of these
-- counts as its own depends on who else runs them at the time.
local M = {}

-- Whether a mapping is no file's, or of memory that has only a name, or a file below `folder`.
local function counts(path, folder)
  return not path:find "^/" or path:find "^/memfd:" or path:find "^/dev/shm/"
    or folder and path:sub(1, #folder) == folder
end

local function bytes_of(pattern, folder)
  local counted, kb = true, 0
  for line in io.lines "/proc/self/smaps" do
    local path = line:match "^%x+%-%x+ %S+ %x+ %x+:%x+ %d+ *(.*)$"
    if path then counted = counts(path, folder) end
    if counted then kb = kb + (line:match(pattern) or 0) end
  end
  return kb * 1024
end

--- Returns the bytes that no other process has in memory.
---@param folder string? files below it count, too
---@return number
function M.private(folder) return bytes_of("^Private_%a+: *(%d+) kB", folder) end

--- Returns the bytes of this process, its share of what several map.
---@return number
function M.proportional() return bytes_of "^Pss: *(%d+) kB" end

return M
