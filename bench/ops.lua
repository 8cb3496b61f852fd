-- What an op costs beside its arithmetic: adds of 4 elements, plain, recorded for autograd, and
-- with their backward; one line of JSON.  The same work as peer/ops.py.
--
--   accel-run --num_cpu_threads_per_process 1 bench/ops.lua
local tensor = require "accelerate.tensor"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local ADDS, CHAIN = 100000, 100
local a, b = tensor.ones(4), tensor.ones(4)
local leaf = tensor.ones(4, { requires_grad = true })

local function plain()
  for _ = 1, ADDS do local _ = a + b end
end

local function recorded()
  for _ = 1, ADDS do local _ = leaf + b end
end

local function backward()
  for _ = 1, ADDS / CHAIN do
    local x = leaf
    for _ = 1, CHAIN do x = x + b end
    tensor.grad({ x }, { leaf }, { grad_outputs = { a } })
  end
end

local result = {}
for name, fn in pairs { plain = plain, recorded = recorded, backward = backward } do
  local times = {}
  fn()
  for i = 1, 5 do
    local began = common.now()
    fn()
    times[i] = common.now() - began
  end
  result[name .. "_ns"] = common.median(times) / ADDS * 1e9
end
common.emit(result)
