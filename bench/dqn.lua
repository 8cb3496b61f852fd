-- A loop of tiny ops, as in deep Q-learning: an action of one state, a batch of 32 out of a memory,
-- the loss against a target net, Adam; one line of JSON.
--
--   accel-run --num_cpu_threads_per_process 1 bench/dqn.lua [STEPS=500] [WARMUP=50]
--     [FLAGS of common.lua]
--
-- The same work as peer/dqn.py: states of 4 numbers, 2 actions, nets 4-64-64-2.
local tensor, nn, optim = require "accelerate.tensor", require "accelerate.nn", require "accelerate.optim"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local STATES, ACTIONS, WIDTH, BATCH, MEMORY, GAMMA = 4, 2, 64, 32, 1000, 0.99

local flags = common.flags(arg)
flags.steps, flags.warmup = flags.steps or tonumber(arg[1]) or 500, flags.warmup or tonumber(arg[2]) or 50

local before = common.resident()
local accelerator = common.accelerator(flags)
local device = accelerator.device
tensor.manual_seed(1)

local function net()
  return nn.Sequential(nn.Linear(STATES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
    nn.Linear(WIDTH, ACTIONS))
end
local model, target = net(), net():to(device)
target:load_state_dict(model:state_dict())
local optimizer = optim.Adam(model:parameters(), { lr = 1e-3 })
model, optimizer = accelerator:prepare(model, optimizer)
local states, followers = tensor.randn(MEMORY, STATES):to(device), tensor.randn(MEMORY, STATES):to(device)
local actions = tensor.randint(0, ACTIONS, { MEMORY, 1 }):to(device)
local rewards, ends = tensor.randn(MEMORY):to(device), tensor.rand(MEMORY):lt(0.05):float():to(device)
local at = 0

common.train(accelerator, flags, { before = before, units = BATCH },
  function()
    at = at % MEMORY + 1
    return states:narrow(1, at, 1), tensor.randint(0, MEMORY, { BATCH }):to(device)
  end,
  function(state, pick)
    tensor.no_grad(function() actions:narrow(1, at, 1):copy_(model(state):argmax(2, true)) end)
    local best = tensor.no_grad(function()
      local value = target(followers:index_select(1, pick)):amax(2)
      return rewards:index_select(1, pick) + (1 - ends:index_select(1, pick)) * value * GAMMA
    end)
    local chosen = model(states:index_select(1, pick)):gather(2, actions:index_select(1, pick)):squeeze(2)
    local loss = nn.functional.smooth_l1_loss(chosen, best)
    optimizer:zero_grad()
    accelerator:backward(loss)
    optimizer:step()
    return loss:detach()
  end)
