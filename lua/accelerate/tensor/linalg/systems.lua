--- Cholesky, LU, linear systems, inverse, determinant.
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local matrix = require "accelerate.tensor.linalg.matrix"

local reads = matrix.reads

local M = {}

--- Returns L, lower triangular with L L^T = x, for symmetric positive-definite matrices (complex: L
--- L^H, Hermitian); with `upper` U with U^T U = x. Reads that triangle of x alone. Raises, naming
--- the matrix of the batch, where x is not positive-definite.
---@param x accelerate.Tensor (.., n, n)
---@param options { upper: boolean? }?
---@return accelerate.Tensor factor
M.cholesky = reads("cholesky", "x:T upper:bool=false", function(x, upper)
  return (core._linalg.cholesky(x, upper))
end)

--- Returns what cholesky returns, and for each matrix the order of its first leading minor that is
--- not positive, 0 where there is none (int32). Does not raise unless `check_errors`.
---@param x accelerate.Tensor (.., n, n)
---@param options { upper: boolean?, check_errors: boolean? }?
---@return accelerate.Tensor factor
---@return accelerate.Tensor info
M.cholesky_ex = reads("cholesky_ex", "x:T upper:bool=false check_errors:bool=false",
  function(x, upper, check) return core._linalg.cholesky(x, upper, check) end)

-- ---- linear systems

-- a x = b for matrices b. One matrix for a whole batch of b: its sides are put next to each other,
-- so that it is factorised once.
local function solve_matrices(a, b, check)
  a, b = matrix.one_type(a, b)
  if a.ndim == 2 and b.ndim > 2 and b:numel() > 0 then
    local wide = b:movedim(b.ndim - 1, 1)
    local x = core._linalg.solve(a, wide:reshape(a.shape[1], -1), check)
    return x:reshape(wide.shape):movedim(1, b.ndim - 1)
  end
  a, b = matrix.one_batch("solve", a, b)
  return core._linalg.solve(a, b, check)
end

-- b's matrices have as many rows (left) or columns as a has.
local function check_side(where, a, b, left)
  if b.ndim < 2 or b.shape[left and b.ndim - 1 or b.ndim] ~= a.shape[a.ndim] then
    options.fail("linalg.%s: a of shape %s and b of shape %s do not fit: b must have %d %s", where,
      lists.shape_text(a),
      lists.shape_text(b), a.shape[a.ndim], left and "rows" or "columns")
  end
end

local function solve(where, a, b, left, check)
  matrix.check_square(where, a)
  if matrix.holds_vectors(a, b) then
    if not left then options.fail("linalg.%s: with left = false b must be matrices, got shape %s", where,
      lists.shape_text(b)) end
    return solve_matrices(a, b:unsqueeze(-1), check):squeeze(-1)
  end
  check_side(where, a, b, left)
  if left then return solve_matrices(a, b, check) end
  return solve_matrices(a:transpose(-2, -1), b:transpose(-2, -1), check):transpose(-2, -1)
end

--- Returns x with a x = b, or x a = b with `left = false`. b holds matrices, or vectors where its
--- shape is that of a without the last dim. Batches are broadcast. Raises, naming the matrix of the
--- batch, where a is singular.
---@param a accelerate.Tensor (.., n, n)
---@param b accelerate.Tensor (.., n, k) or (.., n)
---@param options { left: boolean? }?
---@return accelerate.Tensor x of b's form
M.solve = reads("solve", "a:T b:T left:bool=true", function(a, b, left)
  return solve("solve", a, b, left, true)
end)

-- For each square matrix the first place of U's diagonal that is 0; 0 where it can be inverted.
local function singular(a) return select(3, core.no_grad(core._linalg.lu, a)) end

--- Returns what solve returns, and for each matrix the position of the zero on the diagonal of its
--- factor U, 0 where there is none (int32). Does not raise unless `check_errors`.
---@param a accelerate.Tensor (.., n, n)
---@param b accelerate.Tensor (.., n, k) or (.., n)
---@param options { left: boolean?, check_errors: boolean? }?
---@return accelerate.Tensor x
---@return accelerate.Tensor info
M.solve_ex = reads("solve_ex", "a:T b:T left:bool=true check_errors:bool=false", function(a, b, left, check)
  return solve("solve_ex", a, b, left, check), singular(a)
end)

local function solve_triangular(a, b, upper, left, unit)
  if left then
    a, b = matrix.one_batch("solve_triangular", a, b)
    return core._linalg.solve_triangular(a, b, upper, false, unit)
  end
  a, b = matrix.one_batch("solve_triangular", a, b:transpose(-2, -1))
  return core._linalg.solve_triangular(a, b, upper, true, unit):transpose(-2, -1)
end

--- Returns x with a x = b, or x a = b with `left = false`, for triangular a: `upper` says which
--- triangle, and the other one is not read. With `unitriangular` the diagonal counts as ones. A
--- zero on the diagonal gives infinite or NaN elements, no error.
---@param a accelerate.Tensor (.., n, n)
---@param b accelerate.Tensor (.., n, k); with left = false (.., k, n)
---@param options { upper: boolean, left: boolean?, unitriangular: boolean? }
---@return accelerate.Tensor x of b's shape
M.solve_triangular = reads("solve_triangular", "a:T b:T upper:bool left:bool=true unitriangular:bool=false",
  function(a, b, upper, left, unit)
    matrix.check_square("solve_triangular", a)
    check_side("solve_triangular", a, b, left)
    return solve_triangular(a, b, upper, left, unit)
  end)

--- Returns the inverse of real or complex matrices. Raises, naming the matrix of the batch, where
--- there is none.
---@param x accelerate.Tensor (.., n, n)
---@return accelerate.Tensor inverse
M.inv = reads("inv", "x:T", function(x) return (core._linalg.inv(x)) end)

--- Returns the inverse, NaN where there is none, and for each matrix the position of the zero on
--- the diagonal of its factor U, 0 where there is none (int32). Does not raise unless
--- `check_errors`.
---@param x accelerate.Tensor (.., n, n)
---@param options { check_errors: boolean? }?
---@return accelerate.Tensor inverse
---@return accelerate.Tensor info
M.inv_ex = reads("inv_ex", "x:T check_errors:bool=false", function(x, check)
  return core._linalg.inv(x, check)
end)

--- Returns the determinant.
---@param x accelerate.Tensor (.., n, n)
---@return accelerate.Tensor (..)
M.det = reads("det", "x:T", function(x) return core._linalg.det(x) end)

--- Returns the sign of the determinant (complex: its direction, of absolute value 1) and the
--- logarithm of its absolute value, 0 and -inf for a singular matrix.
---@param x accelerate.Tensor (.., n, n)
---@return accelerate.Tensor sign (..)
---@return accelerate.Tensor logabsdet (..)
M.slogdet = reads("slogdet", "x:T", function(x) return core._linalg.slogdet(x) end)

-- ---- LU

local function check_pivot(where, pivot)
  if not pivot then options.fail("linalg.%s: pivot = false is not there", where) end
end

--- Returns the LU factorisation in one matrix, L below the diagonal (whose ones are not stored) and
--- U from it on, and the pivots: row i was swapped with row pivots[i] (int32, rows counted from 1,
--- as LAPACK does). Raises, naming the matrix of the batch, where U has a zero on its diagonal.
---@param x accelerate.Tensor (.., m, n)
---@param options { pivot: boolean? }? pivot = false is not there
---@return accelerate.Tensor LU
---@return accelerate.Tensor pivots (.., min(m, n))
M.lu_factor = reads("lu_factor", "x:T pivot:bool=true", function(x, pivot)
  check_pivot("lu_factor", pivot)
  local LU, pivots, info = core._linalg.lu(x)
  local bad = info:ne(0)
  if bad:any():item() then
    local at = bad:nonzero()[1]:totable()
    for d = 1, #at do at[d] = at[d] + 1 end
    options.fail("linalg.lu_factor: %s is singular: diagonal element %d of its factor U is zero; " ..
      "linalg.lu_factor_ex gives the factorisation nevertheless", #at == 0 and "the matrix"
      or ("matrix %s of the batch"):format(#at == 1 and at[1] or ("[%s]"):format(table.concat(at, ", "))),
      info:masked_select(bad)[1]:item())
  end
  return LU, pivots
end)

--- Returns what lu_factor returns, and for each matrix the position of the zero on U's diagonal, 0
--- where there is none (int32). Does not raise unless `check_errors`.
---@param x accelerate.Tensor (.., m, n)
---@param options { pivot: boolean?, check_errors: boolean? }?
---@return accelerate.Tensor LU
---@return accelerate.Tensor pivots
---@return accelerate.Tensor info
M.lu_factor_ex = reads("lu_factor_ex", "x:T pivot:bool=true check_errors:bool=false",
  function(x, pivot, check)
  check_pivot("lu_factor_ex", pivot)
  if check then M.lu_factor(x:detach()) end
  return core._linalg.lu(x)
end)

--- The parts of lu_factor's results: P, L and U with P L U = x.
---@param LU accelerate.Tensor (.., m, n)
---@param pivots accelerate.Tensor (.., min(m, n))
---@return accelerate.Tensor P (.., m, m)
---@return accelerate.Tensor L (.., m, min(m, n))
---@return accelerate.Tensor U (.., min(m, n), n)
function M.unpack(LU, pivots)
  local m, n = LU.shape[LU.ndim - 1], LU.shape[LU.ndim]
  local k = math.min(m, n)
  local P = core._linalg.permutation(pivots, m, LU.dtype)
  local ones = core.eye(m, k, { dtype = LU.dtype, device = LU.device })
  return P, LU:narrow(-1, 1, k):tril(-1) + ones, LU:narrow(-2, 1, k):triu()
end

--- Returns P, L and U with P L U = x: a permutation, lower triangular with ones on the diagonal,
--- upper triangular.
---@param x accelerate.Tensor (.., m, n)
---@param options { pivot: boolean? }? pivot = false is not there
---@return accelerate.Tensor P (.., m, m)
---@return accelerate.Tensor L (.., m, min(m, n))
---@return accelerate.Tensor U (.., min(m, n), n)
M.lu = reads("lu", "x:T pivot:bool=true", function(x, pivot)
  check_pivot("lu", pivot)
  local LU, pivots = core._linalg.lu(x)
  return M.unpack(LU, pivots)
end)

-- Where LU has a gradient: one triangle after the other.
local function solve_triangles(LU, pivots, b, transposed)
  local P = core._linalg.permutation(pivots, LU.shape[LU.ndim], LU.dtype)
  local function triangle(x, upper)
    return core._linalg.solve_triangular(LU, x, upper, transposed, not upper)
  end
  if transposed then return P:matmul(triangle(triangle(b, true), false)) end
  return triangle(triangle(P:transpose(-2, -1):matmul(b), false), true)
end

--- Returns x with a x = b from lu_factor's results for a; x a = b with `left = false`, a^T x = b
--- with `adjoint` (a^H of complex a). Batches are broadcast.
---@param LU accelerate.Tensor (.., n, n)
---@param pivots accelerate.Tensor (.., n)
---@param b accelerate.Tensor (.., n, k); with left = false (.., k, n)
---@param options { left: boolean?, adjoint: boolean? }?
---@return accelerate.Tensor x of b's shape
M.lu_solve = reads("lu_solve", "LU:T pivots:T b:T left:bool=true adjoint:bool=false",
  function(LU, pivots, b, left, adjoint)
    matrix.check_square("lu_solve", LU)
    check_side("lu_solve", LU, b, left)
    local side = left and b or b:transpose(-2, -1)
    local transposed = adjoint ~= not left
    if adjoint then LU = LU:conj() end
    local batch_lu, rows, batch_b = matrix.one_batch_with_pivots("lu_solve", "LU", LU, pivots, side)
    local x = matrix.records(LU) and solve_triangles(batch_lu, rows, batch_b, transposed)
      or core._linalg.lu_solve(batch_lu, rows, batch_b, transposed)
    return left and x or x:transpose(-2, -1)
  end)

return M
