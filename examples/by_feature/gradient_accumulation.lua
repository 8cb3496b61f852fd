-- Gradient accumulation: an optimizer step after every four batches, with the gradients of a batch
-- four times as large.
--
--   accel-run examples/by_feature/gradient_accumulation.lua
--   accel-run --num_processes 2 examples/by_feature/gradient_accumulation.lua --accumulate 8
--
-- `accelerator:accumulate(model, fn)` divides the loss, leaves gradients of ranks apart until the
-- last batch of a window, and lets optimizer and scheduler step only then.  The task is which
-- quarter of the plane a noisy point came from; the loss falls from about 1.4 to below 0.4.
-- Options, with their defaults:
--   --max_steps 300 (batches)  --batch_size 16 (of each process)  --accumulate 4  --lr 2e-2
local accelerate = require "accelerate"
local data, nn, optim, tensor, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor,
  accelerate.utils

local options = utils.options.arguments("gradient_accumulation.lua", arg, {
  max_steps = { "integer", default = 300, min = 1 }, batch_size = { "integer", default = 16, min = 1 },
  accumulate = { "integer", default = 4, min = 1 }, lr = { "number", default = 2e-2, above = 0 },
})
utils.set_seed(0)

local accelerator = accelerate.Accelerator { gradient_accumulation_steps = options.accumulate }
local x = tensor.randn(4096, 2)
local y = x:select(2, 1):gt(0):long() * 2 + x:select(2, 2):gt(0):long()
local set = data.TensorDataset(x + tensor.randn(4096, 2) * 0.2, y)
local model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr })
local loader = data.DataLoader(set, { batch_size = options.batch_size, shuffle = true })
model, optimizer, loader = accelerator:prepare(model, optimizer, loader)

local step, updates = 0, 0
repeat
  for points, labels in loader:iter() do
    accelerator:accumulate(model, function()
      local loss = nn.functional.cross_entropy(model(points), labels)
      accelerator:backward(loss)
      optimizer:step()
      optimizer:zero_grad()
      step = step + 1
      if accelerator.sync_gradients then updates = updates + 1 end
      if step == 1 or step % 50 == 0 or step == options.max_steps then
        accelerator:print(("batch %d, update %d: loss %.4f"):format(step, updates, loss:item()))
      end
    end)
    if step == options.max_steps then break end
  end
until step == options.max_steps
