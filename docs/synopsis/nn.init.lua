local nn = require "accelerate.nn"

local layer = nn.Linear(128, 64)
nn.init.kaiming_normal_(layer.weight, { nonlinearity = "relu" })
nn.init.zeros_(layer.bias)
print(layer.weight:std():item())
