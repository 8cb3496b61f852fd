--- Modules that bring elements to other places: Upsample, PixelShuffle, ChannelShuffle, Unfold,
--- Fold.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"
local sizes = require "accelerate.nn.sizes"
local F = require "accelerate.nn.functional"

local M = {}

---@class accelerate.nn.Upsample : accelerate.nn.Module
local Upsample = class("Upsample", Module)
Upsample._builtin = true

--- Resamples its input: nn.Upsample { scale_factor = 2, mode = "bilinear" }.
---@param opts { size: integer|integer[], scale_factor: number|number[], mode:
---  "nearest"|"linear"|"bilinear"|"bicubic"|"trilinear", align_corners: boolean,
---  recompute_scale_factor: boolean }
function Upsample:init(opts)
  self.options = options.check("Upsample", opts, {
    size = { "integer|table", optional = true },
    scale_factor = { "number|table", optional = true },
    mode = { "string", default = "nearest",
      one_of = { "nearest", "linear", "bilinear", "bicubic", "trilinear" } },
    align_corners = { "boolean", default = false },
    recompute_scale_factor = { "boolean", default = false },
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

local ORDER = { "size", "scale_factor" }
local function define_upsampling(name, mode, align)
  local Class = class(name, Upsample)
  Class._builtin = true
  local schema = { size = { "integer|table", optional = true },
    scale_factor = { "number|table", optional = true } }
  function Class:init(...)
    local o = options.check(name, options.gather(name, ORDER, ...), schema)
    if (o.size == nil) == (o.scale_factor == nil) then
      options.fail("%s: give either size or scale_factor", name)
    end
    o.mode, o.align_corners = mode, align
    self.options = o
  end
  M[name] = Class
end

--- Upsample of (n, c, h, w) with mode = "nearest": `nn.UpsamplingNearest2d(size?, scale_factor?)`.
---@class accelerate.nn.UpsamplingNearest2d : accelerate.nn.Upsample
define_upsampling("UpsamplingNearest2d", "nearest", false)
--- Upsample of (n, c, h, w) with mode = "bilinear" and align_corners:
--- `nn.UpsamplingBilinear2d(size?, scale_factor?)`.
---@class accelerate.nn.UpsamplingBilinear2d : accelerate.nn.Upsample
define_upsampling("UpsamplingBilinear2d", "bilinear", true)

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

local GROUPS = { "integer", min = 1 }

---@class accelerate.nn.ChannelShuffle : accelerate.nn.Module
local ChannelShuffle = class("ChannelShuffle", Module)
ChannelShuffle._builtin = true

--- Deals channels out to `groups` heaps and puts the heaps one after the other.
---@param groups integer
function ChannelShuffle:init(groups, opts)
  options.check("ChannelShuffle", opts, {})
  self.groups = options.value("ChannelShuffle", "groups", groups, GROUPS)
end
function ChannelShuffle:forward(x) return self:_run(F.channel_shuffle, x, self._values.groups) end
function ChannelShuffle:extra_repr() return ("groups=%d"):format(self.groups) end
M.ChannelShuffle = ChannelShuffle

-- ---- windows as columns

local WINDOW_ORDER = { "dilation", "padding", "stride" }
local WINDOWS = {
  dilation = { "integer|table", default = 1 },
  padding = { "integer|table", default = 0 },
  stride = { "integer|table", default = 1 },
}

local function keep_windows(self, name, kernel_size, ...)
  local o = options.check(name, options.gather(name, WINDOW_ORDER, ...), WINDOWS)
  self.kernel_size = sizes.tuple(name, "kernel_size", kernel_size, 2, 1)
  self.dilation = sizes.tuple(name, "dilation", o.dilation, 2, 1)
  self.padding = sizes.tuple(name, "padding", o.padding, 2, 0)
  self.stride = sizes.tuple(name, "stride", o.stride, 2, 1)
end

local function windows_text(self)
  return ("kernel_size=%s, dilation=%s, padding=%s, stride=%s"):format(Module._tuple(self.kernel_size, true),
    Module._tuple(self.dilation, true), Module._tuple(self.padding, true), Module._tuple(self.stride, true))
end

---@class accelerate.nn.Unfold : accelerate.nn.Module
local Unfold = class("Unfold", Module)
Unfold._builtin = true

--- Copies the windows of (n, c, h, w) into the columns of (n, c kh kw, windows).
---@param kernel_size integer|integer[]
---@param ... any dilation = 1, padding = 0, stride = 1, or a table of them
function Unfold:init(kernel_size, ...) keep_windows(self, "Unfold", kernel_size, ...) end
function Unfold:forward(x)
  local v = self._values
  return self:_run(F.unfold, x, v.kernel_size, v.dilation, v.padding, v.stride)
end
function Unfold:extra_repr() return windows_text(self) end
M.Unfold = Unfold

---@class accelerate.nn.Fold : accelerate.nn.Module
local Fold = class("Fold", Module)
Fold._builtin = true

--- Adds the columns of (n, c kh kw, windows) up to images (n, c, h, w).
---@param output_size integer|integer[] height and width of the images
---@param kernel_size integer|integer[]
---@param ... any dilation = 1, padding = 0, stride = 1, or a table of them
function Fold:init(output_size, kernel_size, ...)
  self.output_size = sizes.tuple("Fold", "output_size", output_size, 2, 1)
  keep_windows(self, "Fold", kernel_size, ...)
end
function Fold:forward(x)
  local v = self._values
  return self:_run(F.fold, x, v.output_size, v.kernel_size, v.dilation, v.padding, v.stride)
end
function Fold:extra_repr()
  return ("output_size=%s, "):format(Module._tuple(self.output_size, true)) .. windows_text(self)
end
M.Fold = Fold

return M
