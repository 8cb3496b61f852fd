-- A denoising U-Net on noise: group norms, SiLU, 3 x 3 convolutions, time embeddings, attention at
-- the two coarsest scales, skip connections; AdamW; one line of JSON.
--
--   accel-run [--num_processes 2] --num_cpu_threads_per_process 1 bench/unet.lua [PRESET=small]
--     [STEPS=10] [WARMUP=2] [FLAGS of common.lua]
--
-- The same work as peer/unet.py, on random images with random noise added: the model predicts the
-- noise.  A step is: forward, zero_grad, backward, optimizer.
local tensor, nn, optim = require "accelerate.tensor", require "accelerate.nn", require "accelerate.optim"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")
local F = nn.functional

--                width side batch groups heads
local PRESETS = { small = { 64, 32, 16, 32, 4 }, large = { 128, 64, 4, 32, 4 }, smoke = { 8, 8, 2, 4, 2 } }
local SCALES = { 1, 2, 4 } -- widths of the scales, in multiples of the first

-- Two convolutions, each behind a group norm and a SiLU, with the time added in between.
local Residual = nn.class "Residual"

function Residual:init(from, to, embedding, groups)
  self.norm1, self.conv1 = nn.GroupNorm(groups, from), nn.Conv2d(from, to, 3, { padding = 1 })
  self.time = nn.Linear(embedding, to)
  self.norm2, self.conv2 = nn.GroupNorm(groups, to), nn.Conv2d(to, to, 3, { padding = 1 })
  self.skip = from ~= to and nn.Conv2d(from, to, 1) or nn.Identity()
end

function Residual:forward(x, time)
  local y = self.conv1(F.silu(self.norm1(x)))
  y = y + self.time(F.silu(time)):unsqueeze(-1):unsqueeze(-1)
  return self.conv2(F.silu(self.norm2(y))) + self.skip(x)
end

-- Attention of all pixels to all pixels.
local Attention = nn.class "Attention"

function Attention:init(width, groups, heads)
  self.heads, self.norm = heads, nn.GroupNorm(groups, width)
  self.qkv, self.proj = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)
end

function Attention:forward(x)
  local n, c, h, w = unpack(x.shape)
  local qkv = self.qkv(self.norm(x)):view(n, 3, self.heads, c / self.heads, h * w):transpose(4, 5)
  local y = F.scaled_dot_product_attention(qkv:select(2, 1), qkv:select(2, 2), qkv:select(2, 3))
  return x + self.proj(y:transpose(3, 4):reshape(n, c, h, w))
end

local UNet = nn.class "UNet"

function UNet:init(width, groups, heads)
  local embedding, last = 4 * width, #SCALES
  local function residual(from, to) return Residual(from, to, embedding, groups) end
  self.width = width
  self.time = nn.Sequential(nn.Linear(width, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
  self.first = nn.Conv2d(3, width, 3, { padding = 1 })
  self.down, self.up = nn.ModuleList(), nn.ModuleList()
  local from = width
  for s, times in ipairs(SCALES) do
    local to = times * width
    self.down:append(nn.ModuleDict {
      block = residual(from, to),
      attention = s > 1 and Attention(to, groups, heads) or nn.Identity(),
      smaller = s < last and nn.Conv2d(to, to, 3, { stride = 2, padding = 1 }) or nn.Identity(),
    })
    from = to
  end
  self.middle = residual(from, from)
  for s = last, 1, -1 do
    local to = SCALES[s] * width
    self.up:append(nn.ModuleDict {
      block = residual(from + to, to),
      attention = s > 1 and Attention(to, groups, heads) or nn.Identity(),
      larger = s > 1 and nn.Conv2d(to, to, 3, { padding = 1 }) or nn.Identity(),
    })
    from = to
  end
  self.norm, self.last = nn.GroupNorm(groups, width), nn.Conv2d(width, 3, 3, { padding = 1 })
end

-- Sines and cosines of the times (n), of falling frequencies: (n, width).
function UNet:embed(times)
  local half = self.width / 2
  local angles = times:unsqueeze(2) * tensor.exp(tensor.arange(half) * (-math.log(10000) / half))
  return self.time(tensor.cat({ angles:sin(), angles:cos() }, 2))
end

function UNet:forward(x, times)
  local time, kept = self:embed(times), {}
  x = self.first(x)
  for s, scale in ipairs(self.down) do
    kept[s] = scale.attention(scale.block(x, time))
    x = scale.smaller(kept[s])
  end
  x = self.middle(x, time)
  for s, scale in ipairs(self.up) do
    x = scale.attention(scale.block(tensor.cat({ x, kept[#SCALES + 1 - s] }, 2), time))
    if s < #SCALES then x = scale.larger(F.interpolate(x, { scale_factor = 2 })) end
  end
  return self.last(F.silu(self.norm(x)))
end

local before = common.resident()
local flags = common.flags(arg)
local preset = arg[1] or "small"
local width, side, batch, groups, heads = common.sizes(PRESETS, preset)
flags.batch = flags.batch or batch
flags.steps, flags.warmup = flags.steps or tonumber(arg[2]) or 10, flags.warmup or tonumber(arg[3]) or 2
local accelerator = common.accelerator(flags)
tensor.manual_seed(0)
local model = UNet(width, groups, heads)
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-4 })
model, optimizer = accelerator:prepare(model, optimizer)

local function next_batch()
  local images, noise = tensor.randn(flags.batch, 3, side, side), tensor.randn(flags.batch, 3, side, side)
  local times = tensor.rand(flags.batch)
  local keep = times:view(-1, 1, 1, 1)
  return (images * (1 - keep):sqrt() + noise * keep:sqrt()):to(accelerator.device),
    (times * 1000):to(accelerator.device), noise:to(accelerator.device)
end
local about = { batch = flags.batch, before = before, units = flags.batch, preset = preset }
common.train(accelerator, flags, about, next_batch, function(x, times, noise)
  local loss = F.mse_loss(model(x, times), noise)
  optimizer:zero_grad()
  accelerator:backward(loss)
  optimizer:step()
  return loss:detach()
end)
