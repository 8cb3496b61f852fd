--- nn.functional: losses built from ops.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local distance = require "accelerate.nn.functional.distance"

local F = {}

local REDUCTION = { "string", default = "mean", one_of = { "mean", "sum", "none" } }
local function num(default) return { "number", default = default } end

local function reduce(x, how)
  if how == "none" then return x end
  return how == "sum" and x:sum() or x:mean()
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
  return reduce((target * (input2 - input1) + o.margin):clamp { min = 0 }, o.reduction)
end

--- Computes 1 - cos where target is 1, max(0, cos - margin) where it is -1; inputs (N, D) or (D).
---@param input1 accelerate.Tensor
---@param input2 accelerate.Tensor
---@param target accelerate.Tensor of 1 and -1
---@param opts? { margin: number, reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor
function F.cosine_embedding_loss(input1, input2, target, opts)
  local o = options.check("cosine_embedding_loss", opts, { margin = num(0), reduction = REDUCTION })
  local cos = distance.cosine_similarity(input1, input2, { dim = -1, eps = 1e-12 })
  return reduce(core.where(target:eq(1), 1 - cos, (cos - o.margin):clamp { min = 0 }), o.reduction)
end

--- Computes max(0, |anchor - positive| - |anchor - negative| + margin), where |.| is the p-norm
--- along the last dim.
---@param anchor accelerate.Tensor
---@param positive accelerate.Tensor
---@param negative accelerate.Tensor
---@param opts? { margin: number, p: number, eps: number, reduction: "mean"|"sum"|"none" }
---@return accelerate.Tensor
function F.triplet_margin_loss(anchor, positive, negative, opts)
  local o = options.check("triplet_margin_loss", opts,
    { margin = num(1), p = num(2), eps = num(1e-6), reduction = REDUCTION })
  local by = { p = o.p, eps = o.eps }
  local gap = distance.pairwise_distance(anchor, positive, by) - distance.pairwise_distance(anchor, negative,
    by) + o.margin
  return reduce(gap:clamp { min = 0 }, o.reduction)
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
  local x = o.log_input and input:exp() - target * input or input - target * (input + o.eps):log()
  if o.full then
    local many = target:clamp { min = 1 }  -- keeps the logarithm of unused elements finite
    x = x + core.where(target:gt(1), target * many:log() - target + 0.5 * (2 * math.pi * many):log(), 0)
  end
  return reduce(x, o.reduction)
end

local function text(t) return ("[%s]"):format(table.concat(t.shape, ", ")) end

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
      "last dim; got %s", text(input), text(var))
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
  local x = 0.5 * (floor:log() + (input - target):square() / floor)
  if o.full then x = x + 0.5 * math.log(2 * math.pi) end
  return reduce(x, o.reduction)
end

return F
