-- Optimizer steps over 16 million parameters of float32 in one flat buffer, against the memory
-- traffic that they cannot do without; one line of JSON.
--
--   accel-run --num_cpu_threads_per_process 1 bench/optim.lua [MILLIONS=16] [ROUNDS=9]
--     [KINDS=AdamW,SGD,...]
--
-- <name>_ms is the median time of a step; <name>_share the bandwidth at which it moved its bytes,
-- as a share of a copy's in the same run, both at their best, so that other processes disturb it
-- less.  Bytes are what is read and written of parameters, gradients and states, and of the copy,
-- what is read and written.
local core = require "accelerate.core"
local optim = require "accelerate.optim"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local count, rounds = (tonumber(arg[1]) or 16) * 2 ^ 20, tonumber(arg[2]) or 9

-- name, class, options, numbers of 4 bytes moved for each parameter
local ROWS = {
  { "sgd", "SGD", { lr = 1e-3 }, 3 },
  { "momentum", "SGD", { lr = 1e-3, momentum = 0.9 }, 5 },
  { "lion", "Lion", { lr = 1e-4 }, 5 },
  { "adam", "Adam", { lr = 1e-3 }, 7 },
  { "adamw", "AdamW", { lr = 1e-3 }, 7 },
  { "amsgrad", "AdamW", { lr = 1e-3, amsgrad = true }, 9 },
  { "adamax", "Adamax", { lr = 1e-3 }, 7 },
  { "nadam", "NAdam", { lr = 1e-3 }, 7 },
  { "radam", "RAdam", { lr = 1e-3 }, 7 },
  { "adagrad", "Adagrad", { lr = 1e-3 }, 5 },
  { "rmsprop", "RMSprop", { lr = 1e-3 }, 5 },
  { "centered", "RMSprop", { lr = 1e-3, momentum = 0.9, centered = true }, 9 },
  { "adafactor", "Adafactor", { lr = 1e-3 }, 6 },  -- gradients three times, parameters twice, written once
}

local function timed(fn)
  local began = common.now()
  fn()
  return common.now() - began
end

local side = 4096
local a, b = core.ones(count), core.zeros(count)
local grad = core.randn(side, count / side)
local copies, result = {}, {}
local function copy() b:copy_(a) end
copy()

for _, row in ipairs(ROWS) do
  if not arg[3] or ("," .. arg[3]:lower() .. ","):find("," .. row[1] .. ",", 1, true) then
    local p = core.randn(side, count / side):requires_grad_()
    local optimizer = optim[row[2]]({ p }, row[3])
    p.grad = grad
    local times = {}
    optimizer:step()
    optimizer:step()
    for i = 1, rounds do
      copies[#copies + 1] = timed(copy)
      times[i] = timed(function() optimizer:step() end)
    end
    result[row[1] .. "_ms"] = common.median(times) * 1e3
    row.best = math.min(unpack(times))
  end
end
local bandwidth = 8 * count / math.min(unpack(copies))
result.copy_gbs = bandwidth / 1e9
for _, row in ipairs(ROWS) do
  if row.best then result[row[1] .. "_share"] = row[4] * 4 * count / row.best / bandwidth end
end
common.emit(result)
