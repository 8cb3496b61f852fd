-- Trains a small residual network on Fashion-MNIST: three stages of width 32, 64 and 128, the
-- latter two at half the size of the one before; about 0.3 million parameters.  On one process or
-- many with the same script.
--
--   accel-run examples/resnet.lua
--   accel-run --num_processes 2 examples/resnet.lua --batch_size 64
--
-- The last line is `test accuracy 0.xxxx`: 0.926 after the four epochs on two processes (the second
-- of these lines). Options, with their defaults:
--   --epochs 4  --batch_size 128 (of each process)  --lr 0.1  --seed 0
--   --data DIRECTORY  --save DIRECTORY (not saved)
--   --steps N (stop an epoch, and a test, after N steps)
local accelerate = require "accelerate"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local tensor, utils = require "accelerate.tensor", require "accelerate.utils"

local options = utils.options.arguments("resnet.lua", arg, {
  epochs = { "integer", default = 4, min = 1 },
  batch_size = { "integer", default = 128, min = 1 },
  lr = { "number", default = 0.1, above = 0 },
  seed = { "integer", default = 0, min = 0 },
  steps = { "integer", optional = true, min = 1 },
  data = { "string", optional = true },
  save = { "string", optional = true },
})
utils.set_seed(options.seed)

local accelerator = accelerate.Accelerator {}

local function images(split)
  return data.FashionMNIST { split = split, root = options.data, mean = 0.286, std = 0.353 }
end

-- A block adds what it computes to its input.  A batch norm with an activation applies it in the
-- same pass; called with a second tensor, it adds that one first.
local Block = nn.class "Block"

function Block:init(from, to, stride)
  self.conv1 = nn.Conv2d(from, to, 3, { stride = stride, padding = 1, bias = false })
  self.bn1 = nn.BatchNorm2d(to, { activation = "relu" })
  self.conv2 = nn.Conv2d(to, to, 3, { padding = 1, bias = false })
  self.bn2 = nn.BatchNorm2d(to, { activation = "relu" })
  local same = stride == 1 and from == to
  self.skip = same and nn.Identity()
    or nn.Sequential(nn.Conv2d(from, to, 1, { stride = stride, bias = false }), nn.BatchNorm2d(to))
end

function Block:forward(x) return self.bn2(self.conv2(self.bn1(self.conv1(x))), self.skip(x)) end

local model = nn.Sequential(
  nn.Conv2d(1, 32, 3, { padding = 1, bias = false }), nn.BatchNorm2d(32, { activation = "relu" }),
  Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2),
  nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
local optimizer = optim.SGD(model:parameters(),
  { lr = options.lr, momentum = 0.9, nesterov = true, weight_decay = 5e-4 })
local train = data.DataLoader(images "train", { batch_size = options.batch_size, shuffle = true })
local test = data.DataLoader(images "test", { batch_size = 2 * options.batch_size })
local loss_fn = nn.CrossEntropyLoss()
model, optimizer, train, test = accelerator:prepare(model, optimizer, train, test)

local steps = math.min(options.steps or math.huge, train:len())
local scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, { T_max = options.epochs * steps })

local function train_epoch(epoch)
  model:train()
  local bar = utils.tqdm(train, { desc = "epoch " .. epoch, total = steps })
  for x, y in bar:iter() do
    accelerator:accumulate(model, function()
      local loss = loss_fn(model(x), y)
      accelerator:backward(loss)
      if accelerator.sync_gradients then accelerator:clip_grad_norm_(model:parameters(), 1.0) end
      optimizer:step()
      scheduler:step()
      optimizer:zero_grad()
      bar:set_postfix { loss = loss }
    end)
    if options.steps and bar.n + 1 >= steps then break end
  end
  bar:close()
end

local function accuracy()
  model:eval()
  local right, seen, batches = 0, 0, 0
  tensor.no_grad(function()
    for x, y in test:iter() do
      -- The last batches are filled up so that all ranks have equally many; gather_for_metrics cuts
      -- what was added.
      local found, wanted = unpack(accelerator:gather_for_metrics { model(x):argmax(2), y })
      right = right + found:eq(wanted):sum():item()
      seen = seen + wanted:numel()
      batches = batches + 1
      if batches == options.steps then break end
    end
  end)
  return right / seen
end

local share
for epoch = 1, options.epochs do
  train_epoch(epoch)
  share = accuracy()
  accelerator:print(("epoch %d done, test accuracy %.4f"):format(epoch, share))
end

accelerator:wait_for_everyone()
if options.save then accelerator:save_model(model, options.save) end
accelerator:print(("test accuracy %.4f"):format(share))
