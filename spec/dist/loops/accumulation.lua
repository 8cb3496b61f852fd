-- Gradient accumulation: the script is written as if there were none.
local accelerate = require "accelerate"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local common = require "spec.dist.loops.common"

return function(length)
  local accelerator = accelerate.Accelerator { gradient_accumulation_steps = 2 }
  local model = common.network()
  local optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9, weight_decay = 0.01 })
  local scheduler = optim.lr_scheduler.ExponentialLR(optimizer, { gamma = 0.97 })
  local training_dataloader = data.DataLoader(common.dataset(length),
    { batch_size = common.GLOBAL_BATCH / accelerator.num_processes })
  model, optimizer, training_dataloader,
    scheduler = accelerator:prepare(model, optimizer, training_dataloader, scheduler)
  local updates = 0
  for _ = 1, common.EPOCHS do
    for input, label in training_dataloader:iter() do
      accelerator:accumulate(model, function()
        local predictions = model(input)
        local loss = nn.functional.cross_entropy(predictions, label)
        accelerator:backward(loss)
        optimizer:step()
        scheduler:step()
        optimizer:zero_grad()
        if accelerator.sync_gradients then updates = updates + 1 end
      end)
    end
  end
  return { values = common.values(model), updates = updates, rate = scheduler:get_last_lr()[1] }
end
