--- Cases of the rows in host/core/ops/encoded.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C

local Q8_0 = core._encodings().Q8_0.number
local ROWS, COLS = 3, 32

-- Rows of one block: the scale 2^-k as a half number, and codes from -16 on.
local CODES, MATRIX = {}, {}
for r = 1, ROWS do
  CODES[#CODES + 1], CODES[#CODES + 2] = 0, 0x3c - 4 * r
  MATRIX[r] = {}
  for c = 1, COLS do
    local code = (7 * c + 5 * r) % 33 - 16
    CODES[#CODES + 1], MATRIX[r][c] = code % 256, code * 2 ^ -r
  end
end

local function codes_for(x) return core.tensor(CODES, { dtype = "uint8", device = x.device }) end

C._linear_encoded = { inputs = { H.range(-2, 2, { 4, COLS }), H.range(-2, 2, { ROWS }) },
  call = function(x, bias)
    return core._row "_linear_encoded"(x, codes_for(x), nil, nil, bias, Q8_0, ROWS, COLS, 32)
  end,
  ref = function(x, bias)
    local out = {}
    for i, row in ipairs(x) do
      out[i] = {}
      for r = 1, ROWS do
        local sum = bias[r]
        for c = 1, COLS do sum = sum + row[c] * MATRIX[r][c] end
        out[i][r] = sum
      end
    end
    return out
  end }
C._decode = { spec = "spec/quantised/encodings_spec.lua" }
C._encode = { spec = "spec/quantised/encodings_spec.lua" }
