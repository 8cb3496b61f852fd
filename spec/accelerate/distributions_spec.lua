--- accelerate.distributions beside PyTorch's values (spec/support/gen_distributions_reference.py).
local accelerate = require "accelerate"
local json = require "accelerate.utils.json"
local tensor = require "accelerate.tensor"

local D = accelerate.distributions

local function reference()
  local f = assert(io.open("spec/support/distributions_reference.json"))
  local text = f:read "*a"
  f:close()
  return assert(json.decode(text))
end

local function double(list, requires_grad)
  return tensor.tensor(list, { dtype = "float64", requires_grad = requires_grad })
end

-- The distribution of a case, and its parameters.
local POSITIONAL = { Normal = { "loc", "scale" }, LogNormal = { "loc", "scale" },
  Laplace = { "loc", "scale" },
  Uniform = { "low", "high" }, Exponential = { "rate" }, Gamma = { "concentration", "rate" },
  Beta = { "concentration1", "concentration0" }, Dirichlet = { "concentration" } }

local function build(name, parameters, grad)
  local tensors, list = {}, {}
  for key, value in pairs(parameters) do tensors[key] = double(value, grad) end
  for i, key in ipairs(POSITIONAL[name] or {}) do list[i] = tensors[key] end
  if POSITIONAL[name] then return D[name](unpack(list)), tensors end
  local opts = { probs = tensors.probs, logits = tensors.logits }
  if name == "Multinomial" then return D.Multinomial(5, opts), tensors end
  return D[name](opts), tensors
end

local function near(wanted, got, what, tolerance)
  local list = got:detach():reshape({ -1 }):tolist()
  assert.equal(#wanted, #list, what)
  for i, value in ipairs(wanted) do
    local scale = math.max(1, math.abs(value == "inf" and 1 or value))
    if value == "inf" then assert.equal(math.huge, list[i], what)
    elseif math.abs(list[i] - value) > (tolerance or 1e-9) * scale then
      error(("%s[%d]: %.12g, expected %.12g"):format(what, i, list[i], value), 0)
    end
  end
end

local function raises(words, fn, ...)
  local ok, why = pcall(fn, ...)
  assert.is_false(ok)
  assert.is_truthy(tostring(why):find(words, 1, true), tostring(why))
end

describe("a distribution", function()
  for number, case in ipairs(reference()) do
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
      for _, name in ipairs { "mean", "variance" } do
        if case[name] then near(case[name], d[name], name) end
      end
      if case.variance then near(case.variance, d.stddev * d.stddev, "stddev") end
      if case.entropy then
        near(case.entropy, d:entropy(), "entropy")
        near(d:entropy():exp():detach():reshape({ -1 }):tolist(), d:perplexity(), "perplexity")
      end
      if case.cdf then
        near(case.cdf, d:cdf(value), "cdf")
        near(case.icdf, d:icdf(double(case.p)), "icdf", 1e-7)
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
      local mean, variance = d.mean, d.variance
      if case.name == "Categorical" then
        local classes = tensor.arange(3):to "float64"
        mean = (d.probs * classes):sum(-1)
        variance = (d.probs * classes * classes):sum(-1) - mean * mean
        assert.equal("int64", draws.dtype)
        draws = draws:to "float64"
      end
      -- five standard errors of the mean
      local error_of_mean = (variance / n):sqrt():detach() * 5 + 1e-12
      assert.is_true((draws:mean(1) - mean:detach()):abs():le(error_of_mean):all():item(), "mean")
      if case.name ~= "LogNormal" then
        local spread = draws:var(1):reshape({ -1 }):tolist()
        for i, v in ipairs(variance:detach():reshape({ -1 }):tolist()) do
          assert.is_true(math.abs(spread[i] - v) <= 0.12 * v + 1e-6,
            ("variance %g, expected %g"):format(spread[i], v))
        end
      end
    end)
  end

  it("passes gradients through rsample where it can", function()
    for name, at in pairs { Normal = { 0.5, 2 }, Laplace = { 0.5, 2 }, Uniform = { -1, 3 },
      Exponential = { 2 },
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
    raises("Gamma: there is no rsample", D.Gamma(1, 1).rsample, D.Gamma(1, 1))
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
      D.Multinomial(3, tensor.ones(2)), D.Bernoulli(0.5), D.Beta(1, 1), D.Gamma(1, 1), D.Uniform(0, 1) } do
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
    raises("no formula for Normal and Beta", D.kl_divergence, D.Normal(0, 1), D.Beta(1, 1))
    raises("there is no cdf", function() D.Gamma(1, 1):cdf(1) end)
    assert.equal(-math.huge, D.Uniform(0, 1, { validate_args = false }):log_prob(2):item())
    D.Normal(0, -1, { validate_args = false })
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
