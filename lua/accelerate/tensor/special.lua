--- Special functions, in float64 whatever the type of their argument; integers give float32. Each
--- knows its derivative, so that gradients can be differentiated again.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local helpers = require "accelerate.tensor.analytic"
local options = require "accelerate.utils.options"

local where, huge = core.where, math.huge
local analytic, full, type_of = helpers.analytic, helpers.full, helpers.type_of

-- ---- gamma functions

local HALF_LOG_2PI = 0.91893853320467274178

local function is_pole(x) return x:le(0):logical_and(x:eq(x:floor())) end

-- Hurwitz's zeta function for s > 1 by the formula of Euler and Maclaurin, `terms` of its terms
-- taken one by one.
local EULER = { 1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000,
  1 / 74724249600, -3617 / 10670622842880000 }
local function hurwitz(s, q, terms)
  local sum = q:pow(-s)
  for k = 1, terms - 1 do sum = sum + (q + k):pow(-s) end
  local far = q + terms
  sum = sum + far:pow(1 - s) / (s - 1) + far:pow(-s) / 2
  local factor, power = s, far:pow(-s - 1)
  for k = 1, #EULER do
    sum = sum + EULER[k] * factor * power
    factor = factor * (s + (2 * k - 1)) * (s + 2 * k)
    power = power / (far * far)
  end
  return sum
end

local MOST_SHIFTS = 1000

local derivative = core._row "_polygamma"
local polygamma = core._composed("polygamma", "n:int x:T", function(n, x)
  if n < 0 then options.fail("polygamma: n must be at least 0, got %d", n) end
  if n == 0 then return core.digamma(x) end
  return derivative(x, n)
end)
define.plain("polygamma", "x:polygamma(n), tensor.polygamma(n, x)", "the n-th derivative of digamma", "both",
  function(a, b)
    if core.is_tensor(a) then return polygamma(b, a) end
    return polygamma(a, b)
  end)
define("mvlgamma", "x:T p:int", "the logarithm of the gamma function of p dims; x above (p - 1) / 2",
  function(x, p)
    if p < 1 then options.fail("mvlgamma: p must be at least 1, got %d", p) end
    local sum = p * (p - 1) / 4 * math.log(math.pi)
    for k = 0, p - 1 do sum = sum + core.lgamma(x - k / 2) end
    return sum
  end)

-- ---- the normal distribution

local ROOT_2, ROOT_PI = math.sqrt(2), math.sqrt(math.pi)

-- The y whose erf is 1 - rest, for a rest in [0, 1]: Newton's steps from Winitzki's formula.
local function erfc_inverse(rest)
  local log = (rest * (2 - rest)):log()
  local b = 2 / (math.pi * 0.147) + log / 2
  local y = ((b * b - log / 0.147):sqrt() - b):clamp { min = 0 }:sqrt()
  for _ = 1, 3 do
    local step = (y:erfc() - rest) * (ROOT_PI / 2) * (y * y):exp()
    y = y + where(step:isfinite(), step, full(step, 0))
  end
  return where(rest:eq(0), full(y, huge), where(rest:eq(1), full(y, 0), y))
end

-- exp(x^2) erfc(x) for x of at least 0
local function erfcx_right(x)
  local near, far = x:clamp { max = 10 }, x:clamp { min = 10 }
  local inverse, term, sum = 0.5 / (far * far), full(x, 1), full(x, 1)
  for k = 1, 9 do
    term = term * inverse * (1 - 2 * k)
    sum = sum + term
  end
  return where(x:lt(10), (near * near):exp() * near:erfc(), sum / (far * ROOT_PI))
end
local erfcx
erfcx = analytic("erfcx", function(x)
  local right = erfcx_right(x:abs())
  return where(x:lt(0), 2 * (x * x):exp() - right, right)
end, function(x) return 2 * x * erfcx(x) - 2 / ROOT_PI end)

local log_ndtr
log_ndtr = analytic("log_ndtr", function(x)
  local low = (erfcx_right((-x):clamp { min = 0 } / ROOT_2) / 2):log() - x * x / 2
  return where(x:lt(-1), low, (-(x / ROOT_2):erfc() / 2):log1p())
end, function(x) return (-x * x / 2 - HALF_LOG_2PI - log_ndtr(x)):exp() end)

local ndtri
ndtri = analytic("ndtri", function(p)
  local value = where(p:lt(0.5), -erfc_inverse(2 * p:clamp(0, 0.5)), erfc_inverse(2 * (1 - p):clamp(0, 0.5)))
  return where(p:ge(0):logical_and(p:le(1)), value * ROOT_2, full(p, 0 / 0))
end, function(p) return (ndtri(p):square() / 2 + HALF_LOG_2PI):exp() end)

local function floating(x) return x:to(type_of(x)) end

-- ---- Bessel functions

local NEAR = 20 -- up to here the power series, whose terms are all positive

-- exp(-|x|) I(order, |x|), order 0 or 1
local function scaled_bessel(x, order)
  local a = x:abs()
  local near, far = a:clamp { max = NEAR }, a:clamp { min = NEAR }
  local quarter, term = near * near / 4, order == 0 and full(x, 1) or near / 2
  local sum = term
  for k = 1, 60 do
    term = term * quarter / (k * (k + order))
    sum = sum + term
  end
  local power, tail = full(x, 1), full(x, 1)
  for k = 1, 20 do
    power = power * -(4 * order - (2 * k - 1) ^ 2) / (8 * k * far)
    tail = tail + power
  end
  return where(a:le(NEAR), sum * (-near):exp(), tail / (2 * math.pi * far):sqrt())
end
local function i0e_of(x) return scaled_bessel(x, 0) end
local function i1e_of(x) return x:sign() * scaled_bessel(x, 1) end

local i0, i1, i0e, i1e
-- I1(x) / x, 1/2 at 0
local function over(value, x)
  local zero = x:eq(0)
  return where(zero, full(value, 0.5), value / where(zero, full(x, 1), x))
end
i0 = analytic("i0", function(x) return i0e_of(x) * x:abs():exp() end, function(x) return i1(x) end)
i1 = analytic("i1", function(x) return i1e_of(x) * x:abs():exp() end,
  function(x) return i0(x) - over(i1(x), x) end)
i0e = analytic("i0e", i0e_of, function(x) return i1e(x) - x:sign() * i0e(x) end)
i1e = analytic("i1e", i1e_of, function(x) return i0e(x) - x:sign() * i1e(x) - over(i1e(x), x) end)
define("i0", "x:T", "the modified Bessel function of the first kind, order 0", function(x) return i0(x) end)

-- ---- tensor.special

--- Special functions under the names of torch.special.
local M = {}

local function one(name, summary, fn) M[name] = define.within("special", name, "x:T", summary, fn) end

one("erfcx", "exp(x^2) erfc(x)", function(x) return erfcx(x) end)
one("ndtr", "the normal distribution function", function(x) return (-floating(x) / ROOT_2):erfc() / 2 end)
one("log_ndtr", "the logarithm of the normal distribution function", function(x) return log_ndtr(x) end)
one("ndtri", "the inverse of the normal distribution function", function(x) return ndtri(x) end)
one("i0e", "exp(-|x|) i0(x)", function(x) return i0e(x) end)
one("i1", "the modified Bessel function of the first kind, order 1", function(x) return i1(x) end)
one("i1e", "exp(-|x|) i1(x)", function(x) return i1e(x) end)
one("entr", "-x log(x); 0 at 0, -inf below", function(x)
  x = floating(x)
  return where(x:lt(0), full(x, -huge), -core.xlogy(x, x))
end)

one("modified_bessel_i0", "i0 under the name of torch.special", function(x) return i0(x) end)
one("modified_bessel_i1", "i1 under the name of torch.special", function(x) return i1(x) end)

-- zeta(s, q), with its gradient with respect to q.
local zeta
local zeta_of = core.Function {
  name = "special.zeta",
  forward = function(ctx, s, q)
    ctx:save_for_backward(s, q)
    local least = q:numel() > 0 and where(q:isfinite(), q, full(q, 1)):amin():item() or 1
    local value = hurwitz(s, q, math.min(math.max(10, 10 - math.floor(least)), MOST_SHIFTS))
    value = where(q:lt(0):logical_and(s:ne(s:floor())), full(value, 0 / 0), value)
    value = where(is_pole(q):logical_and(s:gt(1)), full(value, huge), value)
    value = where(s:eq(1), full(value, huge), value)
    return where(s:lt(1), full(value, 0 / 0), value)
  end,
  backward = function(ctx, g)
    local s, q = ctx:saved_tensors()
    return nil, -g * s * zeta(s + 1, q)
  end,
}
zeta = function(s, q) return zeta_of(s, q) end
M.zeta = define.within("special", "zeta", "x:TN q:TN",
  "the Hurwitz zeta function, the sum of (q + k) ^ -x over k from 0; the gradient is q's",
  function(x, q)
    local pair = helpers.operands("special.zeta", x, q)
    if pair[1].requires_grad then
      options.fail("special.zeta: argument 1 (x) requires a gradient, which is known for q alone; detach it")
    end
    local kind = pair.dtype
    return zeta(pair[1]:double(), pair[2]:double()):to(kind)
  end)

M.xlog1py = define.within("special", "xlog1py", "x:TN y:TN", "x log(1 + y), 0 where x is 0",
  function(x, y)
    local pair = helpers.operands("special.xlog1py", x, y)
    local a, b = pair[1]:to(pair.dtype), pair[2]:to(pair.dtype)
    local zero = a:eq(0):logical_and(b:le(-1))
    return core.where(zero, a * 0, a * b:masked_fill(zero:expand(b.shape), 0):log1p())
  end)

for _, part in ipairs { "bessel", "polynomials" } do
  for name, fn in pairs(require("accelerate.tensor." .. part)) do M[name] = fn end
end

for _, name in ipairs { "polygamma", "i0", "logit", "sinc" } do
  M[name] = define.functions[name]
end
M.expit, M.gammainc, M.gammaincc = core.sigmoid, define.functions.igamma, define.functions.igammac
M.gammaln, M.psi, M.multigammaln = core.lgamma, core.digamma, define.functions.mvlgamma
for _, name in ipairs { "digamma", "erf", "erfc", "erfinv", "exp2", "expm1", "log1p", "xlogy",
  "logsumexp", "softmax", "log_softmax", "round" } do
  M[name] = core[name]
end

return require("accelerate.utils.properties").strict("accelerate.tensor.special", M)
