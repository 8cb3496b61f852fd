--- Distributions of counts: Poisson, Geometric, NegativeBinomial.
local base = require "accelerate.distributions.base"
local core = require "accelerate.core"
local discrete = require "accelerate.distributions.discrete"
local gamma = require "accelerate.distributions.gamma"
local tensor = require "accelerate.tensor"

local lgamma = core.lgamma

local M = {}

local function count(self, value) base.check(self, "the value", value, "count") end

-- ---- Poisson

--- The Poisson distribution: how many independent events come in a time.
---@class accelerate.Poisson: accelerate.Distribution
---@field rate accelerate.Tensor
local Poisson = base.class "Poisson"
Poisson.has_rsample, Poisson._parameters, Poisson._support = false, { { "rate", "nonnegative" } }, count

---@param rate accelerate.Tensor|number mean, at least 0
---@param opts { validate_args: boolean? }?
function Poisson:init(rate, opts) self:_take(opts, rate) end

function Poisson:_get_mean() return self.rate end
function Poisson:_get_variance() return self.rate end
function Poisson:_draw(shape) return tensor.poisson(self.rate:detach():expand(shape)) end
function Poisson:log_prob(value)
  value = self:_value(value)
  return core.xlogy(value, self.rate) - self.rate - lgamma(value + 1)
end

-- ---- Geometric

--- The number of trials that fail before the first that succeeds.
---@class accelerate.Geometric: accelerate.Distribution
---@field probs accelerate.Tensor of success, in (0, 1]
---@field logits accelerate.Tensor log(p / (1 - p))
local Geometric = base.class "Geometric"
Geometric.has_rsample, Geometric._support = false, count

---@param opts { probs: accelerate.Tensor|number|nil, logits: accelerate.Tensor|number|nil,
---  validate_args: boolean? }|accelerate.Tensor|number one of both; a tensor or a number: probs
function Geometric:init(opts) discrete.take_odds(self, opts, "open_unit") end

Geometric._get_probs, Geometric._get_logits = discrete.probs_of, discrete.logits_of
Geometric._expanded = discrete.expand_odds
function Geometric:_get_mean() return 1 / self.probs - 1 end
function Geometric:_get_variance() return (1 / self.probs - 1) / self.probs end
function Geometric:_draw(shape)
  return (base.uniform(shape, self.probs):log() / (-self.probs:detach()):log1p()):floor()
end
function Geometric:log_prob(value)
  value = self:_value(value)
  local failures = core.where(value:eq(0), core.zeros_like(value + self.probs), value * (-self.probs):log1p())
  return failures + self.probs:log()
end
function Geometric:entropy()
  local p, logits = self.probs, self.logits
  return -(p * logits:logsigmoid() + (1 - p) * (-logits):logsigmoid()) / p
end

-- ---- NegativeBinomial

--- The number of trials that succeed before total_count of them fail.
---@class accelerate.NegativeBinomial: accelerate.Distribution
---@field total_count accelerate.Tensor
---@field probs accelerate.Tensor of success, in [0, 1)
---@field logits accelerate.Tensor log(p / (1 - p))
local NegativeBinomial = base.class "NegativeBinomial"
NegativeBinomial.has_rsample, NegativeBinomial._support = false, count

---@param total_count accelerate.Tensor|number at least 0; need not be whole
---@param opts { probs: accelerate.Tensor|number|nil, logits: accelerate.Tensor|number|nil,
---  validate_args: boolean? }|accelerate.Tensor|number one of both; a tensor or a number: probs
function NegativeBinomial:init(total_count, opts)
  discrete.take_odds(self, opts, "half_open_unit", "total_count", total_count)
  base.check(self, "parameter total_count", self.total_count, "nonnegative")
end

NegativeBinomial._get_probs, NegativeBinomial._get_logits = discrete.probs_of, discrete.logits_of
function NegativeBinomial:_expanded(shape)
  local key = rawget(self, "probs") and "probs" or "logits"
  return NegativeBinomial(self.total_count:expand(shape),
    { [key] = self[key]:expand(shape), validate_args = self._validate })
end
function NegativeBinomial:_get_mean() return self.total_count * self.logits:exp() end
function NegativeBinomial:_get_variance() return self.mean / (-self.logits):sigmoid() end
function NegativeBinomial:_draw(shape)
  return tensor.poisson(gamma.standard_gamma(shape, self.total_count:detach()) * self.logits:detach():exp())
end
function NegativeBinomial:log_prob(value)
  value = self:_value(value)
  local n = self.total_count
  local odds = n * (-self.logits):logsigmoid() + value * self.logits:logsigmoid()
  local ways = lgamma(n + value) - lgamma(1 + value) - lgamma(n)
  return odds + core.where((n + value):eq(0), core.zeros_like(ways), ways)
end

M.Poisson, M.Geometric, M.NegativeBinomial = Poisson, Geometric, NegativeBinomial

return M
