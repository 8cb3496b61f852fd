--- nn.AdaptiveLogSoftmaxWithLoss (Grave et al. 2016).

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local positions = require "accelerate.utils.positions"
local Module = require "accelerate.nn.module"
local containers = require "accelerate.nn.containers"
local Linear = require("accelerate.nn.linear").Linear

---@class accelerate.nn.AdaptiveLogSoftmaxWithLoss : accelerate.nn.Module
---@field head accelerate.nn.Linear (in_features -> the frequent classes and the clusters)
---@field tail accelerate.nn.ModuleList of two layers for each cluster
local Adaptive = class("AdaptiveLogSoftmaxWithLoss", Module)
Adaptive._builtin = true

local NAME = "AdaptiveLogSoftmaxWithLoss"
local SIZE = { "integer", min = 1 }
local OPTIONS = {
  div_value = { "number", default = 4, above = 0 },
  head_bias = { "boolean", default = false },
  dtype = { "string", optional = true },
  device = { "string", optional = true },
}

local function check_cutoffs(cutoffs, classes)
  options.value(NAME, "cutoffs", cutoffs, { "list" })
  if #cutoffs == 0 then options.fail("%s: cutoffs must have at least one entry", NAME) end
  local list = {}
  for i, cutoff in ipairs(cutoffs) do
    list[i] = options.value(NAME, ("cutoffs[%d]"):format(i), cutoff,
      { "integer", min = 1, max = classes - 1 })
    if i > 1 and cutoff <= list[i - 1] then
      options.fail("%s: cutoffs must rise: %d comes after %d", NAME, cutoff, list[i - 1])
    end
  end
  list[#list + 1] = classes
  return list
end

--- Log-probabilities of very many classes, sorted by falling frequency. The head has those below
--- the first cutoff and one place for each cluster between two cutoffs; a cluster has two smaller
--- layers, in_features / div_value^i wide, which are only computed for the rows that need them.
--- `output, loss = module(input, target)`: the log-probability of each row's class, and minus their
--- mean.
---@param in_features integer
---@param n_classes integer
---@param cutoffs integer[] rising, below n_classes
---@param opts? { div_value: number, head_bias: boolean, dtype: string, device: string } div_value =
---  4, head_bias = false
function Adaptive:init(in_features, n_classes, cutoffs, opts)
  local o = options.check(NAME, opts, OPTIONS)
  self.in_features = options.value(NAME, "in_features", in_features, SIZE)
  self.n_classes = options.value(NAME, "n_classes", n_classes, SIZE)
  self.cutoffs = check_cutoffs(cutoffs, n_classes)
  self.div_value, self.head_bias = o.div_value, o.head_bias
  self.shortlist_size, self.n_clusters = self.cutoffs[1], #self.cutoffs - 1
  self.head_size = self.shortlist_size + self.n_clusters
  local function layer(from, to, bias)
    return Linear(from, to, { bias = bias, dtype = o.dtype, device = o.device })
  end
  self.head = layer(in_features, self.head_size, o.head_bias)
  self.tail = containers.ModuleList()
  for i = 1, self.n_clusters do
    local inner = math.floor(in_features / o.div_value ^ i)
    if inner < 1 then
      options.fail("%s: cluster %d of %d would be %g wide: make div_value smaller", NAME, i, self.n_clusters,
        in_features / o.div_value ^ i)
    end
    self.tail:append(containers.Sequential(layer(in_features, inner, false),
      layer(inner, self.cutoffs[i + 1] - self.cutoffs[i], false)))
  end
end

--- Draws all layers' parameters anew.
function Adaptive:reset_parameters()
  self.head:reset_parameters()
  for _, cluster in ipairs(self.tail) do
    for _, layer in ipairs(cluster) do layer:reset_parameters() end
  end
end

local function check_input(self, input)
  if not core.is_tensor(input) or input.ndim < 1 or input.ndim > 2
    or input.shape[input.ndim] ~= self.in_features then
    error(("input: expected (n, %d) or (%d), got %s"):format(self.in_features, self.in_features,
      options.show(input)), 0)
  end
  return input.ndim == 1 and input:unsqueeze(1) or input
end

local function check_target(self, input, target)
  local fits = core.is_tensor(target) and target.dtype == "int64" and target.ndim == input.ndim - 1
    and (target.ndim == 0 or target.shape[1] == input.shape[1])
  if not fits then
    error(("target: expected int64 with a class for each row of %s, got %s"):format(options.show(input),
      options.show(target)), 0)
  end
  if target:numel() > 0 then
    local low, high = target:min():item(), target:max():item()
    if low < 0 or high >= self.n_classes then
      error(("target: class %d is outside 0..%d"):format(low < 0 and low or high, self.n_classes - 1), 0)
    end
  end
  return target:reshape(-1)
end

local function forward(self, input, target)
  local rows = check_input(self, input)
  local classes = check_target(self, input, target)
  local output = core.zeros({ rows.shape[1] }, { dtype = rows.dtype, device = rows.device })
  local places = classes -- in the head
  for i = 1, self.n_clusters do
    local low, high = self.cutoffs[i], self.cutoffs[i + 1]
    local chosen = core.nonzero(classes:ge(low):logical_and(classes:lt(high))):reshape(-1)
    if chosen:numel() > 0 then
      local cluster = self.tail[i](rows:index_select(1, chosen)):log_softmax(2)
      local own = (classes:index_select(1, chosen) - low):unsqueeze(2)
      output = output:index_add(1, chosen, cluster:gather(2, own):squeeze(2):to(output.dtype))
      places = places:index_fill(1, chosen, self.shortlist_size + i - 1)
    end
  end
  local head = self.head(rows):log_softmax(2)
  output = output + head:gather(2, places:unsqueeze(2)):squeeze(2)
  local loss = -output:mean()
  return input.ndim == 1 and output:squeeze(1) or output, loss
end

--- Returns the log-probability of each row's class, and minus the mean of them.
---@param input accelerate.Tensor (n, in_features) or (in_features)
---@param target accelerate.Tensor int64, (n) or of no dims
---@return accelerate.Tensor output of target's shape
---@return accelerate.Tensor loss 0-d
function Adaptive:forward(input, target) return self:_run(forward, self, input, target) end

local function all_log_prob(self, rows)
  local head = self.head(rows):log_softmax(2)
  local parts = { head:narrow(2, 1, self.shortlist_size) }
  for i = 1, self.n_clusters do
    parts[i + 1] = self.tail[i](rows):log_softmax(2) + head:select(2, self.shortlist_size + i):unsqueeze(2)
  end
  return core.cat(parts, 2)
end

--- Returns the log-probabilities of all classes.
---@param input accelerate.Tensor (n, in_features)
---@return accelerate.Tensor (n, n_classes)
function Adaptive:log_prob(input)
  return self:_run(function() return all_log_prob(self, check_input(self, input)) end)
end

--- Returns the most probable class of each row.
---@param input accelerate.Tensor (n, in_features) or (in_features)
---@return accelerate.Tensor int64, (n) or of no dims
function Adaptive:predict(input)
  local best = self:_run(function() return all_log_prob(self, check_input(self, input)):argmax(2) end)
  return input.ndim == 1 and best:squeeze(1) or best
end

positions.forward("AdaptiveLogSoftmaxWithLoss", Adaptive, "input target")

return { AdaptiveLogSoftmaxWithLoss = Adaptive }
