-- Deferred execution: the others wait until the main process has made what all need, and saving
-- waits until all are through.
local accelerate = require "accelerate"
local fs = require "accelerate.utils.fs"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local common = require "spec.dist.loops.common"

return function(length, folder)
  local accelerator = accelerate.Accelerator()
  local note = ("%s/prepared_%d"):format(folder, length)
  local found = accelerator:main_process_first(function()
    local there = fs.exists(note)
    if accelerator.is_main_process then fs.write(note, "rows") end
    return there
  end)
  if found == accelerator.is_main_process then
    error(("rank %d came %s the main process"):format(accelerator.process_index, found and "after"
      or "before"))
  end

  local model = common.network()
  local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
  local training_dataloader = data.DataLoader(common.dataset(length),
    { batch_size = common.GLOBAL_BATCH / accelerator.num_processes })
  model, optimizer, training_dataloader = accelerator:prepare(model, optimizer, training_dataloader)
  for _ = 1, common.EPOCHS do
    for input, target in training_dataloader:iter() do
      optimizer:zero_grad()
      accelerator:backward(nn.functional.cross_entropy(model(input), target))
      optimizer:step()
    end
  end

  local path = ("%s/model_%d_%d"):format(folder, length, accelerator.num_processes)
  accelerator:wait_for_everyone()
  local unwrapped = accelerator:unwrap_model(model)
  accelerator:save_model(unwrapped, path)
  accelerator:wait_for_everyone()
  local other = common.network()
  accelerate.load_checkpoint_in_model(accelerator:unwrap_model(other), path, { strict = true })
  return { values = common.values(other) }
end
