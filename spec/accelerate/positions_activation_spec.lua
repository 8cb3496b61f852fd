--- Arguments of activations in PyTorch's order: inplace, and those that have no effect.
local F = require "accelerate.nn.functional"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

describe("arguments of activations", function()
  for name, given in next, {
    relu = {}, relu6 = {}, selu = {}, silu = {}, mish = {}, hardsigmoid = {}, hardswish = {},
    leaky_relu = { 0.2 }, elu = { 0.5 }, celu = { 0.5 }, hardtanh = { -1, 0.5 }, threshold = { 0.1, 7 },
  } do
    it(("of %s end with inplace"):format(name), function()
      local n = #given
      local x = tensor { -1.5, -0.25, 0.75 }
      local expected = F[name](x, unpack(given)):tolist()
      given[n + 1] = false
      assert.same(expected, F[name](x, unpack(given)):tolist())
      assert.same({ -1.5, -0.25, 0.75 }, x:tolist())
      given[n + 1] = { inplace = true }
      local y = x:clone()
      assert.equal(y, F[name](y, unpack(given)))
      assert.same(expected, y:tolist())
      given[n + 1] = true
      assert.equal(x, F[name](x, unpack(given)))
      assert.same(expected, x:tolist())
      given[n + 2] = "junk"
      assert.is_false(pcall(F[name], x, unpack(given)))
    end)
  end

  for _, name in ipairs { "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
    "feature_alpha_dropout" } do
    it(("of %s end with inplace"):format(name), function()
      local x = tensor.ones(unpack({ 2, 3, 2, 2, 2 }, 1, (tonumber(name:match "%d") or 1) + 2))
      local function drawn(...)
        tensor.manual_seed(3)
        return F[name](...)
      end
      local expected = drawn(x, 0.5):tolist()
      assert.same(expected, drawn(x, 0.5, true, false):tolist())
      assert.equal(x:numel(), x:sum():item())
      local y = x:clone()
      assert.equal(y, drawn(y, { inplace = true }))
      assert.same(expected, y:tolist())
      assert.equal(x, drawn(x, 0.5, true, true))
      assert.same(expected, x:tolist())
      assert.equal(x, drawn(x, 0.5, false, true))
      assert.same(expected, x:tolist())
      raises(name .. ": inplace must be true or false, got 1", F[name], x, { inplace = 1 })
    end)
  end

  it("are checked", function()
    raises("leaky_relu: inplace must be true or false, got 1", F.leaky_relu, tensor.ones(1), { inplace = 1 })
    raises("relu: x must be a tensor, got 3", F.relu, 3, true)
  end)

  it("of softmax and gumbel_softmax may have those without effect", function()
    local x = tensor.randn(3, 4)
    for _, name in ipairs { "softmax", "log_softmax", "softmin" } do
      local wide = F[name](x, 2, 3, "float64")
      assert.equal("float64", wide.dtype)
      assert.is_true(wide:equal(F[name](x, 2, "float64")))
      assert.is_true(F[name](x, 1, 3):equal(F[name](x, { dim = 1 })))
      assert.is_true(F[name](x, 1, nil, "float64"):equal(F[name](x, 1, { dtype = "float64" })))
    end
    local function drawn(...)
      tensor.manual_seed(2)
      return F.gumbel_softmax(x, ...)
    end
    local expected = drawn { tau = 2, dim = 1 }
    assert.is_true(expected:equal(drawn(2, false, 1e-10, 1)))
    assert.is_true(expected:equal(drawn(2, false, 1)))
    assert.is_true(drawn { tau = 2 }:equal(drawn(2, false, 1e-10)))
  end)
end)
