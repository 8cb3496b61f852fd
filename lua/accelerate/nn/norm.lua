--- Normalisation within a sample: LayerNorm, RMSNorm, GroupNorm, LocalResponseNorm.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"
local parameter = require "accelerate.nn.parameter"
local init = require "accelerate.nn.initializers"

local M = {}

local SIZE = { "integer", min = 1 }
local PLACE = { dtype = { "string", optional = true }, device = { "string", optional = true } }

local function with_place(schema)
  for name, entry in next, PLACE do schema[name] = entry end
  return schema
end

-- An integer or a list of sizes, as a list.
local function sizes(where, given)
  if type(given) == "number" then given = { given } end
  options.value(where, "normalized_shape", given, { "list" })
  local list = {}
  for i, size in ipairs(given) do
    list[i] = options.value(where, ("normalized_shape[%d]"):format(i), size, SIZE)
  end
  if #list == 0 then options.fail("%s: normalized_shape must have at least one size", where) end
  return list
end

local shape_text = Module._tuple

local function reset(self)
  if self.weight then init.ones_(self.weight) end
  if self.bias then init.zeros_(self.bias) end
end

-- ---- over the last dims

---@class accelerate.nn.LayerNorm : accelerate.nn.Module
---@field weight accelerate.Tensor? of normalized_shape
---@field bias accelerate.Tensor? of normalized_shape
local LayerNorm = class("LayerNorm", Module)
LayerNorm._builtin = true

local LAYER = with_place {
  eps = { "number", default = 1e-5, min = 0 },
  elementwise_affine = { "boolean", default = true },
  bias = { "boolean", default = true },
}

--- (x - mean) / sqrt(var + eps) * weight + bias over the last dims.
---@param normalized_shape integer|integer[] the sizes of those dims
---@param opts? { eps: number, elementwise_affine: boolean, bias: boolean, dtype: string, device:
---  string }
function LayerNorm:init(normalized_shape, opts)
  local o = options.check("LayerNorm", opts, LAYER)
  self.normalized_shape = sizes("LayerNorm", normalized_shape)
  self.eps, self.elementwise_affine = o.eps, o.elementwise_affine
  local place = { dtype = o.dtype, device = o.device }
  if o.elementwise_affine then
    self.weight = parameter.empty(self.normalized_shape, place)
    if o.bias then self.bias = parameter.empty(self.normalized_shape, place) end
  end
  self:reset_parameters()
end

--- Sets the weight to ones and the bias to zeros.
LayerNorm.reset_parameters = reset

local layer_norm = core.layer_norm

function LayerNorm:forward(x)
  local values = self._values
  return self:_run(layer_norm, x, values.normalized_shape, values.weight, values.bias, values.eps)
end

function LayerNorm:extra_repr()
  return ("%s, eps=%g, elementwise_affine=%s, bias=%s"):format(shape_text(self.normalized_shape), self.eps,
    Module._show(self.elementwise_affine), Module._show(self.bias ~= nil))
end

---@class accelerate.nn.RMSNorm : accelerate.nn.Module
---@field weight accelerate.Tensor? of normalized_shape
local RMSNorm = class("RMSNorm", Module)
RMSNorm._builtin = true

local RMS = with_place { eps = { "number", optional = true, min = 0 },
  elementwise_affine = { "boolean", default = true } }

--- x / sqrt(mean(x^2) + eps) * weight over the last dims.
---@param normalized_shape integer|integer[] the sizes of those dims
---@param opts? { eps: number, elementwise_affine: boolean, dtype: string, device: string } eps
---  defaults to the input type's epsilon
function RMSNorm:init(normalized_shape, opts)
  local o = options.check("RMSNorm", opts, RMS)
  self.normalized_shape = sizes("RMSNorm", normalized_shape)
  self.eps, self.elementwise_affine = o.eps, o.elementwise_affine
  if o.elementwise_affine then
    self.weight = parameter.empty(self.normalized_shape, { dtype = o.dtype, device = o.device })
  end
  self:reset_parameters()
end

--- Sets the weight to ones.
RMSNorm.reset_parameters = reset

local rms_norm = core.rms_norm

function RMSNorm:forward(x)
  local values = self._values
  return self:_run(rms_norm, x, values.normalized_shape, values.weight, values.eps)
end

function RMSNorm:extra_repr()
  return ("%s, eps=%s, elementwise_affine=%s"):format(shape_text(self.normalized_shape), self.eps
    and ("%g"):format(self.eps) or "None",
    Module._show(self.elementwise_affine))
end

-- ---- over groups of channels

---@class accelerate.nn.GroupNorm : accelerate.nn.Module
---@field weight accelerate.Tensor? (num_channels)
---@field bias accelerate.Tensor? (num_channels)
local GroupNorm = class("GroupNorm", Module)
GroupNorm._builtin = true

local GROUP = with_place { eps = { "number", default = 1e-5, min = 0 },
  affine = { "boolean", default = true }, bias = { "boolean", default = true } }

--- Normalises (N, C, ..) over each group of C / num_groups channels, then scales and shifts each
--- channel.
---@param num_groups integer
---@param num_channels integer a multiple of num_groups
---@param opts? { eps: number, affine: boolean, bias: boolean, dtype: string, device: string }
function GroupNorm:init(num_groups, num_channels, opts)
  local o = options.check("GroupNorm", opts, GROUP)
  self.num_groups = options.value("GroupNorm", "num_groups", num_groups, SIZE)
  self.num_channels = options.value("GroupNorm", "num_channels", num_channels, SIZE)
  if num_channels % num_groups ~= 0 then
    options.fail("GroupNorm: num_channels must be a multiple of num_groups, got %d and %d", num_channels,
      num_groups)
  end
  self.eps, self.affine = o.eps, o.affine
  if o.affine then
    local place = { dtype = o.dtype, device = o.device }
    self.weight = parameter.empty({ num_channels }, place)
    if o.bias then self.bias = parameter.empty({ num_channels }, place) end
  end
  self:reset_parameters()
end

--- Sets the weight to ones and the bias to zeros.
GroupNorm.reset_parameters = reset

local group_norm = core.group_norm

function GroupNorm:forward(x)
  local values = self._values
  return self:_run(group_norm, x, values.num_groups, values.weight, values.bias, values.eps)
end

function GroupNorm:extra_repr()
  return ("%d, %d, eps=%g, affine=%s, bias=%s"):format(self.num_groups, self.num_channels, self.eps,
    Module._show(self.affine),
    Module._show(self.bias ~= nil))
end

M.LayerNorm, M.RMSNorm, M.GroupNorm = LayerNorm, RMSNorm, GroupNorm

-- ---- over neighbouring channels

local functional = require "accelerate.nn.functional.norm"

---@class accelerate.nn.LocalResponseNorm : accelerate.nn.Module
local LocalResponseNorm = class("LocalResponseNorm", Module)
LocalResponseNorm._builtin = true

local LRN_ORDER = { "alpha", "beta", "k" }
local LRN = { alpha = { "number", default = 1e-4 }, beta = { "number", default = 0.75 },
  k = { "number", default = 1 } }

--- x / (k + alpha * mean of x^2 over `size` neighbouring channels)^beta.
---@param size integer channels in a neighbourhood
---@param ... any alpha = 1e-4, beta = 0.75, k = 1, or a table of them
function LocalResponseNorm:init(size, ...)
  local o = options.check("LocalResponseNorm", options.gather("LocalResponseNorm", LRN_ORDER, ...), LRN)
  self.size = options.value("LocalResponseNorm", "size", size, SIZE)
  self.alpha, self.beta, self.k = o.alpha, o.beta, o.k
end

function LocalResponseNorm:forward(x)
  local v = self._values
  return self:_run(functional.local_response_norm, x, v.size, v.alpha, v.beta, v.k)
end

function LocalResponseNorm:extra_repr()
  local function shown(v) return v == math.floor(v) and ("%.1f"):format(v) or ("%.14g"):format(v) end
  return ("%d, alpha=%s, beta=%s, k=%s"):format(self.size, shown(self.alpha), shown(self.beta),
    shown(self.k))
end

M.LocalResponseNorm = LocalResponseNorm

return M
