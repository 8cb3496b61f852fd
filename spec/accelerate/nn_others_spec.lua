--- Modules and functions of nn that have no other place: what they refuse. Their values are
--- compared with PyTorch's in spec/kernels/torch_spec.lua.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local raises = require("spec.support.messages").raises

local F = nn.functional

describe("AdaptiveLogSoftmaxWithLoss", function()
  it("names its parameters as PyTorch does, and gives probabilities that sum to 1", function()
    local m = nn.AdaptiveLogSoftmaxWithLoss(8, 10, { 3, 6 }, { div_value = 2 })
    local names = {}
    for name in pairs(m:state_dict()) do names[#names + 1] = name end
    table.sort(names)
    assert.are.same({ "head.weight", "tail.0.0.weight", "tail.0.1.weight", "tail.1.0.weight",
      "tail.1.1.weight" }, names)
    local x = core.randn(5, 8)
    local all = m:log_prob(x)
    assert.are.same({ 5, 10 }, all.shape)
    assert.is_true(all:exp():sum(2):allclose(core.ones(5), 1e-4, 1e-5))
    assert.are.same(all:argmax(2):totable(), m:predict(x):totable())
    assert.are.same({}, m:predict(x[1]).shape)
    local target = core.tensor({ 0, 3, 9, 5, 6 }, { dtype = "int64" })
    local output, loss = m(x, target)
    assert.is_true(output:allclose(all:gather(2, target:unsqueeze(2)):squeeze(2), 1e-4, 1e-5))
    assert.is_true(math.abs(loss:item() + output:mean():item()) < 1e-6)
  end)

  it("refuses cutoffs and targets that do not fit", function()
    raises("cutoffs must rise: 3 comes after 3", nn.AdaptiveLogSoftmaxWithLoss, 8, 10, { 3, 3 })
    raises("cutoffs[1]", nn.AdaptiveLogSoftmaxWithLoss, 8, 10, { 10 })
    raises("cutoffs", nn.AdaptiveLogSoftmaxWithLoss, 8, 10, {})
    raises("make div_value smaller", nn.AdaptiveLogSoftmaxWithLoss, 8, 10, { 3, 6 }, { div_value = 4 })
    local m = nn.AdaptiveLogSoftmaxWithLoss(8, 10, { 3 })
    raises("class 10 is outside 0..9", m, core.randn(1, 8), core.tensor({ 10 }, { dtype = "int64" }))
    raises("target: expected int64", m, core.randn(1, 8), core.ones(1))
    raises("target: expected int64", m, core.randn(2, 8), core.tensor({ 1 }, { dtype = "int64" }))
    raises("input: expected (n, 8) or (8)", m, core.randn(1, 7), core.tensor({ 1 }, { dtype = "int64" }))
    raises("input: expected (n, 8) or (8)", m.log_prob, m, core.randn(1, 7))
  end)
end)

describe("fractional pooling", function()
  it("draws the places of its windows", function()
    local x = core.randn(2, 3, 9, 8)
    core.manual_seed(3)
    local a, at = F.fractional_max_pool2d(x, 2, { output_size = 4, return_indices = true })
    core.manual_seed(3)
    assert.is_true(a:equal(nn.FractionalMaxPool2d(2, { output_size = 4 })(x)))
    assert.is_true(a:flatten(3):equal(x:flatten(3):gather(3, at:flatten(3))))
  end)

  it("refuses sizes that do not fit", function()
    local x = core.ones(1, 1, 4, 4)
    raises("give output_size or output_ratio", F.fractional_max_pool2d, x, 2)
    raises("give output_size or output_ratio", nn.FractionalMaxPool2d, 2,
      { output_size = 2, output_ratio = 0.5 })
    raises("output_ratio must be above 0 and below 1, got 1", F.fractional_max_pool2d, x, 2,
      { output_ratio = 1 })
    raises("4 windows of 2 do not fit dim 3", F.fractional_max_pool2d, x, 2, { output_size = 4 })
    raises("expected a floating-point (n, c, h, w)", F.fractional_max_pool2d, core.ones(3), 2,
      { output_size = 1 })
    raises("expected a floating-point (n, c, d, h, w)", F.fractional_max_pool3d, core.ones(3), 2,
      { output_size = 1 })
    raises("_random_samples", F.fractional_max_pool2d, x, 2,
      { output_size = 2, _random_samples = core.ones(1, 1, 3) })
  end)
end)

describe("functions beside the modules", function()
  it("refuse what does not fit", function()
    local w = core.ones(4, 4)
    raises("relu_: x: expected a tensor", F.relu_, 3)
    raises("conv_tbc: expected (time, batch, in)", F.conv_tbc, w, w, w)
    raises("conv_tbc: bias: expected a tensor", F.conv_tbc, w, w)
    raises("linear_cross_entropy: expected input (n, in)", F.linear_cross_entropy, core.ones(2, 3), w,
      core.tensor({ 1, 1 }, { dtype = "int64" }))
    raises("give in_proj_weight", F.multi_head_attention_forward, w, w, w, 4, 2, { out_proj_weight = w })
    raises("a multiple of num_heads", F.multi_head_attention_forward, w, w, w, 4, 3, { out_proj_weight = w })
    raises("unknown option 'mode'", F.upsample_nearest, core.ones(1, 1, 2, 2), { mode = "area" })
  end)
end)
