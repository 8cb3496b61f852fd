-- A batch size that fits, with as many batches accumulated as keep the observed batch size: what
-- one large batch would have learned, in the memory that is there.
--
--   accel-run examples/by_feature/automatic_gradient_accumulation.lua
--
-- Sizes above --fits raise "out of memory" here, as if they did; half of the size is tried next,
-- and twice as many batches are accumulated.  The loss falls from about 1.4 to below 0.5.  Options,
-- with their defaults:
--   --max_steps 300 (batches)  --batch_size 64 (wanted, of each process)  --fits 20  --lr 2e-2
local accelerate = require "accelerate"
local data, nn, optim, tensor, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor,
  accelerate.utils

local options = utils.options.arguments("automatic_gradient_accumulation.lua", arg, {
  max_steps = { "integer", default = 300, min = 1 }, batch_size = { "integer", default = 64, min = 1 },
  fits = { "integer", default = 20, min = 1 }, lr = { "number", default = 2e-2, above = 0 },
})
utils.set_seed(0)

local function train(accelerator, batch_size)
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
      accelerator:accumulate(model, function()
        local loss = nn.functional.cross_entropy(model(points), labels)
        accelerator:backward(loss)
        optimizer:step()
        optimizer:zero_grad()
        step = step + 1
        if step % 50 == 1 or step == options.max_steps then
          accelerator:print(("batch %d: loss %.4f"):format(step, loss:item()))
        end
      end)
      if step == options.max_steps then return end
    end
  end
end

local accelerator = accelerate.Accelerator {}
local size, accumulated = options.batch_size, 1
while true do
  accelerator:free_memory() -- what the last try left
  accelerator.gradient_accumulation_steps = accumulated
  accelerator:print(("trying %d batches of %d"):format(accumulated, size))
  local fits, why = pcall(train, accelerator, size)
  if fits then break end
  if size == 1 or not tostring(why):find("out of memory", 1, true) then error(why, 0) end
  size, accumulated = math.ceil(size / 2), accumulated * 2
end
accelerator:print(("%d batches of %d fit"):format(accumulated, size))
