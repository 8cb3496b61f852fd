--- tensor.linalg: what raises and what it says, batches, threads, ranks, the library. Its values
--- and gradients are compared with PyTorch's in spec/kernels/torch_spec.lua, with finite
--- differences in spec/kernels/ops_spec.lua.
local core = require "accelerate.core"
local numbers = require "spec.support.numbers"
local tensor = require "accelerate.tensor"
local host = require "spec.support.host"
local message = require("spec.support.messages").message

local linalg = tensor.linalg
local nan, inf = 0 / 0, math.huge

local function random(...)
  return tensor.randn({ ... }, { generator = tensor.Generator(5), dtype = "float64" })
end
local function eye(n) return tensor.eye(n, { dtype = "float64" }) end
local function regular(...)
  local x = random(...)
  return x + eye(x.shape[x.ndim]) * 4
end

local EXACTLY = { rtol = 0, atol = 0, equal_nan = true }

describe("tensor.linalg raises", function()
  local good = eye(3)
  local batch = tensor.stack({ good, good, tensor.zeros(3, 3):double() })
  local deep = tensor.stack({ tensor.stack { good, good }, tensor.stack { good, good * 0 } })

  it("for a singular matrix, and names it", function()
    assert.matches(
      "linalg.inv: matrix 3 of the batch is singular: diagonal element 1 of its factor U is zero",
      message(linalg.inv, batch))
    assert.matches("linalg.inv: matrix %[2, 2%] of the batch is singular", message(linalg.inv, deep))
    assert.matches("linalg.inv: the matrix is singular", message(linalg.inv, batch[3]))
    assert.matches("linalg.solve: matrix 3 of the batch is singular",
      message(linalg.solve, batch, random(3, 3, 1)))
    assert.matches("linalg.lu_factor: matrix 3 of the batch is singular", message(linalg.lu_factor, batch))
    assert.matches("linalg.lu_factor: matrix %[2, 2%] of the batch", message(linalg.lu_factor, deep))
    assert.matches("linalg.cholesky: matrix 3 of the batch is not positive%-definite: " ..
      "its leading minor of order 1",
      message(linalg.cholesky, batch))
    assert.matches("linalg.inv_ex: matrix 3 of the batch",
      message(linalg.inv_ex, batch, { check_errors = true }))
    assert.matches("linalg.solve_ex: matrix 3 of the batch", message(linalg.solve_ex, batch, random(3, 3), {
      check_errors = true }))
    assert.matches("linalg.cholesky_ex: matrix 3",
      message(linalg.cholesky_ex, batch, { check_errors = true }))
    assert.matches("linalg.lu_factor_ex: matrix 3",
      message(linalg.lu_factor_ex, batch, { check_errors = true }))
  end)

  it("not where the caller looks at the numbers", function()
    assert.same({ 0, 0, 1 }, (select(2, linalg.inv_ex(batch))):totable())
    assert.same({ 0, 0, 1 }, (select(2, linalg.solve_ex(batch, random(3, 3)))):totable())
    assert.same({ 0, 0, 1 }, (select(2, linalg.cholesky_ex(batch))):totable())
    assert.same({ 0, 0, 1 }, (select(3, linalg.lu_factor_ex(batch))):totable())
    local y = linalg.inv_ex(batch)
    assert.same(good:totable(), y[1]:totable())
    assert.is_true(y[3]:isnan():all():item())
  end)

  it("for elements that are not finite, where LAPACK would not end or give numbers without meaning",
    function()
    local x = random(2, 3, 3)
    for _, bad in ipairs { nan, inf, -inf } do
      x[2][2][1] = bad
      for _, name in ipairs { "svd", "svdvals", "eigh", "eigvalsh", "pinv", "matrix_rank", "cond" } do
        assert.matches("matrix 2 of the batch has elements that are not finite", message(linalg[name], x))
      end
      for _, driver in ipairs { "gels", "gelsy", "gelsd", "gelss" } do
        assert.matches("matrix 2 of the batch or its right%-hand side has elements that are not finite",
          message(linalg.lstsq, x, random(2, 3, 1), { driver = driver }))
        assert.matches("matrix 1 of the batch or its", message(linalg.lstsq, random(2, 3, 2),
          random(2, 3, 1) * bad, { driver = driver }))
      end
    end
  end)

  it("for shapes that do not fit", function()
    assert.matches("linalg.inv: x must be square matrices, got %[2, 3%]", message(linalg.inv, random(2, 3)))
    assert.matches("linalg.svd: x must have at least two dims, got %[3%]", message(linalg.svd, random(3)))
    assert.matches("linalg.solve: a of shape %[3, 3%] and b of shape %[2, 4, " ..
      "2%] do not fit: b must have 3 rows",
      message(linalg.solve, eye(3), random(2, 4, 2)))
    assert.matches("linalg.solve: the batches of shapes %[2, 3, 3%] and %[4, 3, 1%] do not fit",
      message(linalg.solve, regular(2, 3, 3), random(4, 3, 1)))
    assert.matches("b must have 3 columns", message(linalg.solve, eye(3), random(3, 2), { left = false }))
    assert.matches("with left = false b must be matrices", message(linalg.solve, eye(3), random(3),
      { left = false }))
    assert.matches("linalg.lstsq: the batch and the rows of both must agree",
      message(linalg.lstsq, random(4, 2),
      random(3, 2)))
    assert.matches("linalg.solve_triangular: expected square matrices", message(linalg.solve_triangular,
      random(2, 3), random(2, 1), { upper = true }))
    assert.matches("pivots must have the shape of LU", message(linalg.lu_solve, eye(3),
      tensor.ones(2, 3):int(), random(3, 1)))
    assert.matches("multi_dot: tensors 1 and 2 cannot be multiplied: %[2, 3%] x %[2, 3%]",
      message(linalg.multi_dot, { random(2, 3), random(2, 3) }))
    assert.matches("multi_dot: tensor 2 must be a matrix, got shape %[3%]", message(linalg.multi_dot,
      { random(2, 3), random(3), random(3, 1) }))
    assert.matches("expected at least two tensors, got 1", message(linalg.multi_dot, { random(2, 3) }))
    assert.matches("tensorinv: the first 1 sizes of shape %[2, 3%] multiply to 2, the others to 3",
      message(linalg.tensorinv, random(2, 3), { ind = 1 }))
    assert.matches("tensorsolve: a must hold as many equations", message(linalg.tensorsolve, random(2, 3),
      random(2)))
    assert.matches("cross: expected as many dims", message(linalg.cross, random(3), random(2, 3)))
  end)

  it("for types that LAPACK does not have", function()
    for _, dtype in ipairs { "int64", "bool", "float16", "bfloat16" } do
      local x = tensor.ones(2, 2):to(dtype)
      assert.matches("linalg.inv: x must be float32, float64 or complex, got " .. dtype,
        message(linalg.inv, x))
      assert.matches("linalg.svd: x must be float32, float64 or complex", message(linalg.svd, x))
    end
    assert.matches("linalg.solve: element types differ: float32 %[2, 2%] and float64", message(linalg.solve,
      tensor.eye(2), random(2, 1)))
    assert.matches("linalg.norm: expected a floating%-point or complex tensor, got int64",
      message(linalg.norm,
      tensor.arange(3)))
    assert.matches("linalg.lu_solve: pivots must be int32, got int64", message(linalg.lu_solve, eye(2),
      tensor.ones(2):long(), random(2, 1)))
  end)

  it("for arguments that are none", function()
    assert.matches("linalg.solve: argument 2 %(b%) is missing", message(linalg.solve, eye(2)))
    assert.matches("linalg.inv: argument 1 %(x%): expected a tensor, got number 3", message(linalg.inv, 3))
    assert.matches('linalg.svd: there is no option "full_matrix"; did you mean "full_matrices"',
      message(linalg.svd,
      eye(2), { full_matrix = true }))
    assert.matches('mode: expected "reduced", "complete" or "r", got "rr"', message(linalg.qr, eye(2), "rr"))
    assert.matches('UPLO: expected "L" or "U", got "l"', message(linalg.eigh, eye(2), "l"))
    assert.matches('the order of a matrix norm is 1, .* got 3', message(linalg.matrix_norm, eye(2), 3))
    assert.matches("the order of a matrix norm is .* got a list of 1", message(linalg.cond, eye(2), { 1 }))
    assert.matches("the order of a matrix norm is .* got nan", message(linalg.matrix_norm, eye(2), nan))
    assert.matches("the order of a vector's norm is a number, got a function", message(linalg.norm, random(2),
      print))
    assert.matches("the dims of a matrix must differ", message(linalg.matrix_norm, eye(2), 2, { 1, 1 }))
    assert.matches("a matrix has two dims, got 1", message(linalg.matrix_norm, eye(2), 2, { 1 }))
    assert.matches("order inf has no value for shape %[0%]", message(linalg.vector_norm, random(0), inf))
    for _, name in ipairs { "atol", "rtol" } do
      assert.matches("linalg.pinv: " .. name .. ": expected a number or a tensor, got true",
        message(linalg.pinv,
        eye(2), { [name] = true }))
    end
    assert.matches("pivot = false is not there", message(linalg.lu, eye(2), { pivot = false }))
    assert.matches("pivots count rows from 1 to 2, got 7", message(linalg.lu_solve, eye(2), tensor.full({ 2 },
      7):int(), random(2, 1)))
    assert.matches("pivots count rows from 1 to 2, got %-1",
      message(tensor.lu_unpack, eye(2), tensor.full({ 2 },
      -1):int()))
    assert.matches("linalg.eig: x must be square matrices, got %[2, 3%]", message(linalg.eig, random(2, 3)))
    assert.matches("linalg.eig: matrix 2 of the batch has elements that are not finite", message(linalg.eig,
      tensor.stack({ eye(2), eye(2) * nan })))
    assert.matches("linalg.svd: x must be float32, float64 or complex, got int64", message(linalg.svd,
      tensor.eye(2):long()))
    assert.matches("polar: expected matrices with at least as many rows as columns, got shape %[2, 3%]",
      message(linalg.polar, random(2, 3)))
    assert.matches("householder_product: tau must have the batch of x and at most its 2 columns",
      message(linalg.householder_product, random(3, 2), random(3)))
    assert.matches("ormqr: other must have the batch and 3 rows",
      message(tensor.ormqr, random(3, 2), random(2),
      random(2, 2)))
    assert.matches("svd_lowrank: q must be from 0 to min%(m, n%) = 2, got 3", message(tensor.svd_lowrank,
      random(3, 2), 3))
    assert.matches("ldl_factor: the matrix is singular", message(linalg.ldl_factor, eye(2) * 0))
    assert.matches("linalg.ldl_solve: the pivots of the matrix are none of ldl_factor's",
      message(linalg.ldl_solve, eye(2), tensor.full({ 2 }, 7):int(), random(2, 1)))
    assert.matches("has no gradient", message(function()
      return tensor.geqrf(random(3, 2):requires_grad_())
    end))
    assert.matches("there is no function eigvls", message(function() return tensor.eigvls end))
  end)

  it("in the backward pass, where there is no gradient", function()
    local x = random(4, 3):requires_grad_()
    assert.matches('linalg.qr: has no gradient with mode "complete" where there are more rows',
      message(function() linalg.qr(x, "complete"):sum():backward() end))
    assert.matches('linalg.qr: the gradient needs Q, which mode "r" does not compute', message(function()
      (select(2, linalg.qr(x, "r"))):sum():backward()
    end))
  end)
end)

describe("tensor.linalg", function()
  it("gives NaN for NaN where nothing else is affected", function()
    local x = regular(3, 4, 4)
    local expected = linalg.inv(x)
    x[2][1][3] = nan
    local y = linalg.inv(x)
    assert.is_true(y[2]:isnan():all():item())
    numbers.close(y[1], expected[1], 0)
    numbers.close(y[3], expected[3], 0)
    assert.same({ false, true, false }, linalg.det(x):isnan():totable())
    assert.is_true(linalg.solve(x, random(4, 1))[2]:isnan():all():item())
  end)

  it("does not depend on the number of threads, nor a matrix on the others of its batch", function()
    local before = core.get_num_threads()
    local x, b = regular(37, 24, 24):float(), random(37, 24, 5):float()
    local p = x:matmul(x.mT)
    local function all()
      local u, s, vh = linalg.svd(x)
      local l, v = linalg.eigh(p)
      local q, r = linalg.qr(x)
      return { linalg.solve(x, b), linalg.inv(x), linalg.det(x), linalg.cholesky(p), u, s, vh, l, v, q, r,
        (linalg.lstsq(x, b)) }
    end
    core.set_num_threads(1)
    local expected = all()
    for _, n in ipairs { 2, 3, 8 } do
      core.set_num_threads(n)
      for k, result in ipairs(all()) do assert.is_true(result:equal(expected[k]), ("result %d"):format(k)) end
    end
    assert.equal(8, core.get_num_threads())
    core.set_num_threads(before)
    assert.is_true(linalg.inv(x[5]):equal(expected[2][5]))
    assert.is_true((select(2, linalg.svd(x[5]))):equal(expected[6][5]))
  end)

  it("gives a few unknowns the bits that they have alone, also of what is singular or not finite", function()
    for _, dtype in ipairs { "float32", "float64" } do
      for _, size in ipairs { { 1, 1 }, { 2, 3 }, { 3, 4 }, { 7, 1 }, { 9, 2 }, { 15, 1 }, { 16, 4 },
        { 16, 5 }, { 17, 1 } } do
        local n, k = unpack(size)
        local x, b = random(11, n, n):to(dtype), random(11, n, k):to(dtype)
        x[{ 2, 1, n }], x[{ 3, n, 1 }] = inf, nan
        x[{ 4, {}, n }] = 0
        x[5] = x[5] * (dtype == "float32" and 4e-39 or 7e-309) -- pivots without a precise inverse
        local solved, det = linalg.solve_ex(x, b), linalg.det(x)
        local sign, log = linalg.slogdet(x)
        for i = 1, 11 do
          local where = ("%s, %d unknowns, %d sides, matrix %d"):format(dtype, n, k, i)
          local alone_sign, alone_log = linalg.slogdet(x[i])
          assert.is_true(tensor.allclose(solved[i], linalg.solve_ex(x[i], b[i]), EXACTLY), where)
          assert.is_true(tensor.allclose(det[i], linalg.det(x[i]), EXACTLY), where)
          assert.is_true(tensor.allclose(sign[i], alone_sign, EXACTLY), where)
          assert.is_true(tensor.allclose(log[i], alone_log, EXACTLY), where)
        end
      end
    end
  end)

  it("does not take a matrix with a NaN for singular, whatever it has in other columns", function()
    local x = regular(3, 4, 4)
    x[{ 2, {}, 2 }], x[{ 2, 4, 1 }] = 0, nan
    local solved = linalg.solve(x, random(3, 4, 1))
    assert.are.same({ false, true, false }, solved:isnan():all(2):select(2, 1):totable())
  end)

  it("forms a determinant whose factors leave the range of float64", function()
    for _, case in ipairs { { 1e200, 1e200, 1e-300 }, { 1e308, 1e-308, 3 }, { 1e-300, 1e-300, 1e300, 1e300 },
      { -1e160, 1e160, 1e-200, 1e-100 } } do
      local expected, exponent = 1, 0
      for _, v in ipairs(case) do
        local m, e = math.frexp(v)
        expected, exponent = expected * m, exponent + e
      end
      local det = linalg.det(tensor.tensor(case, { dtype = "float64" }):diag()):item()
      assert.is_true(math.abs(det / math.ldexp(expected, exponent) - 1) < 1e-14)
    end
    assert.equal(math.huge, linalg.det(tensor.tensor({ 1e300, 1e300 }, { dtype = "float64" }):diag()):item())
    assert.equal(0, linalg.det(tensor.tensor({ 0, 1e308, 1e308 }, { dtype = "float64" }):diag()):item())
  end)

  it("takes views, expanded batches and empty ones", function()
    local x = regular(4, 5, 5)
    numbers.close(linalg.inv(x.mT), linalg.inv(x).mT)
    numbers.close(linalg.solve(x[{ {}, {}, {} }]:transpose(2, 3), random(5, 2)),
      linalg.solve(x.mT:contiguous(), random(5, 2)), 0)
    numbers.close(linalg.inv(x[1]:expand(3, 5, 5))[3], linalg.inv(x[1]), 0)
    assert.same({ 0, 5, 5 }, linalg.inv(x[{ x:select(2, 1):sum(2):ne(x:select(2, 1):sum(2)) }]).shape)
    for _, shape in ipairs { { 0, 3, 3 }, { 2, 0, 0 }, { 0, 0 } } do
      local e = tensor.zeros(shape):double()
      for _, name in ipairs { "inv", "cholesky", "matrix_exp", "pinv" } do
        assert.same(shape, linalg[name](e).shape)
      end
      local u, s, vh = linalg.svd(e)
      assert.same({ shape, shape }, { u.shape, vh.shape })
      assert.equal(#shape - 1, s.ndim)
    end
  end)

  it("solves in float32 about as well as the type allows", function()
    local x = (random(2, 30, 30) + eye(30) * 20):float()
    assert(linalg.solve(x, random(30, 2):float()).dtype == "float32")
    numbers.close(x:matmul(linalg.inv(x)), eye(30):float(), 1e-5)
    numbers.close(linalg.inv(x):double(), linalg.inv(x:double()), 1e-4)
  end)

  it("forms a determinant whose product leaves the range on the way", function()
    local d = tensor.tensor({ 1e200, 1e200, 1e-200, 1e-200, 3 }, { dtype = "float64" }):diag()
    numbers.close(linalg.det(d), tensor.tensor(3, { dtype = "float64" }), 1e-12)
    assert.equal(inf, linalg.det(eye(4) * 1e100):item() * linalg.det(eye(4) * 1e100):item())
    assert.equal(0, linalg.det(eye(400) * 1e-3):item())
    assert.equal(inf, linalg.det(eye(400) * 1e3):item())
  end)

  it("counts the rank by the bound that was given", function()
    local d = tensor.tensor({ 4, 2, 1, 1e-20 }, { dtype = "float64" }):diag()
    assert.equal(3, linalg.matrix_rank(d):item())
    assert.equal(2, linalg.matrix_rank(d, { atol = 1 }):item())
    assert.equal(1, linalg.matrix_rank(d, { rtol = 0.6 }):item())
    assert.equal(3, linalg.matrix_rank(-d, { hermitian = true }):item())
    assert.equal("int64", linalg.matrix_rank(d).dtype)
  end)

  it("takes bounds under NumPy's names, which stand by position as in PyTorch", function()
    local d = tensor.tensor({ 4, 2, 1 }, { dtype = "float64" }):diag()
    for _, rank in ipairs { linalg.matrix_rank(d, 1), linalg.matrix_rank(d, { tol = 1 }),
      linalg.matrix_rank(d, 1, true) } do
      assert.equal(2, rank:item())
    end
    local pinv = linalg.pinv(d, { rtol = 0.4 })
    assert.equal(0.75, pinv:diagonal():sum():item())
    for _, same in ipairs { linalg.pinv(d, 0.4), linalg.pinv(d, { rcond = 0.4 }),
      linalg.pinv(d, 0.4, true) } do
      numbers.close(same, pinv, 1e-12)
    end
    assert.matches("linalg.pinv: rcond and rtol are one bound: give one of them",
      message(linalg.pinv, d, 0.4, { rtol = 0.4 }))
    assert.matches("linalg.matrix_rank: tol and atol are one bound: give one of them",
      message(linalg.matrix_rank, d, { tol = 1, atol = 1 }))
  end)

  it("multiplies a chain in the order with the fewest operations", function()
    local a, b, c = random(2000, 1), random(1, 2000), random(2000, 1)
    collectgarbage()
    core.reset_peak_memory_stats()
    local before = core.memory_stats().peak_bytes
    local d = linalg.multi_dot { a, b, c }
    assert(core.memory_stats().peak_bytes - before < 1e6)  -- a b alone has 32 MB
    numbers.close(d, a:mm(b):mm(c), 1e-9)
  end)

  it("has gradients of gradients through functions written in Lua", function()
    local x = (random(3, 3) + eye(3) * 3):requires_grad_()
    for _, f in ipairs {
      function(y) return linalg.matrix_exp(y * 0.3) end, linalg.pinv, linalg.cond,
      function(y) return linalg.matrix_norm(y, "nuc") end, function(y) return linalg.matrix_power(y, -2) end,
      function(y)
        local LU, pivots = linalg.lu_factor(y)
        return linalg.lu_solve(LU, pivots, y * 2 + 1)
      end,
      function(y) return tensor.cholesky_solve(y:tril(), linalg.cholesky(y:matmul(y.mT))) end,
    } do
      local g = tensor.grad(f(x):sum(), x, { create_graph = true })
      local v = random(3, 3)
      local twice = tensor.grad((g * v):sum(), x)
      local h = 1e-5
      local function gradient_at(at)
        at = at:detach():requires_grad_()
        return tensor.grad(f(at):sum(), at)
      end
      local differences = (gradient_at(x + v * h) - gradient_at(x - v * h)) / (2 * h)
      numbers.close(twice, differences, 1e-5 * math.max(1, twice:abs():max():item()))
    end
  end)

  it("gives eigenvectors of a symmetric matrix a symmetric gradient, twice", function() -- PyTorch's values
    local i = tensor.arange(1, 10):view(3, 3):double()
    local a = (i:sin() + i:sin().mT):requires_grad_()
    local L, V = linalg.eigh(a)
    local loss = (V:abs() * tensor.arange(9):view(3, 3)):sum() + (L * tensor.tensor { 1, 2, 4 }):sum()
    local g = tensor.grad(loss, a, { create_graph = true })
    local function close(expected, x)
      numbers.close(tensor.tensor(expected, { dtype = "float64" }), x:detach(), 1e-4)
      assert.is_true(x:allclose(x.mT, 1e-12, 1e-12))
    end
    close({ { 2.6137, 0.1557, 1.2634 }, { 0.1557, 1.7949, 1.8003 }, { 1.2634, 1.8003, 2.5914 } }, g)
    g:square():sum():backward()
    close({ { 2.1134, -0.2449, -2.1497 }, { -0.2449, 1.4037, -3.8328 }, { -2.1497, -3.8328, -3.5171 } },
      a.grad)
    local z = tensor.complex(i:sin(), i:cos())
    local h = (z + z.mT:conj()):requires_grad_()
    local gh = tensor.grad((select(2, linalg.eigh(h)):abs() * i):sum(), h)
    assert.is_true(gh:allclose(gh.mT:conj(), 1e-12, 1e-12))
  end)

  it("runs in float32 under autocast", function()
    local x = regular(3, 3):float()
    local y = tensor.autocast({ dtype = "bfloat16" }, function() return linalg.inv(x:matmul(x)) end)
    assert.equal("float32", y.dtype)
  end)

  it("runs in each of several ranks, and in a rank whose parent used it before a fork", function()
    local script = [[
      local accelerate, tensor = require "accelerate", require "accelerate.tensor"
      local accelerator = accelerate.Accelerator {}
      local x = tensor.eye(40) * (2 + accelerator.process_index)
      local y = tensor.linalg.inv(x)[1][1]:item()
      local all = accelerator:gather(tensor.tensor({ y }))
      accelerator:print(table.concat(all:totable(), " "))
    ]]
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write(script)
    f:close()
    local status, out, err = host.run { "--cpu", "--num_processes", "2", path }
    os.remove(path)
    assert.equal(0, status, err)
    assert.matches("0.5 0.333", out, 1, true)
  end)

  it("says which package is missing", function()
    local folder = os.tmpname()
    os.remove(folder)
    assert(os.execute(("mkdir '%s'"):format(folder)))
    for _, name in ipairs { "libopenblas.so.0", "liblapack.so.3" } do
      local f = assert(io.open(folder .. "/" .. name, "w"))
      f:write("no library")
      f:close()
    end
    local code = 'print(pcall(require("accelerate.tensor").linalg.svd, require("accelerate.tensor").eye(2)))'
    local status, out, err = host.run({ "-e", code }, { env = { LD_LIBRARY_PATH = folder } })
    os.execute(("rm -r '%s'"):format(folder))
    assert.equal(0, status, err)
    assert.matches("linalg.svd: needs LAPACK, libopenblas.so.0 or liblapack.so.3; on Debian and Ubuntu: " ..
      "apt%-get install libopenblas0 %(.*/libopenblas.so.0: file too short%)", out)
  end)

  it("takes any LAPACK that the system has", function()
    -- the reference implementation, and an OpenBLAS that must not run in two threads at once
    local code = [[
      local tensor = require "accelerate.tensor"
      require("accelerate.core").set_num_threads(4)
      local x = tensor.randn({ 200, 30, 30 }, { generator = tensor.Generator(1), dtype = "float64" })
      local y = tensor.linalg.pinv(x)
      print((x:matmul(y) - tensor.eye(30, { dtype = "float64" })):abs():max():item() < 1e-8)
    ]]
    local tried = 0
    for _, folder in ipairs { "lapack", "openblas-serial", "openblas-pthread", "openblas-openmp" } do
      local path = "/usr/lib/x86_64-linux-gnu/" .. folder
      local library = io.open(path .. "/liblapack.so.3")
      if library then
        library:close()
        tried = tried + 1
        local status, out, err = host.run({ "-e", code }, { env = { LD_LIBRARY_PATH = path } })
        assert.equal(0, status, err)
        assert.equal("true\n", out, folder)
      end
    end
    assert(tried > 0)
  end)
end)

describe("complex matrices in tensor.linalg", function()
  local function complex(...)
    local g = tensor.Generator(7)
    return tensor.randn({ ... }, { dtype = "complex128", generator = g })
  end
  local function adjoint(x) return x:transpose(-2, -1):conj() end
  local function near(a, b) assert((a - b):abs():max():item() < 1e-10) end

  it("are what their factors multiply to, tall, wide and in batches", function()
    for _, shape in ipairs { { 4, 4 }, { 5, 3 }, { 3, 5 }, { 2, 2, 4, 3 }, { 1, 1 } } do
      local x = complex(unpack(shape))
      local q, r = linalg.qr(x)
      near(q:matmul(r), x)
      near(adjoint(q):matmul(q), tensor.eye(q.shape[q.ndim]):cdouble())
      local u, s, vh = linalg.svd(x, { full_matrices = false })
      assert.are.equal("float64", s.dtype)
      near((u * s:unsqueeze(-2)):matmul(vh), x)
      local P, L, U = linalg.lu(x)
      near(P:matmul(L):matmul(U), x)
      near(x:matmul(linalg.pinv(x)):matmul(x), x)
      near(linalg.norm(linalg.svdvals(x), { dim = -1 }), linalg.matrix_norm(x))
    end
  end)

  it("are solved, inverted and raised", function()
    local a, b = complex(3, 4, 4), complex(3, 4, 2)
    near(a:matmul(linalg.solve(a, b)), b)
    near(linalg.solve(a, adjoint(b), { left = false }):matmul(a), adjoint(b))
    near(a:matmul(linalg.solve(a, b:real())), b:real():cdouble())
    near(linalg.matrix_power(a, -2):matmul(a):matmul(a), tensor.eye(4):cdouble())
    near(linalg.lu_solve(linalg.lu_factor(a), select(2, linalg.lu_factor(a)), b, { adjoint = true }),
      linalg.solve(adjoint(a), b))
    local sign, log = linalg.slogdet(a)
    near(sign * log:exp(), linalg.det(a))
    local h = a:matmul(adjoint(a))
    local l = linalg.cholesky(h)
    near(l:matmul(adjoint(l)), h)
    near(linalg.cholesky(h, { upper = true }), adjoint(l))
    near(b:cholesky_solve(l), linalg.solve(h, b))
    local values, vectors = linalg.eigh(h)
    near((vectors * values:unsqueeze(-2)):matmul(adjoint(vectors)), h)
    near(linalg.lstsq(complex(5, 3), complex(5, 2)), linalg.pinv(complex(5, 3)):matmul(complex(5, 2)))
    local LD, pivots = linalg.ldl_factor(h, { hermitian = true })
    near(linalg.ldl_solve(LD, pivots, b, { hermitian = true }), linalg.solve(h, b))
    local qr, tau = tensor.geqrf(complex(4, 3))
    near(linalg.householder_product(qr, tau), (linalg.qr(complex(4, 3))))
  end)

  it("have a gradient of det where they are singular", function()
    local x = complex(3, 3)
    x[3] = x[1] * 2
    local function gradient(at)
      local leaf = at:clone():requires_grad_()
      linalg.det(leaf):real():sum():backward()
      return leaf.grad
    end
    near(gradient(x), gradient(x + tensor.eye(3):cdouble() * 1e-13))
    x[2] = 0 -- of rank 1: no minor is left
    assert(gradient(x):abs():max():item() < 1e-12)
  end)

  it("raise as real ones do", function()
    assert.matches("linalg.inv: the matrix is singular", message(linalg.inv, tensor.zeros(2, 2):cdouble()))
    assert.matches("linalg.cholesky: the matrix is not positive%-definite",
      message(linalg.cholesky, -tensor.eye(2):cdouble()))
    assert.matches("linalg.svd: the matrix has elements that are not finite",
      message(linalg.svd, tensor.eye(2):cdouble() * nan))
    assert.matches("linalg.eigh: the matrix has elements that are not finite",
      message(linalg.eigh, tensor.eye(2):cdouble() * nan))
    assert.is_true(linalg.solve(tensor.eye(2):cdouble() * nan, complex(2, 1)):isnan():all():item())
  end)

  it("have no gradient of a loss in the angles of their vectors", function()
    local function backward(f, x)
      x = x:clone():requires_grad_()
      return function() f(x):backward() end
    end
    local x = complex(3, 3)
    local h = x + adjoint(x)
    assert.matches("linalg.svd: the loss depends on the angles of complex singular vectors",
      message(backward(function(a) return (select(1, linalg.svd(a))):real():sum() end, x)))
    assert.matches("linalg.eigh: the loss depends on the angles of complex eigenvectors",
      message(backward(function(a) return (select(2, linalg.eigh(a))):real():sum() end, h)))
    for _, a in ipairs { x, x:real() } do
      assert.matches("linalg.eig: the loss depends on the angles of complex eigenvectors",
        message(backward(function(b) return (select(2, linalg.eig(b))):imag():square():sum() end, a)))
      backward(function(b) return (select(2, linalg.eig(b))):abs():square():sum() end, a)()
    end
    backward(function(a) return (select(1, linalg.svd(a))):abs():sum() end, x)()
    backward(function(a) return (select(2, linalg.eigh(a))):abs():sum() end, h)()
  end)
end)
