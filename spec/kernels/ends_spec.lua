--- Results where formulas break down: infinities, NaN, the origin, negative margins, absurd sizes.
--- Expected values are PyTorch 2's.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local F = require "accelerate.nn.functional"
local raises = require("spec.support.messages").raises

local inf, nan = math.huge, 0 / 0

-- Equal numbers, NaN included; with `signs` -0 differs from 0.
local function same(expected, got, signs)
  local values = got:reshape(-1):totable()
  assert.are.equal(#expected, #values)
  for i, e in ipairs(expected) do
    local v = values[i]
    local fits = e ~= e and v ~= v or e == v or math.abs(e - v) <= 1e-6 * math.abs(e)
    if signs and e == 0 then fits = fits and 1 / e == 1 / v end
    assert.is_true(fits, ("%d: got %.9g, expected %.9g"):format(i, v, e))
  end
end

describe("gelu", function()
  it("is x, or 0, for numbers whose powers are infinite", function()
    local function cleared(v) return v:masked_fill(v:abs():lt(1e-6), 0) end
    local list = { 1e10, 1e14, 1e20, 3e38, -1e14, -1e20, -3e38 }
    for _, form in ipairs { "none", "tanh" } do
      local x = tensor.tensor(list, { requires_grad = true })
      local y = F.gelu(x, form)
      same({ 1e10, 1e14, 1e20, 3e38, 0, 0, 0 }, cleared(y:detach()))
      y:sum():backward()
      same({ 1, 1, 1, 1, 0, 0, 0 }, cleared(x.grad))
    end
  end)
end)

describe("hardswish", function()
  it("is -0 below -3, and no number at -infinity, as PyTorch's products are", function()
    for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
      local y = F.hardswish(tensor.tensor({ -inf, inf, -3, -5, nan, 4 }, { dtype = dtype }))
      same({ nan, inf, -0, -0, nan, 4 }, y:double(), true)
    end
  end)
end)

describe("losses of differences", function()
  it("have PyTorch's gradients where the difference is infinite or NaN", function()
    local A, B = { inf, -inf, inf, nan, 1, 0, inf }, { 0, 0, inf, 0, nan, inf, -inf }
    local sides = { 1, -1, nan, nan, nan, -1, 1 }
    for name, expected in pairs { smooth_l1_loss = sides, huber_loss = sides,
      l1_loss = { 1, -1, 0, 0, 0, -1, 1 },
      mse_loss = { inf, -inf, nan, nan, nan, -inf, inf } } do
      for _, dtype in ipairs { "float32", "float64" } do
        local x = tensor.tensor(A, { dtype = dtype, requires_grad = true })
        local loss = F[name](x, tensor.tensor(B, { dtype = dtype }), { reduction = "none" })
        same({ inf, inf, nan, nan, nan, inf, inf }, loss:detach())
        loss:sum():backward()
        same(expected, x.grad)
      end
    end
  end)
end)

describe("functions of two numbers", function()
  local A = { inf, inf, -inf, -inf, inf, nan, 1, -inf, nan, 0 }
  local B = { inf, -inf, -inf, inf, nan, inf, inf, 1, -inf, 0 }
  local ln2 = math.log(2)

  it("have PyTorch's values and gradients at the ends", function()
    local cases = {
      { "logaddexp", { inf, inf, -inf, inf, nan, nan, inf, 1, nan, ln2 },
        { nan, 1, nan, 0, nan, nan, 0, 0, nan, 0.5 },
        { nan, 0, nan, 1, nan, nan, 1, 1, nan, 0.5 } },
      { "hypot", { inf, inf, inf, inf, inf, inf, inf, inf, inf, 0 },
        { nan, nan, nan, nan, nan, nan, 0, nan, nan, nan },
        { nan, nan, nan, nan, nan, nan, nan, 0, nan, nan } },
      { "atan2", { math.pi / 4, math.pi * 3 / 4, -math.pi * 3 / 4, -math.pi / 4, nan, nan, 0, -math.pi / 2,
        nan, 0 },
        { nan, nan, nan, nan, nan, nan, nan, 0, nan, 0 }, { nan, nan, nan, nan, nan, nan, 0, nan, nan, 0 } },
    }
    for _, dtype in ipairs { "float32", "float64" } do
      for _, case in ipairs(cases) do
        local a, b = core.tensor(A, { dtype = dtype }), core.tensor(B, { dtype = dtype })
        a.requires_grad, b.requires_grad = true, true
        local y = core[case[1]](a, b)
        y:sum():backward()
        same(case[2], y)
        same(case[3], a.grad)
        same(case[4], b.grad)
      end
    end
  end)

  it("in long rows too, where vectors compute", function()
    for _, name in ipairs { "logaddexp", "hypot" } do
      local a, b = core.tensor(A), core.tensor(B)
      local once = core[name](a, b):totable()
      local many = core[name](a:unsqueeze(1):expand(50, 10):contiguous(),
        b:unsqueeze(1):expand(50, 10):contiguous())
      for row = 1, 50 do same(once, many[row]) end
    end
  end)

  it("have gradients of 0 at the origin of atan2, with the signs of the zeros", function()
    local a = core.tensor({ 0, 0, -0.0, -0.0, 0 })
    local b = core.tensor({ 0, -0.0, 0, -0.0, 1 })
    a.requires_grad, b.requires_grad = true, true
    core.atan2(a, b):sum():backward()
    same({ 0, -0.0, 0, -0.0, 1 }, a.grad, true)
    same({ -0.0, -0.0, 0, 0, -0.0 }, b.grad, true)
  end)

  it("give bfloat16 the gradient of a remainder's divisor that rounds once", function()
    tensor.manual_seed(3)
    for _, name in ipairs { "remainder", "fmod" } do
      local a = (core.rand(2000) * 16 - 8):to("bfloat16")
      local b = (core.rand(2000) * 0.1 + 0.02):to("bfloat16")
      b.requires_grad = true
      core[name](a, b):sum():backward()
      local quotient = a:double() / b:detach():double()
      local expected = -(name == "fmod" and quotient:trunc() or quotient:floor())
      assert.are.same(expected:to("bfloat16"):totable(), b.grad:totable())
    end
  end)
end)

describe("pad", function()
  local x = core.tensor({ 1, 2, 3, 4 }):view(1, 1, 4)
  local square = core.arange(1, 10):to("float32"):view(1, 1, 3, 3)

  it("with negative margins takes what PyTorch takes", function()
    for _, case in ipairs {
      { "circular", { -1, 1 }, { 2, 3, 4, 2 } }, { "circular", { 1, -1 }, { 3, 1, 2, 3 } },
      { "circular", { -2, 2 }, { 3, 4, 3, 4 } },
      { "circular", { -1, -1 }, { 2, 3 } }, { "circular", { -3, 1 }, { 4, 4 } },
      { "reflect", { -1, 1 }, { 2, 3, 4, 3 } },
      { "reflect", { -2, 3 }, { 3, 4, 3, 2, 1 } }, { "reflect", { 3, -2 }, { 4, 3, 2, 1, 2 } },
      { "replicate", { 3, -2 }, { 1, 1, 1, 1, 2 } },
      { "replicate", { -4, 1 }, { 4 } }, { "constant", { 3, -2 }, { 0, 0, 0, 1, 2 } },
      { "constant", { -4, 1 }, { 0 } },
    } do same(case[3], F.pad(x, case[2], case[1])) end
    same({ 5, 6, 5, 2, 3, 2, 5, 6, 5 }, F.pad(square, { -1, 1, 1, -1 }, "circular"))
    same({ 5, 6, 5, 2, 3, 2, 5, 6, 5 }, F.pad(square, { -1, 1, 1, -1 }, "reflect"))
    same({ 2, 3, 3, 2, 3, 3, 5, 6, 6 }, F.pad(square, { -1, 1, 1, -1 }, "replicate"))
  end)

  it("sends gradients back to what was left of a cut input", function()
    local y = square:clone()
    y.requires_grad = true
    F.pad(y, { -1, 1, 1, -1 }, "circular"):sum():backward()
    same({ 0, 2, 1, 0, 4, 2, 0, 0, 0 }, y.grad)
  end)

  it("refuses to come round more than once, or to cut more than there is", function()
    raises("a margin of 3 is more than dim 3 of shape [1, 1, 2] can fill", F.pad, x, { -2, 3 }, "circular")
    raises("a margin of 1 is more than dim 3 of shape [1, 1, 0] can fill", F.pad, x, { -4, 1 }, "circular")
    for _, mode in ipairs { "circular", "constant" } do
      raises("margins of -5 and 2 cut more than dim 3 of shape [1, 1, 4] has", F.pad, x, { -5, 2 }, mode)
    end
  end)
end)

describe("arange", function()
  it("refuses a step away from the end, be it longer than the way", function()
    for _, case in ipairs { { 5, 4, 2 }, { 4, 5, -2 }, { 0, -0.5 }, { 1, 0, 1e300 } } do
      raises("give it the other sign", tensor.arange, unpack(case))
    end
    assert.are.same({ 0 }, tensor.arange(5, 5, 2).shape)
    assert.are.same({ 0 }, tensor.arange(5, 5, -2).shape)
  end)
end)

describe("absurd sizes", function()
  local function message(f, ...) return select(2, pcall(f, ...)) end

  it("are refused by pixel_shuffle, also where there is nothing to shuffle", function()
    local none = core.zeros(1, 0, 2, 2)
    for _, factor in ipairs { 2 ^ 31, 2 ^ 32, 2 ^ 53 } do
      raises("the factor must be at most 2147483647", core.pixel_shuffle, none, factor)
      raises("the factor must be at most 2147483647", core.pixel_unshuffle, core.zeros(1, 2, 0, 0), factor)
    end
    raises("makes [1, 0, 2, 17179869184] too large", core.pixel_shuffle, core.zeros(1, 0, 2, 2 ^ 34),
      2 ^ 31 - 1)
    assert.are.same({ 1, 0, 131074, 131074 }, core.pixel_shuffle(none, 65537).shape)
  end)

  it("without effect leave convolutions what they are", function()
    tensor.manual_seed(5)
    for _, dtype in ipairs { "float32", "bfloat16", "float64" } do
      local x, point, kernel = core.randn(1, 2, 4, 4):to(dtype), core.randn(3, 2, 1,
        1):to(dtype), core.randn(3, 2, 3, 3):to(dtype)
      for _, t in ipairs { x, point, kernel } do t.requires_grad = true end
      local function both(a, b) -- results and gradients
        assert.are.same(a:totable(), b:totable())
        for _, t in ipairs { x, point, kernel } do t.grad = nil end
        a:sum():backward()
        local first = { x.grad:totable(), (point.grad or kernel.grad):totable() }
        for _, t in ipairs { x, point, kernel } do t.grad = nil end
        b:sum():backward()
        assert.are.same(first, { x.grad:totable(), (point.grad or kernel.grad):totable() })
      end
      both(F.conv2d(x, point, { dilation = 2 ^ 31 - 1 }), F.conv2d(x, point))
      both(F.conv2d(x, kernel, { stride = 2 ^ 31 - 1 }), F.conv2d(x, kernel, { stride = 2 }))
      local row, taps = x[{ {}, {}, 1 }], kernel[{ {}, {}, 1 }]
      same(F.conv1d(row, taps, { stride = 2 }):reshape(-1):totable(),
        F.conv1d(row, taps, { stride = 2 ^ 31 - 1 }))
      same(F.conv2d(x, point):totable()[1][1][1],
        F.conv_transpose2d(F.conv2d(x, point), core.ones(3, 1, 1, 1):to(dtype),
        { groups = 3, dilation = 2 ^ 31 - 1 })[{ 1, 1, 1 }])
      assert.are.same({ 1, 3, 2, 2 }, F.conv2d(x, kernel, { padding = 2 ^ 30 - 1, stride = 2 ^ 30 }).shape)
    end
  end)

  it("are refused by convolutions and pools by name", function()
    local x, w = core.randn(1, 1, 4, 4), core.randn(1, 1, 3, 3)
    for _, fn in ipairs { "conv2d", "conv_transpose2d" } do
      for _, option in ipairs { "stride", "dilation", "padding" } do
        for _, value in ipairs { 2 ^ 31, 2 ^ 53 } do
          assert.matches(("%s: %s must be at most %%d+, got %d"):format(fn, option, value),
            message(F[fn], x, w, { [option] = value }))
        end
        assert.matches(option .. " must be at least [01], got %-1", message(F[fn], x, w, { [option] = -1 }))
      end
      raises("groups must be at most", F[fn], x, w, { groups = 2 ^ 53 })
    end
    for _, fn in ipairs { "max_pool2d", "avg_pool2d" } do
      raises(fn .. ": kernel_size must be at most", F[fn], x, 2 ^ 53)
      raises(fn .. ": stride must be at most", F[fn], x, 2, 2 ^ 53)
      assert.are.same({ 1, 1, 1, 1 }, F[fn](x, 2, 2 ^ 31 - 1).shape)
    end
    raises("dilation must be at most", F.max_pool2d, x, 2, { dilation = 2 ^ 53 })
    raises("output_size must be at most", F.adaptive_avg_pool2d, x, 2 ^ 53)
  end)
end)

describe("a number that an element's type has not", function()
  it("is refused where it is written or bounds integers", function()
    local half, byte = tensor.zeros(2, { dtype = "float16" }), tensor.full({ 2 }, 7, { dtype = "uint8" })
    local mask, first = tensor.tensor { true, false }, tensor.tensor({ 0 }, { dtype = "int64" })
    raises("full: 1e+39 does not fit float32", tensor.full, { 1 }, 1e39)
    raises("fill_: 100000 does not fit a tensor of float16", function() half:fill_(1e5) end)
    raises("masked_fill: value -1e+09 does not fit", function() half:masked_fill(mask, -1e9) end)
    raises("index_fill: the value 1e+09 does not fit", function() half:index_fill(1, first, 1e9) end)
    raises("scatter: the value 1e+09 does not fit", function() half:scatter(1, first, 1e9) end)
    raises("pad: the value 1e+09 does not fit", function() F.pad(half, { 1, 1 }, { value = 1e9 }) end)
    raises("clamp: max 1e+09 does not fit float16", function() half:clamp { max = 1e9 } end)
    raises("clamp: min 300 does not fit uint8", function() byte:clamp { min = 300 } end)
    raises("clamp: max -1 does not fit uint8", function() byte:clamp { max = -1 } end)
    raises("clamp_: min 8.58993e+09 does not fit int32", function() byte:int():clamp_ { min = 2 ^ 33 } end)
    raises("scatter: the value 300 does not fit", function() byte:scatter(1, first, 300) end)
    same({ 0, 0 }, half)
  end)

  it("is taken where it rounds into the type, is infinite, or the result has another type", function()
    same({ 65504 }, tensor.full({ 1 }, 65519, { dtype = "float16" }))
    same({ 3.3895313892515355e38 }, tensor.full({ 1 }, 3.3895e38, { dtype = "bfloat16" }))
    same({ -inf, nan }, tensor.tensor({ -inf, nan }, { dtype = "float16" }))
    local mask = tensor.tensor { true, false }
    same({ -inf, 0 }, tensor.zeros(2, { dtype = "float16" }):masked_fill(mask, -inf))
    same({ nan, 0 }, tensor.zeros(2, { dtype = "float16" }):masked_fill(mask, nan))
    same({ 7 }, tensor.full({ 1 }, 7, { dtype = "uint8" }):clamp { max = 300.5 })
    same({ 1, 1, 2 }, tensor.arange(3):clamp { min = 1, max = inf })
  end)
end)
