--- Cases of the rows in host/core/ops/pool.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, each = H.range, H.each

local function planes(x, f) return each(x, function(n) return each(n, f) end) end

local function largest(list) return math.max(unpack(list)) end
local function average(list) return H.sum(list) / #list end

--- f over the elements of windows [first(i), last(i)] of a list.
local function windows(row, count, first, last, f)
  local out = {}
  for i = 1, count do
    local inside = {}
    for at = math.max(1, first(i)), math.min(#row, last(i)) do inside[#inside + 1] = row[at] end
    out[i] = f(inside)
  end
  return out
end

local function steps(size, step, padding)
  return function(i)
    return (i - 1) * step - padding + 1
  end, function(i) return (i - 1) * step - padding + size end
end

local function shares(size, count)
  return function(i)
    return math.floor((i - 1) * size / count) + 1
  end, function(i) return math.ceil(i * size / count) end
end

--- The same along both dims of a plane, one after the other (as largest and, over windows of one
--- size, average may be).
local function both(plane, rows, cols, first_r, last_r, first_c, last_c, f)
  local wide = each(plane, function(row) return windows(row, cols, first_c, last_c, f) end)
  local turned = each(H.columns(wide), function(col) return windows(col, rows, first_r, last_r, f) end)
  return H.columns(turned)
end

local IMAGE, SIGNAL = { 2, 2, 4, 5 }, { 2, 2, 7 }
local function image(name, call, f, rows, cols, ...)
  local bounds = { ... }
  C[name] = { inputs = { range(-2, 2, IMAGE) }, call = call, ref = function(x)
    return planes(x,
      function(plane) return both(plane, rows, cols, bounds[1], bounds[2], bounds[3], bounds[4], f) end)
  end }
end
local function signal(name, call, f, count, first, last)
  C[name] = { inputs = { range(-2, 2, SIGNAL) }, call = call, ref = function(x)
    return planes(x, function(row) return windows(row, count, first, last, f) end)
  end }
end

local ra, rb = steps(3, 2, 1)
local ca, cb = steps(2, 1, 0)
image("max_pool2d",
  function(x)
    return core.max_pool2d(x, { 3, 2 }, { stride = { 2, 1 }, padding = { 1, 0 } })
  end, largest, 2, 4, ra, rb, ca, cb)
image("avg_pool2d",
  function(x)
    return core.avg_pool2d(x, { 3, 2 }, { stride = { 2, 1 }, padding = { 1, 0 }, count_include_pad = false })
  end, average, 2, 4, ra, rb, ca, cb)
signal("max_pool1d", function(x) return core.max_pool1d(x, 3, { stride = 2, padding = 1 }) end, largest, 4,
  ra, rb)
signal("avg_pool1d", function(x) return core.avg_pool1d(x, 2, { stride = 1 }) end, average, 6, ca, cb)
local a3, b3 = shares(4, 3)
local a2, b2 = shares(5, 2)
local a4, b4 = shares(7, 4)
image("adaptive_avg_pool2d", function(x) return core.adaptive_avg_pool2d(x, { 3, 2 }) end, average, 3, 2, a3,
  b3, a2, b2)
image("adaptive_max_pool2d", function(x) return core.adaptive_max_pool2d(x, { 3, 2 }) end, largest, 3, 2, a3,
  b3, a2, b2)
signal("adaptive_avg_pool1d", function(x) return core.adaptive_avg_pool1d(x, 4) end, average, 4, a4, b4)
signal("adaptive_max_pool1d", function(x) return core.adaptive_max_pool1d(x, 4) end, largest, 4, a4, b4)
for _, name in ipairs { "_max_pool", "_pool_scatter", "_pool_take" } do
  C[name] = { through = "max_pool2d" }
end
for _, name in ipairs { "_avg_pool", "_avg_pool_backward" } do C[name] = { through = "avg_pool2d" } end

-- The largest of a window of a list, and its place from 0.
local function best(row, from, to)
  local at = math.max(from, 1)
  for i = at, math.min(to, #row) do if row[i] > row[at] then at = i end end
  return row[at], at - 1
end
local function rows_with_places(x, bounds)
  local values, places = {}, {}
  for n, sample in ipairs(x) do
    values[n], places[n] = {}, {}
    for c, row in ipairs(sample) do
      values[n][c], places[n][c] = {}, {}
      for i, b in ipairs(bounds) do values[n][c][i], places[n][c][i] = best(row, b[1], b[2]) end
    end
  end
  return values, places
end
C.max_pool1d_with_indices = { inputs = { range(-2, 2, SIGNAL) },
  call = function(x) return core.max_pool1d_with_indices(x, 3, { stride = 2, padding = 1 }) end,
  ref = function(x) return rows_with_places(x, { { 0, 2 }, { 2, 4 }, { 4, 6 }, { 6, 8 } }) end }
C.adaptive_max_pool1d_with_indices = { inputs = { range(-2, 2, SIGNAL) },
  call = function(x) return core.adaptive_max_pool1d_with_indices(x, 3) end,
  ref = function(x) return rows_with_places(x, { { 1, 3 }, { 3, 5 }, { 5, 7 } }) end }
-- planes of one column
local function column(call)
  return function(x)
    local values, places = call(x:unsqueeze(-1))
    return values:squeeze(-1), places:squeeze(-1)
  end
end
C.max_pool2d_with_indices = { inputs = { range(-2, 2, SIGNAL) },
  call = column(function(x)
    return core.max_pool2d_with_indices(x, { 3, 1 }, { stride = { 2, 1 }, padding = { 1, 0 } })
  end),
  ref = C.max_pool1d_with_indices.ref }
C.adaptive_max_pool2d_with_indices = { inputs = { range(-2, 2, SIGNAL) },
  call = column(function(x) return core.adaptive_max_pool2d_with_indices(x, { 3, 1 }) end),
  ref = C.adaptive_max_pool1d_with_indices.ref }
