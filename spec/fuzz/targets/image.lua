--- Pictures: PNG and JPEG.
local data = require "accelerate.data"
local protobuf = require "accelerate.tracking.protobuf"

local SIGNATURE = "\137PNG\r\n\26\n"

local function big_endian(n)
  return string.char(math.floor(n / 2 ^ 24) % 256, math.floor(n / 65536) % 256, math.floor(n / 256) % 256,
    n % 256)
end

-- The checksum of each chunk of a PNG file.
local function repair(bytes)
  if bytes:sub(1, 8) ~= SIGNATURE then return bytes end
  local parts, at = { SIGNATURE }, 9
  while at + 11 <= #bytes do
    local a, b, c, d = bytes:byte(at, at + 3)
    local n = ((a * 256 + b) * 256 + c) * 256 + d
    if at + 11 + n > #bytes then break end
    local body = bytes:sub(at + 4, at + 7 + n)
    parts[#parts + 1] = bytes:sub(at, at + 3) .. body .. big_endian(protobuf.crc32(body))
    at = at + 12 + n
  end
  parts[#parts + 1] = bytes:sub(at)
  return table.concat(parts)
end

return {
  ending = ".png",
  most = 160, -- a byte of PNG may hold 8000 pixels
  read = function(path, bytes)
    if bytes and #bytes % 3 > 0 then pcall(data.read_image, path, #bytes % 3 == 1 and "RGB" or "GRAY") end
    return data.read_image(path, "UNCHANGED")
  end,
  write = function(t, path)
    if t:numel() > 1e5 then return false end
    data.write_image(path, t)
  end,
  repair = repair,
}
