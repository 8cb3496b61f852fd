--- Parts of nn.functional that are written in ops: similarities, distances and the losses made of them.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local F = {}

local REDUCTION = { "string", default = "mean", one_of = { "mean", "sum", "none" } }
local function num(default) return { "number", default = default } end

local function reduce(x, how)
  if how == "none" then return x end
  return how == "sum" and x:sum() or x:mean()
end

local COSINE = { dim = { "integer", default = 2 }, eps = num(1e-8) }

--- The cosine of the angle between x1 and x2 along a dim (default 2); each norm counts as eps at least.
---@param x1 accelerate.Tensor
---@param x2 accelerate.Tensor broadcast with x1
---@param opts? { dim: integer, eps: number }
---@return accelerate.Tensor
function F.cosine_similarity(x1, x2, opts)
  local o = options.check("cosine_similarity", opts, COSINE)
  local a = x1 / x1:norm { dim = o.dim, keepdim = true }:clamp { min = o.eps }
  local b = x2 / x2:norm { dim = o.dim, keepdim = true }:clamp { min = o.eps }
  return (a * b):sum(o.dim)
end

local NORMALIZE = { p = num(2), dim = { "integer", default = 2 }, eps = num(1e-12) }

--- x over its p-norm along a dim (default 2), which counts as eps at least.
---@param x accelerate.Tensor
---@param opts? { p: number, dim: integer, eps: number }
---@return accelerate.Tensor
function F.normalize(x, opts)
  local o = options.check("normalize", opts, NORMALIZE)
  return x / x:norm { p = o.p, dim = o.dim, keepdim = true }:clamp { min = o.eps }
end

local DISTANCE = { p = num(2), eps = num(1e-6), keepdim = { "boolean", default = false } }

--- The p-norm of x1 - x2 + eps along the last dim.
---@param x1 accelerate.Tensor
---@param x2 accelerate.Tensor
---@param opts? { p: number, eps: number, keepdim: boolean }
---@return accelerate.Tensor
function F.pairwise_distance(x1, x2, opts)
  local o = options.check("pairwise_distance", opts, DISTANCE)
  return (x1 - x2 + o.eps):norm { p = o.p, dim = -1, keepdim = o.keepdim }
end

--- softmax(-x) along a dim.
---@param x accelerate.Tensor
---@param dim integer
---@return accelerate.Tensor
function F.softmin(x, dim) return (-x):softmax(dim) end

--- x where target is 1, max(0, margin - x) where it is -1.
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

--- log(1 + exp(-target input)).
---@param input accelerate.Tensor
---@param target accelerate.Tensor of 1 and -1
---@param opts? { reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor
function F.soft_margin_loss(input, target, opts)
  local o = options.check("soft_margin_loss", opts, { reduction = REDUCTION })
  return reduce(-core.logsigmoid(target * input), o.reduction)
end

--- max(0, -target (input1 - input2) + margin).
---@param input1 accelerate.Tensor
---@param input2 accelerate.Tensor
---@param target accelerate.Tensor of 1 and -1
---@param opts? { margin: number, reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor
function F.margin_ranking_loss(input1, input2, target, opts)
  local o = options.check("margin_ranking_loss", opts, { margin = num(0), reduction = REDUCTION })
  return reduce((target * (input2 - input1) + o.margin):clamp { min = 0 }, o.reduction)
end

--- 1 - cos where target is 1, max(0, cos - margin) where it is -1; inputs (N, D) or (D).
---@param input1 accelerate.Tensor
---@param input2 accelerate.Tensor
---@param target accelerate.Tensor of 1 and -1
---@param opts? { margin: number, reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor
function F.cosine_embedding_loss(input1, input2, target, opts)
  local o = options.check("cosine_embedding_loss", opts, { margin = num(0), reduction = REDUCTION })
  local cos = F.cosine_similarity(input1, input2, { dim = -1, eps = 1e-12 })
  return reduce(core.where(target:eq(1), 1 - cos, (cos - o.margin):clamp { min = 0 }), o.reduction)
end

--- max(0, |anchor - positive| - |anchor - negative| + margin), the distances being p-norms along the last dim.
---@param anchor accelerate.Tensor
---@param positive accelerate.Tensor
---@param negative accelerate.Tensor
---@param opts? { margin: number, p: number, eps: number, reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor
function F.triplet_margin_loss(anchor, positive, negative, opts)
  local o = options.check("triplet_margin_loss", opts, { margin = num(1), p = num(2), eps = num(1e-6), reduction = REDUCTION })
  local by = { p = o.p, eps = o.eps }
  local gap = F.pairwise_distance(anchor, positive, by) - F.pairwise_distance(anchor, negative, by) + o.margin
  return reduce(gap:clamp { min = 0 }, o.reduction)
end

--- exp(input) - target input, or input - target log(input + eps); `full` adds Stirling's term for targets above 1.
---@param input accelerate.Tensor
---@param target accelerate.Tensor counts
---@param opts? { log_input: boolean, full: boolean, eps: number, reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor
function F.poisson_nll_loss(input, target, opts)
  local o = options.check("poisson_nll_loss", opts, {
    log_input = { "boolean", default = true }, full = { "boolean", default = false }, eps = num(1e-8), reduction = REDUCTION,
  })
  local x = o.log_input and input:exp() - target * input or input - target * (input + o.eps):log()
  if o.full then
    local many = target:clamp { min = 1 }  -- so that the logarithm of what is not counted is finite
    x = x + core.where(target:gt(1), target * many:log() - target + 0.5 * (2 * math.pi * many):log(), 0)
  end
  return reduce(x, o.reduction)
end

--- (log var + (input - target)^2 / var) / 2, var being eps at least; `full` adds log(2 pi) / 2.
---@param input accelerate.Tensor
---@param target accelerate.Tensor
---@param var accelerate.Tensor positive variances, broadcast
---@param opts? { full: boolean, eps: number, reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor
function F.gaussian_nll_loss(input, target, var, opts)
  local o = options.check("gaussian_nll_loss", opts, { full = { "boolean", default = false }, eps = num(1e-6), reduction = REDUCTION })
  local floor = var + (var:detach():clamp { min = o.eps } - var:detach())  -- the gradient passes as if there were no limit
  local x = 0.5 * (floor:log() + (input - target):square() / floor)
  if o.full then x = x + 0.5 * math.log(2 * math.pi) end
  return reduce(x, o.reduction)
end

return F
