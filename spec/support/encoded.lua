--- Matrices in every encoding, for specs of devices.
local core = require "accelerate.core"
local encodings = require "accelerate.quantisation.encodings"

local M = {}

--- Returns the names of all encodings of matrices, sorted.
function M.names()
  local names = {}
  for name in pairs(encodings.list) do
    if name ~= "dynamic8" then names[#names + 1] = name end -- of scales
  end
  table.sort(names)
  return names
end

--- Returns a random matrix of 6 rows.
---@return accelerate.EncodedMatrix
function M.matrix(name, cols)
  local info = encodings.list[name]
  if info.block > 2 then
    local codes = core.randint(0, 50, { 6, cols / info.block * info.bytes }):to "uint8"
    return { name = name, rows = 6, cols = cols, size = 32, codes = codes }
  elseif name == "affine4" or name == "affine8" then
    return { name = name, rows = 6, cols = cols, size = 32,
      codes = core.randint(0, 256, { 6, cols / info.block }):to "uint8",
      scales = core.rand(6, cols / 32), more = core.randint(0, 16, { 6, cols / 32 }):to "uint8" }
  elseif name == "fp8" or name == "fp8_rows" then
    return { name = name, rows = 6, cols = cols, size = 128,
      codes = core.randint(0, 120, { 6, cols }):to "uint8",
      scales = name == "fp8" and core.rand(1, math.ceil(cols / 128)) or core.rand(6) }
  end
  return encodings.encode(name, core.randn(6, cols), 64, name == "nf4")
end

--- Returns an encoded matrix whose parts are on a device.
function M.moved(e, device)
  local copy = {}
  for key, value in pairs(e) do copy[key] = core.is_tensor(value) and value:to(device) or value end
  return copy
end

--- Returns the product of x and an encoded matrix's transpose.
function M.product(x, e, bias, threshold)
  return encodings._linear(x, e.codes, e.scales, e.more, bias, encodings.list[e.name].number, e.rows, e.cols,
    e.size, threshold)
end

return M
