--- Metrics over numbers: means, errors, perplexity. Sums are kept in doubles with a correction
--- term, so the order and number of batches hardly matter.
local class = require "accelerate.utils.class"
local Metric = require "accelerate.metrics.metric"
local options = require "accelerate.utils.options"

local fail, show = options.fail, options.show

local M = {}

-- Neumaier's compensated sum: `low` collects the rounding errors of `total`.
local function new_sum() return { total = 0, low = 0 } end
local function add(sum, x)
  local t = sum.total + x
  if math.abs(sum.total) >= math.abs(x) then
    sum.low = sum.low + ((sum.total - t) + x)
  else
    sum.low = sum.low + ((x - t) + sum.total)
  end
  sum.total = t
end
local function value(sum)
  if sum.low ~= sum.low then return sum.total end -- infinities and NaN
  return sum.total + sum.low
end

local function check_number(self, x)
  if type(x) == "boolean" then return x and 1 or 0 end
  if type(x) ~= "number" then fail("%s: expected numbers, got %s", self.name, show(x)) end
  return x
end

--- Base class: a weighted mean.
local Mean = class("Mean", Metric)
Mean.name, Mean.OPTIONS = "mean", {}
Mean.inputs, Mean.optional_inputs = { "values", "weights" }, 1
M.mean = Mean

function Mean:_reset() self._sum, self._weight, self._n = new_sum(), new_sum(), 0 end
function Mean:_empty() return self._n == 0 end

function Mean:_put(x, weight)
  weight = weight == nil and 1 or check_number(self, weight)
  if weight < 0 then fail("%s: weights must be 0 or more, got %g", self.name, weight) end
  add(self._sum, x * weight)
  add(self._weight, weight)
  self._n = self._n + 1
end

function Mean:_mean()
  if value(self._weight) == 0 then fail("%s:compute: the weights add up to 0", self.name) end
  return value(self._sum) / value(self._weight)
end

--- The mean of numbers, optionally weighted: { mean = }. `metric:add(loss, batch_size)`.
function Mean:_add(x, weight) self:_put(check_number(self, x), weight) end
function Mean:_compute() return { mean = self:_mean() } end

--- The exponential of the mean loss in nats (cross_entropy's): { perplexity =, loss = }.
--- `metric:add(loss, number_of_tokens)` weights batches by their size.
---@class accelerate.Perplexity: accelerate.Metric
local Perplexity = class("Perplexity", Mean)
Perplexity.name, Perplexity.inputs = "perplexity", { "losses", "weights" }
M.perplexity = Perplexity
function Perplexity:_compute()
  local loss = self:_mean()
  return { perplexity = math.exp(loss), loss = loss }
end

local function errors(title, name, measure, opts, finish)
  local Class = class(title, Mean)
  Class.name, Class.inputs, Class.optional_inputs, Class.OPTIONS = name, { "predictions", "references" }, 0,
    opts
  function Class:_add(prediction, reference)
    self:_put(measure(check_number(self, prediction) - check_number(self, reference)))
  end
  function Class:_compute(o) return { [name] = finish(self:_mean(), o) } end
  M[name] = Class
end

--- Mean squared error: { mse = }. squared = false: its root.
errors("MSE", "mse", function(d) return d * d end, { squared = { "boolean", default = true } },
  function(mean, o) return o.squared and mean or math.sqrt(mean) end)
--- Mean absolute error: { mae = }.
errors("MAE", "mae", math.abs, {}, function(mean) return mean end)

--- Pearson's correlation coefficient: { pearsonr = }.
---@class accelerate.Pearson: accelerate.Metric
local Pearson = class("Pearson", Metric)
Pearson.name, Pearson.OPTIONS = "pearsonr", {}
M.pearsonr = Pearson

function Pearson:_reset() self._n, self._mx, self._my, self._xx, self._yy, self._xy = 0, 0, 0, 0, 0, 0 end
function Pearson:_empty() return self._n == 0 end
function Pearson:_add(x, y) -- Welford's update
  x, y = check_number(self, x), check_number(self, y)
  self._n = self._n + 1
  local dx, dy = x - self._mx, y - self._my
  self._mx, self._my = self._mx + dx / self._n, self._my + dy / self._n
  self._xx, self._yy = self._xx + dx * (x - self._mx), self._yy + dy * (y - self._my)
  self._xy = self._xy + dx * (y - self._my)
end
function Pearson:_compute() return { pearsonr = self._xy / math.sqrt(self._xx * self._yy) } end

return M
