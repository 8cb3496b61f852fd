--- SHA-256 (FIPS 180-4), for files that are recorded with their digest.
local bit = require "bit"
local ffi = require "ffi"

local band, bxor, bnot, ror, rshift, tobit = bit.band, bit.bxor, bit.bnot, bit.ror, bit.rshift, bit.tobit

local M = {}

local constants

--- Makes the constants: the first 32 bits of the fractional parts of the cube roots of the first 64
--- primes.
local function make_constants()
  constants = ffi.new("int32_t[64]")
  local count, n = 0, 2
  while count < 64 do
    local prime = true
    for d = 2, math.floor(math.sqrt(n)) do
      if n % d == 0 then
        prime = false
        break
      end
    end
    if prime then
      local root = n ^ (1 / 3)
      -- Newton's iteration, to the last bit of a double
      for _ = 1, 3 do root = root - (root * root * root - n) / (3 * root * root) end
      constants[count] = tobit(math.floor(root % 1 * 4294967296))
      count = count + 1
    end
    n = n + 1
  end
end

local words, state = ffi.new("int32_t[64]"), ffi.new("int32_t[8]")

local function block(p)
  local w = words
  for i = 0, 15 do
    w[i] = bit.bor(bit.lshift(p[4 * i], 24), bit.lshift(p[4 * i + 1], 16), bit.lshift(p[4 * i + 2], 8),
      p[4 * i + 3])
  end
  for i = 16, 63 do
    local x, y = w[i - 15], w[i - 2]
    local s0 = bxor(ror(x, 7), ror(x, 18), rshift(x, 3))
    local s1 = bxor(ror(y, 17), ror(y, 19), rshift(y, 10))
    w[i] = tobit(w[i - 16] + s0 + w[i - 7] + s1)
  end
  local a, b, c, d, e, f, g, h = state[0], state[1], state[2], state[3], state[4], state[5], state[6],
    state[7]
  for i = 0, 63 do
    local t1 = tobit(h + bxor(ror(e, 6), ror(e, 11), ror(e, 25)) + bxor(band(e, f),
      band(bnot(e), g)) + constants[i] + w[i])
    local t2 = tobit(bxor(ror(a, 2), ror(a, 13), ror(a, 22)) + bxor(band(a, b), band(a, c), band(b, c)))
    h, g, f, e, d, c, b, a = g, f, e, tobit(d + t1), c, b, a, tobit(t1 + t2)
  end
  local now = { a, b, c, d, e, f, g, h }
  for i = 0, 7 do state[i] = tobit(state[i] + now[i + 1]) end
end

local START = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
  0x5be0cd19 }

--- Returns the digest in hexadecimal.
---@param text string
---@return string
function M.sha256(text)
  if not constants then make_constants() end
  for i = 0, 7 do state[i] = tobit(START[i + 1]) end
  local bits = #text * 8
  local padded = text .. "\128" .. ("\0"):rep((55 - #text) % 64) ..
    string.char(0, 0, math.floor(bits / 2 ^ 40) % 256, math.floor(bits / 2 ^ 32) % 256,
    math.floor(bits / 2 ^ 24) % 256,
      math.floor(bits / 65536) % 256, math.floor(bits / 256) % 256, bits % 256)
  local bytes = ffi.cast("const uint8_t *", padded)
  for at = 0, #padded - 64, 64 do block(bytes + at) end
  local hex = {}
  for i = 0, 7 do hex[i + 1] = bit.tohex(state[i]) end
  return table.concat(hex)
end

return M
