--- Transforms of accelerate.distributions beside PyTorch's values
--- (spec/generators/gen_distributions_reference.py).
local accelerate = require "accelerate"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises
local support = require "spec.support.distributions"

local D = accelerate.distributions
local double, near = support.double, support.near

-- As the generator builds them.
local MADE = {
  softmax = D.SoftmaxTransform(), stick = D.StickBreakingTransform(), one_stick = D.StickBreakingTransform(),
  lower = D.LowerCholeskyTransform(), definite = D.PositiveDefiniteTransform(),
  correlation = D.CorrCholeskyTransform(), two_correlations = D.CorrCholeskyTransform(),
  many_correlations = D.CorrCholeskyTransform(),
  cat = D.CatTransform({ D.ExpTransform(), D.AffineTransform(1, 2) }, -1, { 2, 1 }),
  cat_rows = D.CatTransform { D.ExpTransform(), D.TanhTransform() },
  cat_vectors = D.CatTransform({ D.StickBreakingTransform(), D.StickBreakingTransform() }, -2),
  cat_within = D.CatTransform({ D.IndependentTransform(D.ExpTransform(), 1),
    D.IndependentTransform(D.TanhTransform(), 1) }, -1, { 1, 2 }),
  stack = D.StackTransform({ D.ExpTransform(), D.AffineTransform(1, 2), D.TanhTransform() }, -1),
  stack_rows = D.StackTransform { D.ExpTransform(), D.SigmoidTransform() },
  reshape = D.ReshapeTransform({ 3 }, { 3, 1 }), rows = D.ReshapeTransform({ 2, 2 }, { 4 }),
  independent = D.IndependentTransform(D.TanhTransform(), 1),
  matrix = D.IndependentTransform(D.ExpTransform(), 2),
  cumulative = D.CumulativeDistributionTransform(D.Normal(double(0.5), 2)),
  affine = D.AffineTransform(double { 1, 2, 3 }, double { -0.5, 2, 1 }, 1),
  chain = D.ComposeTransform { D.AffineTransform(1, 2), D.StickBreakingTransform(), D.ExpTransform() },
  folded = D.ComposeTransform { D.ReshapeTransform({ 2, 2 }, { 4 }), D.TanhTransform(),
    D.StickBreakingTransform() },
  one = D.ComposeTransform {},
}

describe("a transform", function()
  for _, case in ipairs(support.reference().transforms) do
    it("has PyTorch's values: " .. case.name, function()
      local t, x = MADE[case.name], double(case.x, true)
      local y = t(x)
      assert.same(case.shape, y.shape)
      near(case.y, y, "y")
      near(case.back, t.inv(y), "back", 1e-8)
      near(case.y, t.inv.inv(x), "inv.inv")
      assert.equal(case.bijective, t.bijective)
      if case.dims then
        assert.same(case.dims, { t.domain_event_dim, t.codomain_event_dim })
        assert.same(case.dims, { t.inv.codomain_event_dim, t.inv.domain_event_dim })
        assert.equal(case.dims[1] == case.dims[2] and case.dims[1] or nil, t.event_dim)
      end
      if case.shapes then
        assert.same(case.shapes, { t:forward_shape(x.shape), t:inverse_shape(y.shape) })
        assert.same(case.shapes, { t.inv:inverse_shape(x.shape), t.inv:forward_shape(y.shape) })
      end
      if case.jacobian then
        local jacobian = t:log_abs_det_jacobian(x, y)
        assert.same(case.jacobian_shape, jacobian.shape)
        near(case.jacobian, jacobian, "log_abs_det_jacobian")
        near((-jacobian):reshape({ -1 }):tolist(), t.inv:log_abs_det_jacobian(y, x), "of the inverse")
      else
        raises("there is no log_abs_det_jacobian", t.log_abs_det_jacobian, t, x, y)
      end
      local total = (y * tensor.arange(1, y:numel() + 1, { dtype = "float64" }):reshape(y.shape)):sum()
      total:backward()
      near(case.gradient, x.grad, "gradient")
    end)
  end

  it("stacks transforms of vectors", function()
    local t = D.StackTransform({ D.StickBreakingTransform(), D.StickBreakingTransform() }, -2)
    local x = double { { 0.3, -1.2, 0.8 }, { 2, 0, -0.5 } }
    local y = t(x)
    assert.same({ 2, 4 }, y.shape)
    assert.same({ 1, 1 }, { t.domain_event_dim, t.codomain_event_dim })
    near(D.StickBreakingTransform():log_abs_det_jacobian(x, y):tolist(), t:log_abs_det_jacobian(x, y),
      "log_abs_det_jacobian")
    local within = D.StackTransform({ D.IndependentTransform(D.ExpTransform(), 1),
      D.IndependentTransform(D.TanhTransform(), 1) }, -1)
    x = double { { 0.3, 0.2 }, { 2, 0 } }
    assert.equal(2, within.event_dim)
    near({ (x[{ {}, 1 }]:sum() + D.TanhTransform():log_abs_det_jacobian(x[{ {}, 2 }], 0):sum()):item() },
      within:log_abs_det_jacobian(x, within(x)), "within")
  end)

  it("says what does not fit", function()
    raises("StickBreakingTransform: expected at least 1 dimensions, got 0", D.StickBreakingTransform(), 1)
    raises("expected at least 2 dimensions", D.LowerCholeskyTransform(), tensor.ones(2))
    raises("got 4", D.CorrCholeskyTransform(), tensor.ones(4))
    raises("square", function() D.CorrCholeskyTransform():inverse_shape { 2, 3 } end)
    raises("has 4 elements, and out_shape 3", D.ReshapeTransform, { 2, 2 }, { 3 })
    raises("to be {2, 2}, got {2, 3}", D.ReshapeTransform({ 2, 2 }, { 4 }), tensor.ones(2, 3))
    raises("expected 2 elements in dimension 1, got 3", D.CatTransform { D.ExpTransform(), D.ExpTransform() },
      tensor.ones(3))
    raises("dim 2 of a tensor of 1", D.StackTransform({ D.ExpTransform() }, 2), tensor.ones(3))
    raises("count from 1", D.StackTransform, { D.ExpTransform() }, 0)
    raises("2 lengths for 1", D.CatTransform, { D.ExpTransform() }, 1, { 1, 2 })
    raises("expected a transform", D.IndependentTransform, 5, 1)
    raises("expected a distribution", D.CumulativeDistributionTransform, 5)
    raises("at least 1 dimensions", D.TransformedDistribution, D.Normal(0, 1), D.StickBreakingTransform())
    raises("sum of 1", function() D.LogisticNormal(0, 1):log_prob(tensor.ones(2)) end)
  end)

  it("draws points of the simplex and factors of correlations", function()
    tensor.manual_seed(4)
    local loc, scale = double({ 0.5, -1 }, true), double { 0.5, 1.5 }
    local d = D.LogisticNormal(loc, scale)
    assert.same({ 3 }, d.event_shape)
    local draws = d:rsample { 20000 }
    near(tensor.ones(20000):tolist(), draws:sum(-1), "sum")
    local back = D.StickBreakingTransform().inv(draws)
    near(loc:tolist(), back:mean(1), "loc", 0.05)
    near(scale:tolist(), back:std(1), "scale", 0.03)
    draws[{ {}, 1 }]:mean():backward()
    assert.is_true(loc.grad[1]:item() > 0.1 and loc.grad[2]:item() == 0)
    assert.same({ 5, 3 }, D.LogisticNormal(loc, scale):expand({ 4 }):sample({ 5 })[{ {}, 1 }].shape)
    local factors = D.TransformedDistribution(D.Normal(double { 0, 0, 0 }, 1), D.CorrCholeskyTransform())
    assert.same({ {}, { 3, 3 } }, { factors.batch_shape, factors.event_shape })
    assert.same({ 7, 2, 3, 3 }, factors:expand({ 2 }):sample({ 7 }).shape)
    D.LKJCholesky(3):log_prob(factors:sample { 50 }) -- which checks them
  end)
end)
