--- Long loops hold memory flat with no call to collectgarbage: the core counts what tensors hold
--- and drives the collector.  (ACCEL_LONG=1: 5,000 steps and more of each.)
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local accelerate = require "accelerate"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local data = require "accelerate.data"

local flat = require "spec.support.flat"

describe("a long loop", function()
  -- small products: with more threads than free cores they would wait for each other
  local threads = tensor.get_num_threads()
  before_each(function() tensor.set_num_threads(1) end)
  after_each(function() tensor.set_num_threads(threads) end)

  it("of MLP steps holds memory flat #slow", function()
    if flat.cannot then return pending(flat.cannot) end
    local model = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
      nn.Linear(256, 10))
    local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
    local accelerator = accelerate.Accelerator {}
    model, optimizer = accelerator:prepare(model, optimizer)
    local loss_fn = nn.CrossEntropyLoss()
    local images, labels = tensor.rand(1024, 784), tensor.randint(0, 10, { 1024 })
    flat.check(20000, function(i)
      local at = (i % 16) * 64 + 1
      local x, y = images:narrow(1, at, 64):clone(), labels:narrow(1, at, 64)
      accelerator:accumulate(model, function()
        accelerator:backward(loss_fn(model(x), y))
        optimizer:step()
        optimizer:zero_grad()
      end)
    end)
  end)

  it("of LSTM steps, padded and packed, holds memory flat #slow", function()
    if flat.cannot then return pending(flat.cannot) end
    local rnn = nn.utils.rnn
    local Tagger = nn.class("Tagger")
    function Tagger:init()
      self.lstm = nn.LSTM(8, 16, { num_layers = 2, bidirectional = true, dropout = 0.1, batch_first = true })
      self.head = nn.Linear(32, 4)
    end
    function Tagger:forward(x)
      local y, state = self.lstm(x)
      if not core.is_tensor(y) then y = rnn.pad_packed_sequence(y, { batch_first = true }) end
      return self.head(y):mean(2) + state[1]:mean()
    end
    local model = Tagger()
    local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
    local accelerator = accelerate.Accelerator {}
    model, optimizer = accelerator:prepare(model, optimizer)
    local loss_fn = nn.CrossEntropyLoss()
    local x, y = tensor.randn(6, 10, 8), tensor.randint(0, 4, { 6 })
    flat.check(5000, function(i)
      local input = i % 2 == 0 and x * 1
        or rnn.pack_padded_sequence(x, { 10, 7, 7, 4, 2, 1 }, { batch_first = true })
      accelerator:accumulate(model, function()
        accelerator:backward(loss_fn(model(input), y))
        optimizer:step()
        optimizer:zero_grad()
      end)
    end)
  end)

  it("of closures over 100,000 samples in Lua tables, with evaluation that never runs backward, holds " ..
    "memory flat #slow", function()
    if flat.cannot then return pending(flat.cannot) end
    local samples = {}
    for i = 1, 100000 do samples[i] = { i % 7, (i * 3) % 11, (i * 5) % 13, i % 2 } end
    local dataset = {
      len = function() return #samples end,
      get = function(_, i)
        local s = samples[i]
        return tensor.tensor { s[1], s[2], s[3] }, s[4]
      end,
    }
    local Net = nn.class("Net")
    function Net:init() self.a, self.b = nn.Linear(3, 256), nn.Linear(256, 2) end
    function Net:forward(x)
      local h = self.a(x)
      local function twice(f, v) return f(f(v)) end
      return self.b(twice(function(v) return (v * 0.5):relu() end, h))
    end
    local model = Net()
    local optimizer = optim.SGD(model:parameters(), { lr = 1e-3 })
    local loss_fn = nn.CrossEntropyLoss()
    local seen = 0
    local next_batch
    local collections = flat.check(15000, function(i)
      if not next_batch then
        next_batch = data.DataLoader(dataset, { batch_size = 64, shuffle = true }):iter()
      end
      local x, y = next_batch()
      if not x then
        next_batch = nil
        return
      end
      local loss = loss_fn(model(x), y)
      if i % 3 ~= 0 then -- every third batch is only looked at
        loss:backward()
        optimizer:step()
        optimizer:zero_grad()
      end
      seen = seen + loss:item()
    end)
    assert.is_true(seen > 0)
    assert.is_true(collections > 3, "the loop makes garbage, yet no collection was due")
  end)
end)
