-- Gradient clipping, by norm and then by value, at the batches whose gradients are synchronised.
local accelerate = require "accelerate"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local common = require "spec.dist.loops.common"

return function(length)
  local accelerator = accelerate.Accelerator { gradient_accumulation_steps = 2 }
  local model = common.network()
  local optimizer = optim.SGD(model:parameters(), { lr = 0.2 })
  local training_dataloader = data.DataLoader(common.dataset(length),
    { batch_size = common.GLOBAL_BATCH / accelerator.num_processes })
  model, optimizer, training_dataloader = accelerator:prepare(model, optimizer, training_dataloader)
  local norms = {}
  for _ = 1, common.EPOCHS do
    for input, target in training_dataloader:iter() do
      accelerator:accumulate(model, function()
        accelerator:backward(nn.functional.cross_entropy(model(input), target))
        if accelerator.sync_gradients then
          norms[#norms + 1] = accelerator:clip_grad_norm_(model:parameters(), 0.05, { norm_type = 3 }):item()
          accelerator:clip_grad_value_(model:parameters(), 0.02)
        end
        optimizer:step()
        optimizer:zero_grad()
      end)
    end
  end
  return { values = common.values(model), norms = norms }
end
