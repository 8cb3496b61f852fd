-- Worker processes that augment images while the model trains, and metrics from accelerate.metrics.
--
--   accel-run examples/augment.lua --workers 2
--   accel-run --num_processes 2 examples/augment.lua
--
-- Prints the loss every 20 steps and ends with `test accuracy 0.xxxx`, about 0.80 after one epoch.
-- The numbers do not depend on --workers: what a batch's transforms draw depends on the seed, the
-- rank, the pass and the batch alone.  Options, with their defaults:
--   --epochs 1  --batch_size 64 (of each process)  --lr 2e-3  --workers 2
--   --max_steps N (stop after N steps, without a test)
local accelerate = require "accelerate"
local data, metrics, nn, optim = accelerate.data, accelerate.metrics, accelerate.nn, accelerate.optim
local tensor, utils = accelerate.tensor, accelerate.utils

local options = utils.options.arguments("augment.lua", arg, {
  epochs = { "integer", default = 1, min = 1 }, batch_size = { "integer", default = 64, min = 1 },
  lr = { "number", default = 2e-3, above = 0 }, workers = { "integer", default = 2, min = 0 },
  max_steps = { "integer", optional = true, min = 1 },
})
utils.set_seed(0)

local T = data.transforms
local augment = T.Compose { T.RandomCrop(28, { padding = 2 }), T.RandomHorizontalFlip(),
  T.Normalize(0.286, 0.353) }
local train = data.FashionMNIST {
  split = "train" }:with_transform(function(image, label) return augment(image), label end)
local test = data.FashionMNIST { split = "test", mean = 0.286, std = 0.353 }

local accelerator = accelerate.Accelerator {}
local model = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr })
local train_loader = data.DataLoader(train,
  { batch_size = options.batch_size, shuffle = true, num_workers = options.workers })
local test_loader = data.DataLoader(test, { batch_size = 500 })
local loss_fn = nn.CrossEntropyLoss()
model, optimizer, train_loader, test_loader = accelerator:prepare(model, optimizer, train_loader, test_loader)

local step = 0
for _ = 1, options.epochs do
  for x, y in train_loader:iter() do
    local loss = loss_fn(model(x), y)
    accelerator:backward(loss)
    optimizer:step()
    optimizer:zero_grad()
    step = step + 1
    if step % 20 == 1 or step == options.max_steps then
      accelerator:print(("step %d: loss %.4f"):format(step, loss:item()))
    end
    if step == options.max_steps then return end
  end
end

model:eval()
local accuracy = metrics.load "accuracy"
tensor.no_grad(function()
  for x, y in test_loader:iter() do
    local predictions, references = unpack(accelerator:gather_for_metrics { model(x):argmax(2), y })
    accuracy:add_batch(predictions, references)
  end
end)
accelerator:print(("test accuracy %.4f"):format(accuracy:compute().accuracy))
