--- Distributions with a location and a scale: Cauchy, StudentT, Gumbel, HalfNormal, HalfCauchy.
local base = require "accelerate.distributions.base"
local continuous = require "accelerate.distributions.continuous"
local core = require "accelerate.core"
local gamma = require "accelerate.distributions.gamma"
local tensor = require "accelerate.tensor"

local M = {}

local EULER = 0.57721566490153286061
local PLACED = { { "loc", "real" }, { "scale", "positive" } }

local function real(self, value) base.check(self, "the value", value, "real") end
local function filled(x, value) return core.full_like(x, value) end

-- ---- Cauchy

--- The Cauchy distribution.
---@class accelerate.Cauchy: accelerate.Distribution
---@field loc accelerate.Tensor the median
---@field scale accelerate.Tensor half the width at half the height
local Cauchy = base.class "Cauchy"
Cauchy.has_rsample, Cauchy._parameters, Cauchy._support = true, PLACED, real

---@param loc accelerate.Tensor|number
---@param scale accelerate.Tensor|number above 0
---@param opts { validate_args: boolean? }?
function Cauchy:init(loc, scale, opts) self:_take(opts, loc, scale) end

function Cauchy:_get_mean() return filled(self.loc, 0 / 0) end
function Cauchy:_get_mode() return self.loc end
function Cauchy:_get_variance() return filled(self.loc, math.huge) end
function Cauchy:_draw(shape)
  return self.loc + self.scale * ((base.uniform(shape, self.loc) - 0.5) * math.pi):tan()
end
function Cauchy:log_prob(value)
  local z = (self:_value(value) - self.loc) / self.scale
  return -math.log(math.pi) - self.scale:log() - (z * z):log1p()
end
function Cauchy:cdf(value) return ((self:_value(value) - self.loc) / self.scale):atan() / math.pi + 0.5 end
function Cauchy:icdf(p)
  return self.loc + self.scale * ((base.probability(p, self.loc) - 0.5) * math.pi):tan()
end
function Cauchy:entropy() return math.log(4 * math.pi) + self.scale:log() end

-- ---- StudentT

--- Student's t distribution.
---@class accelerate.StudentT: accelerate.Distribution
---@field df accelerate.Tensor
---@field loc accelerate.Tensor
---@field scale accelerate.Tensor
local StudentT = base.class "StudentT"
StudentT.has_rsample, StudentT._support = true, real
StudentT._parameters = { { "df", "positive" }, { "loc", "real" }, { "scale", "positive" } }

---@param df accelerate.Tensor|number degrees of freedom, above 0
---@param loc accelerate.Tensor|number|nil default 0
---@param scale accelerate.Tensor|number|nil above 0, default 1
---@param opts { validate_args: boolean? }?
function StudentT:init(df, loc, scale, opts) self:_take(opts, df, loc or 0, scale or 1) end

function StudentT:_get_mean() return core.where(self.df:gt(1), self.loc, filled(self.loc, 0 / 0)) end
function StudentT:_get_mode() return self.loc end
function StudentT:_get_variance()
  local df, square = self.df, self.scale * self.scale
  local wide = core.where(df:gt(2), square * df / (df - 2), filled(df, math.huge))
  return core.where(df:gt(1), wide, filled(df, 0 / 0))
end
-- A normal draw over the root of a mean of squares: Chi2(df) / df.
function StudentT:_draw(shape)
  local df = self.df
  local squares = gamma.standard_gamma(shape, df / 2) * 2
  return self.loc + self.scale * tensor.randn(shape, base.like(df)) * (squares / df):rsqrt()
end
function StudentT:log_prob(value)
  local df = self.df
  local y = (self:_value(value) - self.loc) / self.scale
  local z = self.scale:log() + 0.5 * df:log() + 0.5 * math.log(math.pi) + core.lgamma(0.5 * df)
    - core.lgamma(0.5 * (df + 1))
  return -0.5 * (df + 1) * (y * y / df):log1p() - z
end
function StudentT:entropy()
  local df = self.df
  local beta = core.lgamma(0.5 * df) + math.log(math.pi) / 2 - core.lgamma(0.5 * (1 + df))
  return self.scale:log() + 0.5 * (df + 1) * (core.digamma(0.5 * (df + 1)) - core.digamma(0.5 * df))
    + 0.5 * df:log() + beta
end

-- ---- Gumbel

--- The Gumbel distribution, of largest values.
---@class accelerate.Gumbel: accelerate.Distribution
---@field loc accelerate.Tensor
---@field scale accelerate.Tensor
local Gumbel = base.class "Gumbel"
Gumbel.has_rsample, Gumbel._parameters, Gumbel._support = true, PLACED, real

---@param loc accelerate.Tensor|number
---@param scale accelerate.Tensor|number above 0
---@param opts { validate_args: boolean? }?
function Gumbel:init(loc, scale, opts) self:_take(opts, loc, scale) end

function Gumbel:_get_mean() return self.loc + self.scale * EULER end
function Gumbel:_get_mode() return self.loc end
function Gumbel:_get_variance() return self.scale * self.scale * (math.pi ^ 2 / 6) end
function Gumbel:_draw(shape) return self:icdf(base.uniform(shape, self.loc)) end
function Gumbel:log_prob(value)
  local y = (self.loc - self:_value(value)) / self.scale
  return y - y:exp() - self.scale:log()
end
function Gumbel:cdf(value) return (-((self.loc - self:_value(value)) / self.scale):exp()):exp() end
function Gumbel:icdf(p) return self.loc - self.scale * (-base.probability(p, self.loc):log()):log() end
function Gumbel:entropy() return self.scale:log() + (1 + EULER) end

-- ---- HalfNormal

--- The distribution of the absolute value of a normal variable around 0.
---@class accelerate.HalfNormal: accelerate.Distribution
---@field scale accelerate.Tensor
local HalfNormal = base.class "HalfNormal"
HalfNormal.has_rsample, HalfNormal._parameters = true, { { "scale", "positive" } }

---@param scale accelerate.Tensor|number of the normal variable, above 0
---@param opts { validate_args: boolean? }?
function HalfNormal:init(scale, opts)
  self:_take(opts, scale)
  self._normal = continuous.Normal(self.scale * 0, self.scale, { validate_args = false })
end

function HalfNormal:_support(value) base.check(self, "the value", value, "nonnegative") end
function HalfNormal:_get_mean() return self.scale * math.sqrt(2 / math.pi) end
function HalfNormal:_get_mode() return core.zeros_like(self.scale) end
function HalfNormal:_get_variance() return self.scale * self.scale * (1 - 2 / math.pi) end
function HalfNormal:_draw(shape) return self._normal:_draw(shape):abs() end
function HalfNormal:log_prob(value)
  value = self:_value(value)
  local log = self._normal:log_prob(value) + math.log(2)
  return core.where(value:ge(0), log, filled(log, -math.huge))
end
function HalfNormal:cdf(value) return 2 * self._normal:cdf(self:_value(value)) - 1 end
function HalfNormal:icdf(p) return self._normal:icdf((base.probability(p, self.scale) + 1) / 2) end
function HalfNormal:entropy() return self._normal:entropy() - math.log(2) end

-- ---- HalfCauchy

--- The distribution of the absolute value of a Cauchy variable around 0.
---@class accelerate.HalfCauchy: accelerate.Distribution
---@field scale accelerate.Tensor
local HalfCauchy = base.class "HalfCauchy"
HalfCauchy.has_rsample, HalfCauchy._parameters = true, { { "scale", "positive" } }
HalfCauchy._support = HalfNormal._support

---@param scale accelerate.Tensor|number of the Cauchy variable, above 0
---@param opts { validate_args: boolean? }?
function HalfCauchy:init(scale, opts)
  self:_take(opts, scale)
  self._cauchy = Cauchy(self.scale * 0, self.scale, { validate_args = false })
end

function HalfCauchy:_get_mean() return filled(self.scale, math.huge) end
function HalfCauchy:_get_mode() return core.zeros_like(self.scale) end
function HalfCauchy:_get_variance() return filled(self.scale, math.huge) end
function HalfCauchy:_draw(shape) return self._cauchy:_draw(shape):abs() end
function HalfCauchy:log_prob(value)
  value = self:_value(value)
  local log = self._cauchy:log_prob(value) + math.log(2)
  return core.where(value:ge(0), log, filled(log, -math.huge))
end
function HalfCauchy:cdf(value) return 2 * self._cauchy:cdf(self:_value(value)) - 1 end
function HalfCauchy:icdf(p) return self._cauchy:icdf((base.probability(p, self.scale) + 1) / 2) end
function HalfCauchy:entropy() return self._cauchy:entropy() - math.log(2) end

M.Cauchy, M.StudentT, M.Gumbel, M.HalfNormal = Cauchy, StudentT, Gumbel, HalfNormal
M.HalfCauchy = HalfCauchy

return M
