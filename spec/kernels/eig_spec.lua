--- Eigenvalues of any real matrix, by the Schur form of kernels/cpu/linalg/dense_schur.inc:
--- residuals in units of the type's precision for sizes around vectors and squares, and matrices
--- that are hard for QR steps: orthogonal, defective, badly scaled ones, and those that fall into
--- blocks.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"

local linalg = tensor.linalg
local EPS = { float32 = 2 ^ -23, float64 = 2 ^ -52 }
local SIZES = { 47, 48, 49, 51, 63, 64, 65, 80, 81, 97, 129, 200 }
local N = 90 -- of the special ones

local generator = tensor.Generator(4)
local function random(dtype, ...) return tensor.randn({ ... }, { generator = generator, dtype = dtype }) end
local function largest(x) return x:abs():max():item() end

local function check(what, a, bound)
  local n, eps = a.shape[1], EPS[a.dtype]
  local values, vectors = linalg.eig(a)
  local l, v, wide = values:cdouble(), vectors:cdouble(), a:double()
  local norm = math.max(linalg.matrix_norm(wide):item(), 1e-300)
  local function small(part, error, most)
    assert(error <= most * eps, ("%s of %d, %s: %s off by %g eps"):format(what, n, a.dtype, part,
      error / eps))
  end
  small("residual", largest(wide:cdouble():mm(v) - v * l) / norm, bound or 10)
  small("length", largest(v:abs():square():sum(1) - 1), 20)
  small("trace", math.abs(l:sum():real():item() - wide:trace():item()) / norm, 10 * math.sqrt(n))
  assert.equal(0, largest(l:imag():sum()))
  -- a largest element of a complex vector has no imaginary part
  local size = v:abs()
  local others = size:lt(size:amax(1, true) * 0.999)
  small("phase", largest(v:imag():abs():masked_fill(others, 1):amin(1)), 4)
  local alone = linalg.eigvals(a):cdouble()
  small("values alone", largest((alone - l)) / norm, 100)
end

local HARD = {
  zero = function(t) return tensor.zeros(N, N, { dtype = t }) end,
  identity = function(t) return tensor.eye(N, { dtype = t }) end,
  ["all ones"] = function(t) return tensor.ones(N, N, { dtype = t }) end,
  symmetric = function(t)
    local x = random(t, N, N)
    return x + x.mT
  end,
  ["skew-symmetric"] = function(t)
    local x = random(t, N, N)
    return x - x.mT
  end,
  orthogonal = function(t) return (linalg.qr(random(t, N, N))) end,
  ["upper triangular"] = function(t) return random(t, N, N):triu() end,
  ["lower triangular"] = function(t) return random(t, N, N):tril() end,
  ["one cycle"] = function(t) return tensor.eye(N, { dtype = t }):roll(1, 1) end,
  ["a Jordan block"] = function(t)
    return tensor.eye(N, { dtype = t }) + tensor.diag(tensor.ones(N - 1, { dtype = t }), 1)
  end,
  ["two blocks"] = function(t)
    return tensor.block_diag { random(t, 40, 40), tensor.eye(N - 40, { dtype = t }) }
  end,
  companion = function(t)
    local a = tensor.diag(tensor.ones(N - 1, { dtype = t }), -1)
    a[{ {}, N }] = random(t, N)
    return a
  end,
  nilpotent = function(t) return random(t, N, N):triu(1) end,
  positive = function(t) return random(t, N, N):abs() end,
  ["tiny numbers"] = function(t) return random(t, N, N) * (t == "float32" and 1e-36 or 1e-304) end,
  ["huge numbers"] = function(t) return random(t, N, N) * (t == "float32" and 1e34 or 1e303) end,
}

for _, dtype in ipairs { "float32", "float64" } do
  describe("eigenvalues in " .. dtype, function()
    for _, n in ipairs(SIZES) do
      it("of random matrices of " .. n, function() check("a random matrix", random(dtype, n, n)) end)
    end

    for what, make in pairs(HARD) do
      it("of a matrix that is hard: " .. what, function() check(what, make(dtype)) end)
    end

    it("of columns over many orders of magnitude, balanced", function()
      local scale = (tensor.arange(N):to(dtype) * 0.1):exp()
      local x = random(dtype, N, N)
      check("a scaled matrix", x * scale / scale:unsqueeze(2), 1000)
      local expected, got = linalg.eigvals(x):cdouble(), linalg.eigvals(
        x * scale / scale:unsqueeze(2)):cdouble()
      local function sorted(z) return (z:abs():sort()) end
      assert.is_true(largest(sorted(expected) - sorted(got)) / largest(expected) < 1e4 * EPS[dtype])
    end)

    it("are those of the same matrix in a batch, for any number of threads", function()
      local before = core.get_num_threads()
      local a = random(dtype, 3, 70, 70)
      for _, n in ipairs { 1, 2, 3 } do
        core.set_num_threads(n)
        local values, vectors = linalg.eig(a)
        for i = 1, 3 do
          local l, v = linalg.eig(a[i])
          assert.is_true(values[i]:equal(l) and vectors[i]:equal(v))
        end
      end
      core.set_num_threads(before)
    end)
  end)
end
