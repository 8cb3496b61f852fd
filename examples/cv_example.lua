-- Classifies images with a residual network, in mixed precision if asked to, and with augmentation:
-- each image is moved by up to one pixel and may be mirrored. Labels are smoothed, and the learning
-- rate rises and falls once.
--
--   accel-run examples/cv_example.lua
--   accel-run --num_processes 2 --mixed_precision bf16 examples/cv_example.lua --batch_size 64
--   accel-run examples/cv_example.lua --data_dir FOLDER --image_size 64
--
-- --data_dir is a folder with train/CLASS/*.jpg and test/CLASS/*.jpg (or png). Without it, the
-- images are those of Fashion-MNIST. The last line is `test accuracy 0.xxxx`: 0.94
-- after the twelve epochs on one process in bf16, which take one core 20 minutes.
-- Options, with their defaults:
--   --data_dir FOLDER  --image_size 28  --epochs 12  --batch_size 128 (of each process)  --lr 0.1
--   --workers 2 (processes that augment)  --seed 0  --save FOLDER (not saved)
--   --steps N (stop an epoch, and a test, after N steps)
local accelerate = require "accelerate"
local data, metrics, nn, optim = accelerate.data, accelerate.metrics, accelerate.nn, accelerate.optim
local tensor, utils = accelerate.tensor, accelerate.utils

local options = utils.options.arguments("cv_example.lua", arg, {
  data_dir = { "string", optional = true },
  image_size = { "integer", default = 28, min = 16 },
  epochs = { "integer", default = 12, min = 1 },
  batch_size = { "integer", default = 128, min = 1 },
  lr = { "number", default = 0.1, above = 0 },
  workers = { "integer", default = 2, min = 0 },
  seed = { "integer", default = 0, min = 0 },
  steps = { "integer", optional = true, min = 1 },
  save = { "string", optional = true },
})
utils.set_seed(options.seed)
local accelerator = accelerate.Accelerator {}

-- ---- images

local T, size = data.transforms, options.image_size

-- The data set of a split, its images as tensors (channels, size, size) of about mean 0 and
-- deviation 1; number of channels; number of classes.
local function images(split)
  local set, first, channels, classes, mean, std
  if options.data_dir then
    set = data.ImageFolder(options.data_dir .. "/" .. split)
    first = { T.Resize { size, size }, T.ToTensor() }
    channels, classes, mean, std = 3, #set.classes, 0.45, 0.25
  else
    set, first = data.FashionMNIST { split = split }, {}
    channels, classes, mean, std = 1, 10, 0.286, 0.353
  end
  if split == "train" then
    first[#first + 1] = T.RandomCrop(size, { padding = 1 })
    first[#first + 1] = T.RandomHorizontalFlip()
  end
  first[#first + 1] = T.Normalize(mean, std)
  local change = T.Compose(first)
  return set:with_transform(function(image, label) return change(image), label end), channels, classes
end

local train_set, channels, classes = images "train"
local test_set = images "test"

-- ---- the network: two stages, each with half the size and twice the width

local Block = nn.class "Block"

function Block:init(from, to, stride)
  self.conv1 = nn.Conv2d(from, to, 3, { stride = stride, padding = 1, bias = false })
  self.bn1 = nn.BatchNorm2d(to, { activation = "relu" })
  self.conv2 = nn.Conv2d(to, to, 3, { padding = 1, bias = false })
  self.bn2 = nn.BatchNorm2d(to, { activation = "relu" })
  self.skip = from == to and nn.Identity()
    or nn.Sequential(nn.Conv2d(from, to, 1, { stride = stride, bias = false }), nn.BatchNorm2d(to))
end

-- A batch norm that is called with a second tensor adds it before the activation.
function Block:forward(x) return self.bn2(self.conv2(self.bn1(self.conv1(x))), self.skip(x)) end

local model = nn.Sequential(
  nn.Conv2d(channels, 32, 3, { padding = 1, bias = false }), nn.BatchNorm2d(32, { activation = "relu" }),
  Block(32, 64, 2), Block(64, 128, 2), Block(128, 128, 1),
  nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))

-- ---- training

local optimizer = optim.SGD(model:parameters(),
  { lr = options.lr, momentum = 0.9, nesterov = true, weight_decay = 5e-4 })
local train = data.DataLoader(train_set, { batch_size = options.batch_size, shuffle = true, drop_last = true,
  num_workers = options.workers, persistent_workers = options.workers > 0 })
local test = data.DataLoader(test_set, { batch_size = 2 * options.batch_size })
local loss_fn = nn.CrossEntropyLoss { label_smoothing = 0.1 }
model, optimizer, train, test = accelerator:prepare(model, optimizer, train, test)

local steps = math.min(options.steps or math.huge, train:len())
local total = options.epochs * steps
-- The rate rises during the first fifth of the steps and falls to 0 with the last one.
local scheduler = optim.lr_scheduler.LambdaLR(optimizer, function(step)
  return math.min(step / (0.2 * total), (total - step) / (0.8 * total))
end)

local function train_epoch(epoch)
  model:train()
  local bar = utils.tqdm(train, { desc = "epoch " .. epoch, total = steps })
  for x, y in bar:iter() do
    local loss = loss_fn(model(x), y)
    accelerator:backward(loss)
    optimizer:step()
    scheduler:step()
    optimizer:zero_grad()
    bar:set_postfix { loss = loss }
    if bar.n + 1 >= steps then break end
  end
  bar:close()
end

local function accuracy()
  local metric, batches = metrics.load "accuracy", 0
  model:eval()
  tensor.no_grad(function()
    for x, y in test:iter() do
      local predictions, references = unpack(accelerator:gather_for_metrics { model(x):argmax(2), y })
      metric:add_batch(predictions, references)
      batches = batches + 1
      if batches == options.steps then break end
    end
  end)
  return metric:compute().accuracy
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
