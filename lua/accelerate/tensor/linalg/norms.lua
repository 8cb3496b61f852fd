--- Norms of vectors and matrices.
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local matrix = require "accelerate.tensor.linalg.matrix"

local reads, records = matrix.reads, matrix.records

local M = {}

-- x in the type that the norm is computed in.
local function cast(where, x, dtype)
  if dtype then
    if not dtype:find("float", 1, true) and not dtype:find("complex", 1, true) then
      options.fail("linalg.%s: dtype must be a floating or complex type, got %s", where, dtype)
    end
    return x:to(dtype)
  end
  matrix.check_float(where, x)
  return x
end

local function vector_norm(where, x, ord, dim, keepdim)
  if type(ord) ~= "number" or ord ~= ord then
    options.fail("linalg.%s: the order of a vector's norm is a number, got %s", where, options.show(ord))
  end
  if dim and #dim == 0 then dim = nil end
  if ord < 0 or ord == math.huge then
    for d = 1, x.ndim do
      local taken = not dim
      for _, k in ipairs(dim or {}) do taken = taken or k == d end
      if taken and x.shape[d] == 0 then
        options.fail("linalg.%s: a norm of order %s has no value for shape %s, " ..
          "which has no elements to reduce",
          where, ord, lists.shape_text(x))
      end
    end
  end
  return x:norm(ord, dim, keepdim)
end

--- Returns sum(|x|^ord)^(1/ord) over dims (default all); inf and -inf are the largest and the least
--- |x|, 0 counts what is not 0.
---@param x accelerate.Tensor floating
---@param ord number? default 2
---@param dim (integer|integer[])?
---@param keepdim boolean?
---@param dtype accelerate.DType? x is cast to it first
---@return accelerate.Tensor
M.vector_norm = reads("vector_norm", "x:T ord:num=2 dim:dims? keepdim:bool=false dtype:dtype?",
  function(x, ord, dim, keepdim, dtype)
    return vector_norm("vector_norm", cast("vector_norm", x, dtype), ord, dim, keepdim)
  end)

local MATRIX = { [1] = true, [-1] = true, [2] = true, [-2] = true, [math.huge] = true, [-math.huge] = true,
  fro = true, nuc = true }

--- Raises where `ord` is no order of a matrix norm.
function M.check_matrix_ord(where, ord)
  if ord ~= ord or not MATRIX[ord] then
    options.fail('linalg.%s: the order of a matrix norm is 1, -1, 2, -2, inf, -inf, "fro" or "nuc", got %s',
      where, options.show(ord))
  end
end

-- The singular values of the matrices of dims a and b, as a last dim.
local function values_of(x, a, b)
  local moved = x:movedim({ a, b }, { x.ndim - 1, x.ndim })
  return (select(2, core._linalg.svd(moved, false, records(x))))
end

-- The largest along dim, which is kept; of nothing 0.
local function largest(x, dim)
  return x.shape[dim] == 0 and x:sum(dim, true) or x:amax(dim, true)
end

local function by_values(x, ord, a, b, keepdim)
  local s = values_of(x, a, b)
  local out
  if ord == "nuc" then out = s:sum(-1)
  elseif ord == 2 then out = largest(s, s.ndim):squeeze(-1)
  else out = s:amin(-1) end
  if not keepdim then return out end
  local low, high = math.min(a, b), math.max(a, b)
  return out:unsqueeze(low):unsqueeze(high)
end

-- Sums of |x| over one dim, and the largest or the least of these sums over the other one.
local function by_sums(x, ord, a, b, keepdim)
  if ord == math.huge or ord == -math.huge then a, b = b, a end
  local sums = x:abs():sum(a, true)
  local out = ord > 0 and largest(sums, b) or sums:amin(b, true)
  return keepdim and out or out:squeeze({ a, b })
end

local function matrix_norm(where, x, ord, dim, keepdim)
  M.check_matrix_ord(where, ord)
  if x.ndim < 2 then
    options.fail("linalg.%s: expected at least two dims, got shape %s", where, lists.shape_text(x))
  end
  local a, b = x.ndim - 1, x.ndim
  if dim then
    if #dim ~= 2 then
      options.fail("linalg.%s: a matrix has two dims, got %d", where, #dim)
    end
    a, b = dim[1], dim[2]
    if a == b then options.fail("linalg.%s: the dims of a matrix must differ, got %d twice", where, a) end
  end
  if ord == "fro" then return x:norm(2, { a, b }, keepdim) end
  if (x.shape[a] == 0 or x.shape[b] == 0) and ord ~= "nuc" then
    local chosen = x.shape[math.abs(ord) == 1 and b or a]
    if ord == -2 or ord < 0 and chosen == 0 then
      options.fail("linalg.%s: a norm of order %s has no value for matrices without elements, shape %s",
        where, ord, lists.shape_text(x))
    end
    return x:abs():sum({ a, b }, keepdim) -- as in PyTorch the largest of nothing is 0
  end
  if ord == "nuc" or ord == 2 or ord == -2 then return by_values(x, ord, a, b, keepdim) end
  return by_sums(x, ord, a, b, keepdim)
end

--- Returns the norm of matrices: "fro" (root of the sum of squares), "nuc" (sum of singular
--- values), 2 and -2 (largest, least singular value), 1 and -1 (largest, least sum of |x| in a
--- column), inf and
--- -inf (in a row).
---@param x accelerate.Tensor floating, at least two dims
---@param ord (number|"fro"|"nuc")? default "fro"
---@param dim integer[]? the two dims of the matrices, default the last ones
---@param keepdim boolean?
---@param dtype accelerate.DType? x is cast to it first
---@return accelerate.Tensor
M.matrix_norm = reads("matrix_norm", "x:T ord:any? dim:dims? keepdim:bool=false dtype:dtype?",
  function(x, ord, dim, keepdim, dtype)
    return matrix_norm("matrix_norm", cast("matrix_norm", x, dtype), ord or "fro", dim, keepdim)
  end)

--- Returns a norm of vectors or matrices. Without `ord` the root of the sum of squares over `dim`
--- (default all). With `ord` and one dim, or a tensor of one dim, vector_norm; else matrix_norm.
---@param x accelerate.Tensor floating
---@param ord (number|"fro"|"nuc")?
---@param dim (integer|integer[])?
---@param keepdim boolean?
---@param dtype accelerate.DType? x is cast to it first
---@return accelerate.Tensor
M.norm = reads("norm", "x:T ord:any? dim:dims? keepdim:bool=false dtype:dtype?",
  function(x, ord, dim, keepdim,
  dtype)
  x = cast("norm", x, dtype)
  if dim and #dim > 2 then options.fail("linalg.norm: expected one or two dims, got %d", #dim) end
  if ord == nil then return vector_norm("norm", x, 2, dim, keepdim) end
  if not dim and x.ndim ~= 1 and x.ndim ~= 2 and type(ord) ~= "string" then
    options.fail("linalg.norm: with ord and without dim expected one or two dims, got shape %s",
      lists.shape_text(x))
  end
  local n = dim and #dim or x.ndim
  if n == 1 and type(ord) ~= "string" then return vector_norm("norm", x, ord, dim, keepdim) end
  return matrix_norm("norm", x, ord, dim, keepdim)
end)

return M
