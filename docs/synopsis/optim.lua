local nn, optim, tensor = require "accelerate.nn", require "accelerate.optim", require "accelerate.tensor"

local model = nn.Linear(2, 1)
local optimizer = optim.AdamW({ { params = { model.weight } },
  { params = { model.bias }, weight_decay = 0 } }, { lr = 0.05 })
local x = tensor.randn(32, 2)
local y = x:sum({ dim = 2, keepdim = true })
for _ = 1, 100 do
  optimizer:zero_grad()
  nn.functional.mse_loss(model(x), y):backward()
  optimizer:step()
end
print(nn.functional.mse_loss(model(x), y):item())
