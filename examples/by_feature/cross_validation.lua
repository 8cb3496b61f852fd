-- Cross-validation: a model for each of k parts of the data, tested on that part and trained on the
-- others; at the end the models vote on a test set.
--
--   accel-run examples/by_feature/cross_validation.lua
--   accel-run --num_processes 2 examples/by_feature/cross_validation.lua --folds 5
--
-- The last line is `accuracy of the vote 0.xxxx`, about 0.99.  Options, with their defaults:
--   --max_steps 100 (of each model)  --batch_size 32 (of each process)  --folds 3  --lr 2e-2
local accelerate = require "accelerate"
local data, nn, optim, tensor, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor,
  accelerate.utils

local options = utils.options.arguments("cross_validation.lua", arg, {
  max_steps = { "integer", default = 100, min = 1 }, batch_size = { "integer", default = 32, min = 1 },
  folds = { "integer", default = 3, min = 2 }, lr = { "number", default = 2e-2, above = 0 },
})
utils.set_seed(0)

local accelerator = accelerate.Accelerator {}
local function points_of(count)
  local x = tensor.randn(count, 2)
  return x, x:select(2, 1):gt(0):long() * 2 + x:select(2, 2):gt(0):long()
end
local x, y = points_of(1200)
local test_x, test_y = points_of(500)
local fold_of = tensor.randperm(1200) % options.folds

-- Trains on all parts but one; returns the model.
local function train(fold)
  local rows = fold_of:ne(fold):nonzero():view(-1)
  local model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
  local optimizer = optim.AdamW(model:parameters(), { lr = options.lr })
  local set = data.TensorDataset(x:index_select(1, rows), y:index_select(1, rows))
  local loader = data.DataLoader(set, { batch_size = options.batch_size, shuffle = true })
  model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
  local step = 0
  while true do
    for points, labels in loader:iter() do
      local loss = nn.functional.cross_entropy(model(points), labels)
      accelerator:backward(loss)
      optimizer:step()
      optimizer:zero_grad()
      step = step + 1
      if step == 1 or step == options.max_steps then
        accelerator:print(("fold %d, step %d: loss %.4f"):format(fold + 1, step, loss:item()))
      end
      if step == options.max_steps then return model end
    end
  end
end

local function accuracy(scores, labels) return scores:argmax(2):cpu():eq(labels):double():mean():item() end

local votes = tensor.zeros(500, 4)
for fold = 0, options.folds - 1 do
  local model = train(fold)
  local held = fold_of:eq(fold):nonzero():view(-1)
  tensor.no_grad(function()
    local scores = model(x:index_select(1, held):to(accelerator.device))
    accelerator:print(("fold %d: accuracy %.4f"):format(fold + 1, accuracy(scores, y:index_select(1, held))))
    votes = votes + model(test_x:to(accelerator.device)):softmax(2):cpu()
  end)
  accelerator:free_memory()
end
accelerator:print(("accuracy of the vote %.4f"):format(accuracy(votes, test_y)))
