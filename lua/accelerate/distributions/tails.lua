--- Distributions over numbers above a bound: Pareto, GeneralizedPareto, Weibull, InverseGamma,
--- FisherSnedecor.
local base = require "accelerate.distributions.base"
local core = require "accelerate.core"
local gamma = require "accelerate.distributions.gamma"

local lgamma, digamma = core.lgamma, core.digamma

local M = {}

local EULER = 0.57721566490153286061

local function positive(self, value) base.check(self, "the value", value, "positive") end

-- x where it holds, elsewhere a number.
local function where(holds, x, other) return core.where(holds, x, core.full_like(x, other)) end

-- ---- Pareto

--- The Pareto distribution.
---@class accelerate.Pareto: accelerate.Distribution
---@field scale accelerate.Tensor the least value
---@field alpha accelerate.Tensor
local Pareto = base.class "Pareto"
Pareto.has_rsample, Pareto._parameters = true, { { "scale", "positive" }, { "alpha", "positive" } }

---@param scale accelerate.Tensor|number the least value, above 0
---@param alpha accelerate.Tensor|number how fast the tail falls, above 0
---@param opts { validate_args: boolean? }?
function Pareto:init(scale, alpha, opts) self:_take(opts, scale, alpha) end

function Pareto:_get_mean()
  local a = self.alpha:clamp { min = 1 }
  return a * self.scale / (a - 1)
end
function Pareto:_get_mode() return self.scale end
function Pareto:_get_variance()
  local a = self.alpha:clamp { min = 2 }
  return self.scale * self.scale * a / ((a - 1) ^ 2 * (a - 2))
end
function Pareto:_support(value)
  if not self._validate then return end
  base.expect("Pareto", "the value", value, "at least scale", value:ge(self.scale:detach()))
end
function Pareto:_draw(shape)
  return self.scale * (-base.uniform(shape, self.scale):log() / self.alpha):exp()
end
function Pareto:log_prob(value)
  local log = self:_value(value):log()
  return self.alpha:log() + self.alpha * (self.scale:log() - log) - log
end
function Pareto:cdf(value) return -(self.alpha * (self.scale / self:_value(value)):log()):expm1() end
function Pareto:icdf(p)
  return self.scale * (-(-base.probability(p, self.scale)):log1p() / self.alpha):exp()
end
function Pareto:entropy() return (self.scale / self.alpha):log() + (1 + 1 / self.alpha) end

-- ---- GeneralizedPareto

--- The generalized Pareto distribution, of how far values exceed a bound.
---@class accelerate.GeneralizedPareto: accelerate.Distribution
---@field loc accelerate.Tensor
---@field scale accelerate.Tensor
---@field concentration accelerate.Tensor
local GeneralizedPareto = base.class "GeneralizedPareto"
GeneralizedPareto.has_rsample = true
GeneralizedPareto._parameters = { { "loc", "real" }, { "scale", "positive" }, { "concentration", "real" } }

---@param loc accelerate.Tensor|number the bound
---@param scale accelerate.Tensor|number above 0
---@param concentration accelerate.Tensor|number how heavy the tail is; below 0 it ends
---@param opts { validate_args: boolean? }?
function GeneralizedPareto:init(loc, scale, concentration, opts)
  self:_take(opts, loc, scale, concentration)
end

function GeneralizedPareto:_get_mean()
  local finite = self.concentration:lt(1)
  return where(finite, self.loc + self.scale / (1 - where(finite, self.concentration, 0.5)), 0 / 0)
end
function GeneralizedPareto:_get_mode() return self.loc end
function GeneralizedPareto:_get_variance()
  local finite = self.concentration:lt(0.5)
  local c = where(finite, self.concentration, 0.25)
  return where(finite, self.scale ^ 2 / ((1 - c) ^ 2 * (1 - 2 * c)), 0 / 0)
end
function GeneralizedPareto:_support(value)
  if not self._validate then return end
  local loc, c = self.loc:detach(), self.concentration:detach()
  local high = where(c:lt(0), loc - self.scale:detach() / where(c:lt(0), c, -1), math.huge)
  base.expect("GeneralizedPareto", "the value", value, "from loc to the end of the tail",
    core.logical_and(value:ge(loc), value:le(high)))
end
-- Whether the concentration is 0, and a concentration to divide by.
function GeneralizedPareto:_divisor()
  local zero = self.concentration:detach():abs():le(1e-8)
  return zero, core.where(zero, core.ones_like(self.concentration), self.concentration)
end
function GeneralizedPareto:_draw(shape) return self:icdf(base.uniform(shape, self.loc)) end
function GeneralizedPareto:log_prob(value)
  local z = (self:_value(value) - self.loc) / self.scale
  local zero, c = self:_divisor()
  local power = 1 / c + core.ones_like(z)
  local fall = core.where(power:eq(0), power, power * (c * z):log1p())
  return -self.scale:log() - core.where(zero, z, fall)
end

--- Returns the logarithm of the probability of values above `value`.
---@param value accelerate.Tensor|number
---@return accelerate.Tensor
function GeneralizedPareto:log_survival_function(value)
  local z = (self:_value(value) - self.loc) / self.scale
  local zero, c = self:_divisor()
  return core.where(zero, -z, -(c * z):log1p() / c)
end

--- Returns the logarithm of the probability of values up to `value`.
---@param value accelerate.Tensor|number
---@return accelerate.Tensor
function GeneralizedPareto:log_cdf(value) return (-self:log_survival_function(value):exp()):log1p() end

function GeneralizedPareto:cdf(value) return -self:log_survival_function(value):expm1() end
function GeneralizedPareto:icdf(p)
  local log = (-base.probability(p, self.loc)):log1p()
  local zero, c = self:_divisor()
  return self.loc + core.where(zero, -self.scale * log, self.scale / c * (-c * log):expm1())
end
function GeneralizedPareto:entropy() return self.scale:log() + self.concentration + 1 end

-- ---- Weibull

--- The Weibull distribution.
---@class accelerate.Weibull: accelerate.Distribution
---@field scale accelerate.Tensor
---@field concentration accelerate.Tensor
local Weibull = base.class "Weibull"
Weibull.has_rsample, Weibull._support = true, positive
Weibull._parameters = { { "scale", "positive" }, { "concentration", "positive" } }

---@param scale accelerate.Tensor|number above 0
---@param concentration accelerate.Tensor|number the shape parameter, above 0
---@param opts { validate_args: boolean? }?
function Weibull:init(scale, concentration, opts) self:_take(opts, scale, concentration) end

-- The mean of (x / scale)^n.
local function weibull_moment(self, n) return lgamma(1 + n / self.concentration):exp() end
function Weibull:_get_mean() return self.scale * weibull_moment(self, 1) end
function Weibull:_get_mode()
  local k = self.concentration
  return self.scale * ((k - 1) / k):pow(1 / k)
end
function Weibull:_get_variance()
  return self.scale * self.scale * (weibull_moment(self, 2) - weibull_moment(self, 1) ^ 2)
end
function Weibull:_draw(shape)
  return self.scale * (-base.uniform(shape, self.scale):log()):pow(1 / self.concentration)
end
function Weibull:log_prob(value)
  local k = self.concentration
  local log = (self:_value(value) / self.scale):log()
  return (k / self.scale):log() + (k - 1) * log - (k * log):exp()
end
function Weibull:cdf(value) return -(-(self:_value(value) / self.scale):pow(self.concentration)):expm1() end
function Weibull:icdf(p)
  return self.scale * (-(-base.probability(p, self.scale)):log1p()):pow(1 / self.concentration)
end
function Weibull:entropy()
  return EULER * (1 - 1 / self.concentration) + (self.scale / self.concentration):log() + 1
end

-- ---- InverseGamma

--- The distribution of 1 over a gamma variable.
---@class accelerate.InverseGamma: accelerate.Distribution
---@field concentration accelerate.Tensor of the gamma variable
---@field rate accelerate.Tensor of the gamma variable
local InverseGamma = base.class "InverseGamma"
InverseGamma.has_rsample, InverseGamma._support = true, positive
InverseGamma._parameters = { { "concentration", "positive" }, { "rate", "positive" } }

---@param concentration accelerate.Tensor|number the shape parameter, above 0
---@param rate accelerate.Tensor|number above 0
---@param opts { validate_args: boolean? }?
function InverseGamma:init(concentration, rate, opts) self:_take(opts, concentration, rate) end

function InverseGamma:_get_mean()
  local a = self.concentration
  return where(a:gt(1), self.rate / (a - 1), math.huge)
end
function InverseGamma:_get_mode() return self.rate / (self.concentration + 1) end
function InverseGamma:_get_variance()
  local a = self.concentration
  return where(a:gt(2), self.rate ^ 2 / ((a - 1) ^ 2 * (a - 2)), math.huge)
end
function InverseGamma:_draw(shape) return self.rate / gamma.standard_gamma(shape, self.concentration) end
function InverseGamma:log_prob(value)
  value = self:_value(value)
  local a = self.concentration
  return a * self.rate:log() - (a + 1) * value:log() - self.rate / value - lgamma(a)
end
function InverseGamma:entropy()
  local a = self.concentration
  return a + self.rate:log() + lgamma(a) - (1 + a) * digamma(a)
end

-- ---- FisherSnedecor

--- The F distribution: of the ratio of two means of squares of standard normal variables.
---@class accelerate.FisherSnedecor: accelerate.Distribution
---@field df1 accelerate.Tensor
---@field df2 accelerate.Tensor
local FisherSnedecor = base.class "FisherSnedecor"
FisherSnedecor.has_rsample, FisherSnedecor._support = true, positive
FisherSnedecor._parameters = { { "df1", "positive" }, { "df2", "positive" } }

---@param df1 accelerate.Tensor|number degrees of freedom of the numerator, above 0
---@param df2 accelerate.Tensor|number degrees of freedom of the denominator, above 0
---@param opts { validate_args: boolean? }?
function FisherSnedecor:init(df1, df2, opts) self:_take(opts, df1, df2) end

function FisherSnedecor:_get_mean() return where(self.df2:gt(2), self.df2 / (self.df2 - 2), 0 / 0) end
function FisherSnedecor:_get_mode()
  local a, b = self.df1, self.df2
  return where(a:gt(2), (a - 2) / a * b / (b + 2), 0 / 0)
end
function FisherSnedecor:_get_variance()
  local a, b = self.df1, self.df2
  return where(b:gt(4), 2 * b ^ 2 * (a + b - 2) / (a * (b - 2) ^ 2 * (b - 4)), 0 / 0)
end
function FisherSnedecor:_draw(shape)
  local a, b = self.df1, self.df2
  local tiny = a.dtype == "float64" and 2 ^ -1022 or 2 ^ -126
  local below = gamma.standard_gamma(shape, b / 2) / b
  return (gamma.standard_gamma(shape, a / 2) / a / below:clamp { min = tiny }):clamp { min = tiny }
end
function FisherSnedecor:log_prob(value)
  value = self:_value(value)
  local a, b, ratio = self.df1 / 2, self.df2 / 2, self.df1 / self.df2
  return lgamma(a + b) - lgamma(a) - lgamma(b) + a * ratio:log() + (a - 1) * value:log()
    - (a + b) * (ratio * value):log1p()
end

M.Pareto, M.GeneralizedPareto, M.Weibull = Pareto, GeneralizedPareto, Weibull
M.InverseGamma, M.FisherSnedecor = InverseGamma, FisherSnedecor

return M
