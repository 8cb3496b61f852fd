--- nn.functional: resampling of signals, images and volumes, and sampling at given positions.
---
--- Resampling goes dim by dim: an element of the result is a weighted sum of a few neighbours,
--- whose places and weights are the same for all lines of a dim. The op does nearest, linear and
--- bilinear in one pass; the other modes are sums of index_select.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local M = {}

-- ---- neighbours and weights of one dim

-- How far apart results are, in elements of the input.
local function step_of(size_in, size_out, align, factor)
  if align then return size_out > 1 and (size_in - 1) / (size_out - 1) or 0 end
  return factor and 1 / factor or size_in / size_out
end

local function limit(i, size) return math.max(0, math.min(i, size - 1)) end

-- Keys' cubic at distance x.
local function cubic(x, a)
  x = math.abs(x)
  if x < 1 then return ((a + 2) * x - (a + 3)) * x * x + 1 end
  return x < 2 and ((a * x - 5 * a) * x + 8 * a) * x - 4 * a or 0
end

-- Lists of neighbours: taps[k].at[i] (from 0) and taps[k].weight[i] for result i.
local function empty_taps(count)
  local taps = {}
  for k = 1, count do taps[k] = { at = {}, weight = {} } end
  return taps
end

local taps_of = {}

taps_of["nearest"] = function(size_in, size_out, step)
  local taps = empty_taps(1)
  for i = 0, size_out - 1 do taps[1].at[i + 1] = limit(math.floor(i * step), size_in) end
  return taps
end
taps_of["nearest-exact"] = function(size_in, size_out, step)
  local taps = empty_taps(1)
  for i = 0, size_out - 1 do taps[1].at[i + 1] = limit(math.floor((i + 0.5) * step), size_in) end
  return taps
end
taps_of.linear = function(size_in, size_out, step, align)
  local taps = empty_taps(2)
  for i = 0, size_out - 1 do
    local at = align and i * step or math.max(0, (i + 0.5) * step - 0.5)
    local low = limit(math.floor(at), size_in)
    taps[1].at[i + 1], taps[1].weight[i + 1] = low, 1 - (at - low)
    taps[2].at[i + 1], taps[2].weight[i + 1] = limit(low + 1, size_in), at - low
  end
  return taps
end
taps_of.cubic = function(size_in, size_out, step, align)
  local taps = empty_taps(4)
  for i = 0, size_out - 1 do
    local at = align and i * step or (i + 0.5) * step - 0.5
    local low = math.floor(at)
    for k = 1, 4 do
      taps[k].at[i + 1] = limit(low + k - 2, size_in)
      taps[k].weight[i + 1] = cubic(at - (low + k - 2), -0.75)
    end
  end
  return taps
end

-- A filter as wide as the step: all elements under it count, and their weights add up to 1.
local function filtered(reach, filter)
  return function(size_in, size_out, step)
    local wide = math.max(step, 1)
    local support, most = reach * wide, 0
    local windows = {}
    for i = 0, size_out - 1 do
      local center = step * (i + 0.5)
      local from = math.max(math.floor(math.max(center - support + 0.5, 0)), 0)
      local to = math.min(math.floor(center + support + 0.5), size_in)
      local window, total = { from = from }, 0
      for j = from, to - 1 do
        local w = filter((j - center + 0.5) / wide)
        window[#window + 1], total = w, total + w
      end
      for k = 1, #window do window[k] = total ~= 0 and window[k] / total or window[k] end
      windows[i + 1], most = window, math.max(most, #window)
    end
    local taps = empty_taps(most)
    for i, window in ipairs(windows) do
      for k = 1, most do
        taps[k].at[i] = limit(window.from + math.min(k, #window) - 1, size_in)
        taps[k].weight[i] = window[k] or 0
      end
    end
    return taps
  end
end
taps_of["smooth linear"] = filtered(1, function(x) return math.max(0, 1 - math.abs(x)) end)
taps_of["smooth cubic"] = filtered(2, function(x) return cubic(x, -0.5) end)

-- x with dim resampled: the sum over taps of weight * x at the tap's places.
local function along(x, dim, kind, size, align, factor)
  local size_in = x.shape[dim]
  local taps = taps_of[kind](size_in, size, step_of(size_in, size, align, factor), align)
  local shape, sum = {}, nil
  for d = 1, x.ndim do shape[d] = d == dim and size or 1 end
  for _, tap in ipairs(taps) do
    local part = x:index_select(dim, core.tensor(tap.at, { dtype = "int64", device = x.device }))
    if tap.weight[1] then
      part = part * core.tensor(tap.weight, { dtype = x.dtype, device = x.device }):view(shape)
    end
    sum = sum and sum + part or part
  end
  return sum
end

-- ---- interpolate

local INTERPOLATE = {
  size = { "integer|table", optional = true },
  scale_factor = { "number|table", optional = true },
  mode = { "string", default = "nearest",
    one_of = { "nearest", "linear", "bilinear", "bicubic", "trilinear", "area", "nearest-exact" } },
  align_corners = { "boolean", default = false },
  recompute_scale_factor = { "boolean", default = false },
  antialias = { "boolean", default = false },
}
-- the input that a mode needs, and what it does along each dim
local DIMS = { linear = 1, bilinear = 2, bicubic = 2, trilinear = 3 }
local KIND = { nearest = "nearest", ["nearest-exact"] = "nearest-exact", linear = "linear",
  bilinear = "linear",
  trilinear = "linear", bicubic = "cubic" }

local function list_of(name, value, dims)
  if type(value) ~= "table" then
    local all = {}
    for d = 1, dims do all[d] = value end
    return all
  end
  if #value ~= dims then
    options.fail("interpolate: %s: expected a number or a list of %d, got %s", name, dims,
      options.show(value))
  end
  return value
end

-- The sizes of the result, and the factors where positions follow from them.
local function target(x, o)
  local dims, shape, size = x.ndim - 2, x.shape, {}
  if o.size then
    if o.recompute_scale_factor then
      options.fail("interpolate: recompute_scale_factor goes with scale_factor, not with size")
    end
    for d, v in ipairs(list_of("size", o.size, dims)) do
      size[d] = options.value("interpolate", "size", v, { "integer", min = 1, max = 2 ^ 31 - 1 })
    end
    return size, {}
  end
  local factors = list_of("scale_factor", o.scale_factor, dims)
  for d = 1, dims do
    if not (type(factors[d]) == "number" and factors[d] > 0) then
      options.fail("interpolate: scale_factor must be above 0, got %s", options.show(factors[d]))
    end
    size[d] = math.floor(shape[d + 2] * factors[d])
    if size[d] < 1 then
      options.fail("interpolate: scale_factor %.14g makes dim %d of %s empty", factors[d], d + 2,
        options.show(x))
    end
  end
  return size, o.recompute_scale_factor and {} or factors
end

local function check(x, o)
  if (o.size == nil) == (o.scale_factor == nil) then
    options.fail("interpolate: give either size or scale_factor")
  end
  if not core.is_tensor(x) or x.ndim < 3 or x.ndim > 5 or not core._is_float(x) then
    options.fail("interpolate: expected a floating-point tensor (n, c, l), (n, c, h, w) or (n, c, d, h, w), "
      .. "got %s",
      options.show(x))
  end
  local wanted = DIMS[o.mode]
  if wanted and x.ndim ~= wanted + 2 then
    options.fail("interpolate: mode \"%s\" is for inputs of %d dims, got %s", o.mode, wanted + 2,
      options.show(x))
  end
  if o.align_corners and not wanted then
    options.fail("interpolate: align_corners goes with the linear modes and bicubic, not with %s", o.mode)
  end
  if o.antialias and o.mode ~= "bilinear" and o.mode ~= "bicubic" then
    options.fail("interpolate: antialias goes with bilinear and bicubic, not with %s", o.mode)
  end
  for d = 3, x.ndim do
    if x.shape[d] < 1 then options.fail("interpolate: dim %d is empty in %s", d, options.show(x)) end
  end
end

local function area(x, size)
  if #size == 1 then return core.adaptive_avg_pool1d(x, size[1]) end
  if #size == 2 then return core.adaptive_avg_pool2d(x, size) end
  return require("accelerate.nn.functional.pooling").adaptive_avg_pool3d(x, size)
end

--- Resamples (n, c, l), (n, c, h, w) or (n, c, d, h, w) to a size or by a factor.
---@param x accelerate.Tensor
---@param opts { size: integer|integer[], scale_factor: number|number[], mode:
---  "nearest"|"linear"|"bilinear"|"bicubic"|"trilinear"|"area"|"nearest-exact", align_corners:
---  boolean, recompute_scale_factor: boolean, antialias: boolean } area: the mean of what a new
---  element covers; recompute_scale_factor: positions follow from the sizes, not from scale_factor;
---  antialias: bilinear and bicubic filter as widely as the image shrinks
---@return accelerate.Tensor
function M.interpolate(x, opts)
  local o = options.check("interpolate", opts, INTERPOLATE)
  check(x, o)
  local size, factor = target(x, o)
  if o.mode == "area" then return area(x, size) end
  local plain = (o.mode == "nearest" or o.mode == "linear" or o.mode == "bilinear") and not o.antialias
  if plain and x.ndim < 5 then
    return core.interpolate(x, { size = size, mode = o.mode, align_corners = o.align_corners,
      scale_h = factor[1], scale_w = factor[2] })
  end
  local half = x.dtype == "float16" or x.dtype == "bfloat16"
  local y = half and x:float() or x
  local kind = o.antialias and "smooth " .. KIND[o.mode] or KIND[o.mode]
  for d = 1, x.ndim - 2 do y = along(y, d + 2, kind, size[d], o.align_corners, factor[d]) end
  return y:to(x.dtype)
end

--- Resamples as interpolate does: PyTorch's older name.
---@param x accelerate.Tensor
---@param opts table
---@return accelerate.Tensor
function M.upsample(x, opts) return M.interpolate(x, opts) end

-- ---- positions

-- n positions from -1 to 1: of the outermost elements' centers, or of the corners.
local function positions(n, align, like)
  if n == 1 then return core.zeros({ 1 }, { dtype = like.dtype, device = like.device }) end
  local list = {}
  for i = 0, n - 1 do
    local at = -1 + 2 * i / (n - 1)
    list[i + 1] = align and at or at * (n - 1) / n
  end
  return core.tensor(list, { dtype = like.dtype, device = like.device })
end

local ALIGN = { align_corners = { "boolean", default = false } }

--- Returns the positions, for grid_sample, that affine maps give to the elements of an image or a
--- volume.
---@param theta accelerate.Tensor (n, 2, 3) for images, (n, 3, 4) for volumes
---@param size integer[] (n, c, h, w) or (n, c, d, h, w) of the result
---@param ... any align_corners = false, or a table with it
---@return accelerate.Tensor (n, h, w, 2) or (n, d, h, w, 3)
function M.affine_grid(theta, size, ...)
  local o = options.check("affine_grid", options.gather("affine_grid", { "align_corners" }, ...), ALIGN)
  options.value("affine_grid", "size", size, { "list" })
  local dims = #size - 2
  if dims ~= 2 and dims ~= 3 then
    options.fail("affine_grid: size: expected {n, c, h, w} or {n, c, d, h, w}, got %s", options.show(size))
  end
  for i = 1, #size do options.value("affine_grid", "size", size[i], { "integer", min = 1 }) end
  if not core.is_tensor(theta) or theta.ndim ~= 3 or not core._is_float(theta)
    or theta.shape[1] ~= size[1] or theta.shape[2] ~= dims or theta.shape[3] ~= dims + 1 then
    options.fail("affine_grid: theta: expected a floating-point tensor [%d, %d, %d], got %s", size[1], dims,
      dims + 1, options.show(theta))
  end
  local inner, parts, rows = {}, {}, 1
  for d = 1, dims do inner[d], rows = size[d + 2], rows * size[d + 2] end
  for d = dims, 1, -1 do -- x, then y, then z
    local shape = {}
    for k = 1, dims do shape[k] = k == d and inner[d] or 1 end
    parts[#parts + 1] = positions(inner[d], o.align_corners, theta):view(shape):expand(inner)
  end
  parts[#parts + 1] = core.ones(inner, { dtype = theta.dtype, device = theta.device })
  local base = core.stack(parts, dims + 1):view(1, rows, dims + 1)
  local shape = { size[1], unpack(inner) }
  shape[#shape + 1] = dims
  return base:expand(size[1], rows, dims + 1):matmul(theta:transpose(2, 3)):view(shape)
end

return M
