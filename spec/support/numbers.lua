--- How near numbers are to each other, and tensors whose elements are not adjacent.
local core = require "accelerate.core"

local M = {}

--- Returns whether two Lua numbers are the same: NaN is NaN, and zeros have one sign.
function M.alike(a, b) return a == b and (a ~= 0 or 1 / a == 1 / b) or a ~= a and b ~= b end

--- Returns the unit in the last place of a number of so many binary digits near v. least: the
--- smallest exponent that numbers of the type have.
function M.unit(v, digits, least)
  local _, e = math.frexp(v)
  return math.ldexp(1, math.max(e, least or e) - digits)
end

--- Fails unless two lists of Lua numbers differ by at most `tolerance`.
function M.lists_near(expected, got, tolerance, what)
  assert(#expected == #got, ("%s: %d values, expected %d"):format(what, #got, #expected))
  for i = 1, #expected do
    if not (math.abs(expected[i] - got[i]) <= tolerance) then
      error(("%s: value %d is %.9g, expected %.9g"):format(what, i, got[i], expected[i]), 2)
    end
  end
end

--- Returns the largest difference of the elements of two tensors, in float64.
function M.largest(a, b) return (a:double() - b:double()):abs():max():item() end

--- Fails unless the elements of two tensors differ by at most `tolerance`, default 1e-12.
function M.close(a, b, tolerance)
  local d = (a - b):abs():max():item()
  assert(d <= (tolerance or 1e-12), ("differ by %g"):format(d))
end

--- Returns a copy of a vector whose elements lie three places apart.
function M.spaced(x)
  local wide = core.zeros({ x:numel(), 3 }, { dtype = x.dtype })
  wide:select(2, 2):copy_(x)
  return wide:select(2, 2)
end

return M
