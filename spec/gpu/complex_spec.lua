--- Complex numbers, grid_sample and ctc_loss on the device, against the CPU: values and gradients,
--- both complex types, real operands beside complex ones, views and odd strides.  None of them goes
--- through the CPU.
local device = require "spec.support.device"
local tensor = require "accelerate.tensor"
local F = require "accelerate.nn.functional"

if not device.name then
  describe("complex numbers on the device",
    function() it("need one", function() pending(device.reason) end) end)
  return
end

local D = device.name
local TOLERANCE = { complex64 = 1e-5, complex128 = 1e-12, float32 = 2e-5, float64 = 1e-11 }

local same = device.agree
local PARTS = { complex64 = "float32", complex128 = "float64" }
local LAYOUTS = {
  contiguous = function(x) return x end,
  transposed = function(x) return x:t():contiguous():t() end,
  slice = function(x)
    local wide = tensor.zeros({ x.shape[1] + 1, x.shape[2] + 3 }, { dtype = x.dtype, device = x.device })
    local view = wide:narrow(1, 2, x.shape[1]):narrow(2, 3, x.shape[2])
    view:copy_(x)
    return view
  end,
  row = function(x) return x:narrow(1, 1, 1):expand(x.shape[1], x.shape[2]) end,
}

-- Numbers a little away from branch cuts and from zero.
local function numbers(seed, dtype, rows, cols)
  tensor.manual_seed(seed)
  local re, im = tensor.rand(rows, cols) * 3 - 1.4, tensor.rand(rows, cols) * 3 - 1.45
  return tensor.complex(re:to(PARTS[dtype]), im:to(PARTS[dtype]))
end

local UNARY = { "neg", "square", "reciprocal", "exp", "log", "sqrt", "sin", "cos", "sinh", "cosh", "tanh",
  "abs",
  "conj", "real", "imag", "angle", "sgn", "sum", "mean" }
local BINARY = {
  add = function(a, b) return a + b end, sub = function(a, b) return a - b end,
  mul = function(a, b) return a * b end, div = function(a, b) return a / b end,
  pow = function(a, b)
    return a ^ b
  end, cube = function(a) return a ^ 3 end, inverse = function(a) return a ^ -2 end,
  number = function(a) return 2.5 - a * 3 end, real = function(a, b) return a * b:real() + b:imag() end,
  product = function(a, b) return a:mm(b:t()) end,
  where = function(a, b) return tensor.where(a:abs():gt(1), a, b) end,
  fill = function(a, b) return a:masked_fill(b:real():gt(0), 2) end,
}

local function run(fn, dtype, layout, on, differentiable)
  local leaves = { numbers(3, dtype, 5, 7):to(on), numbers(4, dtype, 5, 7):to(on) }
  local given = {}
  for k, leaf in ipairs(leaves) do
    if differentiable then leaf:requires_grad_() end
    given[k] = layout(leaf * 1)
  end
  local function call()
    local y = fn(given[1], given[2])
    if differentiable and y.requires_grad then
      local w = (tensor.arange(y:numel(), { device = on }):to(PARTS[dtype]) % 5 - 1.5):view(y.shape)
      local part = y.dtype:find "complex" and (y * w):real() + (y * w):imag() * 0.5 or y * w
      part:sum():backward()
    end
    return y
  end
  local y = call()
  return y, leaves[1].grad, leaves[2].grad
end

describe(("complex numbers on %s (%s)"):format(D, device.kind), function()
  for _, dtype in ipairs { "complex64", "complex128" } do
    it("functions of one: " .. dtype, function()
      for _, name in ipairs(UNARY) do
        for layout, lay in pairs(LAYOUTS) do
          if layout ~= "slice" or name ~= "sgn" then
            local function fn(x) return x[name](x) end
            local y, g = run(fn, dtype, lay, D, layout ~= "slice")
            local there, expected = run(fn, dtype, lay, "cpu", layout ~= "slice")
            same(y, there, TOLERANCE[dtype], ("%s %s"):format(name, layout))
            if expected then
              same(g, expected, 4 * TOLERANCE[dtype], ("%s's gradient %s"):format(name, layout))
            end
          end
        end
      end
    end)

    it("arithmetic of two, and with numbers and real tensors: " .. dtype, function()
      for name, fn in pairs(BINARY) do
        for layout, lay in pairs(LAYOUTS) do
          -- (a complex exponent has no gradient, on no device)
          local differentiable = layout ~= "slice" and name ~= "pow"
          local y, ga, gb = run(fn, dtype, lay, D, differentiable)
          local there, ea, eb = run(fn, dtype, lay, "cpu", differentiable)
          same(y, there, TOLERANCE[dtype] * (name == "pow" and 10 or 1), ("%s %s"):format(name, layout))
          if ea then same(ga, ea, 20 * TOLERANCE[dtype], ("%s's first gradient %s"):format(name, layout)) end
          if eb then same(gb, eb, 20 * TOLERANCE[dtype], ("%s's second gradient %s"):format(name, layout)) end
        end
      end
    end)
  end

  it("stay on the device", function()
    local a, b = numbers(3, "complex64", 5, 7):to(D), numbers(4, "complex64", 5, 7):to(D)
    local r = tensor.randn(5, 7):to(D)
    device.stays(function()
      local y = (a * b + r):exp() / (b - 2):sqrt()
      return y:abs():sum(), y:conj():real(), tensor.where(r:gt(0), y, a), a:eq(b), y ^ 2
    end)
  end)

  it("of different types, and casts", function()
    local a, b = numbers(3, "complex64", 5, 7), numbers(4, "complex128", 5, 7)
    same(a:to(D) * b:to(D), a * b, 1e-12, "complex64 x complex128")
    same(a:to(D):to("complex128"), a:to("complex128"), 0, "widened")
    same(b:to(D):to("complex64"), b:to("complex64"), 0, "narrowed")
    for _, dtype in ipairs { "float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8",
      "bool" } do
      local x = tensor.arange(7):to(dtype)
      same(x:to(D):to("complex64"), x:to("complex64"), 0, dtype)
      if dtype ~= "bool" then same(a:to(D) * x:to(D), a * x, 1e-6, "complex64 x " .. dtype) end
    end
    local y = tensor.zeros({ 5, 7 }, { dtype = "complex128", device = D })
    y:t():copy_(a:to(D):t())
    same(y, a:to("complex128"), 0, "copy_")
    same(y:add_(a:to(D)):mul_(2):narrow(2, 1, 3):fill_(4), tensor.full({ 5, 3 }, 4):to("complex128"), 0,
      "fill_")
  end)

  it("have the values at the edges that the CPU gives them", function()
    local edges = { 0, -0.0, 1, -1, 30, -30, 1e-20, math.huge, -math.huge }
    local re, im = {}, {}
    for _, x in ipairs(edges) do
      for _, y in ipairs { 0, 1, -2, 1e-20 } do re[#re + 1], im[#im + 1] = x, y end
    end
    local z = tensor.complex(tensor.tensor(re, { dtype = "float64" }),
      tensor.tensor(im, { dtype = "float64" }))
    local finite = z:isfinite()
    for _, name in ipairs { "neg", "square", "exp", "log", "sqrt", "sin", "cos", "sinh", "cosh", "tanh",
      "abs",
      "reciprocal" } do
      local y, there = z[name](z:to(D)):to("cpu"), z[name](z)
      assert.is_true((y:isfinite():eq(there:isfinite()):logical_or(finite:logical_not())):all():item(), name)
      local counts = finite:logical_and(there:isfinite())
      same(y:masked_select(counts), there:masked_select(counts), 1e-12, name)
    end
  end)
end)

describe(("grid_sample on %s (%s)"):format(D, device.kind), function()
  local function sampled(on, dtype, options, dims, crowded)
    tensor.manual_seed(7)
    local sizes = dims == 2 and { 2, 5, 6, 7 } or { 2, 3, 4, 5, 3 }
    local x = tensor.randn(sizes):to(dtype):to(on):requires_grad_()
    local grid = tensor.rand(dims == 2 and { 2, 4, 9, 2 } or { 2, 3, 4, 5, 3 }) * 2.6 - 1.3
    if crowded then grid = grid * 0.05 end
    grid = grid:to(dtype):to(on):requires_grad_()
    local y = F.grid_sample(x, grid, options)
    local w = (tensor.arange(y:numel()) % 7 - 3):to(dtype):to(on)
    ;(y * w:view(y.shape)):float():sum():backward()
    return y, x.grad, grid.grad
  end

  for _, dims in ipairs { 2, 3 } do
    it(("%d-d images, modes, paddings and types"):format(dims), function()
      for _, mode in ipairs { "bilinear", "nearest", "bicubic" } do
        for _, padding in ipairs { "zeros", "border", "reflection" } do
          for _, align in ipairs { false, true } do
            for _, dtype in ipairs(align and { "float64", "float32" } or { "float32", "bfloat16" }) do
              local options = { mode = mode, padding_mode = padding, align_corners = align }
              local here, there = { sampled(D, dtype, options, dims, align) },
                { sampled("cpu", dtype, options, dims, align) }
              for k = 1, 3 do
                same(here[k], there[k], dtype == "bfloat16" and 2e-2 or 4 * TOLERANCE[dtype],
                  ("%s %s %s %s, %d"):format(mode, padding, tostring(align), dtype, k))
              end
            end
          end
        end
      end
    end)
  end

  it("takes many channels, other layouts and no positions, without a wait", function()
    tensor.manual_seed(8)
    local x = tensor.randn(2, 6, 7, 40):permute(1, 4, 2, 3)
    local grid = (tensor.rand(2, 2, 3, 4) * 2 - 1):permute(1, 3, 4, 2)
    local theirs, ours = x:to(D), grid:to(D)
    same(device.stays(function() return F.grid_sample(theirs, ours) end), F.grid_sample(x, grid), 1e-5,
      "channels")
    same(F.grid_sample(x:to(D):narrow(2, 2, 3), grid:to(D)), F.grid_sample(x:narrow(2, 2, 3), grid), 1e-5,
      "part")
    assert.are.same({ 2, 40, 0, 4 }, F.grid_sample(theirs, tensor.zeros(2, 0, 4, 2):to(D)).shape)
  end)
end)

describe(("ctc_loss on %s (%s)"):format(D, device.kind), function()
  local function whole(list) return tensor.tensor(list, { dtype = "int64" }) end

  local function loss_of(on, dtype, options, classes, times, longest)
    tensor.manual_seed(9)
    local n = 4
    local x = tensor.randn(times, n, classes):to(dtype):to(on):requires_grad_()
    local targets = tensor.randint(1, classes, { n, longest })
    targets:narrow(2, 1, 2):copy_(targets:narrow(2, 1, 1):expand(n, 2)) -- equal neighbours
    local ins = whole { times, times - 1, 1, 0 }
    local outs = whole { longest, math.min(3, longest), 1, 0 }
    local loss = F.ctc_loss(x:log_softmax(-1), targets:to(on), ins:to(on), outs:to(on), options)
    loss:sum():backward()
    return loss, x.grad
  end

  it("short and long sequences, blanks, both types", function()
    for _, dtype in ipairs { "float32", "float64" } do
      for _, size in ipairs { { 5, 9, 3 }, { 3, 40, 8 }, { 40, 150, 66 } } do
        for _, options in ipairs { { reduction = "none" }, { blank = 2, zero_infinity = true },
          { reduction = "sum" } } do
          local here, there = { loss_of(D, dtype, options, unpack(size)) }, { loss_of("cpu", dtype, options,
            unpack(size)) }
          for k = 1, 2 do
            same(here[k], there[k], dtype == "float64" and 1e-11 or 1e-5,
              ("%s of %d, %d"):format(dtype, size[2], k))
          end
        end
      end
    end
  end)

  it("is infinite where no way reads the targets, and 0 where that is asked for", function()
    for _, on in ipairs { "cpu", D } do
      local x = tensor.zeros(2, 1, 3):to(on):log_softmax(-1)
      local targets, ins, outs = whole { { 1, 1, 2 } }, whole { 2 }, whole { 3 }
      local function loss(zero) -- lengths may be on the CPU
        return F.ctc_loss(x, targets:to(on), ins, zero and outs:to(on) or outs,
          { reduction = "none", zero_infinity = zero })
      end
      assert.are.equal(math.huge, loss(false):to("cpu")[1]:item())
      assert.are.equal(0, loss(true):to("cpu")[1]:item())
    end
  end)
end)
