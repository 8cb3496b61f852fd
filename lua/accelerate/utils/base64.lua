--- Bytes as printable text, and back (RFC 4648, section 4).
local M = {}

local ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

local LETTERS, DIGITS = {}, {}
for i = 1, 64 do
  LETTERS[i - 1] = ALPHABET:sub(i, i)
  DIGITS[ALPHABET:byte(i)] = i - 1
end

---@param bytes string
---@return string
function M.encode(bytes)
  local out = {}
  for i = 1, #bytes, 3 do
    local a, b, c = bytes:byte(i, i + 2)
    local n = a * 65536 + (b or 0) * 256 + (c or 0)
    out[#out + 1] = LETTERS[math.floor(n / 262144)] .. LETTERS[math.floor(n / 4096) % 64] ..
      (b and LETTERS[math.floor(n / 64) % 64] or "=") .. (c and LETTERS[n % 64] or "=")
  end
  return table.concat(out)
end

--- Returns the bytes, or nil when the text is no base64. White space is left out.
---@param text string
---@return string?
function M.decode(text)
  text = text:gsub("%s", "")
  if #text % 4 ~= 0 then return nil end
  local out, size = {}, #text - (text:sub(-2) == "==" and 2 or text:sub(-1) == "=" and 1 or 0)
  for i = 1, size, 4 do
    local a, b, c, d = text:byte(i, math.min(i + 3, size))
    a, b, c, d = DIGITS[a], DIGITS[b or 65], DIGITS[c or 65], DIGITS[d or 65]
    if not (a and b and c and d) then return nil end
    local bits = ((a * 64 + b) * 64 + c) * 64 + d
    out[#out + 1] = string.char(math.floor(bits / 65536), math.floor(bits / 256) % 256, bits % 256)
  end
  return (table.concat(out):sub(1, math.floor(size * 3 / 4)))
end

return M
