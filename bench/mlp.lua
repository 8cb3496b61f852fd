-- Fashion-MNIST, 784-512-256-10 with ReLU, AdamW at its defaults and lr 1e-3; one line of JSON.
--
--   accel-run [--num_processes 2] --num_cpu_threads_per_process 1 bench/mlp.lua [BATCH=64]
--     [STEPS=400] [WARMUP=50] [FLAGS of common.lua]
--
-- The same work as peer/mlp.py.  A step is: batch fetch, forward, zero_grad, backward, optimizer.
-- The images are scaled to [0, 1] once, before timing; each epoch is shuffled without replacement
-- and its last, short batch dropped.  With ranks, each has a batch of this size.  On a GPU the
-- images lie there, and a permutation picks the batches.
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local flags = common.flags(arg)
local batch = flags.batch or tonumber(arg[1]) or 64
flags.steps, flags.warmup = flags.steps or tonumber(arg[2]) or 400, flags.warmup or tonumber(arg[3]) or 50

local before = common.resident()
local accelerator = common.accelerator(flags)
local images, labels = common.fashion_mnist(data, flags)
local model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
  nn.Linear(256, 10))
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
local loss_fn = nn.CrossEntropyLoss()
model, optimizer = accelerator:prepare(model, optimizer)

local next_batch
if flags.device == "cpu" then
  local loader = data.DataLoader(data.TensorDataset(images, labels),
    { batch_size = batch, shuffle = true, drop_last = true })
  next_batch = common.endless(accelerator:prepare(loader))
else
  next_batch = common.picked(images, labels, batch, accelerator.device)
end
common.train(accelerator, flags, { batch = batch, before = before, units = batch }, next_batch, function(x, y)
  local loss = loss_fn(model(x), y)
  optimizer:zero_grad()
  accelerator:backward(loss)
  optimizer:step()
  return loss:detach()
end)
