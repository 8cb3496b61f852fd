--- Products and distances of vectors.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"


define("inner", "a:T b:T", "sums of products over the last dim of both", function(a, b)
  if a.ndim == 0 or b.ndim == 0 then return a * b end
  if a.shape[a.ndim] ~= b.shape[b.ndim] then
    options.fail("inner: the last sizes differ: %s and %s", lists.shape_text(a), lists.shape_text(b))
  end
  local k = a.shape[a.ndim]
  local shape = {}
  for i = 1, a.ndim - 1 do shape[i] = a.shape[i] end
  for i = 1, b.ndim - 1 do shape[#shape + 1] = b.shape[i] end
  return a:reshape(-1, k):matmul(b:reshape(-1, k):t()):view(shape)
end)
define("vdot", "a:T b:T", "the sum of products of two vectors, complex ones of a with their signs turned",
  function(a, b) return a:conj():dot(b) end)
define("ger", "a:T b:T", "another name of `outer`", core.outer)
define("addr", "input:T vec1:T vec2:T beta:num=1 alpha:num=1", "beta input + alpha outer(vec1, vec2)",
  function(input, a, b, beta, alpha)
    if input.dtype == "bool" and a.dtype == "bool" and b.dtype == "bool" then
      local product = a:unsqueeze(2):logical_and(b)
      product = alpha == 0 and core.zeros_like(product) or product
      return beta == 0 and product or product:logical_or(input)
    end
    local product = a:outer(b) * alpha
    if beta == 0 then return product end
    return input * beta + product
  end)
define("addbmm", "input:T batch1:T batch2:T beta:num=1 alpha:num=1",
  "beta input + alpha sum of batch1 @ batch2",
  function(input, a, b, beta, alpha)
    for name, factor in pairs { beta = beta, alpha = alpha } do
      if factor ~= math.floor(factor) and not core._is_float(input)
        and not input:is_complex() then
        options.fail("addbmm: %s %g does not fit tensors of %s", name, factor, input.dtype)
      end
    end
    local product = a:bmm(b)
    product = product:sum(1):to(product.dtype) * alpha
    if beta == 0 then return product end
    return input * beta + product
  end)
-- Products of rows shorter than this are formed of repeated rows: loops along short ones take
-- longer than the copies, which are of a part of the result where both have several rows.
local SHORT, SEVERAL = 256, 8

define("kron", "a:T b:T", "the Kronecker product", function(a, b)
  local n = math.max(a.ndim, b.ndim)
  local wide, narrow, shape = {}, {}, {}
  for i = 1, n do
    local p, q = a.shape[i - n + a.ndim] or 1, b.shape[i - n + b.ndim] or 1
    wide[2 * i - 1], wide[2 * i] = p, 1
    narrow[2 * i - 1], narrow[2 * i] = 1, q
    shape[i] = p * q
  end
  local left, right = a:reshape(wide), b:reshape(narrow)
  local p, q = wide[2 * n - 1], narrow[2 * n]
  if n > 0 and q < SHORT and a:numel() >= SEVERAL * p and b:numel() >= SEVERAL * q then
    wide[2 * n], narrow[2 * n - 1] = q, p
    left, right = left:expand(wide):contiguous(), right:expand(narrow):contiguous()
  end
  return (left * right):reshape(shape)
end)

define("cross", "a:T b:T dim:dim=-1", "the cross product of vectors of 3 elements along dim", function(a, b,
  dim)
  dim = dim - a.ndim - 1 -- from the end: both are broadcast
  for _, x in ipairs { a, b } do
    if -dim > x.ndim or x.shape[x.ndim + 1 + dim] ~= 3 then
      options.fail("cross: expected size 3 along dim %d, got shapes %s and %s", dim, lists.shape_text(a),
        lists.shape_text(b))
    end
  end
  local p, q = { a:unbind(dim) }, { b:unbind(dim) }
  return core.stack({ p[2] * q[3] - p[3] * q[2], p[3] * q[1] - p[1] * q[3], p[1] * q[2] - p[2] * q[1] }, dim)
end)
define("dist", "a:T b:T p:num=2", "the p-norm of a - b", function(a, b, p) return (a - b):norm(p) end)

local function functional(name)
  return function(...) return require("accelerate.nn.functional")[name](...) end
end
define.plain("cdist", "tensor.cdist(x1, x2, { p = 2, compute_mode })",
  "the p-norm of each row of x1 minus each row of x2",
  "both",
  functional "cdist")
define.plain("cosine_similarity", "tensor.cosine_similarity(x1, x2, { dim = 2, eps = 1e-8 })",
  "the cosine of the angle along dim", "function",
  functional "cosine_similarity")
define.plain("pairwise_distance", "tensor.pairwise_distance(x1, x2, { p = 2, eps = 1e-6, keepdim = false })",
  "the p-norm of x1 - x2 + eps along the last dim", "function", functional "pairwise_distance")
