-- REINFORCE: a small network learns to balance a pole on a cart, by trying.
--
--   accel-run examples/reinforce.lua
--   accel-run --num_processes 2 examples/reinforce.lua
--
-- The cart and the pole are plain Lua; each step of a game is a forward pass of one row, where the
-- time of a call counts for more than the arithmetic.  A game ends when the pole falls over or
-- after 200 steps; the mean length of the last 20 games goes from about 20 to above 150 in 300
-- games.  Every rank plays games of its own.  The last line is `mean length xxx.x`.  Options, with
-- their defaults:
--   --games 300 (of each process)  --lr 1e-2  --discount 0.99  --seed 1
local accelerate = require "accelerate"
local nn, optim, tensor, utils = accelerate.nn, accelerate.optim, accelerate.tensor, accelerate.utils

local options = utils.options.arguments("reinforce.lua", arg, {
  games = { "integer", default = 300, min = 1 },
  lr = { "number", default = 1e-2, above = 0 },
  discount = { "number", default = 0.99, above = 0, max = 1 },
  seed = { "integer", default = 1, min = 0 },
})

-- ---- the cart: Barto, Sutton and Anderson, 1983

local GRAVITY, CART, POLE, HALF, FORCE, STEP = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
local LONGEST = 200

local function start()
  local function small() return math.random() * 0.1 - 0.05 end
  return { small(), small(), small(), small() } -- place, speed, angle, speed of the angle
end

-- Pushes the cart to the left (0) or to the right (1); true when the pole has fallen.
local function push(s, action)
  local x, v, angle, w = s[1], s[2], s[3], s[4]
  local force = action == 1 and FORCE or -FORCE
  local sin, cos, mass = math.sin(angle), math.cos(angle), CART + POLE
  local push_ = (force + POLE * HALF * w * w * sin) / mass
  local turn = (GRAVITY * sin - cos * push_) / (HALF * (4 / 3 - POLE * cos * cos / mass))
  s[1], s[2] = x + STEP * v, v + STEP * (push_ - POLE * HALF * turn * cos / mass)
  s[3], s[4] = angle + STEP * w, w + STEP * turn
  return math.abs(s[1]) > 2.4 or math.abs(s[3]) > 0.2095
end

-- ---- the policy

local accelerator = accelerate.Accelerator { cpu = true }
utils.set_seed(options.seed, { device_specific = true })
local policy = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
local optimizer = optim.Adam(policy:parameters(), { lr = options.lr })
policy, optimizer = accelerator:prepare(policy, optimizer)

-- Plays a game; returns the states and actions.
local function play()
  local s, states, actions = start(), {}, {}
  repeat
    local odds = policy(tensor({ s })):softmax(2):totable()[1]
    local action = math.random() < odds[2] and 1 or 0
    states[#states + 1], actions[#actions + 1] = { s[1], s[2], s[3], s[4] }, action
  until push(s, action) or #actions == LONGEST
  return states, actions
end

-- What came after each step, later steps counting less, with mean 0 and deviation 1.
local function returns(length)
  local list, sum = {}, 0
  for i = length, 1, -1 do
    sum = 1 + options.discount * sum
    list[i] = sum
  end
  local t = tensor(list)
  return (t - t:mean()) / (t:std() + 1e-6)
end

local lengths = {}
for game = 1, options.games do
  local states, actions = tensor.no_grad(play)
  local length = #actions
  local logs = policy(tensor(states)):log_softmax(2)
  local chosen = logs:gather(2, tensor(actions, { dtype = "int64" }):view(length, 1)):squeeze(2)
  local loss = -(chosen * returns(length)):sum() / 100
  accelerator:backward(loss)
  accelerator:clip_grad_norm_(policy:parameters(), 1.0)
  optimizer:step()
  optimizer:zero_grad()
  lengths[#lengths + 1] = length
  if #lengths > 20 then table.remove(lengths, 1) end
  if game % 50 == 0 or game == options.games then
    local mean = accelerator:gather(tensor(lengths)):mean():item()
    accelerator:print(("game %d: mean length %.1f"):format(game, mean))
  end
end
accelerator:print(("mean length %.1f"):format(accelerator:gather(tensor(lengths)):mean():item()))
