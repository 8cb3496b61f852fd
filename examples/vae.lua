-- A variational autoencoder of Fashion-MNIST: images as points of a space of 16 dimensions, and new
-- images from points that are drawn.
--
--   accel-run examples/vae.lua
--   accel-run --num_processes 2 examples/vae.lua --max_steps 500
--
-- The loss is the negative evidence lower bound in nats per image: from about 550 at the first step
-- to below 270 after the 500 steps.  At the end a drawn image is shown in characters.  Options,
-- with their defaults:
--   --max_steps 500  --batch_size 64 (of each process)  --lr 1e-3  --seed 0  --data DIRECTORY
local accelerate = require "accelerate"
local data, nn, optim, tensor, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor,
  accelerate.utils
local F = nn.functional

local options = utils.options.arguments("vae.lua", arg, {
  max_steps = { "integer", default = 500, min = 1 },
  batch_size = { "integer", default = 64, min = 1 },
  lr = { "number", default = 1e-3, above = 0 },
  seed = { "integer", default = 0, min = 0 },
  data = { "string", optional = true },
})
utils.set_seed(options.seed)

local LATENT, WIDTH, PIXELS = 16, 256, 28 * 28
local VAE = nn.class "VAE"

function VAE:init()
  self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, WIDTH), nn.ReLU(),
    nn.Linear(WIDTH, 2 * LATENT))
  self.decoder = nn.Sequential(nn.Linear(LATENT, WIDTH), nn.ReLU(), nn.Linear(WIDTH, PIXELS))
end

-- The negative evidence lower bound, mean over the images.
function VAE:forward(images)
  local mean, log_variance = self.encoder(images):chunk(2, 2)
  local noise = tensor.randn_like(mean)
  local scores = self.decoder(mean + (log_variance * 0.5):exp() * noise)
  local missed = F.binary_cross_entropy_with_logits(scores, images:flatten(2), { reduction = "sum" })
  local surplus = (mean:square() + log_variance:exp() - log_variance - 1):sum() * 0.5
  return (missed + surplus) / images:size(1)
end

local accelerator = accelerate.Accelerator {}
local set = data.FashionMNIST { split = "train", root = options.data }
local model = VAE()
local optimizer = optim.Adam(model:parameters(), { lr = options.lr })
local loader = data.DataLoader(set, { batch_size = options.batch_size, shuffle = true, drop_last = true })
model, optimizer, loader = accelerator:prepare(model, optimizer, loader)

local step = 0
repeat
  for images in loader:iter() do
    local loss = model(images)
    accelerator:backward(loss)
    optimizer:step()
    optimizer:zero_grad()
    step = step + 1
    if step == 1 or step % 50 == 0 or step == options.max_steps then
      accelerator:print(("step %d: loss %.2f"):format(step, loss:item()))
    end
    if step == options.max_steps then break end
  end
until step == options.max_steps

-- Every second row of pixels, two characters for three columns or so.
local function show(image)
  local shades, rows = " .:-=+*#%@", image:view(28, 28):totable()
  for y = 1, 28, 2 do
    local line = {}
    for x = 1, 28 do
      local at = math.floor(rows[y][x] * 9.99) + 1
      line[x] = shades:sub(at, at)
    end
    print(table.concat(line))
  end
end

if accelerator.is_main_process then
  tensor.no_grad(function()
    local point = tensor.randn(1, LATENT):to(accelerator.device)
    show(model.decoder(point):sigmoid():cpu())
  end)
end
