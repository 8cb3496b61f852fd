-- Schedule-free training: AdamWScheduleFree needs no learning rate schedule and no number of steps.
--
--   accel-run examples/by_feature/schedule_free.lua
--   accel-run --num_processes 2 examples/by_feature/schedule_free.lua --lr 0.01
--
-- The optimizer has two modes: gradients are taken at one point, and the mean of the points so far
-- is what is evaluated and saved. optimizer:train() and optimizer:eval() switch, wherever the model
-- switches. Learns which quarter of the plane a noisy point came from; the loss falls from about
-- 1.5 to about 0.3, and the last line is the share of new points that are right, about 0.89.
-- Options, with their defaults:
--   --max_steps 200  --batch_size 64 (of each process)  --lr 2e-2  --warmup_steps 20
local accelerate = require "accelerate"
local data, metrics, nn, optim = accelerate.data, accelerate.metrics, accelerate.nn, accelerate.optim
local tensor, utils = accelerate.tensor, accelerate.utils

local options = utils.options.arguments("schedule_free.lua", arg, {
  max_steps = { "integer", default = 200, min = 1 }, batch_size = { "integer", default = 64, min = 1 },
  lr = { "number", default = 2e-2, above = 0 }, warmup_steps = { "integer", default = 20, min = 0 },
})
utils.set_seed(0)

local accelerator = accelerate.Accelerator {}
local function points(count)
  local x = tensor.randn(count, 2)
  local y = x:select(2, 1):gt(0):long() * 2 + x:select(2, 2):gt(0):long()
  return data.TensorDataset(x + tensor.randn(count, 2) * 0.2, y)
end
local train = data.DataLoader(points(4096), { batch_size = options.batch_size, shuffle = true })
local test = data.DataLoader(points(1024), { batch_size = 256 })
local model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
local optimizer = optim.AdamWScheduleFree(model:parameters(),
  { lr = options.lr, warmup_steps = options.warmup_steps })
model, optimizer, train, test = accelerator:prepare(model, optimizer, train, test)

model:train()
optimizer:train()
local step = 0
repeat
  for x, y in train:iter() do
    local loss = nn.functional.cross_entropy(model(x), y)
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

model:eval()
optimizer:eval()
local metric = metrics.load "accuracy"
tensor.no_grad(function()
  for x, y in test:iter() do
    local predictions, references = unpack(accelerator:gather_for_metrics { model(x):argmax(2), y })
    metric:add_batch(predictions, references)
  end
end)
accelerator:print(("accuracy %.4f"):format(metric:compute().accuracy))
