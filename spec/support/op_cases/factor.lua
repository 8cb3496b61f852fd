--- Cases of the rows in host/core/ops/factor.def. Factors are compared through what they multiply
--- to.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, each = H.range, H.each

local function turned(x) return x:transpose(-2, -1) end
local function eye(x) return core.eye(x.shape[x.ndim], { dtype = x.dtype, device = x.device }) end
-- well-conditioned matrices, whatever the layout of x
local function regular(x) return x + eye(x) * 3 end
local function symmetric(x)
  local n = x.shape[x.ndim]
  local steps = core.arange(n, { device = x.device }):to(x.dtype)
  return x + turned(x) + steps:diag() * 6
end
local function positive(x) return x:matmul(turned(x)) + eye(x) end

-- ---- references, for one matrix

local function copy(a) return each(a, function(row) return { unpack(row) } end) end

local function product(a, b)
  local out = {}
  for i = 1, #a do
    out[i] = {}
    for j = 1, #b[1] do
      local s = 0
      for k = 1, #b do s = s + a[i][k] * b[k][j] end
      out[i][j] = s
    end
  end
  return out
end

local function flipped(a)
  local out = {}
  for j = 1, #a[1] do
    out[j] = {}
    for i = 1, #a do out[j][i] = a[i][j] end
  end
  return out
end

-- Gauss's elimination with the largest pivots: the solution, and the determinant.
local function eliminate(a, b)
  a, b = copy(a), copy(b)
  local n, det = #a, 1
  for k = 1, n do
    local best = k
    for i = k, n do if math.abs(a[i][k]) > math.abs(a[best][k]) then best = i end end
    if best ~= k then a[k], a[best], b[k], b[best], det = a[best], a[k], b[best], b[k], -det end
    det = det * a[k][k]
    for i = 1, n do
      if i ~= k then
        local f = a[i][k] / a[k][k]
        for j = k, n do a[i][j] = a[i][j] - f * a[k][j] end
        for j = 1, #b[1] do b[i][j] = b[i][j] - f * b[k][j] end
      end
    end
  end
  for i = 1, n do for j = 1, #b[1] do b[i][j] = b[i][j] / a[i][i] end end
  return b, det
end

local function unit(n)
  local out = {}
  for i = 1, n do
    out[i] = {}
    for j = 1, n do out[i][j] = i == j and 1 or 0 end
  end
  return out
end

local function raised(a, by)
  a = copy(a)
  for i = 1, #a do a[i][i] = a[i][i] + by end
  return a
end
local function as_regular(a) return raised(a, 3) end
local function inverse(a) return (eliminate(a, unit(#a))) end

-- ---- cases: a batch of matrices, so that the layout with a repeated first dim is no singular one

-- Bounds that differ: no two elements are equal but for the sign, which would be a tie of pivots.
local SQUARE = range(-1, 1.3, { 2, 3, 3 })
local function square(row, call, ref) C[row] = { inputs = { SQUARE }, call = call, ref = ref } end
local function batch(f) return function(x) return each(x, f) end end

square("_linalg_cholesky", function(x)
  local l = core._linalg.cholesky(positive(x))
  local u = core._linalg.cholesky(positive(x), true)
  return l:matmul(turned(l)), l - turned(u), u
end, function(x)
  local p = each(x, function(a) return raised(product(a, flipped(a)), 1) end)
  return p, each(p,
    function(a) return each(a, function(row) return each(row, function() return 0 end) end) end)
end)

local function assembled(LU, pivots, m, n)
  local k = math.min(m, n)
  local l = LU:narrow(-1, 1, k):tril(-1) + core.eye(m, k, { dtype = LU.dtype, device = LU.device })
  return core._linalg.permutation(pivots, m, LU.dtype):matmul(l):matmul(LU:narrow(-2, 1, k):triu())
end
C._linalg_lu = {
  inputs = { SQUARE, range(-1, 1.3, { 2, 4, 2 }), range(-1, 1.3, { 2, 2, 4 }) },
  call = function(x, tall, wide)
    local results = {}
    for k, a in ipairs { x, tall, wide } do
      local LU, pivots = core._linalg.lu(a)
      results[2 * k - 1] = assembled(LU, pivots, a.shape[2], a.shape[3])
      results[2 * k] = LU
    end
    return results[1], results[3], results[5], results[2], results[4], results[6]
  end,
  ref = function(x, tall, wide) return x, tall, wide end,
}
C._linalg_permutation = { through = "_linalg_lu" }

C._linalg_solve = { inputs = { SQUARE, range(-2, 2, { 2, 3, 2 }) },
  call = function(a, b) return core._linalg.solve(regular(a), b) end,
  ref = function(a, b)
    return { (eliminate(as_regular(a[1]), b[1])), (eliminate(as_regular(a[2]), b[2])) }
  end }
C._linalg_lu_solve = { inputs = { range(-2, 2, { 2, 3, 2 }) },
  call = function(b)
    local a = core.tensor({ { { 1, 2, 0 }, { 3, -1, 1 }, { 0, 4, 2 } },
      { { 2, 0, 1 }, { 1, 1, 0 }, { 0, 1, 3 } } },
      { dtype = "float64" }):to(b.dtype):to(b.device)
    local LU, pivots = core._linalg.lu(a)
    return a:matmul(core._linalg.lu_solve(LU, pivots, b)),
      turned(a):matmul(core._linalg.lu_solve(LU, pivots, b, true))
  end,
  ref = function(b) return b, b end }
C._linalg_solve_triangular = { inputs = { SQUARE, range(-2, 2, { 2, 3, 2 }) },
  call = function(a, b)
    local r = regular(a)
    local function solved(upper, transposed, unitriangular)
      local t = upper and r:triu() or r:tril()
      if unitriangular then t = t - core.diag_embed(t:diagonal(0, -2, -1)) + eye(t) end
      local x = core._linalg.solve_triangular(r, b, upper, transposed, unitriangular)
      return (transposed and turned(t) or t):matmul(x)
    end
    return solved(false, false, false), solved(true, true, false), solved(true, false, true),
      solved(false, true, true), core._linalg.solve_triangular(r, b, true)
  end,
  ref = function(_, b) return b, b, b, b end }
square("_linalg_inv", function(x) return (core._linalg.inv(regular(x))) end,
  batch(function(a) return inverse(as_regular(a)) end))
square("_linalg_det", function(x) return core._linalg.det(x) end,
  batch(function(a) return select(2, eliminate(a, unit(3))) end))
square("_linalg_slogdet", function(x) return select(2, core._linalg.slogdet(x)) end,
  batch(function(a) return math.log(math.abs((select(2, eliminate(a, unit(3)))))) end))
square("_linalg_cofactor", function(x) return core._linalg.cofactor(x) end, batch(function(a)
  local _, det = eliminate(a, unit(3))
  return each(flipped(inverse(a)), function(row) return each(row, function(v) return v * det end) end)
end))

C._linalg_qr = {
  inputs = { range(-1, 1.3, { 2, 4, 3 }), range(-1, 1.3, { 2, 2, 4 }) },
  call = function(tall, wide)
    local q, r = core._linalg.qr(tall)
    local q2, r2 = core._linalg.qr(wide, "complete")
    return q:matmul(r), q2:matmul(r2), q, r, q2, r2
  end,
  ref = function(tall, wide) return tall, wide end,
}
local function recombined(u, s, vh) return (u * s:unsqueeze(-2)):matmul(vh) end
-- Vectors by their size: each library has its own signs.
C._linalg_svd = {
  inputs = { range(-1, 1.3, { 2, 4, 2 }), range(-1, 1.3, { 2, 2, 3 }) },
  call = function(tall, wide)
    local u, s, vh = core._linalg.svd(tall, false)
    local u2, s2, vh2 = core._linalg.svd(wide)
    vh2 = vh2:narrow(-2, 1, 2)
    return recombined(u, s, vh), recombined(u2, s2, vh2), s, u:abs(), vh:abs(), u2:abs(), vh2:abs()
  end,
  ref = function(tall, wide) return tall, wide end,
}
square("_linalg_eigh", function(x)
  local l, v = core._linalg.eigh(symmetric(x))
  local l2, v2 = core._linalg.eigh(symmetric(x), true)
  return recombined(v, l, turned(v)), l - l2, l, v:abs(), v2:abs()
end, function(x)
  return each(x, function(a)
    local out = copy(a)
    for i = 1, 3 do
      for j = 1, 3 do out[i][j] = a[i][j] + a[j][i] + (i == j and 6 * (i - 1) or 0) end
    end
    return out
  end)
end)
-- By sums that depend neither on the order of the values nor on the angles of the vectors.
square("_linalg_eig", function(x)
  local l, v = core._linalg.eig(x)
  local wide = core.complex(x, x:mul(0))
  return l:sum(-1):real(), (l * l):sum(-1):real(), (wide:matmul(v) - v * l:unsqueeze(-2)):real(),
    v:abs():pow(4):sum(-1)
end, function(x)
  local function trace(a)
    local t = 0
    for i = 1, 3 do t = t + a[i][i] end
    return t
  end
  return each(x, trace), each(x, function(a) return trace(product(a, a)) end),
    each(x, function(a) return each(a, function(row) return each(row, function() return 0 end) end) end)
end)
C._linalg_geqrf = { inputs = { range(-1, 1.3, { 2, 4, 3 }) },
  call = function(x)
    local a, tau = core._linalg.geqrf(x)
    return turned(a:triu()):matmul(a:triu()):narrow(-1, 1, 3), tau
  end,
  ref = function(x) return each(x, function(a) return product(flipped(a), a) end) end }
C._linalg_ldl = { inputs = { SQUARE },
  call = function(x)
    local a = symmetric(x)
    local LD, pivots = core._linalg.ldl(a)
    return a:matmul(core._linalg.ldl_solve(LD, pivots, x))
  end,
  ref = function(x) return x end }
C._linalg_ldl_solve = { through = "_linalg_ldl" }
C._linalg_lstsq = {
  inputs = { range(-1, 1.3, { 2, 4, 2 }), range(-1, 1.3, { 2, 4, 1 }), range(-1, 1.3, { 2, 2, 3 }),
    range(-1, 1.3, { 2, 2, 1 }) },
  call = function(a, b, wide, c)
    local eps = 1e-10
    return (core._linalg.lstsq(a, b, "gelsy", eps)), (core._linalg.lstsq(a, b, "gels", eps)),
      (core._linalg.lstsq(wide, c, "gelsd", eps)), (core._linalg.lstsq(wide, c, "gelss", eps))
  end,
  ref = function(a, b)
    local out = {}
    for i = 1, 2 do out[i] = (eliminate(product(flipped(a[i]), a[i]), product(flipped(a[i]), b[i]))) end
    return out, out
  end,
}
local function normal_inverse(a) return product(inverse(product(flipped(a), a)), flipped(a)) end
C._linalg_pinv = {
  inputs = { range(-1, 1.3, { 2, 3, 2 }), range(-1, 1.3, { 2, 2, 3 }) },
  call = function(tall, wide)
    local linalg = require "accelerate.tensor.linalg"
    return linalg.pinv(tall), linalg.pinv(wide)
  end,
  ref = function(tall, wide)
    return each(tall, normal_inverse), each(wide, function(a) return flipped(normal_inverse(flipped(a))) end)
  end,
}
