--- Long loops hold memory flat with no call to collectgarbage: the core counts what tensors hold and drives the collector.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local accelerate = require "accelerate"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local data = require "accelerate.data"

local function resident_bytes()
  for line in io.lines("/proc/self/status") do
    local kib = line:match("^VmRSS:%s+(%d+)")
    if kib then return tonumber(kib) * 1024 end
  end
end

-- Runs `step` n times and compares the second half with the first.  What a collection leaves (the least) must not grow at all; the peak may
-- wander by as much garbage as is let pile up between two collections (bind_memory.c: 128 MB for small models).
local GARBAGE = 136e6

local function flat(n, step)
  local function measure(from, to)
    local least, most, resident = math.huge, 0, 0
    for i = from, to do
      step(i)
      local live = core.memory_stats().live_bytes
      least, most = math.min(least, live), math.max(most, live)
      if i % 50 == 0 then resident = math.max(resident, resident_bytes()) end
    end
    return least, most, resident
  end
  local collections = core.memory_stats().pressure_collections
  local warm = math.floor(n / 2)
  measure(1, math.floor(n / 10))
  local least, most, resident = measure(math.floor(n / 10) + 1, warm)
  local least_later, most_later, resident_later = measure(warm + 1, n)
  local function grew(what, from, to, slack)
    assert.is_true(to <= from + slack, ("%s grew from %.1f to %.1f MB"):format(what, from / 1e6, to / 1e6))
  end
  grew("what collections leave", least, least_later, 1e6)
  grew("the peak of live bytes", least + GARBAGE, most, 0)
  grew("the later peak of live bytes", least_later + GARBAGE, most_later, 0)
  grew("resident memory", resident, resident_later, GARBAGE / 2)
  return core.memory_stats().pressure_collections - collections
end

local NO_PROC = "needs /proc, to see resident memory"
local has_proc = io.open("/proc/self/status") ~= nil

local proc = io.open("/proc/self/status")
if proc then proc:close() end

describe("a long loop", function()
  -- small products: with more threads than free cores they would wait for each other
  local threads = tensor.get_num_threads()
  before_each(function() tensor.set_num_threads(1) end)
  after_each(function() tensor.set_num_threads(threads) end)

  if not proc then
    it("holds memory flat #slow", function() pending("needs /proc to see resident memory") end)
    return
  end
  it("of 20,000 MLP steps holds memory flat #slow", function()
    if not has_proc then return pending(NO_PROC) end
    local model = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
    local accelerator = accelerate.Accelerator {}
    model, optimizer = accelerator:prepare(model, optimizer)
    local loss_fn = nn.CrossEntropyLoss()
    local images, labels = tensor.rand(1024, 784), tensor.randint(0, 10, { 1024 })
    flat(20000, function(i)
      local at = (i % 16) * 64 + 1
      local x, y = images:narrow(1, at, 64):clone(), labels:narrow(1, at, 64)
      accelerator:accumulate(model, function()
        accelerator:backward(loss_fn(model(x), y))
        optimizer:step()
        optimizer:zero_grad()
      end)
    end)
  end)

  it("of 5,000 LSTM steps, padded and packed, holds memory flat #slow", function()
    if not has_proc then return pending(NO_PROC) end
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
    flat(5000, function(i)
      local input = i % 2 == 0 and x * 1 or rnn.pack_padded_sequence(x, { 10, 7, 7, 4, 2, 1 }, { batch_first = true })
      accelerator:accumulate(model, function()
        accelerator:backward(loss_fn(model(input), y))
        optimizer:step()
        optimizer:zero_grad()
      end)
    end)
  end)

  it("of closures over 100,000 samples in Lua tables, with evaluation that never runs backward, holds memory flat #slow", function()
    if not has_proc then return pending(NO_PROC) end
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
    local collections = flat(3000, function(i)
      if not next_batch then next_batch = data.DataLoader(dataset, { batch_size = 64, shuffle = true }):iter() end
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
