--- nn.functional: the windows of images as columns, and back.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local sizes = require "accelerate.nn.sizes"

local M = {}

local ORDER = { "dilation", "padding", "stride" }
local OPTIONS = {
  dilation = { "integer|table", default = 1 },
  padding = { "integer|table", default = 0 },
  stride = { "integer|table", default = 1 },
}

local function read(where, kernel_size, ...)
  local o = options.check(where, options.gather(where, ORDER, ...), OPTIONS)
  local pair = sizes.tuple
  return { kernel = pair(where, "kernel_size", kernel_size, 2, 1),
    dilation = pair(where, "dilation", o.dilation, 2, 1), padding = pair(where, "padding", o.padding, 2, 0),
    stride = pair(where, "stride", o.stride, 2, 1) }
end

-- How many windows fit along dim d (1 or 2) of `size` elements.
local function count(o, d, size)
  local room = size + 2 * o.padding[d] - o.dilation[d] * (o.kernel[d] - 1) - 1
  return room < 0 and 0 or math.floor(room / o.stride[d]) + 1
end

-- The windows of (n, c, h, w) as a view (n, c, rows, columns, kh, kw) of the padded image.
local function view(x, o)
  local p = o.padding
  if p[1] > 0 or p[2] > 0 then x = core.pad(x, { p[2], p[2], p[1], p[1] }) end
  for d = 1, 2 do
    local span = o.dilation[d] * (o.kernel[d] - 1) + 1
    x = x:unfold(2 + d, span, o.stride[d])
    if o.dilation[d] > 1 then
      local every = {}
      for i = 1, x.ndim - 1 do every[i] = {} end
      every[x.ndim] = { 1, span, o.dilation[d] }
      x = x[every]
    end
  end
  return x
end

-- (n, c kh kw, windows)
local function columns(x, o)
  local windows = view(x, o)
  local n, c, rows, across, kh, kw = unpack(windows.shape)
  return windows:permute(1, 2, 5, 6, 3, 4):reshape(n, c * kh * kw, rows * across)
end

-- fold is the transpose of `columns` as a linear map, and each is the other's gradient.
local folded
folded = core.Function {
  name = "Fold",
  forward = function(ctx, x, shape, o)
    ctx.o = o
    local n, c, h, w = unpack(shape)
    local kh, kw, rows, across = o.kernel[1], o.kernel[2], count(o, 1, h), count(o, 2, w)
    local half = x.dtype == "float16" or x.dtype == "bfloat16" -- summed in float32
    local taps = (half and x:float() or x):detach():view(n, c, kh * kw, rows, across)
    local image = core.zeros({ n, c, h + 2 * o.padding[1], w + 2 * o.padding[2] },
      { dtype = taps.dtype, device = x.device })
    local function places(d, i, windows) -- of element i of all windows along dim d
      local first = 1 + (i - 1) * o.dilation[d]
      return { first, first + (windows - 1) * o.stride[d], o.stride[d] }
    end
    for i = 1, kh do
      for j = 1, kw do
        image[{ {}, {}, places(1, i, rows), places(2, j, across) }]:add_(taps:select(3, (i - 1) * kw + j))
      end
    end
    image = image:narrow(3, o.padding[1] + 1, h):narrow(4, o.padding[2] + 1, w):contiguous()
    return half and image:to(x.dtype) or image
  end,
  backward = function(ctx, g) return columns(g, ctx.o) end,
}

local function check_image(where, x, o)
  if not core.is_tensor(x) or (x.ndim ~= 3 and x.ndim ~= 4) then
    options.fail("%s: expected (n, c, h, w) or (c, h, w), got %s", where, options.show(x))
  end
  for d = 1, 2 do
    if count(o, d, x.shape[x.ndim - 2 + d]) < 1 then
      options.fail("%s: a window of %d does not fit the padded input %s", where,
        o.dilation[d] * (o.kernel[d] - 1) + 1, options.show(x))
    end
  end
end

--- Copies the windows of an image, one after the other from left to right and top to bottom, into
--- columns.
---@param x accelerate.Tensor (n, c, h, w) or (c, h, w)
---@param kernel_size integer|integer[] of the windows
---@param ... any dilation = 1, padding = 0, stride = 1, or a table of them
---@return accelerate.Tensor (n, c kh kw, windows), or without n
function M.unfold(x, kernel_size, ...)
  local o = read("unfold", kernel_size, ...)
  check_image("unfold", x, o)
  if x.ndim == 3 then return columns(x:unsqueeze(1), o):squeeze(1) end
  return columns(x, o)
end

--- Adds columns up to an image: what overlaps is summed. The reverse of unfold where windows do not
--- overlap.
---@param x accelerate.Tensor (n, c kh kw, windows) or (c kh kw, windows)
---@param output_size integer|integer[] height and width of the image
---@param kernel_size integer|integer[] of the windows
---@param ... any dilation = 1, padding = 0, stride = 1, or a table of them
---@return accelerate.Tensor (n, c, h, w), or without n
function M.fold(x, output_size, kernel_size, ...)
  local o = read("fold", kernel_size, ...)
  local size = sizes.tuple("fold", "output_size", output_size, 2, 1)
  if not core.is_tensor(x) or (x.ndim ~= 2 and x.ndim ~= 3) or not core._is_float(x) then
    options.fail("fold: expected a floating-point tensor (n, c kh kw, windows) or (c kh kw, windows), got %s",
      options.show(x))
  end
  local taps, rows, across = o.kernel[1] * o.kernel[2], count(o, 1, size[1]), count(o, 2, size[2])
  if x:size(-2) % taps ~= 0 or x:size(-2) == 0 then
    options.fail("fold: a column must be a multiple of %d x %d elements long, got %s", o.kernel[1],
      o.kernel[2],
      options.show(x))
  end
  if rows * across ~= x:size(-1) or x:size(-1) == 0 then
    options.fail("fold: an image of %d x %d has %d x %d windows, and the input has %d columns", size[1],
      size[2],
      rows, across, x:size(-1))
  end
  local batch = x.ndim == 2 and x:unsqueeze(1) or x
  local y = folded(batch, { batch.shape[1], batch.shape[2] / taps, size[1], size[2] }, o)
  return x.ndim == 2 and y:squeeze(1) or y
end

return M
