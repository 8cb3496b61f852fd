--- Functions written of rows where types mix, sizes are 0 and arguments have no meaning. Values are
--- PyTorch's.
local tensor = require "accelerate.tensor"
local F = require "accelerate.nn.functional"
local message = require("spec.support.messages").message

local function vector(list, dtype) return tensor.tensor(list, { dtype = dtype }) end
local function zeros(shape, dtype) return tensor.zeros(shape, { dtype = dtype }) end
local function leaf(list) return tensor.tensor(list, { requires_grad = true }) end

describe("functions written of rows: types", function()
  it("promote as rows do", function()
    local int, half = vector({ 1, 2 }, "int64"), vector({ 1, 2 }, "bfloat16")
    local wide = tensor.tensor(2, { dtype = "float64" })
    for _, name in ipairs { "logaddexp2", "ldexp", "copysign" } do
      local f = tensor[name]
      assert.equal("bfloat16", f(half, int).dtype, name)
      assert.equal("float64", f(wide, int).dtype, name)
      assert.equal("float32", f(int, int).dtype, name)
      assert.equal("float32", f(half, vector({ 1, 2 }, "float16")).dtype, name)
    end
    assert.equal("float64", vector({ 1, 2 }, "float32"):copysign(vector({ -1, 1 }, "float64")).dtype)
    local small = vector({ 12, 18 }, "int32")
    assert.equal("int32", small:gcd(vector(8, "int64")).dtype)
    assert.same({ 4, 2 }, small:gcd(vector(8, "int64")):totable())
    assert.same({ 24, 72 }, small:lcm(vector(8, "int64")):totable())
    assert.same({ 1, 1 }, small:gcd(vector({ true, true })):totable())
  end)

  it("compute halves in float32", function()
    local x, y = vector({ 3.2, -1.1 }, "float16"), vector({ 2.9, -0.7 }, "float16")
    local want = tensor.logaddexp2(x:double(), y:double())
    assert.is_true(tensor.logaddexp2(x, y):double():allclose(want, 6e-4))
    assert.is_true(vector({ 1 }, "float16"):sinc():abs():item() < 1e-6) -- sin(pi), not sin(3.14)
  end)

  it("scale beyond what 2 ^ other holds", function()
    assert.is_true(
      math.abs(vector({ 1e-38 }):ldexp(vector({ 200 }, "int64")):item() / 1.606938e22 - 1) < 1e-5)
    assert.same({ 0.25 }, vector({ 2 }):ldexp(vector({ -3 }, "int64")):totable())
    assert.same({ math.huge }, vector({ 1 }):ldexp(vector({ 200 }, "int64")):totable())
    assert.same({ math.huge, 0 }, vector({ 1, 1 }):ldexp(vector { math.huge, -math.huge }):totable())
  end)

  it("do not write results into tensors that cannot hold them", function()
    for _, name in ipairs { "copysign_", "deg2rad_", "sinc_", "i0_" } do
      local x = vector({ 1, 2 }, "int64")
      assert.matches(name .. ": the result is float32 and does not fit the tensor being changed, int64",
        message(x[name], x, name == "copysign_" and -1 or nil))
    end
    local x = vector({ 1, 2 }, "float32")
    assert.same({ -1, -2 }, x:copysign_(-1):totable())
    assert.is_true(x:abs():i0_():allclose(vector { 1.2660658, 2.2795854 }))
    assert.is_true(vector({ 1, 2 }):igamma_(vector { 1, 2 }):allclose(vector { 0.6321206, 0.5939941 }))
    assert.is_true(vector({ 1, 2 }):igammac_(vector { 1, 2 }):allclose(vector { 0.3678795, 0.4060059 }))
    assert.is_true(vector({ 3, 4 }):mvlgamma_(2):allclose(vector { 1.5502, 3.5651 }, 1e-4))
  end)

  it("keep small integer types where PyTorch does", function()
    local a, b = tensor.ones(2, 3, 4, { dtype = "int32" }), tensor.ones(2, 4, 3, { dtype = "int32" })
    assert.equal("int32", zeros({ 3, 3 }, "int32"):addbmm(a, b).dtype)
    local parts = { tensor.unravel_index(vector({ 5, 2 }, "int32"), { 2, 3 }) }
    assert.equal("int64", parts[1].dtype)
    assert.equal("int64", parts[2].dtype)
    assert.equal("int32", tensor.masked.cumsum(vector({ 1, 2 }, "int32"), 1).dtype)
    assert.equal("float16", tensor.masked.var(vector({ 1, 2 }, "float16"), { correction = 0.5 }).dtype)
  end)

  it("add integers without leaving their type", function()
    assert.equal(358, tensor.trapezoid(vector({ 200, 3, 255, 0 }, "uint8")):item())
    assert.same({ 101.5, 230.5, 358 },
      tensor.cumulative_trapezoid(vector({ 200, 3, 255, 0 }, "uint8")):totable())
  end)

  it("refuse complex numbers where there is no order or distance", function()
    local z, x = zeros({ 2, 2 }, "complex64"), zeros { 2, 2 }
    assert.matches("copysign: not defined for complex", message(tensor.copysign, z, x))
    assert.matches("heaviside: not defined for complex", message(tensor.heaviside, x, z))
    assert.matches("gcd: argument 1: expected integers, got complex64", message(tensor.gcd, z, x))
    assert.matches("cdist: x2: expected real numbers, got complex64", message(tensor.cdist, x, z))
    assert.matches("histc: not defined for bool", message(tensor.histc, vector { true }))
    assert.matches("unravel_index: indices: expected integers, got float32",
      message(tensor.unravel_index, vector { 1 }, { 2 }))
  end)

  it("take sinc of complex numbers", function()
    local z = tensor.complex(vector { 0.5, 0, 1.5 }, vector { 0.25, 0, -1 })
    local s = z:sinc()
    -- torch.sinc(torch.tensor([0.5+0.25j, 0, 1.5-1j]))
    assert.is_true(s:real():allclose(vector { 0.6746, 1, -1.7030 }, 1e-3))
    assert.is_true(s:imag():allclose(vector { -0.3373, 0, -1.1353 }, 1e-3))
  end)

  it("fill complex tensors with real values", function()
    local z = zeros({ 2 }, "complex64"):masked_fill(vector { true, false }, tensor.tensor(2.5))
    assert.same({ { 2.5, 0 }, { 0, 0 } }, z:totable())
    assert.matches("a value of float32 does not fit a tensor of int64", message(function()
      return zeros({ 2 }, "int64"):masked_fill(vector { true, false }, tensor.tensor(2.5))
    end))
  end)
end)

describe("functions written of rows: gradients", function()
  it("of medians are shared by equal elements", function()
    for _, name in ipairs { "median", "nanmedian" } do
      local x = leaf { 2, 1, 2, 3, 2 }
      x[name](x):backward()
      assert.is_true(x.grad:allclose(vector { 1 / 3, 0, 1 / 3, 0, 1 / 3 }), name)
    end
    local x = leaf { 0 / 0, 2, 2, 1, 3 }
    assert.equal(2, x:nanmedian():item())
    x:nanmedian():backward()
    assert.same({ 0, 0.5, 0.5, 0, 0 }, x.grad:totable())
    assert.is_true(x:median():isnan():item())
    local y = leaf { { 1, 4 }, { 1, 2 } }
    local value = y:median(1) -- with dim: one position
    value:sum():backward()
    assert.equal(2, y.grad:sum():item())
  end)

  it("pass through sizes of 0", function()
    local x = tensor.zeros(3, 0, { requires_grad = true })
    for _, f in ipairs {
      function() return x:prod() end, function() return x:prod(2):sum() end, function() return x:median() end,
      function() return x:sum() + x:mean() end, function() return (select(1, x:std_mean())) end,
      function() return tensor.trapezoid(x:t(), { dim = 2 }):sum() end,
      function() local s, m = x:var_mean() return s + m end,
      function() return tensor.trapezoid(tensor.zeros(2, 1) * x:sum()):sum() end,
    } do
      x.grad = nil
      f():backward()
      assert.same({ 3, 0 }, x.grad.shape)
    end
    assert.equal(1, x:prod():item())
    assert.is_true(x:median():isnan():item())
  end)

  it("of rounded quotients and of signs copied to 0 are 0", function()
    for _, mode in ipairs { "floor", "trunc" } do
      local a, b = leaf { 1, 0, 5 }, leaf { 0, 0, 1e-40 }
      tensor.div(a, b, { rounding_mode = mode }):sum():backward()
      assert.same({ 0, 0, 0 }, a.grad:totable())
      assert.same({ 0, 0, 0 }, b.grad:totable())
    end
    local x = leaf { 0, 1, -2 }
    local y = x:copysign(vector { -1, -1, -1 })
    assert.same({ -math.huge, -1, -0.5 }, y:detach():reciprocal():totable())
    y:sum():backward()
    assert.same({ 0, -1, 1 }, x.grad:totable())
  end)

  it("of the power 0 of a matrix are 0", function()
    local x = leaf { { math.huge, 2 }, { 3, 4 } }
    local y = tensor.linalg.matrix_power(x, 0)
    assert.same({ { 1, 0 }, { 0, 1 } }, y:totable())
    y:sum():backward()
    assert.same({ { 0, 0 }, { 0, 0 } }, x.grad:totable())
  end)

  it("of picked complex numbers without dims", function()
    local z = tensor.tensor(2, { dtype = "complex128", requires_grad = true })
    local at = vector({ 0 }, "int64")
    z:index_select(1, at):real():sum():backward()
    assert.same({ 1, 0 }, { z.grad:item() })
    assert.same({ 5, 0 },
      { z:detach():index_add(1, at, tensor.full({}, 3, { dtype = "complex128" })):item() })
    assert.same({ 3, 0 },
      { z:detach():index_copy(1, at, tensor.full({}, 3, { dtype = "complex128" })):item() })
  end)
end)

describe("functions written of rows: arguments", function()
  it("that have no meaning raise", function()
    local x = tensor.ones(3, 3)
    assert.matches("gradient: dim 2 is listed twice", message(tensor.gradient, x, 1, { 2, 2 }))
    assert.matches("isclose: rtol: expected at least 0, got %-1", message(tensor.isclose, x, x, -1))
    assert.matches("allclose: atol: expected at least 0, got nan", message(tensor.allclose, x, x,
      { atol = 0 / 0 }))
    assert.matches("histc: the range from nan to nan is not finite", message(tensor.histc, x * (0 / 0)))
    assert.matches("cartesian_prod: entry 1: expected a vector, got %[%]", message(tensor.cartesian_prod,
      { tensor.tensor(1), tensor.ones(2) }))
    assert.matches("flipud: expected at least 1 dim", message(tensor.flipud, tensor.tensor(1)))
    assert.matches("hardtanh: min_val %(1%) must not be above max_val %(0%)", message(F.hardtanh, x, 1, 0))
    assert.matches("softshrink: lambd must be at least 0, got %-0.5", message(F.softshrink, x, -0.5))
    for _, name in ipairs { "triplet_margin_loss", "triplet_margin_with_distance_loss" } do
      assert.matches(name .. ": margin must be above 0, got 0", message(F[name], x, x, x, { margin = 0 }))
    end
    assert.same({ 1, 1 }, tensor.ones(2):hardtanh_(0, 1):totable())
    assert.same({ 0.5, 0.5 }, tensor.ones(2):softshrink_(0.5):totable())
  end)

  it("of histc that are equal stand for the range of x", function()
    assert.same({ 1, 0, 2 }, vector({ 1, 4, 3.5 }):histc(3, 2, 2):totable())
    assert.same({ 0, 2 }, vector({ 1, 1 }):histc(2, 2, 2):totable())
  end)

  it("of combinations may choose nothing", function()
    assert.same({ 0 }, tensor.ones(3):combinations(0).shape)
    assert.matches("r must be at least 0", message(tensor.combinations, tensor.ones(3), -1))
  end)
end)

describe("types of results beside a complex tensor of no dims", function()
  it("keep the precision of the floating tensor", function()
    local narrow, wide = tensor.ones({}, { dtype = "complex64" }), tensor.ones({}, { dtype = "complex128" })
    assert.equal("complex64", (tensor.ones(2) * wide).dtype)
    assert.equal("complex128", (tensor.ones(2, { dtype = "float64" }) + narrow).dtype)
    assert.equal("complex64", tensor.ones(2, { dtype = "complex64" }):sub(wide).dtype)
    assert.equal("complex128", (tensor.ones(2, { dtype = "int64" }) + wide).dtype)
    assert.equal("complex64", tensor.result_type(tensor.ones(2), wide))
  end)
end)

describe("linear algebra of nothing", function()
  local linalg = tensor.linalg
  it("has norms where no least element is asked for", function()
    for _, ord in ipairs { 1, 2, math.huge } do
      for _, shape in ipairs { { 0, 0 }, { 0, 3 }, { 3, 0 } } do
        assert.equal(0, linalg.matrix_norm(zeros(shape), ord):item())
        assert.equal(0, linalg.norm(zeros(shape), ord):item())
      end
      assert.same({ { { 0 } }, { { 0 } } }, linalg.matrix_norm(zeros { 2, 0, 3 }, ord, nil, true):totable())
    end
    assert.equal(0, linalg.matrix_norm(zeros { 0, 3 }, -1):item())
    assert.equal(0, linalg.matrix_norm(zeros { 3, 0 }, -math.huge):item())
    for _, case in ipairs { { { 3, 0 }, -1 }, { { 0, 3 }, -math.huge }, { { 0, 3 }, -2 } } do
      assert.matches("has no value for matrices without elements", message(linalg.matrix_norm, zeros(case[1]),
        case[2]))
    end
    assert.matches("cond", message(linalg.cond, zeros { 0, 3 }, "fro"))
  end)

  it("has real residuals of complex systems", function()
    local a, b = tensor.randn(2, 2, { dtype = "complex64" }), tensor.randn(2, 1, { dtype = "complex64" })
    local _, residuals = linalg.lstsq(a, b)
    assert.equal("float32", residuals.dtype)
  end)
end)
