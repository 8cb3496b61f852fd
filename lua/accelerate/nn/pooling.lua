--- Pooling and unpooling modules.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"
local sizes = require "accelerate.nn.sizes"
local F = require "accelerate.nn.functional"

local M = {}
local tuple = sizes.tuple

local function single(list) return #list == 1 and list[1] or list end

local MAX = {
  stride = { "integer|table", optional = true },
  padding = { "integer|table", default = 0 },
  dilation = { "integer|table", default = 1 },
  ceil_mode = { "boolean", default = false },
  return_indices = { "boolean", default = false },
}
local MAX_ORDER = { "stride", "padding", "dilation", "ceil_mode" } -- return_indices by name alone

local function define_max(name, dims, op, with_indices)
  local Class = class(name, Module)
  Class._builtin = true
  function Class:init(kernel_size, ...)
    local o = options.check(name, options.gather(name, MAX_ORDER, ...), MAX)
    self.kernel_size = tuple(name, "kernel_size", kernel_size, dims, 1)
    self.stride = tuple(name, "stride", o.stride or kernel_size, dims, 1)
    self.padding = tuple(name, "padding", o.padding, dims, 0)
    self.dilation = tuple(name, "dilation", o.dilation, dims, 1)
    self.ceil_mode, self.return_indices = o.ceil_mode, o.return_indices
  end
  function Class:forward(x)
    local v = self._values
    return self:_run(v.return_indices and with_indices or op, x, single(v.kernel_size), single(v.stride),
      single(v.padding), single(v.dilation), v.ceil_mode)
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
    local o = options.check(name, options.gather(name, AVG_ORDER, ...), dims > 1 and AVG2 or AVG)
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
    return ("kernel_size=%s, stride=%s, padding=%s"):format(Module._tuple(self.kernel_size, dims > 1),
      Module._tuple(self.stride, dims > 1),
      Module._tuple(self.padding, dims > 1))
  end
  M[name] = Class
end

local OUTPUT = { output_size = { "integer|table" } }
local OUTPUT_MAX = { output_size = OUTPUT.output_size, return_indices = MAX.return_indices }

-- Raises for a list with nil or false in it, PyTorch's None.
local function refuse_none(name, given, dims)
  local size = type(given) == "table" and given.output_size or given
  if type(size) ~= "table" or type(next(size)) ~= "number" then return end
  for d = 1, dims do
    if not size[d] then
      options.fail("%s: output_size: entry %d of %d is %s; -1 stands for the input's size", name, d, dims,
        tostring(size[d]))
    end
  end
end

local function define_adaptive(name, dims, op, with_indices)
  local Class = class(name, Module)
  Class._builtin = true
  function Class:init(...)
    refuse_none(name, (...), dims)
    local order = { "output_size", with_indices and "return_indices" }
    local o = options.check(name, options.gather(name, order, ...), with_indices and OUTPUT_MAX or OUTPUT)
    self.output_size = tuple(name, "output_size", o.output_size, dims, -1)
    for _, size in ipairs(self.output_size) do
      if size == 0 then options.fail("%s: output_size: expected sizes from 1 on, or -1, got 0", name) end
    end
    self.return_indices = o.return_indices
  end
  function Class:forward(x)
    local v = self._values
    return self:_run(v.return_indices and with_indices or op, x, single(v.output_size))
  end
  function Class:extra_repr() return "output_size=" .. Module._tuple(self.output_size, true) end
  M[name] = Class
end

--- `nn.MaxPool2d(kernel_size, stride?, padding?, dilation?, ceil_mode?)` takes the largest element
--- of each window of (n, c, h, w). A table of options may replace any arguments after kernel_size:
--- `nn.MaxPool2d(3, 2, { padding = 1 })`. Option return_indices: a second result has the place of
--- each in its plane (int64, from 0), as MaxUnpool2d takes it.
---@class accelerate.nn.MaxPool2d : accelerate.nn.Module
define_max("MaxPool2d", 2, F.max_pool2d, F.max_pool2d_with_indices)
--- Takes the largest element of each window of (n, c, l). Takes the arguments of MaxPool2d.
---@class accelerate.nn.MaxPool1d : accelerate.nn.Module
define_max("MaxPool1d", 1, F.max_pool1d, F.max_pool1d_with_indices)
--- Takes the largest element of each window of (n, c, d, h, w). Takes the arguments of MaxPool2d.
---@class accelerate.nn.MaxPool3d : accelerate.nn.Module
define_max("MaxPool3d", 3, F.max_pool3d, F.max_pool3d_with_indices)
--- `nn.AvgPool2d(kernel_size, stride?, padding?, ceil_mode?, count_include_pad?)` averages each
--- window of (n, c, h, w). A table of options, which may also hold divisor_override, may replace
--- any arguments after kernel_size.
---@class accelerate.nn.AvgPool2d : accelerate.nn.Module
define_avg("AvgPool2d", 2, F.avg_pool2d)
--- Averages each window of (n, c, l). Takes the arguments of AvgPool2d.
---@class accelerate.nn.AvgPool1d : accelerate.nn.Module
define_avg("AvgPool1d", 1, F.avg_pool1d)
--- Averages each window of (n, c, d, h, w). Takes the arguments of AvgPool2d.
---@class accelerate.nn.AvgPool3d : accelerate.nn.Module
define_avg("AvgPool3d", 3, F.avg_pool3d)
--- `nn.AdaptiveAvgPool2d(output_size)` averages each of output_size regions of (n, c, h, w).
--- output_size is an integer or a list of two; -1 keeps the input's size, as None does in PyTorch.
---@class accelerate.nn.AdaptiveAvgPool2d : accelerate.nn.Module
define_adaptive("AdaptiveAvgPool2d", 2, F.adaptive_avg_pool2d)
--- `nn.AdaptiveAvgPool1d(output_size)` averages each of output_size regions of (n, c, l).
--- output_size is an integer.
---@class accelerate.nn.AdaptiveAvgPool1d : accelerate.nn.Module
define_adaptive("AdaptiveAvgPool1d", 1, F.adaptive_avg_pool1d)
--- `nn.AdaptiveAvgPool3d(output_size)` averages each of output_size regions of (n, c, d, h, w).
--- output_size is an integer or a list of three.
---@class accelerate.nn.AdaptiveAvgPool3d : accelerate.nn.Module
define_adaptive("AdaptiveAvgPool3d", 3, F.adaptive_avg_pool3d)
--- `nn.AdaptiveMaxPool2d(output_size, return_indices?)` takes the largest element of each of
--- output_size regions of (n, c, h, w). output_size is an integer or a list of two.
---@class accelerate.nn.AdaptiveMaxPool2d : accelerate.nn.Module
define_adaptive("AdaptiveMaxPool2d", 2, F.adaptive_max_pool2d, F.adaptive_max_pool2d_with_indices)
--- `nn.AdaptiveMaxPool1d(output_size)` takes the largest element of each of output_size regions of
--- (n, c, l). output_size is an integer.
---@class accelerate.nn.AdaptiveMaxPool1d : accelerate.nn.Module
define_adaptive("AdaptiveMaxPool1d", 1, F.adaptive_max_pool1d, F.adaptive_max_pool1d_with_indices)
--- `nn.AdaptiveMaxPool3d(output_size, return_indices?)` takes the largest element of each of
--- output_size regions of (n, c, d, h, w). output_size is an integer or a list of three.
---@class accelerate.nn.AdaptiveMaxPool3d : accelerate.nn.Module
define_adaptive("AdaptiveMaxPool3d", 3, F.adaptive_max_pool3d, F.adaptive_max_pool3d_with_indices)

-- ---- unpooling, powers

local UNPOOL = { stride = MAX.stride, padding = MAX.padding }

local function define_unpool(name, dims, op)
  local Class = class(name, Module)
  Class._builtin = true
  function Class:init(kernel_size, ...)
    local o = options.check(name, options.gather(name, { "stride", "padding" }, ...), UNPOOL)
    self.kernel_size = tuple(name, "kernel_size", kernel_size, dims, 1)
    self.stride = tuple(name, "stride", o.stride or kernel_size, dims, 1)
    self.padding = tuple(name, "padding", o.padding, dims, 0)
  end
  function Class:forward(x, indices, output_size)
    local v = self._values
    if type(output_size) == "table" and getmetatable(output_size) == nil and output_size.output_size then
      output_size = output_size.output_size
    end
    return self:_run(op, x, indices, v.kernel_size, v.stride, v.padding, output_size)
  end
  function Class:extra_repr()
    return ("kernel_size=%s, stride=%s, padding=%s"):format(Module._tuple(self.kernel_size),
      Module._tuple(self.stride), Module._tuple(self.padding))
  end
  M[name] = Class
end

--- `nn.MaxUnpool2d(kernel_size, stride?, padding?)` puts each element of (n, c, h, w) at the place
--- that MaxPool2d's indices give, zeros elsewhere: `unpool(x, indices, output_size?)`.
---@class accelerate.nn.MaxUnpool2d : accelerate.nn.Module
define_unpool("MaxUnpool2d", 2, F.max_unpool2d)
--- The reverse of MaxPool1d, as MaxUnpool2d is of MaxPool2d.
---@class accelerate.nn.MaxUnpool1d : accelerate.nn.Module
define_unpool("MaxUnpool1d", 1, F.max_unpool1d)
--- The reverse of MaxPool3d, as MaxUnpool2d is of MaxPool2d.
---@class accelerate.nn.MaxUnpool3d : accelerate.nn.Module
define_unpool("MaxUnpool3d", 3, F.max_unpool3d)

local FRACTIONAL = { output_size = { "integer|table", optional = true },
  output_ratio = { "number|table", optional = true }, return_indices = MAX.return_indices,
  _random_samples = { "tensor", optional = true } }

local function define_fractional(name, dims, op)
  local Class = class(name, Module)
  Class._builtin = true
  function Class:init(kernel_size, ...)
    local order = { "output_size", "output_ratio", "return_indices" }
    local o = options.check(name, options.gather(name, order, ...), FRACTIONAL)
    if (o.output_size == nil) == (o.output_ratio == nil) then
      options.fail("%s: give output_size or output_ratio, one of the two", name)
    end
    self.kernel_size = tuple(name, "kernel_size", kernel_size, dims, 1)
    if o.output_size ~= nil then self.output_size = tuple(name, "output_size", o.output_size, dims, 1) end
    for d = 1, o.output_ratio ~= nil and dims or 0 do
      local ratio = type(o.output_ratio) == "table" and o.output_ratio[d] or o.output_ratio
      options.value(name, "output_ratio", ratio, { "number", above = 0, below = 1 })
    end
    self.output_ratio, self.return_indices, self._random_samples = o.output_ratio, o.return_indices,
      o._random_samples
  end
  function Class:forward(x)
    local v = self._values
    return self:_run(op, x, v.kernel_size, { output_size = v.output_size, output_ratio = v.output_ratio,
      return_indices = v.return_indices, _random_samples = v._random_samples })
  end
  M[name] = Class
end

--- `nn.FractionalMaxPool2d(kernel_size, { output_size or output_ratio, return_indices })` takes the
--- largest element of windows of (n, c, h, w) that begin at random places.
---@class accelerate.nn.FractionalMaxPool2d : accelerate.nn.Module
define_fractional("FractionalMaxPool2d", 2, F.fractional_max_pool2d)
--- FractionalMaxPool2d of (n, c, d, h, w).
---@class accelerate.nn.FractionalMaxPool3d : accelerate.nn.Module
define_fractional("FractionalMaxPool3d", 3, F.fractional_max_pool3d)

local LP = { stride = MAX.stride, ceil_mode = MAX.ceil_mode }

local function define_lp(name, dims, op)
  local Class = class(name, Module)
  Class._builtin = true
  function Class:init(norm_type, kernel_size, ...)
    local o = options.check(name, options.gather(name, { "stride", "ceil_mode" }, ...), LP)
    self.norm_type = options.value(name, "norm_type", norm_type, { "number" })
    self.kernel_size = tuple(name, "kernel_size", kernel_size, dims, 1)
    if o.stride ~= nil then self.stride = tuple(name, "stride", o.stride, dims, 1) end
    self.ceil_mode = o.ceil_mode
  end
  function Class:forward(x)
    local v = self._values
    return self:_run(op, x, v.norm_type, v.kernel_size, { stride = v.stride, ceil_mode = v.ceil_mode })
  end
  function Class:extra_repr()
    return ("norm_type=%s, kernel_size=%s, stride=%s, ceil_mode=%s"):format(Module._show(self.norm_type),
      Module._tuple(self.kernel_size, true), self.stride and Module._tuple(self.stride, true) or "None",
      Module._show(self.ceil_mode))
  end
  M[name] = Class
end

--- `nn.LPPool2d(norm_type, kernel_size, stride?, ceil_mode?)` computes (sum of x^p)^(1/p) of each
--- window of (n, c, h, w).
---@class accelerate.nn.LPPool2d : accelerate.nn.Module
define_lp("LPPool2d", 2, F.lp_pool2d)
--- (sum of x^p)^(1/p) of each window of (n, c, l). Takes the arguments of LPPool2d.
---@class accelerate.nn.LPPool1d : accelerate.nn.Module
define_lp("LPPool1d", 1, F.lp_pool1d)
--- (sum of x^p)^(1/p) of each window of (n, c, d, h, w). Takes the arguments of LPPool2d.
---@class accelerate.nn.LPPool3d : accelerate.nn.Module
define_lp("LPPool3d", 3, F.lp_pool3d)

return M
