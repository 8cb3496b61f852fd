-- Trains LeNet-5, two convolutions with pooling and three linear layers, on Fashion-MNIST, on one
-- process or many with the same script.
--
--   accel-run examples/lenet.lua
--   accel-run --num_processes 2 examples/lenet.lua --batch_size 32
--
-- The last line is `test accuracy 0.xxxx`: 0.903 after the six epochs, on one process.
-- Options, with their defaults:
--   --epochs 6  --batch_size 64 (of each process)  --lr 2e-3  --seed 0
--   --data DIRECTORY  --save DIRECTORY (not saved)
--   --steps N (stop an epoch after N steps)
local accelerate = require "accelerate"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local tensor, utils = require "accelerate.tensor", require "accelerate.utils"

local options = utils.options.arguments("lenet.lua", arg, {
  epochs = { "integer", default = 6, min = 1 },
  batch_size = { "integer", default = 64, min = 1 },
  lr = { "number", default = 2e-3, above = 0 },
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

local model = nn.Sequential(
  nn.Conv2d(1, 6, 5, { padding = 2 }), nn.ReLU(), nn.MaxPool2d(2),
  nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
  nn.Flatten(),
  nn.Linear(16 * 5 * 5, 120), nn.ReLU(),
  nn.Linear(120, 84), nn.ReLU(),
  nn.Linear(84, 10))
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr })
local train = data.DataLoader(images "train", { batch_size = options.batch_size, shuffle = true })
local test = data.DataLoader(images "test", { batch_size = 500 })
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
  local right, seen = 0, 0
  tensor.no_grad(function()
    for x, y in test:iter() do
      -- The last batches are filled up so that all ranks have equally many; gather_for_metrics cuts
      -- what was added.
      local found, wanted = unpack(accelerator:gather_for_metrics { model(x):argmax(2), y })
      right = right + found:eq(wanted):sum():item()
      seen = seen + wanted:numel()
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
