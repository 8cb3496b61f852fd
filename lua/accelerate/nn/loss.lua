--- Losses as modules. Each is called with input and target; `reduction` is "mean" (the default),
--- "sum" or "none".

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local positions = require "accelerate.utils.positions"
local Module = require "accelerate.nn.module"
local functional = require "accelerate.nn.functional"
local reduction = require "accelerate.nn.reduction"

local M = {}

local REDUCTION = { "string", default = "mean", one_of = { "mean", "sum", "none" } }
local WEIGHT = { "tensor", optional = true }

--- Makes a loss class over the op fn(input, target, ...).
---@param title string
---@param fn function
---@param order string[] its options in the order of the op's arguments (four at most)
---@param schema table what options.check wants of them; tensors become buffers, as in PyTorch
---@param extra? fun(self): string what print shows
local function loss(title, fn, order, schema, extra)
  local Class = class(title, Module)
  Class._builtin = true
  schema.reduction = schema.reduction or REDUCTION
  function Class:init(opts)
    local o = options.check(title, reduction.settle(title, opts), schema)
    for _, key in ipairs(order) do
      if schema[key] ~= WEIGHT then self[key] = o[key]
      elseif o[key] then self:register_buffer(key, o[key]) end
    end
  end
  local a, b, c, d = unpack(order)
  function Class:forward(input, target)
    if d then return self:_run(fn, input, target, self[a], self[b], self[c], self[d]) end
    if c then return self:_run(fn, input, target, self[a], self[b], self[c]) end
    if b then return self:_run(fn, input, target, self[a], self[b]) end
    return self:_run(fn, input, target, self[a])
  end
  rawset(Class, "forward", positions.arrange(title, "input target ...", Class.forward, true))
  if extra then Class.extra_repr = extra end
  M[title] = Class
end

--- -log softmax(input)[target]: input (N, C, ..) or (C); target int64 class labels (counted from 0)
--- of shape (N, ..), or class probabilities of input's shape. Labels equal to ignore_index add
--- nothing, and mean divides by the weights of the others. Options: weight (one for each class),
--- ignore_index = -100, label_smoothing = 0.
---@class accelerate.nn.CrossEntropyLoss : accelerate.nn.Module
loss("CrossEntropyLoss", core.cross_entropy, { "weight", "ignore_index", "reduction", "label_smoothing" }, {
  weight = WEIGHT, ignore_index = { "integer", default = -100 },
  label_smoothing = { "number", default = 0, min = 0, max = 1 },
}, function(self) return self.ignore_index == -100 and ""
  or ("ignore_index=%d"):format(self.ignore_index) end)

--- -input[target] of log-probabilities, as LogSoftmax gives them. Options: weight, ignore_index
--- (default -100).
---@class accelerate.nn.NLLLoss : accelerate.nn.Module
loss("NLLLoss", core.nll_loss, { "weight", "ignore_index", "reduction" },
  { weight = WEIGHT, ignore_index = { "integer", default = -100 } })

--- (input - target)^2; the shapes must be the same.
---@class accelerate.nn.MSELoss : accelerate.nn.Module
loss("MSELoss", core.mse_loss, { "reduction" }, {})

--- |input - target|.
---@class accelerate.nn.L1Loss : accelerate.nn.Module
loss("L1Loss", core.l1_loss, { "reduction" }, {})

--- Square near 0, straight from beta on: (x - t)^2 / (2 beta), else |x - t| - beta / 2. Options:
--- beta = 1.
---@class accelerate.nn.SmoothL1Loss : accelerate.nn.Module
loss("SmoothL1Loss", core.smooth_l1_loss, { "reduction", "beta" },
  { beta = { "number", default = 1, min = 0 } })

--- delta times SmoothL1Loss with beta = delta. Options: delta = 1.
---@class accelerate.nn.HuberLoss : accelerate.nn.Module
loss("HuberLoss", core.huber_loss, { "reduction", "delta" }, { delta = { "number", default = 1, above = 0 } })

--- Binary cross-entropy of probabilities in 0..1. Options: weight, broadcast.
---@class accelerate.nn.BCELoss : accelerate.nn.Module
loss("BCELoss", core.binary_cross_entropy, { "weight", "reduction" }, { weight = WEIGHT })

--- Binary cross-entropy of sigmoid(input), computed without overflow. Options: weight; pos_weight,
--- a factor for positive targets; both broadcast.
---@class accelerate.nn.BCEWithLogitsLoss : accelerate.nn.Module
loss("BCEWithLogitsLoss", core.binary_cross_entropy_with_logits, { "weight", "reduction", "pos_weight" },
  { weight = WEIGHT, pos_weight = WEIGHT })

--- target (log target - input) of log-probabilities. "mean" is over elements; "batchmean" over the
--- first dim, the true divergence. Options: log_target = false.
---@class accelerate.nn.KLDivLoss : accelerate.nn.Module
loss("KLDivLoss", core.kl_div, { "reduction", "log_target" }, {
  log_target = { "boolean", default = false },
  reduction = { "string", default = "mean", one_of = { "mean", "sum", "none", "batchmean" } },
})

--- Modules over losses of two inputs and labels of 1 or -1, or of three inputs, by their names:
--- functions of nn.functional.
local function of_functional(title, name, schema, inputs)
  local _, count = inputs:gsub("%S+", "")
  local Class = class(title, Module)
  Class._builtin = true
  schema.reduction = REDUCTION
  function Class:init(opts)
    local o = options.check(title, reduction.settle(title, opts), schema)
    for key, value in pairs(o) do self[key] = value end
  end
  function Class:forward(a, b, c)
    local o, values = {}, self._values
    for key in next, schema do o[key] = values[key] end
    if count == 3 then return self:_run(functional[name], a, b, c, o) end
    return self:_run(functional[name], a, b, o)
  end
  positions.forward(title, Class, inputs)
  M[title] = Class
end
local function num(default) return { "number", default = default } end

--- The input where the target is 1, max(0, margin - input) where it is -1; margin = 1.
of_functional("HingeEmbeddingLoss", "hinge_embedding_loss", { margin = num(1) }, "input target")
--- log(1 + exp(-target * input)), targets 1 or -1.
of_functional("SoftMarginLoss", "soft_margin_loss", {}, "input target")
--- max(0, -target * (input1 - input2) + margin): called with input1, input2 and targets of 1 or -1;
--- margin = 0.
of_functional("MarginRankingLoss", "margin_ranking_loss", { margin = num(0) }, "input1 input2 target")
--- 1 - cosine(input1, input2) where the target is 1, max(0, cosine - margin) where it is -1; margin
--- = 0.
of_functional("CosineEmbeddingLoss", "cosine_embedding_loss", { margin = num(0) }, "input1 input2 target")
--- max(0, d(anchor, positive) - d(anchor, negative) + margin) with the p-norm of the difference as
--- d; margin = 1, p = 2.
of_functional("TripletMarginLoss", "triplet_margin_loss", { margin = num(1), p = num(2), eps = num(1e-6),
  swap = { "boolean", default = false } }, "anchor positive negative")
--- The mean over the classes of max(0, margin - input[target] + input[i])^p; p = 1, margin = 1,
--- weight: one for each class.
of_functional("MultiMarginLoss", "multi_margin_loss",
  { p = { "integer", default = 1 }, margin = num(1), weight = WEIGHT }, "input target")
--- The sum of max(0, 1 - input[t] + input[i]) over targets t and other classes i, divided by the
--- number of classes.
of_functional("MultiLabelMarginLoss", "multilabel_margin_loss", {}, "input target")
--- The mean over the classes of the binary cross-entropy of sigmoid(input); weight: one for each
--- class.
of_functional("MultiLabelSoftMarginLoss", "multilabel_soft_margin_loss", { weight = WEIGHT }, "input target")
--- exp(input) - target * input, or input - target * log(input + eps) with log_input = false; full =
--- true adds Stirling's term.
of_functional("PoissonNLLLoss", "poisson_nll_loss",
  { log_input = { "boolean", default = true }, full = { "boolean", default = false }, eps = num(1e-8) },
  "log_input target")
--- (log(max(var, eps)) + (input - target)^2 / max(var, eps)) / 2: called with input, target and
--- var; full = true adds log(2 pi) / 2.
of_functional("GaussianNLLLoss", "gaussian_nll_loss",
  { full = { "boolean", default = false }, eps = num(1e-6) }, "input target var")

-- The distance must be a function or a module of its own.
local WithDistance = class("TripletMarginWithDistanceLoss", Module)
WithDistance._builtin = true
local WITH_DISTANCE = { distance_function = { "function|table", optional = true }, margin = num(1),
  swap = { "boolean", default = false }, reduction = REDUCTION }

--- max(0, d(anchor, positive) - d(anchor, negative) + margin) with a distance of your own. Options:
--- distance_function (a function or a module, default nn.PairwiseDistance), margin = 1, swap =
--- false.
---@class accelerate.nn.TripletMarginWithDistanceLoss : accelerate.nn.Module
M.TripletMarginWithDistanceLoss = WithDistance

---@param opts? { distance_function: function|accelerate.nn.Module, margin: number, swap: boolean,
---  reduction: "mean"|"sum"|"none" }
function WithDistance:init(opts)
  local o = options.check("TripletMarginWithDistanceLoss", opts, WITH_DISTANCE)
  self.margin, self.swap, self.reduction = o.margin, o.swap, o.reduction
  self.distance_function = o.distance_function or require("accelerate.nn.distance").PairwiseDistance()
end

function WithDistance:forward(anchor, positive, negative)
  local v = self._values
  return self:_run(functional.triplet_margin_with_distance_loss, anchor, positive, negative,
    { distance_function = v.distance_function, margin = v.margin, swap = v.swap, reduction = v.reduction })
end

positions.forward("TripletMarginWithDistanceLoss", WithDistance, "anchor positive negative")

local CTCLoss = class("CTCLoss", Module)
CTCLoss._builtin = true

--- -log of the probability that log_probs read the targets, with blanks and repetitions taken out:
--- `loss(log_probs, targets, input_lengths, target_lengths)`, as F.ctc_loss. Options: blank = 0,
--- zero_infinity = false.
---@class accelerate.nn.CTCLoss : accelerate.nn.Module
M.CTCLoss = CTCLoss

---@param opts? { blank: integer, reduction: "mean"|"sum"|"none", zero_infinity: boolean }
function CTCLoss:init(opts)
  local o = options.check("CTCLoss", opts, { blank = { "integer", default = 0, min = 0 },
    reduction = REDUCTION, zero_infinity = { "boolean", default = false } })
  self.blank, self.reduction, self.zero_infinity = o.blank, o.reduction, o.zero_infinity
end

function CTCLoss:forward(log_probs, targets, input_lengths, target_lengths)
  local v = self._values
  return self:_run(functional.ctc_loss, log_probs, targets, input_lengths, target_lengths,
    { blank = v.blank, reduction = v.reduction, zero_infinity = v.zero_infinity })
end

positions.forward("CTCLoss", CTCLoss, "log_probs targets input_lengths target_lengths")

return M
