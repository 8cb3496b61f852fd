--- Gamma, Beta and Dirichlet.
local base = require "accelerate.distributions.base"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local special = require "accelerate.distributions.special"
local tensor = require "accelerate.tensor"

local lgamma, digamma = special.lgamma, special.digamma

local M = {}

local function like(x) return { dtype = x.dtype, device = x.device } end

-- Draws of Gamma(alpha, 1) by Marsaglia and Tsang's method: candidates for all elements, and again
-- for those that were refused. Below 1, a draw of alpha + 1 times u^(1 / alpha).
local function standard_gamma(shape, concentration)
  local alpha = concentration:detach():expand(shape)
  local small = alpha:lt(1)
  local d = core.where(small, alpha + 1, alpha) - 1 / 3
  local c = 1 / (9 * d):sqrt()
  local result, open = core.zeros_like(d), core.full_like(d, 1):gt(0)
  repeat
    local x, u = tensor.randn(shape, like(d)), tensor.rand(shape, like(d))
    local v = 1 + c * x
    local positive = v:gt(0)
    v = core.where(positive, v * v * v, core.full_like(v, 1))
    local taken = core.logical_and(positive, u:log():lt(0.5 * x * x + d - d * v + d * v:log()))
    result = core.where(core.logical_and(open, taken), d * v, result)
    open = core.logical_and(open, core.logical_not(taken))
  until not open:any():item()
  local tiny = d.dtype == "float64" and 2 ^ -1022 or 2 ^ -126
  local boost = (tensor.rand(shape, like(d)):clamp { min = 2 ^ -53 }:log() / alpha):exp()
  return core.where(small, result * boost, result):clamp { min = tiny }
end

-- ---- Gamma

--- The gamma distribution.
---@class accelerate.Gamma: accelerate.Distribution
---@field concentration accelerate.Tensor
---@field rate accelerate.Tensor
local Gamma = base.class "Gamma"
Gamma.has_rsample = false

---@param concentration accelerate.Tensor|number the shape parameter, above 0
---@param rate accelerate.Tensor|number above 0
---@param opts { validate_args: boolean? }?
function Gamma:init(concentration, rate, opts)
  local validate = base.validates("Gamma", opts)
  self.concentration, self.rate = base.parameters("Gamma", "concentration", concentration, "rate", rate)
  self:_shapes(self.rate.shape, {}, validate)
  base.check(self, "parameter concentration", self.concentration, "positive")
  base.check(self, "parameter rate", self.rate, "positive")
end

function Gamma:_get_mean() return self.concentration / self.rate end
function Gamma:_get_variance() return self.concentration / (self.rate * self.rate) end
function Gamma:_support(value) base.check(self, "the value", value, "nonnegative") end
function Gamma:_draw(shape) return standard_gamma(shape, self.concentration) / self.rate end
function Gamma:_expanded(shape)
  return Gamma(self.concentration:expand(shape), self.rate:expand(shape), { validate_args = self._validate })
end

function Gamma:log_prob(value)
  value = self:_value(value)
  local a = self.concentration
  return core.xlogy(a, self.rate) + core.xlogy(a - 1, value) - self.rate * value - lgamma(a)
end

function Gamma:entropy()
  local a = self.concentration
  return a - self.rate:log() + lgamma(a) + (1 - a) * digamma(a)
end

-- ---- Dirichlet

--- The Dirichlet distribution, over points of the simplex.
---@class accelerate.Dirichlet: accelerate.Distribution
---@field concentration accelerate.Tensor [.., n]
local Dirichlet = base.class "Dirichlet"
Dirichlet.has_rsample = false

---@param concentration accelerate.Tensor [.., n], above 0
---@param opts { validate_args: boolean? }?
function Dirichlet:init(concentration, opts)
  local validate = base.validates("Dirichlet", opts)
  self.concentration = base.parameters("Dirichlet", "concentration", concentration)
  local shape = self.concentration.shape
  if #shape < 1 then options.fail("Dirichlet: parameter concentration must have at least one dimension") end
  local event = { table.remove(shape) }
  self:_shapes(shape, event, validate)
  base.check(self, "parameter concentration", self.concentration, "positive")
end

function Dirichlet:_get_mean() return self.concentration / self.concentration:sum({ -1 }, true) end
function Dirichlet:_get_variance()
  local total = self.concentration:sum({ -1 }, true)
  return self.concentration * (total - self.concentration) / (total * total * (total + 1))
end
function Dirichlet:_support(value) base.check(self, "the value", value, "simplex") end
function Dirichlet:_draw(shape)
  local draw = standard_gamma(shape, self.concentration)
  return draw / draw:sum({ -1 }, true)
end
function Dirichlet:_expanded(shape)
  return Dirichlet(self.concentration:expand(base.joined(shape, self.event_shape)),
    { validate_args = self._validate })
end

function Dirichlet:log_prob(value)
  local a = self.concentration
  return core.xlogy(a - 1, self:_value(value)):sum(-1) + lgamma(a:sum(-1)) - lgamma(a):sum(-1)
end

function Dirichlet:entropy()
  local a = self.concentration
  local n, total = a.shape[#a.shape], a:sum(-1)
  return lgamma(a):sum(-1) - lgamma(total) - (n - total) * digamma(total) - ((a - 1) * digamma(a)):sum(-1)
end

-- ---- Beta

--- The beta distribution, over [0, 1].
---@class accelerate.Beta: accelerate.Distribution
---@field concentration1 accelerate.Tensor
---@field concentration0 accelerate.Tensor
local Beta = base.class "Beta"
Beta.has_rsample = false

---@param concentration1 accelerate.Tensor|number alpha, above 0
---@param concentration0 accelerate.Tensor|number beta, above 0
---@param opts { validate_args: boolean? }?
function Beta:init(concentration1, concentration0, opts)
  local validate = base.validates("Beta", opts)
  self.concentration1, self.concentration0 = base.parameters("Beta", "concentration1", concentration1,
    "concentration0", concentration0)
  self:_shapes(self.concentration1.shape, {}, validate)
  base.check(self, "parameter concentration1", self.concentration1, "positive")
  base.check(self, "parameter concentration0", self.concentration0, "positive")
end

function Beta:_get_mean() return self.concentration1 / (self.concentration1 + self.concentration0) end
function Beta:_get_variance()
  local a, b = self.concentration1, self.concentration0
  return a * b / ((a + b) ^ 2 * (a + b + 1))
end
function Beta:_support(value) base.check(self, "the value", value, "unit") end
function Beta:_draw(shape)
  local x, y = standard_gamma(shape, self.concentration1), standard_gamma(shape, self.concentration0)
  return x / (x + y)
end
function Beta:_expanded(shape)
  return Beta(self.concentration1:expand(shape), self.concentration0:expand(shape),
    { validate_args = self._validate })
end

function Beta:log_prob(value)
  value = self:_value(value)
  local a, b = self.concentration1, self.concentration0
  return core.xlogy(a - 1, value) + core.xlogy(b - 1, 1 - value) + lgamma(a + b) - lgamma(a) - lgamma(b)
end

function Beta:entropy()
  local a, b = self.concentration1, self.concentration0
  return lgamma(a) + lgamma(b) - lgamma(a + b) - (a - 1) * digamma(a) - (b - 1) * digamma(b)
    + (a + b - 2) * digamma(a + b)
end

M.Gamma, M.Dirichlet, M.Beta = Gamma, Dirichlet, Beta

return M
