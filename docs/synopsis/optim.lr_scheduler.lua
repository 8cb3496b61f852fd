local nn, optim, tensor = require "accelerate.nn", require "accelerate.optim", require "accelerate.tensor"

local model = nn.Linear(2, 1)
local optimizer = optim.SGD(model:parameters(), { lr = 1 })
local scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, { T_max = 4 })
for _ = 1, 4 do
  model(tensor.ones(1, 2)):sum():backward()
  optimizer:step()
  scheduler:step()
  print(("%.3f"):format(scheduler:get_last_lr()[1]))
end
