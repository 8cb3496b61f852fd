-- The migrated loop with split_batches and shuffled data: the batch size stays what the script says
-- on any number of ranks.
local accelerate = require "accelerate"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local common = require "spec.dist.loops.common"

return function(length)
  local accelerator = accelerate.Accelerator { split_batches = true }
  accelerate.utils.set_seed(11)
  local model = common.network()
  local optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
  local scheduler = optim.lr_scheduler.ExponentialLR(optimizer, { gamma = 0.97 })
  accelerate.utils.set_seed(11)
  local training_dataloader = data.DataLoader(common.dataset(length),
    { batch_size = common.GLOBAL_BATCH, shuffle = true })
  model, optimizer, training_dataloader,
    scheduler = accelerator:prepare(model, optimizer, training_dataloader, scheduler)
  local orders = {}
  for epoch = 1, common.EPOCHS do
    orders[epoch] = {}
    for inputs, targets, rows in training_dataloader:iter() do
      optimizer:zero_grad()
      accelerator:backward(nn.functional.cross_entropy(model(inputs), targets))
      optimizer:step()
      scheduler:step()
      for _, row in ipairs(accelerator:gather_for_metrics(rows):totable()) do
        table.insert(orders[epoch], row)
      end
    end
  end
  return { values = common.values(model), orders = orders, rate = scheduler:get_last_lr()[1] }
end
