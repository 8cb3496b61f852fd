--- nn.functional: losses built from ops.

local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local distance = require "accelerate.nn.functional.distance"

local F = {}

local REDUCTION = { "string", default = "mean", one_of = { "mean", "sum", "none" } }
local function num(default) return { "number", default = default } end

local function reduce(x, how)
  if how == "none" then return x end
  return how == "sum" and x:sum() or x:mean()
end

local SWAP = { "boolean", default = false }

local function triplet(where, between, anchor, positive, negative, o)
  if not (o.margin > 0) then options.fail("%s: margin must be above 0, got %g", where, o.margin) end
  local far = between(anchor, negative)
  if o.swap then far = far:minimum(between(positive, negative)) end
  return reduce((between(anchor, positive) - far + o.margin):clamp { min = 0 }, o.reduction)
end

-- Integers as float32: PyTorch's margins are floating-point numbers.
local function of_float(x)
  return (core._is_float(x) or x:is_complex()) and x or x:float()
end

--- Computes x where target is 1, max(0, margin - x) where it is -1.
---@param input accelerate.Tensor
---@param target accelerate.Tensor of 1 and -1
---@param opts? { margin: number, reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor
function F.hinge_embedding_loss(input, target, opts)
  local o = options.check("hinge_embedding_loss", opts, { margin = num(1), reduction = REDUCTION })
  local far = core.where(target:ne(1), (o.margin - input):clamp { min = 0 }, 0)
  local near = core.where(target:ne(-1), input, 0)
  return reduce(far + near, o.reduction)
end

--- Computes log(1 + exp(-target input)).
---@param input accelerate.Tensor
---@param target accelerate.Tensor of 1 and -1
---@param opts? { reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor
function F.soft_margin_loss(input, target, opts)
  local o = options.check("soft_margin_loss", opts, { reduction = REDUCTION })
  return reduce(-core.logsigmoid(target * input), o.reduction)
end

--- Computes max(0, -target (input1 - input2) + margin).
---@param input1 accelerate.Tensor
---@param input2 accelerate.Tensor
---@param target accelerate.Tensor of 1 and -1
---@param opts? { margin: number, reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor
function F.margin_ranking_loss(input1, input2, target, opts)
  local o = options.check("margin_ranking_loss", opts, { margin = num(0), reduction = REDUCTION })
  local ahead = target * (input2 - input1)
  return reduce((of_float(ahead) + o.margin):clamp { min = 0 }, o.reduction)
end

-- The cosines of the rows of two tensors: of float32 and float64 by three sums, which leave less to
-- compute backwards than the rows' directions.
local function cosine(a, b)
  local function wide(x) return core.is_tensor(x) and (x.dtype == "float32" or x.dtype == "float64") end
  local alike = wide(a) and wide(b) and a.ndim > 0 and table.concat(a.shape, ",") == table.concat(b.shape,
    ",")
  if not alike then
    return distance.cosine_similarity(a, b, { dim = -1, eps = 1e-12 })
  end
  local function length(x) return (x:square():sum(-1) + 1e-12):sqrt() end
  return (a * b):sum(-1) / (length(a) * length(b))
end

--- Computes 1 - cos where target is 1, max(0, cos - margin) where it is -1; inputs (N, D) or (D).
---@param input1 accelerate.Tensor
---@param input2 accelerate.Tensor
---@param target accelerate.Tensor of 1 and -1
---@param opts? { margin: number, reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor
function F.cosine_embedding_loss(input1, input2, target, opts)
  local o = options.check("cosine_embedding_loss", opts, { margin = num(0), reduction = REDUCTION })
  local cos = cosine(of_float(input1), of_float(input2))
  local each = core.where(target:eq(1), 1 - cos, (cos - o.margin):clamp { min = 0 })
  return reduce(each, o.reduction)
end

--- Computes max(0, |anchor - positive| - |anchor - negative| + margin), where |.| is the p-norm
--- along the last dim.
---@param anchor accelerate.Tensor
---@param positive accelerate.Tensor
---@param negative accelerate.Tensor
---@param opts? { margin: number, p: number, eps: number, swap: boolean, reduction:
---  "mean"|"sum"|"none" } swap: |positive - negative| where it is smaller than |anchor - negative|
---@return accelerate.Tensor
function F.triplet_margin_loss(anchor, positive, negative, opts)
  local o = options.check("triplet_margin_loss", opts,
    { margin = num(1), p = num(2), eps = num(1e-6), swap = SWAP, reduction = REDUCTION })
  local by = { p = o.p, eps = o.eps }
  local function between(a, b) return distance.pairwise_distance(a, b, by) end
  return triplet("triplet_margin_loss", between, anchor, positive, negative, o)
end

--- triplet_margin_loss with a distance of your own.
---@param anchor accelerate.Tensor
---@param positive accelerate.Tensor
---@param negative accelerate.Tensor
---@param opts? { distance_function: fun(a: accelerate.Tensor, b: accelerate.Tensor):
---  accelerate.Tensor, margin: number, swap: boolean, reduction: "mean"|"sum"|"none" } the distance
---  is pairwise_distance by default
---@return accelerate.Tensor
function F.triplet_margin_with_distance_loss(anchor, positive, negative, opts)
  local o = options.check("triplet_margin_with_distance_loss", opts, {
    distance_function = { "function|table", default = distance.pairwise_distance }, margin = num(1),
    swap = SWAP,
    reduction = REDUCTION,
  })
  return triplet("triplet_margin_with_distance_loss", o.distance_function, anchor, positive, negative, o)
end

-- (n, c) or (c), and positions of classes of shape (n) or () beside it.
local function check_classes(where, input, target, shape)
  if not core.is_tensor(input) or input.ndim < 1 or input.ndim > 2 then
    options.fail("%s: input: expected (n, classes) or (classes), got %s", where, options.show(input))
  end
  if not core.is_tensor(target) or target.dtype ~= "int64"
    or not lists.same(target.shape, shape) then
    options.fail("%s: target: expected int64 of shape %s, got %s", where, lists.shape_text(shape),
      options.show(target))
  end
end

-- PyTorch takes a number for one class, and (classes) with a target of shape (1) for a batch of
-- one.
local function with_classes(input, target)
  if not core.is_tensor(input) or not core.is_tensor(target) or input.ndim > 1 then return input, target end
  if lists.same(target.shape, { 1 }) then return input:reshape(1, -1), target end
  return input.ndim == 0 and input:view(1) or input, target
end

--- Computes the mean over the classes of weight[target] max(0, margin - input[target] +
--- input[i])^p, where i is not the target.
---@param input accelerate.Tensor (n, classes) or (classes)
---@param target accelerate.Tensor int64 (n), or () or (1) beside (classes): classes, from 0
---@param opts? { p: number, margin: number, weight: accelerate.Tensor, reduction:
---  "mean"|"sum"|"none" } weight (classes)
---@return accelerate.Tensor
function F.multi_margin_loss(input, target, opts)
  local o = options.check("multi_margin_loss", opts, { p = { "integer", default = 1, min = 1, max = 2 },
    margin = num(1), weight = { "tensor", optional = true }, reduction = REDUCTION })
  input, target = with_classes(input, target)
  check_classes("multi_margin_loss", input, target, input.ndim == 2 and { input.shape[1] } or {})
  local index = target:unsqueeze(-1)
  local short = (o.margin - input:gather(-1, index) + input):clamp { min = 0 }
  if o.p == 2 then short = short:square() end
  if o.weight then short = short * o.weight:index_select(1, target:reshape(-1)):view(index.shape) end
  return reduce(short:scatter(-1, index, 0):mean(-1), o.reduction)
end

--- Computes the sum over targets t and other classes i of max(0, 1 - input[t] + input[i]), divided
--- by the number of classes.
---@param input accelerate.Tensor (n, classes) or (classes)
---@param target accelerate.Tensor int64 of its shape: classes, from 0, up to the first -1
---@param opts? { reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor
function F.multilabel_margin_loss(input, target, opts)
  local o = options.check("multilabel_margin_loss", opts, { reduction = REDUCTION })
  if core.is_tensor(input) and core.is_tensor(target) and input.ndim == 0 and target.ndim == 0 then
    input, target = input:view(1), target:view(1)
  end
  check_classes("multilabel_margin_loss", input, target, input.shape)
  local valid = target:lt(0):to("int64"):cumsum(-1):eq(0)
  local index = target:clamp { min = 0 }
  local named = core.zeros_like(input):scatter_add(-1, index, valid:to(input.dtype)):ne(0)
  local gap = (1 - input:gather(-1, index):unsqueeze(-1) + input:unsqueeze(-2)):clamp { min = 0 }
  local counts = valid:unsqueeze(-1):logical_and(named:logical_not():unsqueeze(-2))
  return reduce(core.where(counts, gap, 0):sum({ -2, -1 }) / input:size(-1), o.reduction)
end

--- Computes the mean over the classes of the binary cross-entropy of sigmoid(input).
---@param input accelerate.Tensor (.., classes)
---@param target accelerate.Tensor of its shape, 0 or 1
---@param opts? { weight: accelerate.Tensor, reduction: "mean"|"sum"|"none" } weight (classes)
---@return accelerate.Tensor
function F.multilabel_soft_margin_loss(input, target, opts)
  local o = options.check("multilabel_soft_margin_loss", opts, { weight = { "tensor", optional = true },
    reduction = REDUCTION })
  local positive = target * core.logsigmoid(input)
  local each = -(positive + (1 - target) * core.logsigmoid(-input))
  if o.weight then each = each * o.weight end
  return reduce(each:mean(-1), o.reduction)
end

--- Computes exp(input) - target input, or without log_input input - target log(input + eps). `full`
--- adds Stirling's term for targets above 1.
---@param input accelerate.Tensor
---@param target accelerate.Tensor counts
---@param opts? { log_input: boolean, full: boolean, eps: number, reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor
function F.poisson_nll_loss(input, target, opts)
  local o = options.check("poisson_nll_loss", opts, {
    log_input = { "boolean", default = true }, full = { "boolean", default = false }, eps = num(1e-8),
    reduction = REDUCTION,
  })
  local seen = target * (o.log_input and input or (input + o.eps):log())
  local x = (o.log_input and input:exp() or input) - seen
  if o.full then
    local many = target:clamp { min = 1 }  -- keeps the logarithm of unused elements finite
    x = x + core.where(target:gt(1), target * many:log() - target + 0.5 * (2 * math.pi * many):log(), 0)
  end
  return reduce(x, o.reduction)
end

-- Returns var as a tensor that broadcasts with input. var has input's shape, or one dim of size 1,
-- or lacks the last dim (one variance for each row). Other shapes are ambiguous: for (n, n) and (n)
-- either dim could be meant. As in PyTorch.
local function variance(input, var)
  if type(var) == "number" then return core.full_like(input, var) end
  if not core.is_tensor(var) then
    options.fail("gaussian_nll_loss: var must be a tensor or a number, got %s", options.show(var))
  end
  local shape, given, differ = input.shape, var.shape, 0
  if #given == #shape - 1 then
    for d = 1, #given do differ = differ + (given[d] == shape[d] and 0 or 2) end
    if differ == 0 then return var:unsqueeze(-1) end
  end
  for d = 1, #shape do differ = differ + (given[d] == shape[d] and 0 or given[d] == 1 and 1 or 2) end
  if #given ~= #shape or differ > 1 then
    options.fail("gaussian_nll_loss: var must have the shape of input %s, a size of 1 in one dim, or no " ..
      "last dim; got %s", lists.shape_text(input), lists.shape_text(var))
  end
  return var
end

--- Computes (log v + (input - target)^2 / v) / 2 with v = max(var, eps). `full` adds log(2 pi) / 2.
---@param input accelerate.Tensor
---@param target accelerate.Tensor
---@param var accelerate.Tensor|number positive variances: of input's shape, or with one size of 1,
---  or one for each row (no last dim)
---@param opts? { full: boolean, eps: number, reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor
function F.gaussian_nll_loss(input, target, var, opts)
  local o = options.check("gaussian_nll_loss", opts, { full = { "boolean", default = false }, eps = num(1e-6),
    reduction = REDUCTION })
  var = variance(input, var)
  local fixed = var:detach()
  if var.device == "cpu" and core.any(fixed:lt(0)):item() then
    options.fail("gaussian_nll_loss: var has entries below 0")
  end
  local floor = var + (fixed:clamp { min = o.eps } - fixed)  -- the gradient ignores the limit
  local miss = input - target
  local x = 0.5 * (floor:log() + miss:square() / floor)
  if o.full then x = x + 0.5 * math.log(2 * math.pi) end
  return reduce(x, o.reduction)
end

local CTC_ORDER = { "blank", "reduction", "zero_infinity" }
local CTC = { blank = { "integer", default = 0, min = 0 }, reduction = REDUCTION,
  zero_infinity = { "boolean", default = false } }

-- PyTorch takes int32 as well: cuDNN's kernel wants it there.
local function as_int64(given)
  return core.is_tensor(given) and given.dtype == "int32" and given:long() or given
end

-- Lengths as a tensor beside x; those of a GPU's sequences are often on the CPU.
local function lengths(name, given, x)
  if core.is_tensor(given) then return as_int64(given):to(x.device) end
  if type(given) ~= "number" and (type(given) ~= "table" or getmetatable(given) ~= nil) then
    options.fail("ctc_loss: %s: expected a list of integers or an int64 tensor, got %s", name,
      options.show(given))
  end
  return core.tensor(given, { dtype = "int64", device = x.device })
end

--- Computes -log of the probability that log_probs read the targets, with blanks and repetitions
--- taken out.
---@param log_probs accelerate.Tensor (t, n, classes) or (t, classes), as log_softmax gives them
---@param targets accelerate.Tensor int64 or int32 (n, longest), or those of all sequences in a row
---@param input_lengths accelerate.Tensor|integer[] one for each sequence, at most t
---@param target_lengths accelerate.Tensor|integer[]
---@param ... any blank = 0 (a class, from 0), reduction = "mean" (of loss / target length), "sum"
---  or "none", zero_infinity = false (true: a loss of infinity counts as 0), or a table of them
---@return accelerate.Tensor
function F.ctc_loss(log_probs, targets, input_lengths, target_lengths, ...)
  local o = options.check("ctc_loss", options.gather("ctc_loss", CTC_ORDER, ...), CTC)
  if not core.is_tensor(log_probs) then
    options.fail("ctc_loss: log_probs: expected a tensor, got %s", options.show(log_probs))
  end
  return core.ctc_loss(log_probs, as_int64(targets), lengths("input_lengths", input_lengths, log_probs),
    lengths("target_lengths", target_lengths, log_probs), o.blank, o.reduction, o.zero_infinity)
end

return F
