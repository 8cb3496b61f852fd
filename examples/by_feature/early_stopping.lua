-- Early stopping: a rank that sees that it is enough raises a trigger, and all ranks stop at the
-- same step.
--
--   accel-run examples/by_feature/early_stopping.lua
--   accel-run --num_processes 2 examples/by_feature/early_stopping.lua --patience 20
--
-- Stops when the loss has not been below its least for --patience steps, after about 80 steps; the
-- loss falls from about 1.4 to about 0.3.  Options, with their defaults:
--   --max_steps 2000  --batch_size 64 (of each process)  --lr 2e-2  --patience 30
local accelerate = require "accelerate"
local data, nn, optim, tensor, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor,
  accelerate.utils

local options = utils.options.arguments("early_stopping.lua", arg, {
  max_steps = { "integer", default = 2000, min = 1 }, batch_size = { "integer", default = 64, min = 1 },
  lr = { "number", default = 2e-2, above = 0 }, patience = { "integer", default = 30, min = 1 },
})
utils.set_seed(0)

local accelerator = accelerate.Accelerator {}
local x = tensor.randn(4096, 2)
local y = x:select(2, 1):gt(0):long() * 2 + x:select(2, 2):gt(0):long()
local set = data.TensorDataset(x + tensor.randn(4096, 2) * 0.2, y)
local model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr })
local loader = data.DataLoader(set, { batch_size = options.batch_size, shuffle = true })
model, optimizer, loader = accelerator:prepare(model, optimizer, loader)

local step, least, since, stopped = 0, math.huge, 0, false
repeat
  for points, labels in loader:iter() do
    local loss = nn.functional.cross_entropy(model(points), labels)
    accelerator:backward(loss)
    optimizer:step()
    optimizer:zero_grad()
    step = step + 1
    -- each rank looks at its own loss
    since = loss:item() < least and 0 or since + 1
    least = math.min(least, loss:item())
    if since >= options.patience then accelerator:set_trigger() end
    stopped = accelerator:check_trigger() or step == options.max_steps
    if step % 50 == 1 or stopped then accelerator:print(("step %d: loss %.4f"):format(step, loss:item())) end
    if stopped then break end
  end
until stopped
accelerator:print(("stopped after %d steps"):format(step))
