-- A GPT-2 style decoder on characters: pre-LN, tanh GELU, learned positions, tied embeddings, no
-- dropout; AdamW with lr 3e-4 and weight decay 0.1; one line of JSON.
--
--   accel-run [--num_processes 2] --num_cpu_threads_per_process 1 bench/gpt.lua [PRESET=tiny]
--     [STEPS=30] [WARMUP=5] [FILE] [FLAGS of common.lua]
--
-- The same work as peer/gpt.py: the text is words drawn by a linear congruential generator, or
-- FILE; each batch is rows from random places of it, and each rank has its own; preset 124m
-- (GPT-2's size), and 774m (that of its large model), read random ids instead.  A step is: batch
-- fetch, forward, zero_grad, backward, optimizer.
local ffi = require "ffi"
local tensor, nn, optim = require "accelerate.tensor", require "accelerate.nn", require "accelerate.optim"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")
local F = nn.functional

--               layers width heads  T  vocab batch
local PRESETS = { tiny = { 4, 128, 4, 128, 96, 8 }, small = { 6, 384, 6, 256, 96, 8 },
  ["124m"] = { 12, 768, 12, 1024, 50257, 4 }, ["774m"] = { 36, 1280, 20, 1024, 50257, 4 },
  smoke = { 1, 32, 2, 16, 96, 2 } }

local Block = nn.class("Block")

function Block:init(width, heads)
  self.heads = heads
  self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
  self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
  self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
end

function Block:attend(x)
  local q, k, v = self.qkv(x):split_heads(self.heads)
  local y = F.scaled_dot_product_attention(q, k, v, { is_causal = true })
  return self.proj(y:transpose(2, 3):reshape(x.shape))
end

function Block:forward(x)
  return tensor.scope(function()
    x = x + self:attend(self.ln1(x))
    return x + self.mlp(self.ln2(x))
  end)
end

local GPT = nn.class("GPT")

function GPT:init(layers, width, heads, seq, vocab)
  self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(seq, width)
  local blocks = {}
  for i = 1, layers do blocks[i] = Block(width, heads) end
  self.blocks = nn.Sequential(blocks)
  self.ln = nn.LayerNorm(width)
  for name, p in self:named_parameters() do
    if p:dim() == 2 then
      local last = name:match("proj%.weight$") or name:match("mlp%.[23]%.weight$") -- the second of mlp's two
      nn.init.normal_(p, 0, last and 0.02 / math.sqrt(2 * layers) or 0.02)
    elseif name:match("bias$") then
      nn.init.zeros_(p)
    end
  end
end

function GPT:forward(ids)
  return tensor.scope(function()
    local x = self.tok(ids) + self.pos.weight:narrow(1, 1, ids.shape[2])
    return F.linear(self.ln(self.blocks(x)), self.tok.weight)
  end)
end

local WORDS = {}
for word in ("a step of the model reads some text and then it guesses what comes next each weight moves " ..
  "by little " ..
  "while loss falls Lua scripts drive C code; Every epoch ends with one check: is 42 more than 17? " ..
  "We print (and keep) the best."):gmatch("%S+") do WORDS[#WORDS + 1] = word end

-- Ids of printable ASCII (32..126 -> 0..94, newline -> 95), of a file or of `n` characters of
-- words.
local function text_ids(path, n)
  local text
  if path then
    local file = assert(io.open(path))
    text = file:read("*a")
    file:close()
  else
    local s, out, size = ffi.new("uint64_t", 1), {}, 0
    while size < n do
      s = (s * 1103515245 + 12345) % 0x80000000ULL
      local word = WORDS[tonumber(s / 65536) % #WORDS + 1] .. (#out % 12 == 11 and "\n" or " ")
      out[#out + 1] = word
      size = size + #word
    end
    text = table.concat(out):sub(1, n)
  end
  local ids = {}
  for i = 1, #text do
    local c = text:byte(i)
    ids[i] = c == 10 and 95 or (c >= 32 and c < 127) and c - 32 or 31
  end
  return tensor.tensor(ids, { dtype = "int64" })
end

local flags = common.flags(arg)
local preset = arg[1] or "tiny"
flags.steps, flags.warmup = flags.steps or tonumber(arg[2]) or 30, flags.warmup or tonumber(arg[3]) or 5
local layers, width, heads, seq, vocab, batch = common.sizes(PRESETS, preset)
batch = flags.batch or batch

local before = common.resident()
local accelerator = common.accelerator(flags)
local ids = vocab == 96 and text_ids(arg[4], 2 ^ 18) or tensor.randint(0, vocab, { 2 ^ 20 })
local model = GPT(layers, width, heads, seq, vocab)
local optimizer = optim.AdamW(model:parameters(), { lr = 3e-4, weight_decay = 0.1 })
model, optimizer = accelerator:prepare(model, optimizer)
local span, places, generator = tensor.arange(seq + 1), ids:numel() - seq - 1, tensor.Generator(
  accelerator.process_index)

local function next_batch()
  local at = tensor.randint(0, places, { batch, 1 }, { generator = generator })
  local rows = ids:index_select(1, (at + span):view(-1)):view(batch, seq + 1)
  rows = rows:to(accelerator.device)
  return rows:narrow(2, 1, seq), rows:narrow(2, 2, seq)
end

-- What a step computes, as nanoGPT counts it: 6 for each parameter and token, and the products of
-- attention, the hidden half too.
local params, tokens = 0, batch * seq
for _, p in ipairs(model:parameters()) do params = params + p:numel() end
local about = { preset = preset, batch = batch, before = before, units = tokens, params = params,
  flops = (6 * params + 12 * layers * width * seq) * tokens }

common.train(accelerator, flags, about, next_batch, function(x, y)
  local loss = F.cross_entropy(model(x):view(-1, vocab), y:reshape(-1))
  optimizer:zero_grad()
  accelerator:backward(loss)
  optimizer:step()
  return loss:detach()
end)
