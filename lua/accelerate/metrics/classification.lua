--- Metrics over pairs of a predicted and a true label. They keep a count for each pair of labels,
--- so memory does not grow with the data. Values and options are scikit-learn's.
local class = require "accelerate.utils.class"
local Metric = require "accelerate.metrics.metric"
local options = require "accelerate.utils.options"

local fail, show = options.fail, options.show

local M = {}

--- Base class: counts of pairs.
local Pairs = class("Pairs", Metric)

function Pairs:_reset() self._counts, self._total = {}, 0 end
function Pairs:_empty() return self._total == 0 end

local function label_of(self, value)
  if type(value) == "boolean" then return value and 1 or 0 end
  if type(value) ~= "string" and (type(value) ~= "number" or value ~= value) then
    fail("%s: labels are numbers or strings, got %s", self.name, show(value))
  end
  return value
end

function Pairs:_add(prediction, reference)
  prediction, reference = label_of(self, prediction), label_of(self, reference)
  local row = self._counts[reference]
  if not row then
    row = {}
    self._counts[reference] = row
  end
  row[prediction] = (row[prediction] or 0) + 1
  self._total = self._total + 1
end

local function before(a, b)
  if type(a) ~= type(b) then return type(a) == "number" end
  return a < b
end

-- Returns the wanted labels, or all labels seen, sorted.
function Pairs:_labels(wanted)
  if wanted then return wanted end
  local seen, list = {}, {}
  local function add(label)
    if not seen[label] then
      seen[label] = true
      list[#list + 1] = label
    end
  end
  for reference, row in pairs(self._counts) do
    add(reference)
    for prediction in pairs(row) do add(prediction) end
  end
  table.sort(list, before)
  return list
end

-- Returns, for one label, the numbers of true positives, of predictions and of true labels.
function Pairs:_counts_of(label)
  local hits, predicted, actual = 0, 0, 0
  for reference, row in pairs(self._counts) do
    for prediction, n in pairs(row) do
      if prediction == label then predicted = predicted + n end
      if reference == label then actual = actual + n end
      if prediction == label and reference == label then hits = hits + n end
    end
  end
  return hits, predicted, actual
end

--- The share of labels that were predicted correctly: { accuracy = }. normalize = false: their
--- number.
---@class accelerate.Accuracy: accelerate.Metric
local Accuracy = class("Accuracy", Pairs)
Accuracy.name = "accuracy"
Accuracy.OPTIONS = { normalize = { "boolean", default = true } }
M.accuracy = Accuracy

function Accuracy:_compute(o)
  local right = 0
  for label, row in pairs(self._counts) do right = right + (row[label] or 0) end
  return { accuracy = o.normalize and right / self._total or right }
end

-- ---- precision, recall, F1

local AVERAGED = {
  average = { "string", default = "binary", one_of = { "binary", "micro", "macro", "weighted", "none" } },
  pos_label = { "number|string", default = 1 },
  labels = { "list", optional = true },
  zero_division = { "number", default = 0 },
}

local function ratio(a, b, otherwise)
  if b == 0 then return otherwise end
  return a / b
end

local FORMULA = {
  precision = function(hits, predicted, _, otherwise) return ratio(hits, predicted, otherwise) end,
  recall = function(hits, _, actual, otherwise) return ratio(hits, actual, otherwise) end,
  f1 = function(hits, predicted, actual, otherwise) return ratio(2 * hits, predicted + actual, otherwise) end,
}

local function check_binary(self, labels, o)
  local known = false
  for _, label in ipairs(labels) do known = known or label == o.pos_label end
  if #labels > 2 then
    fail("%s: there are %d labels; average = 'binary' is for two: choose macro, micro, weighted or none",
      self.name, #labels)
  end
  if not known and #labels == 2 then
    fail("%s: pos_label %s is none of the labels %s and %s", self.name, show(o.pos_label), show(labels[1]),
      show(labels[2]))
  end
end

local function averaged(name, self, o)
  local formula, labels = FORMULA[name], self:_labels(o.labels)
  if o.average == "binary" then
    check_binary(self, self:_labels(), o)
    local hits, predicted, actual = self:_counts_of(o.pos_label)
    return formula(hits, predicted, actual, o.zero_division)
  end
  local each, sum, weighted, support = {}, 0, 0, 0
  local all_hits, all_predicted, all_actual = 0, 0, 0
  for k, label in ipairs(labels) do
    local hits, predicted, actual = self:_counts_of(label)
    each[k] = formula(hits, predicted, actual, o.zero_division)
    sum, weighted, support = sum + each[k], weighted + each[k] * actual, support + actual
    all_hits, all_predicted, all_actual = all_hits + hits, all_predicted + predicted, all_actual + actual
  end
  if o.average == "none" then return each end
  if o.average == "macro" then return sum / #labels end
  if o.average == "weighted" then return ratio(weighted, support, o.zero_division) end
  return formula(all_hits, all_predicted, all_actual, o.zero_division)
end

local function averaged_metric(title, name)
  local Class = class(title, Pairs)
  Class.name, Class.OPTIONS = name, AVERAGED
  function Class:_compute(o) return { [name] = averaged(name, self, o) } end
  M[name] = Class
end

--- The share of a class's predictions that are correct, TP / (TP + FP): { precision = }. average:
--- "binary" (of pos_label, the default), "micro", "macro", "weighted", or "none" for one value for
--- each label.
averaged_metric("Precision", "precision")
--- The share of a class's items that were predicted, TP / (TP + FN): { recall = }. Options as for
--- Precision.
averaged_metric("Recall", "recall")
--- The harmonic mean of precision and recall: { f1 = }. Options as for Precision.
averaged_metric("F1", "f1")

-- ---- tables

--- Counts of true label i predicted as label j: { confusion_matrix = list of rows, labels = labels
--- of rows and columns }. normalize: shares of the true labels ("true"), of the predicted ones
--- ("pred") or of all ("all").
---@class accelerate.ConfusionMatrix: accelerate.Metric
local Confusion = class("ConfusionMatrix", Pairs)
Confusion.name = "confusion_matrix"
Confusion.OPTIONS = {
  labels = { "list", optional = true },
  normalize = { "string", optional = true, one_of = { "true", "pred", "all" } },
}
M.confusion_matrix = Confusion

function Confusion:_compute(o)
  local labels = self:_labels(o.labels)
  local matrix, rows, columns, all = {}, {}, {}, 0
  for i, reference in ipairs(labels) do
    matrix[i] = {}
    for j, prediction in ipairs(labels) do
      local n = self._counts[reference] and self._counts[reference][prediction] or 0
      matrix[i][j] = n
      rows[i], columns[j], all = (rows[i] or 0) + n, (columns[j] or 0) + n, all + n
    end
  end
  if o.normalize then
    for i = 1, #labels do
      for j = 1, #labels do
        matrix[i][j] = ratio(matrix[i][j], o.normalize == "true" and rows[i] or o.normalize == "pred"
          and columns[j] or all, 0)
      end
    end
  end
  return { confusion_matrix = matrix, labels = labels }
end

--- Matthews' correlation coefficient of predicted and true labels: { matthews_correlation = }.
---@class accelerate.MatthewsCorrelation: accelerate.Metric
local Matthews = class("MatthewsCorrelation", Pairs)
Matthews.name, Matthews.OPTIONS = "matthews_correlation", {}
M.matthews_correlation = Matthews

function Matthews:_compute()
  local right, both, predicted_squares, actual_squares, n = 0, 0, 0, 0, self._total
  for _, label in ipairs(self:_labels()) do
    local hits, predicted, actual = self:_counts_of(label)
    right, both = right + hits, both + predicted * actual
    predicted_squares, actual_squares = predicted_squares + predicted ^ 2, actual_squares + actual ^ 2
  end
  local spread = math.sqrt((n * n - predicted_squares) * (n * n - actual_squares))
  return { matthews_correlation = ratio(right * n - both, spread, 0) }
end

M.Pairs, M.averaged = Pairs, averaged

return M
