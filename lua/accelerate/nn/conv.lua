--- nn.Conv1d .. 3d, nn.ConvTranspose1d .. 3d, and their lazy forms, whose in_channels is that of
--- the first input: `nn.LazyConv2d(out_channels, kernel_size, ...)`.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local scope = require "accelerate.utils.scope"
local Module = require "accelerate.nn.module"
local parameter = require "accelerate.nn.parameter"
local init = require "accelerate.nn.initializers"
local sizes = require "accelerate.nn.sizes"
local lazy = require "accelerate.nn.lazy"
local F = require "accelerate.nn.functional.image"

local M = {}
local tuple = sizes.tuple

local POSITIVE = { "integer", min = 1 }

local COMMON = {
  stride = { "integer|table", default = 1 },
  padding = { "integer|table|string", default = 0 },
  dilation = { "integer|table", default = 1 },
  groups = { "integer", default = 1, min = 1 },
  bias = { "boolean", default = true },
  padding_mode = { "string", default = "zeros", one_of = { "zeros", "reflect", "replicate", "circular" } },
  dtype = { "string", optional = true },
  device = { "string", optional = true },
}
local TRANSPOSED = { output_padding = { "integer|table", default = 0 } }
for name, entry in next, COMMON do TRANSPOSED[name] = entry end
TRANSPOSED.padding_mode = { "string", default = "zeros", one_of = { "zeros" } }

local ORDER = { "stride", "padding", "dilation", "groups", "bias", "padding_mode", "device", "dtype" }
local ORDER_TRANSPOSED = { "stride", "padding", "output_padding", "groups", "bias", "dilation",
  "padding_mode",
  "device", "dtype" }

-- What is put around the input, as F.pad takes it: {before, after} of the last dim first.
local function margins(self, dims)
  local list = {}
  for d = dims, 1, -1 do
    local before, after
    if self.padding == "same" then
      local total = self.dilation[d] * (self.kernel_size[d] - 1)
      before = math.floor(total / 2)
      after = total - before
    else
      before = self.padding == "valid" and 0 or self.padding[d]
      after = before
    end
    list[#list + 1], list[#list + 2] = before, after
  end
  return list
end

-- Checks and keeps what does not depend on the number of input channels.
local function settle(self, where, dims, transposed, out_channels, kernel_size, ...)
  local o = options.check(where, options.gather(where, transposed and ORDER_TRANSPOSED or ORDER, ...),
    transposed and TRANSPOSED or COMMON)
  self.out_channels = options.value(where, "out_channels", out_channels, POSITIVE)
  self.kernel_size = tuple(where, "kernel_size", kernel_size, dims, 1)
  self.stride = tuple(where, "stride", o.stride, dims, 1)
  self.dilation = tuple(where, "dilation", o.dilation, dims, 1)
  self.groups = o.groups
  if type(o.padding) == "string" then
    if transposed or (o.padding ~= "same" and o.padding ~= "valid") then
      options.fail("%s: padding: expected an integer%s, got %s", where, transposed and ""
        or ", \"same\" or \"valid\"", options.show(o.padding))
    end
    self.padding = o.padding
  else
    self.padding = tuple(where, "padding", o.padding, dims, 0)
  end
  if transposed then self.output_padding = tuple(where, "output_padding", o.output_padding, dims, 0) end
  if o.padding == "same" then
    for d = 1, dims do
      if self.stride[d] ~= 1 then options.fail("%s: padding = \"same\" goes with a stride of 1", where) end
    end
  end
  self.padding_mode = o.padding_mode
  if o.padding_mode ~= "zeros" then self._margins = margins(self, dims) end
  return o
end

local function setup(self, where, dims, transposed, in_channels, out_channels, kernel_size, ...)
  self.in_channels = options.value(where, "in_channels", in_channels, POSITIVE)
  local o = settle(self, where, dims, transposed, out_channels, kernel_size, ...)
  if in_channels % o.groups ~= 0 or out_channels % o.groups ~= 0 then
    options.fail("%s: groups = %d must divide in_channels (%d) and out_channels (%d)", where, o.groups,
      in_channels, out_channels)
  end
  local shape = transposed and { in_channels, out_channels / o.groups }
    or { out_channels, in_channels / o.groups }
  for d = 1, dims do shape[d + 2] = self.kernel_size[d] end
  local place = { dtype = o.dtype, device = o.device }
  self.weight = parameter.empty(shape, place)
  if o.bias then self.bias = parameter.empty({ out_channels }, place) end
  self:reset_parameters()
end

--- Draws weight and bias anew, as PyTorch does: both uniform in +-1/sqrt(fan in).
local function reset_parameters(self)
  init.kaiming_uniform_(self.weight, { a = math.sqrt(5) })
  if not self.bias then return end
  local fan_in, shape = 1, self.weight.shape
  for d = 2, #shape do fan_in = fan_in * shape[d] end
  local bound = 1 / math.sqrt(fan_in)
  init.uniform_(self.bias, -bound, bound)
end

local function extra_repr(self)
  local parts = { ("%d, %d, kernel_size=%s, stride=%s"):format(self.in_channels, self.out_channels,
    Module._tuple(self.kernel_size),
    Module._tuple(self.stride)) }
  local function add(name, value, default)
    value = type(value) == "table" and Module._tuple(value) or tostring(value)
    if value ~= default then parts[#parts + 1] = name .. "=" .. value end
  end
  local function all(v)
    local n = #self.stride
    return n == 1 and ("(%s,)"):format(v) or ("(%s)"):format(v .. (", " .. v):rep(n - 1))
  end
  add("padding", self.padding, all "0")
  add("dilation", self.dilation, all "1")
  if self.output_padding then add("output_padding", self.output_padding, all "0") end
  add("groups", self.groups, "1")
  if not self.bias then parts[#parts + 1] = "bias=False" end
  if self.padding_mode ~= "zeros" then parts[#parts + 1] = "padding_mode=" .. self.padding_mode end
  return table.concat(parts, ", ")
end

local CALL = { output_size = { "integer|list", optional = true } }

-- The output_padding with which a transposed convolution of x has this size: an integer, or a list
-- for the dims behind the channels, or for all dims.
local function padding_for(self, where, dims, x, output_size)
  local v = self._values
  local given = options.check(where, options.gather(where, { "output_size" }, output_size), CALL).output_size
  if given == nil then return v.output_padding end
  if not core.is_tensor(x) or (x.ndim ~= dims + 1 and x.ndim ~= dims + 2) then
    options.fail("%s: expected an input of %d dims, or %d without a batch, got %s", where, dims + 2, dims + 1,
      options.show(x))
  end
  local front = x.ndim - dims
  if type(given) == "table" and #given == x.ndim then given = { unpack(given, front + 1) } end
  if type(given) == "table" and #given ~= dims then
    options.fail("%s: for an input of %d dims output_size must have %d or %d elements, got %d", where, x.ndim,
      dims, x.ndim, #given)
  end
  local sizes_given = tuple(where, "output_size", given, dims, 0)
  local least, most, more = {}, {}, {}
  for d = 1, dims do
    least[d] = (x:size(front + d) - 1) * v.stride[d] - 2 * v.padding[d]
      + v.dilation[d] * (v.kernel_size[d] - 1) + 1
    most[d] = least[d] + v.stride[d] - 1
    more[d] = sizes_given[d] - least[d]
  end
  for d = 1, dims do
    if more[d] < 0 or sizes_given[d] > most[d] then
      options.fail("%s: requested an output size of %s, but valid sizes range from %s to %s " ..
        "(for an input of %s)", where, lists.shape_text(sizes_given), lists.shape_text(least),
        lists.shape_text(most), lists.shape_text({ unpack(x.shape, front + 1) }))
    end
  end
  return more
end

local function define(name, dims, transposed, op)
  local Class = class(name, Module)
  Class._builtin = true
  Class.reset_parameters = reset_parameters
  Class.extra_repr = extra_repr

  function Class:init(in_channels, out_channels, kernel_size, ...)
    setup(self, name, dims, transposed, in_channels, out_channels, kernel_size, ...)
  end

  -- With a margin of elements of x in place of zeros.
  local function around(x, v)
    return op(core.pad(x, v._margins, v.padding_mode), v.weight, v.bias, dims == 1 and v.stride[1]
      or v.stride, 0,
      dims == 1 and v.dilation[1] or v.dilation, v.groups)
  end

  if transposed then
    function Class:forward(x, output_size)
      local v = self._values
      local more = v.output_padding
      if output_size ~= nil then more = padding_for(self, name, dims, x, output_size) end
      if dims == 1 then
        return self:_run(op, x, v.weight, v.bias, v.stride[1], v.padding[1], more[1], v.groups, v.dilation[1])
      end
      return self:_run(op, x, v.weight, v.bias, v.stride, v.padding, more, v.groups, v.dilation)
    end
  else
    function Class:forward(x)
      local v = self._values
      if v._margins then return self:_run(around, x, v) end
      if dims == 1 then
        local padding = v.padding
        return self:_run(op, x, v.weight, v.bias, v.stride[1], type(padding) == "table" and padding[1]
          or padding, v.dilation[1], v.groups)
      end
      return self:_run(op, x, v.weight, v.bias, v.stride, v.padding, v.dilation, v.groups)
    end
  end
  M[name] = Class

  local Lazy = lazy.class("Lazy" .. name, Class)
  function Lazy:init(out_channels, kernel_size, ...)
    local o = settle(self, "Lazy" .. name, dims, transposed, out_channels, kernel_size, ...)
    local rest = scope.pack(...)
    self.in_channels = 0
    self.bias = o.bias or nil -- for print
    lazy.keep(self, function(x)
      if x.ndim ~= dims + 1 and x.ndim ~= dims + 2 then
        options.fail("Lazy%s: expected an input of %d dims, or %d without a batch, got %s", name, dims + 2,
          dims + 1, options.show(x))
      end
      return x:size(-dims - 1), out_channels, kernel_size, unpack(rest, 1, rest.n)
    end)
  end
  M["Lazy" .. name] = Lazy
end

--- `nn.Conv2d(in_channels, out_channels, kernel_size, stride?, padding?, dilation?, groups?,
--- bias?)` convolves (n, in, h, w) to (n, out, h', w'). A table of options may follow kernel_size.
--- Sizes are integers or lists of two; padding may be "same" or "valid".
---@class accelerate.nn.Conv2d : accelerate.nn.Module
---@field weight accelerate.Tensor (out_channels, in_channels / groups, kh, kw)
---@field bias accelerate.Tensor? (out_channels)
define("Conv2d", 2, false, F.conv2d)

--- Convolves (n, in, l) to (n, out, l'). Takes the arguments of Conv2d; sizes are integers or lists
--- of one.
---@class accelerate.nn.Conv1d : accelerate.nn.Module
define("Conv1d", 1, false, F.conv1d)

--- `nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride?, padding?, output_padding?,
--- groups?, bias?, dilation?)` applies the transpose of Conv2d as a linear map. A table of options
--- may follow kernel_size. Where several sizes have one convolution, output_padding chooses, or a
--- call does: `layer(x, { 9, 10 })`, `layer(x, { output_size = { 9, 10 } })`, or sizes of all dims.
---@class accelerate.nn.ConvTranspose2d : accelerate.nn.Module
---@field weight accelerate.Tensor (in_channels, out_channels / groups, kh, kw)
---@field bias accelerate.Tensor? (out_channels)
define("ConvTranspose2d", 2, true, F.conv_transpose2d)

--- Applies the transpose of Conv1d as a linear map to (n, in, l). Takes the arguments of
--- ConvTranspose2d.
---@class accelerate.nn.ConvTranspose1d : accelerate.nn.Module
define("ConvTranspose1d", 1, true, F.conv_transpose1d)

--- Convolves (n, in, d, h, w) to (n, out, d', h', w'). Takes the arguments of Conv2d; sizes are
--- integers or lists of three.
---@class accelerate.nn.Conv3d : accelerate.nn.Module
---@field weight accelerate.Tensor (out_channels, in_channels / groups, kd, kh, kw)
---@field bias accelerate.Tensor? (out_channels)
define("Conv3d", 3, false, F.conv3d)

--- Applies the transpose of Conv3d as a linear map to (n, in, d, h, w). Takes the arguments of
--- ConvTranspose2d.
---@class accelerate.nn.ConvTranspose3d : accelerate.nn.Module
define("ConvTranspose3d", 3, true, F.conv_transpose3d)

return M
