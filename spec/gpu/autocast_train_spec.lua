--- A GPT, a BERT and a small ResNet under automatic casting: losses and gradients of a few steps on
--- the device are the CPU's.  Their float32 residual stream meets half results in every layer.
local device = require "spec.support.device"
local tensor = require "accelerate.tensor"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local F = require "accelerate.nn.functional"

if not device.name then
  describe("training under automatic casting",
    function() it("needs a device", function() pending(device.reason) end) end)
  return
end

local VOCABULARY, WIDTH, HEADS, LENGTH, BATCH, STEPS = 41, 32, 4, 19, 3, 3

local function gpt()
  local m = nn.ModuleDict { tokens = nn.Embedding(VOCABULARY, WIDTH),
    places = nn.Embedding(LENGTH, WIDTH), last = nn.LayerNorm(WIDTH),
    head = nn.Linear(WIDTH, VOCABULARY, { bias = false }) }
  for k = 1, 2 do
    m["before" .. k], m["between" .. k] = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
    m["qkv" .. k], m["out" .. k] = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
    m["up" .. k], m["down" .. k] = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
  end
  return m
end

local function gpt_loss(m, ids)
  local x = m.tokens(ids) + m.places(tensor.arange(LENGTH, { device = ids.device }))
  for k = 1, 2 do
    local q, key, v = m["qkv" .. k](m["before" .. k](x)):split_heads(HEADS)
    local seen = F.scaled_dot_product_attention(q, key, v, { is_causal = true })
    x = x + m["out" .. k](seen:transpose(2, 3):reshape(BATCH, LENGTH, WIDTH))
    x = x + m["down" .. k](F.gelu(m["up" .. k](m["between" .. k](x)), "tanh"))
  end
  local logits = m.head(m.last(x)):narrow(2, 1, LENGTH - 1)
  return F.cross_entropy(logits:reshape(-1, VOCABULARY), ids:narrow(2, 2, LENGTH - 1):reshape(-1))
end

local function bert()
  local m = nn.ModuleDict { tokens = nn.Embedding(VOCABULARY, WIDTH), first = nn.LayerNorm(WIDTH),
    head = nn.Linear(WIDTH, 2), pooler = nn.Linear(WIDTH, WIDTH) }
  for k = 1, 2 do
    m["qkv" .. k], m["out" .. k] = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
    m["up" .. k], m["down" .. k] = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
    m["after" .. k], m["last" .. k] = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
  end
  return m
end

-- The last five tokens of the second sequence are padding, hidden by the lowest number of the type.
local function bert_loss(m, ids)
  local hidden = tensor.zeros(BATCH, 1, 1, LENGTH, { device = ids.device })
  hidden[2]:narrow(3, LENGTH - 4, 5):fill_(-3.4028234663852886e38)
  local x = m.first(m.tokens(ids))
  for k = 1, 2 do
    local q, key, v = m["qkv" .. k](x):split_heads(HEADS)
    local seen = F.scaled_dot_product_attention(q, key, v, hidden)
    x = m["after" .. k](x + m["out" .. k](seen:transpose(2, 3):reshape(BATCH, LENGTH, WIDTH)))
    x = m["last" .. k](x + m["down" .. k](F.gelu(m["up" .. k](x))))
  end
  local pooled = m.pooler(x:select(2, 1)):tanh()
  return F.cross_entropy(m.head(pooled), tensor.arange(BATCH, { device = ids.device }) % 2)
end

local function resnet()
  return nn.ModuleDict { stem = nn.Conv2d(3, 8, 3, { padding = 1, bias = false }), norm = nn.BatchNorm2d(8),
    a = nn.Conv2d(8, 8, 3, { padding = 1, bias = false }), norm_a = nn.BatchNorm2d(8),
    b = nn.Conv2d(8, 16, 3, { padding = 1, stride = 2, bias = false }), norm_b = nn.BatchNorm2d(16),
    short = nn.Conv2d(8, 16, 1, { stride = 2, bias = false }), head = nn.Linear(16, 5) }
end

local function resnet_loss(m, x)
  local h = F.relu(m.norm(m.stem(x)))
  h = h + F.relu(m.norm_a(m.a(h)))
  h = F.relu(m.norm_b(m.b(h)) + m.short(h))
  h = F.adaptive_avg_pool2d(h, 1):reshape(x:size(1), -1)
  return F.cross_entropy(m.head(h), tensor.arange(x:size(1), { device = x.device }) % 5)
end

-- Losses of some steps, and each step's gradients by name.
local function train(on, lower, build, loss_of, batch)
  tensor.manual_seed(5)
  local model = build():to(on)
  local optimizer = optim.SGD(model:parameters(), { lr = 0.02, momentum = 0.9 })
  local x, losses, grads = batch:to(on), {}, {}
  local scale = lower == "float16" and 256 or 1
  for step = 1, STEPS do
    local loss = tensor.autocast({ dtype = lower }, function() return loss_of(model, x) end)
    optimizer:zero_grad()
    ;(loss * scale):backward()
    grads[step] = {}
    for name, p in model:named_parameters() do
      p.grad:mul_(1 / scale)
      grads[step][name] = p.grad:to("cpu"):clone()
    end
    optimizer:step()
    losses[step] = loss:item()
  end
  return losses, grads
end

-- Relative errors in the 2-norm of a gradient: what rounding to a half type in another order
-- leaves. A gradient that is 0 but for rounding is held against a fiftieth of the step's largest
-- one.
local TOLERANCE = { bfloat16 = 4e-2, float16 = 6e-3 }
-- After the first step the weights differ by such roundings, and a unit whose input is nearly 0 may
-- be on in one network and off in the other, which shows in a network of ReLUs.
local LATER = { ResNet = 0.15 }

describe(("training under automatic casting on %s (%s)"):format(device.name, device.kind), function()
  local function agree(what, build, loss_of, batch)
    for _, lower in ipairs { "bfloat16", "float16" } do
      local here, grads = train("cpu", lower, build, loss_of, batch)
      local there, grads_there = train(device.name, lower, build, loss_of, batch)
      local tolerance = TOLERANCE[lower]
      for step = 1, STEPS do
        assert.is_true(math.abs(here[step] - there[step]) <= tolerance / 4 * here[step],
          ("%s, %s, step %d: loss %g on the device, %g on the CPU"):format(what, lower, step, there[step],
            here[step]))
        local most = 0
        for _, g in pairs(grads[step]) do most = math.max(most, g:norm():item()) end
        for name, g in pairs(grads[step]) do
          local off = (g - grads_there[step][name]):norm():item()
          local scale = math.max(g:norm():item(), most / 50)
          local most_off = step > 1 and LATER[what] or tolerance * step
          assert.is_true(off <= most_off * scale,
            ("%s, %s, step %d, %s: off by %g of %g"):format(what, lower, step, name, off, scale))
        end
      end
      assert.is_true(here[STEPS] < here[1])
    end
  end

  it("a GPT: the CPU's losses and gradients", function()
    tensor.manual_seed(1)
    agree("GPT", gpt, gpt_loss, tensor.randint(0, VOCABULARY, { BATCH, LENGTH }))
  end)

  it("a BERT with padding: the CPU's losses and gradients", function()
    tensor.manual_seed(2)
    agree("BERT", bert, bert_loss, tensor.randint(0, VOCABULARY, { BATCH, LENGTH }))
  end)

  it("a ResNet: the CPU's losses and gradients", function()
    tensor.manual_seed(3)
    agree("ResNet", resnet, resnet_loss, tensor.randn(20, 3, 8, 8))
  end)
end)
