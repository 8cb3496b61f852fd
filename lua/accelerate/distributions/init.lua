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
  Beta = "accelerate.distributions.gamma:Beta",
  Dirichlet = "accelerate.distributions.gamma:Dirichlet",
  Bernoulli = "accelerate.distributions.discrete:Bernoulli",
  Categorical = "accelerate.distributions.discrete:Categorical",
  Multinomial = "accelerate.distributions.discrete:Multinomial",
  Independent = "accelerate.distributions.independent",
  kl_divergence = "accelerate.distributions.kl:kl_divergence",
})
