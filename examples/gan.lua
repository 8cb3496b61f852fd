-- A generative adversarial network: one network draws points, another separates them from real
-- ones, and each learns from the other.
--
--   accel-run examples/gan.lua
--   accel-run --num_processes 2 examples/gan.lua
--
-- The real points stand in eight clusters on a circle, so that one sees at once whether a cluster
-- is forgotten, which is how such training fails. Two models and two optimizers are prepared and
-- step in turn. The last line is `x of 8 clusters, 0.xx of the points in one`: 8 clusters and 0.84
-- to 0.89. Options, with their defaults:
--   --max_steps 5000  --batch_size 128 (of each process)  --lr 2e-3  --seed 0
local accelerate = require "accelerate"
local data, nn, optim, tensor, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor,
  accelerate.utils
local F = nn.functional

local options = utils.options.arguments("gan.lua", arg, {
  max_steps = { "integer", default = 5000, min = 1 },
  batch_size = { "integer", default = 128, min = 2 },
  lr = { "number", default = 2e-3, above = 0 },
  seed = { "integer", default = 0, min = 0 },
})
utils.set_seed(options.seed)
local accelerator = accelerate.Accelerator {}

-- ---- real points

local CLUSTERS, SPREAD, NOISE, WIDTH = 8, 0.05, 8, 64

local angles = tensor.arange(CLUSTERS):float() * (2 * math.pi / CLUSTERS)
local centres = tensor.stack({ angles:cos(), angles:sin() }, 2)
local which = tensor.randint(0, CLUSTERS, { 8192 })
local points = centres:index_select(1, which) + tensor.randn(8192, 2) * SPREAD

-- ---- networks

local function network(from, to)
  return nn.Sequential(nn.Linear(from, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.2),
    nn.Linear(WIDTH, to))
end
local generator, critic = network(NOISE, 2), network(2, 1)
local betas = { 0.5, 0.99 }
local generator_optimizer = optim.Adam(generator:parameters(), { lr = options.lr / 2, betas = betas })
local critic_optimizer = optim.Adam(critic:parameters(), { lr = options.lr, betas = betas })
local loader = data.DataLoader(data.TensorDataset(points),
  { batch_size = options.batch_size, shuffle = true, drop_last = true })
generator, critic, generator_optimizer, critic_optimizer, loader =
  accelerator:prepare(generator, critic, generator_optimizer, critic_optimizer, loader)

local function drawn(count) return generator(tensor.randn(count, NOISE):to(accelerator.device)) end

-- The critic's task: scores above 0 for real points, below 0 for drawn ones. What the points are
-- moved by grows less with time, so that the two sets overlap at first.
local function teach_critic(real, blur)
  local fake = tensor.no_grad(drawn, real:size(1))
  local loss = F.softplus(-critic(real + tensor.randn_like(real) * blur)):mean()
    + F.softplus(critic(fake + tensor.randn_like(fake) * blur)):mean()
  accelerator:backward(loss)
  critic_optimizer:step()
  critic_optimizer:zero_grad()
  return loss
end

-- The generator's: points that the critic takes for real ones.
local function teach_generator(count, blur)
  local fake = drawn(count)
  local loss = F.softplus(-critic(fake + tensor.randn_like(fake) * blur)):mean()
  accelerator:backward(loss)
  generator_optimizer:step()
  generator_optimizer:zero_grad()
  critic_optimizer:zero_grad() -- the loss went through the critic, too
  return loss
end

-- ---- what was learned

-- Clusters that a fair part of 1000 drawn points is in; the share of points that are in one.
local function quality()
  local found = tensor.no_grad(drawn, 1000):cpu()
  local distance, nearest = tensor.cdist(found, centres):min(2)
  local inside, counts, reached = distance:lt(4 * SPREAD), {}, 0
  for i, cluster in ipairs(nearest:masked_select(inside):totable()) do
    counts[cluster] = (counts[cluster] or 0) + 1
    if counts[cluster] == 30 then reached = reached + 1 end
  end
  return reached, inside:float():mean():item(), found
end

local step = 0
repeat
  for real in loader:iter() do
    local blur = 0.3 * (1 - step / options.max_steps) ^ 2
    local critic_loss = teach_critic(real, blur)
    local generator_loss = teach_generator(options.batch_size, blur)
    step = step + 1
    if step == 1 or step % 500 == 0 or step == options.max_steps then
      local reached, share = quality()
      accelerator:print(("step %d: critic %.3f, generator %.3f, %d of 8 clusters, %.2f of the points in one")
        :format(step, critic_loss:item(), generator_loss:item(), reached, share))
    end
    if step == options.max_steps then break end
  end
until step == options.max_steps

-- Shows the points of a square of 3 by 3 in characters.
local function show(found)
  local rows = {}
  for y = 1, 16 do
    rows[y] = {}
    for x = 1, 40 do rows[y][x] = " " end
  end
  for _, p in ipairs(found:totable()) do
    local x, y = math.floor((p[1] + 1.5) / 3 * 40) + 1, math.floor((1.5 - p[2]) / 3 * 16) + 1
    if rows[y] and rows[y][x] then rows[y][x] = "*" end
  end
  for y = 1, 16 do print((table.concat(rows[y]):gsub("%s+$", ""))) end
end

local reached, share, found = quality()
if accelerator.is_main_process then show(found) end
accelerator:print(("%d of 8 clusters, %.2f of the points in one"):format(reached, share))
