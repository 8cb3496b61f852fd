-- What the Accelerator costs on one rank: the MLP step of mlp.lua with it and as a bare loop,
-- taking turns in one process; one line of JSON.
--
--   accel-run --num_cpu_threads_per_process 1 bench/overhead.lua [BATCH=64] [STEPS=40] [ROUNDS=31]
--
-- Processor time is measured, not the clock on the wall, in blocks of STEPS that take turns, and
-- the median of the blocks' ratios counts: the figure holds on a busy machine.  `overhead_percent`
-- is what accumulate, backward, clipping, the optimizer, the schedule and the loader cost on top of
-- the same calls without an Accelerator; below 0, flat buffers gain more than that.
local accelerate = require "accelerate"
local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local batch, steps, rounds = tonumber(arg[1]) or 64, tonumber(arg[2]) or 40, tonumber(arg[3]) or 31
local images, labels = common.fashion_mnist(data)
local loss_fn = nn.CrossEntropyLoss()

local function parts()
  local model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
    nn.Linear(256, 10))
  local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
  local loader = data.DataLoader(data.TensorDataset(images, labels),
    { batch_size = batch, shuffle = true, drop_last = true })
  return model, optimizer, loader, optim.lr_scheduler.ExponentialLR(optimizer, { gamma = 0.9999 })
end

--- Endless batches of a loader.
local function batches(loader)
  return coroutine.wrap(function()
    while true do
      for x, y in loader:iter() do coroutine.yield(x, y) end
    end
  end)
end

local function bare()
  local model, optimizer, loader, scheduler = parts()
  local next_batch = batches(loader)
  return function()
    local x, y = next_batch()
    local loss = loss_fn(model(x), y)
    loss:backward()
    nn.utils.clip_grad_norm_(model:parameters(), 1.0)
    optimizer:step()
    scheduler:step()
    optimizer:zero_grad()
  end
end

local function accelerated()
  local accelerator = accelerate.Accelerator()
  local model, optimizer, loader, scheduler = accelerator:prepare(parts())
  local next_batch, x, y = batches(loader), nil, nil
  local function body()
    local loss = loss_fn(model(x), y)
    accelerator:backward(loss)
    if accelerator.sync_gradients then accelerator:clip_grad_norm_(model:parameters(), 1.0) end
    optimizer:step()
    scheduler:step()
    optimizer:zero_grad()
  end
  return function()
    x, y = next_batch()
    accelerator:accumulate(model, body)
  end
end

local function block(step)
  local began = os.clock()
  for _ = 1, steps do step() end
  return (os.clock() - began) / steps
end

local plain, with = bare(), accelerated()
for _ = 1, 3 do block(plain) block(with) end
local ratios, a, b = {}, {}, {}
for i = 1, rounds do
  if i % 2 == 0 then a[i], b[i] = block(plain), block(with) else b[i], a[i] = block(with), block(plain) end
  ratios[i] = b[i] / a[i]
end
common.emit { batch = batch, bare_ms = common.median(a) * 1e3, accelerated_ms = common.median(b) * 1e3,
  overhead_percent = (common.median(ratios) - 1) * 100 }
