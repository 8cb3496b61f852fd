-- Classifies small pictures: a CNN, augmentation, a scheduler, an evaluation with accuracy.
local accelerate = require "accelerate"
local nn, optim, data = accelerate.nn, accelerate.optim, accelerate.data
local tensor, utils = accelerate.tensor, accelerate.utils
local F, T = nn.functional, data.transforms

utils.set_seed(42)
local accelerator = accelerate.Accelerator { gradient_accumulation_steps = 2 }
local device = accelerator.device

-- a picture of 12 x 12: a bright square, whose corner says the class
local function picture(label)
  local image = tensor.rand(1, 12, 12) * 0.3
  local row, column = math.floor(label / 2) * 6, label % 2 * 6
  image:narrow(2, row + 1, 6):narrow(3, column + 1, 6):add_(0.7)
  return image
end

local Squares = {}
function Squares.new(n, transform)
  local self = { n = n, transform = transform, items = {} }
  for i = 1, n do self.items[i] = { picture(i % 4), i % 4 } end
  return setmetatable(self, { __index = Squares })
end
function Squares:len() return self.n end
function Squares:get(i)
  local image, label = unpack(self.items[i])
  if self.transform then image = self.transform(image) end
  return image, label
end

local train_set = Squares.new(512, T.Compose { T.Normalize({ 0.5 }, { 0.5 }), T.RandomHorizontalFlip(0) })
local test_set = Squares.new(128, T.Normalize({ 0.5 }, { 0.5 }))
local train_loader = data.DataLoader(train_set, { batch_size = 32, shuffle = true, num_workers = 2 })
local test_loader = data.DataLoader(test_set, { batch_size = 64 })

local Net = nn.class("Net", nn.Module)
function Net:init(channels, classes)
  self.features = nn.Sequential(
    nn.Conv2d(channels, 8, 3, { padding = 1 }), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, { padding = 1 }), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
  self.dropout = nn.Dropout(0.1)
  self.fc = nn.Linear(16 * 2 * 2, classes)
end
function Net:forward(x)
  x = self.features(x)
  x = x:flatten(2)
  return self.fc(self.dropout(x))
end

local model = Net(1, 4):to(device)
for name, p in model:named_parameters() do
  if name:find("weight") and p:dim() > 1 then nn.init.kaiming_normal_(p, { nonlinearity = "relu" }) end
end
local criterion = nn.CrossEntropyLoss { label_smoothing = 0.05 }
local optimizer = optim.SGD(model:parameters(), { lr = 0.05, momentum = 0.9, weight_decay = 1e-4 })
local scheduler = optim.lr_scheduler.OneCycleLR(optimizer, { max_lr = 0.1, total_steps = 3 * #train_loader })
model, optimizer, train_loader, test_loader, scheduler =
  accelerator:prepare(model, optimizer, train_loader, test_loader, scheduler)

local best = 0
for epoch = 1, 3 do
  model:train()
  local running, seen = 0, 0
  for i, images, labels in ipairs(train_loader) do
    accelerator:accumulate(model, function()
      local outputs = model(images)
      local loss = criterion(outputs, labels)
      accelerator:backward(loss)
      if accelerator.sync_gradients then accelerator:clip_grad_norm_(model:parameters(), 1.0) end
      optimizer:step()
      scheduler:step()
      optimizer:zero_grad()
      running = running + loss:item() * images:size(1)
      seen = seen + images:size(1)
    end)
  end
  model:eval()
  local correct, total = 0, 0
  tensor.no_grad(function()
    for images, labels in test_loader:iter() do
      local predicted = model(images):argmax(2)
      local all_predicted, all_labels = unpack(accelerator:gather_for_metrics { predicted, labels })
      correct = correct + (all_predicted:eq(all_labels)):sum():item()
      total = total + all_labels:size(1)
    end
  end)
  best = math.max(best, correct / total)
  accelerator:print(("epoch %d: loss %.3f accuracy %.3f lr %.4f"):format(epoch, running / seen,
    correct / total, scheduler:get_last_lr()[1]))
end
accelerator:wait_for_everyone()
local path = os.tmpname()
accelerator:save(accelerator:unwrap_model(model):state_dict(), path)
local again = Net(1, 4)
again:load_state_dict(utils.load(path))
again:eval()
local probability, class = F.softmax(again((test_set:get(3)):unsqueeze(1)), 2):max(2)
print(probability:item(), class:item())
os.remove(path)
print("best", best)
