--- Arguments of ops that random values would hardly ever fit: row name -> function(c, x) that
--- returns them.  `c` draws (c:int(n), c:of(list), c:once_in(n)); x is any tensor.  Now and then
--- something does not fit, on purpose.
local tensor = require "accelerate.tensor"

local A = {}

local function dim_of(c, x)
  local n = math.max(x.ndim, 1)
  local d = c:int(n)
  return d, c:once_in(3) and d - n - 1 or d
end

local function size(x, d) return x.ndim > 0 and x.shape[d] or 1 end

local function ids(c, below, shape)
  local n = 1
  for _, s in ipairs(shape) do n = n * s end
  if below < 1 and n > 0 then return tensor.zeros(shape, { dtype = "int64" }) end
  local t = tensor.randint(0, math.max(below, 1), shape)
  if c:once_in(15) then t = t + c:of { 1, -1, 2 ^ 40 } end
  return t
end

-- An index that picks from x along d, at times shorter than x elsewhere, or expanded.
local function picks(c, x, d)
  local shape = {}
  for k = 1, x.ndim do
    shape[k] = k == d and c:int(6) - 1 or c:once_in(3) and math.min(c:int(4), x.shape[k]) or x.shape[k]
  end
  if c:once_in(4) and x.ndim > 0 then
    local k = c:int(x.ndim)
    local whole = shape[k]
    if whole > 0 then
      shape[k] = 1
      local t = ids(c, size(x, d), shape)
      shape[k] = whole
      return t:expand(shape)
    end
  end
  return ids(c, size(x, d), shape)
end

local function like(c, x, shape)
  local t = tensor.randn(shape):to(x.dtype)
  if x.dtype:find("float", 1, true) and c:once_in(2) then t.requires_grad = true end
  return t
end

local function number(c) return c:of { 0, 1, -2, 0.5, 7 } end

function A.gather(c, x)
  local d, shown = dim_of(c, x)
  return x, shown, picks(c, x, d)
end
function A.take_along_dim(c, x)
  local d, shown = dim_of(c, x)
  if c:once_in(4) then return x, ids(c, x:numel(), { c:int(5) - 1 }) end
  return x, picks(c, x, d), shown
end
function A.scatter(c, x)
  local d, shown = dim_of(c, x)
  local index = picks(c, x, d)
  return x, shown, index, c:once_in(2) and number(c) or like(c, x, index.shape)
end
function A.scatter_add(c, x)
  local d, shown = dim_of(c, x)
  local index = picks(c, x, d)
  return x, shown, index, like(c, x, index.shape)
end

local function slices(c, x, d)
  local index = ids(c, size(x, d), { c:int(5) - 1 })
  local shape = x.shape
  if x.ndim > 0 then shape[d] = index:numel() end
  return index, like(c, x, shape)
end
function A.index_add(c, x)
  local d, shown = dim_of(c, x)
  local index, source = slices(c, x, d)
  return x, shown, index, source, c:once_in(2) and number(c) or nil
end
function A.index_copy(c, x)
  local d, shown = dim_of(c, x)
  return x, shown, slices(c, x, d)
end
function A.index_fill(c, x)
  local d, shown = dim_of(c, x)
  return x, shown, ids(c, size(x, d), { c:int(4) - 1 }), number(c)
end
function A.masked_scatter(c, x)
  return x, tensor.randn(x.shape):gt(0), like(c, x, { x:numel() + c:int(3) - 1 })
end

function A.embedding(c)
  local rows, width = c:int(9), c:int(20)
  local w = tensor.randn(rows, width):to(c:of { "float32", "float64", "bfloat16", "int64" })
  if w.dtype ~= "int64" then w.requires_grad = true end
  return ids(c, rows, c:of { { 3 }, {}, { 2, 3 }, { 0 }, { 40 } }), w, c:once_in(2) and c:int(rows) - 1 or nil
end
function A.one_hot(c) return ids(c, 5, c:of { { 3 }, {}, { 2, 3 }, { 0, 2 } }), c:once_in(2) and 5 or nil end
function A.bincount(c)
  local x = ids(c, 9, { c:int(20) })
  return x, c:once_in(2) and tensor.randn(x.shape) or nil, c:once_in(2) and c:int(12) or nil
end
function A.searchsorted(c, x)
  local s = tensor.randn(c:int(9) - 1):sort()
  return s, (x:is_complex() and x:real() or x):to(c:of { "float32", "float64", "int64" }), c:once_in(2)
end
function A.bucketize(c, x) return x, (tensor.randn(c:int(5)):sort()), c:once_in(2) end
function A.topk(c, x)
  local d, shown = dim_of(c, x)
  return x, c:int(size(x, d) + 1) - 1, shown, c:once_in(2)
end
function A.kthvalue(c, x)
  local d, shown = dim_of(c, x)
  return x, c:int(math.max(size(x, d), 1)), shown, c:once_in(2)
end

function A.split(c, x)
  local d, shown = dim_of(c, x)
  local n = size(x, d)
  if c:once_in(2) then
    return x, c:int(math.min(math.max(n, 1), 40)) + (n > 100 and math.floor(n / 40) or 0), shown
  end
  local sizes, left = {}, n
  while left > 0 and #sizes < 12 do
    local s = #sizes == 11 and left or c:int(left + 1) - 1
    sizes[#sizes + 1] = s
    left = left - s
  end
  if c:once_in(15) then sizes[#sizes + 1] = 1 end
  return x, sizes, shown
end
function A.chunk(c, x)
  local _, shown = dim_of(c, x)
  return x, c:int(7), shown
end

function A.tile(c, x)
  local repeats = {}
  for k = 1, math.min(c:int(x.ndim + 2) - 1, 8) do repeats[k] = c:of { 1, 1, 2, 3, 0 } end
  return x, repeats
end
function A.repeat_interleave(c, x)
  local d, shown = dim_of(c, x)
  if c:once_in(3) then return x, c:int(4) - 1 end
  return x, c:once_in(2) and c:int(4) - 1 or ids(c, 3, { size(x, d) }), shown
end
function A.pad(c, x)
  local margins = {}
  for k = 1, 2 * math.min(c:int(3) - 1, x.ndim) do margins[k] = c:of { 0, 0, 1, 2, -1 } end
  return x, margins, c:of { "constant", "constant", "reflect", "replicate", "circular" }
end
function A.roll(c, x)
  if c:once_in(4) or x.ndim == 0 then return x, c:int(9) - 5 end
  local shifts, dims = {}, {}
  for k = 1, c:int(3) do shifts[k], dims[k] = c:int(9) - 5, c:int(x.ndim) end
  return x, shifts, dims
end
function A.flip(c, x)
  local dims = {}
  for d = 1, x.ndim do if c:once_in(2) then dims[#dims + 1] = c:once_in(2) and d or d - x.ndim - 1 end end
  return x, dims
end
function A.movedim(c, x)
  local from, to = {}, {}
  for k = 1, math.min(c:int(2), x.ndim) do from[k], to[k] = c:once_in(2) and k or x.ndim + 1 - k, k end
  return x, from, to
end
function A.unflatten(c, x)
  local d, shown = dim_of(c, x)
  local n = size(x, d)
  for f = 2, 5 do if n % f == 0 then return x, shown, { f, c:once_in(2) and -1 or n / f } end end
  return x, shown, { 1, n }
end
function A.diagonal(c, x) return x, c:int(5) - 3, c:int(math.max(x.ndim, 1)), -c:int(math.max(x.ndim, 1)) end
local function other(c, x)
  local shape = x.shape
  if c:once_in(3) and #shape < 8 then table.insert(shape, 1, 1) end
  return x, tensor.ones(shape)
end
A.expand_as, A.view_as, A.reshape_as = other, other, other
function A.meshgrid(c)
  local list = {}
  for k = 1, c:int(3) do list[k] = tensor.randn(c:int(5) - 1) end
  return list, { indexing = c:of { "ij", "xy" } }
end

-- ---- products

local function factors(c, ...)
  local dtype = c:of { "float32", "float32", "float64", "bfloat16", "int64" }
  local out = {}
  for k, shape in ipairs { ... } do
    local t = tensor.randn(shape):to(dtype)
    if dtype ~= "int64" and c:once_in(2) then t.requires_grad = true end
    out[k] = t
  end
  return unpack(out)
end
local function scales(c) return { beta = c:of { 1, 0, 2 }, alpha = c:of { 1, -1, 3 } } end

function A.addmm(c)
  local m, k, n = c:int(5) - 1, c:int(5) - 1, c:int(5) - 1
  local i, a, b = factors(c, c:of { { n }, { m, n }, { m, 1 }, { 1 } }, { m, k }, { k, n })
  return i, a, b, scales(c)
end
function A.baddbmm(c)
  local s, m, k, n = c:int(3), c:int(5) - 1, c:int(5) - 1, c:int(5) - 1
  local i, a, b = factors(c, c:of { { n }, { s, m, n }, { m, 1 } }, { s, m, k }, { s, k, n })
  return i, a, b, scales(c)
end
function A.addmv(c)
  local m, k = c:int(5) - 1, c:int(5) - 1
  local i, a, v = factors(c, { m }, { m, k }, { k })
  return i, a, v, scales(c)
end
function A.mv(c)
  local m, k = c:int(5) - 1, c:int(5) - 1
  return factors(c, { m, k }, { k })
end
function A.dot(c)
  local k = c:int(70) - 1
  return factors(c, { k }, { k })
end
function A.outer(c) return factors(c, { c:int(5) - 1 }, { c:int(5) }) end
function A.trace(c) return factors(c, { c:int(5) - 1, c:int(5) }) end
function A.tensordot(c)
  local k, l = c:int(4) - 1, c:int(4)
  local a, b = factors(c, { c:int(3), k, l }, { k, l, c:int(3) })
  return a, b
end

-- ---- what is no row

local EQUATIONS = {
  "ij,jk->ik", "bij,bjk->bik", "bij,bkj->kbi", "ij,ij->i", "i,j->ji", "ij->", "ii->i", "iij->j",
  "...i,ij->...j", "ij,jk,ki->", "bi,bi->b", "ij->ji", "abc,cd->dba",
}
function A._einsum(c)
  local equation = c:of(EQUATIONS)
  local sizes, operands = {}, {}
  local dtype = c:of { "float32", "float64", "int64" }
  for term in equation:match("^[^-]*"):gmatch("[^,]+") do
    local shape = {}
    if term:find("...", 1, true) then for _ = 1, c:int(3) - 1 do shape[#shape + 1] = c:int(3) end end
    for label in term:gmatch("%a") do
      sizes[label] = sizes[label] or c:int(5) - (c:once_in(5) and 1 or 0)
      shape[#shape + 1] = c:once_in(12) and 1 or sizes[label]
    end
    local t = tensor.randn(shape):to(dtype)
    if dtype ~= "int64" and c:once_in(2) then t.requires_grad = true end
    operands[#operands + 1] = t
  end
  if c:once_in(15) then table.remove(operands) end
  return equation, unpack(operands)
end

for name, fitting in next, require "spec.support.fuzz_layers" do A[name] = fitting end

return A
