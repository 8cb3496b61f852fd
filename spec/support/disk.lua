-- Files whole, and bytes as hexadecimal digits.
local M = {}

--- Returns the contents of a file.
---@param path string
---@return string
function M.read(path)
  local f = assert(io.open(path, "rb"))
  local bytes = f:read("*a")
  f:close()
  return bytes
end

--- Writes a file. Returns its path.
---@param path string
---@param bytes string
---@return string
function M.write(path, bytes)
  local f = assert(io.open(path, "wb"))
  assert(f:write(bytes))
  f:close()
  return path
end

function M.from_hex(hex) return (hex:gsub("%x%x", function(h) return string.char(tonumber(h, 16)) end)) end

function M.to_hex(bytes)
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

return M
