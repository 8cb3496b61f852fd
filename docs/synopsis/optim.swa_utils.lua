local nn, optim, tensor = require "accelerate.nn", require "accelerate.optim", require "accelerate.tensor"

local model = nn.Linear(2, 1)
local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
local ema = optim.swa_utils.AveragedModel(model, { multi_avg_fn = optim.swa_utils.get_ema_multi_avg_fn(0.9) })
for _ = 1, 4 do
  optimizer:zero_grad()
  model(tensor.ones(1, 2)):sum():backward()
  optimizer:step()
  ema:update_parameters(model)
end
print(ema(tensor.ones(1, 2)).shape[1], ema.n_averaged:item())
