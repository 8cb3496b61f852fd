--- Distributions of counts: Poisson, Geometric, NegativeBinomial.
local base = require "accelerate.distributions.base"
local core = require "accelerate.core"
local discrete = require "accelerate.distributions.discrete"
local gamma = require "accelerate.distributions.gamma"
local special = require "accelerate.distributions.special"
local tensor = require "accelerate.tensor"

local lgamma = special.lgamma

local M = {}

local function count(self, value) base.check(self, "the value", value, "count") end

-- ---- draws of Poisson variables

local TABLED = 10 -- up to this rate draws are counted, above it Hoermann's rejection needs fewer rounds

-- How many uniform numbers can be multiplied before the product is below exp(-rate).
local function counted(rate)
  local limit, product, draw = (-rate):exp(), core.ones_like(rate), core.zeros_like(rate)
  repeat
    product = product * tensor.rand(rate.shape, base.like(rate))
    local open = product:gt(limit)
    draw = draw + open:to(rate.dtype)
  until not open:any():item()
  return draw
end

-- W. Hoermann, The transformed rejection method for generating Poisson random variables, 1993:
-- algorithm PTRS.
local function rejected(rate)
  local b = 0.931 + 2.53 * rate:sqrt()
  local a = 0.02483 * b - 0.059
  local scale, height = 1.1239 + 1.1328 / (b - 3.4), 0.9277 - 3.6224 / (b - 2)
  local draw, open = core.zeros_like(rate), rate:eq(rate)
  repeat
    local u = tensor.rand(rate.shape, base.like(rate)) - 0.5
    local v = base.uniform(rate.shape, rate)
    local room = 0.5 - u:abs()
    local k = ((2 * a / room + b) * u + rate + 0.43):floor()
    local whole = k:clamp { min = 0 }
    local likely = (v * scale / (a / (room * room) + b)):log():le(
      whole * rate:log() - rate - lgamma(whole + 1))
    local taken = core.logical_and(k:ge(0), core.logical_or(
      core.logical_and(room:ge(0.07), v:le(height)),
      core.logical_and(likely, core.logical_or(room:ge(0.013), v:le(room)))))
    draw = core.where(core.logical_and(open, taken), whole, draw)
    open = core.logical_and(open, core.logical_not(taken))
  until not open:any():item()
  return draw
end

-- Draws for a tensor of rates: in float64, for float32 has not all integers of large rates.
local function poisson(rate)
  local wide = rate:detach():double()
  local small = wide:le(TABLED)
  local low = counted(core.where(small, wide, core.zeros_like(wide)))
  if small:all():item() then return low:to(rate.dtype) end
  return core.where(small, low, rejected(core.where(small, core.full_like(wide, TABLED), wide))):to(
    rate.dtype)
end

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
function Poisson:_draw(shape) return poisson(self.rate:expand(shape)) end
function Poisson:log_prob(value)
  value = self:_value(value)
  return core.xlogy(value, self.rate) - self.rate - lgamma(value + 1)
end

-- ---- Geometric

--- How many trials fail before the first that succeeds.
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

--- How many trials succeed before total_count of them fail.
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
  return poisson(gamma.standard_gamma(shape, self.total_count:detach()) * self.logits:detach():exp())
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
