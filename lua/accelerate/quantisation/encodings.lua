--- Matrices that rest in fewer bits: the rows of the op table that read and write them, by the name
--- of the encoding (host/core/encodings.def).

local core = require "accelerate.core"

local encode, decode, linear = core._row "_encode", core._row "_decode", core._row "_linear_encoded"

local M = { list = core._encodings() }

--- Values that share a scale where a format does not say.
M.SIZE = 64

---@class accelerate.EncodedMatrix
---@field name string of the encoding
---@field rows integer
---@field cols integer
---@field size integer values that share a scale, a power of two
---@field codes accelerate.Tensor uint8
---@field scales accelerate.Tensor? float32, or uint8 with `more`
---@field more accelerate.Tensor?

--- Returns the parts of a matrix in "nf4", "fp4" or "int8": bitsandbytes' bits.
---@param name string
---@param matrix accelerate.Tensor (rows, cols), a floating type
---@param size? integer default 64
---@param doubled? boolean nf4, fp4: the scales are encoded, too
---@return accelerate.EncodedMatrix
function M.encode(name, matrix, size, doubled)
  local number = M.list[name].number
  local codes, scales = encode(matrix:detach(), number, size or M.SIZE)
  local more
  if doubled then scales, more = encode(scales, M.list.dynamic8.number, M.SIZE) end
  return { name = name, rows = matrix:size(1), cols = matrix:size(2), size = size or M.SIZE, codes = codes,
    scales = scales, more = more }
end

--- Returns the numbers of an encoded matrix.
---@param e accelerate.EncodedMatrix
---@param dtype? string default "float32"
---@return accelerate.Tensor (rows, cols)
function M.decode(e, dtype)
  return decode(e.codes, e.scales, e.more, M.list[e.name].number, e.rows, e.cols, e.size, dtype or "float32")
end

M._linear = linear

return M
