local accelerate = require "accelerate"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local tensor = require "accelerate.tensor"

local accelerator = accelerate.Accelerator { gradient_accumulation_steps = 2 }
local x = tensor.randn(64, 4)
local y = x:sum({ dim = 2, keepdim = true })

local model = nn.Linear(4, 1)
local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = 8, shuffle = true })
model, optimizer, loader = accelerator:prepare(model, optimizer, loader)

for epoch = 1, 5 do
  local loss
  for inputs, targets in loader:iter() do
    accelerator:accumulate(model, function()
      loss = nn.functional.mse_loss(model(inputs), targets)
      accelerator:backward(loss)
      optimizer:step()
      optimizer:zero_grad()
    end)
  end
  loss = accelerator:reduce(loss:detach(), "mean")
  accelerator:print(("epoch %d: loss %.4f on %d process(es)"):format(epoch, loss:item(),
    accelerator.num_processes))
end
