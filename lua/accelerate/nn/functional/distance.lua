--- nn.functional: norms, similarities, distances and bilinear forms, built from ops.

local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

local M = {}

local function check(where, name, t)
  if not core.is_tensor(t) then
    options.fail("%s: %s must be a tensor, got %s", where, name, options.show(t))
  end
end

-- Raises for a dim that x has not: the ops behind a function would name themselves instead.
local function check_dims(where, x, dims)
  local n = math.max(x:dim(), 1) -- a tensor of no dims is taken as a vector of one element
  for _, dim in ipairs(type(dims) == "table" and dims or { dims }) do
    if dim == 0 then options.fail("%s: dim: dims count from 1 (and from -1 backward); got 0", where) end
    if type(dim) == "number" and (dim > n or dim < -n) then
      options.fail("%s: dim %d is out of range; expected 1..%d or -%d..-1 for a tensor of shape %s", where,
        dim, n, n, lists.shape_text(x))
    end
  end
end

local NORMALIZE = { p = { "number", default = 2 }, dim = { "integer|list", default = 2 },
  eps = { "number", default = 1e-12, min = 0 } }

--- Returns x / max(norm of x along dim, eps).
---@param x accelerate.Tensor
---@param opts? { p: number, dim: integer|integer[], eps: number } 2, 2 (the second dim), 1e-12
---@return accelerate.Tensor
function M.normalize(x, opts)
  local o = options.check("normalize", opts, NORMALIZE)
  check("normalize", "x", x)
  check_dims("normalize", x, o.dim)
  return x / core.norm(x, o.p, o.dim, true):clamp { min = o.eps }
end

local COSINE = { dim = { "integer", default = 2 }, eps = { "number", default = 1e-8, min = 0 } }

-- Broadcasts both to their common shape; nothing is copied.
local function broadcast(where, a, b)
  local left, right, shape = a.shape, b.shape, {}
  local n = math.max(#left, #right)
  for d = 1, n do
    local l, r = left[d - n + #left] or 1, right[d - n + #right] or 1
    if l ~= r and l ~= 1 and r ~= 1 then
      options.fail("%s: shapes %s and %s do not broadcast", where, lists.shape_text(a), lists.shape_text(b))
    end
    shape[d] = l == 1 and r or l
  end
  return a:expand(shape), b:expand(shape)
end

-- Returns x / max(norm along dim, eps). The gradient ignores the limit, as in PyTorch.
local function unit(x, dim, eps)
  local norm = core.norm(x, 2, dim, true)
  local fixed = norm:detach()
  return x / (norm + (fixed:clamp { min = eps } - fixed))
end

--- Returns the cosine of the angle between x1 and x2 along dim: sum(x1 x2) / (max(|x1|, eps)
--- max(|x2|, eps)). Both are broadcast to one shape first, so a repeated size of 1 counts in the
--- norms as often as it is repeated.
---@param x1 accelerate.Tensor
---@param x2 accelerate.Tensor broadcast against x1
---@param opts? { dim: integer, eps: number } 2, 1e-8
---@return accelerate.Tensor without dim
function M.cosine_similarity(x1, x2, opts)
  local o = options.check("cosine_similarity", opts, COSINE)
  check("cosine_similarity", "x1", x1)
  check("cosine_similarity", "x2", x2)
  local a, b = broadcast("cosine_similarity", x1, x2)
  check_dims("cosine_similarity", a, o.dim)
  return core.sum(unit(a, o.dim, o.eps) * unit(b, o.dim, o.eps), o.dim)
end

-- ---- distances of all pairs

-- What the row of all distances takes: numbers of one floating type.
local function fits(x1, x2) return x1.dtype == x2.dtype and core._is_float(x1) end

-- Stacks of matrices as (b, m, k) and (b, n, k), and the shape of the distances.
local function as_stacks(x1, x2)
  local n = math.max(x1:dim(), x2:dim())
  local lead, count = {}, 1
  for d = 1, n - 2 do
    local a, b = x1.shape[d - n + x1:dim()] or 1, x2.shape[d - n + x2:dim()] or 1
    if a ~= b and a ~= 1 and b ~= 1 then
      options.fail("cdist: the leading dims of %s and %s do not broadcast", lists.shape_text(x1),
        lists.shape_text(x2))
    end
    lead[d] = a == 1 and b or a
    count = count * lead[d]
  end
  local function stack(x)
    local shape = lists.copied(lead)
    shape[n - 1], shape[n] = x:size(-2), x:size(-1)
    return x:expand(shape):reshape(count, x:size(-2), x:size(-1))
  end
  local result = lists.copied(lead)
  result[n - 1], result[n] = x1:size(-2), x2:size(-2)
  return stack(x1), stack(x2), result
end

-- The p-norms of all differences by the row.
local function distances(x1, x2, p)
  local half = x1.dtype == "float16" or x1.dtype == "bfloat16"
  local a, b, shape = as_stacks(half and x1:float() or x1, half and x2:float() or x2)
  local d = core._distance.cdist(a, b, p):view(shape)
  return half and not core.autocast_state() and d:to(x1.dtype) or d -- float32 where norm is cast
end

-- The largest |x| along the last dim. The gradient goes to each element that is as large, as
-- PyTorch's distances have it; that of a norm is divided among them.
local largest = core.Function {
  name = "cdist",
  forward = function(ctx, x)
    local size = x:abs()
    local most = size:amax(-1, true)
    ctx:save_for_backward(x:sign():masked_fill(size:ne(most), 0))
    return most:squeeze(-1)
  end,
  backward = function(ctx, g) return g:unsqueeze(-1) * ctx:saved_tensors() end,
}

-- The p-norms of differences, along the last dim.
local function lengths_of(x, p)
  if p == math.huge and core._is_float(x) and x:size(-1) > 0 then
    local narrow = x.dtype == "bfloat16" or x.dtype == "float16"
    return largest(narrow and core.autocast_state() and x:float() or x) -- as norm is cast
  end
  return core.norm(x, p, -1)
end

local CDIST = { p = { "number", default = 2, min = 0 },
  compute_mode = { "string", optional = true, one_of = { "use_mm_for_euclid_dist_if_necessary",
    "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist" } } }

--- Returns the p-norms of each row of x1 minus each row of x2. Two equal rows have distance 0, with
--- a gradient of 0.
---@param x1 accelerate.Tensor (.., m, k)
---@param x2 accelerate.Tensor (.., n, k), leading dims broadcast
---@param opts? { p: number, compute_mode: string } 2; compute_mode is PyTorch's, and changes
---  nothing
---@return accelerate.Tensor (.., m, n)
function M.cdist(x1, x2, opts)
  local o = options.check("cdist", opts, CDIST)
  check("cdist", "x1", x1)
  check("cdist", "x2", x2)
  if x1:dim() < 2 or x2:dim() < 2 or x1:size(-1) ~= x2:size(-1) then
    options.fail("cdist: expected (.., m, k) and (.., n, k), got %s and %s", lists.shape_text(x1),
      lists.shape_text(x2))
  end
  for name, x in pairs { x1 = x1, x2 = x2 } do
    if x:is_complex() then options.fail("cdist: %s: expected real numbers, got %s", name, x.dtype) end
  end
  if x1:size(-1) == 0 then return (x1:unsqueeze(-2) - x2:unsqueeze(-3)):sum(-1) end
  if fits(x1, x2) then return distances(x1, x2, o.p) end
  return lengths_of(x1:unsqueeze(-2) - x2:unsqueeze(-3), o.p)
end

local PDIST = { p = { "number", default = 2, min = 0 } }

--- Returns the p-norms of the differences of all pairs of rows, (1, 2), (1, 3) .. (2, 3) ..
---@param x accelerate.Tensor (n, k)
---@param ... any p = 2, or a table with it
---@return accelerate.Tensor (n (n - 1) / 2)
function M.pdist(x, ...)
  local o = options.check("pdist", options.gather("pdist", { "p" }, ...), PDIST)
  check("pdist", "x", x)
  if x:dim() ~= 2 then options.fail("pdist: expected (n, k), got %s", lists.shape_text(x)) end
  local n = x.shape[1]
  local pairs_of = core.ones({ n, n }, { device = x.device }):triu(1):nonzero()
  local from, to = pairs_of:select(2, 1), pairs_of:select(2, 2)
  if fits(x, x) and x:size(-1) > 0 then
    return distances(x, x, o.p):view(-1):index_select(1, from * n + to)
  end
  return lengths_of(x:index_select(1, from) - x:index_select(1, to), o.p)
end

local PAIRWISE = { p = { "number", default = 2 }, eps = { "number", default = 1e-6 },
  keepdim = { "boolean", default = false } }

--- Returns the p-norm of x1 - x2 + eps along the last dim.
---@param x1 accelerate.Tensor
---@param x2 accelerate.Tensor broadcast against x1
---@param opts? { p: number, eps: number, keepdim: boolean } 2, 1e-6, false
---@return accelerate.Tensor
function M.pairwise_distance(x1, x2, opts)
  local o = options.check("pairwise_distance", opts, PAIRWISE)
  check("pairwise_distance", "x1", x1)
  check("pairwise_distance", "x2", x2)
  local difference = x1 - x2
  if not core._is_float(difference) and not difference:is_complex() then difference = difference:float() end
  return core.norm(difference + o.eps, o.p, -1, o.keepdim)
end

--- Returns y[.., o] = x1[.., :] weight[o] x2[.., :] + bias[o].
---@param x1 accelerate.Tensor (.., in1)
---@param x2 accelerate.Tensor (.., in2), with x1's leading dims
---@param weight accelerate.Tensor (out, in1, in2)
---@param bias? accelerate.Tensor (out)
---@return accelerate.Tensor (.., out)
function M.bilinear(x1, x2, weight, bias)
  check("bilinear", "x1", x1)
  check("bilinear", "x2", x2)
  check("bilinear", "weight", weight)
  if weight:dim() ~= 3 or x1:dim() < 1 or x1:size(-1) ~= weight:size(2) or x2:dim() ~= x1:dim()
    or x2:size(-1) ~= weight:size(3) then
    options.fail("bilinear: x1 %s and x2 %s do not fit weight %s (out, in1, in2)", lists.shape_text(x1),
      lists.shape_text(x2),
      lists.shape_text(weight))
  end
  local out, in1, in2 = unpack(weight.shape)
  local rows = x1.shape
  rows[#rows] = out
  rows[#rows + 1] = in2
  -- x1 W: for each output a vector, which is then multiplied with x2
  local half = core.linear(x1, weight:permute(1, 3, 2):reshape(out * in2, in1)):view(rows)
  local y = core.sum(half * x2:unsqueeze(-2), -1)
  return bias and y + bias or y
end

return M
