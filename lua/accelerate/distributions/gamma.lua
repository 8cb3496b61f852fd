--- Gamma, Chi2, Beta and Dirichlet.
local base = require "accelerate.distributions.base"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local tensor = require "accelerate.tensor"

local lgamma, digamma = core.lgamma, core.digamma

local M = {}

local like = base.like

-- Draws of Gamma(alpha, 1) by Marsaglia and Tsang's method: candidates for all elements, and again
-- for those that were refused. Below 1, a draw of alpha + 1 times u^(1 / alpha).
local function drawn(shape, concentration)
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

-- ---- how a draw moves with the concentration

local MANY = 1000 -- from this concentration on Wilson and Hilferty's cube is as good as the series

-- The derivative of a draw z of Gamma(a, 1) by a at the same place of the distribution function P:
-- -(dP/da) / p(z). With t(n) = z^n / ((a + 1) .. (a + n)), P is z^a exp(-z) / gamma(a + 1) times
--  the
-- sum of t.
local function by_series(a, z)
  local term, sum = core.ones_like(a), core.ones_like(a)
  local harmonic, moved, n = core.zeros_like(a), core.zeros_like(a), 0
  repeat
    for _ = 1, 16 do
      n = n + 1
      term = term * z / (a + n)
      harmonic = harmonic + 1 / (a + n)
      sum, moved = sum + term, moved - term * harmonic
    end
  until (term * harmonic):le(sum * 1e-17):all():item()
  return -z / a * (sum * (z:log() - digamma(a + 1)) + moved)
end

-- z = a (1 - 1 / (9a) + x / (3 sqrt(a)))^3 with a normal x.
local function by_cube(a, z)
  local root = (z / a) ^ (1 / 3)
  local x = (root - 1 + 1 / (9 * a)) * 3 * a:sqrt()
  return root ^ 3 + 3 * a * root ^ 2 * (1 / (9 * a * a) - x / (6 * a * a:sqrt()))
end

--- Returns how draws of Gamma(concentration, 1) move with the concentration.
---@param concentration accelerate.Tensor
---@param draw accelerate.Tensor
---@return accelerate.Tensor
function M.slope(concentration, draw)
  local a, z = concentration:double():expand(draw.shape), draw:double()
  local large = a:ge(MANY)
  local one = core.ones_like(a)
  local result = by_series(core.where(large, one, a), core.where(large, one, z))
  if large:any():item() then result = core.where(large, by_cube(core.where(large, a, one), z), result) end
  return result:to(draw.dtype)
end

--- Draws of Gamma(concentration, 1), through which gradients reach the concentration.
---@param shape integer[]
---@param concentration accelerate.Tensor
---@return accelerate.Tensor
function M.standard_gamma(shape, concentration)
  local draw, rate
  core.no_grad(function()
    draw = drawn(shape, concentration)
    if concentration.requires_grad then rate = M.slope(concentration:detach(), draw) end
  end)
  if not rate or not core.is_grad_enabled() then return draw end
  return draw + (concentration - concentration:detach()) * rate
end
local standard_gamma = M.standard_gamma

-- ---- Gamma

--- The gamma distribution.
---@class accelerate.Gamma: accelerate.Distribution
---@field concentration accelerate.Tensor
---@field rate accelerate.Tensor
local Gamma = base.class "Gamma"
Gamma.has_rsample = true

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
function Gamma:_get_mode() return ((self.concentration - 1) / self.rate):clamp { min = 0 } end
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

function Gamma:cdf(value)
  return self.concentration:igamma(self.rate * self:_value(value))
end

function Gamma:entropy()
  local a = self.concentration
  return a - self.rate:log() + lgamma(a) + (1 - a) * digamma(a)
end

--- The distribution of the sum of df squares of standard normal variables.
---@class accelerate.Chi2: accelerate.Gamma
---@field df accelerate.Tensor
local Chi2 = base.class("Chi2", Gamma)

---@param df accelerate.Tensor|number degrees of freedom, above 0
---@param opts { validate_args: boolean? }?
function Chi2:init(df, opts)
  self.df = base.parameters("Chi2", "df", df)
  Gamma.init(self, self.df / 2, 0.5, opts)
end

function Chi2:_expanded(shape) return Chi2(self.df:expand(shape), { validate_args = self._validate }) end

-- ---- Dirichlet

--- The Dirichlet distribution, over points of the simplex.
---@class accelerate.Dirichlet: accelerate.Distribution
---@field concentration accelerate.Tensor [.., n]
local Dirichlet = base.class "Dirichlet"
Dirichlet.has_rsample = true

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
-- Of concentrations (.., n): where all are below 1 the density has no bound at the corners, and the
-- mode is the first of them.
local function mode_of(concentration)
  local over = (concentration - 1):clamp { min = 0 }
  local total = over:sum({ -1 }, true)
  local corner = core.one_hot(concentration:argmax(-1) * 0, concentration.shape[concentration:dim()])
  return core.where(concentration:lt(1):all(-1):unsqueeze(-1), corner:to(over.dtype), over / total)
end
function Dirichlet:_get_mode() return mode_of(self.concentration) end
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
Beta.has_rsample = true

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
function Beta:_get_mode()
  return mode_of(core.stack({ self.concentration1, self.concentration0 }, -1)):select(-1, 1)
end
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

M.Gamma, M.Chi2, M.Dirichlet, M.Beta = Gamma, Chi2, Dirichlet, Beta

return M
