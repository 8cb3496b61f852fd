--- 5,000 steps of a small GPT hold memory flat, with no call to collectgarbage.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local accelerate = require "accelerate"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"

local STEPS, WIDTH, HEADS, T, VOCAB = 5000, 16, 2, 12, 11
local GARBAGE = 136e6 -- what may pile up between two collections (bind_memory.c: 128 MB for small models)

local function resident_bytes()
  for line in io.lines("/proc/self/status") do
    local kib = line:match("^VmRSS:%s+(%d+)")
    if kib then return tonumber(kib) * 1024 end
  end
end

local Block = nn.class("Block")

function Block:init()
  self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
  self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
  self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
end

function Block:forward(x)
  local q, k, v = self.qkv(self.ln1(x)):split_heads(HEADS)
  local y = nn.functional.scaled_dot_product_attention(q, k, v, { is_causal = true, dropout_p = self.training and 0.1 or 0 })
  x = x + self.proj(y:transpose(2, 3):reshape(x.shape))
  return x + self.down(self.up(self.ln2(x)):gelu("tanh"))
end

local GPT = nn.class("GPT")

function GPT:init()
  self.tok, self.pos = nn.Embedding(VOCAB, WIDTH), nn.Embedding(T, WIDTH)
  self.blocks, self.ln = nn.Sequential(Block(), Block()), nn.LayerNorm(WIDTH)
end

function GPT:forward(ids)
  local x = self.tok(ids) + self.pos.weight
  return nn.functional.linear(self.ln(self.blocks(x)), self.tok.weight)
end

local proc = io.open("/proc/self/status")
if proc then proc:close() end

describe("a small GPT", function()
  it("of 5,000 steps holds memory flat #slow", function()
    if not proc then return pending("needs /proc, to see resident memory") end
    local accelerator = accelerate.Accelerator {}
    local model = GPT()
    local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
    model, optimizer = accelerator:prepare(model, optimizer)
    local ids = tensor.randint(0, VOCAB, { 64, T + 1 })
    local first, last

    -- The least that collections leave, the most live bytes, the largest resident size of steps from..to.
    local function measure(from, to)
      local least, most, resident = math.huge, 0, 0
      for i = from, to do
        local rows = ids:narrow(1, i % 16 * 4 + 1, 4)
        local loss = nn.functional.cross_entropy(model(rows:narrow(2, 1, T)):reshape(-1, VOCAB), rows:narrow(2, 2, T):reshape(-1))
        accelerator:backward(loss)
        optimizer:step()
        optimizer:zero_grad()
        if i == 1 then first = loss:item() elseif i == STEPS then last = loss:item() end
        local live = core.memory_stats().live_bytes
        least, most = math.min(least, live), math.max(most, live)
        if i % 50 == 0 then resident = math.max(resident, resident_bytes()) end
      end
      return least, most, resident
    end

    measure(1, 500)
    local least, most, resident = measure(501, 2500)
    local least_later, most_later, resident_later = measure(2501, STEPS)
    assert.is_true(least_later <= least + 1e6, ("what collections leave grew from %.1f to %.1f MB"):format(least / 1e6, least_later / 1e6))
    assert.is_true(most <= least + GARBAGE and most_later <= least_later + GARBAGE, ("live bytes reached %.1f MB"):format(math.max(most, most_later) / 1e6))
    assert.is_true(resident_later <= resident + GARBAGE / 2, ("resident memory grew from %.1f to %.1f MB"):format(resident / 1e6, resident_later / 1e6))
    assert.is_true(last < first, "it learned nothing")
  end)
end)
