-- Mixed precision: the forward pass in bfloat16, the loss in accelerator:autocast, and no scheduler
-- step where the optimizer's was skipped.
local accelerate = require "accelerate"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local common = require "spec.dist.loops.common"

return function(length)
  local accelerator = accelerate.Accelerator { mixed_precision = "bf16" }
  local model = common.network()
  -- Each rank rounds gradients of its own mean to bfloat16, and thirds round otherwise than wholes:
  -- the rate keeps that below 1e-5.
  local optimizer = optim.SGD(model:parameters(), { lr = 0.005 })
  -- not prepared: one move for each step, by hand
  local scheduler = optim.lr_scheduler.ExponentialLR(optimizer, { gamma = 0.97 })
  local training_dataloader = data.DataLoader(common.dataset(length),
    { batch_size = common.GLOBAL_BATCH / accelerator.num_processes })
  model, optimizer, training_dataloader = accelerator:prepare(model, optimizer, training_dataloader)
  local loss_function, kinds = nn.CrossEntropyLoss(), {}
  for _ = 1, common.EPOCHS do
    for input, target in training_dataloader:iter() do
      optimizer:zero_grad()
      local output = model(input)
      local loss = accelerator:autocast(function() return loss_function(output, target) end)
      kinds[output.dtype .. " " .. loss.dtype] = true
      accelerator:backward(loss)
      optimizer:step()
      if not accelerator.optimizer_step_was_skipped then scheduler:step() end
    end
  end
  return { values = common.values(model), rate = scheduler:get_last_lr()[1], kinds = next(kinds) }
end
