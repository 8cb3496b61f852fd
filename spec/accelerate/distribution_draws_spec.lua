--- Draws of accelerate.distributions: how often what comes, and how draws move with parameters.
local accelerate = require "accelerate"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises
local support = require "spec.support.distributions"

local D = accelerate.distributions
local double, near, reference = support.double, support.near, support.reference

describe("a distribution", function()
  it("passes gradients through rsample where it can", function()
    for name, at in pairs { Normal = { 0.5, 2 }, Laplace = { 0.5, 2 }, Uniform = { -1, 3 },
      Exponential = { 2 }, HalfCauchy = { 2 }, Pareto = { 0.5, 3 }, Weibull = { 2, 1.5 },
      GeneralizedPareto = { 1, 2, -0.3 }, Kumaraswamy = { 2, 3 }, ContinuousBernoulli = { 0.3 },
      LogNormal = { 0.1, 0.4 } } do
      local parameters = {}
      for i, value in ipairs(at) do parameters[i] = double(value, true) end
      local function run(list)
        tensor.manual_seed(3)
        return D[name](unpack(list)):rsample({ 50 }):sum()
      end
      run(parameters):backward()
      for i, value in ipairs(at) do
        local step, sides = 1e-6, {}
        for side, sign in ipairs { 1, -1 } do
          local moved = { unpack(parameters) }
          moved[i] = double(value + sign * step)
          sides[side] = run(moved):item()
        end
        local slope = (sides[1] - sides[2]) / (2 * step)
        assert.is_true(math.abs(slope - parameters[i].grad:item()) < 1e-5 * math.max(1, math.abs(slope)),
          name)
      end
    end
    raises("Poisson: there is no rsample", D.Poisson(1).rsample, D.Poisson(1))
  end)

  it("moves draws of gamma variables with the concentration", function()
    local gamma = require "accelerate.distributions.gamma"
    for _, case in ipairs(reference().gamma) do
      local got = gamma.slope(double { case.a }, double { case.z }):item()
      -- PyTorch's own approximations are right to 1e-3
      assert.is_true(math.abs(got / case.slope - 1) < 2e-3,
        ("concentration %g, draw %g: %g, PyTorch %g"):format(case.a, case.z, got, case.slope))
      if case.a <= 40 then -- how the distribution function moves, over the density
        local function below(a)
          local term, sum, n = 1, 1, 0
          while term > sum * 1e-17 do
            n = n + 1
            term = term * case.z / (a + n)
            sum = sum + term
          end
          local log = double({ a + 1 }):lgamma():item()
          return sum * math.exp(a * math.log(case.z) - case.z - log)
        end
        local step = 1e-5 * case.a
        local density = math.exp(D.Gamma(double { case.a }, 1):log_prob(double { case.z }):item())
        local slope = -(below(case.a + step) - below(case.a - step)) / (2 * step) / density
        assert.is_true(math.abs(got / slope - 1) < 1e-6, ("%g and %g"):format(got, slope))
      end
    end
  end)

  it("passes gradients through draws of gamma, beta, Dirichlet and t variables", function()
    -- E z = a / r of a gamma variable, a / (a + b) of a beta variable
    tensor.manual_seed(2)
    local n = 20000
    local function slopes(name, at, of)
      local parameters = {}
      for i, value in ipairs(at) do parameters[i] = double(value, true) end
      of(D[name](unpack(parameters)):rsample { n }):backward()
      for i, p in ipairs(parameters) do parameters[i] = p.grad end
      return unpack(parameters)
    end
    local function mean(x) return x:mean() end
    local a, r = slopes("Gamma", { 2.5, 2 }, mean)
    near({ 0.5, -0.625 }, tensor.stack({ a, r }), "Gamma", 0.02)
    a, r = slopes("Beta", { 2, 3 }, mean)
    near({ 3 / 25, -2 / 25 }, tensor.stack({ a, r }), "Beta", 0.01)
    a = slopes("Dirichlet", { { 1, 2, 3 } }, function(x) return x:mean(1)[3] end)
    near({ -3 / 36, -3 / 36, 3 / 36 }, a, "Dirichlet", 0.01)
    -- the variance df / (df - 2) of a t variable
    a = slopes("StudentT", { 12, 0, 1 }, function(x) return (x * x):mean() end)
    near({ -0.02 }, a:view(1), "StudentT", 0.02)
  end)

  it("draws binomial counts in the range, of many trials and of few", function()
    tensor.manual_seed(4)
    local counts = double { 0, 1, 7, 60, 1e6 }
    for _, p in ipairs { 0, 0.02, 0.3, 0.9, 1 } do
      local d = D.Binomial(counts, p)
      local draws = d:sample { 20000 }
      assert.is_true(draws:ge(0):all():item() and draws:le(counts):all():item())
      local away = (draws:mean(1) - d.mean):abs()
      assert.is_true(away:le((d.variance / 20000):sqrt() * 5):all():item(), "mean for " .. p)
      for k = 0, 7 do -- how often each count comes of 7 trials
        local chance = d:log_prob(double { 0, 0, k, 0, 0 })[3]:exp():item()
        local found = draws[{ {}, 3 }]:eq(k):to("float64"):mean():item()
        assert.is_true(math.abs(found - chance) < 0.02, k .. " of 7 for " .. p)
      end
    end
    local d = D.Binomial(100, double(0.5)) -- by rejection
    local draws = d:sample { 40000 }
    for k = 35, 65 do
      local found = draws:eq(k):to("float64"):mean():item()
      local chance = d:log_prob(k):exp():item()
      assert.is_true(math.abs(found - chance) < 5 * math.sqrt(chance / 40000), k)
    end
  end)

  it("draws angles around a direction", function()
    tensor.manual_seed(4)
    local d = D.VonMises(double { 0.5, -1, 3, 0 }, double { 1e-6, 0.8, 4, 500 })
    local draws = d:sample { 20000 }
    assert.is_true(draws:abs():le(math.pi):all():item())
    -- the mean of the cosine, 0.5 k at a low concentration k
    local cosine, sine = (draws - d.loc):cos():mean(1), (draws - d.loc):sin():mean(1)
    near((1 - d.variance):tolist(), cosine, "cosine", 0.02)
    near({ 0, 0, 0, 0 }, sine, "sine", 0.02)
    assert.is_true(math.abs(draws[{ {}, 4 }]:var():item() * 500 - 1) < 0.05)
    near({ 0.5 }, D.VonMises(double { 0.5 }, 1e300):sample(), "at a point")
    near({ "nan" }, D.VonMises(double { 0.5 }, 0 / 0, { validate_args = false }):sample(), "nan")
  end)

  it("moves draws of InverseGamma and FisherSnedecor with their parameters", function()
    tensor.manual_seed(2)
    local a, rate = double(4, true), double(3, true) -- the mean rate / (a - 1)
    local total = D.InverseGamma(a, rate):rsample({ 40000 }):mean()
    total:backward()
    near({ -1 / 3, 1 / 3 }, tensor.stack { a.grad, rate.grad }, "InverseGamma", 0.02)
    local df1, df2 = double(5, true), double(12, true) -- the mean df2 / (df2 - 2)
    total = D.FisherSnedecor(df1, df2):rsample({ 40000 }):mean()
    total:backward()
    near({ 0, -0.02 }, tensor.stack { df1.grad, df2.grad }, "FisherSnedecor", 0.005)
    local d = D.GeneralizedPareto(0, 2, double(0.3))
    near({ d:cdf(1.5):log():item() }, d:log_cdf(1.5):view(1), "log_cdf")
    near({ math.log(1 - d:cdf(1.5):item()) }, d:log_survival_function(1.5):view(1), "log_survival_function")
  end)

  it("draws factors of correlations, and matrices whose gradients are right", function()
    tensor.manual_seed(4)
    for _, concentration in ipairs { 0.7, 1, 5 } do
      local d = D.LKJCholesky(4, double(concentration))
      local factor = d:sample { 20000 }
      d:log_prob(factor) -- which checks them
      local correlation = factor:matmul(factor.mT)
      near(tensor.eye(4):reshape({ -1 }):tolist(), correlation:mean(1), "mean", 0.03)
      local spread = 1 / (2 * concentration + 3) -- of 2 b - 1, of a beta variable b
      local wanted = spread * (1 - tensor.eye(4))
      near(wanted:reshape({ -1 }):tolist(), correlation:var(1), "variance", 0.01)
    end
    local df, l = double(6, true), double({ { 1, 0 }, { 0.5, 2 } }, true) -- the mean df l l^T
    local total = D.Wishart(df, { scale_tril = l }):rsample({ 40000 }):mean(1):sum()
    total:backward()
    near({ 6.25 }, df.grad:view(1), "df", 0.02)
    near({ 18, 0, 18, 24 }, l.grad:tril(), "scale_tril", 0.02)
  end)

  it("draws classes with gradients", function()
    tensor.manual_seed(4)
    local logits = double({ 0.5, 1, -1 }, true)
    local weights = double { 1, 2, 3 }
    local d = D.OneHotCategoricalStraightThrough { logits = logits }
    local draws = d:rsample { 5 }
    near({ 1, 1, 1, 1, 1 }, draws:amax(-1), "one")
    near({ 1, 1, 1, 1, 1 }, draws:sum(-1), "and zeros")
    local total = (draws * weights):sum()
    total:backward()
    local p = logits:detach():softmax(-1)
    near((5 * p * (weights - (p * weights):sum())):tolist(), logits.grad, "as the probabilities'")

    -- the largest part of a relaxed draw is at a class as often as the class comes
    local relaxed = D.RelaxedOneHotCategorical(0.5, { logits = logits }):rsample { 20000 }
    near(tensor.ones(20000):tolist(), relaxed:sum(-1), "on the simplex", 1e-12)
    local often = tensor.one_hot(relaxed:argmax(-1), 3):to("float64"):mean(1)
    near(p:tolist(), often, "how often", 0.015)
    logits.grad = nil
    relaxed[{ {}, 1 }]:sum():backward()
    assert.is_true(logits.grad[1]:item() > 0 and logits.grad[2]:item() < 0)
    local log = D.ExpRelaxedCategorical(0.5, { logits = logits })
    tensor.manual_seed(9)
    local x = log:sample()
    tensor.manual_seed(9)
    near(x:exp():tolist(), D.RelaxedOneHotCategorical(0.5, { logits = logits }):sample(), "exp")
  end)

  it("is the same draws for a seed", function()
    for _, d in ipairs { D.Gamma(0.5, 1), D.Categorical(tensor.ones(5)), D.Dirichlet(tensor.ones(3)) } do
      tensor.manual_seed(5)
      local first = d:sample { 7 }
      tensor.manual_seed(5)
      assert.same(first:tolist(), d:sample({ 7 }):tolist())
    end
  end)
end)
