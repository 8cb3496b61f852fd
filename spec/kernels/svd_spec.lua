--- Singular values of real matrices by kernels/cpu/linalg/dense_bidiagonal.inc and LAPACK's bdsdc:
--- residual and orthogonality in units of the type's precision, tall and wide, and matrices that
--- are hard.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"

local linalg = tensor.linalg
local nan = 0 / 0
local EPS = { float32 = 2 ^ -23, float64 = 2 ^ -52 }
local SIZES = { { 47, 47 }, { 48, 48 }, { 49, 48 }, { 48, 49 }, { 65, 64 }, { 64, 90 }, { 97, 65 },
  { 129, 128 },
  { 150, 100 }, { 151, 100 }, { 100, 150 }, { 257, 256 } }
local N = 90 -- of the special ones

local generator = tensor.Generator(6)
local function random(dtype, ...) return tensor.randn({ ... }, { generator = generator, dtype = dtype }) end
local function largest(x) return x:abs():max():item() end

local function check(what, a)
  local m, n, eps, wide = a.shape[1], a.shape[2], EPS[a.dtype], a:double()
  local k = math.min(m, n)
  local alone = linalg.svdvals(a):double()
  for _, full in ipairs { false, true } do
    local u, s, vt = linalg.svd(a, { full_matrices = full })
    assert.same({ m, full and m or k }, u.shape)
    assert.same({ full and n or k, n }, vt.shape)
    u, s, vt = u:double(), s:double(), vt:double()
    local norm = math.max(s[1]:item(), 1e-300)
    local function small(part, error, most)
      assert(error <= most * eps, ("%s of %d x %d, %s: %s off by %g eps"):format(what, m, n, a.dtype, part,
        error / eps))
    end
    small("residual", largest((u:narrow(2, 1, k) * s):mm(vt:narrow(1, 1, k)) - wide) / norm, 20)
    small("left vectors", largest(u.mT:mm(u) - tensor.eye(u.shape[2], { dtype = "float64" })), 60)
    small("right vectors", largest(vt:mm(vt.mT) - tensor.eye(vt.shape[1], { dtype = "float64" })), 60)
    small("values alone", largest(alone - s) / norm, 30)
    assert.is_true(s:min():item() >= 0 and (s:narrow(1, 1, k - 1) - s:narrow(1, 2, k - 1)):min():item() >= 0)
  end
end

local HARD = {
  zero = function(t) return tensor.zeros(N, N + 5, { dtype = t }) end,
  identity = function(t) return tensor.eye(N, { dtype = t }) end,
  ["all ones"] = function(t) return tensor.ones(N, N + 10, { dtype = t }) end,
  diagonal = function(t) return tensor.diag(random(t, N)) end,
  ["upper triangular"] = function(t) return random(t, N, N):triu() end,
  ["lower triangular"] = function(t) return random(t, N, N):tril() end,
  orthogonal = function(t) return (linalg.qr(random(t, N, N))) end,
  ["rank 1"] = function(t) return random(t, N, 1):mm(random(t, 1, N)) end,
  ["columns that fall"] = function(t) return random(t, N, N) * (tensor.arange(N):to(t) * -0.3):exp() end,
  ["zeros in a column"] = function(t)
    local a = random(t, N, N)
    a[{ {}, 40 }] = 0
    a[{ 7, {} }] = 0
    return a
  end,
  ["tiny numbers"] = function(t) return random(t, N, N) * (t == "float32" and 1e-36 or 1e-304) end,
  ["huge numbers"] = function(t) return random(t, N, N) * (t == "float32" and 1e35 or 1e304) end,
}

for _, dtype in ipairs { "float32", "float64" } do
  describe("singular values in " .. dtype, function()
    for _, size in ipairs(SIZES) do
      it(("of random matrices of %d x %d"):format(unpack(size)), function()
        check("a random matrix", random(dtype, unpack(size)))
      end)
    end

    for what, make in pairs(HARD) do
      it("of a matrix that is hard: " .. what, function() check(what, make(dtype)) end)
    end

    it("refuse what is not finite, and name the matrix", function()
      local a = random(dtype, 2, 60, 60)
      a[{ 2, 5, 9 }] = nan
      local ok, message = pcall(linalg.svd, a)
      assert.is_false(ok)
      assert.matches("linalg.svd: matrix 2 of the batch has elements that are not finite", message, 1, true)
    end)

    it("are those of the same matrix in a batch, with the same bits for any number of threads", function()
      local before = core.get_num_threads()
      local a, large = random(dtype, 3, 70, 60), random(dtype, 200, 230)
      core.set_num_threads(1)
      local u, s, vt = linalg.svd(large)
      for _, n in ipairs { 1, 2, 3, 5 } do
        core.set_num_threads(n)
        local u2, s2, vt2 = linalg.svd(large)
        assert.is_true(u:equal(u2) and s:equal(s2) and vt:equal(vt2), n .. " threads")
        local many, values = linalg.svd(a)
        for i = 1, 3 do
          local one, value = linalg.svd(a[i])
          assert.is_true(many[i]:equal(one) and values[i]:equal(value), n .. " threads")
        end
      end
      core.set_num_threads(before)
    end)
  end)
end
