--- Archives: those of torch.save and NumPy's .npz.
local data = require "accelerate.data"
local files = require "accelerate.files"
local protobuf = require "accelerate.tracking.protobuf"

local function number(bytes, at, n)
  local v = 0
  for i = n - 1, 0, -1 do v = v * 256 + bytes:byte(at + i) end
  return v
end

-- The checksums in the directory, of entries that are stored.
local function repair(bytes)
  local at = 1
  while true do
    at = bytes:find("PK\1\2", at, true)
    if not at or at + 45 > #bytes then return bytes end
    local size, place = number(bytes, at + 20, 4), number(bytes, at + 42, 4)
    if number(bytes, at + 10, 2) == 0 and place + 30 <= #bytes then
      local from = place + 30 + number(bytes, place + 27, 2) + number(bytes, place + 29, 2)
      local crc = protobuf.crc32(bytes:sub(from + 1, from + size))
      bytes = bytes:sub(1, at + 15) ..
        string.char(crc % 256, math.floor(crc / 256) % 256, math.floor(crc / 65536) % 256,
        math.floor(crc / 2 ^ 24)) ..
        bytes:sub(at + 20)
    end
    at = at + 46
  end
end

return {
  ending = ".npz",
  read = function(path)
    local ok, value = pcall(files.load, path)
    local arrays, why = pcall(data.read_npz, path)
    if not ok and not arrays then error(#path % 2 and value or why, 0) end
    return ok and { torch = value } or { arrays = why }
  end,
  write = function(value, path)
    if value.arrays then data.write_npz(path, value.arrays) else files.write(value.torch, path, false) end
  end,
  repair = repair,
}
