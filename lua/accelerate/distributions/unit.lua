--- Distributions over [0, 1] whose cdf has an inverse: Kumaraswamy, ContinuousBernoulli.
local base = require "accelerate.distributions.base"
local core = require "accelerate.core"
local discrete = require "accelerate.distributions.discrete"
local options = require "accelerate.utils.options"

local lgamma = core.lgamma

local M = {}

local EULER = 0.57721566490153286061

local function unit(self, value) base.check(self, "the value", value, "unit") end

-- ---- Kumaraswamy

--- Kumaraswamy's distribution, which is like the beta distribution.
---@class accelerate.Kumaraswamy: accelerate.Distribution
---@field concentration1 accelerate.Tensor
---@field concentration0 accelerate.Tensor
local Kumaraswamy = base.class "Kumaraswamy"
Kumaraswamy.has_rsample, Kumaraswamy._support = true, unit
Kumaraswamy._parameters = { { "concentration1", "positive" }, { "concentration0", "positive" } }

---@param concentration1 accelerate.Tensor|number alpha, above 0
---@param concentration0 accelerate.Tensor|number beta, above 0
---@param opts { validate_args: boolean? }?
function Kumaraswamy:init(concentration1, concentration0, opts)
  self:_take(opts, concentration1, concentration0)
end

-- The mean of x^n.
local function moment(self, n)
  local a, b = 1 + n / self.concentration1, self.concentration0
  return b * (lgamma(a) + lgamma(b) - lgamma(a + b)):exp()
end
function Kumaraswamy:_get_mean() return moment(self, 1) end
-- Where the density has one peak; elsewhere nan.
function Kumaraswamy:_get_mode()
  local a, b = self.concentration1, self.concentration0
  local peak = core.logical_and(core.logical_and(a:ge(1), b:ge(1)), (a * b):gt(1))
  local value = ((a - 1) / (a * b - 1)):pow(1 / a)
  return core.where(peak, value, core.full_like(value, 0 / 0))
end
function Kumaraswamy:_get_variance() return moment(self, 2) - moment(self, 1) ^ 2 end
function Kumaraswamy:_draw(shape) return self:icdf(base.uniform(shape, self.concentration1)) end
function Kumaraswamy:log_prob(value)
  value = self:_value(value)
  local a, b = self.concentration1, self.concentration0
  return a:log() + b:log() + core.xlogy(a - 1, value) + core.xlogy(b - 1, 1 - value:pow(a))
end
function Kumaraswamy:cdf(value)
  return -(self.concentration0 * (-self:_value(value):pow(self.concentration1)):log1p()):expm1()
end
function Kumaraswamy:icdf(p)
  local log = (-base.probability(p, self.concentration1)):log1p()
  return (-(log / self.concentration0):expm1()):pow(1 / self.concentration1)
end
function Kumaraswamy:entropy()
  local a, b = self.concentration1, self.concentration0
  return 1 - 1 / b + (1 - 1 / a) * (core.digamma(b + 1) + EULER) - a:log() - b:log()
end

-- ---- ContinuousBernoulli

--- A number of [0, 1] whose density is p^x (1 - p)^(1 - x) but for a factor.
---@class accelerate.ContinuousBernoulli: accelerate.Distribution
---@field probs accelerate.Tensor p
---@field logits accelerate.Tensor log(p / (1 - p))
local ContinuousBernoulli = base.class "ContinuousBernoulli"
ContinuousBernoulli.has_rsample, ContinuousBernoulli._support = true, unit

local function clamped(p)
  local least = p.dtype == "float64" and 2 ^ -52 or 2 ^ -23
  return p:clamp { min = least, max = 1 - least }
end

---@param opts { probs: accelerate.Tensor|number|nil, logits: accelerate.Tensor|number|nil,
---  lims: number[]?, validate_args: boolean? }|accelerate.Tensor|number one of probs and logits; a
---  tensor or a number: probs; lims, default {0.499, 0.501}: between them series are used
function ContinuousBernoulli:init(opts)
  local odds, lims = opts, nil
  if type(opts) == "table" then
    odds = {}
    for key, value in pairs(opts) do odds[key] = value end
    lims, odds.lims = odds.lims, nil
  end
  discrete.take_odds(self, odds, "unit")
  if rawget(self, "probs") then self.probs = clamped(self.probs) end
  self._lims = lims or { 0.499, 0.501 }
  if type(self._lims) ~= "table" or type(self._lims[1]) ~= "number" or type(self._lims[2]) ~= "number" then
    options.fail("ContinuousBernoulli: lims must be two numbers, got %s", options.show(lims))
  end
end

ContinuousBernoulli._get_logits = discrete.logits_of
function ContinuousBernoulli:_get_probs() return clamped(self.logits:sigmoid()) end
function ContinuousBernoulli:_expanded(shape)
  local key = rawget(self, "probs") and "probs" or "logits"
  return ContinuousBernoulli { [key] = self[key]:expand(shape), lims = self._lims,
    validate_args = self._validate }
end
-- Where p is away from a half, and a p that is.
local function apart(self)
  local p, lims = self.probs, self._lims
  local away = core.logical_or(p:le(lims[1]), p:gt(lims[2]))
  return away, core.where(away, p, core.full_like(p, lims[1]))
end
function ContinuousBernoulli:_log_norm()
  local away, p = apart(self)
  local below = core.where(p:le(0.5), p, core.zeros_like(p))
  local above = core.where(p:ge(0.5), p, core.ones_like(p))
  local log = ((-p):log1p() - p:log()):abs():log()
    - core.where(p:le(0.5), (-2 * below):log1p(), (2 * above - 1):log())
  local x = (self.probs - 0.5) ^ 2
  return core.where(away, log, math.log(2) + (4 / 3 + 104 / 45 * x) * x)
end
function ContinuousBernoulli:_get_mean()
  local away, p = apart(self)
  local x = self.probs - 0.5
  return core.where(away, p / (2 * p - 1) + 1 / ((-p):log1p() - p:log()),
    0.5 + (1 / 3 + 16 / 45 * x * x) * x)
end
function ContinuousBernoulli:_get_variance()
  local away, p = apart(self)
  local x = (self.probs - 0.5) ^ 2
  return core.where(away, p * (p - 1) / (1 - 2 * p) ^ 2 + 1 / ((-p):log1p() - p:log()) ^ 2,
    1 / 12 - (1 / 15 - 128 / 945 * x) * x)
end
function ContinuousBernoulli:_dtype() return self.probs.dtype end
function ContinuousBernoulli:_draw(shape) return self:icdf(base.uniform(shape, self.probs)) end
function ContinuousBernoulli:log_prob(value)
  value = self:_value(value)
  local logits = self.logits
  return value * logits:logsigmoid() + (1 - value) * (-logits):logsigmoid() + self:_log_norm()
end
function ContinuousBernoulli:cdf(value)
  value = self:_value(value)
  local away, p = apart(self)
  local inside = (p:pow(value) * (1 - p):pow(1 - value) + p - 1) / (2 * p - 1)
  return core.where(away, inside, value + 0 * p):clamp { min = 0, max = 1 }
end
function ContinuousBernoulli:icdf(p)
  local away, cut = apart(self)
  p = base.probability(p, cut)
  local value = ((-cut + p * (2 * cut - 1)):log1p() - (-cut):log1p()) / (cut:log() - (-cut):log1p())
  return core.where(away, value, p + 0 * cut)
end
function ContinuousBernoulli:entropy()
  local p = self.probs
  local none, all = (-p):log1p(), p:log()
  return self.mean * (none - all) - self:_log_norm() - none
end

M.Kumaraswamy, M.ContinuousBernoulli = Kumaraswamy, ContinuousBernoulli

return M
