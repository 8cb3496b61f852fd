--- nn.InstanceNorm1d .. 3d, and their lazy forms, whose num_features is that of the first input:
--- `nn.LazyInstanceNorm2d(opts)`. As in PyTorch, the lazy forms have affine = true and
--- track_running_stats = true by default, and the others false.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"
local running_stats = require "accelerate.nn.running_stats"
local lazy = require "accelerate.nn.lazy"

local instance_norm = require("accelerate.nn.functional.norm").instance_norm

local M = {}

local OPTIONS = {
  eps = { "number", default = 1e-5, min = 0 },
  momentum = { "number", default = 0.1 },
  affine = { "boolean", default = false },
  bias = { "boolean", default = true },
  track_running_stats = { "boolean", default = false },
  dtype = { "string", optional = true },
  device = { "string", optional = true },
}
local LAZY = {}
for name, entry in next, OPTIONS do LAZY[name] = entry end
LAZY.affine, LAZY.track_running_stats = { "boolean", default = true }, { "boolean", default = true }

local function define(name, dims)
  local InstanceNorm = class(name, Module)
  InstanceNorm._builtin = true
  InstanceNorm.reset_running_stats = running_stats.reset_running_stats
  InstanceNorm.reset_parameters = running_stats.reset_parameters

  function InstanceNorm:init(num_features, opts)
    local o = options.check(name, opts, OPTIONS)
    running_stats.fill(self, name, num_features, o)
  end

  function InstanceNorm:forward(x)
    local v = self._values
    local single = core.is_tensor(x) and x:dim() == dims - 1
    if not core.is_tensor(x) or (x:dim() ~= dims and not single) then
      options.fail("%s: expected an input of %d or %d dims, got %s (in %s)", name, dims - 1, dims,
        core.is_tensor(x) and Module._tuple(x.shape) or type(x), self:_brief())
    end
    if single then x = x:unsqueeze(1) end
    if x.shape[2] ~= v.num_features then
      options.fail("%s: expected %d channels, got an input of shape %s (in %s)", name, v.num_features,
        Module._tuple(x.shape), self:_brief())
    end
    local y = instance_norm(x, v.running_mean, v.running_var, v.weight, v.bias, self.training
      or not v.track_running_stats, v.momentum, v.eps)
    return single and y:squeeze(1) or y
  end

  function InstanceNorm:extra_repr()
    return ("%d, eps=%g, momentum=%s, affine=%s, bias=%s, track_running_stats=%s"):format(self.num_features,
      self.eps, Module._show(self.momentum),
      Module._show(self.affine), Module._show(self.bias ~= nil), Module._show(self.track_running_stats))
  end
  M[name] = InstanceNorm

  local Lazy = lazy.class("Lazy" .. name, InstanceNorm)
  function Lazy:init(opts)
    local o = options.check("Lazy" .. name, opts, LAZY)
    self.num_features, self.eps, self.momentum, self.affine = 0, o.eps, o.momentum, o.affine
    self.track_running_stats = o.track_running_stats
    self.bias = o.affine and o.bias or nil -- for print
    lazy.keep(self, function(x)
      if x.ndim ~= dims and x.ndim ~= dims - 1 then
        options.fail("Lazy%s: expected an input of %d or %d dims, got %s", name, dims - 1, dims,
          options.show(x))
      end
      return x.shape[x.ndim == dims and 2 or 1], o
    end)
  end
  M["Lazy" .. name] = Lazy
end

--- `nn.InstanceNorm2d(num_features, { eps = 1e-5, momentum = 0.1, affine = false,
--- track_running_stats = false })` normalises each channel of each sample of (n, c, h, w), or of
--- one sample (c, h, w). In evaluation it uses running statistics if they are kept.
---@class accelerate.nn.InstanceNorm2d : accelerate.nn.Module
---@field weight accelerate.Tensor? (num_features)
---@field bias accelerate.Tensor? (num_features)
---@field running_mean accelerate.Tensor?
---@field running_var accelerate.Tensor?
---@field num_batches_tracked accelerate.Tensor? int64, 0-d, 0 as in PyTorch
define("InstanceNorm2d", 4)
--- Normalises each channel of each sample of (n, c, l), or of one sample (c, l). Takes the
--- arguments of InstanceNorm2d.
---@class accelerate.nn.InstanceNorm1d : accelerate.nn.Module
define("InstanceNorm1d", 3)
--- Normalises each channel of each sample of (n, c, d, h, w), or of one sample (c, d, h, w). Takes
--- the arguments of InstanceNorm2d.
---@class accelerate.nn.InstanceNorm3d : accelerate.nn.Module
define("InstanceNorm3d", 5)

return M
