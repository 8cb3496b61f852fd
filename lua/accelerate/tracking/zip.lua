--- ZIP archives (PKWARE's APPNOTE.TXT): deflated entries, one after the other, then their
--- directory.
local bit = require "bit"
local ffi = require "ffi"
local file = require "accelerate.tracking.file"
local pb = require "accelerate.tracking.protobuf"

ffi.cdef [[
int compress2(char *dest, unsigned long *destLen, const char *source, unsigned long sourceLen, int level);
unsigned long compressBound(unsigned long sourceLen);
]]

local M = {}

local function u16(n) return string.char(n % 256, math.floor(n / 256) % 256) end
local u32 = pb.uint32_bytes

--- Returns zlib's stream without its two-byte header and its checksum.
local function deflate(text)
  local size = ffi.new("unsigned long[1]", ffi.C.compressBound(#text))
  local room = ffi.new("char[?]", size[0])
  if ffi.C.compress2(room, size, text, #text, 6) ~= 0 then
    error("zip: zlib could not compress an entry", 0)
  end
  return ffi.string(room + 2, size[0] - 6)
end

local DEFLATED, VERSION = 8, 20

--- Returns the archive of some files.
---@param entries { [1]: string, [2]: string }[] names and contents
---@return string
function M.archive(entries)
  local out, directory, at = {}, {}, 0
  local now = os.date("*t")
  local clock = bit.bor(bit.lshift(now.hour, 11), bit.lshift(now.min, 5), math.floor(now.sec / 2))
  local day = bit.bor(bit.lshift(now.year - 1980, 9), bit.lshift(now.month, 5), now.day)
  for i, entry in ipairs(entries) do
    local name, text = entry[1], entry[2]
    local packed = deflate(text)
    local facts = u16(VERSION) .. u16(0x800) .. u16(DEFLATED) .. u16(clock) .. u16(day) ..
      u32(pb.crc32(text)) .. u32(#packed) .. u32(#text) ..
      u16(#name) .. u16(0)
    local head = "PK\3\4" .. facts .. name
    out[#out + 1], out[#out + 2] = head, packed
    directory[i] = "PK\1\2" .. u16(VERSION) .. facts .. u16(0) .. u16(0) .. u16(0) .. u32(0) .. u32(at) ..
      name
    at = at + #head + #packed
    if at >= 2 ^ 32 or #text >= 2 ^ 32 or i >= 65535 then
      file.fail("the archive would be larger than the 4 GiB that a zip file without extensions holds")
    end
  end
  local list = table.concat(directory)
  return table.concat(out) .. list .. "PK\5\6" .. u16(0) .. u16(0) .. u16(#entries) .. u16(#entries) ..
    u32(#list) .. u32(at) .. u16(0)
end

return M
