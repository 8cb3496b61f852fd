--- Distributions over the reals whose draws are functions of uniform or normal ones.
local base = require "accelerate.distributions.base"
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"

local M = {}

local LOG_SQRT_2PI = 0.91893853320467274178

local like, uniform = base.like, base.uniform

-- ---- Normal

--- The normal distribution.
---@class accelerate.Normal: accelerate.Distribution
---@field loc accelerate.Tensor
---@field scale accelerate.Tensor
local Normal = base.class "Normal"
Normal.has_rsample = true

---@param loc accelerate.Tensor|number mean
---@param scale accelerate.Tensor|number standard deviation, above 0
---@param opts { validate_args: boolean? }?
function Normal:init(loc, scale, opts)
  local validate = base.validates("Normal", opts)
  self.loc, self.scale = base.parameters("Normal", "loc", loc, "scale", scale)
  self:_shapes(self.loc.shape, {}, validate)
  base.check(self, "parameter loc", self.loc, "real")
  base.check(self, "parameter scale", self.scale, "positive")
end

function Normal:_get_mean() return self.loc end
function Normal:_get_mode() return self.loc end
function Normal:_get_stddev() return self.scale end
function Normal:_get_variance() return self.scale * self.scale end
function Normal:_support(value) base.check(self, "the value", value, "real") end
function Normal:_draw(shape) return self.loc + tensor.randn(shape, like(self.loc)) * self.scale end
function Normal:_expanded(shape)
  return Normal(self.loc:expand(shape), self.scale:expand(shape), { validate_args = self._validate })
end

function Normal:log_prob(value)
  local z = (self:_value(value) - self.loc) / self.scale
  return -0.5 * z * z - self.scale:log() - LOG_SQRT_2PI
end

function Normal:cdf(value)
  return 0.5 * (1 + ((self:_value(value) - self.loc) / (self.scale * math.sqrt(2))):erf())
end

function Normal:icdf(p)
  p = type(p) == "number" and tensor.tensor(p, like(self.loc)) or p
  return self.loc + self.scale * core.erfinv(2 * p - 1) * math.sqrt(2)
end

function Normal:entropy() return 0.5 + LOG_SQRT_2PI + self.scale:log() end

--- The distribution of exp of a normal variable.
---@class accelerate.LogNormal: accelerate.Distribution
---@field loc accelerate.Tensor of the normal variable
---@field scale accelerate.Tensor
local LogNormal = base.class "LogNormal"
LogNormal.has_rsample = true

---@param loc accelerate.Tensor|number
---@param scale accelerate.Tensor|number above 0
---@param opts { validate_args: boolean? }?
function LogNormal:init(loc, scale, opts)
  self._normal = Normal(loc, scale, opts)
  self.loc, self.scale = self._normal.loc, self._normal.scale
  self:_shapes(self._normal.batch_shape, {}, self._normal._validate)
end

function LogNormal:_get_mean() return (self.loc + self.scale * self.scale / 2):exp() end
function LogNormal:_get_mode() return (self.loc - self.scale * self.scale):exp() end
function LogNormal:_get_variance()
  local square = self.scale * self.scale
  return square:expm1() * (2 * self.loc + square):exp()
end
function LogNormal:_support(value) base.check(self, "the value", value, "positive") end
function LogNormal:_draw(shape) return self._normal:_draw(shape):exp() end
function LogNormal:_expanded(shape)
  return LogNormal(self.loc:expand(shape), self.scale:expand(shape), { validate_args = self._validate })
end

function LogNormal:log_prob(value)
  local log = self:_value(value):log()
  return self._normal:log_prob(log) - log
end

function LogNormal:cdf(value) return self._normal:cdf(self:_value(value):log()) end
function LogNormal:icdf(p) return self._normal:icdf(p):exp() end
function LogNormal:entropy() return self._normal:entropy() + self.loc end

-- ---- Laplace

--- The Laplace distribution.
---@class accelerate.Laplace: accelerate.Distribution
---@field loc accelerate.Tensor
---@field scale accelerate.Tensor
local Laplace = base.class "Laplace"
Laplace.has_rsample = true

---@param loc accelerate.Tensor|number mean
---@param scale accelerate.Tensor|number above 0
---@param opts { validate_args: boolean? }?
function Laplace:init(loc, scale, opts)
  local validate = base.validates("Laplace", opts)
  self.loc, self.scale = base.parameters("Laplace", "loc", loc, "scale", scale)
  self:_shapes(self.loc.shape, {}, validate)
  base.check(self, "parameter loc", self.loc, "real")
  base.check(self, "parameter scale", self.scale, "positive")
end

function Laplace:_get_mean() return self.loc end
function Laplace:_get_mode() return self.loc end
function Laplace:_get_variance() return 2 * self.scale * self.scale end
function Laplace:_support(value) base.check(self, "the value", value, "real") end
function Laplace:_draw(shape)
  local u = uniform(shape, self.loc) * 2 - 1
  return self.loc - self.scale * u:sign() * (-u:abs()):log1p()
end
function Laplace:_expanded(shape)
  return Laplace(self.loc:expand(shape), self.scale:expand(shape), { validate_args = self._validate })
end

function Laplace:log_prob(value)
  return -(2 * self.scale):log() - (self:_value(value) - self.loc):abs() / self.scale
end

function Laplace:cdf(value)
  local z = self:_value(value) - self.loc
  return 0.5 - 0.5 * z:sign() * (-z:abs() / self.scale):expm1()
end

function Laplace:icdf(p)
  local term = (type(p) == "number" and tensor.tensor(p, like(self.loc)) or p) - 0.5
  return self.loc - self.scale * term:sign() * (-2 * term:abs()):log1p()
end

function Laplace:entropy() return 1 + (2 * self.scale):log() end

-- ---- Uniform

--- The uniform distribution over [low, high).
---@class accelerate.Uniform: accelerate.Distribution
---@field low accelerate.Tensor
---@field high accelerate.Tensor
local Uniform = base.class "Uniform"
Uniform.has_rsample = true

---@param low accelerate.Tensor|number
---@param high accelerate.Tensor|number above low
---@param opts { validate_args: boolean? }?
function Uniform:init(low, high, opts)
  local validate = base.validates("Uniform", opts)
  self.low, self.high = base.parameters("Uniform", "low", low, "high", high)
  self:_shapes(self.low.shape, {}, validate)
  if validate then
    base.expect("Uniform", "parameter low", self.low, "below high", self.low:detach():lt(self.high:detach()))
  end
end

function Uniform:_get_mean() return (self.low + self.high) / 2 end
function Uniform:_get_mode() return core.full_like(self.high, 0 / 0) end
function Uniform:_get_variance() return (self.high - self.low) ^ 2 / 12 end
function Uniform:_support(value)
  if not self._validate then return end
  base.expect("Uniform", "the value", value, "from low to high",
    core.logical_and(value:ge(self.low:detach()), value:le(self.high:detach())))
end
function Uniform:_draw(shape)
  return self.low + tensor.rand(shape, like(self.low)) * (self.high - self.low)
end
function Uniform:_expanded(shape)
  return Uniform(self.low:expand(shape), self.high:expand(shape), { validate_args = self._validate })
end

function Uniform:log_prob(value)
  value = self:_value(value)
  local inside = core.logical_and(value:ge(self.low), value:lt(self.high)):to(self.low.dtype)
  return inside:log() - (self.high - self.low):log()
end

function Uniform:cdf(value)
  return ((self:_value(value) - self.low) / (self.high - self.low)):clamp { min = 0, max = 1 }
end

function Uniform:icdf(p) return p * (self.high - self.low) + self.low end
function Uniform:entropy() return (self.high - self.low):log() end

-- ---- Exponential

--- The exponential distribution.
---@class accelerate.Exponential: accelerate.Distribution
---@field rate accelerate.Tensor
local Exponential = base.class "Exponential"
Exponential.has_rsample = true

---@param rate accelerate.Tensor|number 1 over the mean, above 0
---@param opts { validate_args: boolean? }?
function Exponential:init(rate, opts)
  local validate = base.validates("Exponential", opts)
  self.rate = base.parameters("Exponential", "rate", rate)
  self:_shapes(self.rate.shape, {}, validate)
  base.check(self, "parameter rate", self.rate, "positive")
end

function Exponential:_get_mean() return 1 / self.rate end
function Exponential:_get_mode() return core.zeros_like(self.rate) end
function Exponential:_get_variance() return 1 / (self.rate * self.rate) end
function Exponential:_support(value) base.check(self, "the value", value, "nonnegative") end
function Exponential:_draw(shape) return -uniform(shape, self.rate):log() / self.rate end
function Exponential:_expanded(shape)
  return Exponential(self.rate:expand(shape), { validate_args = self._validate })
end
function Exponential:log_prob(value) return self.rate:log() - self.rate * self:_value(value) end
function Exponential:cdf(value) return -(-self.rate * self:_value(value)):expm1() end
function Exponential:icdf(p)
  return -(-(type(p) == "number" and tensor.tensor(p, like(self.rate)) or p)):log1p() / self.rate
end
function Exponential:entropy() return 1 - self.rate:log() end

M.Normal, M.LogNormal, M.Laplace, M.Uniform, M.Exponential = Normal, LogNormal, Laplace, Uniform, Exponential

return M
