--- QR, singular values, eigenvalues of symmetric matrices, and what follows from them: rank,
--- pseudoinverse, least squares, condition.
local core = require "accelerate.core"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local matrix = require "accelerate.tensor.linalg.matrix"

local reads, records = matrix.reads, matrix.records

local M = {}

local SVD, EIGH = { "linalg.svd" }, { "linalg.eigh" }
local BOTH = { "linalg.svd", "linalg.eigh" }

--- Returns Q with orthonormal columns and upper triangular R, Q R = x. "reduced": Q is (m, k) and R
--- (k, n) with k = min(m, n). "complete": Q is (m, m) and R (m, n). "r": R as in "reduced", and an
--- empty Q. The gradient needs "reduced", or "complete" with m <= n, and the first k columns of x
--- independent.
---@param x accelerate.Tensor (.., m, n)
---@param mode ("reduced"|"complete"|"r")? default "reduced"
---@return accelerate.Tensor Q
---@return accelerate.Tensor R
M.qr = reads("qr", "x:T mode:reduced|complete|r=reduced", function(x, mode)
  local q, r = core._linalg.qr(x, mode)
  if mode == "r" then q = core.empty(0, { dtype = r.dtype, device = r.device }) end
  return q, r
end)

--- Returns U, S and Vh with U diag(S) Vh = x; S falls, and is real. Columns of U and rows of Vh are
--- orthonormal. With `full_matrices = false` U is (m, k) and Vh (k, n), with k = min(m, n). The
--- signs of vectors (of complex ones the angles) are not determined, and their gradient is finite
--- only where all singular values differ. A loss that depends on angles has none, which raises.
--- Raises where x is not finite.
---@param x accelerate.Tensor (.., m, n)
---@param options { full_matrices: boolean? }? default true
---@return accelerate.Tensor U (.., m, m)
---@return accelerate.Tensor S (.., k)
---@return accelerate.Tensor Vh (.., n, n)
M.svd = reads("svd", "x:T full_matrices:bool=true", function(x, full)
  return core._linalg.svd(x, full)
end)

local function svdvals(x) return (select(2, core._linalg.svd(x, false, records(x)))) end

--- Returns the singular values, falling.
---@param x accelerate.Tensor (.., m, n)
---@return accelerate.Tensor S (.., min(m, n))
M.svdvals = reads("svdvals", "x:T", svdvals, SVD)

--- Returns the eigenvalues of symmetric (complex: Hermitian) matrices, real and rising, and their
--- eigenvectors as columns. Reads
--- the triangle that UPLO names alone. The gradient of vectors is finite only where all eigenvalues
--- differ. Raises where that triangle is not finite.
---@param x accelerate.Tensor (.., n, n)
---@param UPLO ("L"|"U")? the lower or the upper triangle, default "L"
---@return accelerate.Tensor L (.., n)
---@return accelerate.Tensor V (.., n, n)
M.eigh = reads("eigh", "x:T UPLO:L|U=L", function(x, uplo) return core._linalg.eigh(x, uplo == "U") end)

local function eigvalsh(x, upper) return (core._linalg.eigh(x, upper, records(x))) end

--- Returns the eigenvalues of symmetric matrices, rising.
---@param x accelerate.Tensor (.., n, n)
---@param UPLO ("L"|"U")? the triangle that is read, default "L"
---@return accelerate.Tensor L (.., n)
M.eigvalsh = reads("eigvalsh", "x:T UPLO:L|U=L", function(x, uplo)
  return eigvalsh(x, uplo == "U")
end, EIGH)

--- Returns the eigenvalues of square matrices, in no particular order, and their eigenvectors as
--- columns of norm 1; both are complex. x is real or complex. The gradient needs eigenvalues that
--- differ. A loss that depends on the angles of vectors, which are not determined, has none, which
--- raises. Raises where x is not finite.
---@param x accelerate.Tensor (.., n, n)
---@return accelerate.Tensor L (.., n)
---@return accelerate.Tensor V (.., n, n)
M.eig = reads("eig", "x:T", function(x) return core._linalg.eig(x) end)

--- Returns the eigenvalues of square matrices, complex, in no particular order.
---@param x accelerate.Tensor (.., n, n)
---@return accelerate.Tensor L (.., n)
M.eigvals = reads("eigvals", "x:T", function(x)
  return (core._linalg.eig(x, records(x)))
end)

--- Returns X, symmetric and positive-definite, with X X = x for symmetric positive-definite x,
--- whose lower triangle alone is read. The gradient is finite only where all eigenvalues differ.
---@param x accelerate.Tensor (.., n, n)
---@return accelerate.Tensor X
M.matrix_sqrth = reads("matrix_sqrth", "x:T", function(x)
  local l, v = core._linalg.eigh(x)
  return (v * l:sqrt():unsqueeze(-2)):matmul(matrix.adjoint(v))
end, EIGH)

--- Returns U with orthonormal columns and H, symmetric and positive-semidefinite, with U H = x. The
--- gradient is finite only where all singular values differ.
---@param x accelerate.Tensor (.., m, n), m at least n
---@return accelerate.Tensor U (.., m, n)
---@return accelerate.Tensor H (.., n, n)
M.polar = reads("polar", "x:T", function(x)
  if x.ndim >= 2 and x.shape[x.ndim - 1] < x.shape[x.ndim] then
    options.fail("linalg.polar: expected matrices with at least as many rows as columns, got shape %s",
      lists.shape_text(x))
  end
  local u, s, vh = core._linalg.svd(x, false)
  return u:matmul(vh), matrix.adjoint(vh):matmul(s:unsqueeze(-1) * vh)
end, SVD)

-- ---- rank

-- The bound below which singular values (.., k) count as zero. atol, rtol: numbers or tensors with
-- one number for each matrix; rtol's default depends on whether there is an atol.
local function bound(where, x, values, atol, rtol)
  local m, n = x.shape[x.ndim - 1], x.shape[x.ndim]
  for k, v in ipairs { atol or 0, rtol or 0 } do
    if type(v) == "boolean" then
      options.fail("linalg.%s: %s: expected a number or a tensor, got true", where, k == 1 and "atol"
        or "rtol")
    end
  end
  local default, real = matrix.eps(x) * math.max(m, n), matrix.real_type(x)
  local function per_matrix(v)
    if type(v) == "number" then return v end
    if v.device ~= x.device then
      options.fail("linalg.%s: x is on %s, a bound on %s", where, x.device, v.device)
    end
    return v:to(real):unsqueeze(-1)
  end
  if rtol == nil then
    if core.is_tensor(atol) then rtol = atol:le(0):to(real) * default
    else rtol = (atol or 0) > 0 and 0 or default end
  end
  atol, rtol = per_matrix(atol or 0), per_matrix(rtol)
  local largest = values:amax(-1, true)
  return (largest * rtol):maximum(core.zeros_like(largest) + atol)
end

-- Absolute singular values; for symmetric matrices of the eigenvalues.
local function magnitudes(x, hermitian)
  if hermitian then return eigvalsh(x, false):abs() end
  return svdvals(x)
end

local function check_matrix(where, x)
  if x.ndim < 2 then
    options.fail("linalg.%s: expected at least two dims, got shape %s", where, lists.shape_text(x))
  end
end

-- Shape of x without its last two dims.
local function batch_of(x) return matrix.leading(x, 2) end

-- A bound that has two names, as in PyTorch: that of NumPy may stand by position.
local function either(where, numpy, a, name, b)
  if a ~= nil and b ~= nil then
    options.fail("linalg.%s: %s and %s are one bound: give one of them", where, numpy, name)
  end
  if a ~= nil then return a end
  return b
end

--- Returns how many singular values are above max(atol, rtol * the largest one), int64. Default:
--- atol 0, and rtol the type's eps times max(m, n), or 0 where atol is given.
---@param x accelerate.Tensor (.., m, n)
---@param tol (number|accelerate.Tensor)? another name of atol, as in NumPy
---@param hermitian boolean? x is symmetric, and only its lower triangle is read; default false
---@param options { atol: (number|accelerate.Tensor)?, rtol: (number|accelerate.Tensor)? }?
---@return accelerate.Tensor (..)
M.matrix_rank = reads("matrix_rank", "x:T tol:TN? hermitian:bool=false + atol:TN? rtol:TN?",
  function(x, tol, hermitian, atol, rtol)
    atol = either("matrix_rank", "tol", tol, "atol", atol)
    check_matrix("matrix_rank", x)
    if hermitian then matrix.check_square("matrix_rank", x) end
    if x.shape[x.ndim] == 0 or x.shape[x.ndim - 1] == 0 then
      return core.zeros(batch_of(x), { dtype = "int64", device = x.device })
    end
    return core.no_grad(function()
      local values = magnitudes(x, hermitian)
      return values:gt(bound("matrix_rank", x, values, atol, rtol)):sum(-1)
    end)
  end, BOTH)

-- 1 / s where s is above the bound, else 0.
local function reciprocal(s, magnitude, least)
  local kept = magnitude:gt(least)
  return core.where(kept, core.where(kept, s, 1):reciprocal(), 0)
end

local function transposed(x) return x:transpose(-2, -1) end
local adjoint = matrix.adjoint

--- Returns the pseudoinverse of Moore and Penrose. Singular values up to max(atol, rtol * the
--- largest one) count as zero; defaults as in matrix_rank. The gradient holds while the rank does
--- not change.
---@param x accelerate.Tensor (.., m, n)
---@param rcond (number|accelerate.Tensor)? another name of rtol, as in NumPy
---@param hermitian boolean? x is symmetric, and only its lower triangle is read; default false
---@param options { atol: (number|accelerate.Tensor)?, rtol: (number|accelerate.Tensor)? }?
---@return accelerate.Tensor (.., n, m)
M.pinv = reads("pinv", "x:T rcond:TN? hermitian:bool=false + atol:TN? rtol:TN?",
  function(x, rcond, hermitian, atol, rtol)
    rtol = either("pinv", "rcond", rcond, "rtol", rtol)
    check_matrix("pinv", x)
    if hermitian then matrix.check_square("pinv", x) end
    if x:numel() == 0 then return transposed(x):contiguous() end
    if hermitian then
      local l, v = core._linalg.eigh(x)
      local size = l:detach():abs()
      return (v * reciprocal(l, size, bound("pinv", x, size, atol, rtol)):unsqueeze(-2)):matmul(adjoint(v))
    end
    local inverse = core.no_grad(function()
      local u, s, vh = core._linalg.svd(x, false)
      local scaled = u * reciprocal(s, s, bound("pinv", x, s, atol, rtol)):unsqueeze(-2)
      return adjoint(scaled:matmul(vh)):contiguous()
    end)
    return records(x) and core._linalg.pinv(x, inverse) or inverse
  end, BOTH)

-- ---- least squares

--- Returns x with the least norm of a x - b, itself least where several have it; the sums of
--- squares of a x - b for each column, where a has more rows than columns and full rank and the
--- driver is not "gelsy", else an empty tensor; a's rank (int64), with driver "gels" an empty
--- tensor; its singular values with the drivers "gelsd" and "gelss", else an empty tensor. "gelsy"
--- is the default; "gels" takes matrices of full rank alone. Singular values up to rcond times the
--- largest count as zero, default the type's eps times max(m, n). The gradient holds for a of full
--- rank.
---@param a accelerate.Tensor (.., m, n)
---@param b accelerate.Tensor (.., m, k) or (.., m)
---@param options { rcond: number?, driver: ("gelsy"|"gelsd"|"gelss"|"gels")? }?
---@return accelerate.Tensor solution (.., n, k) or (.., n)
---@return accelerate.Tensor residuals (.., k)
---@return accelerate.Tensor rank (..)
---@return accelerate.Tensor singular_values (.., min(m, n))
M.lstsq = reads("lstsq", "a:T b:T rcond:num? driver:gels|gelsy|gelsd|gelss=gelsy",
  function(a, b, rcond, driver)
  check_matrix("lstsq", a)
  local vectors = matrix.holds_vectors(a, b)
  local m, n = a.shape[a.ndim - 1], a.shape[a.ndim]
  a, b = matrix.one_batch("lstsq", a, vectors and b:unsqueeze(-1) or b)
  local solution, rank, values = core._linalg.lstsq(a, b, driver, rcond or matrix.eps(a) * math.max(m, n))
  local function empty(like) return core.empty(0, { dtype = like.dtype, device = like.device }) end
  local residuals = empty(values)
  if m > n and (driver == "gels" or driver ~= "gelsy" and rank:eq(n):all():item()) then
    residuals = (a:matmul(solution) - b):abs():square():sum(-2)
  end
  if driver == "gels" then rank = empty(rank) end
  if driver == "gels" or driver == "gelsy" then values = empty(values) end
  return vectors and solution:squeeze(-1) or solution, residuals, rank, values
end)

-- ---- condition

--- Returns the condition number norm(x) * norm(inverse of x) in the norm p of matrix_norm, inf for
--- a singular matrix. Without p, and for 2 and -2, by the singular values, and x need not be
--- square.
---@param x accelerate.Tensor (.., m, n)
---@param p (number|"fro"|"nuc")? 1, -1, 2, -2, inf, -inf, "fro" or "nuc"; default 2
---@return accelerate.Tensor (..)
M.cond = reads("cond", "x:T p:any?", function(x, p)
  check_matrix("cond", x)
  p = p or 2
  local norms = require "accelerate.tensor.linalg.norms"
  norms.check_matrix_ord("cond", p)
  if p == "fro" or p == "nuc" then matrix.check_square("cond", x) end
  if x:numel() == 0 then
    return core.zeros(batch_of(x), { dtype = matrix.real_type(x), device = x.device })
  end
  if p == 2 or p == -2 then
    local s = svdvals(x)
    local largest, least = s:select(-1, 1), s:select(-1, s.shape[s.ndim])
    if p == 2 then return largest / least end
    return least / largest
  end
  matrix.check_square("cond", x)
  if p == "nuc" then
    local s = svdvals(x)
    return s:sum(-1) * s:reciprocal():sum(-1)
  end
  local inverse, info = core._linalg.inv(x, false)
  return (norms.matrix_norm(x, p) * norms.matrix_norm(inverse, p)):masked_fill(info:ne(0), math.huge)
end)

return M
