--- Bernoulli, Categorical and Multinomial: by probabilities or by logits.
local base = require "accelerate.distributions.base"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local tensor = require "accelerate.tensor"

local M = {}

local OPTIONS = { probs = { "any", optional = true }, logits = { "any", optional = true },
  total_count = { "any", optional = true }, validate_args = { "boolean", default = true } }

-- The one of probs and logits that was given, as a tensor; by its name.
local function given(name, o)
  if (o.probs == nil) == (o.logits == nil) then
    options.fail("%s: either probs or logits must be given, but not both", name)
  end
  local key = o.probs ~= nil and "probs" or "logits"
  return key, (base.parameters(name, key, o[key]))
end

local function read(name, opts, allowed)
  local schema = {}
  for _, key in ipairs(allowed) do schema[key] = OPTIONS[key] end
  if core.is_tensor(opts) or type(opts) == "number" then opts = { probs = opts } end
  return options.check(name, opts, schema)
end

--- Takes the probability of one of two outcomes, or its logits, of a constructor's options.
---@param constraint string of probs
---@param other string? a further parameter of this name
---@param value any and its value; nil: that of the options, or 1
function M.take_odds(self, opts, constraint, other, value)
  local name = self.__name
  local o = read(name, opts, { "probs", "logits", "validate_args", value == nil and other or nil })
  if other and value == nil then value = o[other] or 1 end
  local key = given(name, o)
  if other then
    if core.is_tensor(value) and not value.dtype:find "float" then -- counts may be whole numbers
      value = value:to(core.is_tensor(o[key]) and o[key].dtype or tensor.tensor(0.5).dtype)
    end
    self[key], self[other] = base.parameters(name, key, o[key], other, value)
  else
    self[key] = base.parameters(name, key, o[key])
  end
  self:_shapes(self[key].shape, {}, o.validate_args)
  base.check(self, "parameter " .. key, self[key], key == "probs" and constraint or "real")
end

function M.probs_of(self) return self.logits:sigmoid() end
function M.logits_of(self)
  local least = self.probs.dtype == "float64" and 2 ^ -52 or 2 ^ -23
  local p = self.probs:clamp { min = least, max = 1 - least }
  return p:log() - (-p):log1p()
end
function M.expand_odds(self, shape)
  local key = rawget(self, "probs") and "probs" or "logits"
  return getmetatable(self) { [key] = self[key]:expand(shape), validate_args = self._validate }
end

-- ---- Bernoulli

--- 1 with a probability, else 0.
---@class accelerate.Bernoulli: accelerate.Distribution
---@field probs accelerate.Tensor
---@field logits accelerate.Tensor log(p / (1 - p))
local Bernoulli = base.class "Bernoulli"
Bernoulli.has_rsample, Bernoulli.has_enumerate_support = false, true

---@param opts { probs: accelerate.Tensor|number|nil, logits: accelerate.Tensor|number|nil,
---  validate_args: boolean? }|accelerate.Tensor|number one of both; a tensor or a number: probs
function Bernoulli:init(opts) M.take_odds(self, opts, "unit") end

Bernoulli._get_probs, Bernoulli._get_logits = M.probs_of, M.logits_of
function Bernoulli:_get_mean() return self.probs end
function Bernoulli:_get_mode()
  local p = self.probs
  return core.where(p:eq(0.5), core.full_like(p, 0 / 0), p:ge(0.5):to(p.dtype))
end
function Bernoulli:_get_variance() return self.probs * (1 - self.probs) end
function Bernoulli:_outcomes() return tensor.arange(0, 2, base.like(self.probs)) end
function Bernoulli:_support(value) base.check(self, "the value", value, "boolean") end
function Bernoulli:_draw(shape)
  local p = self.probs
  return tensor.rand(shape, { dtype = p.dtype, device = p.device }):lt(p):to(p.dtype)
end
Bernoulli._expanded = M.expand_odds
function Bernoulli:log_prob(value)
  value = self:_value(value)
  return value * self.logits:logsigmoid() + (1 - value) * (-self.logits):logsigmoid()
end
function Bernoulli:entropy()
  local p, logits = self.probs, self.logits
  return -(p * logits:logsigmoid() + (1 - p) * (-logits):logsigmoid())
end

-- ---- Categorical

--- A class from 0 to n - 1, each with its probability.
---@class accelerate.Categorical: accelerate.Distribution
---@field probs accelerate.Tensor [.., n], with a sum of 1
---@field logits accelerate.Tensor [.., n], normalized
local Categorical = base.class "Categorical"
Categorical.has_rsample, Categorical.has_enumerate_support = false, true

-- Takes probabilities or logits, and normalizes them.
local function take_weights(self, name, o)
  local key, value = given(name, o)
  if #value.shape < 1 then options.fail("%s: parameter %s must have at least one dimension", name, key) end
  self._validate = o.validate_args
  if key == "probs" then
    base.check(self, "parameter probs", value, "nonnegative")
    self.probs = value / value:sum({ -1 }, true)
    if self._validate then
      base.expect(name, "parameter probs", value, "not all 0 in a row", value:detach():sum(-1):gt(0))
    end
  else
    base.check(self, "parameter logits", value, "real")
    self.logits = value:log_softmax(-1)
  end
  local shape = value.shape
  return table.remove(shape), shape
end

local function get_probs(self) return self.logits:softmax(-1) end
local function get_logits(self)
  local least = self.probs.dtype == "float64" and 2 ^ -52 or 2 ^ -23
  return self.probs:clamp { min = least, max = 1 - least }:log()
end

---@param opts { probs: accelerate.Tensor?, logits: accelerate.Tensor?, validate_args: boolean?
---  }|accelerate.Tensor one of both, [.., n], which need not be normalized; a tensor: probs
function Categorical:init(opts)
  local o = read("Categorical", opts, { "probs", "logits", "validate_args" })
  local n, batch = take_weights(self, "Categorical", o)
  self._n = n
  self:_shapes(batch, {}, o.validate_args)
end

Categorical._get_probs, Categorical._get_logits = get_probs, get_logits
function Categorical:_get_mean() return core.full_like(self.probs:sum(-1), 0 / 0) end
function Categorical:_get_mode() return self.probs:argmax(-1) end
function Categorical:_outcomes() return tensor.arange(self._n):to(self.probs.device) end
function Categorical:_get_variance() return core.full_like(self.probs:sum(-1), 0 / 0) end
function Categorical:_dtype() return self.probs.dtype end
-- int64 of the shape: the draws of each row, brought to the front.
function Categorical:_draw(shape, sample_shape)
  local rows, draws = 1, 1
  for _, size in ipairs(self.batch_shape) do rows = rows * size end
  for _, size in ipairs(sample_shape) do draws = draws * size end
  if rows * draws == 0 then return tensor.zeros(shape, { dtype = "int64", device = self.probs.device }) end
  local picks = self.probs:detach():reshape({ rows, self._n }):multinomial(draws, true)
  return picks:t():reshape(shape)
end
function Categorical:_expanded(shape)
  local key = rawget(self, "probs") and "probs" or "logits"
  return Categorical { [key] = self[key]:expand(base.joined(shape, { self._n })),
    validate_args = self._validate }
end
function Categorical:log_prob(value)
  if type(value) == "number" then value = tensor.tensor(value) end
  options.value("Categorical", "value", value, { "tensor" })
  if self._validate then
    base.expect("Categorical", "the value", value, ("an integer from 0 to %d"):format(self._n - 1),
      core.logical_and(core.logical_and(value:ge(0), value:le(self._n - 1)), value:eq(value:to("int64"))))
  end
  local index, logits = value:to("int64"):unsqueeze(-1), self.logits
  local shape = tensor.broadcast_shapes(index.shape, base.joined(self.batch_shape, { 1 }))
  index = index:expand(shape)
  shape[#shape] = self._n
  return logits:expand(shape):gather(-1, index):squeeze(-1)
end
function Categorical:entropy()
  local floor = self.probs.dtype == "float64" and -2 ^ 1023 or -2 ^ 127
  return -(self.logits:clamp { min = floor } * self.probs):sum(-1)
end

-- ---- Multinomial

--- The number of times that each of n classes is drawn in total_count draws.
---@class accelerate.Multinomial: accelerate.Distribution
---@field total_count integer
---@field probs accelerate.Tensor [.., n]
---@field logits accelerate.Tensor [.., n]
local Multinomial = base.class "Multinomial"
Multinomial.has_rsample = false

---@param opts { total_count: integer?, probs: accelerate.Tensor?, logits: accelerate.Tensor?,
---  validate_args: boolean? } total_count: default 1; one of probs and logits, [.., n]
function Multinomial:init(opts)
  local o = read("Multinomial", opts, { "total_count", "probs", "logits", "validate_args" })
  local total_count = o.total_count or 1
  options.value("Multinomial", "total_count", total_count, { "integer", min = 0 })
  local n, batch = take_weights(self, "Multinomial", o)
  self.total_count, self._n = total_count, n
  self:_shapes(batch, { n }, o.validate_args)
end

Multinomial._get_probs, Multinomial._get_logits = get_probs, get_logits
function Multinomial:_get_mean() return self.probs * self.total_count end
function Multinomial:_get_variance() return self.total_count * self.probs * (1 - self.probs) end
function Multinomial:_support(value)
  if not self._validate then return end
  base.expect("Multinomial", "the value", value, ("counts with a sum of %d"):format(self.total_count),
    core.logical_and(core.logical_and(value:ge(0), value:eq(value:round())):all(-1),
      value:sum(-1):eq(self.total_count)))
end
function Multinomial:_draw(shape, sample_shape)
  local one = Categorical { probs = self.probs:detach(), validate_args = false }
  local picks = one:sample(base.joined({ self.total_count }, sample_shape))
  local counts = tensor.zeros(shape, { dtype = self.probs.dtype, device = self.probs.device })
  if self.total_count == 0 then return counts end
  local classes = tensor.arange(self._n):to(self.probs.device)
  for i = 1, self.total_count do
    counts = counts + picks[i]:unsqueeze(-1):eq(classes):to(self.probs.dtype)
  end
  return counts
end
function Multinomial:_expanded(shape)
  local key = rawget(self, "probs") and "probs" or "logits"
  return Multinomial(self.total_count, { [key] = self[key]:expand(base.joined(shape, { self._n })),
    validate_args = self._validate })
end
function Multinomial:log_prob(value)
  value = self:_value(value)
  local logits = self.logits
  local terms = core.where(value:eq(0), core.zeros_like(value + logits), value * logits)
  return core.lgamma(value:sum(-1) + 1) - core.lgamma(value + 1):sum(-1) + terms:sum(-1)
end

M.Bernoulli, M.Categorical, M.Multinomial = Bernoulli, Categorical, Multinomial

return M
