-- A trigger: one rank sees a reason to stop, and all stop at the same step.
local accelerate = require "accelerate"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local common = require "spec.dist.loops.common"

return function(length)
  local accelerator = accelerate.Accelerator()
  local model = common.network()
  local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
  local training_dataloader = data.DataLoader(common.dataset(length),
    { batch_size = common.GLOBAL_BATCH / accelerator.num_processes })
  model, optimizer, training_dataloader = accelerator:prepare(model, optimizer, training_dataloader)
  local function should_stop(rows) return rows:eq(41):any():item() end
  local steps, stopped = 0, false
  for _ = 1, common.EPOCHS do
    for input, target, rows in training_dataloader:iter() do
      optimizer:zero_grad()
      accelerator:backward(nn.functional.cross_entropy(model(input), target))
      optimizer:step()
      steps = steps + 1
      if should_stop(rows) then accelerator:set_trigger() end
      if accelerator:check_trigger() then
        stopped = true
        break
      end
    end
    if stopped then break end
  end
  if accelerator:check_trigger() then error "the flag outlived the check" end
  return { values = common.values(model), steps = steps }
end
