-- Local SGD: ranks train on their own for some steps, then their parameters are averaged.
--
--   accel-run --num_processes 2 examples/by_feature/local_sgd.lua --local_sgd_steps 8
--
-- Saves the reduction of gradients in every step.  Learns which quarter of the plane a noisy point
-- came from; the loss falls from about 1.4 to below 0.5.  Options, with their defaults:
--   --max_steps 200  --batch_size 32 (of each process)  --local_sgd_steps 8  --lr 0.2
local accelerate = require "accelerate"
local data, nn, optim, tensor, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor,
  accelerate.utils

local options = utils.options.arguments("local_sgd.lua", arg, {
  max_steps = { "integer", default = 200, min = 1 }, batch_size = { "integer", default = 32, min = 1 },
  local_sgd_steps = { "integer", default = 8, min = 1 }, lr = { "number", default = 0.2, above = 0 },
})
utils.set_seed(0)

local accelerator = accelerate.Accelerator {}
local x = tensor.randn(4096, 2)
local y = x:select(2, 1):gt(0):long() * 2 + x:select(2, 2):gt(0):long()
local model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
local optimizer = optim.SGD(model:parameters(), { lr = options.lr })
local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = options.batch_size, shuffle = true })
model, optimizer, loader = accelerator:prepare(model, optimizer, loader)

local step = 0
accelerate.LocalSGD(accelerator, model, options.local_sgd_steps, function(local_sgd)
  repeat
    for points, labels in loader:iter() do
      local loss = nn.functional.cross_entropy(model(points), labels)
      accelerator:backward(loss)
      optimizer:step()
      optimizer:zero_grad()
      local_sgd:step()
      step = step + 1
      if step % 50 == 1 or step == options.max_steps then
        accelerator:print(("step %d: loss %.4f"):format(step, loss:item()))
      end
      if step == options.max_steps then break end
    end
  until step == options.max_steps
end)
