--- nn.functional: pooling over windows that begin at random places (Graham 2014), built from ops.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local sizes = require "accelerate.nn.sizes"

local M = {}

local ORDER = { "output_size", "output_ratio", "return_indices", "_random_samples" }
local OPTIONS = {
  output_size = { "integer|table", optional = true },
  output_ratio = { "number|table", optional = true },
  return_indices = { "boolean", default = false },
  _random_samples = { "tensor", optional = true },
}

local function spatial_text(dims) return dims == 2 and "h, w" or "d, h, w" end

-- output_size as a list, from itself or as a share of the input's sizes.
local function target(where, x, dims, kernel, o)
  if (o.output_size == nil) == (o.output_ratio == nil) then
    options.fail("%s: give output_size or output_ratio, one of the two", where)
  end
  local size = {}
  if o.output_size ~= nil then
    size = sizes.tuple(where, "output_size", o.output_size, dims, 1)
  else
    for d = 1, dims do
      local ratio = type(o.output_ratio) == "table" and o.output_ratio[d] or o.output_ratio
      options.value(where, "output_ratio", ratio, { "number", above = 0, below = 1 })
      size[d] = math.floor(x.shape[d + 2] * ratio)
    end
  end
  for d = 1, dims do
    if size[d] < 1 or size[d] + kernel[d] - 1 > x.shape[d + 2] then
      options.fail("%s: %d windows of %d do not fit dim %d of %s", where, size[d], kernel[d], d + 2,
        options.show(x))
    end
  end
  return size
end

-- Where the windows of a dim begin, (n, c, count), from a number of 0 to 1 for each plane.
local function begins(sample, size, count, kernel)
  local last = core.full({ sample.shape[1], sample.shape[2], 1 }, size - kernel,
    { dtype = "int64", device = sample.device })
  if count == 1 then return last end
  local step = (size - kernel) / (count - 1)
  local places = core.arange(count - 1, { device = sample.device }):to(sample.dtype)
  local u = sample:unsqueeze(-1)
  local first = ((places + u) * step):long() - (u * step):long()
  return core.cat({ first, last }, 3)
end

-- Places in the plane: (n, c, windows, elements of a window), row by row.
local function places_of(x, kernel, size, samples, dims)
  local places
  for d = 1, dims do
    -- PyTorch takes the numbers of planes from the last dim on
    local sample = samples:select(3, dims == 2 and 3 - d or d)
    local at = begins(sample, x.shape[d + 2], size[d], kernel[d]):unsqueeze(-1)
      + core.arange(kernel[d], { device = x.device })
    if not places then
      places = at
    else
      local n, c, windows, elements = unpack(places.shape)
      places = (places:view(n, c, windows, 1, elements, 1) * x.shape[d + 2]
        + at:view(n, c, 1, size[d], 1, kernel[d])):reshape(n, c, windows * size[d], elements * kernel[d])
    end
  end
  return places
end

local function pool(where, dims, x, kernel_size, ...)
  local o = options.check(where, options.gather(where, ORDER, ...), OPTIONS)
  local kernel = sizes.tuple(where, "kernel_size", kernel_size, dims, 1)
  if not core.is_tensor(x) or (x.ndim ~= dims + 1 and x.ndim ~= dims + 2)
    or not core._is_float(x) then
    options.fail("%s: expected a floating-point (n, c, %s) or (c, %s), got %s", where, spatial_text(dims),
      spatial_text(dims), options.show(x))
  end
  local single = x.ndim == dims + 1
  if single then x = x:unsqueeze(1) end
  local size = target(where, x, dims, kernel, o)
  local n, c = x.shape[1], x.shape[2]
  local samples = o._random_samples or core.rand({ n, c, dims }, { dtype = x.dtype, device = x.device })
  if table.concat(samples.shape, ",") ~= ("%d,%d,%d"):format(n, c, dims) or samples.dtype ~= x.dtype then
    options.fail("%s: _random_samples: expected %s of shape [%d, %d, %d], got %s", where, x.dtype, n, c, dims,
      options.show(samples))
  end
  local places = places_of(x, kernel, size, samples, dims)
  local all = x:flatten(3):gather(3, places:flatten(3)):view(places.shape)
  local values, best = all:max(4)
  local shape = { n, c, unpack(size) }
  values = values:view(shape)
  if single then values = values:squeeze(1) end
  if not o.return_indices then return values end
  local indices = places:gather(4, best:unsqueeze(-1)):view(shape)
  return values, single and indices:squeeze(1) or indices
end

local function with_indices(where, dims, x, kernel_size, ...)
  local given = options.gather(where, ORDER, ...)
  given.return_indices = true
  return pool(where, dims, x, kernel_size, given)
end

--- Takes the largest element of windows that begin at random places, output_size of them in each
--- dim; they may overlap.
---@param x accelerate.Tensor (n, c, h, w) or (c, h, w)
---@param kernel_size integer|integer[]
---@param ... any output_size or output_ratio (share of the input's size, below 1), return_indices =
---  false, _random_samples (n, c, 2) of 0 to 1, or a table of them
---@return accelerate.Tensor values
---@return accelerate.Tensor? indices int64, places in the plane, from 0
function M.fractional_max_pool2d(x, kernel_size, ...)
  return pool("fractional_max_pool2d", 2, x, kernel_size, ...)
end

--- fractional_max_pool2d of volumes.
---@param x accelerate.Tensor (n, c, d, h, w) or (c, d, h, w)
---@param kernel_size integer|integer[]
---@param ... any output_size or output_ratio, return_indices = false, _random_samples (n, c, 3), or
---  a table of them
---@return accelerate.Tensor values
---@return accelerate.Tensor? indices int64, places in the volume, from 0
function M.fractional_max_pool3d(x, kernel_size, ...)
  return pool("fractional_max_pool3d", 3, x, kernel_size, ...)
end

--- fractional_max_pool2d with return_indices.
---@param x accelerate.Tensor
---@param kernel_size integer|integer[]
---@param ... any output_size or output_ratio, or a table of options
---@return accelerate.Tensor values
---@return accelerate.Tensor indices int64, from 0
function M.fractional_max_pool2d_with_indices(x, kernel_size, ...)
  return with_indices("fractional_max_pool2d_with_indices", 2, x, kernel_size, ...)
end

--- fractional_max_pool3d with return_indices.
---@param x accelerate.Tensor
---@param kernel_size integer|integer[]
---@param ... any output_size or output_ratio, or a table of options
---@return accelerate.Tensor values
---@return accelerate.Tensor indices int64, from 0
function M.fractional_max_pool3d_with_indices(x, kernel_size, ...)
  return with_indices("fractional_max_pool3d_with_indices", 3, x, kernel_size, ...)
end

return M
