--- Layers of volumes, windows and positions: what they refuse, half types, and the modules over
--- nn.functional. Values and gradients stand in spec/reference/torch.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local numbers = require "spec.support.numbers"
local raises = require("spec.support.messages").raises
local F = nn.functional

local function int64(v) return core.tensor(v, { dtype = "int64" }) end

describe("volumes", function()
  it("in half types are within a rounding of float32", function()
    local x, w = core.randn(2, 4, 5, 6, 5), core.randn(8, 4, 3, 3, 3) * 0.1
    for _, dtype in ipairs { "bfloat16", "float16" } do
      local halves = { x:to(dtype), w:to(dtype) }
      local y = F.conv3d(halves[1], halves[2], { padding = 1 })
      assert.are.equal(dtype, y.dtype)
      assert.is_true(numbers.largest(y,
        F.conv3d(halves[1]:float(), halves[2]:float(), { padding = 1 })) < 0.03)
      assert.is_true(numbers.largest(F.max_pool3d(halves[1], 2), F.max_pool3d(halves[1]:float(), 2)) == 0)
      assert.is_true(numbers.largest(F.avg_pool3d(halves[1], 2), F.avg_pool3d(halves[1]:float(), 2)) < 0.03)
    end
  end)

  it("train: a step of a small network has gradients for all", function()
    local net = nn.Sequential(nn.Conv3d(1, 4, 3, { padding = 1, bias = false }), nn.BatchNorm3d(4), nn.ReLU(),
      nn.MaxPool3d(2), nn.ConvTranspose3d(4, 2, 2, { stride = 2 }), nn.InstanceNorm3d(2, { affine = true }),
      nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.LazyLinear(2))
    net(core.randn(2, 1, 4, 4, 4)):square():sum():backward()
    for name, p in net:named_parameters() do
      assert.is_truthy(p.grad, name)
      assert.is_true(p.grad:isfinite():all():item(), name)
    end
  end)

  it("refuse what does not fit, and name it", function()
    local x = core.randn(1, 2, 4, 4, 4)
    raises("conv3d: expected an input of 5 dims, or 4 without a batch", F.conv3d, core.randn(2, 3, 3),
      core.randn(1, 2, 1, 1, 1))
    raises("argument 4 (stride): expected an integer or a list of three", F.conv3d, x,
      core.randn(1, 2, 1, 1, 1),
      nil, { 1, 2 })
    raises("has 2 channels, weight [1, 3, 1, 1, 1]", F.conv3d, x, core.randn(1, 3, 1, 1, 1))
    raises("dim 3 has 4 elements, the kernel spans 5", F.conv3d, x, core.randn(1, 2, 5, 1, 1))
    raises("max_pool3d: a window of 5 does not fit the padded input", F.max_pool3d, x, 5)
    raises("max_pool3d: padding must be within 0 and half of the kernel (1)", F.max_pool3d, x, 2, 1, 2)
    raises("avg_pool3d: divisor_override must not be 0", F.avg_pool3d, x, 2, { divisor_override = 0 })
    raises("adaptive_max_pool3d: output_size must be at least 1, or -1 for the input's size, got 0",
      F.adaptive_max_pool3d, core.ones(1, 1, 2, 2, 2), { 2, 0, 2 })
    raises("adaptive_avg_pool3d: output_size must be at least -1 and at most 2147483647, got -2",
      F.adaptive_avg_pool3d, core.ones(1, 1, 2, 2, 2), -2)
    raises("adaptive_avg_pool3d: expected (n, c, d, h, w) or (c, d, h, w)", F.adaptive_avg_pool3d,
      core.randn(2, 2), 1)
    raises("Conv3d: kernel_size: expected an integer or a list of 3", nn.Conv3d, 1, 2, { 1, 2 })
    raises("BatchNorm3d: expected an input of 5 dims", nn.BatchNorm3d(2), core.randn(2, 2, 3))
    local y, at = F.max_pool2d_with_indices(core.randn(1, 1, 4, 4), 2)
    raises("max_unpool2d: output_size: dim 2 must be from 3 to 5, got 9", F.max_unpool2d, y, at, 2,
      { output_size = { 4, 9 } })
    raises("max_unpool2d: indices: expected int64 of the input's shape", F.max_unpool2d, y, at:float(), 2)
  end)
end)

describe("resampling", function()
  it("of half types rounds once", function()
    local x = core.randn(1, 2, 5, 6):bfloat16()
    local opts = { size = { 8, 3 }, mode = "bicubic" }
    local y = F.interpolate(x, opts)
    assert.are.equal("bfloat16", y.dtype)
    assert.are.equal(0, numbers.largest(y, F.interpolate(x:float(), opts):bfloat16()))
  end)

  it("refuses options that do not go together", function()
    local image = core.randn(1, 1, 4, 4)
    raises("mode \"trilinear\" is for inputs of 5 dims", F.interpolate, image,
      { size = 2, mode = "trilinear" })
    raises("antialias goes with bilinear and bicubic", F.interpolate, image, { size = 2, antialias = true })
    raises("align_corners goes with the linear modes", F.interpolate, image,
      { size = 2, align_corners = true })
    raises("recompute_scale_factor goes with scale_factor", F.interpolate, image,
      { size = 2, recompute_scale_factor = true })
    raises("scale_factor 0.1 makes dim 3", F.interpolate, image, { scale_factor = 0.1 })
    raises("grid_sample: for input [1, 1, 4, 4] the grid must be (1, h', w', 2)", F.grid_sample, image,
      core.zeros(1, 2, 2, 3))
    raises("affine_grid: theta: expected a floating-point tensor [1, 2, 3]", F.affine_grid,
      core.zeros(1, 3, 4),
      { 1, 1, 2, 2 })
  end)

  it("refuses absurd sizes at once, in every mode", function()
    local modes = {
      [3] = { "nearest", "linear", "nearest-exact", "area" },
      [4] = { "nearest", "bilinear", "bicubic", "nearest-exact", "area" },
      [5] = { "nearest", "trilinear", "nearest-exact", "area" },
    }
    core.set_memory_limit(2 ^ 28)
    local began = os.clock()
    for ndim, names in next, modes do
      local x = core.ones { 1, 1, unpack({ 2, 2, 2 }, 1, ndim - 2) }
      for _, mode in ipairs(names) do
        for _, factor in ipairs { 1e-300, 2 ^ 29, 1e9, 1e15, 1e300, math.huge, 0 / 0, -1 } do
          raises("interpolate: ", F.interpolate, x, { scale_factor = factor, mode = mode })
        end
        for _, size in ipairs { 2 ^ 30, 2 ^ 31 - 1, 2 ^ 53, -1 } do
          raises("interpolate: ", F.interpolate, x, { size = size, mode = mode })
        end
      end
    end
    for _, mode in ipairs { "bilinear", "bicubic" } do
      raises("interpolate: ", F.interpolate, core.ones(1, 1, 2, 2), { scale_factor = 2 ^ 28, mode = mode,
        antialias = true })
    end
    for _, size in ipairs { { 1, 1, 2 ^ 31 - 1, 2 ^ 31 - 1 }, { 1, 1, 2, 2 ^ 30 }, { 1, 1, 2 ^ 53, 1 } } do
      raises("affine_grid: ", F.affine_grid, core.ones(1, 2, 3), size)
    end
    core.set_memory_limit(0)
    assert.is_true(os.clock() - began < 5)
    raises("scale_factor 1e+15 makes dim 3 of a float32 tensor of shape [1, 1, 4] 4e+15 elements long",
      F.interpolate, core.ones(1, 1, 4), { scale_factor = 1e15, mode = "nearest-exact" })
    raises("interpolate: a result of [2147483647, 2147483647] has too many elements to count", F.interpolate,
      core.ones(1, 1, 1, 1), { size = 2 ^ 31 - 1 })
  end)

  it("by a filter of many taps takes time in proportion to the image", function()
    local x = core.randn(1, 1, 1, 400000)
    local began = os.clock()
    local y = F.interpolate(x, { size = { 1, 1 }, mode = "bilinear", antialias = true })
    assert.is_true(os.clock() - began < 5)
    -- a tent over all elements, highest at the middle
    local tent = 1 - (core.arange(400000):double() - 199999.5):abs() / 400000
    local want = (x:double():flatten() * tent / tent:sum()):sum()
    assert.is_true(numbers.largest(y:double():flatten(), want:view(1)) < 1e-6)
  end)

  it("of bytes rounds after the width and after the height", function()
    local function bytes(t) return core.tensor(t, { dtype = "uint8" }) end
    local x = bytes { { { { 0, 255, 3 }, { 17, 128, 200 } } } }
    local function resized(options)
      local y = F.interpolate(x, options)
      assert.are.equal("uint8", y.dtype)
      return y[{ 1, 1 }]:totable()
    end
    -- PyTorch's values
    assert.are.same({ { 0, 159, 161, 3 }, { 9, 123, 158, 102 }, { 17, 86, 155, 200 } },
      resized { size = { 3, 4 }, mode = "bilinear" })
    assert.are.same({ { 78, 136 } }, resized { size = { 1, 2 }, mode = "bilinear", antialias = true })
    assert.are.same({ { 0, 201, 194, 0 }, { 5, 136, 179, 103 }, { 10, 70, 164, 223 } },
      resized { size = { 3, 4 }, mode = "bicubic" })
    assert.are.same({ { 0, 0, 255, 3 }, { 0, 0, 255, 3 }, { 17, 17, 128, 200 } },
      resized { size = { 3, 4 }, mode = "nearest" })
    assert.are.same({ { 0, 255, 255, 3 }, { 17, 128, 128, 200 }, { 17, 128, 128, 200 } },
      resized { size = { 3, 4 }, mode = "nearest-exact" })
    raises("interpolate: expected a floating-point tensor", F.interpolate, x, { size = 2, mode = "area" })
  end)

  it("is the same whether channels or columns are innermost, also outside and at no number", function()
    local inf, nan = math.huge, 0 / 0
    local places = { { nan, 0 }, { inf, 0 }, { 0, -inf }, { -1, 1 }, { 1e30, 0.5 }, { 0, 0 }, { 1, -1 } }
    for _, size in ipairs { { 2, 3, 7, 9 }, { 1, 2, 1, 5 }, { 1, 2, 5, 2 }, { 1, 5, 4, 1 },
      { 2, 4, 1, 1 } } do
      local grid = core.rand(size[1], 13, 29, 2) * 3 - 1.5
      for k, place in ipairs(places) do grid[{ 1, 1, k }] = core.tensor(place) end
      local x = core.randn(size)
      x:view(-1)[1] = inf -- no neighbour of most positions: it must not spread
      -- a volume of one layer has its channels innermost, whatever the memory of x
      local volume = core.cat({ grid:unsqueeze(2), core.zeros(size[1], 1, 13, 29, 1) }, 5)
      for _, mode in ipairs { "bilinear", "nearest" } do
        for _, padding in ipairs { "zeros", "border", "reflection" } do
          for _, align in ipairs { true, false } do
            local options = { mode = mode, padding_mode = padding, align_corners = align }
            local want = F.grid_sample(x:unsqueeze(3), volume, options):squeeze(3)
            for _, image in ipairs { x, x:permute(1, 3, 4, 2):contiguous():permute(1, 4, 2, 3) } do
              local got = F.grid_sample(image, grid, options)
              local both_nan = got:isnan():logical_and(want:isnan())
              local near = (got - want):abs():lt(1e-6):logical_or(got:eq(want))
              assert.is_true(near:logical_or(both_nan):all():item(), mode .. padding .. tostring(align))
            end
          end
        end
      end
    end
  end)

  it("at no position, of no image and of no channel is empty", function()
    assert.are.same({ 1, 2, 0, 3 }, F.grid_sample(core.randn(1, 2, 4, 4), core.zeros(1, 0, 3, 2)).shape)
    assert.are.same({ 0, 2, 1, 3 }, F.grid_sample(core.zeros(0, 2, 4, 4), core.zeros(0, 1, 3, 2)).shape)
    assert.are.same({ 1, 0, 1, 3 }, F.grid_sample(core.zeros(1, 0, 4, 4), core.zeros(1, 1, 3, 2)).shape)
  end)
end)

describe("windows", function()
  it("share memory as a view, and fold sums them", function()
    local x = core.zeros(5)
    local windows = x:unfold(1, 3, 1)
    x:fill_(2)
    assert.are.same({ { 2, 2, 2 }, { 2, 2, 2 }, { 2, 2, 2 } }, windows:totable())
    assert.are.same({ { { { 1, 2, 1 }, { 2, 4, 2 }, { 1, 2, 1 } } } },
      nn.Fold(3, 2)(nn.Unfold(2)(core.ones(1, 1, 3, 3))):totable())
  end)

  it("of every type and in any order of memory are those of a contiguous float64", function()
    local image = core.randint(0, 2, { 2, 5, 6, 3 }, { dtype = "float64" }):permute(1, 4, 3, 2)
    local options = { dilation = { 1, 2 }, padding = { 1, 3 }, stride = { 2, 1 } }
    local want = F.unfold(image:contiguous(), { 3, 2 }, options)
    for _, dtype in ipairs { "float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8",
      "bool" } do
      local got = F.unfold(image:to(dtype), { 3, 2 }, options)
      assert.are.equal(dtype, got.dtype)
      assert.is_true(got:double():equal(want), dtype)
    end
    local z = core.complex(image, -image)
    assert.is_true(F.unfold(z, { 3, 2 }, options):imag():equal(-want))
  end)

  it("of an image alone are those of a batch of one, with their gradients", function()
    local x = core.randn(3, 5, 6):requires_grad_()
    local y = core.im2col(x, 2, { padding = 1 })
    assert.is_true(y:equal(core.im2col(x:unsqueeze(1), 2, { padding = 1 }):squeeze(1)))
    local image = core.col2im(y, { 5, 6 }, 2, { padding = 1 })
    assert.is_true(image:equal(core.col2im(y:unsqueeze(1), { 5, 6 }, 2, { padding = 1 }):squeeze(1)))
    image:sum():backward() -- each number is in four windows
    assert.are.same({ 3, 5, 6 }, x.grad.shape)
    assert.is_true(x.grad:eq(4):all():item())
  end)

  it("of a half type are summed in float32 and rounded once", function()
    for _, dtype in ipairs { "bfloat16", "float16" } do
      local columns = core.randn(2, 16, 24):to(dtype):transpose(2, 3):contiguous():transpose(2, 3)
      local got = F.fold(columns, { 5, 7 }, { 2, 4 }, { stride = { 1, 2 }, padding = { 1, 2 } })
      local want = F.fold(columns:float(), { 5, 7 }, { 2, 4 }, { stride = { 1, 2 }, padding = { 1, 2 } })
      assert.are.equal(dtype, got.dtype)
      assert.is_true(got:equal(want:to(dtype)), dtype)
    end
  end)

  it("that no image or channel has are empty", function()
    assert.are.same({ 0, 8, 9 }, F.unfold(core.zeros(0, 2, 4, 4), 2).shape)
    assert.are.same({ 1, 0, 9 }, F.unfold(core.zeros(1, 0, 4, 4), 2).shape)
    assert.are.same({ 0, 2, 4, 4 }, F.fold(core.zeros(0, 8, 9), 4, 2).shape)
    assert.are.same({ 1, 0, 4, 4 }, core.col2im(core.zeros(1, 0, 9), { 4, 4 }, 2).shape)
  end)

  it("have gradients of gradients", function()
    local x = core.randn(1, 2, 4, 4, { dtype = "float64" }):requires_grad_()
    local y = F.fold(F.unfold(x, 2) ^ 2, 4, 2)
    local g = core.grad(y:sum(), x, { create_graph = true })
    g:sum():backward()
    assert.is_true(numbers.largest(x.grad,
      F.fold(F.unfold(core.full({ 1, 2, 4, 4 }, 2, { dtype = "float64" }), 2), 4,
      2))
      < 1e-12)
  end)

  it("refuse what does not fit", function()
    local x = core.zeros(1, 2, 4, 3)
    raises("im2col: expected (n, c, h, w) or (c, h, w), got [4, 3]", core.im2col, x[{ 1, 1 }], 2)
    raises("unfold: expected (n, c, h, w) or (c, h, w), got [4, 3]", F.unfold, x[{ 1, 1 }], 2)
    raises("unfold: a window of 5 does not fit the padded input [1, 2, 4, 3]", F.unfold, x, { 5, 1 })
    raises("unfold: argument 1 (x): expected a tensor, got string \"x\"", F.unfold, "x", 2)
    raises("fold: expected a floating-point tensor, got int64", F.fold, core.zeros(4, 4):long(), 3, 2)
    raises("im2col: a window of 5 does not fit the padded input [1, 2, 4, 3]", core.im2col, x, { 5, 1 })
    raises("im2col: stride must be at least 1, got 0", core.im2col, x, 2, { stride = 0 })
    raises("im2col: dilation must be at most 2147483647", core.im2col, x, 2, { dilation = 2 ^ 40 })
    raises("im2col: padding must be at least 0, got -1", core.im2col, x, 2, { padding = -1 })
    raises("im2col: not defined for complex64", core.im2col, core.complex(x, x), 2)
    raises("too many elements", core.im2col, core.zeros(1, 1, 1, 1):expand(1, 2 ^ 20, 1, 1), 2 ^ 21,
      { padding = 2 ^ 21 })
    raises("have too many windows to count", core.im2col, x, 1, { padding = 2 ^ 31 - 1 })
    raises("col2im: expected (n, c kh kw, windows) or (c kh kw, windows), got [1, 2, 4, 3]", core.col2im, x,
      { 4, 3 }, 2)
    raises("col2im: an image of 4 x 3 has 0 x 2 windows, and the input has 0 columns", core.col2im,
      core.zeros(1, 10, 0), { 4, 3 }, { 5, 2 })
    raises("col2im: output_size needs a height and a width, got 1", core.col2im, core.zeros(1, 8, 6),
      { 4 }, 2)
    raises("col2im: a column must be a multiple of 2 x 3", core.col2im, core.zeros(1, 8, 6), { 4, 3 },
      { 2, 3 })
    raises("col2im: an image of 4 x 4 has 3 x 3 windows, and the input has 6 columns", core.col2im,
      core.zeros(1, 8, 6), { 4, 4 }, 2)
    raises("col2im: height must be at least 1, got 0", core.col2im, core.zeros(1, 4, 6), { 0, 4 }, 2)
    raises("unfold: a window of 6 does not fit dim 1 of size 5", core.zeros(5).unfold, core.zeros(5), 1, 6, 1)
    raises("unfold: step must be at least 1", core.zeros(5).unfold, core.zeros(5), 1, 2, 0)
    raises("fold: a column must be a multiple of 2 x 2 elements long", F.fold, core.zeros(1, 3, 4), 3, 2)
    raises("fold: an image of 4 x 4 has 3 x 3 windows, and the input has 4 columns", F.fold,
      core.zeros(1, 4, 4), 4,
      2)
  end)
end)

describe("ctc_loss", function()
  local x = core.randn(4, 2, 3):log_softmax(3)
  it("refuses lengths and targets that do not fit", function()
    raises("input_lengths must be within 0 and 4, got 5 for sequence 1", F.ctc_loss, x,
      int64 { { 1 }, { 1 } },
      { 5, 4 }, { 1, 1 })
    raises("target_lengths must have one number for each of 2 sequences", F.ctc_loss, x,
      int64 { { 1 }, { 1 } },
      { 4, 4 }, { 1 })
    raises("target 1 of sequence 2 must be within 0 and 2, got 3", F.ctc_loss, x, int64 { { 1 }, { 3 } },
      { 4, 4 },
      { 1, 1 })
    raises("target_lengths add up to 2, and targets has 3 elements", F.ctc_loss, x, int64 { 1, 1, 2 },
      { 4, 4 },
      { 1, 1 })
    raises("blank must be at most 2, got 3", F.ctc_loss, x, int64 { { 1 }, { 1 } }, { 4, 4 }, { 1, 1 }, 3)
  end)

  it("of half types is computed in float32", function()
    local loss = F.ctc_loss(x:bfloat16(), int64 { { 1 }, { 2 } }, { 4, 4 }, { 1, 1 })
    assert.are.equal("float32", loss.dtype)
  end)

  -- log(e^a + e^b + ..) of what is given
  local function total(...)
    local sum = 0
    for _, v in ipairs { ... } do sum = sum + math.exp(v) end
    return math.log(sum)
  end

  -- The loss of one sequence, place by place; rows: log-probabilities of the times.
  local function plain(rows, target)
    local never, places = -math.huge, { 0 }
    for _, class in ipairs(target) do
      places[#places + 1] = class
      places[#places + 1] = 0
    end
    local reached = { [0] = never }
    for s = 1, #places do reached[s] = s <= 2 and rows[1][places[s] + 1] or never end
    for t = 2, #rows do
      local now = { [0] = never }
      for s, class in ipairs(places) do
        local leap = class ~= 0 and s > 2 and class ~= places[s - 2]
        now[s] = total(reached[s], reached[s - 1], leap and reached[s - 2] or never) + rows[t][class + 1]
      end
      reached = now
    end
    return -total(reached[#places], reached[#places - 1])
  end

  it("is the plain sum over ways, for targets of every length, with its gradient", function()
    core.manual_seed(12)
    local times, classes, n = 24, 5, 12
    local probs = core.randn(times, n, classes, { dtype = "float64" }):log_softmax(3)
    probs[{ 3, 4, 1 }] = -math.huge -- no blank at this time
    probs[{ 5, 5, 2 }] = -math.huge
    local targets, lengths, wide = core.randint(1, classes, { n, 11 }), {}, {}
    for b = 1, n do lengths[b], wide[b] = b - 1, b == 7 and 11 or times end
    local function losses(p)
      return F.ctc_loss(p, targets, wide, lengths, { reduction = "none" })
    end
    local want = {}
    for b = 1, n do
      local rows = probs:select(2, b):totable()
      for t = times, wide[b] + 1, -1 do rows[t] = nil end
      want[b] = plain(rows, { unpack(targets[b]:totable(), 1, lengths[b]) })
    end
    want = core.tensor(want, { dtype = "float64" })
    local leaf = probs:clone():requires_grad_()
    local got = losses(leaf)
    assert.is_true(got:allclose(want, { rtol = 1e-13 }))
    assert.is_true(losses(probs:float()):double():allclose(want, { rtol = 1e-6 }))
    got:sum():backward()
    assert.is_true(leaf.grad:isfinite():all():item())
    assert.are.equal(0, leaf.grad:select(2, 7)[{ { 12, times } }]:abs():max():item())
    -- along one log-probability the loss falls by its share of all ways; the gradient adds e^p
    for _, at in ipairs { { 1, 1, 1 }, { 7, 2, 3 }, { 9, 6, 1 }, { 4, 7, 2 }, { 24, 12, 5 }, { 11, 9, 4 } } do
      local up, down = probs:clone(), probs:clone()
      up[at], down[at] = up[at]:item() + 1e-6, down[at]:item() - 1e-6
      local slope = (losses(up) - losses(down)):sum():item() / 2e-6
      local expected = leaf.grad[at]:item() - math.exp(probs[at]:item())
      assert.is_true(math.abs(slope - expected) < 1e-8, table.concat(at, ","))
    end
    local low = probs:float():requires_grad_()
    losses(low):sum():backward()
    assert.is_true(low.grad:double():allclose(leaf.grad, { atol = 1e-5 }))
  end)

  it("keeps what is not a number, and has no gradient where no way reads the targets", function()
    local p = core.randn(6, 2, 4):log_softmax(3)
    p[{ 2, 1, 2 }] = 0 / 0
    local function losses(zero)
      return F.ctc_loss(p, int64 { { 1, 1, 2 }, { 3, 3, 3 } }, { 6, 4 }, { 3, 3 },
        { reduction = "none", zero_infinity = zero })
    end
    assert.is_true(losses()[1]:isnan():item())
    assert.are.equal(math.huge, losses()[2]:item())
    p:requires_grad_()
    losses(true)[2]:backward()
    assert.are.equal(0, p.grad:select(2, 2):abs():max():item())
    p.grad = nil
    losses(false)[2]:backward()
    assert.is_true(p.grad[{ 1, 2 }]:isnan():all():item())
  end)

  it("takes targets and lengths of int32 for the same loss", function()
    local targets, full, one = int64 { { 1 }, { 2 } }, int64 { 4, 4 }, int64 { 1, 1 }
    local loss = F.ctc_loss(x, targets:int(), full:int(), one:int())
    assert.are.equal(F.ctc_loss(x, targets, full, one):item(), loss:item())
  end)
end)

describe("bags", function()
  it("refuse offsets that are none", function()
    local w, i = core.randn(4, 2), int64 { 0, 1, 2 }
    raises("the first offset must be 0, got 1", F.embedding_bag, i, w, int64 { 1 })
    raises("offsets must not fall: 1 comes after 2", F.embedding_bag, i, w, int64 { 0, 2, 1 })
    raises("the last offset must be 3", F.embedding_bag, i, w, int64 { 0, 2 }, { include_last_offset = true })
    raises("give no offsets", F.embedding_bag, i:view(1, 3), w, int64 { 0 })
    raises("per_sample_weights goes with mode = \"sum\"", F.embedding_bag, i, w, int64 { 0 },
      { per_sample_weights = core.ones(3) })
    raises("scale_grad_by_freq goes with sum and mean", F.embedding_bag, i, w, int64 { 0 },
      { mode = "max", scale_grad_by_freq = true })
  end)

  it("scale rows down in place where max_norm is given", function()
    local layer = nn.Embedding(3, 2, { max_norm = 1 })
    core.no_grad(function() layer.weight:copy_(core.tensor { { 3, 4 }, { 0.3, 0.4 }, { 6, 8 } }) end)
    layer(int64 { 0, 1, 0 })
    local rows = layer.weight:totable()
    assert.is_true(math.abs(rows[1][1] - 0.6) < 1e-6 and math.abs(rows[1][2] - 0.8) < 1e-6)
    assert.is_true(math.abs(rows[2][1] - 0.3) < 1e-6)
    assert.are.same({ 6, 8 }, rows[3])
  end)
end)
