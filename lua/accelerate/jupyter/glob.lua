--- Patterns as those of file names: "*" stands for any text, "?" for one character.
---
--- The time is in proportion to the text, whatever the pattern: bit s of the state is set while the
--- first s parts of the pattern fit what was read so far, and each byte moves all bits at once.
local bit = require "bit"
local ffi = require "ffi"

local M = {}

--- Bytes of a pattern; 32 of them are one word of the state.
M.LONGEST = 1024

local STAR, ANY = ("*?"):byte(1, 2)
local function continues(byte) return byte >= 128 and byte < 192 end

-- Which bits a byte moves up, and which it leaves; and the number of the last bit.
local function compile(pattern, words)
  local moves, stays = ffi.new("int32_t[?]", 256 * words), ffi.new("int32_t[?]", 256 * words)
  local state = 0
  local function set(bits, byte)
    local at = byte * words + bit.rshift(state, 5)
    bits[at] = bit.bor(bits[at], bit.lshift(1, bit.band(state, 31)))
  end
  for i = 1, #pattern do
    local part = pattern:byte(i)
    local one = part ~= STAR and part ~= ANY
    if part ~= STAR then state = state + 1 end
    for byte = one and part or 0, one and part or 255 do
      set((part == STAR or part == ANY and continues(byte)) and stays or moves, byte)
    end
  end
  return moves, stays, state
end

--- Returns what says whether a text as a whole fits the pattern.
---@param pattern string at most M.LONGEST bytes
---@return fun(text: string): boolean
function M.matcher(pattern)
  local words = bit.rshift(#pattern, 5) + 1
  local moves, stays, last = compile(pattern, words)
  local state = ffi.new("int32_t[?]", words)
  return function(text)
    ffi.fill(state, 4 * words)
    state[0] = 1
    for i = 1, #text do
      local at, carry = text:byte(i) * words, 0
      for w = 0, words - 1 do
        local former = state[w]
        state[w] = bit.bor(bit.band(bit.bor(bit.lshift(former, 1), carry), moves[at + w]),
          bit.band(former, stays[at + w]))
        carry = bit.rshift(former, 31)
      end
    end
    return bit.band(state[bit.rshift(last, 5)], bit.lshift(1, bit.band(last, 31))) ~= 0
  end
end

return M
