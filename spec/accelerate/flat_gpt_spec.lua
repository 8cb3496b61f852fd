--- 5,000 steps of a small GPT hold memory flat, with no call to collectgarbage.
local tensor = require "accelerate.tensor"
local accelerate = require "accelerate"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"

local flat = require "spec.support.flat"

local WIDTH, HEADS, T, VOCAB = 16, 2, 12, 11

local Block = nn.class("Block")

function Block:init()
  self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
  self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
  self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
end

function Block:forward(x)
  local q, k, v = self.qkv(self.ln1(x)):split_heads(HEADS)
  local y = nn.functional.scaled_dot_product_attention(q, k, v,
    { is_causal = true, dropout_p = self.training and 0.1 or 0 })
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

describe("a small GPT", function()
  local threads = tensor.get_num_threads()
  -- small products: with more threads than free cores they would wait for each other
  before_each(function() tensor.set_num_threads(1) end)
  after_each(function() tensor.set_num_threads(threads) end)

  it("holds memory flat #slow", function()
    if flat.cannot then return pending(flat.cannot) end
    local accelerator = accelerate.Accelerator {}
    local model = GPT()
    local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
    model, optimizer = accelerator:prepare(model, optimizer)
    local ids = tensor.randint(0, VOCAB, { 64, T + 1 })
    local first, last

    flat.check(5000, function(i)
      local rows = ids:narrow(1, i % 16 * 4 + 1, 4)
      local loss = nn.functional.cross_entropy(model(rows:narrow(2, 1, T)):reshape(-1, VOCAB),
        rows:narrow(2, 2, T):reshape(-1))
      accelerator:backward(loss)
      optimizer:step()
      optimizer:zero_grad()
      if i == 1 then first = loss:item() elseif i == 5000 then last = loss:item() end
    end, 5000)
    assert.is_true(last < first, "it learned nothing")
  end)
end)
