--- nn.init: structure and distribution of what it fills tensors with (nn_layers_spec.lua has the
--- fans and gains).
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local nn = require "accelerate.nn"
local message = require("spec.support.messages").message
local init = nn.init

local function moments(t)
  local d = t:double()
  local mean = d:mean():item()
  return mean, (d - mean):square():mean():item()
end

describe("trunc_normal_", function()
  -- limits, then mean and variance of the truncated distribution
  for _, case in ipairs {
    { 0, 1, -2, 2, 0, 0.773741 }, { 1, 2, -1, 4, 1.290375, 1.662740 }, { 0, 1, 3, 5, 3.282694, 0.069798 },
    { 0, 1, -math.huge, 0, -0.797885, 0.363380 },
  } do
    it(("has the moments of a normal(%g, %g) between %g and %g"):format(unpack(case)), function()
      core.manual_seed(1)
      local t = init.trunc_normal_(core.empty(400, 500), unpack(case, 1, 4))
      assert.is_true(t:min():item() >= case[3] and t:max():item() <= case[4])
      local mean, variance = moments(t)
      assert.near(case[5], mean, 0.01)
      assert.near(case[6], variance, 0.01)
    end)
  end

  it("checks its limits", function()
    assert.matches("a must be below b, got 2 and %-2",
      message(init.trunc_normal_, core.empty(2), 0, 1, 2, -2))
    assert.matches("std must be above 0", message(init.trunc_normal_, core.empty(2), 0, 0))
    assert.matches("only floating%-point tensors can be drawn, got int64",
      message(init.trunc_normal_, core.empty(2, { dtype = "int64" })))
  end)

  it("draws the same for the same seed", function()
    local a = init.trunc_normal_(core.empty(50), 0, 1, { generator = tensor.Generator(3) })
    assert.is_true(tensor.equal(a,
      init.trunc_normal_(core.empty(50), 0, 1, -2, 2, { generator = tensor.Generator(3) })))
  end)
end)

describe("orthogonal_", function()
  for _, shape in ipairs { { 6, 10 }, { 10, 6 }, { 7, 7 }, { 4, 3, 2, 2 }, { 20, 2, 3 } } do
    it("makes the shorter side orthonormal: " .. table.concat(shape, "x"), function()
      local t = init.orthogonal_(core.empty(shape), 3)
      local flat = t:reshape(shape[1], -1)
      local square = flat:size(1) <= flat:size(2) and flat:matmul(flat:t()) or flat:t():matmul(flat)
      assert.is_true(tensor.allclose(square, core.eye(square:size(1)) * 9, { atol = 1e-5 }))
    end)
  end

  it("writes leaves that require gradients, and checks dims", function()
    local p = nn.Parameter(core.empty(3, 3))
    assert.equal(p, init.orthogonal_(p))
    assert.matches("expected at least 2 dims", message(init.orthogonal_, core.empty(3)))
  end)
end)

describe("sparse_ and dirac_", function()
  it("zero a share of each column", function()
    local t = init.sparse_(core.empty(20, 5), 0.3, { std = 2 })
    assert.same({ 6, 6, 6, 6, 6 }, t:eq(0):float():sum(1):totable())
  end)

  it("keep channels, in groups", function()
    local t = init.dirac_(core.empty(4, 2, 3, 3), 2)
    assert.equal(4, t:sum():item())
    assert.same({ 1, 1 }, { t[{ 1, 1, 2, 2 }]:item(), t[{ 4, 2, 2, 2 }]:item() })
    assert.matches("5 output channels cannot be cut into 2 groups",
      message(init.dirac_, core.empty(5, 2, 3), 2))
  end)
end)
