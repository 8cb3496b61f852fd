--- Arguments of losses: by position in PyTorch's order, with size_average and reduce, or by name.
--- The expected values are PyTorch's.
local F = require "accelerate.nn.functional"
local nn = require "accelerate.nn"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local x, t = tensor { { 1, 2, 3 }, { 3, 1, 0.5 } }, tensor { 2, 1 }:long()
local w = tensor { 1, 2, 3 }
local a, b = tensor { 0.5, 0.2, 0.7 }, tensor { 0.1, 0.9, 0.4 }
local signs = tensor { 1, -1, 1 }

local function near(expected, given)
  given = given.ndim == 0 and { given:item() } or given:tolist()
  expected = type(expected) == "table" and expected or { expected }
  assert.equal(#expected, #given)
  for i, value in ipairs(expected) do assert.near(value, given[i], 2e-6) end
end

describe("arguments of losses", function()
  it("go by position in PyTorch's order", function()
    near(1.1232573, F.cross_entropy(x, t, w, nil, -100))
    near(1.2228179, F.cross_entropy(x, t, w, false, 1))
    near({ 1.2228179, 4.3934684 }, F.cross_entropy(x, t, w, nil, -100, false))
    near(5.6921921, F.cross_entropy(x, t, w, nil, -100, nil, "sum", 0.1))
    near(-9, F.nll_loss(x, t, w, nil, 1, nil, "sum"))
    near(-11, F.nll_loss(x, t, w, false))
    near(0.7399999, F.mse_loss(a, b, nil, nil, "sum"))
    near(0.7399999, F.mse_loss(a, b, false))
    near({ 0.16, 0.49, 0.09 }, F.mse_loss(a, b, nil, false))
    near(0.2466667, F.mse_loss(a, b, true, nil, "sum"))
    near(1.4, F.l1_loss(a, b, nil, nil, "sum"))
    near(0.7, F.smooth_l1_loss(a, b, nil, nil, "sum", 0.5))
    near(0.3229599, F.kl_div(a:log(), b, nil, nil, "batchmean"))
    near(0.9688796, F.kl_div(a:log(), b:log(), nil, nil, "sum", true))
    near(6.2299252, F.binary_cross_entropy(a, b, w, nil, nil, "sum"))
    near(6.6742096, F.binary_cross_entropy_with_logits(a, b, w, nil, nil, "sum", w))
    near(4.3738766, F.poisson_nll_loss(a, b, true, false, nil, 1e-8, nil, "sum"))
    near(1.6754019, F.soft_margin_loss(a, signs, false))
  end)

  it("may leave size_average and reduce out", function()
    near(1.2228179, F.cross_entropy(x, t, w, 1, "sum"))
    near(5.6921921, F.cross_entropy(x, t, w, nil, "sum", 0.1))
    near(0.7399999, F.mse_loss(a, b, "sum"))
    near(0.9688796, F.kl_div(a:log(), b:log(), "sum", true))
    near(0.7399999, F.mse_loss(a, b, { reduction = "sum" }))
    near(0.7399999, F.mse_loss(a, b, { size_average = false }))
    near(1.2228179, F.cross_entropy(x, t, w, { ignore_index = 1, size_average = false }))
  end)

  it("are those of modules, too", function()
    near(0.407606, nn.CrossEntropyLoss(w, nil, 1)(x, t))
    near(0.7399999, nn.MSELoss(false)(a, b))
    near(0.7399999, nn.MSELoss(nil, nil, "sum")(a, b))
    near(0.7399999, nn.MSELoss { size_average = false }(a, b))
    near(0.285, nn.HuberLoss("sum", 0.3)(a, b))
    near(1.5, nn.HingeEmbeddingLoss(0.5, nil, nil, "sum")(a, signs))
    assert.equal("none", nn.L1Loss(nil, false).reduction)
    assert.is_nil(rawget(nn.L1Loss(nil, false)._values, "reduce"))
  end)

  it("are checked", function()
    raises("MSELoss: option 'size_average' must be true or false, got 'sum'", nn.MSELoss, "sum")
    raises("CrossEntropyLoss: an argument too many: 9", nn.CrossEntropyLoss, w, nil, 1, nil, "sum", 0.1, 9)
    raises("cross_entropy: option 'reduce' must be true or false, got 1", F.cross_entropy, x, t,
      { reduce = 1 })
    raises("mse_loss: ", F.mse_loss, a, b, nil, nil, "sum", nil, 3)
    raises("mse_loss: ", F.mse_loss, a, b, nil, nil, "total")
    raises("cross_entropy: weight is given twice, by position and by name", F.cross_entropy, x, t, w,
      { weight = w })
  end)
end)
