-- ResNet-50 on synthetic pictures, SGD with momentum 0.9; one line of JSON.
--
--   accel-run --num_cpu_threads_per_process 1 bench/resnet50.lua [FLAGS of common.lua] [--side 224]
--     [--width 64]
--
-- The same work as peer/gpu.py's resnet50: one batch, made before timing, again and again.  A step
-- is: forward, zero_grad, backward, optimizer.
local tensor, nn, optim = require "accelerate.tensor", require "accelerate.nn", require "accelerate.optim"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")
local F = nn.functional

local flags = common.flags(arg)
local side, width, batch = flags.side or 224, flags.width or 64, flags.batch
  or (flags.device == "cuda" and 64 or 8)
flags.steps, flags.warmup = flags.steps or 30, flags.warmup or 3

local function conv(from, to, kernel, stride)
  return nn.Conv2d(from, to, kernel, { stride = stride or 1, padding = (kernel - 1) / 2, bias = false })
end

local Bottleneck = nn.class "Bottleneck"

function Bottleneck:init(from, middle, stride)
  local to = 4 * middle
  self.conv1, self.bn1 = conv(from, middle, 1), nn.BatchNorm2d(middle)
  self.conv2, self.bn2 = conv(middle, middle, 3, stride), nn.BatchNorm2d(middle)
  self.conv3, self.bn3 = conv(middle, to, 1), nn.BatchNorm2d(to)
  self.skip = (stride ~= 1 or from ~= to) and nn.Sequential(conv(from, to, 1, stride), nn.BatchNorm2d(to))
    or nn.Identity()
end

function Bottleneck:forward(x)
  return tensor.scope(function()
    local y = F.relu(self.bn1(self.conv1(x)))
    y = F.relu(self.bn2(self.conv2(y)))
    return F.relu(self.bn3(self.conv3(y)) + self.skip(x))
  end)
end

local function build(classes)
  local layers, from = { conv(3, width, 7, 2), nn.BatchNorm2d(width), nn.ReLU(),
    nn.MaxPool2d(3, { stride = 2, padding = 1 }) }, width
  local counts = { 3, 4, 6, 3 }
  for stage, middle in ipairs { width, 2 * width, 4 * width, 8 * width } do
    for b = 1, counts[stage] do
      layers[#layers + 1] = Bottleneck(from, middle, stage > 1 and b == 1 and 2 or 1)
      from = 4 * middle
    end
  end
  layers[#layers + 1], layers[#layers + 2], layers[#layers + 3] = nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(from, classes)
  return nn.Sequential(unpack(layers))
end

local before = common.resident()
local accelerator = common.accelerator(flags)
local model = build(1000)
local optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
model, optimizer = accelerator:prepare(model, optimizer)
local x, y = tensor.randn(batch, 3, side, side):to(accelerator.device), tensor.randint(0, 1000,
  { batch }):to(accelerator.device)

common.train(accelerator, flags, { batch = batch, side = side, before = before, units = batch },
  function() return x, y end, function(images, labels)
  local loss = F.cross_entropy(model(images), labels)
  optimizer:zero_grad()
  accelerator:backward(loss)
  optimizer:step()
  return loss:detach()
end)
