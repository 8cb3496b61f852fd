--- Linear algebra under the names that PyTorch has beside torch.linalg.
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

local function linalg() return require "accelerate.tensor.linalg" end
local function adjoint(x) return x:transpose(-2, -1):conj() end

local function forward(name, signature, summary, to)
  define(name, signature, summary, function(...) return linalg()[to or name](...) end)
end

define("cholesky", "x:T upper:bool=false", "L with L L^T = x, or with `upper` U with U^T U = x",
  function(x, upper) return linalg().cholesky(x, { upper = upper }) end)
forward("inverse", "x:T", "the inverse of matrices; see tensor.linalg.inv", "inv")
forward("det", "x:T", "the determinant")
forward("slogdet", "x:T", "sign of the determinant and logarithm of its absolute value, as two values")
define("logdet", "x:T",
  "the logarithm of the determinant: -inf where it is 0, NaN where it is negative; " ..
  "of complex matrices complex",
  function(x)
    local sign, value = linalg().slogdet(x)
    if x:is_complex() then return core.complex(value, sign:angle()) end
    return value:masked_fill(sign:lt(0), 0 / 0)
  end)
forward("matrix_power", "x:T n:int", "the n-th power of matrices, of their inverse where n is negative")
forward("matrix_exp", "x:T", "the exponential of matrices")
define("pinverse", "x:T rcond:num=1e-15",
  "the pseudoinverse; singular values up to rcond times the largest count as zero",
  function(x, rcond) return linalg().pinv(x, { rtol = rcond }) end)
define("qr", "x:T some:bool=true",
  "Q and R of tensor.linalg.qr, mode \"reduced\", or \"complete\" without `some`",
  function(x, some) return linalg().qr(x, some and "reduced" or "complete") end)
define("svd", "x:T some:bool=true compute_uv:bool=true",
  "U, S and V with U diag(S) V^T = x; with `some` the first min(m, n) columns of U and V. Without " ..
  "compute_uv U and V " ..
    "are zeros. tensor.linalg.svd gives V^T",
  function(x, some, compute_uv)
    if compute_uv then
      local u, s, vh = linalg().svd(x, { full_matrices = not some })
      return u, s, adjoint(vh)
    end
    local s = linalg().svdvals(x)
    local shape = { unpack(x.shape) }
    local m, n = shape[#shape - 1], shape[#shape]
    local function zeros(k)
      shape[#shape - 1], shape[#shape] = k, k
      return core.zeros(shape, { dtype = x.dtype, device = x.device })
    end
    return zeros(m), s, zeros(n)
  end)

define("cholesky_solve", "b:T factor:T upper:bool=false",
  "x with a x = b, where cholesky gave the factor of a",
  function(b, factor, upper)
    local solve = linalg().solve_triangular
    local turned = adjoint(factor)
    if upper then return solve(factor, solve(turned, b, { upper = false }), { upper = true }) end
    return solve(turned, solve(factor, b, { upper = false }), { upper = true })
  end)
define("cholesky_inverse", "factor:T upper:bool=false",
  "the inverse of a, where cholesky gave the factor of a",
  function(factor, upper)
    local n = factor.shape[factor.ndim]
    local one = core.eye(n, { dtype = factor.dtype, device = factor.device })
    return one:cholesky_solve(factor, upper)
  end)
define("triangular_solve", "b:T a:T upper:bool=true transpose:bool=false unitriangular:bool=false",
  "x with a x = b, or a^T x = b, for triangular a; and a copy of a",
  function(b, a, upper, transpose, unit)
    local solve = linalg().solve_triangular
    if transpose then
      return solve(a:transpose(-2, -1), b, { upper = not upper, unitriangular = unit }), a:clone()
    end
    return solve(a, b, { upper = upper, unitriangular = unit }), a:clone()
  end)

define("lu", "x:T pivot:bool=true get_infos:bool=false",
  "LU factorisation in one matrix, and pivots; with get_infos also LAPACK's number for each matrix",
  function(x, pivot, get_infos)
    local LU, pivots, info = linalg().lu_factor_ex(x, { pivot = pivot })
    if get_infos then return LU, pivots, info end
    return LU, pivots
  end)
define("lu_solve", "b:T LU:T pivots:T", "x with a x = b, where lu gave LU and pivots of a",
  function(b, LU, pivots) return linalg().lu_solve(LU, pivots, b) end)
define("lu_unpack", "LU:T pivots:T", "P, L and U with P L U = a, where lu gave LU and pivots of a",
  function(LU,
  pivots)
  if LU.ndim < 2 then
    options.fail("lu_unpack: expected at least two dims, got shape %s", lists.shape_text(LU))
  end
  return require("accelerate.tensor.linalg.systems").unpack(LU, pivots)
end)
define.prepared("chain_matmul", "tensors:T*", "the product of matrices; see tensor.linalg.multi_dot",
  define.listed,
  function(tensors) return #tensors == 1 and tensors[1] or linalg().multi_dot(tensors) end, "function")
define("vander", "x:T N:int? increasing:bool=false",
  "powers of the elements of a vector, N - 1 to 0 or rising",
  function(x, n, increasing)
    if x.ndim ~= 1 then options.fail("vander: expected a vector, got shape %s", lists.shape_text(x)) end
    if n and n < 0 then options.fail("vander: N must be at least 0, got %d", n) end
    if n == 0 then return x:new_empty(x:numel(), 0) end
    local powers = linalg().vander(x, { N = n })
    return increasing and powers or powers:flip(-1)
  end, "function")

-- ---- reflections, few singular values

define("geqrf", "x:T",
  "QR as LAPACK keeps it: R from the diagonal on, below it the vectors of reflections, and their factors",
  function(x) return core._linalg.geqrf(x) end)
define("orgqr", "x:T tau:T", "another name of tensor.linalg.householder_product",
  function(x, tau) return linalg().householder_product(x, tau) end)
define("ormqr", "x:T tau:T other:T left:bool=true transpose:bool=false",
  "q other, q^T other, other q or other q^T for the square matrix q that geqrf gave as reflections",
  function(x, tau, other, left, transpose)
    return require("accelerate.tensor.linalg.reflections").ormqr(x, tau, other, left, transpose)
  end)

-- Q, whose q columns nearly span what a - mean does to most vectors (Halko, Martinsson and Tropp).
local function basis(a, q, niter)
  local qr = linalg().qr
  local shape = a.shape
  local Q = qr(a:matmul(core.randn({ shape[#shape], q }, { dtype = a.dtype, device = a.device })))
  for _ = 1, niter do
    local back = qr(adjoint(a):matmul(Q))
    Q = qr(a:matmul(back))
  end
  return Q
end

local function few_values(where, x, q, niter)
  if x.ndim < 2 then
    options.fail("%s: expected at least two dims, got shape %s", where, lists.shape_text(x))
  end
  local m, n = x.shape[x.ndim - 1], x.shape[x.ndim]
  if q < 0 or q > math.min(m, n) then
    options.fail("%s: q must be from 0 to min(m, n) = %d, got %d", where, math.min(m, n), q)
  end
  if niter < 0 then options.fail("%s: niter must be at least 0, got %d", where, niter) end
  local tall = m >= n and x or adjoint(x)
  local Q = basis(tall, q, niter)
  local u, s, vh = linalg().svd(adjoint(Q):matmul(tall), { full_matrices = false })
  u = Q:matmul(u)
  local v = adjoint(vh)
  if m < n then u, v = v, u end
  return u, s, v
end

define("svd_lowrank", "x:T q:int=6 niter:int=2 M:T?",
  "U, S and V of the q largest singular values of x, or of x - M, by products with random vectors",
  function(x, q, niter, mean) return few_values("svd_lowrank", mean and x - mean or x, q, niter) end)
define("pca_lowrank", "x:T q:int? center:bool=true niter:int=2",
  "svd_lowrank of x, less the means of its columns where `center`; q is min(6, m, n) where it is not given",
  function(x, q, center, niter)
    if x.ndim < 2 then
      options.fail("pca_lowrank: expected at least two dims, got shape %s", lists.shape_text(x))
    end
    q = q or math.min(6, x.shape[x.ndim - 1], x.shape[x.ndim])
    return few_values("pca_lowrank", center and x - x:mean(-2, true) or x, q, niter)
  end)
