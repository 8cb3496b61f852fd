--- Complex tensors: what they are made of, promotion, what refuses them, files, printing;
--- transforms of odd lengths and places.  Values and gradients are compared with PyTorch's in
--- spec/kernels/torch_spec.lua, with finite differences in spec/kernels/ops_spec.lua.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local numbers = require "spec.support.numbers"
local optim = require "accelerate.optim"
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"
local raises = require("spec.support.messages").raises

local function complex(re, im, dtype)
  local options = { dtype = dtype or "float32" }
  return tensor.complex(tensor(re, options), tensor(im, options))
end
local function parts(z) return z:view_as_real():totable() end

describe("complex tensors", function()
  local z = complex({ 1, 3 }, { 2, -4 })

  it("have a direction whose gradient is 0 at 0", function() -- PyTorch's values
    local x = tensor.complex(tensor.tensor { 0, 3, 0 }, tensor.tensor { 0, 4, -1 }):requires_grad_()
    local weight = tensor.complex(tensor.tensor { 2, 1, 2 }, tensor.tensor { 3, -1, 0 })
    ;(x:sgn() * weight):real():sum():backward()
    numbers.close(x.grad, tensor.complex(tensor.tensor { 0, 0.032, 2 }, tensor.tensor { 0, -0.024, 0 }), 1e-6)
  end)

  it("are made of numbers, parts, pairs and other tensors", function()
    assert.are.same({ { 1, 0 }, { 2, 0 } }, parts(tensor({ 1, 2 }, { dtype = "complex64" })))
    assert.are.same({ { 3, 0 } }, parts(tensor.full({ 1 }, 3, { dtype = "complex128" })))
    assert.are.same({ { 1, 0 }, { 1, 0 } }, parts(tensor.ones_like(z)))
    assert.are.equal("complex64", z.dtype)
    assert.are.equal("complex128", complex({ 1 }, { 2 }, "float64").dtype)
    assert.are.equal("complex128", z:to("complex128").dtype)
    assert.are.same({ { 1, 2 }, { 3, -4 } }, parts(tensor({ { 1, 2 }, { 3, -4 } }):view_as_complex()))
    assert.are.same({ { 1, 0 }, { 0, 0 } }, parts(tensor { true, false }:cfloat()))
    assert.are.same({ { 1, 2 }, { 3, -4 } }, parts(z:cdouble():cfloat()))
    assert.are.equal(16, z:cdouble():element_size())
  end)

  it("are read as two numbers for each element", function()
    assert.are.same({ { 1, 2 }, { 3, -4 } }, z:totable())
    assert.are.same({ 3, -4 }, { z[2]:item() })
    local p = z:clone():data_ptr()
    assert.are.equal(-4, p[1].im)
  end)

  it("share memory with their parts", function()
    local own = z:clone()
    own:real():fill_(7)
    own:view_as_real()[{ 1, 2 }] = 9
    assert.are.same({ { 7, 9 }, { 7, -4 } }, own:totable())
    own[2] = 5
    assert.are.same({ 5, 0 }, { own[2]:item() })
  end)

  it("are shown as PyTorch shows them", function()
    assert.are.equal("tensor([1.+2.j, 3.-4.j])", tostring(z))
    assert.are.equal("tensor([1.0000+2.0000j, 3.5000-0.2500j])", tostring(complex({ 1, 3.5 }, { 2, -0.25 })))
    assert.are.equal("tensor([[  1.+2.j,   3.-4.j],\n        [  0.+0.j, 100.+1.j]])",
      tostring(complex({ { 1, 3 }, { 0, 100 } }, { { 2, -4 }, { 0, 1 } })))
    assert.are.equal("tensor(1.5000-2.j)", tostring(complex(1.5, -2)))
    assert.are.equal("tensor([1.+2.j], dtype=complex128)", tostring(complex({ 1 }, { 2 }, "float64")))
    assert.are.equal("tensor([nan+1.j, inf-infj])",
      tostring(complex({ 0 / 0, 1 / 0 }, { 1, -1 / 0 })))
  end)

  it("promote as in PyTorch", function()
    local f64, scalar = tensor.ones(2):double(), tensor(2, { dtype = "float64" })
    assert.are.equal("complex128", (z + f64).dtype)
    assert.are.equal("complex64", (z + scalar).dtype)
    assert.are.equal("complex64", (z * 2.5).dtype)
    assert.are.equal("complex64", (z + tensor.arange(2)).dtype)
    assert.are.equal("complex128", (f64 + z[1]).dtype)
    assert.are.equal("complex64", (tensor.ones(2):half() * z).dtype)
    assert.are.equal("float32", z:abs().dtype)
  end)

  it("are changed in place, also where a row is put together of others", function()
    local x = z:clone()
    assert.are.same({ { 2, 4 }, { 6, -8 } }, x:mul_(2):totable())
    assert.are.same({ { 3, 4 }, { 7, -8 } }, x:add_(1):totable())
    assert.are.same({ { 0, 0 }, { 0, 0 } }, x:zero_():totable())
    assert.are.same({ { 1, 0 }, { 2, 0 } }, x:copy_(tensor { 1, 2 }):totable())
    assert.are.same({ { 1, 2 }, { 3, -4 } }, x:copy_(z:cdouble()):totable())
  end)

  it("divide and take absolute values without overflow in between", function()
    local big = complex({ 3e30 }, { 4e30 })
    assert(math.abs(big:abs():item() / 5e30 - 1) < 1e-6)
    local re, im = (big / big):item()
    assert(math.abs(re - 1) < 1e-6 and math.abs(im) < 1e-6)
  end)

  it("do not become real ones unnoticed", function()
    raises("complex64 to float32 would lose the imaginary part; take real, imag or abs", z.to, z, "float32")
    raises("would lose the imaginary part", z.float, z)
    raises("copy_: complex64 does not fit the tensor being changed, float32", tensor.ones(2).copy_,
      tensor.ones(2), z)
    raises("add_: complex64 does not fit", tensor.ones(2).add_, tensor.ones(2), z)
    raises("imag: expected a complex tensor, got float32", tensor.imag, tensor.ones(2))
    raises("view_as_real: expected a complex tensor, got float32", tensor.view_as_real, tensor.ones(2))
    raises("view_as_complex: the last dim must have size 2, got shape [3]", tensor.view_as_complex,
      tensor.ones(3))
    raises("view_as_complex: expected float32 or float64, got int64", tensor.view_as_complex,
      tensor.arange(2))
    raises("do not stand in pairs", tensor.view_as_complex, tensor.ones(2, 3):t())
    raises("complex: expected two tensors of float32 or two of float64, got float32 and float64",
      tensor.complex, tensor.ones(1), tensor.ones(1):double())
  end)

  it("are refused by name where a row has nothing for them", function()
    local refused = 0
    for _, row in ipairs(core.ops()) do
      if not row.hidden and row.signature == "x:T" and pcall(core[row.name], tensor.rand(2, 2)) then
        local square = complex({ { 1, 2 }, { 3, 4 } }, { { 0, 1 }, { 1, 0 } })
        local ok, err = pcall(core[row.name], square)
        if not ok then
          refused = refused + 1
          assert.matches("complex64", err, row.name)
        end
      end
    end
    assert(refused > 10, refused)
    raises("lt: not defined for complex64", z.lt, z, z)
    raises("sort: not defined for complex64", z.sort, z)
    raises("max: not defined for complex64", z.max, z)
    raises("softmax: not defined for complex64", z.softmax, z, 1)
    raises("linear: element types differ: complex64 [1, 2] x float32 [2, 2]",
      function() return nn.Linear(2, 2)(z:unsqueeze(1)) end)
    raises("complex64", function() return nn.functional.mse_loss(z, z) end)
    raises("complex64", function() return nn.functional.smooth_l1_loss(z, z) end)
    raises("scatter_add: element types differ: complex64 [2] and float32 [2]", z.scatter_add, z, 1,
      tensor({ 0, 1 }, { dtype = "int64" }), tensor.ones(2))
    raises("addmm: input [3, 2] does not fit the product's shape [1, 1]", tensor.addmm,
      tensor.ones(3, 2):cfloat(), z:view(1, 2), z:view(2, 1))
    raises("conv1d: bias [2] does not fit weight [1, 1, 1]", nn.functional.conv1d, z:view(1, 1, 2),
      z:narrow(1, 1, 1):view(1, 1, 1), z)
    raises("conv1d: element types differ: complex64 [1, 1, 2] x float32 [1, 1, 1]", nn.functional.conv1d,
      z:view(1, 1, 2), tensor.ones(1, 1, 1))
  end)

  it("are drawn with the variance of real ones, half of it in each part", function()
    for _, dtype in ipairs { "complex64", "complex128" } do
      local n = tensor.randn(20000, { dtype = dtype, generator = tensor.Generator(4) })
      assert.are.equal(dtype, n.dtype)
      assert(math.abs(n:real():var():item() - 0.5) < 0.03)
      assert(math.abs(n:var():item() - 1) < 0.05)
      assert(n:mean():abs():item() < 0.03)
      local u = tensor.rand(20000, { dtype = dtype, generator = tensor.Generator(4) }):view_as_real()
      assert(u:min():item() >= 0 and u:max():item() < 1)
      assert(math.abs(u:mean():item() - 0.5) < 0.02)
      n:normal_(3, 2)
      assert(math.abs(n:real():mean():item() - 3) < 0.1 and math.abs(n:var():item() - 4) < 0.2)
      assert.are.equal(dtype, n:randn_like().dtype)
    end
    raises("rand: expected a floating-point or complex element type, got int64", tensor.rand, 2,
      { dtype = "int64" })
  end)

  it("become truth values, and are compared with each other", function()
    assert.are.same({ true, true, false }, complex({ 1, 0, 0 }, { 0, 2, 0 }):to("bool"):totable())
    assert.is_true(z:allclose(z + 1e-9))
    assert.is_false(z:allclose(z + complex(0, 1e-3)))
    assert.is_true(z:equal(z:clone()))
  end)

  it("have acosh's slope on both sides of its branch cut", function()
    -- acosh's slope is 1 / (sqrt(z - 1) sqrt(z + 1)), not 1 / sqrt(z^2 - 1), left of the axis
    local x = complex({ -2 }, { 0.5 }, "float64"):requires_grad_()
    x:acosh():abs():sum():backward()
    local h = 1e-6
    local function at(re) return complex({ re }, { 0.5 }, "float64"):acosh():abs():item() end
    assert(math.abs(x.grad:real():item() - (at(-2 + h) - at(-2 - h)) / (2 * h)) < 1e-7)
  end)

  -- spec/accelerate/complex_parameters_spec.lua has the optimizers.
  it("are stepped by optimizers, and have no order to clamp by", function()
    local leaf = z:clone():requires_grad_()
    leaf:abs():sum():backward()
    local before, slope = leaf:detach():clone(), leaf.grad:clone()
    assert(math.abs(nn.utils.clip_grad_norm_({ leaf }, 100):item() - slope:norm():item()) < 1e-5)
    optim.SGD({ leaf }, { lr = 0.1 }):step()
    assert((leaf:detach() - (before - 0.1 * slope)):abs():max():item() < 1e-6)
    raises("complex64", nn.utils.clip_grad_value_, { leaf }, 1)
  end)

  it("keep what autocast does to real tensors away", function()
    local out = tensor.autocast({ dtype = "bfloat16" }, function()
      return (z * z):sum()
    end)
    assert.are.equal("complex64", out.dtype)
  end)
end)

describe("gradients of complex numbers", function()
  it("are those of both parts", function()
    local z = complex({ 1, 3 }, { 2, -4 }, "float64"):requires_grad_();
    (z * z:conj()):real():sum():backward()
    assert.are.same({ { 2, 4 }, { 6, -8 } }, z.grad:totable())
    assert.are.equal("complex128", z.grad.dtype)
  end)

  it("reach real arguments as real numbers", function()
    local w = tensor({ 2, 3 }):requires_grad_()
    local z = complex({ 1, 3 }, { 2, -4 });
    (w * z):abs():sum():backward()
    assert.are.equal("float32", w.grad.dtype)
    assert(math.abs(w.grad[2]:item() - 5) < 1e-5)
  end)

  it("are 0 for the absolute value of 0", function()
    local z = complex({ 0 }, { 0 }):requires_grad_()
    z:abs():sum():backward()
    assert.are.same({ { 0, 0 } }, z.grad:totable())
  end)

  it("need a start where the result is complex", function()
    local z = complex({ 1 }, { 2 }):requires_grad_()
    raises("a gradient must be given for complex64", function() (z * z):sum():backward() end)
    local y = z * z
    y:backward(complex({ 1 }, { 0 }))
    assert.are.same({ { 2, -4 } }, z.grad:totable())
  end)

  it("accumulate, and go through hooks and functions of Lua", function()
    local z = complex({ 1 }, { 2 }):requires_grad_()
    for _ = 1, 2 do z:abs():square():sum():backward() end
    assert.are.same({ { 4, 8 } }, z.grad:totable())
    local double = tensor.Function { forward = function(_, x) return x * 2 end,
      backward = function(_, g) return g * 2 end }
    z.grad = nil
    double(z):abs():square():sum():backward()
    assert.are.same({ { 8, 16 } }, z.grad:totable())
  end)

  it("are refused for a recorded change of a view of the parts", function()
    local z = complex({ 1, 2 }, { 3, 4 }):requires_grad_() * 1
    raises("one of the parts of complex numbers", function() z:real():mul_(2) end)
    tensor.no_grad(function() z:real():mul_(2) end)
    assert.are.same({ { 2, 3 }, { 4, 4 } }, z:detach():totable())
  end)
end)

describe("complex tensors in files", function()
  local path = os.tmpname()
  teardown(function() os.remove(path) end)
  local z = complex({ 1, 3 }, { 2, -4 })

  it("go through safetensors as C64; complex128, which the format lacks, is refused", function()
    core.safetensors_save(path, { { "z", z }, { "w", tensor.ones(2) } })
    for _, entry in ipairs(core.safetensors_load(path)) do
      if entry[1] == "z" then assert.are.same(z:totable(), entry[2]:totable()) end
    end
    raises("tensor 'z' is complex128, which the format does not have; save its view_as_real",
      core.safetensors_save, path, { { "z", z:cdouble() } })
  end)

  it("go through PyTorch's files", function()
    utils.save({ z = z, wide = z:cdouble() }, path .. ".pt")
    local back = utils.load(path .. ".pt")
    os.remove(path .. ".pt")
    assert.are.equal("complex64", back.z.dtype)
    assert.are.equal("complex128", back.wide.dtype)
    assert.are.same(z:totable(), back.wide:totable())
  end)

  it("are read from NumPy's, in both orders of bytes", function()
    local function le(text) return (text:reverse()) end
    local one, two = "\63\128\0\0", "\64\0\0\0" -- 1 and 2, big-endian float32
    for descr, data in pairs { ["<c8"] = le(one) .. le(two), [">c8"] = one .. two } do
      local header = ("{'descr': '%s', 'fortran_order': False, 'shape': (1,), }\n"):format(descr)
      local f = assert(io.open(path, "wb"))
      f:write("\147NUMPY\1\0", string.char(#header, 0), header, data)
      f:close()
      assert.are.same({ { 1, 2 } }, core.read_npy(path):totable(), descr)
    end
  end)
end)

describe("Fourier transforms", function()
  local fft = tensor.fft
  local function random(...)
    return tensor.randn({ ... }, { generator = tensor.Generator(3), dtype = "float64" })
  end
  local function signal(...) return tensor.complex(random(...), random(...):flip(1)) end

  it("are the sums of their definition, whatever the length", function()
    for _, n in ipairs { 1, 2, 9, 60, 97, 101, 127, 128, 194, 202, 343, 509 } do
      local x = signal(3, n)
      local k = tensor.arange(n):double()
      local turns = (k:unsqueeze(2) * k):remainder(n) * (-2 * math.pi / n)
      local matrix = tensor.polar(tensor.ones_like(turns), turns)
      numbers.close(fft.fft(x), x:matmul(matrix), 1e-11)
      numbers.close(fft.fft(x:cfloat()):cdouble(), x:cfloat():cdouble():matmul(matrix), 3e-6 * n ^ 0.5)
    end
  end)

  it("are these sums however many lines there are", function()
    for _, n in ipairs { 8, 16, 56, 63, 64, 81, 103, 113, 143, 144, 243, 256, 257, 272, 320, 514, 521 } do
      local k = tensor.arange(n):double()
      local turns = (k:unsqueeze(2) * k):remainder(n) * (2 * math.pi / n)
      local matrix = tensor.polar(tensor.ones_like(turns), turns)
      for _, lines in ipairs { 1, 5, 19 } do
        local x = signal(lines, n)
        numbers.close(fft.ifft(x, { norm = "forward" }), x:matmul(matrix), 1e-11)
        numbers.close(fft.ifft(x:cfloat(), { norm = "forward" }):cdouble(),
          x:cfloat():cdouble():matmul(matrix),
          3e-6 * n ^ 0.5)
      end
    end
  end)

  it("of float32 differ by roundings from those of float64, in long lines too", function()
    for _, n in ipairs { 1009, 2018, 4096, 5003, 12289, 65537 } do
      for _, lines in ipairs { 1, n < 5003 and 9 or 2 } do
        local x = signal(lines, n):cfloat()
        for _, turn in ipairs { fft.fft, fft.ifft } do
          local exact = turn(x:cdouble())
          local d, size = turn(x):cdouble() - exact, exact:abs():square():mean():sqrt():item()
          local rms, most = d:abs():square():mean():sqrt():item(), d:abs():max():item()
          assert(rms < 4e-7 * size and most < 4e-6 * size,
            ("%d lines of %d: %g in the mean, %g at most"):format(lines, n, rms / size, most / size))
        end
      end
    end
  end)

  it("of columns are those of rows: all factors, and fewer columns than lanes", function()
    for _, n in ipairs { 2, 16, 97, 128, 194, 243, 256, 257, 360, 512, 1001, 1155, 2048, 4096, 4097, 4500 } do
      for _, columns in ipairs { 1, 5, 8, 17 } do
        local x = signal(n, columns)
        for _, turn in ipairs { fft.fft, fft.ifft } do
          local rows = turn(x:t():contiguous()):t()
          numbers.close(turn(x, { dim = 1 }), rows, 1e-10)
          local d = turn(x:cfloat(), { dim = 1 }):cdouble() - rows
          assert(d:abs():max():item() < 4e-6 * rows:abs():max():item(), ("%d x %d"):format(n, columns))
        end
      end
    end
  end)

  it("turn back, along any dim, in any memory order", function()
    local x = signal(6, 35, 4)
    for d = 1, 3 do
      numbers.close(fft.ifft(fft.fft(x, { dim = d }), { dim = d }), x)
      numbers.close(fft.fft(x:transpose(1, d), { dim = 1 }), fft.fft(x, { dim = d }):transpose(1, d))
      local r = x:real()
      numbers.close(fft.irfft(fft.rfft(r, { dim = d }), r.shape[d], d), r)
    end
    numbers.close(fft.ifftn(fft.fftn(x)), x)
    numbers.close(fft.irfftn(fft.rfftn(x:imag()), x.shape), x:imag())
  end)

  it("of real tensors agree with those of complex ones", function()
    for _, n in ipairs { 1, 2, 3, 8, 18, 34, 45, 64, 66, 101, 130, 256, 512, 1000, 1024, 1056, 1536, 2018,
      4096,
      16384, 32768 } do
      local x = random(n > 5000 and 3 or 17, n)
      local half = fft.fft(x):narrow(2, 1, math.floor(n / 2) + 1)
      numbers.close(fft.rfft(x), half, 1e-11)
      numbers.close(fft.rfft(x:float()):to("complex128"), half, 1e-3)
      if n > 1 then
        numbers.close(fft.irfft(half:to("complex64"), n):double(), x, 1e-4)
        local pairs = half:view_as_real():contiguous() -- imaginary parts that mean nothing
        pairs[{ {}, 1, 2 }] = 7
        if n % 2 == 0 then pairs[{ {}, n / 2 + 1, 2 }] = -3 end
        numbers.close(fft.irfft(pairs:view_as_complex(), n), x, 1e-12)
      end
    end
  end)

  it("of real tensors have the gradients of complex ones", function()
    for _, n in ipairs { 34, 64, 256, 512, 1536, 4096 } do
      local m = n / 2 + 1
      local x, y = random(3, n):requires_grad_(), random(3, n):requires_grad_()
      local weight, inner = signal(3, m), signal(3, m)
      ;(fft.rfft(x) * weight):real():sum():backward()
      ;(fft.fft(y):narrow(2, 1, m) * weight):real():sum():backward()
      numbers.close(x.grad, y.grad, 1e-11)
      local ends = inner:view_as_real():contiguous()
      ends[{ {}, 1, 2 }], ends[{ {}, m, 2 }] = 0, 0
      local h = ends:view_as_complex()
      local a, b = h:clone():requires_grad_(), h:clone():requires_grad_()
      local w = random(3, n)
      ;(fft.irfft(a, n) * w):sum():backward()
      local rest = b:narrow(2, 2, m - 2):flip(2):conj()
      ;(fft.ifft(tensor.cat({ b, rest }, 2)):real() * w):sum():backward()
      local expected = b.grad:view_as_real():contiguous() -- imaginary parts that irfft does not read
      expected[{ {}, 1, 2 }], expected[{ {}, m, 2 }] = 0, 0
      numbers.close(a.grad, expected:view_as_complex(), 1e-11)
    end
  end)

  it("do not depend on the number of threads", function()
    local before = tensor.get_num_threads()
    local function all()
      return { fft.fft(signal(40, 1000)), fft.fft(signal(2, 1009)), fft.rfft(random(1, 65536)),
        fft.fft(signal(40, 1009)), fft.fft(signal(1, 12289):cfloat()), fft.fft(signal(1, 65537):cfloat()),
        fft.fft(signal(64, 33, 20), { dim = 2 }) }
    end
    tensor.set_num_threads(1)
    local one = all()
    tensor.set_num_threads(3)
    local three = all()
    tensor.set_num_threads(before)
    for k, x in ipairs(one) do assert.is_true(x:eq(three[k]):all():item(), "transform " .. k) end
  end)

  it("take and give empty batches, and refuse what has no positions", function()
    assert.are.same({ 0, 8 }, fft.fft(tensor.zeros(0, 8)).shape)
    assert.are.same({ 0, 5 }, fft.rfft(tensor.zeros(0, 8)).shape)
    raises("fft.fft: expected at least 1 position along dim 2, got 0", fft.fft, tensor.zeros(2, 0))
    raises("fft.fft: expected at least 1 position along dim 1, got 0", fft.fft, tensor.zeros(2), 0)
    raises("fft.irfft: expected at least 1 position along dim 1, got 0", fft.irfft, tensor.zeros(1))
    raises("fft.fft: expected at least one dim, got a 0-d tensor", fft.fft, tensor(1))
    raises("fft.rfft: expected a real tensor, got complex128", fft.rfft, signal(2, 2))
    raises("fft.fft: not defined for float16", fft.fft, tensor.zeros(2):half())
    raises("fft.fftn: 1 sizes and 2 dims", fft.fftn, tensor.zeros(2, 2), { 2 }, { 1, 2 })
    raises("fft.fftn: dim 1 is listed twice", fft.fftn, tensor.zeros(2, 2), nil, { 1, 1 })
    raises("norm", fft.fft, tensor.zeros(2), { norm = "othro" })
    raises("fft2", fft.fft2, tensor.zeros(2))
    raises("fftt", function() return tensor.fftt end)
  end)
end)

describe("stft and istft raise", function()
  local x, w = tensor.zeros(2, 64), tensor.ones(16)
  it("for shapes, windows and sizes that do not fit", function()
    raises("stft: expected shape [samples] or [batch, samples], got [1, 2, 64]", tensor.stft,
      x:unsqueeze(1), 16)
    raises("stft: expected a window of shape [16], got [8]", tensor.stft, x, 16,
      { window = tensor.ones(8) })
    raises("stft: win_length must be from 1 to n_fft (16), got 17", tensor.stft, x, 16, { win_length = 17 })
    raises("stft: hop_length must be at least 1, got 0", tensor.stft, x, 16, 0)
    raises("stft: 64 samples are fewer than n_fft, 65", tensor.stft, x, 65, { center = false })
    raises("stft: onesided is for real signals", tensor.stft, x:cfloat(), 16, { onesided = true })
    raises("istft: expected 9 frequencies for n_fft 16, got shape [2, 8, 3]", tensor.istft,
      tensor.zeros(2, 8, 3):cfloat(), 16, { window = w })
    raises("istft: expected a complex tensor of 2 or 3 dims, got float32", tensor.istft, x, 16)
    raises("istft: the squared windows add up to 0", tensor.istft, tensor.zeros(9, 3):cfloat(), 16,
      { window = tensor.hann_window(16), center = false })
    raises("hann_window: window_length must be at least 0, got -1", tensor.hann_window, -1)
    raises("hann_window: dtype must be a floating type, got int64", tensor.hann_window, 4,
      { dtype = "int64" })
  end)
end)

describe("complex vectors and scalars", function()
  it("vdot turns the signs of its first vector, and a running sum of one number is that number", function()
    local a, b = tensor.complex(tensor.tensor { 1, 2 }, tensor.tensor { 3, -1 }),
      tensor.complex(tensor.tensor { 0, 1 }, tensor.tensor { 1, 5 })
    assert.same({ 0, 12 }, { a:vdot(b):item() })
    assert.same({ 1, 3 }, { a[1]:cumsum(1):item() })
  end)
end)

describe("dropout of complex numbers", function()
  local z = complex({ 1, 2, 3, 4 }, { -1, 5, 0.5, 2 }):repeat_interleave(50)

  it("drops both parts of a number, and scales the others", function()
    local y = tensor.dropout(z, 0.5, true, tensor.Generator(7))
    local ratio = (y / z):real()
    assert.equal("complex64", y.dtype)
    assert.is_true(ratio:eq(0):logical_or((ratio - 2):abs():lt(1e-6)):all():item())
    assert.is_true(ratio:mean():item() > 0.6 and ratio:mean():item() < 1.4)
    assert.is_true(((y / z):imag():abs():lt(1e-6)):all():item())
    assert.are.equal(z, tensor.dropout(z, { training = false }))
  end)

  it("has a gradient, and serves channels and SELU", function()
    local x = tensor.complex(tensor.ones(2, 3, 2, 2), tensor.ones(2, 3, 2, 2)):requires_grad_()
    local y = nn.functional.dropout2d(x, 0.5)
    y:abs():sum():backward()
    assert.same(y:detach():ne(0):totable(), x.grad:ne(0):totable())
    assert.same(y[{ {}, {}, 1, 1 }]:view_as_real():totable(), y[{ {}, {}, 2, 2 }]:view_as_real():totable())
    for _, name in ipairs { "alpha_dropout", "feature_alpha_dropout" } do
      assert.same({ "complex64", { 2, 3, 2, 2 } },
        { nn.functional[name](x, 0.5).dtype, nn.functional[name](x, 0.5).shape })
    end
    assert.equal(z, nn.functional.feature_alpha_dropout(z, { training = false }))
  end)
end)
