--- Numbers taken apart: mantissa and exponent, neighbours among the numbers of a type. And the
--- incomplete gamma functions.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local helpers = require "accelerate.tensor.analytic"
local options = require "accelerate.utils.options"

local where, huge = core.where, math.huge
local full = helpers.full

-- Powers of two from -REACH to REACH, which exp2 does not give exactly.
local REACH = 600
local powers
local function power_of_two(e)
  if not powers then
    local list = {}
    for k = -REACH, REACH do list[#list + 1] = 2 ^ k end
    powers = core.tensor(list, { dtype = "float64" })
  end
  local table_of = powers:to(e.device)
  return table_of:index_select(1, (e + REACH):long():reshape(-1)):view(e.shape)
end

-- x 2^e in two steps, so that no power overflows.
local function scaled(x, e)
  local half = (e / 2):floor()
  return x * power_of_two(half) * power_of_two(e - half)
end

-- The exponent of |x|, float64: |x| = mantissa 2^exponent with the mantissa in [1/2, 1); 0 for 0,
-- inf, NaN.
local TINY, LIFT = 2 ^ -1000, 120
local function exponent_of(x)
  local a = x:abs()
  local plain = a:gt(0):logical_and(a:lt(huge))
  local tiny = a:lt(TINY)
  a = where(plain, where(tiny, a * 2 ^ LIFT, a), full(a, 1))
  local e = a:log2():floor() + 1 -- may be off by one
  local mantissa = scaled(a, -e)
  e = where(mantissa:ge(1), e + 1, where(mantissa:lt(0.5), e - 1, e))
  return where(plain, where(tiny, e - LIFT, e), full(e, 0))
end

define("frexp", "x:T", "mantissa (its absolute value in [1/2, 1), or 0) and exponent, int32: x = " ..
  "mantissa 2^exponent",
  function(x)
    if not core._is_float(x) then
      options.fail("frexp: expected a floating-point tensor, got %s", x.dtype)
    end
    local e = core.no_grad(function() return exponent_of(x:detach():double()) end)
    return scaled(x:double(), -e):to(x.dtype), e:int()
  end)

-- bits of the mantissa, the exponent of the smallest number
local FORMATS = { float64 = { 53, -1074 }, float32 = { 24, -149 }, float16 = { 11, -24 },
  bfloat16 = { 8, -133 } }

-- The next number of x's type after x on the way to y.
local function next_of(x, y, format)
  local dtype = x.dtype
  x, y = x:double(), y:double()
  local e = exponent_of(x)
  local power = scaled(full(x, 0.5), e):eq(x:abs()) -- the numbers below are half as far apart
  local up = y:gt(x)
  local outward = where(x:eq(0), full(up, true), up:eq(x:gt(0)))
  local step = where(power:logical_and(outward:logical_not()), e - 1, e) - format[1]
  step = where(x:eq(0), full(step, format[2]), step:clamp { min = format[2] })
  local size = scaled(full(x, 1), step)
  local value = where(up, x + size, x - size)
  value = where(x:isinf(), x:sign() * define.functions.finfo(dtype).max, value)
  value = where(x:eq(y), y, value)
  return where(x:isnan():logical_or(y:isnan()), full(x, 0 / 0), value):to(dtype)
end
local nextafter = core.Function {
  name = "nextafter",
  forward = function(_, a, b) return next_of(a, b, FORMATS[a.dtype]) end,
  backward = function(_, g) return g, g * 0 end,
}
define("nextafter", "a:T b:T", "the next number of a's type on the way to b; its slope is 1", function(a, b)
  local pair = helpers.operands("nextafter", a, b)
  if not FORMATS[a.dtype] and not FORMATS[b.dtype] then
    options.fail("nextafter: one of the tensors must be of a floating-point type, got %s and %s", a.dtype,
      b.dtype)
  end
  return nextafter(pair[1]:to(pair.dtype), pair[2]:to(pair.dtype))
end)

-- ---- incomplete gamma functions

local MOST_TERMS, LOOK = 4000, 32 -- whether all have converged is looked at every LOOK terms

local function settled(change, k)
  return k % LOOK == 0 and not change:gt(2 ^ -56):any():item()
end

-- x^a exp(-x) / gamma(a)
local function weight(a, x) return (a * x:log() - x - core.lgamma(a)):exp() end

-- The lower one by its power series, for x below a + 1.
local function lower(a, x)
  local term, sum = 1 / a, 1 / a
  for k = 1, MOST_TERMS do
    term = term * x / (a + k)
    sum = sum + term
    if settled(term / sum, k) then break end
  end
  return sum * weight(a, x)
end

-- The upper one by its continued fraction, for x above a + 1 (Lentz's method).
local function upper(a, x)
  local b = x + 1 - a
  local c, d = full(x, 1e300), 1 / b
  local value = d
  for k = 1, MOST_TERMS do
    local n = (a - k) * k
    b = b + 2
    d = 1 / (n * d + b)
    c = b + n / c
    value = value * c * d
    if settled((c * d - 1):abs(), k) then break end
  end
  return value * weight(a, x)
end

local function incomplete(a, x, wants_lower)
  local series = x:lt(a + 1)
  local plain = a:gt(0):logical_and(x:gt(0)):logical_and(a:lt(huge)):logical_and(x:lt(huge))
  local one = full(x, 1)
  local in_series, in_fraction = plain:logical_and(series), plain:logical_and(series:logical_not())
  local p = lower(where(in_series, a, one), where(in_series, x, one))
  local q = upper(where(in_fraction, a, one), where(in_fraction, x, one * 3))
  local value = wants_lower and where(series, p, 1 - q) or where(series, 1 - p, q)
  local none, all = full(x, wants_lower and 0 or 1), full(x, wants_lower and 1 or 0)
  value = where(x:eq(0), none, where(x:eq(huge), all, value))
  value = where(a:eq(0), all, where(a:eq(huge), none, value))
  local undefined = a:lt(0):logical_or(x:lt(0)):logical_or(a:eq(0):logical_and(x:eq(0)))
    :logical_or(a:eq(huge):logical_and(x:eq(huge))):logical_or(a:isnan()):logical_or(x:isnan())
  return where(undefined, full(x, 0 / 0), value)
end

for name, wants_lower in pairs { igamma = true, igammac = false } do
  local fn = core.Function {
    name = name,
    forward = function(ctx, a, x)
      ctx:save_for_backward(a, x)
      return incomplete(a, x, wants_lower)
    end,
    backward = function(ctx, g)
      local a, x = ctx:saved_tensors()
      local slope = ((a - 1) * x:log() - x - core.lgamma(a)):exp()
      return nil, g * slope * (wants_lower and 1 or -1)
    end,
  }
  define(name, "a:T x:T",
    ("the regularised %s incomplete gamma function; the gradient is x's"):format(wants_lower and "lower"
    or "upper"),
    function(a, x)
      local pair = helpers.operands(name, a, x)
      if a.requires_grad and core.is_grad_enabled() then
        options.fail("%s: argument 1 (a) requires a gradient, which is known for x alone; detach it", name)
      end
      return fn(pair[1]:double(), pair[2]:double()):to(pair.dtype)
    end)
end
