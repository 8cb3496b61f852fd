-- Gradients that travel between ranks in 16 bits: half the bytes of every reduction.
--
--   accel-run --num_processes 2 examples/by_feature/ddp_comm_hook.lua --comm_hook bf16
--
-- Learns which quarter of the plane a noisy point came from; the loss falls from about 1.4 to below
-- 0.5, as without the hook.  Options, with their defaults:
--   --max_steps 200  --batch_size 32 (of each process)  --comm_hook fp16 (or bf16, no)  --lr 2e-2
local accelerate = require "accelerate"
local data, nn, optim, tensor, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor,
  accelerate.utils

local options = utils.options.arguments("ddp_comm_hook.lua", arg, {
  max_steps = { "integer", default = 200, min = 1 }, batch_size = { "integer", default = 32, min = 1 },
  comm_hook = { "string", default = "fp16", one_of = { "no", "fp16", "bf16" } },
  lr = { "number", default = 2e-2, above = 0 },
})
utils.set_seed(0)

local accelerator = accelerate.Accelerator {
  kwargs_handlers = { accelerate.DistributedDataParallelKwargs { comm_hook = options.comm_hook } } }
local x = tensor.randn(4096, 2)
local y = x:select(2, 1):gt(0):long() * 2 + x:select(2, 2):gt(0):long()
local model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr })
local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = options.batch_size, shuffle = true })
model, optimizer, loader = accelerator:prepare(model, optimizer, loader)

local step = 0
repeat
  for points, labels in loader:iter() do
    local loss = nn.functional.cross_entropy(model(points), labels)
    accelerator:backward(loss)
    optimizer:step()
    optimizer:zero_grad()
    step = step + 1
    if step % 50 == 1 or step == options.max_steps then
      accelerator:print(("step %d: loss %.4f"):format(step, loss:item()))
    end
    if step == options.max_steps then break end
  end
until step == options.max_steps
