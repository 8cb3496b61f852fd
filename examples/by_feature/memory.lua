-- A batch size that fits: training is tried with a batch size, and again with a smaller one when
-- memory runs out.
--
--   accel-run examples/by_feature/memory.lua
--
-- `find_executable_batch_size` calls a function with a batch size, and with nine tenths of it after
-- every "out of memory".  Here that is played: sizes above --fits raise such an error.  The loss
-- falls from about 1.4 to below 0.5.  Options, with their defaults:
--   --max_steps 150  --batch_size 128 (the first to try)  --fits 100  --lr 2e-2
local accelerate = require "accelerate"
local data, nn, optim, tensor, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor,
  accelerate.utils

local options = utils.options.arguments("memory.lua", arg, {
  max_steps = { "integer", default = 150, min = 1 }, batch_size = { "integer", default = 128, min = 1 },
  fits = { "integer", default = 100, min = 1 }, lr = { "number", default = 2e-2, above = 0 },
})
utils.set_seed(0)

local accelerator = accelerate.Accelerator {}

local train = utils.find_executable_batch_size({ starting_batch_size = options.batch_size },
  function(batch_size)
  accelerator:free_memory() -- what the last try left
  accelerator:print(("trying batch size %d"):format(batch_size))
  if batch_size > options.fits then error("CUDA out of memory. (played)", 0) end
  utils.set_seed(0)
  local x = tensor.randn(4096, 2)
  local y = x:select(2, 1):gt(0):long() * 2 + x:select(2, 2):gt(0):long()
  local model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
  local optimizer = optim.AdamW(model:parameters(), { lr = options.lr })
  local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = batch_size, shuffle = true })
  model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
  local step = 0
  while true do
    for points, labels in loader:iter() do
      local loss = nn.functional.cross_entropy(model(points), labels)
      accelerator:backward(loss)
      optimizer:step()
      optimizer:zero_grad()
      step = step + 1
      if step % 50 == 1 or step == options.max_steps then
        accelerator:print(("step %d: loss %.4f"):format(step, loss:item()))
      end
      if step == options.max_steps then return batch_size end
    end
  end
end)
accelerator:print(("batch size %d fits"):format(train()))
