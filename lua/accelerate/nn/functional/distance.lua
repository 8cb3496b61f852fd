--- nn.functional: norms, distances, bilinear forms and a dropout, made of rows.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local M = {}

local function text(t) return ("[%s]"):format(table.concat(t.shape, ", ")) end

local function check(where, name, t)
  if not core.is_tensor(t) then options.fail("%s: %s must be a tensor, got %s", where, name, options.show(t)) end
end

local NORMALIZE = { p = { "number", default = 2 }, dim = { "integer|list", default = 2 }, eps = { "number", default = 1e-12, min = 0 } }

--- x / max(norm of x along dim, eps).
---@param x accelerate.Tensor
---@param opts? { p: number, dim: integer|integer[], eps: number } 2, 2 (the second dim), 1e-12
---@return accelerate.Tensor
function M.normalize(x, opts)
  local o = options.check("normalize", opts, NORMALIZE)
  check("normalize", "x", x)
  return x / core.norm(x, o.p, o.dim, true):clamp { min = o.eps }
end

local COSINE = { dim = { "integer", default = 2 }, eps = { "number", default = 1e-8, min = 0 } }

--- The cosine of the angle between x1 and x2 along dim: their product's sum over the product of their norms (each at least eps).
---@param x1 accelerate.Tensor
---@param x2 accelerate.Tensor broadcast against x1
---@param opts? { dim: integer, eps: number } 2, 1e-8
---@return accelerate.Tensor without dim
function M.cosine_similarity(x1, x2, opts)
  local o = options.check("cosine_similarity", opts, COSINE)
  check("cosine_similarity", "x1", x1)
  check("cosine_similarity", "x2", x2)
  local function unit(x) return x / core.norm(x, 2, o.dim, true):clamp { min = o.eps } end
  return core.sum(unit(x1) * unit(x2), o.dim)
end

local CDIST = { p = { "number", default = 2, min = 0 } }

--- The p-norm of each row of x1 minus each row of x2. Two equal rows have distance 0, and no gradient.
---@param x1 accelerate.Tensor (.., m, k)
---@param x2 accelerate.Tensor (.., n, k), leading dims broadcast
---@param opts? { p: number } 2
---@return accelerate.Tensor (.., m, n)
function M.cdist(x1, x2, opts)
  local o = options.check("cdist", opts, CDIST)
  check("cdist", "x1", x1)
  check("cdist", "x2", x2)
  if x1:dim() < 2 or x2:dim() < 2 or x1:size(-1) ~= x2:size(-1) then
    options.fail("cdist: expected (.., m, k) and (.., n, k), got %s and %s", text(x1), text(x2))
  end
  return core.norm(x1:unsqueeze(-2) - x2:unsqueeze(-3), o.p, -1)
end

local PAIRWISE = { p = { "number", default = 2 }, eps = { "number", default = 1e-6 }, keepdim = { "boolean", default = false } }

--- The p-norm of x1 - x2 + eps along the last dim.
---@param x1 accelerate.Tensor
---@param x2 accelerate.Tensor broadcast against x1
---@param opts? { p: number, eps: number, keepdim: boolean } 2, 1e-6, false
---@return accelerate.Tensor
function M.pairwise_distance(x1, x2, opts)
  local o = options.check("pairwise_distance", opts, PAIRWISE)
  check("pairwise_distance", "x1", x1)
  check("pairwise_distance", "x2", x2)
  return core.norm(x1 - x2 + o.eps, o.p, -1, o.keepdim)
end

--- y[.., o] = x1[.., :] weight[o] x2[.., :] + bias[o].
---@param x1 accelerate.Tensor (.., in1)
---@param x2 accelerate.Tensor (.., in2), the same leading dims
---@param weight accelerate.Tensor (out, in1, in2)
---@param bias? accelerate.Tensor (out)
---@return accelerate.Tensor (.., out)
function M.bilinear(x1, x2, weight, bias)
  check("bilinear", "x1", x1)
  check("bilinear", "x2", x2)
  check("bilinear", "weight", weight)
  if weight:dim() ~= 3 or x1:dim() < 1 or x1:size(-1) ~= weight:size(2) or x2:dim() ~= x1:dim() or x2:size(-1) ~= weight:size(3) then
    options.fail("bilinear: x1 %s and x2 %s do not fit weight %s (out, in1, in2)", text(x1), text(x2), text(weight))
  end
  local out, in1, in2 = unpack(weight.shape)
  local rows = x1.shape
  rows[#rows] = out
  rows[#rows + 1] = in2
  local half = core.linear(x1, weight:permute(1, 3, 2):reshape(out * in2, in1)):view(rows)  -- x1 W, for each output a vector against x2
  local y = core.sum(half * x2:unsqueeze(-2), -1)
  return bias and y + bias or y
end

--- softmax(-x) along a dim.
---@param x accelerate.Tensor
---@param dim integer
function M.softmin(x, dim)
  check("softmin", "x", x)
  return core.softmax(-x, dim)
end

-- running = (1 - momentum) running + momentum stat, with the samples' statistics averaged.
local function track(x, running_mean, running_var, momentum)
  core.no_grad(function()
    local rows = x:detach():flatten(3)
    running_mean:mul_(1 - momentum):add_(rows:mean(3):mean(1) * momentum)
    running_var:mul_(1 - momentum):add_(rows:var(3):mean(1) * momentum)
  end)
end

--- Normalises each channel of each sample of (n, c, ..) over the dims after it, then scales and shifts it.
---@param x accelerate.Tensor
---@param running_mean? accelerate.Tensor (c); moved towards the input's where that is used
---@param running_var? accelerate.Tensor (c)
---@param weight? accelerate.Tensor (c)
---@param bias? accelerate.Tensor (c)
---@param use_input_stats? boolean default true; false: running_mean and running_var are used
---@param momentum? number default 0.1
---@param eps? number default 1e-5
---@return accelerate.Tensor
function M.instance_norm(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
  if not core.is_tensor(x) or x:dim() < 3 then
    options.fail("instance_norm: x: expected a tensor (n, c, ..) of at least 3 dims, got %s", core.is_tensor(x) and text(x) or type(x))
  end
  if (running_mean == nil) ~= (running_var == nil) then options.fail("instance_norm: running_mean and running_var go together") end
  if use_input_stats == false then
    if not running_mean then options.fail("instance_norm: use_input_stats = false needs running_mean and running_var") end
    return core.batch_norm(x, running_mean, running_var, weight, bias, false, 0, eps or 1e-5)
  end
  local shape = x.shape
  if x:numel() == shape[1] * shape[2] then
    options.fail("instance_norm: a channel of one element has no variance to speak of (shape %s)", text(x))
  end
  if running_mean then track(x, running_mean, running_var, momentum or 0.1) end
  return core.group_norm(x, shape[2], weight, bias, eps or 1e-5)
end

local ALPHA = { p = { "number", default = 0.5, min = 0, max = 1 }, training = { "boolean", default = true }, generator = { "Generator", optional = true } }
local ALPHA_PRIME = 1.7580993408473766 -- SELU's scale times its alpha: what a dropped element becomes, negated

--- Dropout for SELU: what is dropped becomes SELU's lowest value, and the result is scaled and shifted so that mean and variance stay.
---@param x accelerate.Tensor
---@param opts? { p: number, training: boolean, generator: accelerate.Generator } 0.5, true
---@return accelerate.Tensor
function M.alpha_dropout(x, opts)
  local o = options.check("alpha_dropout", opts, ALPHA)
  check("alpha_dropout", "x", x)
  if not o.training or o.p == 0 then return x end
  if o.p == 1 then return x * 0 end
  local a = ((ALPHA_PRIME ^ 2 * o.p + 1) * (1 - o.p)) ^ -0.5
  local kept = core.dropout(core.ones_like(x), o.p, true, o.generator) * (1 - o.p)
  return x * (kept * a) + (kept - 1 + o.p) * (ALPHA_PRIME * a)
end

return M
