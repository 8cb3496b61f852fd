--- The dense factorisations of kernels/cpu/linalg/dense.c: backward errors of blocked and small
--- sizes in units of the type's precision, graded and singular matrices, elements that are not
--- finite, and the same bits for any number of threads.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"

local linalg = tensor.linalg
local nan, inf = 0 / 0, math.huge
local EPS = { float32 = 2 ^ -23, float64 = 2 ^ -52 }
-- below, at and above the widths of vectors, tiles, panels and blocks
local SIZES = { 1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 63, 64, 65, 129, 200 }

local generator = tensor.Generator(11)
local function random(dtype, ...) return tensor.randn({ ... }, { generator = generator, dtype = dtype }) end
local function eye(n, dtype) return tensor.eye(n, { dtype = dtype }) end
local function largest(x) return x:numel() == 0 and 0 or x:double():abs():max():item() end

--- Asserts that the elements of `difference` are at most `bound` times eps times `scale`.
local function small(what, n, difference, scale, dtype, bound)
  local error = largest(difference) / (EPS[dtype] * math.max(scale, 1e-300))
  assert(error <= bound, ("%s of %d, %s: an error of %g eps, at most %g expected"):format(what, n, dtype,
    error,
    bound))
end

-- Columns over many orders of magnitude.
local function graded(dtype, m, n)
  local scales = {}
  for k = 1, n do scales[k] = 10 ^ (-12 * (k - 1) / n) end
  return random(dtype, m, n) * tensor.tensor(scales, { dtype = dtype })
end

for _, dtype in ipairs { "float32", "float64" } do
  describe("dense factorisations in " .. dtype, function()
    local function check_lu(x, bound)
      local P, L, U = linalg.lu(x)
      small("LU", x.shape[2], P:matmul(L):matmul(U) - x, largest(x) * math.sqrt(x.shape[1] + x.shape[2]),
        dtype,
        bound)
      assert(largest(L) <= 1) -- partial pivoting
    end

    local function check_qr(x)
      local m, n = x.shape[1], x.shape[2]
      for _, mode in ipairs { "reduced", "complete" } do
        local Q, R = linalg.qr(x, mode)
        small("QR", n, Q:matmul(R) - x, largest(x) * math.sqrt(m + n), dtype, 8)
        small("QR's Q", n, Q.mT:matmul(Q) - eye(Q.shape[2], dtype), math.sqrt(m), dtype, 8)
        assert.equal(0, largest(R:tril(-1)))
      end
    end

    it("have the backward error of LAPACK: LU and QR of any form", function()
      for _, n in ipairs(SIZES) do
        for _, m in ipairs { n, n + 5, math.max(1, n - 3) } do
          check_lu(random(dtype, m, n), 8)
          check_qr(random(dtype, m, n))
          check_qr(graded(dtype, m, n))
          check_lu(graded(dtype, m, n), 8)
        end
      end
    end)

    it("have the backward error of LAPACK: LU of many columns, in blocks that change the rest once",
      function()
      for _, shape in ipairs { { 513, 513 }, { 770, 770 }, { 600, 540 }, { 530, 700 }, { 768, 1026 } } do
        check_lu(random(dtype, unpack(shape)), 8)
      end
      local x = random(dtype, 600, 600)
      check_lu(graded(dtype, 600, 600), 8)
      x[{ {}, 590 }]:zero_()
      assert.equal(590, (select(3, linalg.lu_factor_ex(x))):item())
    end)

    it("have the backward error of LAPACK: solutions, inverse, Cholesky", function()
      for _, n in ipairs(SIZES) do
        local x = random(dtype, n, n) + eye(n, dtype) * 3
        local size = largest(x)
        local inverse = linalg.inv(x)
        small("inverse", n, x:matmul(inverse) - eye(n, dtype), size * largest(inverse) * n, dtype, 4)
        local p = x:matmul(x.mT) + eye(n, dtype)
        p = (p + p.mT) / 2 -- a product's rounding need not be symmetric
        local L, U = linalg.cholesky(p), linalg.cholesky(p, { upper = true })
        small("Cholesky", n, L:matmul(L.mT) - p, largest(p) * math.sqrt(n), dtype, 4)
        assert.is_true(U.mT:equal(L))
        local LU, pivots = linalg.lu_factor(x)
        for _, k in ipairs { 1, 4, 5, 8, 16, 19, 32, 40 } do
          local b = random(dtype, n, k)
          local function solved(what, a, y)
            small(what, n, a:matmul(y) - b, (largest(a) * largest(y) + 1) * n, dtype, 4)
          end
          solved("solution", x, linalg.solve(x, b))
          solved("transposed solution", x.mT, linalg.lu_solve(LU, pivots, b, { adjoint = true }))
          for _, upper in ipairs { true, false } do
            local t = (upper and x:triu() or x:tril()) + eye(n, dtype) * (2 * math.sqrt(n))
            solved("triangle", t, linalg.solve_triangular(t, b, { upper = upper }))
            solved("triangle on the right", t.mT,
              linalg.solve_triangular(t, b.mT, { upper = upper, left = false }).mT)
          end
        end
      end
    end)

    it("name the zero pivot and the minor that is not positive, also in a later block", function()
      for _, n in ipairs { 3, 40, 150 } do
        local x = random(dtype, n, n)
        x[{ {}, n - 1 }]:zero_()
        assert.equal(n - 1, (select(3, linalg.lu_factor_ex(x))):item())
        assert.equal(0, linalg.det(x):item())
        local p = eye(n, dtype)
        p[{ n - 1, n - 1 }] = -1
        assert.equal(n - 1, (select(2, linalg.cholesky_ex(p))):item())
        p[{ n - 1, n - 1 }] = nan
        assert.equal(n - 1, (select(2, linalg.cholesky_ex(p))):item())
        local low = random(dtype, n, 1):matmul(random(dtype, 1, n)) -- rank 1
        check_qr(low)
        check_lu(low, 8)
        check_qr(tensor.zeros({ n, n }, { dtype = dtype }))
      end
    end)

    it("take the pivot that is largest, the first of equal ones", function()
      local x = tensor.tensor({ { 1, 2, 3 }, { -4, 1, 0 }, { 4, 5, 6 } }, { dtype = dtype })
      assert.same({ 2, 3, 3 }, (select(2, linalg.lu_factor(x))):totable())
      -- many rows with equal sizes: all of a plain elimination's numbers are exact here
      for _, rows in ipairs { 65, 100, 131 } do
        local many, plain, pivots = (random(dtype, rows, 3) * 0.6):round():clamp(-1, 1) * 2, {}, {}
        for i = 1, rows do plain[i] = many[i]:totable() end
        for c = 1, 3 do
          local at = c
          for i = c, rows do
            if math.abs(plain[i][c]) > math.abs(plain[at][c]) then at = i end
          end
          plain[c], plain[at], pivots[c] = plain[at], plain[c], at
          for i = c + 1, rows do
            local l = plain[i][c] / plain[c][c]
            for k = c + 1, 3 do plain[i][k] = plain[i][k] - l * plain[c][k] end
          end
        end
        assert.same(pivots, (select(2, linalg.lu_factor(many))):totable())
      end
    end)

    it("keep numbers near the ends of the type", function()
      local least, most = dtype == "float32" and 1e-42 or 1e-310, dtype == "float32" and 1e36 or 1e300
      for _, scale in ipairs { least, most } do
        local x = random(dtype, 20, 6) * scale
        local Q, R = linalg.qr(x)
        small("QR's Q", 6, Q.mT:matmul(Q) - eye(6, dtype), 1, dtype, 20)
        assert.is_true(R:isfinite():all():item())
        local y = random("float64", 6, 6):to(dtype) * scale
        assert.is_true((linalg.lu_factor(y)):isfinite():all():item())
        local many = random("float64", 90, 90):to(dtype) * scale
        assert.is_true((linalg.lu_factor(many)):isfinite():all():item())
        assert(largest((select(2, linalg.lu(many)))) <= 1)
      end
    end)

    it("neither hang nor raise on elements that are not finite", function()
      for _, bad in ipairs { nan, inf, -inf } do
        for _, n in ipairs { 4, 70 } do
          local x = random(dtype, n, n) + eye(n, dtype) * 20
          x[{ 2, 3 }] = bad
          assert.equal(n * n, (linalg.qr(x)):numel())
          assert.is_false((linalg.inv_ex(x)):isfinite():all():item())
          assert.is_false((linalg.lu_factor_ex(x)):isfinite():all():item())
        end
      end
    end)

    it("give the same bits for any number of threads", function()
      local before = core.get_num_threads()
      local x, b = random(dtype, 300, 300) + eye(300, dtype) * 9, random(dtype, 300, 130)
      local p, few, many = x:matmul(x.mT), random(dtype, 2, 120, 120), random(dtype, 520, 530)
      local function all()
        local q, r = linalg.qr(x)
        return { linalg.solve(x, b), linalg.inv(x), linalg.det(x), linalg.cholesky(p), q, r,
          (linalg.lu_factor(x)), (linalg.lu_factor(many)),
          linalg.solve_triangular(x, b, { upper = false }), linalg.inv(few), x:double():mm(x:double()) }
      end
      core.set_num_threads(1)
      local expected = all()
      for _, n in ipairs { 2, 3, 5 } do
        core.set_num_threads(n)
        for k, result in ipairs(all()) do
          assert(result:equal(expected[k]), ("result %d differs with %d threads"):format(k, n))
        end
      end
      core.set_num_threads(before)
    end)
  end)
end
