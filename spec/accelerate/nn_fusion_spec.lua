local core = require "accelerate.core"
local nn = require "accelerate.nn"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local utils = nn.utils

-- A batch norm with numbers of its own, in eval mode.
local function norm_of(Class, features, opts)
  local bn = Class(features, opts)
  bn.running_mean:uniform_(-1, 1)
  bn.running_var:uniform_(0.5, 2)
  if bn.weight then nn.init.uniform_(bn.weight, 0.5, 2) end
  if bn.bias then nn.init.uniform_(bn.bias) end
  return bn:eval()
end

local function near(expected, actual)
  assert.is_true(tensor.allclose(actual, expected, { rtol = 1e-4, atol = 1e-5 }), tostring(actual))
end

describe("nn.utils.fuse_conv_bn_eval", function()
  it("gives a convolution that does what both do", function()
    local x = core.randn(2, 4, 6, 6)
    for _, case in ipairs {
      { nn.Conv2d(4, 6, 3), {} }, { nn.Conv2d(4, 6, 3, { groups = 2, bias = false }), {} },
      { nn.Conv2d(4, 6, 3), { affine = false } }, { nn.ConvTranspose2d(4, 6, 3), {}, true } } do
      local conv, bn = case[1]:eval(), norm_of(nn.BatchNorm2d, 6, case[2])
      local before = conv.weight:clone()
      local fused = utils.fuse_conv_bn_eval(conv, bn, case[3])
      near(bn(conv(x)), fused(x))
      assert.equal(conv.__name, fused.__name)
      assert.is_true(fused.bias.requires_grad and nn.is_parameter(fused.weight))
      near(before, conv.weight)
    end
    local conv, bn = nn.Conv1d(4, 6, 1):eval(), norm_of(nn.BatchNorm1d, 6)
    near(bn(conv(x:flatten(3))), utils.fusion.fuse_conv_bn_eval(conv, bn)(x:flatten(3)))
  end)

  it("has PyTorch's numbers", function()
    local w = core.arange(4):float():view(2, 2, 1)
    local mean, variance = core.tensor { 1, 2 }, core.tensor { 4, 0.25 }
    local weight, bias = utils.fuse_conv_bn_weights(w, nil, mean, variance, 0, core.tensor { 1, 3 },
      core.tensor { 0.5, 0 })
    near(core.tensor { { { 0 }, { 0.5 } }, { { 12 }, { 18 } } }, weight)
    near(core.tensor { 0, -12 }, bias)
    assert.same({ false, false }, { weight.requires_grad, bias.requires_grad })
    weight, bias = utils.fuse_conv_bn_weights(w, core.ones(2), mean, variance, 0, nil, nil,
      { transpose = true })
    near(core.tensor { { { 0 }, { 2 } }, { { 1 }, { 6 } } }, weight)
    near(core.tensor { 0, -2 }, bias)
  end)

  it("says what it needs", function()
    local conv, bn = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)
    raises("fuse_conv_bn_eval: Conv2d is in training mode; call eval() on both modules first",
      utils.fuse_conv_bn_eval, conv, bn)
    raises("fuse_conv_bn_eval: BatchNorm2d is in training mode", utils.fuse_conv_bn_eval, conv:eval(), bn)
    raises("fuse_conv_bn_eval: BatchNorm2d has no running_mean", utils.fuse_conv_bn_eval, conv,
      nn.BatchNorm2d(2, { track_running_stats = false }):eval())
    raises("fuse_conv_bn_eval: bn must be a module, got nil", utils.fuse_conv_bn_eval, conv)
  end)
end)

describe("nn.utils.fuse_linear_bn_eval", function()
  it("gives a linear layer that does what both do", function()
    local x = core.randn(5, 3)
    for _, bias in ipairs { true, false } do
      local linear, bn = nn.Linear(3, 4, { bias = bias }):eval(), norm_of(nn.BatchNorm1d, 4)
      near(bn(linear(x)), utils.fuse_linear_bn_eval(linear, bn)(x))
    end
    raises("fuse_linear_bn_eval: the batch norm must have 4 features, those of the layer, or 1; it has 3",
      utils.fuse_linear_bn_eval, nn.Linear(3, 4):eval(), nn.BatchNorm1d(3):eval())
  end)
end)
