--- nn's layers for images and signals: options, parameters, state, printing; what they compute is
--- checked row by row elsewhere.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local nn = require "accelerate.nn"
local F = nn.functional

local function names(state)
  local list = {}
  for name in pairs(state) do list[#list + 1] = name end
  table.sort(list)
  return list
end

local function same(a, b)
  assert.same(b.shape, a.shape)
  assert.is_true((a - b):abs():max():item() < 1e-6)
end

describe("nn.Conv2d", function()
  it("takes PyTorch's positions, a table of options, or both", function()
    local x = core.randn { 2, 4, 9, 8 }
    for _, conv in ipairs { nn.Conv2d(4, 6, 3, 2, 1, 1, 2),
      nn.Conv2d(4, 6, { 3, 3 }, { stride = 2, padding = { 1, 1 }, groups = 2 }),
      nn.Conv2d(4, 6, 3, 2, { padding = 1, groups = 2 }) } do
      same(conv(x), F.conv2d(x, conv.weight, conv.bias, 2, 1, 1, 2))
    end
    assert.is_nil(nn.Conv2d(1, 2, 3, { bias = false }).bias)
    assert.same({ 2, 6, 9, 8 }, nn.Conv2d(4, 6, { 3, 4 }, { padding = "same" })(x).shape)
    assert.same({ 2, 6, 7, 5 }, nn.Conv2d(4, 6, { 3, 4 }, { padding = "valid" })(x).shape)
  end)

  it("starts uniform within 1 / sqrt(fan in)", function()
    local conv = nn.Conv2d(16, 32, 3)
    local bound = 1 / math.sqrt(16 * 9)
    local most = conv.weight:abs():max():item()
    assert.is_true(most <= bound and most > 0.99 * bound)
    assert.is_true(conv.bias:abs():max():item() <= bound)
    assert.same({ 32, 16, 3, 3 }, conv.weight.shape)
  end)

  it("prints its settings", function()
    assert.equal("Conv2d(1, 6, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2))",
      tostring(nn.Conv2d(1, 6, 5, { padding = 2 })))
    assert.equal("Conv1d(2, 4, kernel_size=(3,), stride=(2,), dilation=(2,), groups=2, bias=False)",
      tostring(nn.Conv1d(2, 4, 3, { stride = 2, dilation = 2, groups = 2, bias = false })))
  end)

  it("refuses what cannot be", function()
    assert.has_error(function() nn.Conv2d(3, 4, 3, { groups = 2 }) end)
    assert.has_error(function() nn.Conv2d(3, 4, 3, { padding = "same", stride = 2 }) end)
    assert.has_error(function() nn.Conv2d(3, 4, 3, { pading = 1 }) end)
    assert.has_error(function() nn.Conv2d(3, 4, { 3, 3, 3 }) end)
    local ok, message = pcall(nn.Sequential(nn.Conv2d(3, 4, 3)), core.zeros { 1, 2, 5, 5 })
    assert.is_false(ok)
    assert.truthy(message:find("layer '0'", 1, true) or message:find("layer '1'", 1, true))
  end)

  it("has transposed and one-dimensional forms", function()
    assert.same({ 2, 5, 8, 8 },
      nn.ConvTranspose2d(3, 5, 4, { stride = 2, padding = 1 })(core.randn { 2, 3, 4, 4 }).shape)
    assert.same({ 2, 5, 7 }, nn.ConvTranspose1d(3, 5, 3, { stride = 2 })(core.randn { 2, 3, 3 }).shape)
    assert.same({ 2, 5, 7 }, nn.Conv1d(3, 5, 3)(core.randn { 2, 3, 9 }).shape)
    assert.same({ 3, 5, 4, 4 }, nn.ConvTranspose2d(3, 5, 4).weight.shape)
  end)
end)

describe("pooling modules", function()
  it("compute what the functions do", function()
    local x, s = core.randn { 2, 3, 8, 7 }, core.randn { 2, 3, 9 }
    same(nn.MaxPool2d(2)(x), F.max_pool2d(x, 2))
    same(nn.MaxPool2d(3, 2, 1)(x), F.max_pool2d(x, 3, 2, 1))
    same(nn.MaxPool2d({ 2, 3 }, { stride = 1, ceil_mode = true })(x),
      F.max_pool2d(x, { 2, 3 }, { stride = 1, ceil_mode = true }))
    same(nn.MaxPool1d(3, { stride = 2 })(s), F.max_pool1d(s, 3, { stride = 2 }))
    same(nn.AvgPool2d(3, { stride = 2, padding = 1, count_include_pad = false })(x),
      F.avg_pool2d(x, 3, { stride = 2, padding = 1, count_include_pad = false }))
    same(nn.AvgPool2d(2, { divisor_override = 3 })(x), F.avg_pool2d(x, 2, { divisor_override = 3 }))
    same(nn.AvgPool1d(2)(s), F.avg_pool1d(s, 2))
    same(nn.AdaptiveAvgPool2d(1)(x), x:mean { dim = { 3, 4 }, keepdim = true })
    same(nn.AdaptiveAvgPool2d({ 3, 2 })(x), F.adaptive_avg_pool2d(x, { 3, 2 }))
    same(nn.AdaptiveAvgPool1d(4)(s), F.adaptive_avg_pool1d(s, 4))
    same(nn.AdaptiveMaxPool2d(2)(x), F.adaptive_max_pool2d(x, 2))
    same(nn.AdaptiveMaxPool1d(2)(s), F.adaptive_max_pool1d(s, 2))
    same(nn.Upsample { scale_factor = 2, mode = "bilinear" }(x),
      F.interpolate(x, { scale_factor = 2, mode = "bilinear" }))
    same(nn.Upsample { size = { 4, 9 } }(x), F.interpolate(x, { size = { 4, 9 } }))
    same(nn.PixelUnshuffle(2)(nn.PixelShuffle(2)(core.ones { 1, 4, 2, 2 })), core.ones { 1, 4, 2, 2 })
  end)

  it("means of whole planes keep the type of what is pooled, under autocast too", function()
    local x = core.randn { 2, 3, 8, 7 }:to("bfloat16"):requires_grad_()
    local function check()
      local y = F.adaptive_avg_pool2d(x, 1)
      assert.are.equal("bfloat16", y.dtype)
      same(y, x:float():mean { dim = { 3, 4 }, keepdim = true }:to("bfloat16"))
      x.grad = nil
      y:float():sum():backward()
      assert.are.equal("bfloat16", x.grad.dtype)
      same(x.grad, core.full(x.shape, 1 / 56):to("bfloat16"))
    end
    check()
    tensor.autocast(check)
    same(F.adaptive_avg_pool1d(x.data:select(2, 1):float(), 1),
      x.data:select(2, 1):float():mean { dim = 3, keepdim = true })
    local last = x.data:float():permute(1, 3, 4, 2):contiguous():permute(1, 4, 2, 3)
    same(F.adaptive_avg_pool2d(last, 1), x.data:float():mean { dim = { 3, 4 }, keepdim = true })
  end)

  it("stays inside the image where the inverse of the factor is infinite", function()
    local x, tiny = core.arange(16):float():view(1, 1, 4, 4), 1e-320
    local function resampled(mode)
      return x:interpolate({ 2, 2 }, { mode = mode, scale_h = tiny, scale_w = tiny }):totable()[1][1]
    end
    assert.same({ { 0, 3 }, { 12, 15 } }, resampled("nearest"))
    assert.same({ { 15, 15 }, { 15, 15 } }, resampled("bilinear"))
  end)
end)

describe("nn.BatchNorm2d", function()
  it("follows the batches in training and stands still in evaluation", function()
    local bn, x = nn.BatchNorm2d(3), core.randn { 4, 3, 5, 5 } * 2 + 1
    assert.same({ "bias", "num_batches_tracked", "running_mean", "running_var", "weight" },
      names(bn:state_dict()))
    local y = bn(x)
    assert.is_true(y:mean():abs():item() < 1e-5)
    same(bn.running_mean, x:mean { dim = { 1, 3, 4 } } * 0.1)
    assert.equal(1, bn.num_batches_tracked:item())
    bn:eval()
    local mean = bn.running_mean:clone()
    local z = bn(x)
    same(bn.running_mean, mean)
    same(z, (x - mean:view(1, 3, 1, 1)) / (bn.running_var:view(1, 3, 1, 1) + 1e-5):sqrt())
  end)

  it("averages cumulatively with momentum = false", function()
    local bn, a, b = nn.BatchNorm1d(2, { momentum = false }), core.randn { 5, 2 }, core.randn { 5, 2 }
    bn(a)
    bn(b)
    same(bn.running_mean, (a:mean { dim = 1 } + b:mean { dim = 1 }) / 2)
    assert.equal(2, bn.num_batches_tracked:item())
  end)

  it("adds a residual and rectifies in the same pass", function()
    local plain, fused, x, z = nn.BatchNorm2d(3), nn.BatchNorm2d(3, { activation = "relu" }), core.randn { 4,
      3, 5, 5 }, core.randn { 4, 3, 5, 5 }
    same(fused(x), plain(x):relu())
    same(fused(x, z), (plain(x) + z):relu())
    fused:eval()
    plain:eval()
    same(fused(x, z), (plain(x) + z):relu())
  end)

  it("works without parameters, without statistics, and tells its shapes", function()
    local bn = nn.BatchNorm1d(4, { affine = false, track_running_stats = false })
    assert.same({}, names(bn:state_dict()))
    assert.is_true(bn:eval()(core.randn { 8, 4, 3 }):mean():abs():item() < 1e-5)
    assert.has_error(function() nn.BatchNorm2d(4)(core.zeros { 8, 4 }) end)
    assert.equal("BatchNorm2d(4, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)",
      tostring(nn.BatchNorm2d(4)))
  end)

  it("is saved and loaded with its statistics", function()
    local a, b = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    a(core.randn { 4, 3, 5, 5 })
    b:load_state_dict(a:state_dict())
    same(b.running_var, a.running_var)
    assert.equal(1, b.num_batches_tracked:item())
  end)
end)

describe("nn.AlphaDropout", function()
  it("keeps mean and variance, drops to SELU's lowest value, and leaves evaluation alone", function()
    tensor.manual_seed(3)
    local drop, x = nn.AlphaDropout(0.3), tensor.randn(200000)
    local y = drop(x)
    assert.is_true(math.abs(y:mean():item()) < 0.02 and math.abs(y:var():item() - 1) < 0.02)
    local a = ((1.7580993408473766 ^ 2 * 0.3 + 1) * 0.7) ^ -0.5
    local low = y:amin():item()
    local at_low = y:lt(-1.7580993408473766 * a * 0.7 + 1e-4):logical_and(
      y:gt(-1.7580993408473766 * a * 0.7 - 1e-4))
    assert.is_true(math.abs(at_low:double():mean():item() - 0.3) < 0.01, low)
    drop:eval()
    assert.are.equal(x, drop(x))
    assert.are.same({ 0, 0 }, nn.AlphaDropout(1)(tensor.ones(2)):totable())
    assert.has_error(function() nn.AlphaDropout(2) end)
  end)
end)

describe("nn.InstanceNorm2d", function()
  it("says what it expects", function()
    local ok, message = pcall(nn.InstanceNorm2d(3), tensor.ones(2, 4, 5, 5))
    assert.is_false(ok)
    assert.truthy(message:find("expected 3 channels, got an input of shape", 1, true), message)
    ok, message = pcall(nn.InstanceNorm1d(3), tensor.ones(2, 3, 1))
    assert.is_false(ok)
    assert.truthy(message:find("one element", 1, true), message)
  end)
end)

describe("nn.Dropout2d", function()
  it("zeroes whole channels and scales the others", function()
    local drop = nn.Dropout2d(0.5)
    local y = drop(core.ones { 50, 20, 3, 3 })
    local sums = y:sum { dim = { 3, 4 } }
    assert.is_true((sums:eq(0) + sums:eq(18)):gt(0):all():item())
    local share = sums:eq(0):double():mean():item()
    assert.is_true(share > 0.4 and share < 0.6)
    drop:eval()
    assert.equal(1, drop(core.ones { 2, 2, 3, 3 }):min():item())
  end)
end)
