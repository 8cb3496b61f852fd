-- A GAN in half precision: two models, two optimizers, one scaler.
local accelerate = require "accelerate"
local nn, optim, data, tensor = accelerate.nn, accelerate.optim, accelerate.data, accelerate.tensor
accelerate.utils.set_seed(7)
local accelerator = accelerate.Accelerator { mixed_precision = "fp16" }

local real = tensor.randn(1024, 2) * 0.2 + tensor.tensor({ 2.0, -1.0 })
local loader = data.DataLoader(data.TensorDataset(real),
  { batch_size = 64, shuffle = true, drop_last = true })

local latent = 4
local generator = nn.Sequential(nn.Linear(latent, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32),
  nn.LeakyReLU(0.2), nn.Linear(32, 2))
local discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
local opt_g = optim.Adam(generator:parameters(), { lr = 2e-3, betas = { 0.5, 0.999 } })
local opt_d = optim.Adam(discriminator:parameters(), { lr = 2e-3, betas = { 0.5, 0.999 } })
local bce = nn.BCEWithLogitsLoss()
generator, discriminator, opt_g, opt_d, loader =
  accelerator:prepare(generator, discriminator, opt_g, opt_d, loader)

local fixed = tensor.randn(256, latent, { device = accelerator.device })
for epoch = 1, 12 do
  local d_sum, g_sum, steps = 0, 0, 0
  for batch in loader:iter() do
    local n = batch:size(1)
    local ones = tensor.ones(n, 1, { device = batch.device })
    local zeros = tensor.zeros(n, 1, { device = batch.device })
    -- the discriminator
    opt_d:zero_grad()
    local fake = generator(tensor.randn(n, latent, { device = accelerator.device }))
    local d_loss = bce(discriminator(batch), ones) + bce(discriminator(fake:detach()), zeros)
    accelerator:backward(d_loss)
    accelerator:clip_grad_norm_(discriminator:parameters(), 1)
    opt_d:step()
    -- the generator
    opt_g:zero_grad()
    local g_loss = bce(discriminator(fake), ones)
    accelerator:backward(g_loss)
    accelerator:clip_grad_norm_(generator:parameters(), 1)
    opt_g:step()
    d_sum, g_sum, steps = d_sum + d_loss:item(), g_sum + g_loss:item(), steps + 1
  end
  if epoch % 4 == 0 then
    accelerator:print(("epoch %d D %.3f G %.3f"):format(epoch, d_sum / steps, g_sum / steps))
  end
end
local made = tensor.no_grad(generator, fixed):float()
print(made:mean(1), made:std(1))
local far = (made:mean(1) - tensor.tensor({ 2.0, -1.0 })):abs():max():item()
print(far < 1 and "near" or "far away", far)
