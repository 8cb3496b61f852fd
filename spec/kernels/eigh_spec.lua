--- Symmetric eigenvalues of kernels/cpu/linalg/dense_tridiagonal.inc and dense_conquer.inc:
--- residual and orthogonality in units of the type's precision, for sizes around blocks and leaves,
--- and for the matrices that such methods find hard: equal and clustered values, blocks, graded
--- matrices.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"

local linalg = tensor.linalg
local nan = 0 / 0
local EPS = { float32 = 2 ^ -23, float64 = 2 ^ -52 }
local SIZES = { 47, 48, 49, 63, 64, 65, 96, 97, 128, 161, 257, 300 }
local N = 150 -- of the special ones

local generator = tensor.Generator(3)
local function random(dtype, ...) return tensor.randn({ ... }, { generator = generator, dtype = dtype }) end
local function largest(x) return x:double():abs():max():item() end
local function plus_transposed(x) return x + x.mT end

-- Asserts that values and vectors are those of `a`, whose lower triangle counts.
local function check(what, a)
  local n, eps = a.shape[1], EPS[a.dtype]
  local values, vectors = linalg.eigh(a)
  local l, v = values:double(), vectors:double()
  local whole = a:double():tril() + a:double():tril(-1).mT
  local norm = linalg.matrix_norm(whole):item()
  local function small(part, difference, scale, bound)
    local error = largest(difference) / (eps * math.max(scale, 1e-300))
    assert(error <= bound, ("%s of %d, %s: %s off by %g eps"):format(what, n, a.dtype, part, error))
  end
  small("residual", whole:mm(v) - v * l, norm, 10)
  small("orthogonality", v.mT:mm(v) - tensor.eye(n, { dtype = "float64" }), 1, 60)
  assert.is_true(tensor.all(values:narrow(1, 2, n - 1):ge(values:narrow(1, 1, n - 1))):item())
  small("values alone", linalg.eigvalsh(a):double() - l, norm, 10)
end

-- An orthogonal matrix times a diagonal one times it transposed.
local function with_values(values)
  local q = linalg.qr(random(values.dtype, N, N))
  return (q * values):mm(q.mT)
end

-- A tridiagonal matrix of functions of the row.
local function tridiagonal(dtype, diagonal, beside)
  local d, e = {}, {}
  for i = 1, N do d[i], e[i] = diagonal(i), i < N and beside(i) or nil end
  local below = tensor.diag(tensor.tensor(e, { dtype = dtype }), -1)
  return tensor.diag(tensor.tensor(d, { dtype = dtype })) + below + below.mT
end

local function one() return 1 end

-- What is hard, and why.
local HARD = {
  zero = function(t) return tensor.zeros(N, N, { dtype = t }) end,
  identity = function(t) return tensor.eye(N, { dtype = t }) end,
  ["all ones"] = function(t) return tensor.ones(N, N, { dtype = t }) end,
  ["one number"] = function(t)
    return tensor.diag(tensor.cat { tensor.zeros(N - 1), tensor.ones(1) }):to(t)
  end,
  ["rank 5"] = function(t)
    local x = random(t, N, 5)
    return x:mm(x.mT)
  end,
  ["two values"] = function(t)
    return with_values(tensor.cat({ tensor.ones(N / 2), -tensor.ones(N / 2) }):to(t))
  end,
  clusters = function(t) return with_values(tensor.arange(N):div(10, { rounding_mode = "floor" }):to(t)) end,
  graded = function(t) return with_values((tensor.arange(N):to(t) * -0.2):exp()) end,
  ["values in pairs"] = function(t)
    return tridiagonal(t, function(i) return math.abs(i - (N + 1) / 2) end, one)
  end,
  ["second differences"] = function(t)
    return tridiagonal(t, function() return 2 end, function() return -1 end)
  end,
  ["couplings of 0"] = function(t)
    return tridiagonal(t, function(i) return i % 7 end, function(i) return i % 5 == 0 and 0 or 1e-3 end)
  end,
  ["couplings that fall"] = function(t)
    return tridiagonal(t, function(i) return 10 ^ (-i / 12) end, function(i) return 10 ^ (-i / 10) end)
  end,
  arrow = function(t)
    local a = tensor.diag(random(t, N))
    a[{ { 2, N }, 1 }] = 0.5
    return a
  end,
  ["tiny numbers"] = function(t)
    return plus_transposed(random(t, N, N)) * (t == "float32" and 1e-36 or 1e-304)
  end,
  ["huge numbers"] = function(t)
    return plus_transposed(random(t, N, N)) * (t == "float32" and 1e35 or 1e304)
  end,
}

for _, dtype in ipairs { "float32", "float64" } do
  describe("symmetric eigenvalues in " .. dtype, function()
    for _, n in ipairs(SIZES) do
      it("of random matrices of " .. n,
        function() check("a random matrix", plus_transposed(random(dtype, n, n))) end)
    end

    for what, make in pairs(HARD) do
      it("of a matrix that is hard: " .. what, function() check(what, make(dtype)) end)
    end

    it("are exact for a diagonal matrix", function()
      local d = random(dtype, N)
      local values, vectors = linalg.eigh(tensor.diag(d))
      assert.is_true(values:equal((d:sort())))
      assert.is_true(vectors:abs():sum(1):equal(tensor.ones(N, { dtype = dtype })))
    end)

    it("read one triangle alone", function()
      local a = plus_transposed(random(dtype, 70, 70))
      local poison = tensor.full({ 70, 70 }, nan, { dtype = dtype })
      local values, vectors = linalg.eigh(a)
      for UPLO, part in pairs { L = "tril", U = "triu" } do
        local half = a:where(tensor.ones(70, 70)[part](tensor.ones(70, 70)):bool(), poison)
        local l, v = linalg.eigh(half, UPLO)
        assert.is_true(l:equal(values) and v:equal(vectors), UPLO)
        assert.is_true(linalg.eigvalsh(half, UPLO):equal(linalg.eigvalsh(a)), UPLO)
      end
      a[{ 60, 50 }] = nan
      local ok, message = pcall(linalg.eigh, a)
      assert.is_false(ok)
      assert.matches("linalg.eigh: the matrix has elements that are not finite", message, 1, true)
    end)

    it("of a batch are those of each matrix", function()
      local a = plus_transposed(random(dtype, 3, 64, 64))
      local values, vectors = linalg.eigh(a)
      for i = 1, 3 do
        local l, v = linalg.eigh(a[i])
        assert.is_true(values[i]:equal(l) and vectors[i]:equal(v))
      end
    end)

    it("have the same bits for any number of threads", function()
      local before = core.get_num_threads()
      local a, many = plus_transposed(random(dtype, 311, 311)), plus_transposed(random(dtype, 5, 80, 80))
      local function all()
        local l, v = linalg.eigh(a)
        local m, w = linalg.eigh(many)
        return { l, v, m, w, linalg.eigvalsh(a) }
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
