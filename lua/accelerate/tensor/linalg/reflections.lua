--- QR as LAPACK keeps it, products of its reflections, and L D L^T.
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local matrix = require "accelerate.tensor.linalg.matrix"

local reads = matrix.reads

local M = {}

-- a (.., m, n) and tau (.., k) of one batch and type, k <= m and n; n <= m but for `wide` ones.
local function check_reflections(where, a, tau, wide)
  matrix.check_float(where, a)
  if a.ndim < 2 or not wide and a.shape[a.ndim - 1] < a.shape[a.ndim] then
    options.fail("linalg.%s: expected matrices with at least as many rows as columns, got shape %s", where,
      lists.shape_text(a))
  end
  local m, n = a.shape[a.ndim - 1], a.shape[a.ndim]
  local most = math.min(m, n)
  if tau.ndim ~= a.ndim - 1 or tau.shape[tau.ndim] > most
    or not matrix.same(matrix.leading(tau, 1), matrix.leading(a, 2)) then
    options.fail("linalg.%s: tau must have the batch of x and at most its %d %s, got shapes %s and %s",
      where, most, n <= m and "columns" or "rows", lists.shape_text(tau), lists.shape_text(a))
  end
  if tau.dtype ~= a.dtype then
    options.fail("linalg.%s: element types differ: %s and %s", where, a.dtype, tau.dtype)
  end
end

-- The vector of reflection i: ones on the diagonal of a, zeros above.
local function vector(a, i)
  local m = a.shape[a.ndim - 1]
  local column = a:narrow(-1, i, 1)
  local shape = column.shape
  shape[#shape - 1] = i - 1
  local parts = { core.zeros(shape, { dtype = a.dtype, device = a.device }) }
  shape[#shape - 1] = 1
  parts[2] = core.ones(shape, { dtype = a.dtype, device = a.device })
  parts[3] = column:narrow(-2, i + 1, m - i)
  return core.cat(parts, -2)
end

--- H1 H2 .. Hk q, or Hk^H .. H2^H H1^H q with `transposed`, where Hi = I - tau[i] v v^H.
function M.reflect(a, tau, q, transposed)
  local k = tau.shape[tau.ndim]
  for t = 1, k do
    local i = transposed and t or k + 1 - t
    local v, factor = vector(a, i), tau:narrow(-1, i, 1):unsqueeze(-1)
    q = q - v:matmul(matrix.adjoint(v):matmul(q) * (transposed and factor:conj() or factor))
  end
  return q
end

--- Returns the first n columns of the product of the reflections I - tau[i] v v^H, whose vectors
--- stand below the diagonal of x, as tensor.geqrf gives them.
---@param x accelerate.Tensor (.., m, n), m at least n
---@param tau accelerate.Tensor (.., k), k at most n
---@return accelerate.Tensor (.., m, n)
M.householder_product = reads("householder_product", "x:T tau:T", function(x, tau)
  check_reflections("householder_product", x, tau)
  local m, n = x.shape[x.ndim - 1], x.shape[x.ndim]
  return M.reflect(x, tau, core.eye(m, n, { dtype = x.dtype, device = x.device }):expand(x.shape))
end)

--- Returns q other, or q^T other with `transpose` (q^H of complex q); other q with `left = false`.
--- q is the square matrix that tensor.geqrf gave as reflections.
---@param x accelerate.Tensor (.., m, n)
---@param tau accelerate.Tensor (.., k), k at most m and n: as many columns of x are read
---@param other accelerate.Tensor (.., m, n); with left = false (.., n, m)
---@param left boolean
---@param transpose boolean
---@return accelerate.Tensor of other's shape
function M.ormqr(x, tau, other, left, transpose)
  check_reflections("ormqr", x, tau, true)
  local side = left and other or other:transpose(-2, -1)
  if other.ndim ~= x.ndim or side.shape[side.ndim - 1] ~= x.shape[x.ndim - 1]
    or not matrix.same(matrix.leading(side, 2), matrix.leading(x, 2)) then
    options.fail("linalg.ormqr: other must have the batch and %d %s, got shapes %s and %s",
      x.shape[x.ndim - 1], left and "rows" or "columns", lists.shape_text(other), lists.shape_text(x))
  end
  if not left then side = side:conj() end
  local y = M.reflect(x, tau, side, transpose == left)
  return left and y or matrix.adjoint(y)
end

-- ---- L D L^T

--- Returns L and D of L D L^T = x in one matrix, and pivots, in the form of LAPACK's sytrf, for
--- symmetric x that need not be positive-definite. Reads the lower triangle alone. Has no gradient.
--- Raises, naming the matrix of the batch, where D is singular.
---@param x accelerate.Tensor (.., n, n)
---@param options { hermitian: boolean? }? complex x is Hermitian, and L D L^H; changes nothing for
---  real matrices
---@return accelerate.Tensor LD (.., n, n)
---@return accelerate.Tensor pivots (.., n), int32
M.ldl_factor = reads("ldl_factor", "x:T hermitian:bool=false", function(x, hermitian)
  local LD, pivots, info = core._linalg.ldl(x, hermitian)
  if info:ne(0):any():item() then
    options.fail("linalg.ldl_factor: %s is singular: a diagonal element of its factor D is zero; " ..
      "linalg.ldl_factor_ex gives the factorisation nevertheless",
      x.ndim == 2 and "the matrix" or "a matrix of the batch")
  end
  return LD, pivots
end)

--- Returns what ldl_factor returns, and for each matrix the position of the zero on D's diagonal, 0
--- where there is none (int32). Does not raise unless `check_errors`.
---@param x accelerate.Tensor (.., n, n)
---@param options { hermitian: boolean?, check_errors: boolean? }?
---@return accelerate.Tensor LD
---@return accelerate.Tensor pivots
---@return accelerate.Tensor info
M.ldl_factor_ex = reads("ldl_factor_ex", "x:T hermitian:bool=false check_errors:bool=false",
  function(x, hermitian, check)
    if check then M.ldl_factor(x:detach(), { hermitian = hermitian }) end
    return core._linalg.ldl(x, hermitian)
  end)

--- Returns x with a x = b from ldl_factor's results for a. Has no gradient.
---@param LD accelerate.Tensor (.., n, n)
---@param pivots accelerate.Tensor (.., n)
---@param b accelerate.Tensor (.., n, k)
---@param options { hermitian: boolean? }?
---@return accelerate.Tensor x of b's shape
M.ldl_solve = reads("ldl_solve", "LD:T pivots:T b:T hermitian:bool=false", function(LD, pivots, b, hermitian)
  matrix.check_square("ldl_solve", LD)
  local matrices, rows, sides = matrix.one_batch_with_pivots("ldl_solve", "LD", LD, pivots, b)
  return core._linalg.ldl_solve(matrices, rows, sides, hermitian)
end)

return M
