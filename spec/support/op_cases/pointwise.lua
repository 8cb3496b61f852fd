--- Cases of the rows in host/core/ops/pointwise.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, unary, binary, exact, sum = H.range, H.unary, H.binary, H.exact, H.sum

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
