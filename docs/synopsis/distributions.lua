local distributions = require "accelerate.distributions"
local tensor = require "accelerate.tensor"

local logits = tensor.zeros({ 4, 3 }, { requires_grad = true })
local policy = distributions.Categorical { logits = logits }
local action = policy:sample()
local loss = -(policy:log_prob(action)):mean() - 0.01 * policy:entropy():mean()
loss:backward()
print(logits.grad:dim(), distributions.kl_divergence(policy, policy):sum():item())
