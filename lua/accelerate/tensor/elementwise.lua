--- Element by element, of rows.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local kinds = require "accelerate.tensor.kinds"
local options = require "accelerate.utils.options"

for _, pair in ipairs {
  { "clip", "clamp" }, { "absolute", "abs" }, { "negative", "neg" }, { "fix", "trunc" },
  { "multiply", "mul" }, { "divide", "div" }, { "true_divide", "div" }, { "subtract", "sub" },
  { "arccos", "acos" }, { "arcsin", "asin" }, { "arctan", "atan" }, { "arccosh", "acosh" },
  { "arcsinh", "asinh" }, { "arctanh", "atanh" }, { "arctan2", "atan2" },
} do
  define.alias(pair[1], pair[2], true)
end
for _, pair in ipairs {
  { "greater", "gt" }, { "greater_equal", "ge" }, { "less", "lt" }, { "less_equal", "le" },
  { "not_equal", "ne" },
} do
  define.alias(pair[1], pair[2])
end

define("clamp_min", "x:T min:TN", "the larger of x and min", function(x, min)
  return x:clamp { min = min }
end)
define("clamp_max", "x:T max:TN", "the smaller of x and max", function(x, max)
  return x:clamp { max = max }
end)
define("clamp_min_", "x:T min:TN", "clamp_min in place", function(x, min)
  return x:clamp_ { min = min }
end, "method")
define("clamp_max_", "x:T max:TN", "clamp_max in place", function(x, max)
  return x:clamp_ { max = max }
end, "method")

-- The element of a where b is NaN and the reverse; else what `pick` says.
local function without_nan(pick, a, b)
  return core.where(a:isnan(), b, core.where(b:isnan(), a, pick(a, b)))
end
define("fmax", "a:T b:T", "the larger element; NaN only where both are", function(a, b)
  return without_nan(core.maximum, a, b)
end)
define("fmin", "a:T b:T", "the smaller element; NaN only where both are", function(a, b)
  return without_nan(core.minimum, a, b)
end)

local function float_of(x)
  return (core._is_float(x) or x:is_complex()) and x or x:float()
end

local function log_odds(x) return (x / (1 - x)):log() end
-- With the slope 1 / (x (1 - x)), which the parts of log_odds do not have at 0 and 1, and NaN where
-- there is no value.
local logit = core.Function {
  name = "logit",
  forward = function(ctx, x)
    ctx:save_for_backward(x)
    return log_odds(x)
  end,
  backward = function(ctx, g)
    local x = ctx:saved_tensors()
    return core.where(x:lt(0):logical_or(x:gt(1)), 0 / 0, g / (x * (1 - x)))
  end,
}
define("logit", "x:T eps:num?", "log(x / (1 - x)), x first brought into [eps, 1 - eps]", function(x, eps)
  x = float_of(x)
  if x:is_complex() then return log_odds(x) end
  if eps then -- the lower end wins where they cross
    local low, high = core.full_like(x, eps), core.full_like(x, 1 - eps)
    x = core.where(x:lt(eps), low, core.where(x:gt(1 - eps), high, x))
  end
  return logit(x)
end)
define("sinc", "x:T", "sin(pi x) / (pi x), 1 at 0", function(x)
  local wide, dtype = kinds.float(x)
  local zero = wide:eq(0)
  local angle = wide:masked_fill(zero, 1) * math.pi
  return (angle:sin() / angle):masked_fill(zero, 1):to(dtype)
end)
define("deg2rad", "x:T", "x * pi / 180", function(x) return float_of(x) * (math.pi / 180) end)
define("rad2deg", "x:T", "x * 180 / pi", function(x) return float_of(x) * (180 / math.pi) end)
define("positive", "x:T", "x itself", function(x) return x end)

-- The sign bit of a zero shows in its reciprocal.
local function signbit(x)
  if not core._is_float(x) then return x:lt(0) end
  return core.no_grad(function() return x:lt(0):logical_or(x:eq(0):logical_and(x:reciprocal():lt(0))) end)
end
define("signbit", "x:T", "whether the sign bit is set, also of -0", signbit)
define("copysign", "a:T b:TN", "the magnitude of a with the sign of b", function(a, b)
  if a:is_complex() or core.is_tensor(b) and b:is_complex() then
    options.fail("copysign: not defined for complex numbers")
  end
  if not core.is_tensor(b) then b = core.tensor(b, { device = a.device }) end
  local x, _, dtype = kinds.floats(a, b)
  local turned = signbit(x):ne(signbit(b))
  if x.requires_grad then x = core.where(x:eq(0), x:detach(), x) end -- no slope at 0, as in PyTorch
  return core.where(turned, -x, x):to(dtype)
end)
define("heaviside", "x:T values:T", "0 below 0, 1 above 0, values at 0", function(x, values)
  if x:is_complex() or values:is_complex() then
    options.fail("heaviside: not defined for complex numbers")
  end
  return core.where(x:eq(0), values, x:gt(0):to(values.dtype))
end)
define("isposinf", "x:T", "whether the element is +inf", function(x) return x:eq(math.huge) end)
define("isneginf", "x:T", "whether the element is -inf", function(x) return x:eq(-math.huge) end)
