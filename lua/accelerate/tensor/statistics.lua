--- Differences, integrals, moments and orders of samples.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"


-- Neighbours along dim: all but the last one, all but the first one.
local function neighbours(x, dim)
  local n = x.shape[dim] - 1
  return x:narrow(dim, 1, n), x:narrow(dim, 2, n)
end

define("diff", "x:T n:int=1 dim:dim=-1 prepend:T? append:T?", "differences of neighbours along dim, n times",
  function(x, n, dim, prepend, append)
    if x.ndim == 0 then options.fail("diff: expected at least 1 dim, got a 0-d tensor") end
    if n < 0 then options.fail("diff: n must be at least 0, got %d", n) end
    if n == 0 then return x end
    local parts = {}
    if prepend then parts[1] = prepend end
    parts[#parts + 1] = x
    if append then parts[#parts + 1] = append end
    if #parts > 1 then x = core.cat(parts, dim) end
    for _ = 1, math.min(n, x.shape[dim]) do
      if x.shape[dim] == 0 then break end
      local a, b = neighbours(x, dim)
      if x.dtype == "bool" then x = b:logical_xor(a) else x = b - a end
    end
    return x
  end)

-- The areas between neighbours: under y at distances dx, or at places x.
local function areas(where, y, x, dx, dim)
  local function wide(v) return core._is_float(v) and v or v:is_complex() and v or v:float() end
  y, x = wide(y), x and wide(x) -- sums of two integers may be too large for their type
  if y.shape[dim] < 2 then
    return y:narrow(dim, 1, 0)
  end
  local a, b = neighbours(y, dim)
  local sum = (a + b) / 2
  if not x then return sum * dx end
  if x.ndim == 1 then
    if x.shape[1] ~= y.shape[dim] then
      options.fail("%s: x has %d elements, dim %d of y has %d", where, x.shape[1], dim, y.shape[dim])
    end
    local shape = {}
    for d = 1, y.ndim do shape[d] = d == dim and x.shape[1] or 1 end
    x = x:view(shape)
  end
  local from, to = neighbours(x, x.ndim == y.ndim and dim or x.ndim)
  return sum * (to - from)
end
local INTEGRAL = "y:T x:T? dx:num=1 dim:dim=-1"
local function trapezoid(y, x, dx, dim) return areas("trapezoid", y, x, dx, dim):sum(dim) end
define("trapezoid", INTEGRAL, "the integral along dim by the trapezoidal rule", trapezoid, "function")
define("trapz", INTEGRAL, "another name of `trapezoid`", trapezoid, "function")
define("cumulative_trapezoid", INTEGRAL, "running integrals along dim by the trapezoidal rule",
  function(y, x, dx, dim) return areas("cumulative_trapezoid", y, x, dx, dim):cumsum(dim) end, "function")

local MOMENTS = "x:T dim:dims? keepdim:bool=false correction:num=1 unbiased:bool=true"
local function with_mean(name, op, summary)
  -- PyTorch's flag behind dim is `unbiased`
  local function prepare(x, dim, flag, ...)
    local named = select("#", ...) > 0 and select(-1, ...)
    local clear = type(named) == "table" and named.unbiased ~= nil
    if type(flag) == "boolean" and not clear then
      options.fail("%s: argument 3: %s by position may mean keepdim or unbiased; " ..
        "write { keepdim = %s } or { unbiased = %s }", name, flag, flag, flag)
    end
    return x, dim, flag, ...
  end
  define.prepared(name, MOMENTS, summary, prepare, function(x, dim, keepdim, correction, unbiased)
    local o = { dim = dim, keepdim = keepdim, correction = unbiased and correction or 0 }
    return op(x, o), x:mean(dim, keepdim)
  end)
end
with_mean("var_mean", core.var, "variance and mean, as two values (unbiased = false: correction 0)")
with_mean("std_mean", core.std, "standard deviation and mean, as two values")
define("aminmax", "x:T dim:dim? keepdim:bool=false", "smallest and largest element, as two values",
  function(x, dim, keepdim) return x:amin(dim, keepdim), x:amax(dim, keepdim) end)
define("nanmean", "x:T dim:dims? keepdim:bool=false dtype:dtype?",
  "the mean of what is not NaN, of x as dtype",
  function(x, dim, keepdim, dtype)
  if dtype then x = x:to(dtype) end
  return x:nansum(dim, keepdim) / x:isnan():logical_not():sum(dim, keepdim)
end)

-- Quantiles of rows that are sorted along the last dim, NaN at their ends; `count` elements of each
-- row are in the order.
local ROUNDED = { linear = "floor", lower = "floor", higher = "ceil", midpoint = "floor", nearest = "round" }
local function of_sorted(sorted, count, qs, interpolation)
  local place = (count - 1):clamp { min = 0 }:double() * qs:reshape(-1)
  local at = place[ROUNDED[interpolation]](place)
  local value = sorted:gather(-1, at:long())
  if interpolation ~= "linear" and interpolation ~= "midpoint" then return value end
  local weight = interpolation == "linear" and place - at or place:ceil():ne(at):double() * 0.5
  return core.lerp(value, sorted:gather(-1, place:ceil():long()), weight:to(sorted.dtype))
end

local QUANTILE = "x:T q:TN dim:dim? keepdim:bool=false " ..
  "interpolation:linear|lower|higher|midpoint|nearest=linear"
local function quantile(where, ignored)
  return function(x, q, dim, keepdim, interpolation)
    if x.dtype ~= "float32" and x.dtype ~= "float64" then
      options.fail("%s: expected float32 or float64, got %s", where, x.dtype)
    end
    local ndim = x.ndim
    if not dim then x, dim = x:reshape(-1), 1 end
    local n = x.shape[dim] or 1
    if n == 0 then options.fail("%s: dim %d of %s is empty", where, dim, lists.shape_text(x)) end
    local qs = core.is_tensor(q) and q:double() or core.tensor(q, { dtype = "float64", device = x.device })
    if qs.ndim > 1 then
      options.fail("%s: q: expected a number or a vector, got %s", where, lists.shape_text(qs))
    end
    if not core.no_grad(function() return qs:ge(0):logical_and(qs:le(1)):all():item() end) then
      options.fail("%s: q must be in [0, 1], got %s", where, options.show(q))
    end
    if x.ndim == 0 then x = x:view(1) end
    local sorted = x:movedim(dim, -1):sort(-1)
    local lost = sorted:isnan()
    local count = lost:logical_not():sum(-1, true)
    if not ignored then count = core.full_like(count, n) end
    local value = of_sorted(sorted, count, qs, interpolation)
    if not ignored then value = value:masked_fill(lost:any(-1, true), 0 / 0) end
    value = value:movedim(-1, 1)
    if keepdim then
      for _ = 1, ndim - value.ndim + 1 do value = value:unsqueeze(value.ndim == 1 and 2 or dim + 1) end
    end
    return qs.ndim == 0 and value:select(1, 1) or value
  end
end
define("quantile", QUANTILE,
  "quantiles of the elements along dim, or of all; a vector q gives a first dim of its size",
  quantile("quantile"))
define("nanquantile", QUANTILE, "quantile of what is not NaN", quantile("nanquantile", true))

define("histc", "x:T bins:int=100 min:num=0 max:num=0",
  "how many elements are in each of `bins` equal parts of [min, max]; " ..
  "where these are equal, of the range of x",
  function(x, bins, min, max)
    if bins < 1 then options.fail("histc: bins must be at least 1, got %d", bins) end
    if x.dtype == "bool" or x:is_complex() then options.fail("histc: not defined for %s", x.dtype) end
    if max < min then options.fail("histc: max (%g) must not be below min (%g)", max, min) end
    return core.no_grad(function()
      local flat = x:reshape(-1)
      if min == max and flat:numel() > 0 then
        min, max = flat:amin():item(), flat:amax():item()
      end
      if not (max - min < math.huge) then
        options.fail("histc: the range from %g to %g is not finite", min, max)
      end
      if min == max then min, max = min - 1, max + 1 end
      local place = (flat - min) * bins / (max - min)
      -- bin 0, which is left out, gets what is outside or NaN
      place = core.where(flat:ge(min):logical_and(flat:le(max)), place, -1):long():add_(1)
      return place:clamp_ { max = bins }:bincount({ minlength = bins + 1 }):narrow(1, 2, bins):to(x.dtype)
    end)
  end)

-- A vector of n weights that may be nil; frequencies are integers.
local function check_weights(name, w, n, whole)
  if not w then return end
  if w.ndim ~= 1 or w:numel() ~= n then
    options.fail("cov: %s: expected a vector of %d numbers, got %s", name, n, lists.shape_text(w))
  end
  if core._is_float(w) and whole then
    options.fail("cov: %s: expected integers, got %s", name, w.dtype)
  end
  if w:numel() > 0 and w:lt(0):any():item() then options.fail("cov: %s must not be below 0", name) end
end

define("cov", "x:T correction:int=1 fweights:T? aweights:T?",
  "covariances of the rows, which are variables; columns are samples, fweights how often each counts, " ..
  "aweights their importance",
  function(x, correction, fweights, aweights)
    if x.ndim > 2 then options.fail("cov: expected at most 2 dims, got %s", lists.shape_text(x)) end
    local rows = x.ndim == 2 and x or x:reshape(1, -1)
    if not core._is_float(rows) and not rows.dtype:find("complex", 1, true) then
      rows = rows:float()
    end
    local n = rows.shape[2]
    check_weights("fweights", fweights, n, true)
    check_weights("aweights", aweights, n)
    local weight = fweights
    if aweights then weight = fweights and aweights * fweights or aweights end
    local divisor, weighted = n - correction, nil
    local mean
    if weight then
      local total = weight:sum()
      mean = (rows * weight):sum(2, true) / total
      weighted = total - correction
      if aweights then weighted = total - correction * (weight * aweights):sum() / total end
      divisor = weighted:item()
    else
      mean = rows:mean(2, true)
    end
    local centred = rows - mean
    local other = centred:conj():t()
    local out = (weight and centred * weight or centred):matmul(other)
    if weight and divisor > 0 then out = out / weighted else out = out / math.max(divisor, 0) end
    return rows.shape[1] == 1 and out:view({}) or out
  end)
define("corrcoef", "x:T", "correlations of the rows, which are variables", function(x)
  if x.ndim > 2 then options.fail("corrcoef: expected at most 2 dims, got %s", lists.shape_text(x)) end
  local c = x:cov()
  if c.ndim == 0 then return c / c end
  local deviation = c:diagonal()
  local complex = c:is_complex()
  deviation = (complex and deviation:real() or deviation):sqrt()
  c = c / deviation:unsqueeze(2) / deviation:unsqueeze(1)
  if complex then return core.complex(c:real():clamp(-1, 1), c:imag():clamp(-1, 1)) end
  return c:clamp(-1, 1)
end)
