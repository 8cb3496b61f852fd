--- Distributions made of others: OneHotCategorical and its straight-through kind, RelaxedBernoulli,
--- MixtureSameFamily.
local base = require "accelerate.distributions.base"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local discrete = require "accelerate.distributions.discrete"
local options = require "accelerate.utils.options"
local tensor = require "accelerate.tensor"

local M = {}

-- ---- OneHotCategorical

--- A class as a row of zeros with a one.
---@class accelerate.OneHotCategorical: accelerate.Distribution
---@field probs accelerate.Tensor [.., n]
---@field logits accelerate.Tensor [.., n]
local OneHotCategorical = base.class "OneHotCategorical"
OneHotCategorical.has_rsample, OneHotCategorical.has_enumerate_support = false, true

---@param opts { probs: accelerate.Tensor?, logits: accelerate.Tensor?, validate_args: boolean?
---  }|accelerate.Tensor one of both, [.., n], which need not be normalized; a tensor: probs
function OneHotCategorical:init(opts)
  self._categorical = discrete.Categorical(opts)
  local inner = self._categorical
  self:_shapes(inner.batch_shape, { inner._n }, inner._validate)
end

function OneHotCategorical:_get_probs() return self._categorical.probs end
function OneHotCategorical:_get_logits() return self._categorical.logits end
function OneHotCategorical:_get_mean() return self.probs end
function OneHotCategorical:_get_mode()
  return core.one_hot(self.probs:argmax(-1), self._categorical._n):to(self.probs.dtype)
end
function OneHotCategorical:_outcomes() return tensor.eye(self._categorical._n, base.like(self.probs)) end
function OneHotCategorical:_get_variance() return self.probs * (1 - self.probs) end
function OneHotCategorical:_support(value)
  if not self._validate then return end
  base.expect(self.__name, "the value", value, "zeros with a one in each row",
    core.logical_and(core.logical_or(value:eq(0), value:eq(1)):all(-1), value:sum(-1):eq(1)))
end
function OneHotCategorical:_draw(_, sample_shape)
  local inner = self._categorical
  local picks = inner:_draw(base.joined(sample_shape, inner.batch_shape), sample_shape)
  return core.one_hot(picks, inner._n):to(self.probs.dtype)
end
function OneHotCategorical:_expanded(shape)
  local inner = self._categorical:expand(shape)
  local key = rawget(inner, "probs") and "probs" or "logits"
  return getmetatable(self) { [key] = inner[key], validate_args = self._validate }
end
function OneHotCategorical:log_prob(value)
  return self._categorical:log_prob(self:_value(value):argmax(-1))
end
function OneHotCategorical:entropy() return self._categorical:entropy() end

--- A class as a row of zeros with a one; gradients pass through its draws as if they were the
--- probabilities.
---@class accelerate.OneHotCategoricalStraightThrough: accelerate.OneHotCategorical
local StraightThrough = base.class("OneHotCategoricalStraightThrough", OneHotCategorical)
StraightThrough.has_rsample = true

---@param opts { probs: accelerate.Tensor?, logits: accelerate.Tensor?, validate_args: boolean?
---  }|accelerate.Tensor one of both, [.., n], which need not be normalized; a tensor: probs
function StraightThrough:init(opts) OneHotCategorical.init(self, opts) end

function StraightThrough:_draw(shape, sample_shape)
  local probs = self.probs
  return OneHotCategorical._draw(self, shape, sample_shape) + (probs - probs:detach())
end

-- ---- RelaxedBernoulli

--- A number of (0, 1) that comes the nearer to 0 or 1 the lower the temperature is; gradients pass
--- through its draws.
---@class accelerate.RelaxedBernoulli: accelerate.Distribution
---@field temperature accelerate.Tensor
---@field probs accelerate.Tensor
---@field logits accelerate.Tensor
local RelaxedBernoulli = base.class "RelaxedBernoulli"
RelaxedBernoulli.has_rsample = true

---@param temperature accelerate.Tensor|number above 0
---@param opts { probs: accelerate.Tensor|number|nil, logits: accelerate.Tensor|number|nil,
---  validate_args: boolean? }|accelerate.Tensor|number one of both; a tensor or a number: probs
function RelaxedBernoulli:init(temperature, opts)
  discrete.take_odds(self, opts, "unit", "temperature", temperature)
  if not core.is_tensor(temperature) or temperature.ndim == 0 then -- one for all, as it was given
    self.temperature = base.parameters("RelaxedBernoulli", "temperature",
      base.probability(temperature, self.temperature))
  end
  base.check(self, "parameter temperature", self.temperature, "positive")
end

RelaxedBernoulli._get_probs, RelaxedBernoulli._get_logits = discrete.probs_of, discrete.logits_of
function RelaxedBernoulli:_dtype() return self.temperature.dtype end
function RelaxedBernoulli:_support(value) base.check(self, "the value", value, "unit") end
function RelaxedBernoulli:_draw(shape)
  local u = base.uniform(shape, self.temperature)
  return ((u:log() - (-u):log1p() + self.logits) / self.temperature):sigmoid()
end
function RelaxedBernoulli:_expanded(shape)
  local key = rawget(self, "probs") and "probs" or "logits"
  local temperature = self.temperature
  return RelaxedBernoulli(temperature.ndim == 0 and temperature or temperature:expand(shape),
    { [key] = self[key]:expand(shape), validate_args = self._validate })
end
function RelaxedBernoulli:log_prob(value)
  value = self:_value(value)
  local least = value.dtype == "float64" and 2 ^ -52 or 2 ^ -23
  value = value:clamp { min = least, max = 1 - least }
  local x, t = value:log() - (-value):log1p(), self.temperature
  local difference = self.logits - x * t
  local density = t:log() + difference - 2 * core.softplus(difference)
  return density - x:logsigmoid() - (-x):logsigmoid()
end

-- ---- MixtureSameFamily

--- A mixture of the distributions that the last batch dimension of one distribution holds.
---@class accelerate.MixtureSameFamily: accelerate.Distribution
---@field mixture_distribution accelerate.Categorical
---@field component_distribution accelerate.Distribution
local MixtureSameFamily = base.class "MixtureSameFamily"
MixtureSameFamily.has_rsample = false

---@param mixture_distribution accelerate.Categorical the weights
---@param component_distribution accelerate.Distribution its last batch dimension counts the
---  components
---@param opts { validate_args: boolean? }?
function MixtureSameFamily:init(mixture_distribution, component_distribution, opts)
  local mixture, component = mixture_distribution, component_distribution
  local name = "MixtureSameFamily"
  local validate = base.validates(name, opts)
  if not class.is(mixture, discrete.Categorical) then
    options.fail("%s: the mixture must be a Categorical, got %s", name, options.show(mixture))
  end
  if not class.is(component, base.Distribution) then
    options.fail("%s: the component must be a distribution, got %s", name, options.show(component))
  end
  local batch = base.joined(component.batch_shape)
  local count = table.remove(batch)
  if count ~= mixture._n then
    options.fail("%s: the mixture has %d components, and the last batch dimension of %s has %s", name,
      mixture._n, component.__name, tostring(count))
  end
  self.mixture_distribution, self.component_distribution = mixture, component
  self:_shapes(batch, component.event_shape, validate)
end

-- Weights of the components with a dimension of size 1 for each dimension of the event.
local function weights(self)
  local probs = self.mixture_distribution.probs
  for _ = 1, #self.event_shape do probs = probs:unsqueeze(-1) end
  return probs
end
-- The dimension of the components in values of the components, and in values of the mixture.
local function place(self) return -1 - #self.event_shape end

function MixtureSameFamily:_dtype() return self.component_distribution:_dtype() end
function MixtureSameFamily:_get_mean()
  return (weights(self) * self.component_distribution.mean):sum(place(self))
end
function MixtureSameFamily:_get_variance()
  local inner, w = self.component_distribution, weights(self)
  local away = inner.mean - self.mean:unsqueeze(place(self))
  return (w * (inner.variance + away * away)):sum(place(self))
end
function MixtureSameFamily:_draw(shape, sample_shape)
  local all, which = self.component_distribution:sample(sample_shape), self.mixture_distribution
  local at = which:expand(self.batch_shape):sample(sample_shape)
  for _ = 1, 1 + #self.event_shape do at = at:unsqueeze(-1) end
  local dim = #all.shape + 1 + place(self)
  local wide = base.joined(all.shape)
  wide[dim] = 1
  return all:gather(dim, at:expand(wide)):reshape(shape)
end
function MixtureSameFamily:_expanded(shape)
  local inner = base.joined(shape, { self.mixture_distribution._n })
  return MixtureSameFamily(self.mixture_distribution:expand(shape),
    self.component_distribution:expand(inner), { validate_args = self._validate })
end
-- The value with a dimension for the components.
local function padded(self, value)
  if type(value) == "number" then value = tensor.tensor(value, { dtype = self:_dtype() }) end
  return value:unsqueeze(place(self))
end
function MixtureSameFamily:log_prob(value)
  local each = self.component_distribution:log_prob(padded(self, value))
  return (each + self.mixture_distribution.logits:log_softmax(-1)):logsumexp(-1)
end
function MixtureSameFamily:cdf(value)
  return (self.component_distribution:cdf(padded(self, value)) * self.mixture_distribution.probs):sum(-1)
end

M.OneHotCategorical, M.OneHotCategoricalStraightThrough = OneHotCategorical, StraightThrough
M.RelaxedBernoulli = RelaxedBernoulli
M.MixtureSameFamily = MixtureSameFamily

return M
