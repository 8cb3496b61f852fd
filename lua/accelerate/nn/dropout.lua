--- nn.Dropout, nn.Dropout1d .. 3d, nn.AlphaDropout, nn.FeatureAlphaDropout.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"
local F = require "accelerate.nn.functional.dropout"

---@class accelerate.nn.Dropout : accelerate.nn.Module
local Dropout = class("Dropout", Module)
Dropout._builtin = true

local ORDER = { "p", "inplace" }
local OPTIONS = { p = { "number", default = 0.5, min = 0, max = 1 }, inplace = { "boolean", default = false },
  generator = { "Generator", optional = true } }

--- In training, zeroes each element with probability p and scales the others by 1 / (1 - p);
--- otherwise returns its input. Each rank draws its own numbers; which they are depends on the seed
--- alone.
---@param p? number|{ p: number, inplace: boolean, generator: accelerate.Generator } default 0.5;
---  inplace: the input's memory takes the result
---@param inplace? boolean
function Dropout:init(p, inplace, ...)
  local o = options.check("Dropout", options.gather("Dropout", ORDER, p, inplace, ...), OPTIONS)
  self.p, self.inplace, self.generator = o.p, o.inplace, o.generator
end

local dropout = core.dropout

function Dropout:forward(x)
  local p = self._values.p
  if not self.training or p == 0 then return x end
  if self.inplace then
    local result = self:_run(dropout, x, p, true, self.generator)
    if not result.requires_grad then return x:copy_(result) end
    return result  -- the tape would have to keep a copy anyhow
  end
  return self:_run(dropout, x, p, true, self.generator)
end

function Dropout:extra_repr()
  return ("p=%s, inplace=%s"):format(Module._show(self.p), Module._show(self.inplace))
end

-- The others: the input's memory takes the result where it is not recorded, as above.
local function define_dropout(name, op)
  local Class = class(name, Module)
  Class._builtin = true
  function Class:init(p, ...)
    local o = options.check(name, options.gather(name, ORDER, p, ...), OPTIONS)
    self.p, self.inplace, self.generator = o.p, o.inplace, o.generator
  end
  function Class:forward(x)
    local v = self._values
    if not self.training or v.p == 0 then return x end
    local result = op(x, { p = v.p, generator = v.generator })
    if v.inplace and not result.requires_grad then return x:copy_(result) end
    return result
  end
  Class.extra_repr = Dropout.extra_repr
  return Class
end

local M = { Dropout = Dropout }

--- In training, dropout that keeps mean and variance of what SELU made: a dropped element becomes
--- SELU's lowest value.
---@class accelerate.nn.AlphaDropout : accelerate.nn.Module
M.AlphaDropout = define_dropout("AlphaDropout", F.alpha_dropout)
--- In training, zeroes whole channels of (n, c, h, w) with probability p (default 0.5) and scales
--- the others by 1 / (1 - p).
---@class accelerate.nn.Dropout2d : accelerate.nn.Module
M.Dropout2d = define_dropout("Dropout2d", F.dropout2d)
--- In training, zeroes whole channels of (n, c, l) with probability p (default 0.5) and scales the
--- others by 1 / (1 - p).
---@class accelerate.nn.Dropout1d : accelerate.nn.Module
M.Dropout1d = define_dropout("Dropout1d", F.dropout1d)
--- In training, zeroes whole channels of (n, c, d, h, w) with probability p (default 0.5) and
--- scales the others by 1 / (1 - p).
---@class accelerate.nn.Dropout3d : accelerate.nn.Module
M.Dropout3d = define_dropout("Dropout3d", F.dropout3d)
--- AlphaDropout of whole channels of (n, c, ..).
---@class accelerate.nn.FeatureAlphaDropout : accelerate.nn.Module
M.FeatureAlphaDropout = define_dropout("FeatureAlphaDropout", F.feature_alpha_dropout)

return M
