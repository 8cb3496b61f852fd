--- Convolutional nets whose forward is a user's, with temporaries that nobody empties, hold memory
--- flat.  (ACCEL_LONG=1: 5,000 steps of each.)
local accelerate = require "accelerate"
local tensor = require "accelerate.tensor"
local nn, optim = require "accelerate.nn", require "accelerate.optim"
local flat = require "spec.support.flat"
local F = nn.functional

local LeNet = nn.class("LeNet")

function LeNet:init()
  self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, { padding = 2 }), nn.Conv2d(6, 16, 5)
  self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)
end

function LeNet:forward(x)
  x = F.max_pool2d(self.conv1(x):relu(), 2)
  x = F.max_pool2d(self.conv2(x):relu(), 2)
  x = self.fc1(x:view(x.shape[1], -1)):relu()
  return self.fc3(self.fc2(x):relu())
end

local Block = nn.class("Block")

function Block:init(from, to, stride)
  self.conv1, self.bn1 = nn.Conv2d(from, to, 3, { stride = stride, padding = 1, bias = false }),
    nn.BatchNorm2d(to)
  self.conv2, self.bn2 = nn.Conv2d(to, to, 3, { padding = 1, bias = false }), nn.BatchNorm2d(to)
  self.skip = stride == 1 and from == to and nn.Identity()
    or nn.Conv2d(from, to, 1, { stride = stride, bias = false })
end

function Block:forward(x)
  local y = self.bn1(self.conv1(x)):relu()
  y = self.bn2(self.conv2(y))
  return (y + self.skip(x)):relu()
end

local ResNet = nn.class("ResNet")

function ResNet:init(width)
  self.stem, self.bn = nn.Conv2d(1, width, 3, { padding = 1, bias = false }), nn.BatchNorm2d(width)
  self.blocks = nn.Sequential(Block(width, width, 1), Block(width, 2 * width, 2),
    Block(2 * width, 4 * width, 2))
  self.head = nn.Linear(4 * width, 10)
end

function ResNet:forward(x)
  local y = self.blocks(self.bn(self.stem(x)):relu())
  return self.head(y:mean({ 3, 4 }))
end

local function train(model, batch, optimizer)
  local accelerator = accelerate.Accelerator {}
  model, optimizer = accelerator:prepare(model, optimizer)
  local images, labels = tensor.rand(256, 1, 28, 28), tensor.randint(0, 10, { 256 })
  local loss_fn = nn.CrossEntropyLoss()
  return flat.check(5000, function(i)
    local at = i % (256 / batch) * batch + 1
    local loss = loss_fn(model(images:narrow(1, at, batch)), labels:narrow(1, at, batch))
    accelerator:backward(loss)
    optimizer:step()
    optimizer:zero_grad()
  end)
end

describe("the forward of a user's convolutional net", function()
  local threads = tensor.get_num_threads()
  before_each(function() tensor.set_num_threads(1) end)
  after_each(function() tensor.set_num_threads(threads) end)

  it("holds memory flat: LeNet #slow", function()
    if flat.cannot then return pending(flat.cannot) end
    local model = LeNet()
    train(model, 16, optim.AdamW(model:parameters(), { lr = 1e-3 }))
  end)

  it("holds memory flat: a small ResNet #slow", function()
    if flat.cannot then return pending(flat.cannot) end
    local model = ResNet(8)
    train(model, 8, optim.SGD(model:parameters(), { lr = 0.05, momentum = 0.9 }))
  end)
end)
