--- The part of nn.functional for images and signals: convolutions, pooling, batch normalisation,
--- resampling. The ops do the work; this file adds padding by name and sizes by factor.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"

---@class accelerate.nn.functional.image
local F = {
  -- (x, weight, bias?, stride = 1, padding = 0, output_padding = 0, groups = 1, dilation = 1)
  conv_transpose1d = core.conv_transpose1d,
  conv_transpose2d = core.conv_transpose2d,
  -- (x, kernel_size, stride?, padding = 0, dilation = 1, ceil_mode = false)
  max_pool1d = core.max_pool1d,
  max_pool2d = core.max_pool2d,
  -- (x, kernel_size, stride?, padding = 0, ceil_mode = false, count_include_pad = true)
  avg_pool1d = core.avg_pool1d,
  avg_pool2d = core.avg_pool2d,              -- and divisor_override?
  adaptive_avg_pool1d = core.adaptive_avg_pool1d,  -- (x, output_size)
  adaptive_avg_pool2d = core.adaptive_avg_pool2d,
  adaptive_max_pool1d = core.adaptive_max_pool1d,
  adaptive_max_pool2d = core.adaptive_max_pool2d,
  -- (x, running_mean?, running_var?, weight?, bias?, training = false, momentum = 0.1, eps = 1e-5,
  -- residual?, activation = "none")
  batch_norm = core.batch_norm,
  pixel_shuffle = core.pixel_shuffle,
  pixel_unshuffle = core.pixel_unshuffle,
}

-- ---- convolutions: padding by name

local function at(value, d) return type(value) == "table" and value[d] or value or 1 end

--- Returns, for each dim, the padding that keeps the size, and the dims that need one element more
--- after the input than before it. Such a dim is padded by the larger amount on both sides, and its
--- first result is dropped.
local function same_padding(where, weight, stride, dilation, dims)
  local shape, padding, drop = weight.shape, {}, {}
  for d = 1, dims do
    if at(stride, d) ~= 1 then options.fail("%s: padding = \"same\" goes with a stride of 1", where) end
    local total = at(dilation, d) * (shape[d + 2] - 1)
    padding[d] = math.ceil(total / 2)
    drop[d] = total % 2 == 1
  end
  return padding, drop
end

local function by_name(where, conv, dims, x, weight, o)
  if o.padding == "valid" then return conv(x, weight, o.bias, o.stride, 0, o.dilation, o.groups) end
  if o.padding ~= "same" then
    options.fail("%s: padding: expected an integer%s, \"same\" or \"valid\", got %q", where, dims > 1
      and ", a list of two" or "", o.padding)
  end
  local amounts, drop = same_padding(where, weight, o.stride, o.dilation, dims)
  local y = conv(x, weight, o.bias, o.stride, dims == 1 and amounts[1] or amounts, o.dilation, o.groups)
  for d = 1, dims do
    local dim = d - dims - 1
    if drop[d] then y = y:narrow(dim, 2, y.shape[#y.shape + dim + 1] - 1) end
  end
  return y
end

local ORDER = { "bias", "stride", "padding", "dilation", "groups" }
local CONV = { bias = { "tensor", optional = true } }
for i = 2, #ORDER do CONV[ORDER[i]] = { "any", optional = true } end

-- Returns whether the options at the end give the padding by name. (An op reads all other options
-- itself.)
local function names_padding(...)
  for i = select("#", ...), 1, -1 do
    local last = select(i, ...)
    if last ~= nil then
      return type(last) == "table" and getmetatable(last) == nil and type(last.padding) == "string"
    end
  end
  return false
end

local function convolution(where, conv, dims)
  return function(x, weight, bias, stride, padding, ...)
    if type(padding) ~= "string" and not names_padding(bias, stride, padding, ...) then
      return conv(x, weight, bias, stride, padding, ...)
    end
    -- the op's error says which argument is wrong
    if not core.is_tensor(x) or not core.is_tensor(weight) then return conv(x, weight) end
    return by_name(where, conv, dims, x, weight,
      options.check(where, options.gather(where, ORDER, bias, stride, padding, ...), CONV))
  end
end

--- Convolves (n, in, l) with weight (out, in / groups, k): (x, weight, bias?, stride = 1, padding =
--- 0, dilation = 1, groups = 1). padding: an integer, "same" (with stride 1) or "valid".
F.conv1d = convolution("conv1d", core.conv1d, 1)
--- Convolves (n, in, h, w) with weight (out, in / groups, kh, kw): (x, weight, bias?, stride = 1,
--- padding = 0, dilation = 1, groups = 1), each an integer or a list of two. padding: also "same"
--- (with stride 1) or "valid".
F.conv2d = convolution("conv2d", core.conv2d, 2)

-- ---- resampling

local INTERPOLATE = {
  size = { "integer|table", optional = true },
  scale_factor = { "number|table", optional = true },
  mode = { "string", default = "nearest", one_of = { "nearest", "linear", "bilinear", "area" } },
  align_corners = { "boolean", default = false },
}

--- Resamples (n, c, h, w), or (n, c, l), to a size or by a factor.
---@param x accelerate.Tensor
---@param opts { size: integer|integer[], scale_factor: number|number[], mode:
---  "nearest"|"linear"|"bilinear"|"area", align_corners: boolean } area: the mean of what a new
---  element covers
---@return accelerate.Tensor
function F.interpolate(x, opts)
  local o = options.check("interpolate", opts, INTERPOLATE)
  if (o.size == nil) == (o.scale_factor == nil) then
    options.fail("interpolate: give either size or scale_factor")
  end
  local size, factor, shape = {}, {}, x.shape
  for d = 1, #shape - 2 do
    if o.size then
      size[d] = at(o.size, d)
    else
      factor[d] = at(o.scale_factor, d)
      if not (type(factor[d]) == "number" and factor[d] > 0) then
        options.fail("interpolate: scale_factor must be above 0, got %s", options.show(factor[d]))
      end
      size[d] = math.floor(shape[d + 2] * factor[d])
    end
  end
  if o.mode == "area" then
    if o.align_corners then
      options.fail("interpolate: align_corners goes with the linear modes, not with area")
    end
    if #size < 1 or #size > 2 then
      options.fail("interpolate: expected (n, c, h, w) or (n, c, l), got %s", options.show(x))
    end
    if #size == 1 then return core.adaptive_avg_pool1d(x, size[1]) end
    return core.adaptive_avg_pool2d(x, size)
  end
  return core.interpolate(x, { size = size, mode = o.mode, align_corners = o.align_corners,
    scale_h = factor[1], scale_w = factor[2] })
end

return F
