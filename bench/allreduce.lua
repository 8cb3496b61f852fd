-- all_reduce (sum, float32, in place) of 1 KB, 1 MB and 64 MB, and of a prepared model's 64 MB of
-- gradients; a barrier before each, not timed; one line of JSON.
--
--   accel-run --num_processes 2 --num_cpu_threads_per_process 1 bench/allreduce.lua
--
-- The same work as peer/allreduce.py.  What is timed is the collective itself, below
-- Accelerator:reduce, which copies.
local accelerate = require "accelerate"
local nn = require "accelerate.nn"
local tensor = require "accelerate.tensor"
local dist = require("accelerate.core").dist
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local function gradients()
  local model = accelerate.Accelerator():prepare(nn.Linear(4096, 4096, { bias = false }))
  model(tensor.zeros(1, 4096)):sum():backward()
  return model.weight.grad
end

local ROWS = {
  { "1KB", tensor.zeros(2 ^ 8), 2000 }, { "1MB", tensor.zeros(2 ^ 18), 300 },
  { "64MB", tensor.zeros(2 ^ 24), 20 }, { "gradients", gradients(), 20 } }

local result = { ranks = dist.world_size() }
for _, row in ipairs(ROWS) do
  local name, x, count = row[1], row[2], row[3]
  local times = {}
  for i = 1, 5 + count do
    dist.barrier()
    local began = common.now()
    dist.all_reduce(x, "sum")
    if i > 5 then times[#times + 1] = common.now() - began end
  end
  result[name .. "_us"] = common.median(times) * 1e6
end
if dist.rank() == 0 then common.emit(result) end
