-- The profiler: a table of where the time of ten steps went, and a trace for a browser.
--
--   accel-run examples/by_feature/profiler.lua
--   accel-run --num_processes 2 examples/by_feature/profiler.lua --trace_dir traces
--
-- Steps are left out until the run has settled: the schedule waits five, warms up for two and
-- records ten. With --trace_dir every rank writes a file that chrome://tracing and
-- https://ui.perfetto.dev open. The table has a row for each op: most of the time goes to linear
-- and its gradient, `forward` is the range that the script names. The loss falls from about 1.4 to
-- below 0.1. Options, with their defaults:
--   --max_steps 100 (at least 18)  --batch_size 256 (of each process)  --lr 2e-3  --rows 8 (of the
--   table)  --trace_dir FOLDER (no trace)
local accelerate = require "accelerate"
local data, nn, optim, tensor, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor,
  accelerate.utils
local record_function = accelerate.profiler.record_function

local options = utils.options.arguments("profiler.lua", arg, {
  max_steps = { "integer", default = 100, min = 18 }, batch_size = { "integer", default = 256, min = 1 },
  lr = { "number", default = 2e-3, above = 0 }, rows = { "integer", default = 8, min = 1 },
  trace_dir = { "string", optional = true },
})
utils.set_seed(0)

local accelerator = accelerate.Accelerator {}
local x = tensor.randn(8192, 2)
local y = x:select(2, 1):gt(0):long() * 2 + x:select(2, 2):gt(0):long()
local model = nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr })
local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = options.batch_size, shuffle = true })
model, optimizer, loader = accelerator:prepare(model, optimizer, loader)

local function train(prof)
  local step = 0
  while true do
    for points, labels in loader:iter() do
      local scores = record_function("forward", model, points)
      local loss = nn.functional.cross_entropy(scores, labels)
      accelerator:backward(loss)
      optimizer:step()
      optimizer:zero_grad()
      prof:step()
      step = step + 1
      if step % 50 == 1 or step == options.max_steps then
        accelerator:print(("step %d: loss %.4f"):format(step, loss:item()))
      end
      if step == options.max_steps then return end
    end
  end
end

accelerator:profile({
  schedule_option = { wait = 5, warmup = 2, active = 10, ["repeat"] = 1 },
  with_flops = true,
  output_trace_dir = options.trace_dir,
  -- called when the ten steps are recorded
  on_trace_ready = function(prof)
    accelerator:print(prof:key_averages():table { sort_by = "self_cpu_time_total", row_limit = options.rows })
  end,
}, train)
