--- Convolutions, pooling and batch norm where the op cases do not reach: every way of computing
--- them against float64, the layout of their results, numbers of threads, processor levels, running
--- statistics, errors.
local core = require "accelerate.core"
local F = require "accelerate.nn.functional"
local host = require "spec.support.host"

local function largest(t) return t:abs():max():item() end

--- The largest difference from float64, relative to the largest value: of the result and the two
--- gradients.
local function errors_of(dtype, shape, weight, options)
  core.manual_seed(3)
  local x, w, b = core.randn(shape), core.randn(weight), core.randn { options.transposed and weight[2]
    or weight[1] }
  local function run(to)
    local lx, lw = x:to(to):detach(), w:to(to):detach()
    lx.requires_grad, lw.requires_grad = true, true
    local conv = options.transposed and F.conv_transpose2d or F.conv2d
    local o = {}
    for k, v in pairs(options) do if k ~= "transposed" then o[k] = v end end
    local y = next(o) and conv(lx, lw, b:to(to), o) or conv(lx, lw, b:to(to))
    y:backward(((core.arange(y:numel()) % 13):double() / 13 - 0.4):view(y.shape):to(to))
    return { y:detach():double(), lx.grad:double(), lw.grad:double() }
  end
  x, w, b = x:to(dtype), w:to(dtype), b:to(dtype)
  local got, expected, worst = run(dtype), run("float64"), 0
  for k = 1, 3 do worst = math.max(worst, largest(got[k] - expected[k]) / largest(expected[k])) end
  return worst
end

describe("conv2d", function()
  -- Channels in sixteens, 3 x 3, stride 1: Winograd's transforms. The others: oneDNN, and what it
  -- leaves.
  for name, case in pairs {
    ["tiles that fit"] = { { 8, 16, 8, 8 }, { 32, 16, 3, 3 }, { padding = 1 } },
    ["tiles cut off"] = { { 3, 32, 14, 13 }, { 16, 32, 3, 3 }, { padding = 1 } },
    ["no padding"] = { { 9, 48, 9, 10 }, { 64, 48, 3, 3 }, {} },
    ["padding of 2 and of 0"] = { { 5, 16, 7, 11 }, { 80, 16, 3, 3 }, { padding = { 2, 0 } } },
    ["a stride"] = { { 3, 16, 9, 8 }, { 32, 16, 3, 3 }, { padding = 1, stride = 2 } },
    ["1 x 1 with a stride"] = { { 3, 16, 9, 8 }, { 32, 16, 1, 1 }, { stride = { 2, 3 } } },
    ["groups"] = { { 2, 12, 9, 8 }, { 8, 3, 3, 2 }, { padding = 1, groups = 4 } },
    ["depthwise"] = { { 2, 20, 9, 8 }, { 20, 1, 5, 5 }, { padding = 2, groups = 20 } },
    ["dilation"] = { { 2, 6, 12, 11 }, { 7, 6, 3, 3 }, { padding = 2, dilation = 2 } },
    ["one channel"] = { { 4, 1, 28, 28 }, { 6, 1, 5, 5 }, { padding = 2 } },
    ["a kernel as large as the input"] = { { 40, 3, 5, 5 }, { 4, 3, 5, 5 }, {} },
    ["an input that the stride leaves over"] = { { 2, 3, 10, 10 }, { 4, 3, 3, 3 }, { stride = 4 } },
    ["a transposed one"] = { { 2, 16, 5, 6 }, { 16, 8, 3, 3 },
      { stride = 2, padding = 1, output_padding = 1, transposed = true } },
  } do
    it(name .. " agrees with float64", function()
      assert.is_true(errors_of("float32", unpack(case)) < 3e-5)
      assert.is_true(errors_of("bfloat16", unpack(case)) < 0.02)
      assert.is_true(errors_of("float16", unpack(case)) < 0.003)
    end)
  end

  it("adds to a gradient that is there already", function()
    for _, channels in ipairs { 16, 5 } do
      local x, w = core.randn { 6, channels, 8, 8 }, core.randn { 16, channels, 3, 3 }
      w.requires_grad = true
      F.conv2d(x, w, nil, 1, 1):sum():backward()
      local once = w.grad:clone()
      F.conv2d(x, w, nil, 1, 1):sum():backward()
      assert.is_true(largest(w.grad - once * 2) <= 1e-5 * largest(once))
    end
  end)

  it("in bfloat16 goes through Winograd's transforms without a copy of the image in float32", function()
    local x, w = core.randn { 8, 32, 14, 14 }:to("bfloat16"), core.randn { 32, 32, 3, 3 }:to("bfloat16")
    x.requires_grad, w.requires_grad = true, true
    core.kernel_stats { reset = true }
    F.conv2d(x, w, nil, 1, 1):sum():backward()
    -- the result and two gradients
    assert.are.equal(3, core.kernel_stats()["convolution bfloat16, Winograd in float32"])
  end)

  it("of an empty batch is empty, and its weight's gradient is 0", function()
    local x, w = core.zeros { 0, 3, 5, 5 }, core.randn { 4, 3, 3, 3 }
    x.requires_grad, w.requires_grad = true, true
    local y = F.conv2d(x, w)
    y:sum():backward()
    assert.same({ 0, 4, 3, 3 }, y.shape)
    assert.equal(0, largest(w.grad))
    assert.same({ 0, 3, 5, 5 }, x.grad.shape)
  end)

  it("names what does not fit", function()
    local x, w = core.zeros { 1, 3, 4, 4 }, core.zeros { 2, 3, 5, 5 }
    local function message(...) return select(2, pcall(F.conv2d, ...)) end
    assert.truthy(message(x, w):find("the kernel [2, 3, 5, 5] does not fit the padded input [1, 3, 4, 4]", 1,
      true))
    assert.truthy(message(core.zeros { 1, 4, 8, 8 },
      w):find("has 4 channels, weight [2, 3, 5, 5] with 1 group expects 3", 1, true))
    assert.truthy(message(x, w, core.zeros { 3 }):find("bias must be [2]", 1, true))
    assert.truthy(message(x, w:double()):find("element types differ", 1, true))
    assert.truthy(message(x, w, nil, 0):find("stride must be at least 1, got 0", 1, true))
    assert.truthy(message(x, w, nil, 2, "same"):find("goes with a stride of 1", 1, true))
    assert.truthy(message(x, w, nil, 1, "sane"):find("\"same\" or \"valid\"", 1, true))
  end)
end)

describe("the layout of images", function()
  local x = core.randn { 2, 3, 6, 5 }
  local y = F.conv2d(x, core.randn { 4, 3, 3, 3 }, nil, 1, 1)

  it("has the channels innermost, and shows the same elements", function()
    assert.is_false(y:is_contiguous())
    assert.is_true(y:permute(1, 3, 4, 2):is_contiguous())
    assert.is_true(y:contiguous():is_contiguous())
    assert.same(y:totable(), y:contiguous():totable())
    assert.same(y:contiguous():view(-1):totable(), y:reshape(-1):totable())
    assert.same(y:contiguous():view(2, -1):totable(), y:flatten(2):totable())
    assert.has_error(function() return y:view(2, -1) end)
  end)

  it("stays through pointwise ops, casts, pooling and batch norm", function()
    local function innermost(t) return t:permute(1, 3, 4, 2):is_contiguous() end
    assert.is_true(innermost(y:relu()) and innermost(y + y:tanh()) and innermost(y * 2)
      and innermost(y + core.randn { 4, 1, 1 }))
    assert.is_true(innermost(y:bfloat16()) and innermost(y:double()))
    assert.is_true(innermost(F.max_pool2d(y, 2)) and innermost(F.avg_pool2d(y, 2)))
    assert.is_true(innermost(F.batch_norm(y, { training = true }))
      and innermost(F.interpolate(y, { scale_factor = 2 })))
  end)

  it("does not change what ops compute", function()
    local plain, z = y:contiguous(), core.randn { 2, 4, 6, 5 }
    for _, f in ipairs {
      function(t)
        return t + z
      end, function(t) return z - t end, function(t) return t:sum { dim = { 1, 3 } } end,
      function(t) return t:mean() end,
      function(t)
        return t:max { dim = 2 }
      end, function(t) return t:softmax(2) end, function(t) return t[2][3] end,
      function(t) return core.cat({ t, z }, 2) end,
      function(t)
        return t:transpose(2, 4) * 3
      end, function(t) return t:gt(0) end, function(t) return core.where(t:gt(0), t, z) end,
      function(t) return t:clone() end, function(t) return t:argmax(2) end,
    } do
      local a, b = f(y), f(plain)
      assert.same(b.shape, a.shape)
      assert.is_true(largest(a:double() - b:double()) < 1e-6)
    end
  end)
end)

describe("any number of threads", function()
  it("gives the same bits", function()
    local before = core.get_num_threads()
    finally(function() core.set_num_threads(before) end)
    local function run(threads)
      core.set_num_threads(threads)
      core.manual_seed(5)
      local out = {}
      for k, case in ipairs { { 16, 32, 3, 1 }, { 16, 24, 3, 2 }, { 6, 16, 5, 1 }, { 16, 32, 1, 1 },
        { 16, 32, 3, 1 }, { 16, 24, 3, 2 } } do
        local dtype = k > 4 and "bfloat16" or "float32"
        local x, w = core.randn { 20, case[1], 15, 14 }:to(dtype), core.randn { case[2], case[1], case[3],
          case[3] }:to(dtype)
        x.requires_grad, w.requires_grad = true, true
        local y = F.batch_norm(F.conv2d(x, w, nil, case[4], 1), { training = true, activation = "relu" })
        y = F.max_pool2d(y, 3, 2, 1)
        y:square():sum():backward()
        for _, t in ipairs { y:detach(), x.grad, w.grad } do out[#out + 1] = t end
      end
      return out
    end
    local one = run(1)
    for _, threads in ipairs { 2, 3 } do
      for k, t in ipairs(run(threads)) do
        assert.is_true(t:eq(one[k]):all():item(), ("tensor %d with %d threads"):format(k, threads))
      end
    end
  end)
end)

describe("processor levels", function()
  it("agree", function()
    local code = [[
      local core, F = require "accelerate.core", require "accelerate.nn.functional"
      core.manual_seed(1)
      for _, case in ipairs { { 16, 32, 3, 1 }, { 6, 8, 3, 2 }, { 5, 7, 2, 1 } } do
        local x, w = core.randn { 4, case[1], 11, 9 }, core.randn { case[2], case[1], case[3], case[3] }
        x.requires_grad, w.requires_grad = true, true
        local y = F.avg_pool2d(F.batch_norm(F.conv2d(x, w, nil, case[4], 1), { training = true }), 2)
        y:square():sum():backward()
        for _, t in ipairs { y:detach(), x.grad, w.grad } do
          local s = t:double()
          print(("%.9g %.9g %.9g"):format((s * s):sum():item(), s:abs():max():item(),
            (s * (core.arange(s:numel()) % 7):double():view(s.shape)):sum():item()))
        end
      end]]
    local function numbers(level)
      local status, out, err = host.run({ "-e", code }, { env = { ACCEL_CPU_LEVEL = level } })
      if status ~= 0 then return nil, err end
      local list = {}
      for v in out:gmatch("%S+") do list[#list + 1] = tonumber(v) end
      return list
    end
    local v2 = assert(numbers "v2")
    for _, level in ipairs { "v3", "v4" } do
      for i, v in ipairs(numbers(level) or v2) do
        assert.is_true(math.abs(v - v2[i]) <= 2e-4 * math.max(1, math.abs(v2[i])),
          ("%s: number %d is %.9g, on v2 %.9g"):format(level, i, v, v2[i]))
      end
    end
  end)
end)

describe("batch_norm", function()
  it("agrees with float64 in the half types and float32, forward and backward", function()
    core.manual_seed(9)
    for dtype, tolerance in pairs { float32 = 2e-5, bfloat16 = 0.04, float16 = 0.005 } do
      local x, w, b = core.randn { 7, 19, 5, 6 }:to(dtype), core.randn { 19 }, core.randn { 19 }
      local function run(to, params)
        local lx, lw, lb = x:to(to):detach(), w:to(params):detach(), b:to(params):detach()
        lx.requires_grad, lw.requires_grad, lb.requires_grad = true, true, true
        local y = F.batch_norm(lx, nil, nil, lw, lb, { training = true })
        local total = (y * (core.arange(y:numel()) % 11):to(to):view(y.shape)):sum()
        total:backward()
        return { y:detach():double(), lx.grad:double(), lw.grad:double(), lb.grad:double() }
      end
      local got, expected = run(dtype, "float32"), run("float64", "float64")
      for k = 1, 4 do
        local e = largest(got[k] - expected[k]) / largest(expected[k])
        assert.is_true(e <= tolerance, ("%s, tensor %d: %g"):format(dtype, k, e))
      end
    end
  end)

  it("wants a residual of the input's type and shape, in training and after it", function()
    local x, m, v = core.randn { 4, 3, 2, 2 }, core.zeros { 3 }, core.ones { 3 }
    for _, residual in ipairs { core.randn { 4, 3, 2, 2 }:to("bfloat16"), core.randn { 4, 3, 2 } } do
      for _, training in ipairs { true, false } do
        assert.error_matches(function()
          F.batch_norm(x, m, v, nil, nil, { training = training, residual = residual })
        end, "the residual must be float32 %[4, 3, 2, 2%]")
      end
    end
  end)

  it("needs more than one value for each channel in training", function()
    local ok, message = pcall(F.batch_norm, core.zeros { 1, 3 }, { training = true })
    assert.is_false(ok)
    assert.truthy(message:find("more than one value for each channel", 1, true))
    ok, message = pcall(F.batch_norm, core.zeros { 2, 3 })
    assert.is_false(ok)
    assert.truthy(message:find("running_mean and running_var are needed", 1, true))
  end)

  it("keeps what an earlier forward pass needs, though the running statistics move on", function()
    local x, m, v = core.randn { 4, 3 }, core.zeros { 3 }, core.ones { 3 }
    x.requires_grad = true
    local first, second = F.batch_norm(x, m, v, { training = true }), F.batch_norm(x * 2, m, v,
      { training = true })
    assert.has_no.errors(function() (first:square():sum() + second:sum()):backward() end)
  end)
end)

describe("sums of integers", function()
  local function whole(v) return core.tensor(v, { dtype = "int64" }) end

  it("are exact up to 2^53, and refused where they may be larger", function()
    local x, w = whole({ { 2 ^ 26, 3 } }), whole({ { { 2 ^ 26, -1 } } })
    assert.same({ { 2 ^ 52 - 3 } }, core.conv1d(x, w):totable())
    assert.error_matches(function() core.conv1d(x * 2, w) end,
      "^conv1d: results may reach 1.80144e%+16, and integers are computed in float64")
    assert.error_matches(function() core.conv1d(x, w:int()) end, "conv1d: element types differ: int64")
    assert.same({ { { 5 } } }, core.max_pool2d(whole { { { 5, 1 }, { -2, 4 } } }, 2):totable())
    assert.error_matches(function() core.max_pool2d(whole { { { 2 ^ 60, 1 }, { -2, 4 } } }, 2) end,
      "^max_pool2d: results may reach")
    assert.error_matches(function() core.avg_pool2d(whole { { { 5, 1 }, { -2, 4 } } }, 2) end,
      "avg_pool2d: expected a floating%-point tensor")
  end)
end)
