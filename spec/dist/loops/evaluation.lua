-- Distributed evaluation: every rank predicts its share, gather_for_metrics puts the answers
-- together.
local accelerate = require "accelerate"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local common = require "spec.dist.loops.common"

return function(length)
  local accelerator = accelerate.Accelerator()
  local batch_size = common.GLOBAL_BATCH / accelerator.num_processes
  local model = common.network()
  local optimizer = optim.AdamW(model:parameters(), { lr = 0.01 })
  local training_dataloader = data.DataLoader(common.dataset(60), { batch_size = batch_size })
  local validation_dataloader = data.DataLoader(common.dataset(length), { batch_size = batch_size })
  model, optimizer, training_dataloader, validation_dataloader =
    accelerator:prepare(model, optimizer, training_dataloader, validation_dataloader)

  local accuracy, seen, order, losses = {}, {}, {}, {}
  for epoch = 1, common.EPOCHS do
    model:train()
    for inputs, targets in training_dataloader:iter() do
      accelerator:backward(nn.functional.cross_entropy(model(inputs), targets))
      optimizer:step()
      optimizer:zero_grad()
    end
    model:eval()
    local right, count, sum = 0, 0, 0
    for inputs, targets, rows in validation_dataloader:iter() do
      local predictions = accelerate.tensor.no_grad(function() return model(inputs) end)
      local each = nn.functional.cross_entropy(predictions, targets, { reduction = "none" })
      -- gather all predictions and targets, without what was added to fill the last batches
      local all = accelerator:gather_for_metrics { predictions:argmax { dim = -1 }, targets, each, rows }
      right = right + all[1]:eq(all[2]):sum():item()
      sum = sum + all[3]:sum():item()
      count = count + all[2]:size(1)
      if epoch == 1 then
        for _, row in ipairs(all[4]:totable()) do order[#order + 1] = row end
      end
    end
    accuracy[epoch], seen[epoch], losses[epoch] = right / count, count, sum / count
  end
  return { values = common.values(model), accuracy = accuracy, seen = seen, order = order, losses = losses }
end
