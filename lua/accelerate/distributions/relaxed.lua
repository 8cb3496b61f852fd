--- Classes relaxed to points of the simplex: ExpRelaxedCategorical, RelaxedOneHotCategorical.
local base = require "accelerate.distributions.base"
local core = require "accelerate.core"
local discrete = require "accelerate.distributions.discrete"

local M = {}

--- The logarithm of a RelaxedOneHotCategorical variable.
---@class accelerate.ExpRelaxedCategorical: accelerate.Distribution
---@field temperature accelerate.Tensor
---@field probs accelerate.Tensor [.., n]
---@field logits accelerate.Tensor [.., n]
local ExpRelaxedCategorical = base.class "ExpRelaxedCategorical"
ExpRelaxedCategorical.has_rsample = true

---@param temperature accelerate.Tensor|number above 0; one for all
---@param opts { probs: accelerate.Tensor?, logits: accelerate.Tensor?, validate_args: boolean?
---  }|accelerate.Tensor one of both, [.., n], which need not be normalized; a tensor: probs
function ExpRelaxedCategorical:init(temperature, opts)
  self._categorical = discrete.Categorical(opts)
  local inner = self._categorical
  self:_shapes(inner.batch_shape, { inner._n }, inner._validate)
  self.temperature = base.parameters(self.__name, "temperature",
    base.probability(temperature, rawget(inner, "probs") or inner.logits))
  base.check(self, "parameter temperature", self.temperature, "positive")
end

function ExpRelaxedCategorical:_get_probs() return self._categorical.probs end
function ExpRelaxedCategorical:_get_logits() return self._categorical.logits end
function ExpRelaxedCategorical:_dtype() return self.logits.dtype end
function ExpRelaxedCategorical:_support(value) base.check(self, "the value", value, "real") end
function ExpRelaxedCategorical:_draw(shape)
  local logits = self.logits
  local scores = (logits - (-base.uniform(shape, logits):log()):log()) / self.temperature
  return scores:log_softmax(-1)
end
function ExpRelaxedCategorical:_expanded(shape)
  local inner = self._categorical:expand(shape)
  local key = rawget(inner, "probs") and "probs" or "logits"
  return getmetatable(self)(self.temperature, { [key] = inner[key], validate_args = self._validate })
end
-- Of the logarithms of points.
local function log_prob(self, logs)
  local n, t = self.event_shape[1], self.temperature
  local scale = core.lgamma(core.full_like(t, n)) + (n - 1) * t:log()
  return (self.logits - logs * t):log_softmax(-1):sum(-1) + scale
end
function ExpRelaxedCategorical:log_prob(value) return log_prob(self, self:_value(value)) end

--- A point of the simplex that comes the nearer to a corner the lower the temperature is; gradients
--- pass through its draws.
---@class accelerate.RelaxedOneHotCategorical: accelerate.ExpRelaxedCategorical
local RelaxedOneHotCategorical = base.class("RelaxedOneHotCategorical", ExpRelaxedCategorical)

---@param temperature accelerate.Tensor|number above 0; one for all
---@param opts { probs: accelerate.Tensor?, logits: accelerate.Tensor?, validate_args: boolean?
---  }|accelerate.Tensor one of both, [.., n], which need not be normalized; a tensor: probs
function RelaxedOneHotCategorical:init(temperature, opts)
  ExpRelaxedCategorical.init(self, temperature, opts)
end

function RelaxedOneHotCategorical:_support(value) base.check(self, "the value", value, "simplex") end
function RelaxedOneHotCategorical:_draw(shape) return ExpRelaxedCategorical._draw(self, shape):exp() end
function RelaxedOneHotCategorical:log_prob(value)
  local logs = self:_value(value):log()
  return log_prob(self, logs) - logs:sum(-1)
end

M.ExpRelaxedCategorical, M.RelaxedOneHotCategorical = ExpRelaxedCategorical, RelaxedOneHotCategorical

return M
