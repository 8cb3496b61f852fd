--- set_default_dtype: the type of new tensors, of parameters, and of results that integers do not
--- fit. The types are PyTorch's for the same calls.
local nn = require "accelerate.nn"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

describe("the default type", function()
  after_each(function() tensor.set_default_dtype("float32") end)

  local function calls()
    local i = tensor.arange(1, 4)
    return {
      tensor.zeros(2), tensor.tensor { 1, 2 }, tensor.full({ 2 }, 1), tensor.arange(0, 1, 0.5), tensor.eye(2),
      tensor.linspace(0, 1, 3), tensor.logspace(0, 1, 3), tensor.randn(2), tensor.rand(2), tensor.ones(2),
      tensor.hann_window(4), tensor.fft.fftfreq(4), i + 1.5, i / 2, i:sqrt(), i:erf(), i:lgamma(), i:sinc(),
      i:logsumexp(1), i:clamp { max = 1.5 }, tensor.where(i:gt(1), 0.5, 1.5), nn.Linear(2, 2).weight,
      nn.BatchNorm1d(2).running_mean, nn.LSTM(2, 2):parameters()[1], nn.Embedding(2, 2).weight,
    }
  end

  it("is that of all that has no other", function()
    assert.equal("float32", tensor.get_default_dtype())
    for _, dtype in ipairs { "float32", "float64", "bfloat16", "float16" } do
      tensor.set_default_dtype(dtype)
      assert.equal(dtype, tensor.get_default_dtype())
      for k, x in ipairs(calls()) do assert.equal(dtype, x.dtype, ("call %d"):format(k)) end
      assert.equal(dtype == "float64" and 64 or dtype == "float32" and 32 or 16, tensor.finfo().bits)
    end
  end)

  it("leaves alone what has one", function()
    tensor.set_default_dtype("float64")
    local single, whole = tensor.ones(2, { dtype = "float32" }), tensor.arange(3)
    assert.equal("float32", (single + 1.5).dtype)
    assert.equal("float32", (single * tensor.tensor(1.5)).dtype) -- 0 dims count by their category
    assert.equal("int64", whole.dtype)
    assert.equal("int64", (whole + 1).dtype)
    assert.equal("bool", tensor.tensor({ true }).dtype)
    assert.equal("float32", tensor.zeros_like(single).dtype)
    assert.equal("tensor([1., 1.], dtype=float32)", tostring(single))
    assert.equal("tensor([1., 1.])", tostring(single:double()))
  end)

  it("computes with the precision of the type", function()
    tensor.set_default_dtype("float64")
    assert.near(math.sqrt(2), tensor.arange(2, 3):sqrt():item(), 1e-15)
    assert.near(math.log(math.exp(1) + math.exp(2)), tensor.arange(1, 3):logsumexp(1):item(), 1e-15)
    local layer = nn.Linear(3, 2)
    layer(tensor.randn(4, 3)):square():mean():backward()
    assert.equal("float64", layer.weight.grad.dtype)
  end)

  it("raises for what is no floating type", function()
    raises("set_default_dtype: dtype: expected a floating type, got int64",
      function() tensor.set_default_dtype("int64") end)
    raises('did you mean "float64"', function() tensor.set_default_dtype("float46") end)
    raises("set_default_dtype", function() tensor.set_default_dtype() end)
    assert.equal("float32", tensor.get_default_dtype())
  end)
end)

describe("the state of the default generator", function()
  it("continues a run of draws", function()
    tensor.manual_seed(7)
    assert.equal(7, tensor.initial_seed())
    tensor.rand(5)
    local state, first = tensor.get_rng_state(), tensor.rand(9)
    tensor.rand(3)
    tensor.set_rng_state(state)
    assert.is_true(first:equal(tensor.rand(9)))
    raises("set_rng_state: argument 1 (state): expected a string of 16 bytes from get_rng_state, got 'x'",
      function() tensor.set_rng_state("x") end)
  end)

  it("is drawn anew by seed", function()
    local a, b = tensor.seed(), tensor.seed()
    assert.are_not.equal(a, b)
    assert.equal(b, tensor.initial_seed())
  end)
end)
