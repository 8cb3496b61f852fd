--- What distributions share: shapes, checks of parameters and values, drawing.
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local orders = require "accelerate.distributions.orders"
local options = require "accelerate.utils.options"
local tensor = require "accelerate.tensor"

local fail, show = options.fail, options.show

local M = {}

--- A distribution over tensors. Parameters are tensors or numbers, which are broadcast; their
--- common shape is the batch shape. Names, shapes and values are PyTorch's; `mean`, `mode`,
--- `variance` and `stddev` are fields, which are nil where there is no formula. Constructors take
--- their arguments by position, in PyTorch's order, or by name in a table at the end.
---
--- A script's own distribution is `accelerate.utils.class("Squashed", distributions.Normal)`; the
--- field `mean` is then what its method `_get_mean` returns, and so for the others.
---@class accelerate.Distribution
---@field batch_shape integer[]
---@field event_shape integer[] of one draw of one element of the batch
---@field mean accelerate.Tensor
---@field mode accelerate.Tensor the likeliest value
---@field variance accelerate.Tensor
---@field stddev accelerate.Tensor
---@field param_shape integer[]? of probs and logits, where the distribution has them
---@field has_rsample boolean
---@field has_enumerate_support boolean
local Distribution = class "Distribution"
class.optional(Distribution, "param_shape")
Distribution.has_enumerate_support = false

-- Fields that are computed when they are read. Derived classes take this over.
function Distribution:__index(key)
  local Class = getmetatable(self)
  local value = Class[key]
  if value ~= nil then return value end
  local getter = Class["_get_" .. tostring(key)]
  return getter and getter(self)
end

--- Makes a class of distributions.
---@param name string
---@param base table?
function M.class(name, base)
  local Class = class(name, base or Distribution)
  orders.arrange(Class)
  return Class
end

--- The type and device of a tensor, for draws beside it.
function M.like(x) return { dtype = x.dtype, device = x.device } end

--- Uniform draws above 0 and below 1.
---@param shape integer[]
---@param x accelerate.Tensor whose type and device they get
function M.uniform(shape, x)
  local tiny = x.dtype == "float64" and 2 ^ -53 or 2 ^ -24
  return tensor.rand(shape, M.like(x)):clamp { min = tiny, max = 1 - tiny }
end

--- A probability that a caller gave, as a tensor of x's type and device.
function M.probability(p, x) return type(p) == "number" and tensor.tensor(p, M.like(x)) or p end

local CHECK = { validate_args = { "boolean", default = true } }

--- Returns whether a distribution checks its arguments, from the options of its constructor.
---@return boolean
function M.validates(name, opts) return options.check(name, opts, CHECK).validate_args end

-- What to write for a parameter that is no tensor.
local function instead(name, value)
  if type(value) ~= "table" or getmetatable(value) then return "" end
  if value[1] ~= nil then return "; tensor.tensor(list) makes a tensor" end
  local shown = orders.shown(name)
  return shown and ("; the arguments are %s"):format(shown) or ""
end

--- Parameters as tensors of one type and device, expanded to their common shape.
---@param name string of the distribution, for messages
---@param ... string|any name and value of each parameter
function M.parameters(name, ...)
  local given, n = { ... }, select("#", ...) / 2
  local like
  for i = 1, n do
    local value = given[2 * i]
    if core.is_tensor(value) then
      if not value.dtype:find "float" then
        fail("%s: parameter %s must be of a floating type, got %s", name, given[2 * i - 1], value.dtype)
      end
      like = like or value
    elseif type(value) ~= "number" then
      fail("%s: parameter %s must be a number or a tensor, got %s%s", name, given[2 * i - 1], show(value),
        instead(name, value))
    end
  end
  local list = {}
  for i = 1, n do
    local value = given[2 * i]
    list[i] = core.is_tensor(value) and value
      or tensor.tensor(value, like and { dtype = like.dtype, device = like.device } or {})
  end
  return tensor.broadcast_tensors(list)
end

-- The test of each constraint on x, a tensor of booleans, and its words.
M.CONSTRAINTS = {
  positive = { "greater than 0", function(x) return x:gt(0) end },
  nonnegative = { "at least 0", function(x) return x:ge(0) end },
  real = { "real", function(x) return x:eq(x) end },
  unit = { "in [0, 1]", function(x) return core.logical_and(x:ge(0), x:le(1)) end },
  count = { "an integer of at least 0", function(x) return core.logical_and(x:ge(0), x:eq(x:round())) end },
  open_unit = { "in (0, 1]", function(x) return core.logical_and(x:gt(0), x:le(1)) end },
  half_open_unit = { "in [0, 1)", function(x) return core.logical_and(x:ge(0), x:lt(1)) end },
  boolean = { "0 or 1", function(x) return core.logical_or(x:eq(0), x:eq(1)) end },
  simplex = { "at least 0, with a sum of 1 in the last dimension", function(x)
    return core.logical_and(x:ge(0):all(-1),
      (x:sum(-1) - 1):abs():lt(1e-6 * (x.dtype == "float64" and 1 or 10)))
  end },
}

--- Raises unless all of x fits.
---@param name string of the distribution
---@param what string "parameter scale", "value"
---@param x accelerate.Tensor
---@param words string
---@param fits accelerate.Tensor booleans
function M.expect(name, what, x, words, fits)
  if fits:all():item() then return end
  fail("%s: expected %s (%s) to be %s, but found invalid values: %s", name, what, show(x), words,
    tostring(x:detach()))
end

--- Checks a parameter or a value.
function M.check(self, what, x, constraint)
  if not self._validate then return end
  local entry = M.CONSTRAINTS[constraint]
  M.expect(self.__name, what, x, entry[1], entry[2](x:detach()))
end

--- Takes the values of the parameters that `_parameters` of the class lists with their constraints:
--- a constructor whose parameters are broadcast to the batch shape.
---@param opts table? of the constructor
---@param ... any values in the order of the list
function Distribution:_take(opts, ...)
  local name, list, given = self.__name, self._parameters, {}
  local validate = M.validates(name, opts)
  for i, entry in ipairs(list) do given[2 * i - 1], given[2 * i] = entry[1], (select(i, ...)) end
  local values = { M.parameters(name, unpack(given, 1, 2 * #list)) }
  for i, entry in ipairs(list) do self[entry[1]] = values[i] end
  self:_shapes(values[1].shape, {}, validate)
  for _, entry in ipairs(list) do M.check(self, "parameter " .. entry[1], self[entry[1]], entry[2]) end
end

-- For classes with `_parameters`; others have their own.
function Distribution:_expanded(shape)
  local values, n = {}, #self._parameters
  for i, entry in ipairs(self._parameters) do values[i] = self[entry[1]]:expand(shape) end
  values[n + 1] = { validate_args = self._validate }
  return getmetatable(self)(unpack(values))
end

--- Sets shapes; called by constructors.
function Distribution:_shapes(batch, event, validate)
  self.batch_shape, self.event_shape, self._validate = batch, event or {}, validate
end

local SHAPE = { sample_shape = { "any", optional = true } }

-- A list of sizes: nil, a number or a list; also by name.
local function sizes(where, shape)
  if type(shape) == "table" and shape[1] == nil and next(shape) ~= nil then
    shape = options.check(where, shape, SHAPE).sample_shape
  end
  if shape == nil then return {} end
  if type(shape) == "number" then return { shape } end
  options.value(where, "sample_shape", shape, { "list" })
  return shape
end

--- Returns the lists joined.
function M.joined(...)
  local out = {}
  for _, list in ipairs { ... } do
    for _, size in ipairs(list) do out[#out + 1] = size end
  end
  return out
end

function Distribution:_extended(where, shape)
  return M.joined(sizes(where, shape), self.batch_shape, self.event_shape)
end

--- Draws without a gradient: a tensor of the shape, the batch shape and the event shape.
---@param sample_shape integer|integer[]|{ sample_shape: integer[] }|nil how many draws; default one
---@return accelerate.Tensor
function Distribution:sample(sample_shape)
  local draw
  tensor.no_grad(function()
    draw = self:_draw(self:_extended("sample", sample_shape), sizes("sample", sample_shape))
  end)
  return draw:detach()
end

--- Draws through which gradients reach the parameters. Raises for distributions that have no such
--- draws.
---@param sample_shape integer|integer[]|{ sample_shape: integer[] }|nil
---@return accelerate.Tensor
function Distribution:rsample(sample_shape)
  if not self.has_rsample then fail("%s: there is no rsample; use sample", self.__name) end
  return self:_draw(self:_extended("rsample", sample_shape), sizes("rsample", sample_shape))
end

--- Reads a value, which is checked against the support.
function Distribution:_value(value)
  if type(value) == "number" then value = tensor.tensor(value, { dtype = self:_dtype() }) end
  if not core.is_tensor(value) then
    fail("%s: the value must be a tensor or a number, got %s", self.__name, show(value))
  end
  if not value.dtype:find "float" then value = value:to(self:_dtype()) end
  if self._support then self:_support(value) end
  return value
end

function Distribution:_dtype() return self.mean.dtype end
function Distribution:_get_stddev()
  local variance = self.variance
  return variance and variance:sqrt()
end

function Distribution:_get_param_shape()
  local parameter = rawget(self, "probs") or self.logits
  return parameter and parameter.shape
end

--- Returns exp of the entropy.
---@return accelerate.Tensor
function Distribution:perplexity() return self:entropy():exp() end

local function missing(method)
  return function(self) fail("%s: there is no %s", self.__name, method) end
end

--- Returns the logarithm of the density, or of the probability, of a value.
---@param value accelerate.Tensor|number
---@return accelerate.Tensor
function Distribution:log_prob(value) return missing "log_prob"(self, value) end

--- Returns the probability of values up to `value`. Raises where there is no formula.
---@param value accelerate.Tensor|number
---@return accelerate.Tensor
function Distribution:cdf(value) return missing "cdf"(self, value) end

--- Returns where the cdf is `value`. Raises where there is no formula.
---@param value accelerate.Tensor|number a probability
---@return accelerate.Tensor
function Distribution:icdf(value) return missing "icdf"(self, value) end

--- Returns the entropy, in nats.
---@return accelerate.Tensor
function Distribution:entropy() return missing "entropy"(self) end

local EXPAND = { expand = { "boolean", default = true } }

--- Returns all values that can come, in the first dimension. Raises where they are not a list.
---@param ... any expand = true (over the batch shape; with false the batch dimensions are 1), or a
---  table with it
---@return accelerate.Tensor
function Distribution:enumerate_support(...)
  local expand = options.read("enumerate_support", { "expand" }, EXPAND, ...).expand
  if not self.has_enumerate_support then missing "enumerate_support"(self) end
  local values, ones = self:_outcomes(), {}
  for i = 1, #self.batch_shape do ones[i] = 1 end
  local n = { values.shape[1] }
  values = values:reshape(M.joined(n, ones, self.event_shape))
  if not expand then return values end
  return values:expand(M.joined(n, self.batch_shape, self.event_shape))
end

--- Returns the distribution with its parameters expanded to a batch shape.
---@param batch_shape integer[]
function Distribution:expand(batch_shape)
  options.value("expand", "batch_shape", batch_shape, { "table" })
  return self:_expanded(batch_shape)
end

function Distribution:__tostring()
  return ("%s(batch_shape: {%s}, event_shape: {%s})"):format(self.__name,
    table.concat(self.batch_shape, ", "),
    table.concat(self.event_shape, ", "))
end

orders.methods(Distribution)
M.Distribution = Distribution

return M
