-- all_reduce (sum, float32, in place) of 1 KB, 1 MB and 64 MB; a barrier before each, not timed;
-- one line of JSON.
--
--   accel-run --num_processes 2 --num_cpu_threads_per_process 1 bench/allreduce.lua
--
-- The same work as peer/allreduce.py.  What is timed is the collective itself, below
-- Accelerator:reduce, which copies.
local tensor = require "accelerate.tensor"
local dist = require("accelerate.core").dist
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local SIZES = { { "1KB", 2 ^ 10, 2000 }, { "1MB", 2 ^ 20, 300 }, { "64MB", 2 ^ 26, 20 } }

local result = { ranks = dist.world_size() }
for _, row in ipairs(SIZES) do
  local name, bytes, count = row[1], row[2], row[3]
  local x = tensor.zeros(bytes / 4)
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
