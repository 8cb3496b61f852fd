--- Bessel functions of orders 0 and 1, and Airy's function, in float64. Power series near 0, sums
--- over a recurrence or an integral in between, asymptotic series far out.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local helpers = require "accelerate.tensor.analytic"

local where, huge, pi = core.where, math.huge, math.pi
local analytic, full = helpers.analytic, helpers.full
local EULER = 0.57721566490153286061

-- Parts of the line: each is computed everywhere, of arguments that are brought into it.
local NEAR, FAR = 5, 25

-- sum of factor(k) (sign q)^k / (k! (k + order)!), q = x^2 / 4
local function power_series(q, order, sign, factor)
  local term, sum = full(q, 1), full(q, factor(0))
  for k = 1, 40 do
    term = term * q * (sign / (k * (k + order)))
    sum = sum + term * factor(k)
  end
  return sum
end
local function one() return 1 end
local function harmonic(k)
  local sum = 0
  for i = 1, k do sum = sum + 1 / i end
  return sum
end
-- digamma(k + 1) + digamma(k + 2)
local function digammas(k) return harmonic(k) + harmonic(k + 1) - 2 * EULER end

-- ---- J and Y

local function near_j(x, order)
  local sum = power_series(x * x / 4, order, -1, one)
  return order == 0 and sum or sum * x / 2
end

local function near_y(x, order)
  local q, log = x * x / 4, (x / 2):log()
  if order == 0 then
    return ((log + EULER) * near_j(x, 0) - power_series(q, 0, -1, harmonic)) * (2 / pi)
  end
  return -2 / (pi * x) + (2 / pi) * log * near_j(x, 1) - x / (2 * pi) * power_series(q, 1, -1, digammas)
end

local FIRST = 70 -- J of this order is 0 beside J0 and J1 for x up to FAR

-- J0, J1, Y0, Y1 by the recurrence from high orders down: J(k - 1) = 2 k / x J(k) - J(k + 1).
local function middle(x)
  local above, here = full(x, 0), full(x, 1e-60)
  local total, for_y0, for_y1 = full(x, 0), full(x, 0), full(x, 0)
  local inverse = 2 / x
  for k = FIRST, 1, -1 do
    local half = math.floor(k / 2)
    if k % 2 == 0 then
      total = total + here * 2
      for_y0 = for_y0 + here * ((half % 2 == 0 and 1 or -1) / half)
    elseif k > 1 then
      for_y1 = for_y1 + here * ((half % 2 == 0 and 1 or -1) * k / (half * (half + 1)))
    end
    above, here = here, inverse * here * k - above
  end
  total = total + here
  local j0, j1, log = here / total, above / total, (x / 2):log() + EULER
  local y0 = (2 / pi) * log * j0 - (4 / pi) * for_y0 / total
  local y1 = -2 / (pi * x) * j0 + (2 / pi) * (log - 1) * j1 - (4 / pi) * for_y1 / total * 0.5
  return j0, j1, y0, y1
end

-- Hankel's series: J and Y of an order far out.
local function far(x, order)
  local p, q, term = full(x, 1), full(x, 0), full(x, 1)
  for k = 1, 26 do
    term = term * (4 * order - (2 * k - 1) ^ 2) / (8 * k * x)
    local sign = k % 4 < 2 and 1 or -1
    if k % 2 == 1 then q = q + term * sign else p = p + term * (k % 4 == 0 and 1 or -1) end
  end
  local angle, scale = x - (order / 2 + 0.25) * pi, (2 / (pi * x)):sqrt()
  local cos, sin = angle:cos(), angle:sin()
  return scale * (p * cos - q * sin), scale * (p * sin + q * cos)
end

local function parts(a) return a:clamp { max = NEAR }, a:clamp(NEAR, FAR), a:clamp { min = FAR } end
local function joined(a, near, between, beyond)
  return where(a:le(NEAR), near, where(a:le(FAR), between, beyond))
end

local function j_of(order)
  return function(x)
    local a = x:abs()
    local near, between, beyond = parts(a)
    local value = joined(a, near_j(near, order), (select(order + 1, middle(between))), (far(beyond, order)))
    value = where(a:eq(huge), full(x, 0), where(x:isnan(), x, value))
    return order == 1 and where(x:lt(0), -value, value) or value
  end
end
local function y_of(order)
  return function(x)
    local near, between, beyond = parts(x)
    local _, last = far(beyond, order)
    local value = joined(x, near_y(near, order), (select(order + 3, middle(between))), last)
    value = where(x:eq(0), full(x, -huge), where(x:eq(huge), full(x, 0), value))
    return where(x:ge(0), value, full(x, 0 / 0))
  end
end

-- value / x, `limit` at 0
local function over(value, x, limit)
  local zero = x:eq(0)
  return where(zero, full(value, limit), value / where(zero, full(x, 1), x))
end

local j0, j1, y0, y1
j0 = analytic("bessel_j0", j_of(0), function(x) return -j1(x) end)
j1 = analytic("bessel_j1", j_of(1), function(x) return j0(x) - over(j1(x), x, 0.5) end)
y0 = analytic("bessel_y0", y_of(0), function(x) return -y1(x) end)
y1 = analytic("bessel_y1", y_of(1), function(x) return y0(x) - y1(x) / x end)

-- ---- K, and Airy's function, which is one of K

local MIDDLE = 2 -- up to here K's power series

local function near_k(x, order)
  local q, log = x * x / 4, (x / 2):log()
  if order == 0 then
    return power_series(q, 0, 1, harmonic) - (log + EULER) * power_series(q, 0, 1, one)
  end
  return 1 / x + x / 2 * (log * power_series(q, 1, 1, one) - power_series(q, 1, 1, digammas) / 2)
end

-- exp(x) K: the integral of exp(-x (cosh t - 1)) cosh(order t) over t from 0
local STEP, STEPS = 1 / 8, 44
local function integral_k(x, order)
  local sum = full(x, 0.5)
  for k = 1, STEPS do
    local t = k * STEP
    sum = sum + (x * (1 - math.cosh(t))):exp() * math.cosh(order * t)
  end
  return sum * STEP
end

-- exp(x) K far out
local function far_k(x, order)
  local term, sum = full(x, 1), full(x, 1)
  for k = 1, 26 do
    term = term * (4 * order * order - (2 * k - 1) ^ 2) / (8 * k * x)
    sum = sum + term
  end
  return sum * (pi / (2 * x)):sqrt()
end

local function scaled_k_of(order)
  return function(x)
    local near = x:clamp { max = MIDDLE }
    local value = where(x:le(FAR), integral_k(x:clamp(MIDDLE, FAR), order),
      far_k(x:clamp { min = FAR }, order))
    value = where(x:le(MIDDLE), near_k(near, order) * near:exp(), value)
    value = where(x:eq(0), full(x, huge), where(x:eq(huge), full(x, 0), value))
    return where(x:ge(0), value, full(x, 0 / 0))
  end
end
local function k_of(order)
  local scaled = scaled_k_of(order)
  return function(x)
    local value = scaled(x)
    return where(x:gt(0):logical_and(x:lt(huge)), value * (-x):exp(), value)
  end
end

local k0, k1, scaled_k0, scaled_k1
k0 = analytic("modified_bessel_k0", k_of(0), function(x) return -k1(x) end)
k1 = analytic("modified_bessel_k1", k_of(1), function(x) return -k0(x) - k1(x) / x end)
scaled_k0 = analytic("scaled_modified_bessel_k0", scaled_k_of(0),
  function(x) return scaled_k0(x) - scaled_k1(x) end)
scaled_k1 = analytic("scaled_modified_bessel_k1", scaled_k_of(1),
  function(x) return scaled_k1(x) - scaled_k0(x) - scaled_k1(x) / x end)

local RIGHT, LEFT = 1, -10 -- between them an integral along a line of the complex plane
local HEIGHT, WIDTH, POINTS = 0.5, 0.06, 160

-- The integral of exp(i (t^3 / 3 + x t)) / (2 pi) over t = u + i HEIGHT; with `slope` its
-- derivative.
local function airy_between(x, slope)
  local sum
  for k = 0, POINTS do
    local u = k * WIDTH
    local size = math.exp(-u * u * HEIGHT + HEIGHT ^ 3 / 3) * (k == 0 and 0.5 or 1)
    local angle = x * u + (u ^ 3 / 3 - u * HEIGHT ^ 2)
    local part = slope and angle:cos() * -HEIGHT - angle:sin() * u or angle:cos()
    sum = sum and sum + part * size or part * size
  end
  return sum * (-x * HEIGHT):exp() * (WIDTH / pi)
end

local function airy_right(x, slope)
  local z = x:pow(1.5) * (2 / 3)
  local order = slope and 2 / 3 or 1 / 3
  local k = where(z:le(FAR), integral_k(z:clamp { max = FAR }, order), far_k(z:clamp { min = FAR }, order))
  return k * (-z):exp() * (slope and x * (-1 / (pi * math.sqrt(3))) or (x / 3):sqrt() / pi)
end

local function airy_left(x, slope)
  local a = -x
  local z = a:pow(1.5) * (2 / 3)
  local even, odd, term = full(z, 1), full(z, 0), full(z, 1)
  for k = 1, 24 do
    term = term * ((6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1))) / z
    local part = slope and term * ((6 * k + 1) / (1 - 6 * k)) or term
    if k % 2 == 1 then odd = odd + part * (k % 4 == 1 and 1 or -1)
    else even = even + part * (k % 4 == 0 and 1 or -1) end
  end
  local angle = z + pi / 4
  if slope then
    return -(angle:cos() * even + angle:sin() * odd) * a:pow(0.25) / math.sqrt(pi)
  end
  return (angle:sin() * even - angle:cos() * odd) / (a:pow(0.25) * math.sqrt(pi))
end

local function airy_of(slope)
  return function(x)
    local between = airy_between(x:clamp(LEFT, RIGHT), slope)
    local value = where(x:gt(RIGHT), airy_right(x:clamp(RIGHT, 200), slope),
      where(x:lt(LEFT), airy_left(x:clamp { max = LEFT }, slope), between))
    return where(x:isnan(), x, value)
  end
end
local airy, airy_slope
airy = analytic("airy_ai", airy_of(false), function(x) return airy_slope(x) end)
airy_slope = analytic("airy_ai_slope", airy_of(true), function(x) return x * airy(x) end)

-- ---- the functions

local M = {}
local function public(name, summary, fn) M[name] = define.within("special", name, "x:T", summary, fn) end

for name, entry in pairs { bessel_j0 = { j0, "first", 0 }, bessel_j1 = { j1, "first", 1 },
  bessel_y0 = { y0, "second", 0 }, bessel_y1 = { y1, "second", 1 } } do
  public(name, ("the Bessel function of the %s kind, order %d"):format(entry[2], entry[3]),
    function(x) return entry[1](x) end)
end
for name, entry in pairs { modified_bessel_k0 = { k0, 0 }, modified_bessel_k1 = { k1, 1 } } do
  public(name, ("the modified Bessel function of the second kind, order %d"):format(entry[2]),
    function(x) return entry[1](x) end)
end
public("scaled_modified_bessel_k0", "exp(x) modified_bessel_k0(x)", function(x) return scaled_k0(x) end)
public("scaled_modified_bessel_k1", "exp(x) modified_bessel_k1(x)", function(x) return scaled_k1(x) end)
public("airy_ai", "Airy's function Ai", function(x) return airy(x) end)
public("spherical_bessel_j0", "sin(x) / x, 1 at 0", function(x) return define.functions.sinc(x / pi) end)

return M
