-- Fashion-MNIST, 784-512-256-10 with ReLU, AdamW at its defaults and lr 1e-3; one line of JSON.
--
--   accel-run [--num_processes 2] --num_cpu_threads_per_process 1 bench/mlp.lua [BATCH=64] [STEPS=400] [WARMUP=50] [--dtype bf16]
--
-- The same work as peer/mlp.py.  A step is: batch fetch, forward, zero_grad, backward, optimizer.  The images are scaled to
-- [0, 1] once, before timing; each epoch is shuffled without replacement and its last, short batch dropped.  With ranks, each
-- has a batch of this size.
local accelerate = require "accelerate"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local mixed_precision = common.mixed_precision(arg)
local batch, steps, warmup = tonumber(arg[1]) or 64, tonumber(arg[2]) or 400, tonumber(arg[3]) or 50

local before = common.resident()
local accelerator = accelerate.Accelerator { mixed_precision = mixed_precision }
local images, labels = common.fashion_mnist(data)
local model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
local loader = data.DataLoader(data.TensorDataset(images, labels), { batch_size = batch, shuffle = true, drop_last = true })
local loss_fn = nn.CrossEntropyLoss()
model, optimizer, loader = accelerator:prepare(model, optimizer, loader)

local next_batch = common.endless(loader)
common.train(accelerator, steps, warmup, { batch = batch, before = before }, function()
  local x, y = next_batch()
  local loss = loss_fn(model(x), y)
  optimizer:zero_grad()
  accelerator:backward(loss)
  optimizer:step()
  return loss:detach()
end)
