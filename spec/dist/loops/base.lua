-- The base training loop, before anything is changed: one process, plain objects.
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local common = require "spec.dist.loops.common"

return function(length)
  local device = "cpu"
  local model = common.network()
  model:to(device)
  local optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
  local scheduler = optim.lr_scheduler.ExponentialLR(optimizer, { gamma = 0.97 })
  local training_dataloader = data.DataLoader(common.dataset(length), { batch_size = common.GLOBAL_BATCH })
  local loss_function = nn.CrossEntropyLoss()

  for _ = 1, common.EPOCHS do
    for inputs, targets in training_dataloader:iter() do
      optimizer:zero_grad()
      inputs = inputs:to(device)
      targets = targets:to(device)
      local outputs = model(inputs)
      local loss = loss_function(outputs, targets)
      loss:backward()
      optimizer:step()
      scheduler:step()
    end
  end
  return { values = common.values(model) }
end
