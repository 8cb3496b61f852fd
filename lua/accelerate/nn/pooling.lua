--- Pooling modules, Upsample, PixelShuffle.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"
local sizes = require "accelerate.nn.sizes"
local F = require "accelerate.nn.functional.image"

local M = {}
local tuple = sizes.tuple

local function single(list) return #list == 1 and list[1] or list end

local MAX = {
  stride = { "integer|table", optional = true },
  padding = { "integer|table", default = 0 },
  dilation = { "integer|table", default = 1 },
  ceil_mode = { "boolean", default = false },
}

local function define_max(name, dims, op)
  local Class = class(name, Module)
  Class._builtin = true
  function Class:init(kernel_size, ...)
    local o = options.check(name, options.gather(name, { "stride", "padding", "dilation", "ceil_mode" }, ...),
      MAX)
    self.kernel_size = tuple(name, "kernel_size", kernel_size, dims, 1)
    self.stride = tuple(name, "stride", o.stride or kernel_size, dims, 1)
    self.padding = tuple(name, "padding", o.padding, dims, 0)
    self.dilation = tuple(name, "dilation", o.dilation, dims, 1)
    self.ceil_mode = o.ceil_mode
  end
  function Class:forward(x)
    local v = self._values
    return self:_run(op, x, single(v.kernel_size), single(v.stride), single(v.padding), single(v.dilation),
      v.ceil_mode)
  end
  function Class:extra_repr()
    return ("kernel_size=%s, stride=%s, padding=%s, dilation=%s, ceil_mode=%s"):format(
      Module._tuple(self.kernel_size, true),
      Module._tuple(self.stride, true), Module._tuple(self.padding, true), Module._tuple(self.dilation, true),
      Module._show(self.ceil_mode))
  end
  M[name] = Class
end

local AVG = {
  stride = { "integer|table", optional = true },
  padding = { "integer|table", default = 0 },
  ceil_mode = { "boolean", default = false },
  count_include_pad = { "boolean", default = true },
}
local AVG_ORDER = { "stride", "padding", "ceil_mode", "count_include_pad" }
local AVG2 = { divisor_override = { "integer", optional = true } }
for key, entry in next, AVG do AVG2[key] = entry end

local function define_avg(name, dims, op)
  local Class = class(name, Module)
  Class._builtin = true
  function Class:init(kernel_size, ...)
    local o = options.check(name, options.gather(name, AVG_ORDER, ...), dims == 2 and AVG2 or AVG)
    self.kernel_size = tuple(name, "kernel_size", kernel_size, dims, 1)
    self.stride = tuple(name, "stride", o.stride or kernel_size, dims, 1)
    self.padding = tuple(name, "padding", o.padding, dims, 0)
    self.ceil_mode, self.count_include_pad, self.divisor_override = o.ceil_mode, o.count_include_pad,
      o.divisor_override
  end
  function Class:forward(x)
    local v = self._values
    if dims == 1 then
      return self:_run(op, x, v.kernel_size[1], v.stride[1], v.padding[1], v.ceil_mode, v.count_include_pad)
    end
    return self:_run(op, x, v.kernel_size, v.stride, v.padding, v.ceil_mode, v.count_include_pad,
      v.divisor_override)
  end
  function Class:extra_repr()
    return ("kernel_size=%s, stride=%s, padding=%s"):format(Module._tuple(self.kernel_size, dims == 2),
      Module._tuple(self.stride, dims == 2),
      Module._tuple(self.padding, dims == 2))
  end
  M[name] = Class
end

local OUTPUT = { output_size = { "integer|table" } }

local function define_adaptive(name, dims, op)
  local Class = class(name, Module)
  Class._builtin = true
  function Class:init(...)
    local o = options.check(name, options.gather(name, { "output_size" }, ...), OUTPUT)
    self.output_size = tuple(name, "output_size", o.output_size, dims, 1)
  end
  function Class:forward(x) return self:_run(op, x, single(self._values.output_size)) end
  function Class:extra_repr() return "output_size=" .. Module._tuple(self.output_size, true) end
  M[name] = Class
end

--- `nn.MaxPool2d(kernel_size, stride?, padding?, dilation?, ceil_mode?)` takes the largest element
--- of each window of (n, c, h, w). A table of options may replace any arguments after kernel_size:
--- `nn.MaxPool2d(3, 2, { padding = 1 })`.
---@class accelerate.nn.MaxPool2d : accelerate.nn.Module
define_max("MaxPool2d", 2, F.max_pool2d)
--- Takes the largest element of each window of (n, c, l). Takes the arguments of MaxPool2d.
---@class accelerate.nn.MaxPool1d : accelerate.nn.Module
define_max("MaxPool1d", 1, F.max_pool1d)
--- `nn.AvgPool2d(kernel_size, stride?, padding?, ceil_mode?, count_include_pad?)` averages each
--- window of (n, c, h, w). A table of options, which may also hold divisor_override, may replace
--- any arguments after kernel_size.
---@class accelerate.nn.AvgPool2d : accelerate.nn.Module
define_avg("AvgPool2d", 2, F.avg_pool2d)
--- Averages each window of (n, c, l). Takes the arguments of AvgPool2d.
---@class accelerate.nn.AvgPool1d : accelerate.nn.Module
define_avg("AvgPool1d", 1, F.avg_pool1d)
--- `nn.AdaptiveAvgPool2d(output_size)` averages each of output_size regions of (n, c, h, w).
--- output_size is an integer or a list of two.
---@class accelerate.nn.AdaptiveAvgPool2d : accelerate.nn.Module
define_adaptive("AdaptiveAvgPool2d", 2, F.adaptive_avg_pool2d)
--- `nn.AdaptiveAvgPool1d(output_size)` averages each of output_size regions of (n, c, l).
--- output_size is an integer.
---@class accelerate.nn.AdaptiveAvgPool1d : accelerate.nn.Module
define_adaptive("AdaptiveAvgPool1d", 1, F.adaptive_avg_pool1d)
--- `nn.AdaptiveMaxPool2d(output_size)` takes the largest element of each of output_size regions of
--- (n, c, h, w). output_size is an integer or a list of two.
---@class accelerate.nn.AdaptiveMaxPool2d : accelerate.nn.Module
define_adaptive("AdaptiveMaxPool2d", 2, F.adaptive_max_pool2d)
--- `nn.AdaptiveMaxPool1d(output_size)` takes the largest element of each of output_size regions of
--- (n, c, l). output_size is an integer.
---@class accelerate.nn.AdaptiveMaxPool1d : accelerate.nn.Module
define_adaptive("AdaptiveMaxPool1d", 1, F.adaptive_max_pool1d)

---@class accelerate.nn.Upsample : accelerate.nn.Module
local Upsample = class("Upsample", Module)
Upsample._builtin = true

--- Resamples its input: nn.Upsample { scale_factor = 2, mode = "bilinear" }.
---@param opts { size: integer|integer[], scale_factor: number|number[], mode:
---  "nearest"|"linear"|"bilinear", align_corners: boolean }
function Upsample:init(opts)
  self.options = options.check("Upsample", opts, {
    size = { "integer|table", optional = true },
    scale_factor = { "number|table", optional = true },
    mode = { "string", default = "nearest", one_of = { "nearest", "linear", "bilinear" } },
    align_corners = { "boolean", default = false },
  })
  if (self.options.size == nil) == (self.options.scale_factor == nil) then
    options.fail("Upsample: give either size or scale_factor")
  end
end

function Upsample:forward(x) return self:_run(F.interpolate, x, self._values.options) end

function Upsample:extra_repr()
  local o = self.options
  local by = o.size or o.scale_factor
  local function shown(v)
    return o.size and Module._show(v) or v % 1 == 0 and ("%d.0"):format(v) or Module._show(v)
  end
  if type(by) == "table" then
    local words = {}
    for i, v in ipairs(by) do words[i] = shown(v) end
    by = ("(%s%s)"):format(table.concat(words, ", "), #words == 1 and "," or "")
  else
    by = shown(by)
  end
  return ("%s=%s, mode='%s'"):format(o.size and "size" or "scale_factor", by, o.mode)
end
M.Upsample = Upsample

local function define_shuffle(name, option, op)
  local Class = class(name, Module)
  Class._builtin = true
  local schema = { [option] = { "integer", min = 1, max = 2 ^ 31 - 1 } }
  function Class:init(...)
    self[option] = options.check(name, options.gather(name, { option }, ...), schema)[option]
  end
  function Class:forward(x) return self:_run(op, x, self._values[option]) end
  function Class:extra_repr() return ("%s=%d"):format(option, self[option]) end
  M[name] = Class
end

--- (.., c r r, h, w) -> (.., c, h r, w r).
---@class accelerate.nn.PixelShuffle : accelerate.nn.Module
define_shuffle("PixelShuffle", "upscale_factor", F.pixel_shuffle)
--- (.., c, h r, w r) -> (.., c r r, h, w).
---@class accelerate.nn.PixelUnshuffle : accelerate.nn.Module
define_shuffle("PixelUnshuffle", "downscale_factor", F.pixel_unshuffle)

return M
