--- Protocol Buffers' wire format (protobuf.dev/programming-guides/encoding), written by hand:
--- fields as strings of bytes, to be joined into messages.  And the two checksums that the files of
--- trackers carry.
local bit = require "bit"
local ffi = require "ffi"

ffi.cdef [[
unsigned long crc32(unsigned long crc, const char *buf, unsigned int len); /* zlib's */
]]

local char, floor = string.char, math.floor

local M = {}

--- A whole number as a varint: seven bits a byte, the lowest first.  A negative one is that of its
--- 64 bits.
---@param n number integral, -2^63 .. 2^63
---@return string
function M.varint(n)
  if n >= 0 and n < 128 then return char(n) end
  local bytes, count = {}, 0
  if n < 0 or n >= 2 ^ 53 then
    local rest = ffi.cast("uint64_t", ffi.cast("int64_t", n))
    while rest >= 128 do
      count = count + 1
      bytes[count] = char(tonumber(rest % 128) + 128)
      rest = rest / 128
    end
    bytes[count + 1] = char(tonumber(rest))
  else
    while n >= 128 do
      count = count + 1
      bytes[count] = char(n % 128 + 128)
      n = floor(n / 128)
    end
    bytes[count + 1] = char(n)
  end
  return table.concat(bytes)
end
local varint = M.varint

local f64, f32 = ffi.new("double[1]"), ffi.new("float[1]")

--- The eight bytes of a double, little-endian (as are all processors that this runs on).
function M.double_bytes(x)
  f64[0] = x
  return ffi.string(f64, 8)
end

local u32 = ffi.new("uint32_t[1]")

--- Four bytes, little-endian, of an unsigned number or of bit's signed form of one.
function M.uint32_bytes(n)
  u32[0] = n % 4294967296
  return ffi.string(u32, 4)
end

local u64 = ffi.new("uint64_t[1]")

function M.uint64_bytes(n)
  u64[0] = n
  return ffi.string(u64, 8)
end

--- An int, enum or bool field.
function M.int(field, n) return varint(field * 8) .. varint(n) end

--- A double field.
function M.double(field, x) return varint(field * 8 + 1) .. M.double_bytes(x) end

--- A float field: rounded to float32.
function M.float(field, x)
  f32[0] = x
  return varint(field * 8 + 5) .. ffi.string(f32, 4)
end

--- A string, bytes or message field.
---@param text string
function M.bytes(field, text) return varint(field * 8 + 2) .. varint(#text) .. text end

--- A packed field of doubles.
---@param list number[]
function M.doubles(field, list)
  local room = ffi.new("double[?]", #list)
  for i = 1, #list do room[i - 1] = list[i] end
  return M.bytes(field, ffi.string(room, 8 * #list))
end

-- ---- checksums

--- CRC-32 as zip, PNG and gzip have it; `crc` continues one.
---@param text string
---@param crc number?
---@return number 0 .. 2^32 - 1
function M.crc32(text, crc) return tonumber(ffi.C.crc32(crc or 0, text, #text)) end

local castagnoli

local function make_table()
  castagnoli = ffi.new("int32_t[256]")
  for i = 0, 255 do
    local c = i
    for _ = 1, 8 do
      if bit.band(c, 1) == 1 then c = bit.bxor(bit.rshift(c, 1), 0x82F63B78) else c = bit.rshift(c, 1) end
    end
    castagnoli[i] = bit.tobit(c)
  end
end

--- CRC-32C (Castagnoli, RFC 3720 appendix B.4).
---@param text string
---@return number 0 .. 2^32 - 1
function M.crc32c(text)
  if not castagnoli then make_table() end
  local crc, at = -1, ffi.cast("const uint8_t *", text)
  for i = 0, #text - 1 do
    crc = bit.bxor(castagnoli[bit.band(bit.bxor(crc, at[i]), 255)], bit.rshift(crc, 8))
  end
  return bit.bnot(crc) % 4294967296
end

--- The checksum of TFRecord files: rotated right by 15 bits, plus a constant
--- (tensorflow/core/lib/hash/crc32c.h), so that the checksum of data that holds checksums stays
--- one.
function M.masked_crc32c(text)
  local crc = bit.tobit(M.crc32c(text))
  return (bit.ror(crc, 15) % 4294967296 + 0xA282EAD8) % 4294967296
end

return M
