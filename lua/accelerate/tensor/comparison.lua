--- Comparisons of whole tensors.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local options = require "accelerate.utils.options"
local lists = require "accelerate.utils.lists"

local function check_tensor(where, number, name, x)
  if core.is_tensor(x) then return end
  options.fail("%s: argument %d (%s): expected a tensor, got %s", where, number, name, options.show(x))
end

-- What follows the two is passed over: the last one may be a call of several results.
local function equal(a, b)
  check_tensor("equal", 1, "a", a)
  check_tensor("equal", 2, "b", b)
  if not lists.same(a.shape, b.shape) then return false end
  return core.no_grad(function() return a:eq(b):all():item() end)
end
define.plain("equal", "tensor.equal(a, b)", "true when shapes and elements are equal; NaN equals nothing",
  "both", equal)

define("is_same_size", "x:T other:T", "true when both have the same shape", function(x, other)
  return lists.same(x.shape, other.shape)
end)

-- In float64 or complex128; equal infinities are close.
local function isclose(where, a, b, rtol, atol, equal_nan)
  for name, v in pairs { rtol = rtol, atol = atol } do
    if not (v >= 0) then options.fail("%s: %s: expected at least 0, got %g", where, name, v) end
  end
  return core.no_grad(function()
    local wide = (a:is_complex() or b:is_complex()) and "complex128" or "float64"
    local x, y = a:to(wide), b:to(wide)
    local near = (x - y):abs():le(y:abs() * rtol + atol):logical_and(y:isfinite())
    local same = x:eq(y):logical_or(near)
    if equal_nan then same = same:logical_or(x:isnan():logical_and(y:isnan())) end
    return same
  end)
end

local TOLERANCES = "a:T b:T rtol:num=1e-05 atol:num=1e-08 equal_nan:bool=false"
define("isclose", TOLERANCES, "element by element: |a - b| <= atol + rtol |b|, in float64 or complex128",
  function(...) return isclose("isclose", ...) end)
define("allclose", TOLERANCES, "true when all elements are close; see isclose", function(...)
  return isclose("allclose", ...):all():item()
end)
