--- What the cases of the op table are written with: value ranges, registration, plain references
--- over nested tables.
local core = require "accelerate.core"

local C = {}  -- every case, by the row's name
local H = { C = C }

local SHAPE = { 3, 4 }
local function range(lo, hi, shape) return { shape = shape or SHAPE, lo = lo, hi = hi } end

local function unary(name, lo, hi, ref)
  C[name] = { inputs = { range(lo, hi) }, call = function(x) return core[name](x) end, ref = ref,
    pointwise = true }
end

local function binary(name, lo, hi, ref, blo, bhi)
  C[name] = {
    inputs = { range(lo, hi), range(blo or lo, bhi or hi) },
    broadcast = { range(lo, hi, { 3, 1 }), range(blo or lo, bhi or hi, { 2, 1, 4 }) },
    call = function(a, b) return core[name](a, b) end, ref = ref, pointwise = true,
  }
end

local function exact(name) C[name].exact = true end

local function columns(x)
  local out = {}
  for j = 1, #x[1] do
    out[j] = {}
    for i = 1, #x do out[j][i] = x[i][j] end
  end
  return out
end

local function each(list, f)
  local out = {}
  for i, v in ipairs(list) do out[i] = f(v) end
  return out
end

local function sum(list)
  local s = 0
  for _, v in ipairs(list) do s = s + v end
  return s
end

local function flat(x)
  local out = {}
  for _, row in ipairs(x) do for _, v in ipairs(row) do out[#out + 1] = v end end
  return out
end

local function shaped(name, call, ref) C[name] = { inputs = { range(-2, 2) }, call = call, ref = ref } end

--- The sums of the elements of two nested tables.
local function plus(a, b)
  if type(a) == "number" then return a + b end
  local out = {}
  for i, v in ipairs(a) do out[i] = plus(v, b[i]) end
  return out
end

H.plus = plus
H.range = range
H.unary = unary
H.binary = binary
H.exact = exact
H.columns = columns
H.each = each
H.sum = sum
H.flat = flat
H.shaped = shaped

--- A tensor of the picked positions, int64.
function H.int64(values) return core.tensor(values, { dtype = "int64" }) end

return H
