--- Orthogonal polynomials, by their recurrences. The degree is a number or a tensor, cut to an
--- integer; below 0 the value is 0.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local helpers = require "accelerate.tensor.analytic"
local options = require "accelerate.utils.options"

local MOST = 1000 -- a step of the recurrence is a pass over the elements

-- first(x): degree 1.  following(k, x, p, before): degree k + 1 of those of k and k - 1.
local function family(first, following)
  return function(where, x, n)
    local pair = helpers.operands(where, x, n)
    local at, degree = pair[1]:to(pair.dtype), core.no_grad(function() return pair[2]:double():trunc() end)
    local most = degree:numel() > 0 and degree:amax():item() or 0
    if not (most <= MOST) then
      options.fail("%s: n must be at most %d, got %g", where, MOST, most)
    end
    local before, here = at * 0 + 1, first(at)
    local value = core.where(degree:eq(0), before, at * 0)
    for k = 1, most do
      value = core.where(degree:eq(k), here, value)
      before, here = here, following(k, at, here, before)
    end
    return value
  end
end

local function chebyshev(first)
  return family(first, function(_, x, p, before) return x * p * 2 - before end)
end
local function shifted(of) return function(x) return of(x * 2 - 1) end end
local function shifted_chebyshev(first)
  return family(shifted(first), function(_, x, p, before) return (x * 2 - 1) * p * 2 - before end)
end

local FIRST = { t = function(x) return x end, u = function(x) return x * 2 end,
  v = function(x) return x * 2 - 1 end, w = function(x) return x * 2 + 1 end }
local KINDS = { t = "first", u = "second", v = "third", w = "fourth" }

local M = {}
local function public(name, summary, fn)
  M[name] = define.within("special", name, "x:TN n:TN", summary, function(x, n)
    return fn("special." .. name, x, n)
  end)
end

for kind, first in pairs(FIRST) do
  local summary = ("the Chebyshev polynomial of the %s kind and degree n"):format(KINDS[kind])
  public("chebyshev_polynomial_" .. kind, summary, chebyshev(first))
  public("shifted_chebyshev_polynomial_" .. kind, summary .. " at 2 x - 1", shifted_chebyshev(first))
end
public("hermite_polynomial_h", "the physicist's Hermite polynomial of degree n",
  family(FIRST.u, function(k, x, p, before) return (x * p - before * k) * 2 end))
public("hermite_polynomial_he", "the probabilist's Hermite polynomial of degree n",
  family(FIRST.t, function(k, x, p, before) return x * p - before * k end))
public("laguerre_polynomial_l", "the Laguerre polynomial of degree n",
  family(function(x) return 1 - x end, function(k, x, p, before)
    return ((2 * k + 1 - x) * p - before * k) / (k + 1)
  end))
public("legendre_polynomial_p", "the Legendre polynomial of degree n",
  family(FIRST.t, function(k, x, p, before) return (x * p * (2 * k + 1) - before * k) / (k + 1) end))

return M
