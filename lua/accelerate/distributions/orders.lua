--- In which order the constructors of distributions and of transforms take their arguments:
--- PyTorch's. See accelerate.utils.positions for the rule and how an order is written.
local positions = require "accelerate.utils.positions"

local M = {}

local CHECKED = " [validate_args]"
local ODDS = "[probs] [logits]" .. CHECKED
local MATRICES = "[covariance_matrix] [precision_matrix] [scale_tril]" .. CHECKED
local CACHED = " [cache_size]"

local ORDERS = {
  Bernoulli = ODDS,
  Beta = "concentration1 concentration0" .. CHECKED,
  Binomial = "[total_count] " .. ODDS,
  Categorical = ODDS,
  Cauchy = "loc scale" .. CHECKED,
  Chi2 = "df" .. CHECKED,
  ContinuousBernoulli = "[probs] [logits] [lims]" .. CHECKED,
  Dirichlet = "concentration" .. CHECKED,
  ExpRelaxedCategorical = "temperature " .. ODDS,
  Exponential = "rate" .. CHECKED,
  FisherSnedecor = "df1 df2" .. CHECKED,
  Gamma = "concentration rate" .. CHECKED,
  GeneralizedPareto = "loc scale concentration" .. CHECKED,
  Geometric = ODDS,
  Gumbel = "loc scale" .. CHECKED,
  HalfCauchy = "scale" .. CHECKED,
  HalfNormal = "scale" .. CHECKED,
  Independent = "base_distribution reinterpreted_batch_ndims" .. CHECKED,
  InverseGamma = "concentration rate" .. CHECKED,
  Kumaraswamy = "concentration1 concentration0" .. CHECKED,
  LKJCholesky = "dim concentration" .. CHECKED,
  Laplace = "loc scale" .. CHECKED,
  LogNormal = "loc scale" .. CHECKED,
  LogisticNormal = "loc scale" .. CHECKED,
  LowRankMultivariateNormal = "loc cov_factor cov_diag" .. CHECKED,
  MixtureSameFamily = "mixture_distribution component_distribution" .. CHECKED,
  Multinomial = "[total_count] " .. ODDS,
  MultivariateNormal = "loc " .. MATRICES,
  NegativeBinomial = "total_count " .. ODDS,
  Normal = "loc scale" .. CHECKED,
  OneHotCategorical = ODDS,
  OneHotCategoricalStraightThrough = ODDS,
  Pareto = "scale alpha" .. CHECKED,
  Poisson = "rate" .. CHECKED,
  RelaxedBernoulli = "temperature " .. ODDS,
  RelaxedOneHotCategorical = "temperature " .. ODDS,
  StudentT = "df loc scale" .. CHECKED,
  TransformedDistribution = "base_distribution transforms" .. CHECKED,
  Uniform = "low high" .. CHECKED,
  VonMises = "loc concentration" .. CHECKED,
  Weibull = "scale concentration" .. CHECKED,
  Wishart = "df " .. MATRICES,

  AffineTransform = "loc scale [event_dim]" .. CACHED,
  CatTransform = "tseq [dim] [lengths]" .. CACHED,
  ComposeTransform = "parts" .. CACHED,
  CumulativeDistributionTransform = "distribution" .. CACHED,
  IndependentTransform = "base_transform reinterpreted_batch_ndims" .. CACHED,
  PowerTransform = "exponent" .. CACHED,
  ReshapeTransform = "in_shape out_shape" .. CACHED,
  StackTransform = "tseq [dim]" .. CACHED,
  Transform = "[cache_size]",
}

local METHODS = {
  log_prob = "value", cdf = "value", icdf = "value", expand = "batch_shape",
  sample = "[sample_shape]", rsample = "[sample_shape]",
}

--- Makes the methods of a class take their arguments by the rule.
---@param Class table
function M.methods(Class) positions.methods(Class, METHODS) end

--- Makes the constructor and the methods that a class gets later take their arguments by the rule.
---@param Class table
function M.arrange(Class)
  local name = Class.__name
  local order = ORDERS[name]
  local meta = getmetatable(Class)
  local assign = meta.__newindex
  function meta.__newindex(self, key, value)
    if key == "init" and order then value = positions.arrange(name, order, value, true) end
    assign(self, key, value)
    if METHODS[key] then positions.methods(self, { [key] = METHODS[key] }) end
  end
end

--- Returns the arguments of a class's constructor as messages show them, or nil.
---@param name string
---@return string?
function M.shown(name)
  local order = ORDERS[name]
  return order and (order:gsub("%s+", ", "))
end

return M
