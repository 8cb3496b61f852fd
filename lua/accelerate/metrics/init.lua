--- Metrics, under the names of Hugging Face's `evaluate`.
---
---   local metrics = require "accelerate.metrics"
---   local metric = metrics.load "accuracy"      -- metrics.load("glue", "mrpc"): accuracy and f1
---   for x, y in loader:iter() do
---     local predictions, references =
---       unpack(accelerator:gather_for_metrics { model(x):argmax(2), y })
---     metric:add_batch(predictions, references)
---   end
---   print(metric:compute().accuracy)
---
--- A metric takes tensors, lists or single values, and keeps counts and sums only. On several ranks
--- pass it the results of gather_for_metrics: every rank then computes one value.
local class = require "accelerate.utils.class"
local classification = require "accelerate.metrics.classification"
local Metric = require "accelerate.metrics.metric"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local regression = require "accelerate.metrics.regression"

local fail, show = options.fail, options.show

local M = { Metric = Metric }

local BY_NAME = {}
for _, family in ipairs { classification, regression } do
  for name, Class in pairs(family) do
    if type(Class) == "table" and class.derives(Class, Metric) and rawget(Class, "name") then
      BY_NAME[name] = Class
    end
  end
end
for name, Class in pairs(BY_NAME) do M[name], M[Class.__name] = Class, Class end -- metrics.f1, metrics.F1

-- Metrics of GLUE's tasks.
local GLUE = {
  cola = { "matthews_correlation" }, mrpc = { "accuracy", "f1" }, qqp = { "accuracy", "f1" },
  sst2 = { "accuracy" },
  mnli = { "accuracy" }, mnli_matched = { "accuracy" }, mnli_mismatched = { "accuracy" },
  qnli = { "accuracy" }, rte = { "accuracy" },
  wnli = { "accuracy" }, hans = { "accuracy" },
}

--- Several metrics over the same values.
---@class accelerate.CombinedMetric
local Combined = class("CombinedMetric")

function Combined:init(list)
  self.metrics = {}
  for k, metric in ipairs(list) do self.metrics[k] = type(metric) == "string" and M.load(metric) or metric end
end
function Combined:add_batch(...)
  for _, metric in ipairs(self.metrics) do metric:add_batch(...) end
end
Combined.add = Combined.add_batch

--- Returns what was added so far to each metric, as plain data.
---@return table
function Combined:state_dict()
  local list = {}
  for i, metric in ipairs(self.metrics) do list[i] = metric:state_dict() end
  return { metrics = list }
end

--- Takes what state_dict returned in the place of what was added so far.
---@param saved table
function Combined:load_state_dict(saved)
  local list = type(saved) == "table" and saved.metrics
  if type(list) ~= "table" or #list ~= #self.metrics then
    fail("load_state_dict: expected the state of %d metrics, got %s", #self.metrics,
      type(list) == "table" and #list or show(saved))
  end
  for i, metric in ipairs(self.metrics) do metric:load_state_dict(list[i]) end
end

--- Returns all results in one table. Each option goes to the metrics that have it.
function Combined:compute(opts)
  local result = {}
  for name in pairs(opts or {}) do
    local known = name == "predictions" or name == "references"
    for _, metric in ipairs(self.metrics) do known = known or metric.OPTIONS[name] ~= nil end
    if not known then fail("compute: unknown option '%s'", tostring(name)) end
  end
  for _, metric in ipairs(self.metrics) do
    local own = {}
    for name, value in pairs(opts or {}) do
      if name == "predictions" or name == "references" or metric.OPTIONS[name] then own[name] = value end
    end
    for name, value in pairs(metric:compute(own)) do result[name] = value end
  end
  return result
end

--- Combines several metrics into one: `metrics.combine { "accuracy", "f1" }`.
---@param list (string|accelerate.Metric)[]
function M.combine(list)
  if type(list) ~= "table" or #list == 0 then
    fail("combine: expected a list of metrics, got %s", show(list))
  end
  return Combined(list)
end

--- Returns a metric by name: accuracy, precision, recall, f1, confusion_matrix,
--- matthews_correlation, mean, perplexity, mse, mae, pearsonr; or the metrics of a GLUE task:
--- `load("glue", "mrpc")`.
---@param name string
---@param config? string|table the task of GLUE; else options of the metric, which compute takes,
---  too
function M.load(name, config)
  if name == "glue" then
    if not GLUE[config] then
      fail("load: glue has no task %s%s", show(config), options.hint(config, ordered.sorted_keys(GLUE)))
    end
    return Combined(GLUE[config])
  end
  local Class = BY_NAME[name]
  if not Class then
    fail("load: there is no metric %s%s", show(name), options.hint(name, ordered.sorted_keys(BY_NAME)))
  end
  return Class(config)
end

return require("accelerate.utils.properties").strict("accelerate.metrics", M)
