-- The base loop with Accelerate: an Accelerator, prepare, and accelerator:backward.
local accelerate = require "accelerate"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local common = require "spec.dist.loops.common"

return function(length)
  local accelerator = accelerate.Accelerator()
  local device = accelerator.device
  local model = common.network()
  model:to(device)
  local optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
  local scheduler = optim.lr_scheduler.ExponentialLR(optimizer, { gamma = 0.97 })
  local training_dataloader = data.DataLoader(common.dataset(length),
    { batch_size = common.GLOBAL_BATCH / accelerator.num_processes })
  local loss_function = nn.CrossEntropyLoss()

  model, optimizer, training_dataloader,
    scheduler = accelerator:prepare(model, optimizer, training_dataloader, scheduler)
  -- what is computed from the length comes after prepare
  local steps = common.EPOCHS * training_dataloader:len()

  for _ = 1, common.EPOCHS do
    for inputs, targets in training_dataloader:iter() do
      optimizer:zero_grad()
      local outputs = model(inputs)
      local loss = loss_function(outputs, targets)
      accelerator:backward(loss)
      optimizer:step()
      scheduler:step()
    end
  end
  return { values = common.values(model), steps = steps, rate = scheduler:get_last_lr()[1],
    total = training_dataloader.total_batch_size }
end
