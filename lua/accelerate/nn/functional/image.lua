--- The part of nn.functional for images and signals: convolutions, pooling, batch normalisation.
--- The ops do the work; this file adds padding by name.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"

---@class accelerate.nn.functional.image
local F = {
  -- (x, weight, bias?, stride = 1, padding = 0, output_padding = 0, groups = 1, dilation = 1)
  conv_transpose1d = core.conv_transpose1d,
  conv_transpose2d = core.conv_transpose2d,
  conv_transpose3d = core.conv_transpose3d,
  -- (x, kernel_size, stride?, padding = 0, dilation = 1, ceil_mode = false, return_indices =
  -- false)
  max_pool1d = core.max_pool1d,
  max_pool2d = core.max_pool2d,
  -- (x, kernel_size, stride?, padding = 0, ceil_mode = false, count_include_pad = true)
  avg_pool1d = core.avg_pool1d,
  avg_pool2d = core.avg_pool2d,              -- and divisor_override?
  adaptive_avg_pool1d = core.adaptive_avg_pool1d,  -- (x, output_size)
  adaptive_avg_pool2d = core.adaptive_avg_pool2d,
  adaptive_max_pool1d = core.adaptive_max_pool1d,
  adaptive_max_pool2d = core.adaptive_max_pool2d,
  -- values, and the place of each in its row or plane
  max_pool1d_with_indices = core.max_pool1d_with_indices,
  max_pool2d_with_indices = core.max_pool2d_with_indices,
  adaptive_max_pool1d_with_indices = core.adaptive_max_pool1d_with_indices,
  adaptive_max_pool2d_with_indices = core.adaptive_max_pool2d_with_indices,
  -- (x, grid, mode = "bilinear", padding_mode = "zeros", align_corners = false)
  grid_sample = core.grid_sample,
  -- (x, running_mean?, running_var?, weight?, bias?, training = false, momentum = 0.1, eps = 1e-5,
  -- residual?, activation = "none")
  batch_norm = core.batch_norm,
  pixel_shuffle = core.pixel_shuffle,
  pixel_unshuffle = core.pixel_unshuffle,
}

--- Deals the channels of (n, c, ..) out to `groups` heaps and puts the heaps one after the other:
--- channels a1 a2 b1 b2 of two groups become a1 b1 a2 b2.
---@param x accelerate.Tensor
---@param groups integer divides c
---@return accelerate.Tensor
function F.channel_shuffle(x, groups)
  options.value("channel_shuffle", "groups", groups, { "integer", min = 1 })
  if not core.is_tensor(x) or x.ndim < 3 or x.shape[2] % groups ~= 0 then
    options.fail("channel_shuffle: expected (n, c, ..) with a number of channels that %d divides, got %s",
      groups,
      options.show(x))
  end
  local shape = x.shape
  return x:unflatten(2, { groups, shape[2] / groups }):transpose(2, 3):reshape(shape)
end

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
    options.fail("%s: padding: expected an integer%s, \"same\" or \"valid\", got %q", where,
      ({ "", ", a list of two", ", a list of three" })[dims], o.padding)
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

--- Convolves (n, in, l) with weight (out, in / groups, k). padding may be "same" (with stride 1)
--- or "valid". A table of options may replace any arguments after weight; stride, dilation and
--- groups are 1 by default, padding 0.
---@type fun(x: accelerate.Tensor, weight: accelerate.Tensor, bias?: accelerate.Tensor, stride?:
---  integer, padding?: integer|string, dilation?: integer, groups?: integer): accelerate.Tensor
F.conv1d = convolution("conv1d", core.conv1d, 1)
--- Convolves (n, in, h, w) with weight (out, in / groups, kh, kw). Sizes are integers or lists of
--- two; padding may be "same" (with stride 1) or "valid". A table of options may replace any
--- arguments after weight; stride, dilation and groups are 1 by default, padding 0.
---@type fun(x: accelerate.Tensor, weight: accelerate.Tensor, bias?: accelerate.Tensor, stride?:
---  integer|integer[], padding?: integer|integer[]|string, dilation?: integer|integer[], groups?:
---  integer): accelerate.Tensor
F.conv2d = convolution("conv2d", core.conv2d, 2)
--- Convolves (n, in, d, h, w) with weight (out, in / groups, kd, kh, kw). Sizes are integers or
--- lists of three; padding may be "same" (with stride 1) or "valid". A table of options may replace
--- any arguments after weight; stride, dilation and groups are 1 by default, padding 0.
---@type fun(x: accelerate.Tensor, weight: accelerate.Tensor, bias?: accelerate.Tensor, stride?:
---  integer|integer[], padding?: integer|integer[]|string, dilation?: integer|integer[], groups?:
---  integer): accelerate.Tensor
F.conv3d = convolution("conv3d", core.conv3d, 3)

return F
