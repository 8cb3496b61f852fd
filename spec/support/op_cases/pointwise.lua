--- Cases of the rows in host/core/ops/pointwise.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, unary, binary, exact = H.range, H.unary, H.binary, H.exact

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
C._clamp_tensor = {
  inputs = { range(-2, 2.1, { 2, 4 }), range(-1.13, 0.2, { 4 }), range(0.21, 1.7, { 2, 1 }) },
  call = function(x, lo, hi)
  return x:clamp(lo, hi), x:clamp { max = hi }
end,
}
C.clamp = {
  inplace = function(x) return x:clamp_ { min = -0.5, max = 0.7 } end,
  inputs = { range(-2, 2.1) }, call = function(x)
    return x:clamp { min = -0.5, max = 0.7 }
  end, pointwise = true,
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
for name, through in pairs { _tanh_backward = "tanh", _sigmoid_backward = "sigmoid",
  _relu_backward = "relu" } do
  C[name] = { through = through }
end

-- ---- more arithmetic and functions
local function trunc(x) return x < 0 and math.ceil(x) or math.floor(x) end
binary("fmod", -4.93, 5.11, function(a, b) return a - b * trunc(a / b) end, 1.13, 1.87)
binary("floor_divide", -4.93, 5.11, function(a, b) return math.floor(a / b) end, 1.13, 1.87)
exact("floor_divide")
unary("trunc", -2, 2.1, trunc)
unary("frac", -2, 2.1, function(x) return x - trunc(x) end)
local function ternary(name, call, inplace, ref, lo)
  C[name] = {
    inputs = { range(-2, 2), range(-2, 2), range(lo or -2, 2) }, call = call, inplace = inplace, ref = ref,
    pointwise = true,
    broadcast = { range(-2, 2, { 2, 3, 4 }), range(-2, 2, { 3, 1 }), range(lo or -2, 2, { 2, 1, 4 }) },
  }
end
ternary("addcmul", function(x, a, b) return x:addcmul(a, b, { value = 0.7 }) end,
  function(x, a, b) return x:addcmul_(a, b, 0.7) end,
  function(x, a, b) return x + 0.7 * a * b end)
ternary("addcdiv", function(x, a, b) return x:addcdiv(a, b, { value = -0.4 }) end,
  function(x, a, b) return x:addcdiv_(a, b, -0.4) end,
  function(x, a, b) return x - 0.4 * a / b end, 0.5)
ternary("lerp", function(x, a, b) return core.lerp(x, a, b) end, function(x, a, b) return x:lerp_(a, b) end,
  function(x, a, b) return x + b * (a - x) end)
unary("exp2", -2, 2, function(x) return 2 ^ x end)
unary("log2", 0.2, 3, function(x) return math.log(x) / math.log(2) end)
unary("log10", 0.2, 3, math.log10)
unary("tan", -1.2, 1.2, math.tan)
unary("asin", -0.9, 0.9, math.asin)
unary("acos", -0.9, 0.9, math.acos)
unary("atan", -3, 3, math.atan)
binary("atan2", -2, 2.3, math.atan2, 0.2, 2.1)
unary("sinh", -2, 2, math.sinh)
unary("cosh", -2, 2, math.cosh)
unary("asinh", -3, 3, function(x) return math.log(x + math.sqrt(x * x + 1)) end)
unary("acosh", 1.2, 4, function(x) return math.log(x + math.sqrt(x * x - 1)) end)
unary("atanh", -0.8, 0.8, function(x) return 0.5 * math.log((1 + x) / (1 - x)) end)
unary("erfc", -2.5, 2.5, function(x) return 1 - erf(x) end)
-- Stirling's series at x + 12, through the recurrences, and Newton's method: plain and slow.
local function lgamma(x)
  local product = 1
  for k = 0, 11 do product = product * (x + k) end
  local z = x + 12
  return (z - 0.5) * math.log(z) - z + math.log(2 * math.pi) / 2 + 1 / (12 * z) - 1 / (360 * z ^ 3)
    + 1 / (1260 * z ^ 5) - 1 / (1680 * z ^ 7) - math.log(math.abs(product))
end
local function digamma(x)
  local z, sum = x + 12, 0
  for k = 0, 11 do sum = sum + 1 / (x + k) end
  return math.log(z) - 1 / (2 * z) - 1 / (12 * z ^ 2) + 1 / (120 * z ^ 4) - 1 / (252 * z ^ 6) + 1 / (
    240 * z ^ 8) - sum
end
local function erfinv(x)
  local y = 0
  for _ = 1, 60 do y = y - (erf(y) - x) * math.sqrt(math.pi) / 2 * math.exp(y * y) end
  return y
end
unary("erfinv", -0.9, 0.9, erfinv)
unary("lgamma", -1.9, 2.7, lgamma)
unary("digamma", 0.3, 4, digamma)
local polygamma = core._row "_polygamma"
C._polygamma = { inputs = { range(0.4, 4) }, pointwise = true,
  call = function(x) return polygamma(x, 1) + polygamma(x, 2) end,
  ref = function(x) -- the sums of 1 / (x + k)^2 and of -2 / (x + k)^3, their ends by integrals
    local sum, last = 0, 40
    for k = 0, last - 1 do sum = sum + (x + k) ^ -2 - 2 * (x + k) ^ -3 end
    local z = x + last
    return sum + 1 / z + 1 / (2 * z ^ 2) + 1 / (6 * z ^ 3) - 1 / (30 * z ^ 5)
      - 1 / z ^ 2 - 1 / z ^ 3 - 1 / (2 * z ^ 4) + 1 / (6 * z ^ 6)
  end }
binary("logaddexp", -3, 3, function(a, b) return math.log(math.exp(a) + math.exp(b)) end, -2.9, 3.1)
binary("xlogy", -2, 2, function(a, b) return a * math.log(b) end, 0.3, 2)
binary("hypot", -2, 2, function(a, b) return math.sqrt(a * a + b * b) end, 0.3, 2)
C.nan_to_num = { inputs = { range(-2, 2) }, pointwise = true,
  call = function(x) return (1 / x:clamp { min = 0 }):nan_to_num { posinf = 3 } end,
  no_inplace = true, no_differences = true,
  ref = function(x) return x > 0 and 1 / x or 3 end }

-- ---- activations
local function sigmoid(x) return 1 / (1 + math.exp(-x)) end
local function tanh(x) return 1 - 2 / (math.exp(2 * x) + 1) end
local function activation(name, ref, lo, hi) unary(name, lo or -4, hi or 4.1, ref) end
-- with options, given by name and, in place, by position
local function with(name, options, positions, ref)
  C[name] = { inputs = { range(-4, 4.1) }, pointwise = true,
    call = function(x) return core[name](x, options) end,
    inplace = function(x) return x[name .. "_"](x, unpack(positions)) end, ref = ref }
end
local function gelu_tanh(x) return 0.5 * x * (1 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ^ 3))) end
C.gelu = { inputs = { range(-4, 4.1) }, pointwise = true,
  call = function(x) return core.gelu(x) + 2 * core.gelu(x, { approximate = "tanh" }) end,
  inplace = function(x) local y = x:clone() return x:gelu_():add_(2 * y:gelu_("tanh")) end,
  ref = function(x) return 0.5 * x * (1 + erf(x / math.sqrt(2))) + 2 * gelu_tanh(x) end }
activation("silu", function(x) return x * sigmoid(x) end)
activation("mish", function(x) return x * tanh(math.log(1 + math.exp(x))) end)
activation("selu",
  function(x) return 1.0507009873554804934 * (x > 0 and x or 1.6732632423543772848 * (math.exp(x) - 1)) end)
activation("logsigmoid", function(x) return math.log(sigmoid(x)) end)
activation("relu6", function(x) return math.max(0, math.min(6, x)) end, -3, 9.2)
activation("hardsigmoid", function(x) return math.max(0, math.min(1, x / 6 + 0.5)) end)
activation("hardswish", function(x) return x * math.max(0, math.min(1, x / 6 + 0.5)) end)
activation("softsign", function(x) return x / (1 + math.abs(x)) end)
activation("tanhshrink", function(x) return x - tanh(x) end)
with("leaky_relu", { negative_slope = 0.2 }, { 0.2 }, function(x) return x > 0 and x or 0.2 * x end)
with("elu", { alpha = 1.3 }, { 1.3 }, function(x) return x > 0 and x or 1.3 * (math.exp(x) - 1) end)
with("celu", { alpha = 1.3 }, { 1.3 }, function(x) return x > 0 and x or 1.3 * (math.exp(x / 1.3) - 1) end)
with("softplus", { beta = 1.5, threshold = 4.7 }, { 1.5, 4.7 },
  function(x) return 1.5 * x > 4.7 and x or math.log(1 + math.exp(1.5 * x)) / 1.5 end)
with("hardtanh", { min_val = -0.9, max_val = 1.4 }, { -0.9, 1.4 },
  function(x) return math.max(-0.9, math.min(1.4, x)) end)
with("softshrink", { lambd = 0.7 }, { 0.7 },
  function(x) return x > 0.7 and x - 0.7 or x < -0.7 and x + 0.7 or 0 end)
with("hardshrink", { lambd = 0.7 }, { 0.7 }, function(x) return math.abs(x) > 0.7 and x or 0 end)
with("threshold", { threshold = 0.3, value = -1 }, { 0.3, -1 }, function(x) return x > 0.3 and x or -1 end)
C.prelu = { inputs = { range(-2, 2.1), range(0.1, 0.5, { 4 }) },
  broadcast = { range(-2, 2.1), range(0.1, 0.5, { 1 }) },
  call = function(x, w) return core.prelu(x, w) end,
  ref = function(x, w) return H.each(x, function(r)
    local out = {}
    for j, v in ipairs(r) do out[j] = v > 0 and v or (w[j] or w[1]) * v end
    return out
  end) end }
C.glu = { inputs = { range(-2, 2) }, call = function(x) return x:glu() end,
  ref = function(x)
    return H.each(x, function(r) return { r[1] * sigmoid(r[3]), r[2] * sigmoid(r[4]) } end)
  end }
for _, name in ipairs { "gelu", "silu", "mish", "leaky_relu", "elu", "softplus", "logsigmoid", "hardtanh",
  "hardsigmoid", "hardswish", "hardshrink", "threshold" } do
  C["_" .. name .. "_backward"] = { through = name }
end

-- ---- bits of integers
local bit = require "bit"
local function bits(name, ref)
  C[name] = {
    inputs = { range(0, 100), range(0, 7.9) }, exact = true, pointwise = true, no_inplace = true,
    call = function(a, b)
      return core[name](a:to("int64"), b:to("int64"))
    end, ref = function(a, b) return ref(math.floor(a), math.floor(b)) end,
  }
end
bits("bitwise_and", bit.band)
bits("bitwise_or", bit.bor)
bits("bitwise_xor", bit.bxor)
bits("bitwise_left_shift", bit.lshift)
bits("bitwise_right_shift", bit.arshift)
C.bitwise_not = { inputs = { range(-100, 100) }, exact = true, pointwise = true, no_inplace = true,
  call = function(x) return x:floor():to("int64"):bitwise_not() end,
  ref = function(x) return bit.bnot(math.floor(x)) end }

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
    call = function(a, b)
      return core[name](a:gt(0), b:gt(0))
    end, ref = function(a, b) return ref(a > 0, b > 0) end,
  }
end
logical("logical_and", function(a, b) return a and b end)
logical("logical_or", function(a, b) return a or b end)
logical("logical_xor", function(a, b) return a ~= b end)
C.logical_not = { inputs = { range(-2, 2) }, exact = true, pointwise = true,
  call = function(x) return x:gt(0):logical_not() end, ref = function(x) return not (x > 0) end }
-- log of a negative number is NaN, and 1 / 0 infinite
C.isnan = { inputs = { range(-2, 2) }, exact = true, pointwise = true,
  call = function(x) return x:log():isnan() end, ref = function(x) return x < 0 end }
C.isinf = { inputs = { range(-2, 2) }, exact = true, pointwise = true,
  call = function(x) return (x / x:gt(0):double()):isinf() end, ref = function(x) return x <= 0 end }
C.isfinite = { inputs = { range(-2, 2) }, exact = true, pointwise = true,
  call = function(x) return (x / x:gt(0):double()):isfinite() end, ref = function(x) return x > 0 end }
C.where = {
  inputs = { range(-2, 2), range(-2, 2) }, broadcast = { range(-2, 2, { 3, 1 }), range(-2, 2, { 4 }) },
  pointwise = true,
  call = function(a, b)
    return core.where((a.data + b.data):gt(0), a, b)
  end, ref = function(a, b) return a + b > 0 and a or b end,
}
C.masked_fill = {
  inplace = function(x) return x:masked_fill_(x:gt(0.543), 7) end,
  inputs = { range(-2, 2) }, pointwise = true, call = function(x)
    return x:masked_fill(x.data:gt(0.543), 7)
  end,
  ref = function(x) return x > 0.543 and 7 or x end,
}
