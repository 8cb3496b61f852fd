-- A small residual network on Fashion-MNIST: a stem, 3 stages of 2 blocks of width 32, 64, 128; SGD
-- with momentum 0.9; one line of JSON.
--
--   accel-run [--num_processes 2] --num_cpu_threads_per_process 1 bench/cnn.lua [BATCH=64]
--     [STEPS=30] [WARMUP=30] [--fused] [FLAGS of common.lua]
--
-- The same work as peer/cnn.py.  A step is: batch fetch, forward, zero_grad, backward, optimizer.
-- The images are scaled to [0, 1] once, before timing; each epoch is shuffled without replacement
-- and its last, short batch dropped.  --fused: the residual and the ReLU after a batch norm are
-- computed with it (nn.BatchNorm2d's activation), which PyTorch has no module for.
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local flags = common.flags(arg)
local fused = flags.fused
local batch = flags.batch or tonumber(arg[1]) or 64
flags.steps, flags.warmup = flags.steps or tonumber(arg[2]) or 30, flags.warmup or tonumber(arg[3]) or 30
local relu, rectified = nn.functional.relu, fused and { activation = "relu" } or nil

local Block = nn.class "Block"

function Block:init(from, to, stride)
  self.conv1 = nn.Conv2d(from, to, 3, { stride = stride, padding = 1, bias = false })
  self.bn1 = nn.BatchNorm2d(to, rectified)
  self.conv2 = nn.Conv2d(to, to, 3, { padding = 1, bias = false })
  self.bn2 = nn.BatchNorm2d(to, rectified)
  self.skip = (stride ~= 1 or from ~= to)
    and nn.Sequential(nn.Conv2d(from, to, 1, { stride = stride, bias = false }), nn.BatchNorm2d(to))
    or nn.Identity()
end

function Block:forward(x)
  if fused then return self.bn2(self.conv2(self.bn1(self.conv1(x))), self.skip(x)) end
  local y = relu(self.bn1(self.conv1(x)))
  return relu(self.bn2(self.conv2(y)) + self.skip(x))
end

local function build(widths, blocks, classes)
  local layers, from = { nn.Conv2d(1, widths[1], 3, { padding = 1, bias = false }),
    nn.BatchNorm2d(widths[1], rectified) }, widths[1]
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
local accelerator = common.accelerator(flags)
local images, labels = common.fashion_mnist(data, flags)
images = images:view(-1, 1, 28, 28)
local model = build({ 32, 64, 128 }, 2, 10)
local optimizer = optim.SGD(model:parameters(), { lr = 0.05, momentum = 0.9 })
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
