--- What the specs of trackers share: a run with trackers in a folder of its own, and readers of
--- the files that trackers write.
local accelerate = require "accelerate"
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local state = require "accelerate.state"

local M = {}

M.read = disk.read

--- Returns the files below a folder, sorted, with paths from there.
function M.names(folder)
  local list, pipe = {}, io.popen("cd '" .. folder .. "' && find . -type f | LC_ALL=C sort")
  for name in pipe:lines() do list[#list + 1] = name:sub(3) end
  pipe:close()
  return list
end

--- Returns the paths of files below a folder whose names match a pattern.
function M.find(folder, pattern)
  local found = {}
  for _, name in ipairs(M.names(folder)) do
    if name:find(pattern) then found[#found + 1] = folder .. "/" .. name end
  end
  return found
end

--- Returns bytes in hexadecimal.
function M.hex(bytes) return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end)) end

--- Runs `body` with stderr in a file; returns what was written there.
function M.stderr_of(body)
  local path, former = os.tmpname(), io.stderr
  io.stderr = assert(io.open(path, "w")) -- luacheck: ignore 122
  local ok, err = pcall(body)
  io.stderr:close()
  io.stderr = former -- luacheck: ignore 122
  local text = M.read(path)
  os.remove(path)
  if not ok then error(err, 0) end
  return text
end

--- Calls body(accelerator, folder) with an Accelerator of its own, in a fresh folder.
function M.with(log_with, body, options)
  host.in_folder(function(folder)
    state.reset()
    options = options or {}
    options.log_with, options.project_dir = log_with, folder
    body(accelerate.Accelerator(options), folder)
    state.reset()
  end)
end

--- Returns the number of 32 bits at a place of a text.
function M.u32(text, at)
  local a, b, c, d = text:byte(at, at + 3)
  return a + b * 256 + c * 65536 + d * 16777216
end

--- Returns a protobuf message's fields: number -> list of values (numbers of varints, bytes of all
--- else).
function M.fields(message)
  local found, at = {}, 1
  local function varint()
    local value, scale = 0, 1
    repeat
      local byte = message:byte(at)
      value, scale, at = value + byte % 128 * scale, scale * 128, at + 1
    until byte < 128
    return value
  end
  while at <= #message do
    local key = varint()
    local kind = key % 8
    local value
    if kind == 0 then value = varint()
    else
      local n = kind == 1 and 8 or kind == 5 and 4 or varint()
      value, at = message:sub(at, at + n - 1), at + n
    end
    local number = math.floor(key / 8)
    found[number] = found[number] or {}
    table.insert(found[number], value)
  end
  return found
end

return M
