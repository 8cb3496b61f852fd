--- One entry for every row of the op table: how to call it, and a plain Lua reference.  The suite fails for a row without one.
---
--- inputs    shapes and value ranges of the tensor inputs; `broadcast`: shapes for the broadcast layout instead
--- call      calls the op on them
--- ref       POINTWISE: scalars in, scalar out.  Others: nested tables in, nested table(s) out
--- through   rows with a leading underscore have no Lua function: the named row's second derivative (or forward pass) runs them
--- exact     no finite differences (results are not floating, or random)
local tensor = require "accelerate.tensor"
local core = require "accelerate.core"

local C = {}

-- ---- pointwise

local SHAPE = { 3, 4 }
local function range(lo, hi, shape) return { shape = shape or SHAPE, lo = lo, hi = hi } end

local function unary(name, lo, hi, ref)
  C[name] = { inputs = { range(lo, hi) }, call = function(x) return core[name](x) end, ref = ref, pointwise = true }
end
local function binary(name, lo, hi, ref, blo, bhi)
  C[name] = {
    inputs = { range(lo, hi), range(blo or lo, bhi or hi) },
    broadcast = { range(lo, hi, { 3, 1 }), range(blo or lo, bhi or hi, { 2, 1, 4 }) },
    call = function(a, b) return core[name](a, b) end, ref = ref, pointwise = true,
  }
end
local function exact(name) C[name].exact = true end

local function round_even(x)
  local f = math.floor(x)
  local d = x - f
  if d < 0.5 or (d == 0.5 and f % 2 == 0) then return f end
  return f + 1
end

-- erf by its Taylor series: plain, slow, good to 1e-15 within |x| < 3.
local function erf(x)
  local sum, term = x, x
  for n = 1, 80 do
    term = -term * x * x / n
    sum = sum + term / (2 * n + 1)
  end
  return 2 / math.sqrt(math.pi) * sum
end

binary("add", -2, 2, function(a, b) return a + b end)
binary("sub", -2, 2, function(a, b) return a - b end)
binary("mul", -2, 2, function(a, b) return a * b end)
binary("div", -2, 2, function(a, b) return a / b end, 0.5, 2)
binary("pow", 0.5, 2, function(a, b) return a ^ b end, -2, 2)
binary("remainder", -4.93, 5.11, function(a, b) return a - b * math.floor(a / b) end, 1.13, 1.87)
binary("maximum", -2, 2, math.max, -1.93, 2.07)
binary("minimum", -2, 2, math.min, -1.93, 2.07)
unary("neg", -2, 2, function(x) return -x end)
unary("abs", -2, 2.1, math.abs)
unary("sign", -2, 2.1, function(x) return x > 0 and 1 or x < 0 and -1 or 0 end)
unary("square", -2, 2, function(x) return x * x end)
unary("reciprocal", 0.5, 2, function(x) return 1 / x end)
unary("floor", -2, 2.1, math.floor)
unary("ceil", -2, 2.1, math.ceil)
unary("round", -2, 2.1, round_even)
C.clamp = {
  inputs = { range(-2, 2.1) }, call = function(x) return x:clamp { min = -0.5, max = 0.7 } end, pointwise = true,
  ref = function(x) return math.max(-0.5, math.min(0.7, x)) end,
}
unary("exp", -2, 2, math.exp)
unary("expm1", -1, 1, function(x) return math.abs(x) < 1e-5 and x + x * x / 2 or math.exp(x) - 1 end)
unary("log", 0.2, 3, math.log)
unary("log1p", -0.5, 2, function(x) return math.log(1 + x) end)
unary("sqrt", 0.2, 3, math.sqrt)
unary("rsqrt", 0.2, 3, function(x) return 1 / math.sqrt(x) end)
unary("sin", -4, 4, math.sin)
unary("cos", -4, 4, math.cos)
unary("tanh", -2, 2, function(x) return 1 - 2 / (math.exp(2 * x) + 1) end)
unary("sigmoid", -3, 3, function(x) return 1 / (1 + math.exp(-x)) end)
unary("relu", -2, 2.1, function(x) return math.max(x, 0) end)
unary("erf", -2.5, 2.5, erf)
for name, through in pairs { _tanh_backward = "tanh", _sigmoid_backward = "sigmoid", _relu_backward = "relu" } do C[name] = { through = through } end

local function compare(name, ref) binary(name, -2, 2, ref, -2, 2.4); exact(name) end
compare("eq", function(a, b) return a == b end)
compare("ne", function(a, b) return a ~= b end)
compare("lt", function(a, b) return a < b end)
compare("le", function(a, b) return a <= b end)
compare("gt", function(a, b) return a > b end)
compare("ge", function(a, b) return a >= b end)

local function logical(name, ref)
  C[name] = {
    inputs = { range(-2, 2), range(-2, 2) }, exact = true, pointwise = true,
    call = function(a, b) return core[name](a:gt(0), b:gt(0)) end, ref = function(a, b) return ref(a > 0, b > 0) end,
  }
end
logical("logical_and", function(a, b) return a and b end)
logical("logical_or", function(a, b) return a or b end)
logical("logical_xor", function(a, b) return a ~= b end)
C.logical_not = { inputs = { range(-2, 2) }, exact = true, pointwise = true, call = function(x) return x:gt(0):logical_not() end, ref = function(x) return not (x > 0) end }
-- log of a negative number is NaN, and 1 / 0 infinite
C.isnan = { inputs = { range(-2, 2) }, exact = true, pointwise = true, call = function(x) return x:log():isnan() end, ref = function(x) return x < 0 end }
C.isfinite = { inputs = { range(-2, 2) }, exact = true, pointwise = true, call = function(x) return (x / x:gt(0):double()):isfinite() end, ref = function(x) return x > 0 end }
C.where = {
  inputs = { range(-2, 2), range(-2, 2) }, broadcast = { range(-2, 2, { 3, 1 }), range(-2, 2, { 4 }) }, pointwise = true,
  call = function(a, b) return core.where((a.data + b.data):gt(0), a, b) end, ref = function(a, b) return a + b > 0 and a or b end,
}
C.masked_fill = {
  inputs = { range(-2, 2) }, pointwise = true, call = function(x) return x:masked_fill(x.data:gt(0.543), 7) end,
  ref = function(x) return x > 0.543 and 7 or x end,
}

-- ---- copies

unary("clone", -2, 2, function(x) return x end)
C._cast = { inputs = { range(-2, 2) }, pointwise = true, call = function(x) return x:to("float32"):to("float64") end, tolerance = 1e-6, no_differences = true, ref = function(x) return x end }
C._copy = { inputs = { range(-2, 2) }, pointwise = true, call = function(x) return tensor.zeros(x.shape, { dtype = "float64" }):copy_(x) end, ref = function(x) return x end }

-- ---- reductions: plain references over nested tables of two dims

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
local function best(list, better)
  local at = 1
  for i = 2, #list do if better(list[i], list[at]) then at = i end end
  return list[at], at - 1
end
local function greater(a, b) return a > b end
local function less(a, b) return a < b end

C.sum = { inputs = { range(-2, 2) }, call = function(x) return x:sum { dim = 1 }, x:sum() end,
  ref = function(x) return each(columns(x), sum), sum(each(x, sum)) end }
C.mean = { inputs = { range(-2, 2) }, call = function(x) return x:mean { dim = 2, keepdim = true }, x:mean() end,
  ref = function(x) return each(x, function(r) return { sum(r) / #r } end), sum(each(x, sum)) / (#x * #x[1]) end }
local function extreme(name, better)
  C[name] = { inputs = { range(-2, 2) }, call = function(x)
    local values, indices = core[name](x, { dim = 2 })
    return values, indices, core[name](x)
  end, ref = function(x)
    return each(x, function(r) return (best(r, better)) end), each(x, function(r) return (select(2, best(r, better))) end),
      (best(each(x, function(r) return (best(r, better)) end), better))
  end }
  C["arg" .. name] = { inputs = { range(-2, 2) }, exact = true, call = function(x) return core["arg" .. name](x, { dim = 1 }) end,
    ref = function(x) return each(columns(x), function(r) return (select(2, best(r, better))) end) end }
end
extreme("max", greater)
extreme("min", less)
local function truth(name, start, join)
  C[name] = { inputs = { range(-2, 2) }, exact = true, call = function(x) return core[name](x:gt(-1.2), { dim = 2 }) end, ref = function(x)
    return each(x, function(r)
      local t = start
      for _, v in ipairs(r) do t = join(t, v > -1.2) end
      return t
    end)
  end }
end
truth("any", false, function(a, b) return a or b end)
truth("all", true, function(a, b) return a and b end)

-- ---- linear algebra

local function product(a, b)
  local bt = columns(b)
  return each(a, function(row)
    return each(bt, function(col)
      local s = 0
      for k = 1, #row do s = s + row[k] * col[k] end
      return s
    end)
  end)
end
C.mm = { inputs = { range(-1, 1, { 3, 5 }), range(-1, 1, { 5, 4 }) }, call = function(a, b) return core.mm(a, b) end, ref = product }
C.bmm = { inputs = { range(-1, 1, { 2, 3, 5 }), range(-1, 1, { 2, 5, 4 }) }, call = function(a, b) return core.bmm(a, b) end,
  ref = function(a, b) return { product(a[1], b[1]), product(a[2], b[2]) } end }
C.matmul = { inputs = { range(-1, 1, { 2, 3, 5 }), range(-1, 1, { 5, 4 }) },
  call = function(a, b) return a:matmul(b), a[1]:matmul(b:t()[1]), b:t():matmul(a[2][1]) end,
  ref = function(a, b)
    local first = each(b, function(r) return { r[1] } end)
    local vector = each(a[2][1], function(v) return { v } end)
    return { product(a[1], b), product(a[2], b) }, each(product(a[1], first), function(r) return r[1] end),
      each(product(columns(b), vector), function(r) return r[1] end)
  end }
C.linear = { inputs = { range(-1, 1, { 3, 5 }), range(-1, 1, { 4, 5 }), range(-1, 1, { 4 }) },
  call = function(x, w, b) return core.linear(x, w, b) end,
  ref = function(x, w, b)
    local out = product(x, columns(w))
    for _, row in ipairs(out) do for j = 1, #row do row[j] = row[j] + b[j] end end
    return out
  end }

-- ---- softmax and losses

local function softmax(row)
  local s = sum(each(row, math.exp))
  return each(row, function(v) return math.exp(v) / s end)
end
C.softmax = { inputs = { range(-2, 2) }, call = function(x) return x:softmax(2) end, ref = function(x) return each(x, softmax) end }
C.log_softmax = { inputs = { range(-2, 2) }, call = function(x) return x:log_softmax(1) end,
  ref = function(x) return columns(each(columns(x), function(r) return each(softmax(r), math.log) end)) end }
local TARGET = { 2, 0, -100 }
local function losses(x)
  local out = {}
  for i, row in ipairs(x) do out[i] = TARGET[i] < 0 and 0 or -math.log(softmax(row)[TARGET[i] + 1]) end
  return out
end
C.cross_entropy = { inputs = { range(-2, 2) }, call = function(x)
  local target = tensor.tensor(TARGET, { dtype = "int64" })
  return x:cross_entropy(target), x:cross_entropy(target, { reduction = "none" }), x:cross_entropy(target, { reduction = "sum" })
end, ref = function(x) return sum(losses(x)) / 2, losses(x), sum(losses(x)) end }
C._softmax_backward = { through = "softmax" }
C._log_softmax_backward = { through = "log_softmax" }
C._cross_entropy_backward = { through = "cross_entropy" }

-- ---- shape

local function flat(x)
  local out = {}
  for _, row in ipairs(x) do for _, v in ipairs(row) do out[#out + 1] = v end end
  return out
end
local function shaped(name, call, ref) C[name] = { inputs = { range(-2, 2) }, call = call, ref = ref } end
shaped("view", function(x) return x:contiguous():view(2, -1) end, function(x)
  local f = flat(x)
  return { { unpack(f, 1, 6) }, { unpack(f, 7, 12) } }
end)
shaped("reshape", function(x) return x:reshape(-1) end, flat)
shaped("flatten", function(x) return x:unsqueeze(1):flatten { start_dim = 2 } end, function(x) return { flat(x) } end)
shaped("contiguous", function(x) return x:t():contiguous() end, columns)
shaped("t", function(x) return x:t() end, columns)
shaped("permute", function(x) return x:permute(2, 1) end, columns)
shaped("transpose", function(x) return x:transpose(1, -1) end, columns)
shaped("expand", function(x) return x:unsqueeze(1):expand(2, -1, 4) end, function(x) return { x, x } end)
shaped("squeeze", function(x) return x:unsqueeze(2):squeeze(2) end, function(x) return x end)
shaped("unsqueeze", function(x) return x:unsqueeze(-1) end, function(x) return each(x, function(r) return each(r, function(v) return { v } end) end) end)
shaped("select", function(x) return x:select(2, -1) end, function(x) return each(x, function(r) return r[#r] end) end)
shaped("narrow", function(x) return x:narrow(2, 2, 2) end, function(x) return each(x, function(r) return { r[2], r[3] } end) end)
shaped("_slice", function(x) return x[{ {}, { 1, 4, 2 } }] end, function(x) return each(x, function(r) return { r[1], r[3] } end) end)
shaped("diagonal", function(x) return x:diagonal() end, function(x) return { x[1][1], x[2][2], x[3][3] } end)
C._slice_backward = { through = "narrow" }
C._diagonal_backward = { through = "diagonal" }
C.cat = { inputs = { range(-2, 2), range(-2, 2, { 3, 2 }) }, call = function(a, b) return core.cat({ a, b }, 2) end,
  ref = function(a, b)
    local out = {}
    for i = 1, 3 do out[i] = { a[i][1], a[i][2], a[i][3], a[i][4], b[i][1], b[i][2] } end
    return out
  end }
C.stack = { inputs = { range(-2, 2), range(-2, 2) }, call = function(a, b) return core.stack { a, b } end, ref = function(a, b) return { a, b } end }

-- ---- index

local PICK = { 2, 0, 2 }
shaped("index_select", function(x) return x:index_select(2, tensor.tensor(PICK, { dtype = "int64" })) end,
  function(x) return each(x, function(r) return { r[3], r[1], r[3] } end) end)
C._index_select_backward = { through = "index_select" }
shaped("masked_select", function(x) return x:masked_select(x.data:gt(0)) end, function(x)
  local out = {}
  for _, v in ipairs(flat(x)) do if v > 0 then out[#out + 1] = v end end
  return out
end)
C._mask_indices = { through = "masked_select" }

-- ---- random: the mask must be the same in every pass, so each call starts from one seed

C.dropout = { inputs = { range(-2, 2) }, call = function(x) return x:dropout { p = 0.4, generator = tensor.Generator(3) } end,
  ref = false } -- statistics are checked in random_spec
C._dropout_apply = { through = "dropout" }
for name, through in pairs { _uniform = "rand", _normal = "randn", _randint = "randint", _randperm = "randperm", _arange = "arange" } do
  C[name] = { creator = through }
end

return C
