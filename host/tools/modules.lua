-- Writes the archive of compiled modules that host/script/modules.c reads.
--
--   accel-run host/tools/modules.lua FOLDER OUTPUT     FOLDER: lua
local folder, output = arg[1], arg[2]
local ffi = require "ffi"

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "*a"
  file:close()
  return text
end

local function sizes(...) return ffi.string(ffi.new("uint32_t[3]", ...), 12) end

local parts = { "accel modules 1\n" }
local list = assert(io.popen(("find '%s/accelerate' -name '*.lua' | LC_ALL=C sort"):format(folder)))
for path in list:lines() do
  local name = path:sub(#folder + 2, -5):gsub("/init$", ""):gsub("/", ".")
  local text = read(path)
  local code = string.dump(assert(loadstring(text, "@" .. path)))
  parts[#parts + 1] = sizes(#name, #text, #code) .. name .. text .. code
end
list:close()

local file = assert(io.open(output, "wb"))
assert(file:write(table.concat(parts)))
assert(file:close())
