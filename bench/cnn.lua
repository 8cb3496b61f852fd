-- A small residual network on Fashion-MNIST: a stem, 3 stages of 2 blocks of width 32, 64, 128; SGD with momentum 0.9; one line of JSON.
--
--   accel-run [--num_processes 2] --num_cpu_threads_per_process 1 bench/cnn.lua [BATCH=64] [STEPS=30] [WARMUP=30] [--dtype bf16] [--fused]
--
-- The same work as peer/cnn.py.  A step is: batch fetch, forward, zero_grad, backward, optimizer.  The images are scaled to [0, 1] once,
-- before timing; each epoch is shuffled without replacement and its last, short batch dropped.  --fused: the residual and the ReLU
-- after a batch norm are computed with it (nn.BatchNorm2d's activation), which PyTorch has no module for.
local accelerate = require "accelerate"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local mixed_precision = common.mixed_precision(arg)
local fused = false
for i = #arg, 1, -1 do
  if arg[i] == "--fused" then
    fused = true
    table.remove(arg, i)
  end
end
local batch, steps, warmup = tonumber(arg[1]) or 64, tonumber(arg[2]) or 30, tonumber(arg[3]) or 30
local relu, rectified = nn.functional.relu, fused and { activation = "relu" } or nil

local Block = nn.class "Block"

function Block:init(from, to, stride)
  self.conv1 = nn.Conv2d(from, to, 3, { stride = stride, padding = 1, bias = false })
  self.bn1 = nn.BatchNorm2d(to, rectified)
  self.conv2 = nn.Conv2d(to, to, 3, { padding = 1, bias = false })
  self.bn2 = nn.BatchNorm2d(to, rectified)
  self.skip = (stride ~= 1 or from ~= to) and nn.Sequential(nn.Conv2d(from, to, 1, { stride = stride, bias = false }), nn.BatchNorm2d(to)) or nn.Identity()
end

function Block:forward(x)
  if fused then return self.bn2(self.conv2(self.bn1(self.conv1(x))), self.skip(x)) end
  local y = relu(self.bn1(self.conv1(x)))
  return relu(self.bn2(self.conv2(y)) + self.skip(x))
end

local function build(widths, blocks, classes)
  local layers, from = { nn.Conv2d(1, widths[1], 3, { padding = 1, bias = false }), nn.BatchNorm2d(widths[1], rectified) }, widths[1]
  if not fused then layers[3] = nn.ReLU() end
  for stage, width in ipairs(widths) do
    for b = 1, blocks do
      layers[#layers + 1] = Block(from, width, stage > 1 and b == 1 and 2 or 1)
      from = width
    end
  end
  layers[#layers + 1] = nn.AdaptiveAvgPool2d(1)
  layers[#layers + 1] = nn.Flatten()
  layers[#layers + 1] = nn.Linear(from, classes)
  return nn.Sequential(unpack(layers))
end

local before = common.resident()
local accelerator = accelerate.Accelerator { mixed_precision = mixed_precision }
local images, labels = common.fashion_mnist(data)
local model = build({ 32, 64, 128 }, 2, 10)
local optimizer = optim.SGD(model:parameters(), { lr = 0.05, momentum = 0.9 })
local loader = data.DataLoader(data.TensorDataset(images:view(-1, 1, 28, 28), labels), { batch_size = batch, shuffle = true, drop_last = true })
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
