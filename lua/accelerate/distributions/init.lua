--- accelerate.distributions: probability distributions with PyTorch's names and values.
---
---   local distributions = require "accelerate.distributions"
---   local policy = distributions.Categorical { logits = model(state) }
---   local action = policy:sample()
---   local loss = -(policy:log_prob(action) * advantage):mean() - 0.01 * policy:entropy():mean()
return require("accelerate.utils.properties").lazy("accelerate.distributions", {
  Distribution = "accelerate.distributions.base:Distribution",
  Normal = "accelerate.distributions.continuous:Normal",
  LogNormal = "accelerate.distributions.continuous:LogNormal",
  Laplace = "accelerate.distributions.continuous:Laplace",
  Uniform = "accelerate.distributions.continuous:Uniform",
  Exponential = "accelerate.distributions.continuous:Exponential",
  Gamma = "accelerate.distributions.gamma:Gamma",
  Chi2 = "accelerate.distributions.gamma:Chi2",
  Beta = "accelerate.distributions.gamma:Beta",
  Dirichlet = "accelerate.distributions.gamma:Dirichlet",
  Bernoulli = "accelerate.distributions.discrete:Bernoulli",
  Categorical = "accelerate.distributions.discrete:Categorical",
  Multinomial = "accelerate.distributions.discrete:Multinomial",
  Cauchy = "accelerate.distributions.location:Cauchy",
  StudentT = "accelerate.distributions.location:StudentT",
  Gumbel = "accelerate.distributions.location:Gumbel",
  HalfNormal = "accelerate.distributions.location:HalfNormal",
  Poisson = "accelerate.distributions.counts:Poisson",
  Geometric = "accelerate.distributions.counts:Geometric",
  NegativeBinomial = "accelerate.distributions.counts:NegativeBinomial",
  OneHotCategorical = "accelerate.distributions.composed:OneHotCategorical",
  RelaxedBernoulli = "accelerate.distributions.composed:RelaxedBernoulli",
  MixtureSameFamily = "accelerate.distributions.composed:MixtureSameFamily",
  Transform = "accelerate.distributions.transforms:Transform",
  AffineTransform = "accelerate.distributions.transforms:AffineTransform",
  ExpTransform = "accelerate.distributions.transforms:ExpTransform",
  SigmoidTransform = "accelerate.distributions.transforms:SigmoidTransform",
  TanhTransform = "accelerate.distributions.transforms:TanhTransform",
  SoftplusTransform = "accelerate.distributions.transforms:SoftplusTransform",
  PowerTransform = "accelerate.distributions.transforms:PowerTransform",
  AbsTransform = "accelerate.distributions.transforms:AbsTransform",
  ComposeTransform = "accelerate.distributions.transforms:ComposeTransform",
  MultivariateNormal = "accelerate.distributions.multivariate",
  TransformedDistribution = "accelerate.distributions.transformed",
  Independent = "accelerate.distributions.independent",
  kl_divergence = "accelerate.distributions.kl:kl_divergence",
})
