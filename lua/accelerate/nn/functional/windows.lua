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

-- (n, c kh kw, windows)
local function columns(x, o)
  if x:is_complex() then return core.complex(columns(x:real(), o), columns(x:imag(), o)) end
  return core.im2col(x, o.kernel, o.dilation, o.padding, o.stride)
end

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
  local y = core.col2im(batch, size, o.kernel, o.dilation, o.padding, o.stride)
  return x.ndim == 2 and y:squeeze(1) or y
end

return M
