--- Kullback-Leibler divergences.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local special = require "accelerate.distributions.special"

local lgamma, digamma = special.lgamma, special.digamma

local M = {}

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

function FORMULAS.Independent(p, q)
  if p.reinterpreted_batch_ndims ~= q.reinterpreted_batch_ndims then
    options.fail("kl_divergence: Independent over %d and %d dimensions", p.reinterpreted_batch_ndims,
      q.reinterpreted_batch_ndims)
  end
  return p:_summed(M.kl_divergence(p.base_dist, q.base_dist))
end

--- Returns the Kullback-Leibler divergence of q from p, in nats: of two distributions of one kind.
---@param p accelerate.Distribution
---@param q accelerate.Distribution
---@return accelerate.Tensor of their batch shape
function M.kl_divergence(p, q)
  local a, b = type(p) == "table" and p.__name, type(q) == "table" and q.__name
  if a ~= b or not FORMULAS[a] then
    options.fail("kl_divergence: there is no formula for %s and %s", a or options.show(p), b
      or options.show(q))
  end
  return FORMULAS[a](p, q)
end

return M
