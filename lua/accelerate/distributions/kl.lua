--- Kullback-Leibler divergences.
local base = require "accelerate.distributions.base"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local low_rank = require "accelerate.distributions.low_rank"
local matrices = require "accelerate.distributions.matrices"
local options = require "accelerate.utils.options"
local positions = require "accelerate.utils.positions"
local tensor = require "accelerate.tensor"

local lgamma, digamma = core.lgamma, core.digamma

local M = {}

local EULER = 0.57721566490153286061

local FORMULAS = {}

function FORMULAS.Normal(p, q)
  local ratio, shift = (p.scale / q.scale) ^ 2, ((p.loc - q.loc) / q.scale) ^ 2
  return 0.5 * (ratio + shift - 1 - ratio:log())
end

function FORMULAS.LogNormal(p, q) return FORMULAS.Normal(p, q) end

function FORMULAS.Laplace(p, q)
  local ratio, distance = p.scale / q.scale, (p.loc - q.loc):abs()
  return -ratio:log() + ratio * (-distance / p.scale):exp() + distance / q.scale - 1
end

function FORMULAS.Uniform(p, q)
  local value = ((q.high - q.low) / (p.high - p.low)):log()
  local outside = core.logical_or(q.low:gt(p.low), q.high:lt(p.high))
  return core.where(outside, core.full_like(value, math.huge), value)
end

function FORMULAS.Exponential(p, q)
  local ratio = q.rate / p.rate
  return ratio - ratio:log() - 1
end

function FORMULAS.Gamma(p, q)
  local a, b = p.concentration, q.concentration
  return b * (p.rate / q.rate):log() + lgamma(b) - lgamma(a) + (a - b) * digamma(a) +
    (q.rate - p.rate) * (a / p.rate)
end

function FORMULAS.Beta(p, q)
  local a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
  return lgamma(c) + lgamma(d) + lgamma(a + b) - lgamma(c + d) - lgamma(a) - lgamma(b) + (a - c) * digamma(a)
    + (b - d) * digamma(b) + (c + d - a - b) * digamma(a + b)
end

function FORMULAS.Dirichlet(p, q)
  local a, b = p.concentration, q.concentration
  local total = a:sum(-1)
  local first = lgamma(total) - lgamma(b:sum(-1))
  local second = (lgamma(a) - lgamma(b)):sum(-1)
  return first - second + ((a - b) * (digamma(a) - digamma(total):unsqueeze(-1))):sum(-1)
end

function FORMULAS.Bernoulli(p, q)
  local function softplus(x) return -(-x):logsigmoid() end
  local a, b, x, y = p.probs, q.probs, p.logits, q.logits
  local value = a * (softplus(-y) - softplus(-x)) + (1 - a) * (softplus(y) - softplus(x))
  local never = core.logical_or(core.logical_and(b:eq(0), a:gt(0)), core.logical_and(b:eq(1), a:lt(1)))
  return core.where(never, core.full_like(value, math.huge), value)
end

function FORMULAS.Categorical(p, q)
  local terms = p.probs * (p.logits - q.logits)
  terms = core.where(p.probs:eq(0), core.zeros_like(terms), terms)
  local never = core.logical_and(q.probs:eq(0), p.probs:gt(0))
  return core.where(never, core.full_like(terms, math.huge), terms):sum(-1)
end

function FORMULAS.Binomial(p, q)
  local fewer, more = p.total_count:lt(q.total_count), p.total_count:gt(q.total_count)
  if fewer:any():item() then
    options.fail("kl_divergence: there is no formula for a Binomial of fewer trials than the other has")
  end
  local value = p.total_count * (p.probs * (p.logits - q.logits) + (-p.probs):log1p() - (-q.probs):log1p())
  return core.where(more, core.full_like(value, math.huge), value)
end

function FORMULAS.OneHotCategorical(p, q) return FORMULAS.Categorical(p, q) end

function FORMULAS.Poisson(p, q) return p.rate * (p.rate:log() - q.rate:log()) - (p.rate - q.rate) end

function FORMULAS.Geometric(p, q) return -p:entropy() - (-q.probs):log1p() / p.probs - q.logits end

function FORMULAS.HalfNormal(p, q)
  local ratio = (p.scale / q.scale) ^ 2
  return 0.5 * (ratio - 1 - ratio:log())
end

function FORMULAS.Cauchy(p, q)
  return ((p.scale + q.scale) ^ 2 + (p.loc - q.loc) ^ 2):log() - (4 * p.scale * q.scale):log()
end

-- The absolute value of what is alike on both sides of 0 loses nothing.
function FORMULAS.HalfCauchy(p, q) return FORMULAS.Cauchy(p._cauchy, q._cauchy) end

function FORMULAS.InverseGamma(p, q) return FORMULAS.Gamma(p, q) end

function FORMULAS.Pareto(p, q)
  local ratio = q.alpha / p.alpha
  local value = q.alpha * (p.scale / q.scale):log() - ratio:log() + ratio - 1
  return core.where(p.scale:lt(q.scale), core.full_like(value, math.huge), value)
end

function FORMULAS.ContinuousBernoulli(p, q)
  return p.mean * (p.logits - q.logits) + p:_log_norm() + (-p.probs):log1p() - q:_log_norm()
    - (-q.probs):log1p()
end

function FORMULAS.Gumbel(p, q)
  local ratio = p.scale / q.scale
  local shift = (q.loc - p.loc) / q.scale
  return -ratio:log() - shift + ratio * EULER + (shift + lgamma(1 + ratio)):exp() - (1 + EULER)
end

function FORMULAS.MultivariateNormal(p, q)
  local n = p.event_shape[1]
  if n ~= q.event_shape[1] then
    options.fail("kl_divergence: MultivariateNormal of %d and of %d elements", n, q.event_shape[1])
  end
  local far = q._whitened(q._factor, p.loc - q.loc)
  -- the columns of p's factor, as rows of vectors
  local each = q._whitened(q._factor:unsqueeze(-3), p.scale_tril:transpose(-2, -1))
  local spread = (each * each):sum(-1):sum(-1)
  return q:_half_log_det() - p:_half_log_det() + 0.5 * (spread + (far * far):sum(-1) - n)
end

for names, formula in next, low_rank.FORMULAS do FORMULAS[names] = formula end

FORMULAS.Wishart = matrices.wishart_divergence

function FORMULAS.TransformedDistribution(p, q)
  local alike = #p.transforms == #q.transforms
  for i, part in ipairs(p.transforms) do alike = alike and rawequal(part, q.transforms[i]) end
  if not alike then
    options.fail("kl_divergence: TransformedDistribution needs the transforms of both to be one list")
  end
  return M.kl_divergence(p.base_dist, q.base_dist)
end

function FORMULAS.LogisticNormal(p, q) return M.kl_divergence(p.base_dist, q.base_dist) end

function FORMULAS.Independent(p, q)
  if p.reinterpreted_batch_ndims ~= q.reinterpreted_batch_ndims then
    options.fail("kl_divergence: Independent over %d and %d dimensions", p.reinterpreted_batch_ndims,
      q.reinterpreted_batch_ndims)
  end
  return p:_summed(M.kl_divergence(p.base_dist, q.base_dist))
end

-- ---- pairs of two kinds, "p q"

local LOG_2PI = math.log(2 * math.pi)

-- Of q, a normal distribution, from one with an entropy, a mean and a variance.
local function from_normal(p, q)
  local away = (p.mean - q.loc) / q.scale
  return -p:entropy() + 0.5 * (LOG_2PI + p.variance / q.scale ^ 2 + away * away) + q.scale:log()
end
for _, name in ipairs { "Uniform", "Laplace", "Exponential", "Gamma", "Chi2", "Gumbel", "Beta", "Pareto",
  "ContinuousBernoulli" } do
  FORMULAS[name .. " Normal"] = from_normal
end

-- Of q, an exponential distribution, from one over numbers above 0.
local function from_exponential(p, q) return -p:entropy() - q.rate:log() + q.rate * p.mean end
for _, name in ipairs { "Gamma", "Chi2", "Beta", "Pareto", "ContinuousBernoulli" } do
  FORMULAS[name .. " Exponential"] = from_exponential
end

FORMULAS["Exponential Gamma"] = function(p, q)
  local ratio, a = q.rate / p.rate, q.concentration
  return -a * ratio:log() + ratio + lgamma(a) + a * EULER - (1 + EULER)
end

FORMULAS["Chi2 Gamma"], FORMULAS["Gamma Chi2"] = FORMULAS.Gamma, FORMULAS.Gamma
FORMULAS.Chi2 = FORMULAS.Gamma

-- ---- from one over numbers of an interval, "p q"

-- Means of log x and of log (1 - x).
local LOGS = {
  Uniform = function(p)
    local width = p.high - p.low
    local function integral(x) return core.xlogy(x, x) end
    return (integral(p.high) - integral(p.low)) / width - 1,
      (integral(1 - p.low) - integral(1 - p.high)) / width - 1
  end,
  Beta = function(p)
    local a, b = p.concentration1, p.concentration0
    local both = digamma(a + b)
    return digamma(a) - both, digamma(b) - both
  end,
  Pareto = function(p) return p.scale:log() + 1 / p.alpha end,
}

-- value, where p stays within what q is over; elsewhere infinity.
local function within(inside, value) return core.where(inside, value, core.full_like(value, math.huge)) end

FORMULAS["Beta Gamma"] = function(p, q)
  local c = q.concentration
  return -p:entropy() - c * q.rate:log() + lgamma(c) - (c - 1) * LOGS.Beta(p) + q.rate * p.mean
end

FORMULAS["Uniform Gamma"] = function(p, q)
  local c = q.concentration
  local value = -p:entropy() - c * q.rate:log() + lgamma(c) - (c - 1) * LOGS.Uniform(p) + q.rate * p.mean
  return within(p.low:ge(0), value)
end
FORMULAS["Uniform Chi2"], FORMULAS["Beta Chi2"] = FORMULAS["Uniform Gamma"], FORMULAS["Beta Gamma"]

FORMULAS["Pareto Gamma"] = function(p, q)
  local c = q.concentration
  return -p:entropy() - c * q.rate:log() + lgamma(c) - (c - 1) * LOGS.Pareto(p) + q.rate * p.mean
end

FORMULAS["Uniform Pareto"] = function(p, q)
  local value = -p:entropy() - q.alpha:log() - q.alpha * q.scale:log() + (q.alpha + 1) * LOGS.Uniform(p)
  return within(p.low:ge(q.scale), value)
end

-- Of q, a continuous Bernoulli distribution, from one over [0, 1].
local function from_continuous_bernoulli(p, q)
  return -p:entropy() - p.mean * q.logits - (-q.probs):log1p() - q:_log_norm()
end
FORMULAS["Beta ContinuousBernoulli"] = from_continuous_bernoulli
FORMULAS["Uniform ContinuousBernoulli"] = function(p, q)
  return within(core.logical_and(p.low:ge(0), p.high:le(1)), from_continuous_bernoulli(p, q))
end

FORMULAS["Uniform Exponential"] = function(p, q) return within(p.low:ge(0), from_exponential(p, q)) end

FORMULAS["Uniform Beta"] = function(p, q)
  local a, b = q.concentration1, q.concentration0
  local log_x, log_rest = LOGS.Uniform(p)
  local value = lgamma(a) + lgamma(b) - lgamma(a + b) - p:entropy() - (a - 1) * log_x - (b - 1) * log_rest
  return within(core.logical_and(p.low:ge(0), p.high:le(1)), value)
end

local function from_uniform(p, q)
  return within(core.logical_and(q.low:le(0), q.high:ge(1)), (q.high - q.low):log() - p:entropy())
end
FORMULAS["Beta Uniform"], FORMULAS["ContinuousBernoulli Uniform"] = from_uniform, from_uniform

-- ---- to Gumbel, Laplace and counts, "p q"

-- The logarithm of the mean of exp(-x / s).
local LOG_MEANS = {
  Normal = function(p, s) return 0.5 * (p.scale / s) ^ 2 - p.loc / s end,
  Exponential = function(p, s) return -(1 / (p.rate * s)):log1p() end,
  Gamma = function(p, s) return -p.concentration * (1 / (p.rate * s)):log1p() end,
  Uniform = function(p, s)
    local width = (p.high - p.low) / s
    return (-(-width):expm1() / width):log() - p.low / s
  end,
}
LOG_MEANS.Chi2 = LOG_MEANS.Gamma

for name, log_mean in next, LOG_MEANS do
  FORMULAS[name .. " Gumbel"] = function(p, q)
    local s = q.scale
    return -p:entropy() + s:log() + (p.mean - q.loc) / s + (q.loc / s + log_mean(p, s)):exp()
  end
end

FORMULAS["Normal Laplace"] = function(p, q)
  local away = (p.loc - q.loc) / p.scale
  local distance = math.sqrt(2 / math.pi) * (-0.5 * away * away):exp() + away * (away / math.sqrt(2)):erf()
  return -p:entropy() + (2 * q.scale):log() + p.scale * distance / q.scale
end

FORMULAS["Bernoulli Poisson"] = function(p, q) return -p:entropy() - p.probs * q.rate:log() + q.rate end

-- What can come from p and not from q.
local function never(p, q)
  local shape = tensor.broadcast_shapes(p.batch_shape, q.batch_shape)
  return core.full_like(p.mean, math.huge):expand(shape)
end
for names, others in next, {
  ["Normal Laplace Gumbel Cauchy"] = "Uniform Beta Exponential Gamma Chi2 Pareto ContinuousBernoulli",
  ["Exponential Gamma Chi2"] = "Uniform Beta Pareto ContinuousBernoulli",
  Pareto = "Uniform Beta ContinuousBernoulli",
  ["Beta ContinuousBernoulli"] = "Pareto",
  Poisson = "Bernoulli Binomial",
} do
  for name in names:gmatch "%w+" do
    for other in others:gmatch "%w+" do FORMULAS[name .. " " .. other] = never end
  end
end

-- Of a script: class -> class -> formula.
local registered = setmetatable({}, { __mode = "k" })

-- The formula of two classes, or of the nearest classes that they are made from. A script's own
-- comes before those of the library.
local function formula_of(first, last)
  local from = first
  while from do
    local to = last
    while to do
      local a, b = from.__name, to.__name
      local formula = registered[from] and registered[from][to] or FORMULAS[a == b and a or a .. " " .. b]
      if formula then return formula end
      to = to.__base
    end
    from = from.__base
  end
end

--- Returns the Kullback-Leibler divergence of q from p, in nats: of two distributions of one kind,
--- or of pairs such as Gamma and Normal.
---@param p accelerate.Distribution
---@param q accelerate.Distribution
---@return accelerate.Tensor of their batch shape
function M.kl_divergence(p, q)
  local a, b = type(p) == "table" and p.__name, type(q) == "table" and q.__name
  local formula = a and b and formula_of(getmetatable(p), getmetatable(q))
  if not formula then
    options.fail("kl_divergence: there is no formula for %s and %s", a or options.show(p), b
      or options.show(q))
  end
  return formula(p, q)
end

--- Makes a function the formula of kl_divergence for two classes of distributions, and for classes
--- that are made from them. Without the function it returns one that takes it, as PyTorch's
--- decorator.
---@param type_p table a class
---@param type_q table a class
---@param fn? fun(p: accelerate.Distribution, q: accelerate.Distribution): accelerate.Tensor
---@return function fn
function M.register_kl(type_p, type_q, fn)
  for i, name in ipairs { "type_p", "type_q" } do
    local Class = select(i, type_p, type_q)
    if not class.derives(Class, base.Distribution) then
      options.fail("register_kl: %s must be a class of distributions, got %s", name, options.show(Class))
    end
  end
  if fn == nil then return function(later) return M.register_kl(type_p, type_q, later) end end
  options.value("register_kl", "fn", fn, { "function" })
  registered[type_p] = registered[type_p] or setmetatable({}, { __mode = "k" })
  registered[type_p][type_q] = fn
  return fn
end

positions.functions(M, { kl_divergence = "p q", register_kl = "type_p type_q fn" })

return M
