--- Small models trained on the device and on the CPU: the losses agree, and nothing is left behind.
local device = require "spec.support.device"
local tensor = require "accelerate.tensor"
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local F = require "accelerate.nn.functional"

if not device.name then
  describe("training on the device", function() it("needs one", function() pending(device.reason) end) end)
  return
end

local VOCABULARY, WIDTH, LENGTH, BATCH = 37, 16, 12, 3

-- A layer of a language model, its parts by name.
local function language_model()
  return { tokens = nn.Embedding(VOCABULARY, WIDTH), norm = nn.LayerNorm(WIDTH),
    qkv = nn.Linear(WIDTH, 3 * WIDTH), out = nn.Linear(WIDTH, WIDTH),
    last = nn.RMSNorm(WIDTH), head = nn.Linear(WIDTH, VOCABULARY) }
end

local function language_loss(m, ids)
  local x = m.tokens(ids)
  local q, k, v = m.qkv(m.norm(x)):split_heads(2)
  local seen = F.scaled_dot_product_attention(q, k, v, { is_causal = true })
  x = x + m.out(seen:transpose(2, 3):reshape(BATCH, LENGTH, WIDTH))
  local logits = m.head(m.last(F.gelu(x)))
  return F.cross_entropy(logits:narrow(2, 1, LENGTH - 1):reshape(-1, VOCABULARY),
    ids:narrow(2, 2, LENGTH - 1):reshape(-1))
end

local function picture_model()
  return { conv = nn.Conv2d(2, 6, 3, { padding = 1 }), norm = nn.BatchNorm2d(6), head = nn.Linear(6 * 16, 5) }
end

local function picture_loss(m, x)
  local h = F.max_pool2d(F.relu(m.norm(m.conv(x))), 2)
  return F.cross_entropy(m.head(h:reshape(x:size(1), -1)),
    (tensor.arange(x:size(1), { device = x.device }) % 5))
end

-- The losses of some steps, with clipping.
local function train(on, build, loss_of, batch, steps)
  tensor.manual_seed(5)
  local model, params = build(), {}
  for _, name in ipairs(
    (function()
      local names = {}
      for n in pairs(model) do names[#names + 1] = n end
      table.sort(names)
      return names
    end)()) do
    model[name]:to(on)
    for _, p in ipairs(model[name]:parameters()) do params[#params + 1] = p end
  end
  local optimizer, losses = optim.AdamW(params, { lr = 0.01 }), {}
  local x = batch:to(on)
  for step = 1, steps do
    local loss = loss_of(model, x)
    optimizer:zero_grad()
    loss:backward()
    core.clip_grad_norm_(params, 1)
    optimizer:step()
    losses[step] = loss:item()
  end
  return losses
end

describe(("training on %s (%s)"):format(device.name, device.kind), function()
  local function agree(build, loss_of, batch)
    local here, there = train("cpu", build, loss_of, batch, 6), train(device.name, build, loss_of, batch, 6)
    for step, loss in ipairs(here) do
      assert.is_true(math.abs(loss - there[step]) <= 2e-4 * math.max(1, loss),
        ("step %d: %g on the device, %g on the CPU"):format(step, there[step], loss))
    end
    assert.is_true(here[6] < here[1])
  end

  it("a language model: embedding, norms, attention, cross-entropy, AdamW, clipping", function()
    tensor.manual_seed(1)
    agree(language_model, language_loss, tensor.randint(0, VOCABULARY, { BATCH, LENGTH }))
  end)

  it("a convolutional network with batch norm and pooling", function()
    tensor.manual_seed(2)
    agree(picture_model, picture_loss, tensor.randn(10, 2, 8, 8))
  end)

  it("gives the same losses again, and keeps no memory", function()
    tensor.manual_seed(3)
    local batch = tensor.randint(0, VOCABULARY, { BATCH, LENGTH })
    local first = train(device.name, language_model, language_loss, batch, 3)
    collectgarbage() collectgarbage()
    local before = core.memory_stats(device.name).live_bytes
    assert.are.same(first, train(device.name, language_model, language_loss, batch, 3))
    collectgarbage() collectgarbage()
    assert.are.equal(before, core.memory_stats(device.name).live_bytes)
  end)
end)
