local nn, tensor = require "accelerate.nn", require "accelerate.tensor"

local layer = nn.Linear(4, 4)
layer(tensor.randn(2, 4)):sum():backward()
print(nn.utils.clip_grad_norm_(layer:parameters(), 1.0):item())  -- the norm before
print(nn.utils.parameters_to_vector(layer:parameters()):numel())
