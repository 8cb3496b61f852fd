-- DQN: a network learns the worth of each action by trying, from a memory of what happened.
--
--   accel-run examples/dqn.lua
--   accel-run --num_processes 2 examples/dqn.lua
--
-- The game is a pole on a cart, in plain Lua: it ends when the pole falls over or after 200 steps.
-- Each step of the game is followed by a step of the optimizer over 64 remembered ones, with a
-- target network that follows slowly (Mnih et al., 2015; double: van Hasselt et al., 2016). Every
-- rank plays games of its own; gradients are shared. The last line is `mean length xxx.x` of the
-- last 20 games: from about 20 at the start to above 170 in a few seconds. Options, with their
-- defaults:
--   --max_steps 12000 (of each process)  --batch_size 64  --lr 5e-4  --discount 0.99  --seed 1
local accelerate = require "accelerate"
local nn, optim, tensor, utils = accelerate.nn, accelerate.optim, accelerate.tensor, accelerate.utils

local options = utils.options.arguments("dqn.lua", arg, {
  max_steps = { "integer", default = 12000, min = 1 },
  batch_size = { "integer", default = 64, min = 1 },
  lr = { "number", default = 5e-4, above = 0 },
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

-- The state after a push to the left (0) or to the right (1), and whether the pole has fallen.
local function push(s, action)
  local x, v, angle, w = s[1], s[2], s[3], s[4]
  local force = action == 1 and FORCE or -FORCE
  local sin, cos, mass = math.sin(angle), math.cos(angle), CART + POLE
  local push_ = (force + POLE * HALF * w * w * sin) / mass
  local turn = (GRAVITY * sin - cos * push_) / (HALF * (4 / 3 - POLE * cos * cos / mass))
  local after = { x + STEP * v, v + STEP * (push_ - POLE * HALF * turn * cos / mass), angle + STEP * w,
    w + STEP * turn }
  return after, math.abs(after[1]) > 2.4 or math.abs(after[3]) > 0.2095
end

-- ---- memory: rows of state, state after, action, 0 when the pole fell

local SIZE = 20000
local memory, count = tensor.zeros(SIZE, 10), 0

local function remember(before, after, action, fell)
  memory[count % SIZE + 1] = tensor { before[1], before[2], before[3], before[4], after[1], after[2],
    after[3], after[4], action, fell and 0 or 1 }
  count = count + 1
end

-- ---- networks

local accelerator = accelerate.Accelerator { cpu = true }
utils.set_seed(options.seed, { device_specific = true })
local function network()
  return nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
end
local worth, target = network(), network()
local optimizer = optim.AdamW(worth:parameters(), { lr = options.lr })
worth, optimizer = accelerator:prepare(worth, optimizer)
target:load_state_dict(accelerator:unwrap_model(worth):state_dict())

-- A step of the optimizer over rows of the memory; returns the loss.
local function learn()
  local rows = memory:index_select(1, tensor.randint(0, math.min(count, SIZE), { options.batch_size }))
  local before, after = rows:narrow(2, 1, 4), rows:narrow(2, 5, 4)
  local action, goes_on = rows:narrow(2, 9, 1):long(), rows:narrow(2, 10, 1)
  local wanted = tensor.no_grad(function()
    local best = worth(after):argmax(2, true)
    return target(after):gather(2, best) * goes_on * options.discount + 1
  end)
  local loss = nn.functional.smooth_l1_loss(worth(before):gather(2, action), wanted)
  accelerator:backward(loss)
  accelerator:clip_grad_norm_(worth:parameters(), 10)
  optimizer:step()
  optimizer:zero_grad()
  return loss
end

local theirs, ours = target:parameters(), worth:parameters()
local function follow(share)
  tensor.no_grad(function()
    for i, p in ipairs(theirs) do p:lerp_(ours[i], share) end
  end)
end

-- ---- games

local lengths, length, s = {}, 0, start()
local function mean_length()
  local last = tensor({ unpack(lengths, math.max(1, #lengths - 19)) }):mean():view(1)
  return accelerator:gather(last):mean():item()
end

for step = 1, options.max_steps do
  local chance = 0.02 + 0.98 * math.exp(-step / (options.max_steps / 12)) -- of any action
  local action = math.random(0, 1)
  if math.random() > chance then
    action = tensor.no_grad(function() return worth(tensor { s }):argmax(2):item() end)
  end
  local after, fell = push(s, action)
  remember(s, after, action, fell)
  s, length = after, length + 1
  if fell or length == LONGEST then
    lengths[#lengths + 1] = length
    s, length = start(), 0
  end
  if count > options.batch_size then
    learn()
    follow(0.005)
  end
  if step % 1000 == 0 then
    if #lengths == 0 then lengths[1] = length end
    accelerator:print(("step %d: mean length %.1f"):format(step, mean_length()))
  end
end
accelerator:print(("mean length %.1f"):format(mean_length()))
