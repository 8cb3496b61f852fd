--- Histograms, reductions of segments, slopes of samples.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"


-- ---- histograms

-- The edges of the bins along one dim: a number of equal ones over [low, high], or a vector; of
-- equal ones also low and high, where they are wide enough to be found by a division.
local function edges_of(where, values, bins, range)
  if core.is_tensor(bins) then
    if bins.ndim ~= 1 or bins:numel() < 2 then
      options.fail("%s: bins: expected a vector of at least 2 edges, got %s", where, lists.shape_text(bins))
    end
    if not bins:diff():ge(0):all():item() then
      options.fail("%s: bins: expected edges that rise, got %s", where, options.show(bins:totable()))
    end
    return bins:to(values.dtype)
  end
  if type(bins) ~= "number" or bins < 1 or bins ~= math.floor(bins) then
    options.fail("%s: bins: expected a number from 1 or a vector of edges, got %s", where, options.show(bins))
  end
  local low, high = 0, 1
  if range then low, high = range[1], range[2]
  elseif values:numel() > 0 then low, high = values:amin():item(), values:amax():item() end
  if not (low <= high and high - low < math.huge) then
    options.fail("%s: the range from %g to %g is not finite or falls", where, low, high)
  end
  if low == high then low, high = low - 0.5, high + 0.5 end
  local edges = core.linspace(low, high, bins + 1, { dtype = "float64" })
    :to { dtype = values.dtype, device = values.device }
  local rounding = (values.dtype == "float32" and 2 ^ -23 or 2 ^ -52) * math.max(math.abs(low),
    math.abs(high))
  local wide = bins <= 2 ^ 16 and (high - low) / bins > 16 * rounding
  return edges, wide and { low, high } or nil
end

-- The bin of each value between the first and the last edge, which belongs to the last bin.
local function bin_of(values, edge, line)
  local n = edge:numel() - 1
  if not line then return (core.searchsorted(edge, values, true) - 1):clamp_(0, n - 1) end
  local at = ((values - line[1]) * (n / (line[2] - line[1]))):long():clamp_(0, n - 1)
  -- rounding may have led to a neighbour
  at:sub_(values:lt(edge:index_select(1, at)):long())
  return at:clamp_ { min = 0 }:add_(values:ge(edge:narrow(1, 2, n):index_select(1, at)):long()):clamp_(0,
    n - 1)
end

-- Counts (or sums of weights) of rows of x (n, dims) in the boxes between edges; lines: what
-- edges_of returns beside them, or false.
local function boxes(where, x, edges, lines, weight, density)
  local sizes, inside, place = {}, nil, nil
  for d, edge in ipairs(edges) do
    local values, n = x:select(2, d):contiguous(), edge:numel() - 1
    local at = bin_of(values, edge, lines[d])
    local within = values:ge(edge[1]):logical_and(values:le(edge[-1]))
    inside = inside and inside:logical_and(within) or within
    place = place and place * n + at or at
    sizes[d] = n
  end
  local total = 1
  for _, n in ipairs(sizes) do total = total * n end
  place = place:masked_fill(inside:logical_not(), total)
  local weights = weight and weight:reshape(-1)
    or core.ones(place:numel(), { dtype = x.dtype, device = x.device })
  if weights:numel() ~= place:numel() then
    options.fail("%s: weight: expected one number for each sample (%d), got %s", where, place:numel(),
      lists.shape_text(weight))
  end
  local hist = core.zeros(total + 1, { dtype = x.dtype, device = x.device })
    :index_add(1, place, weights:to(x.dtype)):narrow(1, 1, total):reshape(sizes)
  if not density then return hist end
  hist = hist / hist:sum()
  for d, edge in ipairs(edges) do
    local shape = {}
    for i = 1, #edges do shape[i] = i == d and sizes[d] or 1 end
    hist = hist / edge:diff():view(shape)
  end
  return hist
end

local function check_float(where, x)
  if x.dtype ~= "float32" and x.dtype ~= "float64" then
    options.fail("%s: expected float32 or float64, got %s", where, x.dtype)
  end
end
local function check_range(where, range, count)
  if range == nil then return end
  local ok = type(range) == "table" and #range == count
  for i = 1, ok and count or 0 do ok = ok and type(range[i]) == "number" end
  if not ok then
    options.fail("%s: range: expected %d numbers, got %s", where, count, options.show(range))
  end
end

define("histogram", "x:T bins:any=100 range:any? weight:T? density:bool=false",
  "how many elements, or how much weight, each bin has, and the edges of the bins; bins: a number of " ..
  "equal ones, " ..
  "over range {low, high} or what x spans, or a vector of edges; density: the integral is 1",
  function(x, bins, range, weight, density)
    check_float("histogram", x)
    check_range("histogram", range, 2)
    return core.no_grad(function()
      local flat = x:reshape(-1, 1)
      local edges, line = edges_of("histogram", flat, bins == nil and 100 or bins, range)
      return boxes("histogram", flat, { edges }, { line or false }, weight, density), edges
    end)
  end)
define("histogramdd", "x:T bins:any range:any? weight:T? density:bool=false",
  "the histogram of points, the last dim of x, and a list of the edges along each dim; bins: a number, " ..
  "or a list of " ..
  "numbers or of vectors of edges; range: low and high of each dim in one list",
  function(x, bins, range, weight, density)
    check_float("histogramdd", x)
    if x.ndim < 2 then options.fail("histogramdd: expected at least 2 dims, got %s", lists.shape_text(x)) end
    local dims = x.shape[x.ndim]
    check_range("histogramdd", range, 2 * dims)
    if type(bins) == "table" and #bins ~= dims then
      options.fail("histogramdd: bins: expected an entry for each of %d dims, got %d", dims, #bins)
    end
    return core.no_grad(function()
      local rows, edges, lines = x:reshape(-1, dims), {}, {}
      for d = 1, dims do
        local of = bins
        if type(bins) == "table" then of = bins[d] end
        local line
        edges[d], line = edges_of("histogramdd", rows:select(2, d), of,
          range and { range[2 * d - 1], range[2 * d] })
        lines[d] = line or false
      end
      return boxes("histogramdd", rows, edges, lines, weight, density), edges
    end)
  end)

-- ---- segments

local STARTS = { sum = 0, mean = 0, prod = 1, max = -math.huge, min = math.huge }
local function segments(x, reduce, lengths, offsets, axis, unsafe, initial)
  local where = "segment_reduce"
  if not core._is_float(x) then
    options.fail("%s: expected a floating-point tensor, got %s", where, x.dtype)
  end
  if (lengths == nil) == (offsets == nil) then options.fail("%s: expected lengths or offsets", where) end
  local given = lengths or offsets
  if given.dtype ~= "int64" or given.ndim ~= axis then
    options.fail("%s: expected int64 of %d dims for dim %d, got %s %s", where, axis, axis, given.dtype,
      lists.shape_text(given))
  end
  lengths = lengths or offsets:diff()
  local shape, outer, inner = x.shape, 1, 1
  for d = 1, axis - 1 do
    if lengths.shape[d] ~= shape[d] then
      options.fail("%s: %s does not begin as x, %s", where, lists.shape_text(lengths), lists.shape_text(x))
    end
    outer = outer * shape[d]
  end
  for d = axis + 1, #shape do inner = inner * shape[d] end
  local count = lengths.shape[axis]
  if not unsafe then
    local bad = lengths:lt(0):any():logical_or(lengths:sum(-1):ne(shape[axis]):any()):item()
    if bad then
      options.fail("%s: lengths along dim %d must add up to its size, %d", where, axis, shape[axis])
    end
  end
  local rows = x:reshape(outer * shape[axis], inner)
  local ids = core.arange(outer * count, { device = x.device }):repeat_interleave(lengths:reshape(-1))
  local start = initial or STARTS[reduce]
  local out = core.full({ outer * count, inner }, start, { dtype = x.dtype, device = x.device })
  local kind = ({ max = "amax", min = "amin", prod = "prod" })[reduce]
  if kind then out = out:index_reduce(1, ids, rows, kind) else out = out:index_add(1, ids, rows) end
  if reduce == "mean" then
    local n = lengths:reshape(-1, 1):to(x.dtype)
    out = out / (initial and n:clamp { min = 1 } or n)
  end
  shape[axis] = count
  return out:reshape(shape)
end
define("segment_reduce",
  "x:T reduce:sum|mean|max|min|prod lengths:T? indices:T? offsets:T? " ..
  "axis:dim=1 unsafe:bool=false initial:num?",
  "reduces runs of positions of a dim: lengths (int64) has the size of each, offsets where each begins " ..
  "and the end, " ..
  "after the dims before axis; initial: what each begins with, and the result of an empty one",
  function(x, reduce, lengths, indices, offsets, axis, unsafe, initial)
    if indices then options.fail("segment_reduce: indices are not available; give lengths or offsets") end
    return segments(x, reduce, lengths, offsets, axis, unsafe, initial)
  end)

-- ---- slopes

-- Slopes along dim of samples at distances: one number, or a vector of places.
local function slope(x, dim, spacing, order)
  local n = x.shape[dim]
  if n < order + 1 then
    options.fail("gradient: dim %d of %s needs at least %d positions", dim, lists.shape_text(x), order + 1)
  end
  local function part(from, length) return x:narrow(dim, from, length) end
  local first, last = part(1, 1), part(n, 1)
  if not core.is_tensor(spacing) then
    local h = spacing
    local left, right = (part(2, 1) - first) / h, (last - part(n - 1, 1)) / h
    if order == 2 then
      left = (part(2, 1) * 2 - first * 1.5 - part(3, 1) * 0.5) / h
      right = (last * 1.5 - part(n - 1, 1) * 2 + part(n - 2, 1) * 0.5) / h
    end
    return core.cat({ left, (part(3, n - 2) - part(1, n - 2)) / (2 * h), right }, dim)
  end
  if spacing.ndim ~= 1 or spacing:numel() ~= n then
    options.fail("gradient: spacing: expected a vector of %d places, got %s", n, lists.shape_text(spacing))
  end
  local shape = {}
  for d = 1, x.ndim do shape[d] = d == dim and -1 or 1 end
  local steps = spacing:diff():to(x.dtype):view(shape)
  local before, after = steps:narrow(dim, 1, n - 2), steps:narrow(dim, 2, n - 2)
  local inside = part(1, n - 2) * (-after / (before * (before + after)))
    + part(2, n - 2) * ((after - before) / (before * after)) + part(3,
      n - 2) * (before / (after * (before + after)))
  local a, b = steps:narrow(dim, 1, 1), steps:narrow(dim, n - 1, 1)
  local left, right = (part(2, 1) - first) / a, (last - part(n - 1, 1)) / b
  if order == 2 then
    local c, d = steps:narrow(dim, 2, 1), steps:narrow(dim, n - 2, 1)
    left = first * (-(a * 2 + c) / (a * (a + c))) + part(2, 1) * ((a + c) / (a * c)) - part(3,
      1) * (a / (c * (a + c)))
    right = part(n - 2, 1) * (b / (d * (b + d))) - part(n - 1, 1) * ((b + d) / (d * b))
      + last * ((b * 2 + d) / (b * (b + d)))
  end
  return core.cat({ left, inside, right }, dim)
end

define("gradient", "x:T spacing:any? dim:dims? edge_order:int=1",
  "slopes of samples along each dim (or those listed), several values: central differences, and at the " ..
  "ends of order " ..
  "edge_order; spacing: a number, or a list with a number or a vector of places for each dim",
  function(x, spacing, dim, edge_order)
    if edge_order ~= 1 and edge_order ~= 2 then
      options.fail("gradient: edge_order must be 1 or 2, got %d", edge_order)
    end
    if not dim then
      dim = {}
      for d = 1, x.ndim do dim[d] = d end
    end
    if not core._is_float(x) and not x.dtype:find("complex", 1, true) then x = x:float() end
    local out, seen = {}, {}
    for i, d in ipairs(dim) do
      if seen[d] then options.fail("gradient: dim %d is listed twice", d) end
      seen[d] = true
      local h = spacing == nil and 1 or spacing
      if type(h) == "table" then
        if #h ~= #dim then
          options.fail("gradient: spacing: expected an entry for each of %d dims, got %d", #dim, #h)
        end
        h = h[i]
      end
      if type(h) ~= "number" and not core.is_tensor(h) then
        options.fail("gradient: spacing: expected a number or a vector of places, got %s", options.show(h))
      end
      if core.is_tensor(h) and h.ndim == 0 then h = h:item() end
      out[i] = slope(x, d, h, edge_order)
    end
    return unpack(out)
  end)
