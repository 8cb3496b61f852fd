--- The normal distribution of vectors whose covariance is a diagonal and a matrix of low rank.
local base = require "accelerate.distributions.base"
local covariance = require "accelerate.distributions.covariance"
local linalg = require "accelerate.tensor.linalg"
local multivariate = require "accelerate.distributions.multivariate"
local options = require "accelerate.utils.options"
local tensor = require "accelerate.tensor"

--- The normal distribution of vectors of n elements with the covariance W W^T + D of a matrix W of
--- m columns and a diagonal D: the factorizations are of m times m matrices.
---@class accelerate.LowRankMultivariateNormal: accelerate.Distribution
---@field loc accelerate.Tensor [.., n]
---@field cov_factor accelerate.Tensor [.., n, m] W
---@field cov_diag accelerate.Tensor [.., n] D
---@field covariance_matrix accelerate.Tensor [.., n, n]
---@field precision_matrix accelerate.Tensor [.., n, n] the inverse of the covariance
---@field scale_tril accelerate.Tensor [.., n, n] the covariance's lower Cholesky factor
local LowRank = base.class "LowRankMultivariateNormal"
LowRank.has_rsample = true

---@param loc accelerate.Tensor [.., n] mean
---@param cov_factor accelerate.Tensor [.., n, m]
---@param cov_diag accelerate.Tensor [.., n], above 0
---@param opts { validate_args: boolean? }?
function LowRank:init(loc, cov_factor, cov_diag, opts)
  local name = "LowRankMultivariateNormal"
  local validate = base.validates(name, opts)
  loc = base.parameters(name, "loc", loc)
  local w = base.parameters(name, "cov_factor", cov_factor)
  local d = base.parameters(name, "cov_diag", cov_diag)
  local n = loc.shape[#loc.shape]
  if not n or #w.shape < 2 or w.shape[#w.shape - 1] ~= n or d.shape[#d.shape] ~= n then
    options.fail("%s: expected loc (.., n), cov_factor (.., n, m) and cov_diag (.., n), got %s, %s and %s",
      name, options.show(loc), options.show(w), options.show(d))
  end
  local batch = tensor.broadcast_shapes({ unpack(loc.shape, 1, #loc.shape - 1) },
    { unpack(w.shape, 1, #w.shape - 2) }, { unpack(d.shape, 1, #d.shape - 1) })
  self:_shapes(batch, { n }, validate)
  self.loc, self.cov_diag = loc:expand(base.joined(batch, { n })), d:expand(base.joined(batch, { n }))
  self.cov_factor = w:expand(base.joined(batch, { n, w.shape[#w.shape] }))
  base.check(self, "parameter loc", loc, "real")
  base.check(self, "parameter cov_factor", w, "real")
  base.check(self, "parameter cov_diag", d, "positive")
  -- for each matrix that was given, not for each element of the batch
  self._w, self._d = w, d
  local scaled = w:transpose(-2, -1) / d:unsqueeze(-2)
  local inner = scaled:matmul(w) + tensor.eye(w.shape[#w.shape], base.like(w))
  self._inner = linalg.cholesky(inner)
  -- the covariance's inverse is the inverse of D less the square of this
  self._reduced = linalg.solve_triangular(self._inner, scaled, { upper = false })
end

local function square(self, x)
  return x:expand(base.joined(self.batch_shape, self.event_shape, self.event_shape))
end

function LowRank:_get_scale_tril()
  local root = self._d:sqrt():unsqueeze(-1)
  local scaled = self._w / root
  local unit = tensor.eye(self.event_shape[1], base.like(scaled))
  return square(self, root * linalg.cholesky(scaled:matmul(scaled:transpose(-2, -1)) + unit))
end
function LowRank:_get_covariance_matrix()
  return square(self, self._w:matmul(self._w:transpose(-2, -1)) + self._d:diag_embed())
end
function LowRank:_get_precision_matrix()
  local a = self._reduced
  return square(self, (1 / self._d):diag_embed() - a:transpose(-2, -1):matmul(a))
end
function LowRank:_get_mean() return self.loc end
function LowRank:_get_mode() return self.loc end
function LowRank:_get_variance()
  return ((self._w * self._w):sum(-1) + self._d):expand(base.joined(self.batch_shape, self.event_shape))
end
function LowRank:_support(value) base.check(self, "the value", value, "real") end
function LowRank:_draw(shape)
  local few = base.joined(shape)
  few[#few] = self._w.shape[self._w:dim()]
  local like = base.like(self.loc)
  local together = self._w:matmul(tensor.randn(few, like):unsqueeze(-1)):squeeze(-1)
  return self.loc + together + self._d:sqrt() * tensor.randn(shape, like)
end
function LowRank:_expanded(shape)
  return LowRank(self.loc:expand(base.joined(shape, self.event_shape)), self._w, self._d,
    { validate_args = self._validate })
end

-- Half of the logarithm of the covariance's determinant.
function LowRank:_half_log_det()
  return covariance.half_log_det(self._inner) + 0.5 * self._d:log():sum(-1)
end

-- The squared length of vectors x (.., n) by the precision.
function LowRank:_distance(x)
  local away = self._reduced:matmul(x:unsqueeze(-1)):squeeze(-1)
  return (x * x / self._d):sum(-1) - (away * away):sum(-1)
end

function LowRank:log_prob(value)
  local n = self.event_shape[1]
  local distance = self:_distance(self:_value(value) - self.loc)
  return -0.5 * (n * math.log(2 * math.pi) + distance) - self:_half_log_det()
end
function LowRank:entropy()
  local n = self.event_shape[1]
  return (0.5 * n * (1 + math.log(2 * math.pi)) + self:_half_log_det()):expand(self.batch_shape)
end

-- ---- divergences

local function squares(x) return (x * x):sum(-1):sum(-1) end

-- The trace of the covariance F F^T by the precision, of a matrix F (.., n, k).
function LowRank:_trace(f)
  return squares(f / self._d:sqrt():unsqueeze(-1)) - squares(self._reduced:matmul(f))
end

local M = { LowRankMultivariateNormal = LowRank }

-- What the trace of p's covariance by q's precision is.
local function to_low_rank(p, q)
  local d = p._d
  local diagonal = (d / q._d):sum(-1) - squares(q._reduced * d:sqrt():unsqueeze(-2))
  return q:_trace(p._w) + diagonal
end

local function to_full(p, q)
  local function whitened(f) return linalg.solve_triangular(q._factor, f, { upper = false }) end
  return squares(whitened(p._w)) + squares(whitened(p._d:sqrt():diag_embed()))
end

local function divergence(p, q, trace, distance)
  local n = p.event_shape[1]
  if n ~= q.event_shape[1] then
    options.fail("kl_divergence: %s of %d and %s of %d elements", p.__name, n, q.__name, q.event_shape[1])
  end
  return q:_half_log_det() - p:_half_log_det() + 0.5 * (trace(p, q) + distance(p.loc - q.loc) - n)
end

--- The divergences of pairs, by the names of both.
M.FORMULAS = {
  LowRankMultivariateNormal = function(p, q)
    return divergence(p, q, to_low_rank, function(x) return q:_distance(x) end)
  end,
  ["MultivariateNormal LowRankMultivariateNormal"] = function(p, q)
    return divergence(p, q, function() return q:_trace(p._factor) end,
      function(x) return q:_distance(x) end)
  end,
  ["LowRankMultivariateNormal MultivariateNormal"] = function(p, q)
    return divergence(p, q, to_full, function(x)
      local z = multivariate._whitened(q._factor, x)
      return (z * z):sum(-1)
    end)
  end,
}

return M
