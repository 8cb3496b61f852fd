--- How the constructors of accelerate.distributions take their arguments; caches of transforms;
--- distributions and transforms that a script derives.
local accelerate = require "accelerate"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local D, class = accelerate.distributions, accelerate.utils.class

local function close(expected, x, allowed)
  for i, value in ipairs(x:tolist()) do assert.near(expected[i], value, allowed or 1e-5) end
end

local p, eye = tensor { 0.2, 0.3, 0.5 }, tensor.eye(3)

-- A constructor, its arguments by position, and all of them by name.
local CALLS = {
  { "Normal", { 1, 2 }, { loc = 1, scale = 2 }, 0.5 },
  { "Uniform", { 0, 2 }, { low = 0, high = 2 }, 0.5 },
  { "Gamma", { 2, 3 }, { concentration = 2, rate = 3 }, 0.5 },
  { "Beta", { 2, 3 }, { concentration1 = 2, concentration0 = 3 }, 0.5 },
  { "StudentT", { 3 }, { df = 3 }, 0.5 },
  { "Poisson", { 3 }, { rate = 3 }, 2 },
  { "Categorical", { nil, p, n = 2 }, { logits = p }, 2 },
  { "Bernoulli", { nil, p, n = 2 }, { logits = p }, 1 },
  { "Binomial", { 3, p }, { total_count = 3, probs = p }, 2 },
  { "Binomial", { 1, p }, { probs = p }, 1 },
  { "NegativeBinomial", { 3, p }, { total_count = 3, probs = p }, 2 },
  { "Multinomial", { 2, p }, { total_count = 2, probs = p }, tensor { 0, 1, 1 } },
  { "RelaxedBernoulli", { 0.5, p }, { temperature = 0.5, probs = p }, 0.5 },
  { "RelaxedOneHotCategorical", { 0.5, p }, { temperature = 0.5, probs = p }, p },
  { "MultivariateNormal", { p, 2 * eye }, { loc = p, covariance_matrix = 2 * eye }, p + 1 },
  { "MultivariateNormal", { p, nil, nil, 2 * eye, n = 4 }, { loc = p, scale_tril = 2 * eye }, p + 1 },
  { "Wishart", { 4, eye }, { df = 4, covariance_matrix = eye }, eye * 2 },
  { "LKJCholesky", { 3, 2 }, { dim = 3, concentration = 2 }, eye },
  { "Independent", { D.Normal(p, 1), 1 },
    { base_distribution = D.Normal(p, 1), reinterpreted_batch_ndims = 1 }, p + 1 },
  { "MixtureSameFamily", { D.Categorical(p), D.Normal(p, 1) },
    { mixture_distribution = D.Categorical(p), component_distribution = D.Normal(p, 1) }, 0.5 },
  { "TransformedDistribution", { D.Normal(p, 1), D.ExpTransform() },
    { base_distribution = D.Normal(p, 1), transforms = { D.ExpTransform() } }, 2 },
}

describe("the constructors of distributions", function()
  for _, call in ipairs(CALLS) do
    it("take arguments by position and by name: " .. call[1], function()
      local Class, places = D[call[1]], call[2]
      local one, other = Class(unpack(places, 1, places.n or #places)), Class(call[3])
      assert.same(one:log_prob(call[4]):tolist(), other:log_prob(call[4]):tolist())
      assert.same(one.batch_shape, other.batch_shape)
    end)
  end

  it("take validate_args by position, and Independent takes it", function()
    D.Normal(1, -2, false)
    raises("to be greater than 0", D.Normal, 1, -2, true)
    local inner = D.Bernoulli(p)
    raises("expected the value", function() D.Independent(inner, 1, { validate_args = true }):log_prob(p)
      inner:log_prob(p) end)
    assert.is_false(D.Independent(inner, 1, { validate_args = false })._validate)
  end)

  it("say what their arguments are", function()
    raises("parameter loc must be a number or a tensor, got a table; the arguments are loc, scale, " ..
      "[validate_args]", D.Normal, { mean = 1, std = 2 })
    raises("got a list of 2; tensor.tensor(list) makes a tensor", D.Normal, { 1, 2 }, 1)
    raises("unknown option 'validate'; did you mean 'validate_args'?", D.Normal, 1, 2, { validate = false })
    raises("an argument too many: 5; there are loc, scale, validate_args", D.Normal, 1, 2, true, 5)
  end)

  it("draw with a shape by name", function()
    local d = D.Normal(tensor.zeros(2), 1)
    assert.same({ 3, 2 }, d:sample({ sample_shape = { 3 } }).shape)
    assert.same({ 3, 2 }, d:rsample({ sample_shape = { 3 } }).shape)
    raises("unknown option 'n'; known: sample_shape", d.sample, d, { n = 3 })
  end)

  it("draw with a shape in one list, and refuse sizes one by one", function()
    local d = D.Normal(tensor.zeros(2), 1)
    assert.same({ 3, 4, 2 }, d:sample({ 3, 4 }).shape)
    assert.same({ 3, 2 }, d:rsample(3).shape)
    assert.same({ 2 }, d:sample({}).shape)
    assert.same({ 2 }, d:sample(nil).shape)
    raises("sample: an argument too many: 4; there are sample_shape", d.sample, d, 3, 4)
    raises("rsample: an argument too many: 4; there are sample_shape", d.rsample, d, { 3 }, 4)
  end)
end)

describe("the cache of a transform", function()
  -- PyTorch 2.15: TransformedDistribution(Normal(loc, scale), [TanhTransform(cache_size=1)]);
  -- without the cache its values at the first element, where tanh rounds to 1, are NaN.
  it("gives back the x of a draw, also where tanh rounds to 1", function()
    local single = { dtype = "float32", requires_grad = true }
    local loc, scale = tensor({ 12, 0.3 }, single), tensor({ 0.5, 0.7 }, single)
    local tanh = D.TanhTransform { cache_size = 1 }
    local d = D.TransformedDistribution(D.Normal(loc, scale), { tanh })
    local u = loc + scale * tensor { 0.25, -1.5 }
    local y = tanh(u)
    assert.equal(1, y[1]:item())
    assert.is_true(rawequal(u, tanh.inv(y)))
    local log_prob = d:log_prob(y)
    close({ 22.60666275, -1.17073154 }, log_prob)
    log_prob:sum():backward()
    close({ 2, -1.27029777 }, loc.grad)
    close({ -1.5, 0.47687495 }, scale.grad)
  end)

  it("is an option of every transform, by position and by name", function()
    local x = tensor { 0.1, 0.2, 0.3 }
    for _, made in ipairs { D.ExpTransform(1), D.AffineTransform(1, 2, 0, 1), D.PowerTransform(2, 1),
      D.ComposeTransform({ D.ExpTransform() }, 1), D.StickBreakingTransform { cache_size = 1 },
      D.CatTransform({ D.ExpTransform() }, -1, { 3 }, 1), D.StackTransform({ D.ExpTransform() }, 1, 1),
      D.ReshapeTransform({ 3 }, { 3, 1 }, 1), D.IndependentTransform(D.ExpTransform(), 1, 1),
      D.CumulativeDistributionTransform(D.Normal(0, 1), 1), D.AbsTransform():with_cache() } do
      local given = made.__name == "StackTransform" and x:view(1, 3) or x
      local y = made(given)
      assert.is_true(rawequal(y, made(given)), made.__name)
      assert.is_true(rawequal(given, made.inv(y)), made.__name)
    end
    local exp = D.ExpTransform(1)
    assert.is_false(rawequal(x, exp:with_cache(0).inv(exp(x))))
    raises("option 'cache_size' must be at least 0 and at most 1, got 2", D.TanhTransform, 2)
    raises("unknown option 'cache'; did you mean 'cache_size'?", D.TanhTransform, { cache = 1 })
  end)
end)

describe("a script's own", function()
  it("transform works in a distribution", function()
    local Sinh = class("Sinh", D.Transform)
    function Sinh:_call(x) return x:sinh() end
    function Sinh:_inverse(y) return y:asinh() end
    function Sinh:log_abs_det_jacobian(x) return x:cosh():log() end
    local sinh = Sinh { cache_size = 1 }
    local x = tensor { 0.3, 2 }
    assert.is_true(rawequal(x, sinh.inv(sinh(x))))
    assert.equal(0, sinh.event_dim)
    local d = D.TransformedDistribution(D.Normal(0, 1), { Sinh(), D.AffineTransform(1, 2) })
    -- the density of asinh((y - 1) / 2), over 2 sqrt(1 + ((y - 1) / 2)^2)
    local v = (x - 1) / 2
    close((D.Normal(0, 1):log_prob(v:asinh()) - (2 * (1 + v * v):sqrt()):log()):tolist(), d:log_prob(x))
    close((-x:cosh():log()):tolist(), sinh.inv:log_abs_det_jacobian(sinh(x), x))
  end)

  it("distribution has its own methods and fields", function()
    local Squashed = class("Squashed", D.TransformedDistribution)
    function Squashed:init(loc, scale)
      D.TransformedDistribution.init(self, D.Normal(loc, scale), { D.TanhTransform { cache_size = 1 } })
    end
    function Squashed:_get_mean() return self.base_dist.loc:tanh() end
    function Squashed:spread() return self.base_dist.scale end
    local d = Squashed(tensor { 0.5, 1 }, tensor { 1, 2 })
    assert.same({ 1, 2 }, d:spread():tolist())
    close({ math.tanh(0.5), math.tanh(1) }, d.mean)
    local draw = d:rsample()
    assert.same({ 2 }, d:log_prob(draw).shape)
  end)
end)
