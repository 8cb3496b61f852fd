-- What it takes to start: an empty script, and a first training step; wall time of the whole
-- process, one line of JSON. The same work as peer/startup.py.  A shell starts the process, as it
-- would a user's: its own millisecond counts.
--
--   accel-run bench/startup.lua
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local host = os.getenv("ACCEL_RUN") or "build/accel-run"
local STEP = [[
local tensor, nn, optim = require "accelerate.tensor", require "accelerate.nn", require "accelerate.optim"
local model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
  nn.Linear(256, 10))
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
local x, y = tensor.randn(64, 784), tensor.randint(0, 10, { 64 })
nn.CrossEntropyLoss()(model(x), y):backward()
optimizer:step()
]]

local function median_ms(code)
  local command, times = ("exec '%s' --num_cpu_threads_per_process 1 -e '%s'"):format(host, code), {}
  for i = 0, 20 do
    local began = common.now()
    if not os.execute(command) then error("failed: " .. command, 0) end
    if i > 0 then times[i] = common.now() - began end
  end
  return common.median(times) * 1e3
end

common.emit { empty_ms = median_ms(""), step_ms = median_ms((STEP:gsub("'", "'\\''"))) }
