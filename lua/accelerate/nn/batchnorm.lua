--- nn.BatchNorm1d .. 3d, and their lazy forms, whose num_features is that of the first input:
--- `nn.LazyBatchNorm2d(opts)`.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"
local running_stats = require "accelerate.nn.running_stats"
local lazy = require "accelerate.nn.lazy"
local F = require "accelerate.nn.functional.image"

local M = {}

local OPTIONS = {
  eps = { "number", default = 1e-5, min = 0 },
  momentum = { "number|boolean", default = 0.1 },
  affine = { "boolean", default = true },
  bias = { "boolean", default = true },
  track_running_stats = { "boolean", default = true },
  activation = { "string", default = "none", one_of = { "none", "relu" } },
  dtype = { "string", optional = true },
  device = { "string", optional = true },
}

local batch_norm = F.batch_norm

local function define(name, least, most)
  local BatchNorm = class(name, Module)
  BatchNorm._builtin = true
  BatchNorm.reset_running_stats = running_stats.reset_running_stats
  BatchNorm.reset_parameters = running_stats.reset_parameters

  function BatchNorm:init(num_features, opts)
    local o = options.check(name, opts, OPTIONS)
    if o.momentum == true then
      options.fail("%s: momentum: expected a number, or false for a cumulative average", name)
    end
    self.activation = o.activation
    running_stats.fill(self, name, num_features, o)
  end

  --- residual: something of x's shape that is added before the activation.
  function BatchNorm:forward(x, residual)
    local v = self._values
    local training, momentum = self.training, v.momentum
    if core.is_tensor(x) and (x:dim() < least or x:dim() > most) then
      options.fail("%s: expected an input of %s dims, got [%s] (in %s)", name, least == most
        and tostring(least) or least .. " or " .. most,
        table.concat(x.shape, ", "), self:_brief())
    end
    if training and v.track_running_stats then
      local count = v.num_batches_tracked
      count:add_(1)
      if momentum == false then momentum = 1 / count:item() end
    end
    return self:_run(batch_norm, x, v.running_mean, v.running_var, v.weight, v.bias, training
      or not v.track_running_stats, momentum or 0, v.eps, residual,
      v.activation)
  end

  function BatchNorm:extra_repr()
    return ("%d, eps=%g, momentum=%s, affine=%s, bias=%s, track_running_stats=%s%s"):format(self.num_features,
      self.eps,
      self.momentum and Module._show(self.momentum) or "None", Module._show(self.affine),
      Module._show(self.bias ~= nil), Module._show(self.track_running_stats), self.activation ~= "none"
      and ", activation=" .. self.activation or "")
  end
  M[name] = BatchNorm

  local Lazy = lazy.class("Lazy" .. name, BatchNorm)
  function Lazy:init(opts)
    local o = options.check("Lazy" .. name, opts, OPTIONS)
    self.num_features, self.eps, self.momentum, self.affine = 0, o.eps, o.momentum, o.affine
    self.track_running_stats, self.activation = o.track_running_stats, o.activation
    self.bias = o.affine and o.bias or nil -- for print
    lazy.keep(self, function(x)
      if x.ndim < least or x.ndim > most then
        options.fail("Lazy%s: expected an input of %s dims, got %s", name, least == most and tostring(least)
          or least .. " or " .. most, options.show(x))
      end
      return x.shape[2], o
    end)
  end
  M["Lazy" .. name] = Lazy
end

--- `nn.BatchNorm2d(num_features, { eps = 1e-5, momentum = 0.1, affine = true, bias = true,
--- track_running_stats = true, activation = "none" })` normalises each channel of (n, c, h, w) over
--- the batch. momentum = false keeps a cumulative average. activation = "relu" applies relu in the
--- same pass. bn(x, residual) adds the residual before the activation.
---@class accelerate.nn.BatchNorm2d : accelerate.nn.Module
---@field weight accelerate.Tensor? (num_features)
---@field bias accelerate.Tensor? (num_features)
---@field running_mean accelerate.Tensor?
---@field running_var accelerate.Tensor?
---@field num_batches_tracked accelerate.Tensor? int64, 0-d
define("BatchNorm2d", 4, 4)
--- Normalises each channel of (n, c) or (n, c, l) over the batch. Takes the arguments of
--- BatchNorm2d.
---@class accelerate.nn.BatchNorm1d : accelerate.nn.Module
define("BatchNorm1d", 2, 3)
--- Normalises each channel of (n, c, d, h, w) over the batch. Takes the arguments of BatchNorm2d.
---@class accelerate.nn.BatchNorm3d : accelerate.nn.Module
define("BatchNorm3d", 5, 5)

return M
