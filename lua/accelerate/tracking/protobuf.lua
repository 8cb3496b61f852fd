--- The wire format of Protocol Buffers (protobuf.dev/programming-guides/encoding): fields as
--- strings of bytes, to be joined into messages. Also the two checksums of tracker files.
local bit = require "bit"
local core = require "accelerate.core"
local ffi = require "ffi"

ffi.cdef [[
unsigned long crc32(unsigned long crc, const char *buf, unsigned int len); /* zlib's */
]]

local char, floor = string.char, math.floor

local M = {}

--- Encodes a whole number as a varint: seven bits a byte, the lowest first. A negative number is
--- encoded as its 64-bit two's complement.
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

--- Returns the eight bytes of a double, little-endian (as all supported processors are).
function M.double_bytes(x)
  f64[0] = x
  return ffi.string(f64, 8)
end

local u32 = ffi.new("uint32_t[1]")

--- Returns four little-endian bytes of an unsigned number, or of the signed form that `bit` gives.
function M.uint32_bytes(n)
  u32[0] = n % 4294967296
  return ffi.string(u32, 4)
end

local u64 = ffi.new("uint64_t[1]")

function M.uint64_bytes(n)
  u64[0] = n
  return ffi.string(u64, 8)
end

--- Encodes an int, enum or bool field.
function M.int(field, n) return varint(field * 8) .. varint(n) end

--- Encodes a double field.
function M.double(field, x) return varint(field * 8 + 1) .. M.double_bytes(x) end

--- Encodes a float field, rounded to float32.
function M.float(field, x)
  f32[0] = x
  return varint(field * 8 + 5) .. ffi.string(f32, 4)
end

--- Encodes a string, bytes or message field.
---@param text string
function M.bytes(field, text) return varint(field * 8 + 2) .. varint(#text) .. text end

--- Encodes a packed field of doubles.
---@param list number[]
function M.doubles(field, list)
  local room = ffi.new("double[?]", #list)
  for i = 1, #list do room[i - 1] = list[i] end
  return M.bytes(field, ffi.string(room, 8 * #list))
end

-- ---- checksums

--- Returns the CRC-32 of zip, PNG and gzip. `crc` continues an earlier one.
---@param text string
---@param crc number?
---@return number 0 .. 2^32 - 1
function M.crc32(text, crc) return tonumber(ffi.C.crc32(crc or 0, text, #text)) end

--- Returns the CRC-32C (Castagnoli, RFC 3720 appendix B.4).
---@type fun(text: string): number 0 .. 2^32 - 1
M.crc32c = core._crc32c

--- Returns the checksum of TFRecord files: CRC-32C rotated right by 15 bits, plus a constant
--- (tensorflow/core/lib/hash/crc32c.h). The masking keeps it a checksum when the data itself holds
--- checksums.
function M.masked_crc32c(text)
  local crc = bit.tobit(M.crc32c(text))
  return (bit.ror(crc, 15) % 4294967296 + 0xA282EAD8) % 4294967296
end

return M
