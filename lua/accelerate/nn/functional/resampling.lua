--- nn.functional: resampling of signals, images and volumes, and sampling at given positions.
---
--- Resampling goes dim by dim: an element of the result is a weighted sum of a few neighbours,
--- whose places and weights are the same for all lines of a dim. The op does nearest, linear and
--- bilinear in one pass; the other modes are sums of index_select.

local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

local M = {}

-- ---- neighbours and weights of one dim

-- How far apart results are, in elements of the input.
local function step_of(size_in, size_out, align, factor)
  if align then return size_out > 1 and (size_in - 1) / (size_out - 1) or 0 end
  return factor and 1 / factor or size_in / size_out
end

-- The numbers 0 to n - 1, in float64 as all places and weights are until they are used.
local function counted(n) return core.arange(n, { dtype = "float64" }) end

local function limit(places, size) return places:clamp(0, size - 1) end

-- Keys' cubic at distances x.
local function cubic(x, a)
  x = x:abs()
  local near, far = ((x * (a + 2) - (a + 3)) * x * x) + 1, ((x * a - 5 * a) * x + 8 * a) * x - 4 * a
  return core.where(x:lt(1), near, core.where(x:lt(2), far, 0))
end

-- What gives the neighbours of each result: their places, (taps, results), and their weights; no
-- weights: of one tap, as it is.
local taps_of = {}

taps_of["nearest"] = function(size_in, size_out, step)
  return limit((counted(size_out) * step):floor(), size_in):unsqueeze(1)
end
taps_of["nearest-exact"] = function(size_in, size_out, step)
  return limit(((counted(size_out) + 0.5) * step):floor(), size_in):unsqueeze(1)
end
taps_of.linear = function(size_in, size_out, step, align)
  local at = align and counted(size_out) * step or ((counted(size_out) + 0.5) * step - 0.5):clamp { min = 0 }
  local low = limit(at:floor(), size_in)
  return core.stack({ low, limit(low + 1, size_in) }), core.stack({ (at - low):neg() + 1, at - low })
end
taps_of.cubic = function(size_in, size_out, step, align)
  local at = align and counted(size_out) * step or (counted(size_out) + 0.5) * step - 0.5
  local places = at:floor() + (counted(4) - 1):unsqueeze(2)
  return limit(places, size_in), cubic(at - places, -0.75)
end

-- A filter as wide as the step: all elements under it count, and their weights add up to 1.
local function filtered(reach, filter)
  return function(size_in, size_out, step)
    local wide = math.max(step, 1)
    local center = (counted(size_out) + 0.5) * step
    local from = (center - reach * wide + 0.5):clamp { min = 0 }:floor()
    local to = (center + reach * wide + 0.5):floor():clamp { max = size_in }
    local places = from + counted((to - from):max():item()):unsqueeze(2)
    local weights = filter((places - center + 0.5) / wide):masked_fill(places:ge(to), 0)
    local total = weights:sum(1)
    return limit(places, size_in), weights / total:masked_fill(total:eq(0), 1)
  end
end
taps_of["smooth linear"] = filtered(1, function(x) return (x:abs():neg() + 1):clamp { min = 0 } end)
taps_of["smooth cubic"] = filtered(2, function(x) return cubic(x, -0.5) end)

local FEW = 16 -- taps up to which a sum of selections is cheaper than one selection of all

-- The sum over taps of weight * x at the tap's places along dim.
local function weighted(x, dim, places, weights)
  local size = places.shape[2]
  places = places:long():to(x.device)
  if not weights then return x:index_select(dim, places[1]) end
  weights = weights:to(x.dtype):to(x.device)
  local shape = {}
  for d = 1, x.ndim + 1 do shape[d] = d == dim and places.shape[1] or d == dim + 1 and size or 1 end
  weights = weights:view(shape)
  if places.shape[1] > FEW then
    local all = x:index_select(dim, places:flatten()):unflatten(dim, places.shape)
    return (all * weights):sum(dim)
  end
  local sum
  for k = 1, places.shape[1] do
    local part = x:index_select(dim, places[k]) * weights:select(dim, k)
    sum = sum and sum + part or part
  end
  return sum
end

-- x with dim resampled.
local function along(x, dim, kind, size, align, factor)
  local size_in = x.shape[dim]
  return weighted(x, dim, taps_of[kind](size_in, size, step_of(size_in, size, align, factor), align))
end

-- ---- bytes

-- How many binary digits behind the point weights have, as PyTorch resamples bytes: the largest of
-- them fills 16 bits with its sign.
local function digits_of(weights)
  local most, digits = weights:max():item(), 0
  while digits < 22 and math.floor(0.5 + most * 2 ^ (digits + 1)) < 2 ^ 15 do digits = digits + 1 end
  return digits
end

-- The weights with those of one place, at an edge, added up in the first of its taps.
local function merged(places, weights)
  local rows = { weights:unbind(1) }
  for k = #rows - 1, 1, -1 do
    local same = places[k]:eq(places[k + 1])
    rows[k] = rows[k] + rows[k + 1]:masked_fill(same:logical_not(), 0)
    rows[k + 1] = rows[k + 1]:masked_fill(same, 0)
  end
  return core.stack(rows)
end

-- x, of bytes in float64, with dim resampled: sums of weights of so many digits, rounded to bytes.
local function along_bytes(x, dim, kind, size, align, factor)
  local size_in = x.shape[dim]
  local places, weights = taps_of[kind](size_in, size, step_of(size_in, size, align, factor), align)
  weights = merged(places, weights)
  local scale = 2 ^ digits_of(weights)
  weights = (weights:abs() * scale + 0.5):floor() * weights:sign()
  return ((weighted(x, dim, places, weights) + scale / 2) / scale):floor():clamp(0, 255)
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
local BYTES = { nearest = true, ["nearest-exact"] = true, bilinear = true, bicubic = true }
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

local MOST = 2 ^ 31 - 1 -- elements of a dim

-- Raises where the elements of a result, which is made dim by dim, cannot be counted.
local function check_count(where, lead, size)
  if lead * lists.product(size) > 2 ^ 53 then
    options.fail("%s: a result of %s has too many elements to count", where, lists.shape_text(size))
  end
end

-- The sizes of the result, and the factors where positions follow from them.
local function target(x, o)
  local dims, shape, size = x.ndim - 2, x.shape, {}
  if o.size then
    if o.recompute_scale_factor then
      options.fail("interpolate: recompute_scale_factor goes with scale_factor, not with size")
    end
    for d, v in ipairs(list_of("size", o.size, dims)) do
      size[d] = options.value("interpolate", "size", v, { "integer", min = 1, max = MOST })
    end
    return size, {}
  end
  local factors = list_of("scale_factor", o.scale_factor, dims)
  for d = 1, dims do
    if not (type(factors[d]) == "number" and factors[d] > 0) then
      options.fail("interpolate: scale_factor must be above 0, got %s", options.show(factors[d]))
    end
    size[d] = math.floor(shape[d + 2] * factors[d])
    if size[d] > MOST then
      options.fail("interpolate: scale_factor %.14g makes dim %d of %s %.14g elements long; " ..
        "at most %d are available", factors[d], d + 2, options.show(x), size[d], MOST)
    end
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
  local bytes = core.is_tensor(x) and x.dtype == "uint8" and BYTES[o.mode]
  if not core.is_tensor(x) or x.ndim < 3 or x.ndim > 5 or not (bytes or core._is_float(x)) then
    options.fail("interpolate: expected a floating-point tensor (n, c, l), (n, c, h, w) or " ..
      "(n, c, d, h, w), or one of uint8 for nearest, nearest-exact, bilinear and bicubic, got %s",
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
---@param x accelerate.Tensor floating-point; of uint8 for nearest, nearest-exact, bilinear,
---  bicubic, which are rounded after the width and after the height, as PyTorch does
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
  check_count("interpolate", x.shape[1] * x.shape[2], size)
  if o.mode == "area" then return area(x, size) end
  local kind = o.antialias and "smooth " .. KIND[o.mode] or KIND[o.mode]
  if x.dtype == "uint8" and DIMS[o.mode] then
    local y = x:double()
    for d = 2, 1, -1 do y = along_bytes(y, d + 2, kind, size[d], o.align_corners, factor[d]) end
    return y:byte()
  end
  local plain = x.dtype ~= "uint8" and (o.mode == "nearest" or o.mode == "linear" or o.mode == "bilinear")
    and not o.antialias
  if plain and x.ndim < 5 then
    return core.interpolate(x, { size = size, mode = o.mode, align_corners = o.align_corners,
      scale_h = factor[1], scale_w = factor[2] })
  end
  local half = x.dtype == "float16" or x.dtype == "bfloat16"
  local y = half and x:float() or x
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
  local at = counted(n) * 2 / (n - 1) - 1
  if not align then at = at * (n - 1) / n end
  return at:to(like.dtype):to(like.device)
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
  for i = 1, #size do options.value("affine_grid", "size", size[i], { "integer", min = 1, max = MOST }) end
  check_count("affine_grid", size[1], { unpack(size, 3) })
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
