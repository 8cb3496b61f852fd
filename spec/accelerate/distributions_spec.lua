--- accelerate.distributions beside PyTorch's values
--- (spec/generators/gen_distributions_reference.py).
local accelerate = require "accelerate"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises
local support = require "spec.support.distributions"

local D = accelerate.distributions
local double, near, reference = support.double, support.near, support.reference

-- The distribution of a case, and its parameters.
local POSITIONAL = { Normal = { "loc", "scale" }, LogNormal = { "loc", "scale" },
  Laplace = { "loc", "scale" },
  Uniform = { "low", "high" }, Exponential = { "rate" }, Gamma = { "concentration", "rate" },
  Beta = { "concentration1", "concentration0" }, Dirichlet = { "concentration" },
  Cauchy = { "loc", "scale" }, StudentT = { "df", "loc", "scale" }, Gumbel = { "loc", "scale" },
  HalfCauchy = { "scale" }, Pareto = { "scale", "alpha" }, Weibull = { "scale", "concentration" },
  GeneralizedPareto = { "loc", "scale", "concentration" }, InverseGamma = { "concentration", "rate" },
  FisherSnedecor = { "df1", "df2" }, Kumaraswamy = { "concentration1", "concentration0" },
  VonMises = { "loc", "concentration" },
  LogisticNormal = { "loc", "scale" },
  LowRankMultivariateNormal = { "loc", "cov_factor", "cov_diag" },
  HalfNormal = { "scale" }, Chi2 = { "df" }, Poisson = { "rate" } }
-- Parameters before the options.
local FIRST = { NegativeBinomial = "total_count", Binomial = "total_count", RelaxedBernoulli = "temperature",
  ExpRelaxedCategorical = "temperature", RelaxedOneHotCategorical = "temperature",
  MultivariateNormal = "loc", Wishart = "df" }
-- Of several parts, as spec/generators/gen_distributions_reference.py builds them.
local function transformed(of)
  return function(t) return D.TransformedDistribution(D.Normal(t.loc, t.scale), of()) end
end
local BUILT = {
  LKJCholesky = function(t) return D.LKJCholesky(3, t.concentration) end,
  NormalMixture = function(t)
    return D.MixtureSameFamily(D.Categorical(t.probs), D.Normal(t.loc, t.scale))
  end,
  VectorMixture = function(t)
    return D.MixtureSameFamily(D.Categorical { logits = t.logits },
      D.Independent(D.Normal(t.loc, t.scale), 1))
  end,
  FallingLogNormal = transformed(function() return { D.AffineTransform(1, -2), D.ExpTransform() } end),
  SquashedNormal = transformed(function() return D.TanhTransform() end),
  SigmoidPower = transformed(function() return { D.SigmoidTransform(), D.PowerTransform(2) } end),
  NormalCorrelation = transformed(function() return D.CorrCholeskyTransform() end),
  ReshapedLogNormal = function(t)
    return D.TransformedDistribution(D.LogNormal(t.loc, t.scale), D.ReshapeTransform({ 4 }, { 2, 2 }))
  end,
  IndependentAffine = function(t)
    return D.TransformedDistribution(D.Independent(D.Normal(t.loc, t.scale), 1),
      D.AffineTransform(double { 1, 2 }, 3))
  end,
  SoftplusNormal = transformed(function() return D.SoftplusTransform() end),
}

local function build(name, parameters, grad)
  local tensors, list = {}, {}
  for key, value in pairs(parameters) do tensors[key] = double(value, grad) end
  for i, key in ipairs(POSITIONAL[name] or {}) do list[i] = tensors[key] end
  if BUILT[name] then return BUILT[name](tensors), tensors end
  if POSITIONAL[name] then return D[name](unpack(list)), tensors end
  local opts = {}
  for key, value in pairs(tensors) do
    if key ~= FIRST[name] then opts[key] = value end
  end
  if FIRST[name] then return D[name](tensors[FIRST[name]], opts), tensors end
  if name == "Multinomial" then return D.Multinomial(5, opts), tensors end
  return D[name](opts), tensors
end

-- Draws of these vary so much that their variance says little.
local HEAVY = { LogNormal = true, Pareto = true, GeneralizedPareto = true, InverseGamma = true,
  FisherSnedecor = true }

-- Whether the draws of a case have a mean and a variance to compare with.
local function has_moments(case)
  if case.name == "Categorical" then return true end
  if not case.mean or case.name == "VonMises" then return false end
  for _, list in ipairs { case.mean, case.variance } do
    for _, value in ipairs(list) do
      if type(value) == "string" then return false end
    end
  end
  return true
end

describe("a distribution", function()
  for number, case in ipairs(reference().cases) do
    it(("has PyTorch's values: case %d, %s"):format(number, case.name), function()
      local d, parameters = build(case.name, case.parameters, true)
      local value = double(case.value)
      assert.same(case.batch_shape, d.batch_shape)
      assert.same(case.event_shape, d.event_shape)
      local log_prob = d:log_prob(value)
      near(case.log_prob, log_prob, "log_prob")
      log_prob:sum():backward()
      for name, gradient in pairs(case.gradients) do
        near(gradient, parameters[name].grad, "gradient of " .. name, 1e-8)
      end
      for _, name in ipairs { "mean", "mode", "variance" } do
        if case[name] then near(case[name], d[name], name) end
      end
      if case.variance then near(case.variance, d.stddev * d.stddev, "stddev") end
      if case.entropy then
        near(case.entropy, d:entropy(), "entropy")
        near(d:entropy():exp():detach():reshape({ -1 }):tolist(), d:perplexity(), "perplexity")
      end
      if case.cdf then
        near(case.cdf, d:cdf(value), "cdf")
        if case.icdf then near(case.icdf, d:icdf(double(case.p)), "icdf", 1e-7) end
      end
      if case.kl then near(case.kl, D.kl_divergence(d, (build(case.name, case.other))), "kl_divergence") end
    end)

    it(("draws with its moments, in its shape: case %d, %s"):format(number, case.name), function()
      tensor.manual_seed(11)
      local d = build(case.name, case.parameters, true)
      local n = 20000
      local draws = d:sample { n }
      local shape = { n }
      for _, list in ipairs { d.batch_shape, d.event_shape } do
        for _, size in ipairs(list) do shape[#shape + 1] = size end
      end
      assert.same(shape, draws.shape)
      assert.is_false(draws.requires_grad)
      table.remove(shape, 1)
      assert.same(shape, d:sample().shape)
      if case.cdf then -- Kolmogorov and Smirnov's distance, below 2 / sqrt(n) but for 7 in 10000
        local p = d:cdf(draws):detach():reshape({ n, -1 }):sort(1)
        local steps = tensor.arange(1, n + 1, { dtype = "float64" }):unsqueeze(-1) / n
        local below, above = (steps - p):max():item(), (p - steps + 1 / n):max():item()
        assert.is_true(math.max(below, above) < 2 / math.sqrt(n), "distance " .. math.max(below, above))
      end
      local mean, variance = d.mean, d.variance
      if case.name == "Categorical" then
        local classes = tensor.arange(3):to "float64"
        mean = (d.probs * classes):sum(-1)
        variance = (d.probs * classes * classes):sum(-1) - mean * mean
        assert.equal("int64", draws.dtype)
        draws = draws:to "float64"
      end
      if not has_moments(case) then return end
      -- five standard errors of the mean
      local error_of_mean = (variance / n):sqrt():detach() * 5 + 1e-12
      assert.is_true((draws:mean(1) - mean:detach()):abs():le(error_of_mean):all():item(), "mean")
      if not HEAVY[case.name] then
        local spread = draws:var(1):reshape({ -1 }):tolist()
        for i, v in ipairs(variance:detach():reshape({ -1 }):tolist()) do
          assert.is_true(math.abs(spread[i] - v) <= 0.12 * v + 1e-6,
            ("variance %g, expected %g"):format(spread[i], v))
        end
      end
    end)
  end

  it("is compared with a distribution of another kind", function()
    for _, case in ipairs(reference().pairs) do
      local function made(name, values)
        local list = {}
        for i, value in ipairs(values) do list[i] = double(value) end
        return D[name](unpack(list))
      end
      near(case.kl, D.kl_divergence(made(case.p, case.of_p), made(case.q, case.of_q)),
        case.p .. " and " .. case.q)
    end
  end)

  it("is transformed by functions that go back, with their slopes", function()
    local x = double({ 0.3, 0.7, 1.9 }, true)
    for name, t in pairs { affine = D.AffineTransform(2, -3), exp = D.ExpTransform(),
      sigmoid = D.SigmoidTransform(), tanh = D.TanhTransform(), power = D.PowerTransform(1.5),
      softplus = D.SoftplusTransform(), inverse = D.ExpTransform().inv,
      composed = D.ComposeTransform { D.ExpTransform(), D.AffineTransform(1, 2) } } do
      local y = t(x)
      near(x:tolist(), t.inv(y), name, 1e-9)
      near(x:tolist(), t.inv.inv.inv(y), name, 1e-9)
      x.grad = nil
      y:sum():backward()
      near(x.grad:abs():log():tolist(), t:log_abs_det_jacobian(x, y), name, 1e-9)
      near((-x.grad:abs():log()):tolist(), t.inv:log_abs_det_jacobian(y, x), name, 1e-9)
    end
    local folded = D.TransformedDistribution(D.Normal(0, 1), D.AbsTransform())
    assert.is_true(folded:sample({ 50 }):ge(0):all():item())
    raises("no inverse", folded.cdf, folded, 1)
    raises("must be a transform", D.TransformedDistribution, D.Normal(0, 1), { 5 })
    raises("must not be 0", D.PowerTransform, 0)
    assert.same({ 4, 3 }, D.TransformedDistribution(D.Normal(tensor.zeros(3), 1),
      D.AffineTransform(tensor.zeros(4, 1), 1)).batch_shape)
  end)

  it("is expanded, and has batch dimensions taken as an event", function()
    local d = D.Normal(tensor.zeros(3), 1):expand { 2, 3 }
    assert.same({ 2, 3 }, d.batch_shape)
    local i = D.Independent(d, 1)
    assert.same({ { 2 }, { 3 } }, { i.batch_shape, i.event_shape })
    local x = tensor.ones(2, 3)
    near(d:log_prob(x):sum(-1):tolist(), i:log_prob(x), "log_prob", 1e-6)
    near(d:entropy():sum(-1):tolist(), i:entropy(), "entropy", 1e-6)
    assert.same({ 5, 2, 3 }, i:rsample { 5 }.shape)
    assert.same({ 4, 2 }, i:expand { 4, 2 }.batch_shape)
    near({ 0, 0 }, D.kl_divergence(i, i), "kl_divergence", 1e-6)
    raises("at most 2", D.Independent, d, 3)
    raises("a distribution", D.Independent, 5, 1)
    for _, other in ipairs { D.Categorical { probs = tensor.ones(2) }, D.Dirichlet(tensor.ones(2)),
      D.Multinomial(3, tensor.ones(2)), D.Bernoulli(0.5), D.Beta(1, 1), D.Gamma(1, 1), D.Uniform(0, 1),
      D.Cauchy(0, 1), D.StudentT(3), D.Gumbel(0, 1), D.HalfNormal(1), D.Chi2(2), D.Poisson(3),
      D.Geometric(0.5), D.NegativeBinomial(3, 0.5), D.OneHotCategorical(tensor.ones(3)),
      D.RelaxedBernoulli(1, 0.5), D.Binomial(3, 0.5), D.HalfCauchy(1), D.Pareto(1, 2),
      D.GeneralizedPareto(0, 1, 0.1), D.Weibull(1, 2), D.InverseGamma(1, 2), D.FisherSnedecor(3, 4),
      D.Kumaraswamy(1, 2), D.ContinuousBernoulli(0.3), D.VonMises(0, 1),
      D.LowRankMultivariateNormal(tensor.ones(2), tensor.ones(2, 1), tensor.ones(2)), D.LKJCholesky(2),
      D.LogisticNormal(0, 1),
      D.TransformedDistribution(D.Normal(tensor.zeros(3), 1), D.CorrCholeskyTransform()),
      D.Wishart(2, { scale_tril = tensor.eye(2) }),
      D.ExpRelaxedCategorical(1, tensor.ones(3)),
      D.RelaxedOneHotCategorical(1, tensor.ones(3)), D.OneHotCategoricalStraightThrough(tensor.ones(3)),
      D.MultivariateNormal(tensor.ones(2), { scale_tril = tensor.eye(2) }),
      D.MixtureSameFamily(D.Categorical(tensor.ones(2)), D.Normal(tensor.ones(2), 1)),
      D.TransformedDistribution(D.Normal(0, 1), D.ExpTransform()) } do
      assert.same({ 4 }, other:expand { 4 }.batch_shape)
      assert.equal(4, other:expand { 4 }:sample().shape[1])
    end
  end)

  it("checks its parameters and values unless it is not to", function()
    raises("Normal: expected parameter scale", D.Normal, 0, -1)
    raises("greater than 0", D.Normal, 0, tensor.tensor { 1, 0 })
    raises("found invalid values", D.Beta, -1, 1)
    raises("below high", D.Uniform, 1, 1)
    raises("Bernoulli: expected parameter probs", D.Bernoulli, 1.5)
    raises("either probs or logits", D.Categorical, {})
    raises("at least one dimension", D.Dirichlet, 1)
    raises("must be a number or a tensor", D.Normal, "a", 1)
    raises("floating", D.Normal, tensor.tensor({ 1 }, { dtype = "int64" }), 1)
    raises("to be 0 or 1", D.Bernoulli(0.5).log_prob, D.Bernoulli(0.5), 0.5)
    raises("0 to 2", function() D.Categorical(tensor.ones(3)):log_prob(3) end)
    raises("from low to high", function() D.Uniform(0, 1):log_prob(2) end)
    raises("sum of 3", function() D.Multinomial(3, tensor.ones(2)):log_prob(tensor.ones(2)) end)
    raises("no formula for Normal and Bernoulli", D.kl_divergence, D.Normal(0, 1), D.Bernoulli(0.5))
    raises("exactly one of", D.MultivariateNormal, tensor.ones(2), {})
    raises("symmetric and positive-definite", D.MultivariateNormal, tensor.ones(2),
      { covariance_matrix = -tensor.eye(2) })
    raises("lower-triangular", D.MultivariateNormal, tensor.ones(2), { scale_tril = tensor.ones(2, 2) })
    raises("(.., n, n)", D.MultivariateNormal, tensor.ones(3), { scale_tril = tensor.eye(2) })
    raises("an integer of at least 0", function() D.Poisson(1):log_prob(0.5) end)
    raises("in (0, 1]", D.Geometric, 0)
    raises("Binomial: expected parameter total_count", D.Binomial, 2.5, 0.5)
    raises("Binomial: expected parameter probs", D.Binomial, 2, 1.5)
    raises("from 0 to total_count", function() D.Binomial(3, 0.5):log_prob(4) end)
    raises("all counts are equal", function() D.Binomial(tensor.tensor { 2, 3 }, 0.5):entropy() end)
    raises("fewer trials", D.kl_divergence, D.Binomial(2, 0.5), D.Binomial(3, 0.5))
    raises("at least scale", function() D.Pareto(2, 1):log_prob(1) end)
    raises("Pareto: expected parameter alpha", D.Pareto, 1, 0)
    raises("end of the tail", function() D.GeneralizedPareto(0, 1, -1):log_prob(1.5) end)
    raises("end of the tail", function() D.GeneralizedPareto(0, 1, 1):log_prob(-1) end)
    raises("Weibull: expected the value", function() D.Weibull(1, 1):log_prob(-1) end)
    raises("two numbers", D.ContinuousBernoulli, { probs = 0.5, lims = 3 })
    raises("VonMises: expected parameter concentration", D.VonMises, 0, 0)
    raises("VonMises: there is no rsample", function() D.VonMises(0, 1):rsample() end)
    raises("cov_factor (.., n, m)", D.LowRankMultivariateNormal, tensor.ones(2), tensor.ones(2),
      tensor.ones(2))
    raises("LowRankMultivariateNormal: expected parameter cov_diag", D.LowRankMultivariateNormal,
      tensor.ones(2), tensor.ones(2, 1), tensor.zeros(2))
    raises("dim", D.LKJCholesky, 1)
    raises("rows of length 1", function() D.LKJCholesky(2):log_prob(tensor.ones(2, 2):tril()) end)
    raises("above 1, the rows less 1", D.Wishart, 1, { scale_tril = tensor.eye(2) })
    raises("Wishart: exactly one of", D.Wishart, 3, {})
    raises("symmetric", function()
      D.Wishart(3, { scale_tril = tensor.eye(2) }):log_prob(tensor.ones(2, 2):tril())
    end)
    raises("temperature", D.RelaxedOneHotCategorical, 0, tensor.ones(2))
    raises("in [0, 1)", D.NegativeBinomial, 1, 1)
    raises("a one in each row", function() D.OneHotCategorical(tensor.ones(2)):log_prob(tensor.ones(2)) end)
    raises("has 2 components", D.MixtureSameFamily, D.Categorical(tensor.ones(2)),
      D.Normal(tensor.zeros(3), 1))
    raises("must be a Categorical", D.MixtureSameFamily, D.Normal(0, 1), D.Normal(0, 1))
    raises("there is no cdf", function() D.Beta(1, 1):cdf(1) end)
    assert.equal(-math.huge, D.Uniform(0, 1, { validate_args = false }):log_prob(2):item())
    D.Normal(0, -1, { validate_args = false })
  end)

  it("integrates the densities of Gamma and Chi2", function()
    local x = double { 0.1, 1, 4 }
    near({ 1 - math.exp(-0.3) * 1.3, 1 - math.exp(-3) * 4, 1 - math.exp(-12) * 13 },
      D.Gamma(double { 2 }, 3):cdf(x),
      "Gamma")
    near({ 1 - math.exp(-0.05), 1 - math.exp(-0.5), 1 - math.exp(-2) }, D.Chi2(double { 2 }):cdf(x), "Chi2")
    raises("Gamma: expected the value", function() D.Gamma(1, 1):cdf(-1) end)
  end)

  it("lists the values that can come", function()
    local d = D.Binomial(tensor.tensor({ 2, 2 }, { dtype = "int64" }), 0.5)
    assert.same({ { 0, 0 }, { 1, 1 }, { 2, 2 } }, d:enumerate_support():tolist())
    assert.same({ 3, 1 }, d:enumerate_support(false).shape)
    assert.same({ 0, 1 }, D.Bernoulli(0.5):enumerate_support():tolist())
    assert.same({ { 0 }, { 1 }, { 2 } }, D.Categorical(tensor.ones(4, 3)):enumerate_support(false):tolist())
    local one_hot = D.OneHotCategorical(tensor.ones(4, 2))
    assert.same({ 2, 4, 2 }, one_hot:enumerate_support().shape)
    assert.same({ { 1, 0 }, { 0, 1 } }, one_hot:enumerate_support()[{ {}, 3 }]:tolist())
    raises("there is no enumerate_support", d.enumerate_support, D.Normal(0, 1))
  end)

  it("knows what PyTorch does not: a mode, and divergences where an interval ends at 0 or 1", function()
    near({ math.sqrt(1 / 5) }, D.Kumaraswamy(double { 2 }, 3).mode, "Kumaraswamy")
    near({ "nan", "nan" }, D.Kumaraswamy(double { 0.5, 1 }, double { 3, 1 }).mode, "Kumaraswamy")
    local d, flat = D.ContinuousBernoulli(double { 0.3 }), D.Uniform(double { 0 }, 1)
    near((-d:entropy()):tolist(), D.kl_divergence(d, flat), "to Uniform")
    near(D.kl_divergence(D.Beta(double { 1 }, 1), d):tolist(), D.kl_divergence(flat, d), "from Uniform")
  end)

  it("has one covariance in its forms", function()
    local w, d = double { { 1, 0.3 }, { 0.5, -0.2 }, { 0, 2 } }, double { 0.3, 0.4, 1 }
    local low = D.LowRankMultivariateNormal(double { 1, -2, 0.5 }, w, d)
    local full = w:matmul(w.mT) + d:diag_embed()
    near(full:reshape({ -1 }):tolist(), low.covariance_matrix, "covariance_matrix")
    near(full:reshape({ -1 }):tolist(), low.scale_tril:matmul(low.scale_tril.mT), "scale_tril")
    near(tensor.eye(3):reshape({ -1 }):tolist(), low.precision_matrix:matmul(full), "precision_matrix")
    local other = D.MultivariateNormal(double { 0, 0.5, 1 },
      { covariance_matrix = full * 0.7 + tensor.eye(3) })
    local same = D.MultivariateNormal(low.loc, { covariance_matrix = full })
    near(D.kl_divergence(same, other):view(1):tolist(), D.kl_divergence(low, other), "from low rank")
    near(D.kl_divergence(other, same):view(1):tolist(), D.kl_divergence(other, low), "to low rank")
    local wishart = D.Wishart(4, { precision_matrix = full })
    near(full:reshape({ -1 }):tolist(), wishart.precision_matrix, "of Wishart")
    near(tensor.linalg.inv(full):reshape({ -1 }):tolist(), wishart.covariance_matrix, "of Wishart")
    local batch = D.Wishart(double { 4, 5 }, { precision_matrix = full })
    local each = {}
    for i, df in ipairs { 4, 5 } do
      local one = D.Wishart(df, { precision_matrix = full })
      each[i] = D.kl_divergence(one, D.Wishart(3.5, { covariance_matrix = full })):item()
    end
    near(each, D.kl_divergence(batch, D.Wishart(3.5, { covariance_matrix = full })), "of a batch")
  end)
end)
