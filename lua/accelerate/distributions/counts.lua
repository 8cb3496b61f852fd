--- Distributions of counts: Poisson, Geometric, NegativeBinomial, Binomial.
local base = require "accelerate.distributions.base"
local core = require "accelerate.core"
local discrete = require "accelerate.distributions.discrete"
local gamma = require "accelerate.distributions.gamma"
local options = require "accelerate.utils.options"
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
function Poisson:_get_mode() return self.rate:floor() end
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
function Geometric:_get_mode() return core.zeros_like(self.probs) end
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
  return getmetatable(self)(self.total_count:expand(shape),
    { [key] = self[key]:expand(shape), validate_args = self._validate })
end
function NegativeBinomial:_get_mean() return self.total_count * self.logits:exp() end
function NegativeBinomial:_get_mode()
  return ((self.total_count - 1) * self.logits:exp()):floor():clamp { min = 0 }
end
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

-- ---- Binomial

-- Draws where n q is 10 or more and q at most a half: Hormann's transformed rejection (BTRS), with
-- the logarithms of the probabilities beside that of the mode.
local function drawn_by_rejection(shape, n, q, open)
  local deviation = (n * q * (1 - q)):sqrt()
  local b = 1.15 + 2.53 * deviation
  local a = -0.0873 + 0.0248 * b + 0.01 * q
  local most, odds = ((n + 1) * q):floor(), (q / (1 - q)):log()
  local alpha, peak = (2.83 + 5.1 / b) * deviation, lgamma(most + 1) + lgamma(n - most + 1)
  local result = core.zeros_like(n)
  repeat
    local u, v = base.uniform(shape, n) - 0.5, base.uniform(shape, n)
    local edge = 0.5 - u:abs()
    local k = ((2 * a / edge + b) * u + n * q + 0.5):floor()
    local inside = core.logical_and(k:ge(0), k:le(n))
    k = core.where(inside, k, most)
    local height = (v * alpha / (a / (edge * edge) + b)):log()
    local quick = core.logical_and(edge:ge(0.07), v:le(0.92 - 4.2 / b))
    local under = height:le(peak - lgamma(k + 1) - lgamma(n - k + 1) + (k - most) * odds)
    local taken = core.logical_and(core.logical_and(open, inside), core.logical_or(quick, under))
    result = core.where(taken, k, result)
    open = core.logical_and(open, core.logical_not(taken))
  until not open:any():item()
  return result
end

-- Draws where n q is below 10: how many successes come before the trials are used up, each after a
-- geometric number of trials.
local function drawn_by_waiting(shape, n, q)
  local used, result, per_trial = core.zeros_like(n), core.zeros_like(n), (-q):log1p()
  repeat
    used = used + (base.uniform(shape, n):log() / per_trial):ceil()
    local within = used:le(n)
    result = result + within:to(n.dtype)
  until not within:any():item()
  return result
end

--- The number of trials of total_count that succeed.
---@class accelerate.Binomial: accelerate.Distribution
---@field total_count accelerate.Tensor
---@field probs accelerate.Tensor of success, in [0, 1]
---@field logits accelerate.Tensor log(p / (1 - p))
local Binomial = base.class "Binomial"
Binomial.has_rsample, Binomial.has_enumerate_support = false, true

---@param opts { total_count: accelerate.Tensor|number|nil, probs: accelerate.Tensor|number|nil,
---  logits: accelerate.Tensor|number|nil, validate_args: boolean? } total_count: whole, at least 0;
---  default 1; one of probs and logits
function Binomial:init(opts)
  discrete.take_odds(self, opts, "unit", "total_count")
  base.check(self, "parameter total_count", self.total_count, "count")
end

Binomial._get_probs, Binomial._get_logits = discrete.probs_of, discrete.logits_of
Binomial._expanded = NegativeBinomial._expanded
function Binomial:_get_mean() return self.total_count * self.probs end
function Binomial:_get_mode()
  return core.minimum(((self.total_count + 1) * self.probs):floor(), self.total_count)
end
function Binomial:_get_variance() return self.total_count * self.probs * (1 - self.probs) end
function Binomial:_support(value)
  if not self._validate then return end
  base.expect("Binomial", "the value", value, "an integer from 0 to total_count",
    core.logical_and(core.logical_and(value:ge(0), value:eq(value:round())),
      value:le(self.total_count:detach())))
end
function Binomial:_draw(shape)
  local n, p = self.total_count:detach():double():expand(shape), self.probs:detach():double():expand(shape)
  local q = core.minimum(p, 1 - p)
  local many, zero = (n * q):ge(10), core.zeros_like(n)
  local result = drawn_by_waiting(shape, core.where(many, zero, n), core.where(many, zero, q))
  if many:any():item() then
    local half, some = core.full_like(q, 0.5), core.full_like(n, 20)
    local large = drawn_by_rejection(shape, core.where(many, n, some), core.where(many, q, half), many)
    result = core.where(many, large, result)
  end
  return core.where(p:gt(0.5), n - result, result):to(self.probs.dtype)
end
-- The greater of x and 0; its derivative at 0 is a half, as the derivative of its mirror image is.
local function above_zero(x) return (x:clamp { min = 0 } + x - x:clamp { max = 0 }) / 2 end
function Binomial:log_prob(value)
  value = self:_value(value)
  local n, logits = self.total_count, self.logits
  local ways = lgamma(n + 1) - lgamma(value + 1) - lgamma(n - value + 1)
  return value * logits + ways - n * above_zero(logits) - n * (-logits:abs()):exp():log1p()
end
function Binomial:_outcomes()
  local n = self.total_count:detach()
  local most = n:max():item()
  if n:min():item() ~= most then
    options.fail("Binomial: the values are a list only where all counts are equal; total_count is %s",
      tostring(n))
  end
  return tensor.arange(0, most + 1, base.like(self.probs))
end
function Binomial:entropy()
  local log = self:log_prob(self:enumerate_support(false))
  return -(log:exp() * log):sum(1)
end

M.Poisson, M.Geometric, M.NegativeBinomial, M.Binomial = Poisson, Geometric, NegativeBinomial, Binomial

return M
