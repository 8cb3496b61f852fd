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

--- Returns a random matrix. Only encodings of one code or two in a block take any number of
--- columns.
---@param rows? integer default 6
---@return accelerate.EncodedMatrix
function M.matrix(name, cols, rows)
  rows = rows or 6
  local info = encodings.list[name]
  local function codes(least, most)
    local n = math.ceil(rows * cols / info.block) * info.bytes
    local list = core.randint(least, most, { n }):to "uint8"
    return n % rows == 0 and list:view(rows, n / rows) or list
  end
  if info.block > 2 then
    return { name = name, rows = rows, cols = cols, size = 32, codes = codes(0, 50) }
  elseif name == "affine4" or name == "affine8" then
    local groups = math.ceil(cols / 32)
    return { name = name, rows = rows, cols = cols, size = 32, codes = codes(0, 256),
      scales = core.rand(rows, groups), more = core.randint(0, 16, { rows, groups }):to "uint8" }
  elseif name == "fp8" or name == "fp8_rows" then
    local scales = name == "fp8" and core.rand(math.ceil(rows / 128), math.ceil(cols / 128))
      or core.rand(rows)
    return { name = name, rows = rows, cols = cols, size = 128, codes = codes(0, 120), scales = scales }
  end
  return encodings.encode(name, core.randn(rows, cols), 64, name == "nf4")
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
