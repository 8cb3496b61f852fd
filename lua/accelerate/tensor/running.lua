--- Running sums of exponentials; modes and ranks of what is not NaN.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

local where = core.where

-- Combines each position along dim with all before it, in log2(n) passes: `join(now, before)` of
-- lists of tensors, the parts of two neighbouring runs.
local function scan(parts, dim, join)
  local n, step = parts[1].shape[dim], 1
  while step < n do
    local now, before = {}, {}
    for i, part in ipairs(parts) do
      now[i], before[i] = part:narrow(dim, step + 1, n - step), part:narrow(dim, 1, n - step)
    end
    local joined = join(now, before)
    for i, part in ipairs(parts) do
      parts[i] = core.cat({ part:narrow(dim, 1, step), joined[i] }, dim)
    end
    step = step * 2
  end
  return parts
end

-- Positions along dim, in x's shape.
local function places(x, dim)
  local shape = {}
  for d = 1, x.ndim do shape[d] = d == dim and x.shape[dim] or 1 end
  return core.arange(x.shape[dim], { device = x.device }):view(shape):expand(x.shape)
end

define("logcumsumexp", "x:T dim:dim", "the logarithm of the running sum of exp(x) along dim", function(x, dim)
  if x.ndim == 0 or x:numel() == 0 then return x:clone() end
  return scan({ x }, dim, function(now, before) return { core.logaddexp(now[1], before[1]) } end)[1]
end)

local function squeezed(x, dim, keepdim) return keepdim and x or x:squeeze(dim) end

define("mode", "x:T dim:dim=-1 keepdim:bool=false",
  "the most frequent element of dim, the smallest of several, and the position (int64, " ..
  "from 0) of its last occurrence",
  function(x, dim, keepdim)
    if x.ndim == 0 then return x:clone(), core.zeros({}, { dtype = "int64", device = x.device }) end
    if x.shape[dim] == 0 then options.fail("mode: dim %d of %s is empty", dim, lists.shape_text(x)) end
    local at = core.no_grad(function()
      local sorted, from = x:detach():sort(dim)
      local place, n = places(x, dim), x.shape[dim]
      if n > 1 then
        local differs = sorted:narrow(dim, 2, n - 1):ne(sorted:narrow(dim, 1, n - 1))
        local starts = core.cat({ place:narrow(dim, 1, 1), place:narrow(dim, 2, n - 1) * differs:long() },
          dim)
        place = place - (starts:cummax(dim))
      else place = place * 0 end
      return from:gather(dim, place:argmax(dim, true))
    end)
    return squeezed(x:gather(dim, at), dim, keepdim), squeezed(at, dim, keepdim)
  end)

-- A value of x as the largest of what is not above it: its equals share the gradient.
local function shared(x, value)
  local below = core.no_grad(function() return x:le(value) end)
  return where(value:isnan(), value, where(below, x, -math.huge):amax())
end

define("nanmedian", "x:T dim:dim? keepdim:bool=false",
  "the middle element, the lower of two, of what is not NaN; without dim equal ones share the gradient; " ..
  "with dim " ..
  "also its position (int64, from 0)",
  function(x, dim, keepdim)
    local all, flat = not dim, x
    if all then flat, dim = x:reshape(-1), 1 end
    if flat.ndim == 0 then flat, dim = flat:view(1), 1 end
    if flat.shape[dim] == 0 then
      if all then return core.full({}, 0 / 0, { dtype = x.dtype, device = x.device }) end
      options.fail("nanmedian: dim %d of %s is empty", dim, lists.shape_text(x))
    end
    local at = core.no_grad(function()
      local _, from = flat:detach():sort(dim) -- NaN comes last
      local count = flat:isnan():logical_not():sum(dim, true)
      return from:gather(dim, ((count - 1):clamp { min = 0 } / 2):floor():long())
    end)
    local value = squeezed(flat:gather(dim, at), dim, keepdim and not all)
    if all then return x.requires_grad and shared(flat, value) or value end
    if x.ndim == 0 then return value:view({}), at:view({}) end
    return value, squeezed(at, dim, keepdim)
  end)

-- ---- integers

-- Both in their common type; a bool counts as 0 or 1 beside integers.
local function integers(name, a, b)
  for i, t in ipairs { a, b } do
    if core._is_float(t) or t:is_complex() or t.dtype == "bool" and (i == 1 and b or a).dtype == "bool" then
      options.fail("%s: argument %d: expected integers, got %s", name, i, t.dtype)
    end
  end
  local dtype = define.functions.result_type(a, b)
  return a:to(dtype), b:to(dtype)
end

-- Euclid's algorithm, until no element has a remainder.
local function gcd(a, b)
  a, b = define.functions.broadcast_tensors { a:abs(), b:abs() }
  while b:any():item() do
    local zero = b:eq(0)
    a, b = where(zero, a, b), where(zero, b, core.remainder(a, where(zero, core.ones_like(b), b)))
  end
  return a:clone()
end
define("gcd", "a:T b:T", "the greatest common divisor of integers", function(a, b)
  return gcd(integers("gcd", a, b))
end)
define("lcm", "a:T b:T", "the least common multiple of integers", function(a, b)
  a, b = integers("lcm", a, b)
  local common = gcd(a, b)
  return core.floor_divide(a, common:clamp { min = 1 }):mul(b):abs()
end)

define("renorm", "x:T p:num dim:dim maxnorm:num",
  "x with each slice of dim scaled down to a p-norm of at most maxnorm",
  function(x, p, dim, maxnorm)
    if not (p > 0) then options.fail("renorm: p must be above 0, got %g", p) end
    if not (maxnorm >= 0) then options.fail("renorm: maxnorm must be at least 0, got %g", maxnorm) end
    if x.ndim < 2 then options.fail("renorm: expected at least 2 dims, got %s", lists.shape_text(x)) end
    local others = {}
    for d = 1, x.ndim do if d ~= dim then others[#others + 1] = d end end
    local norm = x:norm(p, others, true)
    return x * where(norm:gt(maxnorm), maxnorm / (norm + 1e-7), core.ones_like(norm))
  end)
