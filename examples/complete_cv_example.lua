-- Classifies images with what a longer run needs: checkpoints, going on from one, trackers, an
-- evaluation after each epoch, and the best model kept.
--
--   accel-run examples/complete_cv_example.lua
--   accel-run --num_processes 2 --mixed_precision bf16 examples/complete_cv_example.lua
--     --checkpointing_steps epoch --output_dir out --with_tracking true
--   accel-run examples/complete_cv_example.lua --output_dir out --resume_from_checkpoint latest
--   accel-run examples/complete_cv_example.lua --data_dir FOLDER --image_size 64
--
-- --data_dir is a folder with train/CLASS/*.jpg and test/CLASS/*.jpg (or png). Without it, the
-- images are those of Fashion-MNIST; each may be mirrored. The last line is `test accuracy 0.xxxx`
-- of the best epoch: 0.876 after the two epochs on one process.
-- A run that goes on from a checkpoint ends with the numbers of one that was not stopped. Options,
-- with their defaults:
--   --data_dir FOLDER  --image_size 28  --num_epochs 2  --batch_size 64 (of each process)
--   --lr 2e-3  --seed 42
--   --checkpointing_steps N or epoch (none)  --resume_from_checkpoint FOLDER or latest
--   --with_tracking false  --output_dir FOLDER (checkpoints, trackers' files, the best model in
--   best; nothing is kept)  --max_steps N (stop after N steps)
local accelerate = require "accelerate"
local data, metrics, nn, optim = accelerate.data, accelerate.metrics, accelerate.nn, accelerate.optim
local tensor, utils = accelerate.tensor, accelerate.utils

local options = utils.options.arguments("complete_cv_example.lua", arg, {
  data_dir = { "string", optional = true },
  image_size = { "integer", default = 28, min = 16 },
  num_epochs = { "integer", default = 2, min = 1 },
  batch_size = { "integer", default = 64, min = 1 },
  lr = { "number", default = 2e-3, above = 0 },
  seed = { "integer", default = 42, min = 0 },
  checkpointing_steps = { "string", optional = true },
  resume_from_checkpoint = { "string", optional = true },
  with_tracking = { "boolean", default = false },
  output_dir = { "string", optional = true },
  max_steps = { "integer", default = math.huge, min = 1 },
})
local every = tonumber(options.checkpointing_steps)
for _, name in ipairs { "checkpointing_steps", "resume_from_checkpoint", "with_tracking" } do
  if options[name] and not options.output_dir then
    error(("complete_cv_example.lua: --%s needs --output_dir"):format(name), 0)
  end
end
if options.checkpointing_steps and options.checkpointing_steps ~= "epoch" and not (every and every >= 1) then
  error("complete_cv_example.lua: --checkpointing_steps must be a number from 1 on or epoch, got " ..
    options.checkpointing_steps, 0)
end
utils.set_seed(options.seed)

-- Checkpoints get the names checkpoints/checkpoint_0, _1 and so on; the newest three are kept. A
-- stateful loader's place in its pass is part of them.
local accelerator = accelerate.Accelerator {
  log_with = options.with_tracking and { "tensorboard", "jsonl" } or nil,
  project_config = options.output_dir and accelerate.ProjectConfiguration { project_dir = options.output_dir,
    automatic_checkpoint_naming = true, total_limit = 3 } or nil,
  dataloader_config = accelerate.DataLoaderConfiguration { use_stateful_dataloader = true },
}
if options.with_tracking then
  accelerator:init_trackers("complete_cv_example", { config = { num_epochs = options.num_epochs,
    batch_size = options.batch_size, seed = options.seed } })
end

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
  if split == "train" then first[#first + 1] = T.RandomHorizontalFlip() end
  first[#first + 1] = T.Normalize(mean, std)
  local change = T.Compose(first)
  return set:with_transform(function(image, label) return change(image), label end), channels, classes
end

local train_set, channels, classes = images "train"
local test_set = images "test"

-- ---- a small network

local function stage(from, to)
  return nn.Conv2d(from, to, 3, { padding = 1, bias = false }), nn.BatchNorm2d(to, { activation = "relu" }),
    nn.MaxPool2d(2)
end
local layers = { stage(channels, 16) }
for _, layer in ipairs { stage(16, 32) } do layers[#layers + 1] = layer end
for _, layer in ipairs { nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32 * 16, classes) } do
  layers[#layers + 1] = layer
end
local model = nn.Sequential(unpack(layers))

local train = data.DataLoader(train_set,
  { batch_size = options.batch_size, shuffle = true, drop_last = true })
local test = data.DataLoader(test_set, { batch_size = 2 * options.batch_size })
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr })
local updates = options.num_epochs * train:len() -- a prepared scheduler counts all ranks' steps
local scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, { T_max = updates })
local loss_fn = nn.CrossEntropyLoss()
model, optimizer, train, test, scheduler = accelerator:prepare(model, optimizer, train, test, scheduler)

-- ---- where the run is: part of every checkpoint

local progress = { epoch = 1, step = 0, best = 0, loss = 0 }
function progress:state_dict()
  return { epoch = self.epoch, step = self.step, best = self.best, loss = self.loss }
end
function progress:load_state_dict(state)
  for name, value in pairs(state) do self[name] = value end
end
accelerator:register_for_checkpointing(progress)
if options.resume_from_checkpoint then
  local folder = options.resume_from_checkpoint
  folder = accelerator:load_state(folder ~= "latest" and folder or nil)
  local number = folder:match("checkpoint_(%d+)/?$")
  if number then accelerator.project_configuration.iteration = number + 1 end  -- of the next save_state
  accelerator:print(("goes on from %s, step %d"):format(folder, progress.step))
end

-- ---- the loop

local function train_epoch()
  model:train()
  for x, y in train:iter() do
    local loss = loss_fn(model(x), y)
    accelerator:backward(loss)
    optimizer:step()
    scheduler:step()
    optimizer:zero_grad()
    progress.step = progress.step + 1
    progress.loss = progress.loss + loss:item()
    if progress.step == 1 or progress.step % 100 == 0 or progress.step == options.max_steps then
      accelerator:print(("step %d: loss %.4f"):format(progress.step,
        accelerator:gather(loss:detach():view(1)):mean():item()))
    end
    if every and progress.step % every == 0 then accelerator:save_state() end
    if progress.step == options.max_steps then return end
  end
end

local function evaluate()
  local metric = metrics.load "accuracy"
  model:eval()
  tensor.no_grad(function()
    local batches = 0
    for x, y in test:iter() do
      local predictions, references = unpack(accelerator:gather_for_metrics { model(x):argmax(2), y })
      metric:add_batch(predictions, references)
      batches = batches + 1
      if batches == options.max_steps then break end
    end
  end)
  return metric:compute().accuracy
end

while progress.epoch <= options.num_epochs and progress.step < options.max_steps do
  train_epoch()
  local accuracy = evaluate()
  accelerator:print(("epoch %d: test accuracy %.4f"):format(progress.epoch, accuracy))
  if options.with_tracking then
    accelerator:log({ accuracy = accuracy, train_loss = progress.loss / train:len(), epoch = progress.epoch },
      { step = progress.step })
  end
  if accuracy > progress.best then
    progress.best = accuracy
    if options.output_dir then accelerator:save_model(model, options.output_dir .. "/best") end
  end
  progress.epoch, progress.loss = progress.epoch + 1, 0
  if options.checkpointing_steps == "epoch" and progress.step < options.max_steps then
    accelerator:save_state()
  end
end

accelerator:wait_for_everyone()
accelerator:end_training()
accelerator:print(("test accuracy %.4f"):format(progress.best))
