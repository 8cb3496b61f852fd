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

-- Complex images are those of their parts.
local function columns(x, ...)
  if not (core.is_tensor(x) and x:is_complex()) then return core.im2col(x, ...) end
  return core.complex(core.im2col(x:real(), ...), core.im2col(x:imag(), ...))
end

--- Copies the windows of an image, one after the other from left to right and top to bottom, into
--- columns.
---@param x accelerate.Tensor (n, c, h, w) or (c, h, w)
---@param kernel_size integer|integer[] of the windows
---@param ... any dilation = 1, padding = 0, stride = 1, or a table of them
---@return accelerate.Tensor (n, c kh kw, windows), or without n
function M.unfold(x, kernel_size, ...)
  local o = read("unfold", kernel_size, ...)
  return columns(x, o.kernel, o.dilation, o.padding, o.stride)
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
  return core.col2im(x, size, o.kernel, o.dilation, o.padding, o.stride)
end

return M
