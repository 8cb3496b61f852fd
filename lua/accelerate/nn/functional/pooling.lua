--- nn.functional: pooling of volumes, unpooling and pooling by powers, built from the ops for
--- planes.
---
--- The largest element and the mean of a box are those of its planes, taken first along height and
--- width and then along the depth. Between the two steps the memory has channels innermost, as the
--- ops want it, so nothing is copied.

local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local sizes = require "accelerate.nn.sizes"

local M = {}

local ANY = { "integer|table", optional = true }

local function text(x) return core.is_tensor(x) and options.show(x) or type(x) end

-- Checks x, calls fn with a batch, and takes a batch of one away again.
local function batched(where, x, fn)
  if not core.is_tensor(x) or (x.ndim ~= 4 and x.ndim ~= 5) then
    options.fail("%s: expected (n, c, d, h, w) or (c, d, h, w), got %s", where, text(x))
  end
  if x.ndim == 5 then return fn(x) end
  local values, indices = fn(x:unsqueeze(1))
  return values:squeeze(1), indices and indices:squeeze(1)
end

-- (n, c, d, h, w) as (n d, c, h, w), and the results of both steps back.
local function planes_of(x)
  local n, c, d, h, w = unpack(x.shape)
  return x:permute(1, 3, 4, 5, 2):reshape(n * d, h, w, c):permute(1, 4, 2, 3)
end
local function columns_of(y, n, d)
  local _, c, h, w = unpack(y.shape)
  return y:permute(1, 3, 4, 2):reshape(n, d, h * w, c):permute(1, 4, 2, 3)
end
local function volume_of(y, h, w)
  local n, c, d = unpack(y.shape)
  return y:permute(1, 3, 4, 2):reshape(n, d, h, w, c):permute(1, 5, 2, 3, 4)
end

-- Runs plane(x) over height and width, then column(x) over the depth; both may return positions.
local function in_two_steps(x, plane, column)
  local n, d = x.shape[1], x.shape[3]
  local first, inside = plane(planes_of(x))
  local h, w = first.shape[3], first.shape[4]
  local second, at = column(columns_of(first, n, d))
  local values = volume_of(second, h, w)
  if not at then return values end
  -- at: depth * (h w) + column, from 0; -1 in either step where a window is in the padding alone
  local rows = at:flatten(3)
  local depth = rows:floor_divide(h * w)
  local planar = columns_of(inside, n, d):flatten(3):gather(3, rows:clamp { min = 0 })
  local places = (planar + depth * (x.shape[4] * x.shape[5])):masked_fill(planar:minimum(rows):lt(0), -1)
  return values, volume_of(places:view(at.shape), h, w)
end

local function triple(where, name, value, min) return sizes.tuple(where, name, value, 3, min) end
local function last_two(list) return { list[2], list[3] } end
local function first_of(list, other) return { list[1], other } end

-- What a dim lacks to hold one window is reported with its number and the input's shape.
local function check_windows(where, x, o)
  for d = 1, 3 do
    local size, span = x.shape[d + 2], o.dilation[d] * (o.kernel_size[d] - 1) + 1
    if size < 1 then options.fail("%s: nothing to pool in dim %d of %s", where, d + 2, options.show(x)) end
    if o.padding[d] > math.floor(o.kernel_size[d] / 2) then
      options.fail("%s: padding must be within 0 and half of the kernel (%d), got %d", where,
        math.floor(o.kernel_size[d] / 2), o.padding[d])
    end
    if size + 2 * o.padding[d] < span then
      options.fail("%s: a window of %d does not fit the padded input %s", where, span, options.show(x))
    end
  end
end

-- The sizes of windows as lists of three.
local function windows(where, kernel_size, o)
  o.kernel_size = triple(where, "kernel_size", kernel_size, 1)
  o.stride = o.stride == nil and o.kernel_size or triple(where, "stride", o.stride, 1)
  o.padding = triple(where, "padding", o.padding, 0)
  o.dilation = triple(where, "dilation", o.dilation or 1, 1)
  return o
end

-- ---- the largest

local MAX_ORDER = { "stride", "padding", "dilation", "ceil_mode", "return_indices" }
local MAX = {
  stride = ANY,
  padding = { "integer|table", default = 0 },
  dilation = { "integer|table", default = 1 },
  ceil_mode = { "boolean", default = false },
  return_indices = { "boolean", default = false },
}

local function max_pool(o, first, last)
  local pool = o.return_indices and core.max_pool2d_with_indices or core.max_pool2d
  return function(x)
    return pool(x, first(o.kernel_size), first(o.stride), last(o.padding), first(o.dilation), o.ceil_mode)
  end
end

--- Takes the largest of each window of (n, c, d, h, w); with return_indices also its place in the
--- volume.
---@param x accelerate.Tensor (n, c, d, h, w) or (c, d, h, w)
---@param kernel_size integer|integer[]
---@param ... any stride (default kernel_size), padding = 0, dilation = 1, ceil_mode = false,
---  return_indices = false, or a table of them
---@return accelerate.Tensor values
---@return accelerate.Tensor? indices int64, from 0
function M.max_pool3d(x, kernel_size, ...)
  local where = "max_pool3d"
  local o = windows(where, kernel_size, options.check(where, options.gather(where, MAX_ORDER, ...), MAX))
  return batched(where, x, function(volume)
    check_windows(where, volume, o)
    local function depth(list) return first_of(list, 1) end
    return in_two_steps(volume, max_pool(o, last_two, last_two), max_pool(o, depth,
      function(list) return first_of(list, 0) end))
  end)
end

local SIZE = { output_size = { "integer|table" }, return_indices = { "boolean", default = false } }

local function adaptive(where, x, o, pool)
  local size = triple(where, "output_size", o.output_size, -1)
  for _, n in ipairs(size) do
    if n == 0 then
      options.fail("%s: output_size must be at least 1, or -1 for the input's size, got 0", where)
    end
  end
  return batched(where, x, function(volume)
    return in_two_steps(volume, function(planes) return pool(planes, last_two(size)) end,
      function(columns) return pool(columns, { size[1], columns.shape[4] }) end)
  end)
end

--- Takes the largest of each of output_size boxes that cover a volume.
---@param x accelerate.Tensor (n, c, d, h, w) or (c, d, h, w)
---@param ... any output_size (an integer or a list of three, -1 for the input's), return_indices =
---  false, or a table of them
---@return accelerate.Tensor values
---@return accelerate.Tensor? indices int64, from 0
function M.adaptive_max_pool3d(x, ...)
  local where = "adaptive_max_pool3d"
  local o = options.check(where, options.gather(where, { "output_size", "return_indices" }, ...), SIZE)
  return adaptive(where, x, o, o.return_indices and core.adaptive_max_pool2d_with_indices
    or core.adaptive_max_pool2d)
end

-- ---- means

local AVG_ORDER = { "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override" }
local AVG = {
  stride = ANY,
  padding = { "integer|table", default = 0 },
  ceil_mode = { "boolean", default = false },
  count_include_pad = { "boolean", default = true },
  divisor_override = { "integer", optional = true },
}

--- Averages each window of (n, c, d, h, w).
---@param x accelerate.Tensor (n, c, d, h, w) or (c, d, h, w)
---@param kernel_size integer|integer[]
---@param ... any stride (default kernel_size), padding = 0, ceil_mode = false, count_include_pad =
---  true, divisor_override, or a table of them
---@return accelerate.Tensor
function M.avg_pool3d(x, kernel_size, ...)
  local where = "avg_pool3d"
  local o = windows(where, kernel_size, options.check(where, options.gather(where, AVG_ORDER, ...), AVG))
  if o.divisor_override == 0 then options.fail("%s: divisor_override must not be 0", where) end
  local sum = o.divisor_override and 1 -- the first step adds up, the second divides
  return batched(where, x, function(volume)
    check_windows(where, volume, o)
    return in_two_steps(volume, function(planes)
      return core.avg_pool2d(planes, last_two(o.kernel_size), last_two(o.stride), last_two(o.padding),
        o.ceil_mode, o.count_include_pad, sum)
    end, function(columns)
      return core.avg_pool2d(columns, first_of(o.kernel_size, 1), first_of(o.stride, 1),
        first_of(o.padding, 0), o.ceil_mode, o.count_include_pad, o.divisor_override)
    end)
  end)
end

--- Averages each of output_size boxes that cover a volume.
---@param x accelerate.Tensor (n, c, d, h, w) or (c, d, h, w)
---@param output_size integer|integer[]
---@return accelerate.Tensor
function M.adaptive_avg_pool3d(x, output_size)
  return adaptive("adaptive_avg_pool3d", x, { output_size = output_size }, core.adaptive_avg_pool2d)
end

--- max_pool3d with return_indices.
---@param x accelerate.Tensor
---@param kernel_size integer|integer[]
---@param ... any stride, padding, dilation, ceil_mode, or a table of them
---@return accelerate.Tensor values
---@return accelerate.Tensor indices int64, from 0
function M.max_pool3d_with_indices(x, kernel_size, ...)
  local o = options.gather("max_pool3d_with_indices", { "stride", "padding", "dilation", "ceil_mode" }, ...)
  local with = { return_indices = true }
  for key, value in next, o or {} do with[key] = value end
  return M.max_pool3d(x, kernel_size, with)
end

--- adaptive_max_pool3d with return_indices.
---@param x accelerate.Tensor
---@param output_size integer|integer[]
---@return accelerate.Tensor values
---@return accelerate.Tensor indices int64, from 0
function M.adaptive_max_pool3d_with_indices(x, output_size)
  return M.adaptive_max_pool3d(x, { output_size = output_size, return_indices = true })
end

-- ---- powers

local LP_ORDER = { "stride", "ceil_mode" }
local LP = { stride = ANY, ceil_mode = { "boolean", default = false } }

local function lp_pool(name, dims, pool)
  return function(x, norm_type, kernel_size, ...)
    local o = options.check(name, options.gather(name, LP_ORDER, ...), LP)
    options.value(name, "norm_type", norm_type, { "number" })
    if norm_type == 0 then options.fail("%s: norm_type must not be 0", name) end
    local kernel, count = sizes.tuple(name, "kernel_size", kernel_size, dims, 1), 1
    for d = 1, dims do count = count * kernel[d] end
    local stride = o.stride == nil and kernel or sizes.tuple(name, "stride", o.stride, dims, 1)
    if dims == 1 then kernel, stride = kernel[1], stride[1] end
    local mean = pool(x ^ norm_type, kernel, { stride = stride, ceil_mode = o.ceil_mode })
    return ((mean:sign() * mean:abs():relu()) * count) ^ (1 / norm_type)
  end
end

--- Computes (sum of x^norm_type)^(1 / norm_type) of each window of (n, c, l): (x, norm_type,
--- kernel_size, stride = kernel_size, ceil_mode = false).
---@type fun(x: accelerate.Tensor, norm_type: number, kernel_size: integer, ...: any):
---  accelerate.Tensor
M.lp_pool1d = lp_pool("lp_pool1d", 1, core.avg_pool1d)
--- Computes (sum of x^norm_type)^(1 / norm_type) of each window of (n, c, h, w): the arguments of
--- lp_pool1d.
---@type fun(x: accelerate.Tensor, norm_type: number, kernel_size: integer|integer[], ...: any):
---  accelerate.Tensor
M.lp_pool2d = lp_pool("lp_pool2d", 2, core.avg_pool2d)
--- Computes (sum of x^norm_type)^(1 / norm_type) of each window of (n, c, d, h, w): the arguments
--- of lp_pool1d.
---@type fun(x: accelerate.Tensor, norm_type: number, kernel_size: integer|integer[], ...: any):
---  accelerate.Tensor
M.lp_pool3d = lp_pool("lp_pool3d", 3, M.avg_pool3d)

-- ---- unpooling

local UNPOOL_ORDER = { "stride", "padding", "output_size" }
local UNPOOL = { stride = ANY, padding = { "integer|table", default = 0 },
  output_size = { "list", optional = true } }

-- The sizes of the result: output_size, whose last entries must be near what the windows give.
local function unpooled_size(where, dims, x, o)
  local shape, size, count = x.shape, {}, 1
  local given = o.output_size
  if given and #given ~= dims and #given ~= #shape then
    options.fail("%s: output_size: expected %d or %d sizes, got %s", where, dims, #shape,
      options.show(given))
  end
  for d = 1, dims do
    local plain = (shape[#shape - dims + d] - 1) * o.stride[d] - 2 * o.padding[d] + o.kernel_size[d]
    size[d] = plain
    if given then
      size[d] = options.value(where, "output_size", given[#given - dims + d], { "integer" })
      if math.abs(size[d] - plain) >= o.stride[d] then
        options.fail("%s: output_size: dim %d must be from %d to %d, got %d", where, d,
          plain - o.stride[d] + 1, plain + o.stride[d] - 1, size[d])
      end
    end
    if size[d] < 1 then
      options.fail("%s: input %s gives a result with dim %d of %d", where, options.show(x), d, size[d])
    end
    count = count * size[d]
  end
  if count > 2 ^ 53 then
    options.fail("%s: windows of %s at steps of %s give input %s a result of %g elements", where,
      lists.shape_text(o.kernel_size), lists.shape_text(o.stride), options.show(x), count)
  end
  return size
end

local function max_unpool(where, dims)
  return function(x, indices, kernel_size, ...)
    local o = options.check(where, options.gather(where, UNPOOL_ORDER, ...), UNPOOL)
    o.kernel_size = sizes.tuple(where, "kernel_size", kernel_size, dims, 1)
    o.stride = o.stride == nil and o.kernel_size or sizes.tuple(where, "stride", o.stride, dims, 1)
    o.padding = sizes.tuple(where, "padding", o.padding, dims, 0)
    if not core.is_tensor(x) or (x.ndim ~= dims + 1 and x.ndim ~= dims + 2) then
      options.fail("%s: expected an input of %d or %d dims, got %s", where, dims + 1, dims + 2, text(x))
    end
    if not core.is_tensor(indices) or indices.dtype ~= "int64"
      or not lists.same(indices.shape, x.shape) then
      options.fail("%s: indices: expected int64 of the input's shape, %s, got %s", where, options.show(x),
        options.show(indices))
    end
    local size, lead, count = unpooled_size(where, dims, x, o), x.shape, 1
    for d = 1, dims do
      lead[#lead] = nil
      count = count * size[d]
    end
    local rows = { unpack(lead) }
    rows[#rows + 1] = count
    for d = 1, dims do lead[#lead + 1] = size[d] end
    local zeros = core.zeros(rows, { dtype = x.dtype, device = x.device })
    return zeros:scatter(-1, indices:flatten(-dims), x:flatten(-dims)):view(lead)
  end
end

--- Puts each element of (n, c, l) at the place that max_pool1d's indices give, zeros elsewhere: (x,
--- indices, kernel_size, stride = kernel_size, padding = 0, output_size?).
---@type fun(x: accelerate.Tensor, indices: accelerate.Tensor, kernel_size: integer, ...: any):
---  accelerate.Tensor
M.max_unpool1d = max_unpool("max_unpool1d", 1)
--- Puts each element of (n, c, h, w) at the place that max_pool2d's indices give, zeros elsewhere:
--- the arguments of max_unpool1d.
---@type fun(x: accelerate.Tensor, indices: accelerate.Tensor, kernel_size: integer|integer[], ...:
---  any): accelerate.Tensor
M.max_unpool2d = max_unpool("max_unpool2d", 2)
--- Puts each element of (n, c, d, h, w) at the place that max_pool3d's indices give, zeros
--- elsewhere: the arguments of max_unpool1d.
---@type fun(x: accelerate.Tensor, indices: accelerate.Tensor, kernel_size: integer|integer[], ...:
---  any): accelerate.Tensor
M.max_unpool3d = max_unpool("max_unpool3d", 3)

return M
