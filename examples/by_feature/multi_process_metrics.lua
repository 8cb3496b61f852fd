-- Metrics over all ranks: predictions are gathered, and what was added to fill up the last batch is
-- cut off, so that every sample counts once.
--
--   accel-run examples/by_feature/multi_process_metrics.lua
--   accel-run --num_processes 2 examples/by_feature/multi_process_metrics.lua
--
-- The test set has 1001 points, which no number of ranks divides; the last line is `1001 samples,
-- accuracy 0.xxxx`, about 0.97, and the same on any number of ranks for the same weights.  Options,
-- with their defaults:
--   --max_steps 200  --batch_size 32 (of each process)  --lr 2e-2
local accelerate = require "accelerate"
local data, nn, optim, tensor, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor,
  accelerate.utils

local options = utils.options.arguments("multi_process_metrics.lua", arg, {
  max_steps = { "integer", default = 200, min = 1 }, batch_size = { "integer", default = 32, min = 1 },
  lr = { "number", default = 2e-2, above = 0 },
})
utils.set_seed(0)

local accelerator = accelerate.Accelerator {}
local function points_of(count)
  local x = tensor.randn(count, 2)
  return data.TensorDataset(x, x:select(2, 1):gt(0):long() * 2 + x:select(2, 2):gt(0):long())
end
local model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr })
local train = data.DataLoader(points_of(4096), { batch_size = options.batch_size, shuffle = true })
local test = data.DataLoader(points_of(1001), { batch_size = 64 })
model, optimizer, train, test = accelerator:prepare(model, optimizer, train, test)

local step = 0
repeat
  for points, labels in train:iter() do
    local loss = nn.functional.cross_entropy(model(points), labels)
    accelerator:backward(loss)
    optimizer:step()
    optimizer:zero_grad()
    step = step + 1
    if step % 50 == 1 or step == options.max_steps then
      accelerator:print(("step %d: loss %.4f"):format(step, loss:item()))
    end
    if step == options.max_steps then break end
  end
until step == options.max_steps

local metric, seen = accelerate.metrics.load "accuracy", 0
model:eval()
tensor.no_grad(function()
  for points, labels in test:iter() do
    local predictions, references = unpack(accelerator:gather_for_metrics { model(points):argmax(2), labels })
    metric:add_batch(predictions, references)
    seen = seen + references:numel()
  end
end)
accelerator:print(("%d samples, accuracy %.4f"):format(seen, metric:compute().accuracy))
