--- tensor.linalg on the device, through cuSOLVER and cuBLAS, against the CPU: values, gradients,
--- batches, layouts, matrices that have no factorisation.  On the emulated device the libraries are
--- strict stand-ins (spec/fakes/fake_cusolver.cpp, fake_cublas.cpp).
local device = require "spec.support.device"
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local host = require "spec.support.host"

if not device.name then
  describe("linear algebra on the device",
    function() it("needs one", function() pending(device.reason) end) end)
  return
end

local D = device.name
local linalg = tensor.linalg
-- Whether what runs here goes through the libraries: made where the toolkit has their headers.
local through = (function()
  linalg.cholesky(tensor.eye(2):to(D))
  return (core.kernel_stats { device = D } ["linalg.cholesky float32, cuSOLVER"] or 0) > 0
end)()

local TOLERANCE = { float32 = 2e-4, float64 = 1e-10, complex64 = 2e-4, complex128 = 1e-10 }
local PARTS = { complex64 = "float32", complex128 = "float64" }
local TYPES = { "float32", "float64", "complex64", "complex128" }

local same, numbers = device.agree, device.numbers

-- Matrices well away from singular ones; Hermitian ones with positive eigenvalues.
local function regular(dtype, ...)
  local shape = { ... }
  return numbers(dtype, shape) + tensor.eye(shape[#shape]):to(dtype) * 4
end
local function adjoint(x) return x:transpose(-1, -2):conj() end
local function positive(x)
  return x:matmul(adjoint(x)) + tensor.eye(x.shape[x.ndim]):to(x.dtype):to(x.device)
end

-- Results of fn(leaves) and the gradients of their weighted sum, on `on`.
local function run(fn, leaves, on)
  local mine = {}
  for k, leaf in ipairs(leaves) do mine[k] = leaf:to(on):detach():requires_grad_() end
  local results, total = { fn(unpack(mine)) }, nil
  for _, y in ipairs(results) do
    if y.requires_grad then
      local w = (tensor.arange(y:numel()) % 5 - 1.5):view(y.shape):to(PARTS[y.dtype] or y.dtype):to(on)
      local part = y:is_complex() and (y * w):real() + (y * w):imag() * 0.5 or y * w
      total = total and total + part:sum():double() or part:sum():double()
    end
  end
  total:backward()
  for _, leaf in ipairs(mine) do results[#results + 1] = leaf.grad end
  return results
end
local function agrees(what, fn, leaves, tolerance)
  local expected, got = run(fn, leaves, "cpu"), run(fn, leaves, D)
  for k in ipairs(expected) do
    same(got[k], expected[k], tolerance or TOLERANCE[leaves[1].dtype], ("%s, %d"):format(what, k))
  end
end

local SHAPES = { { 1, 1 }, { 5, 5 }, { 3, 4, 4 }, { 2, 3, 2, 2 } }

describe(("linear algebra on %s (%s)"):format(D, device.kind), function()
  before_each(function() tensor.manual_seed(9) end)

  for _, dtype in ipairs(TYPES) do
    it("factorises, solves and inverts: " .. dtype, function()
      for _, shape in ipairs(SHAPES) do
        local x, n = regular(dtype, unpack(shape)), shape[#shape]
        local wide = { unpack(shape) }
        wide[#wide] = 3
        local b = numbers(dtype, wide)
        local how = (" %s of %d x %d"):format(dtype, n, n)
        agrees("cholesky" .. how, function(a) return linalg.cholesky(positive(a)) end, { x })
        agrees("cholesky, upper" .. how,
          function(a) return linalg.cholesky(positive(a), { upper = true }) end, { x })
        agrees("solve" .. how, linalg.solve, { x, b })
        agrees("inv" .. how, linalg.inv, { x })
        agrees("det" .. how, linalg.det, { x })
        agrees("slogdet" .. how, function(a) return select(2, linalg.slogdet(a)) end, { x })
        for _, upper in ipairs { true, false } do
          agrees("solve_triangular" .. how,
            function(a, c) return linalg.solve_triangular(a, c, { upper = upper }) end, { x, b })
        end
        agrees("lu" .. how, function(a) return select(2, linalg.lu(a)) end, { x })
      end
    end)

    it("decomposes: " .. dtype, function()
      for _, shape in ipairs { { 4, 4 }, { 6, 3 }, { 3, 6 }, { 2, 5, 3 } } do
        local x = numbers(dtype, unpack(shape))
        local how = (" %s of %s"):format(dtype, table.concat(shape, " x "))
        agrees("qr" .. how, linalg.qr, { x })
        agrees("svdvals" .. how, linalg.svdvals, { x })
        -- vectors are determined up to their angles: what is put together of them is not
        agrees("svd" .. how, function(a)
          local u, s, vh = linalg.svd(a, { full_matrices = false })
          return s, (u * s:unsqueeze(-2):to(u.dtype)):matmul(vh)
        end, { x })
        local u, _, vh = linalg.svd(x:to(D), { full_matrices = true })
        for _, q in ipairs { u, vh } do
          local one = tensor.eye(q.shape[q.ndim]):to(q.dtype):to(D):expand(q.shape)
          same(q:matmul(adjoint(q)), one, TOLERANCE[dtype], "unitary" .. how)
        end
      end
      for _, shape in ipairs(SHAPES) do
        local x = positive(numbers(dtype, unpack(shape)))
        agrees("eigh " .. dtype, function(a)
          local l, v = linalg.eigh((a + adjoint(a)) / 2)
          return l, (v * l:unsqueeze(-2):to(v.dtype)):matmul(adjoint(v))
        end, { x })
        agrees("eigvalsh " .. dtype, function(a) return linalg.eigvalsh((a + adjoint(a)) / 2) end, { x })
      end
    end)
  end

  it("reads one triangle alone", function()
    local x = positive(numbers("float32", 5, 5))
    for _, upper in ipairs { true, false } do
      local half = upper and x:triu() or x:tril()
      local other = (upper and x:tril(-1) or x:triu(1)) * 0 + (upper and tensor.ones(5, 5):tril(-1)
        or tensor.ones(5, 5):triu(1)) * 7
      same(linalg.cholesky((half + other):to(D), { upper = upper }), linalg.cholesky(x, { upper = upper }),
        1e-4, "cholesky")
    end
  end)

  it("takes views of any strides", function()
    local x = numbers("float32", 4, 6, 4):transpose(2, 3):narrow(3, 2, 4) + tensor.eye(4) * 4
    x = x:transpose(-1, -2)
    same(linalg.inv(x:to(D)), linalg.inv(x), 1e-3, "inv")
    same(linalg.cholesky(positive(x):to(D):transpose(-1, -2)), linalg.cholesky(positive(x):transpose(-1, -2)),
      1e-4, "cholesky")
  end)

  it("takes matrices without elements", function()
    for _, shape in ipairs { { 0, 0 }, { 0, 3, 3 }, { 2, 0, 0 } } do
      local x = tensor.zeros(shape)
      for _, name in ipairs { "inv", "det", "cholesky", "svdvals" } do
        same(linalg[name](x:to(D)), linalg[name](x), 0, name)
      end
    end
  end)

  it("refuses what has no factorisation in the CPU's words", function()
    local singular, indefinite = tensor.ones(2, 3, 3), -tensor.eye(3)
    local odd = tensor.full({ 3, 3 }, 0 / 0)
    for name, x in pairs { inv = singular, cholesky = indefinite, svd = odd, eigh = odd } do
      local messages = {}
      for k, on in ipairs { "cpu", D } do
        local ok, message = pcall(linalg[name], x:to(on))
        assert.is_false(ok, name)
        messages[k] = message
      end
      assert.are.equal(messages[1], messages[2])
    end
    assert.are.equal(0, linalg.det(singular:to(D)):abs():max():item())
  end)

  it("has no copy to the CPU where nothing is read", function()
    if not through then return pending("needs cuSOLVER") end
    local x, b = regular("float32", 3, 4, 4):to(D), numbers("float32", 3, 4, 2):to(D)
    local before = core.memory_stats(D)
    assert.are.equal(4, #{ linalg.det(x), (linalg.qr(x)), (core._linalg.lu(x)),
      linalg.solve_triangular(x, b, { upper = true }) })
    local after = core.memory_stats(D)
    assert.are.equal(before.waits, after.waits)
    assert.are.equal(before.uploads, after.uploads)
    assert.are.equal(5, #{ linalg.solve(x, b), linalg.inv(x), linalg.svd(x) })
    assert.are.equal(after.uploads, core.memory_stats(D).uploads)
  end)

  it("goes through the CPU where cuSOLVER's int does not hold the size of the work space", function()
    if device.kind ~= "emulated" or not through then return pending("for the stand-in") end
    local script = [[
      local linalg = require "accelerate.tensor".linalg
      local x = require "accelerate.tensor".tensor { { 4, 1 }, { 1, 3 } }
      for _, name in ipairs { "cholesky", "inv", "det", "qr", "svdvals", "eigvalsh" } do
        local y = linalg[name](x:to("cuda")):to("cpu")
        io.write(name, " ", tostring((y - linalg[name](x)):abs():max():item() < 1e-5), "\n")
      end
    ]]
    local _, out, err = host.run({ "-" }, { stdin = script, env = { FAKE_CUSOLVER_WORK = "-7",
      ACCEL_CUDA_LIBRARIES = os.getenv "ACCEL_CUDA_LIBRARIES",
      ACCEL_CUDA_PLUGIN = os.getenv "ACCEL_CUDA_PLUGIN" } })
    assert.are.equal("cholesky true\ninv true\ndet true\nqr true\nsvdvals true\neigvalsh true\n", out, err)
  end)

  it("goes through the CPU where the libraries are missing or turned off", function()
    if device.kind ~= "emulated" then return pending("for the emulated device") end
    local script = [[
      local tensor = require "accelerate.tensor"
      local x = tensor.tensor { { 4, 1 }, { 1, 3 } }
      local y = tensor.linalg.cholesky(x:to("cuda")):to("cpu")
      local off = (y - tensor.linalg.cholesky(x)):abs():max():item()
      print(off < 1e-5, next(require("accelerate.core").kernel_stats { device = "cuda" }) == nil)
    ]]
    local fakes = os.getenv("ACCEL_CUDA_LIBRARIES")
    for _, env in ipairs { { ACCEL_CUDA_LIBRARIES = "/nowhere" },
      { ACCEL_CUDA_LIBRARIES = fakes, ACCEL_CUSOLVER = "0" } } do
      env.ACCEL_CUDA_PLUGIN = os.getenv "ACCEL_CUDA_PLUGIN"
      local _, out, err = host.run({ "-" }, { stdin = script, env = env })
      assert.are.equal("true\ttrue\n", out, err)
    end
  end)
end)
