-- A BERT-shaped encoder with a classification head on synthetic padded batches: post-LN, erf GELU,
-- dropout 0.1, AdamW with lr 2e-5; one line of JSON.
--
--   accel-run --num_cpu_threads_per_process 1 bench/bert.lua [PRESET=tiny] [STEPS=30] [WARMUP=3]
--     [FLAGS of common.lua]
--
-- The same work as peer/bert.py: random ids, lengths between a quarter of the row and all of it,
-- the label is the parity of the first token.
local tensor, nn, optim = require "accelerate.tensor", require "accelerate.nn", require "accelerate.optim"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")
local F = nn.functional

--               layers width heads ffn vocab
local PRESETS = { base = { 12, 768, 12, 3072, 30522 }, tiny = { 2, 128, 2, 512, 30522 },
  smoke = { 1, 32, 2, 64, 100 } }
local SEQ, DROPOUT = 128, 0.1

local Layer = nn.class("Layer")

function Layer:init(width, heads, ffn, drop)
  self.heads, self.drop = heads, drop
  self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
  self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)
  self.ln1, self.ln2 = nn.LayerNorm(width, { eps = 1e-12 }), nn.LayerNorm(width, { eps = 1e-12 })
end

function Layer:forward(x, mask)
  return tensor.scope(function()
    local drop = self.training and self.drop or 0
    local q, k, v = self.qkv(x):split_heads(self.heads)
    local y = F.scaled_dot_product_attention(q, k, v, { attn_mask = mask, dropout_p = drop })
    x = self.ln1(x + F.dropout(self.proj(y:transpose(2, 3):reshape(x.shape)), drop))
    return self.ln2(x + F.dropout(self.down(self.up(x):gelu()), drop))
  end)
end

local Bert = nn.class("Bert")

function Bert:init(layers, width, heads, ffn, vocab, drop)
  self.drop = nn.Dropout(drop)
  self.tok, self.pos, self.kind = nn.Embedding(vocab, width), nn.Embedding(512, width), nn.Embedding(2, width)
  self.ln = nn.LayerNorm(width, { eps = 1e-12 })
  local list = {}
  for i = 1, layers do list[i] = Layer(width, heads, ffn, drop) end
  self.layers = nn.ModuleList(list)
  self.pool, self.head = nn.Linear(width, width), nn.Linear(width, 2)
  for name, p in self:named_parameters() do
    if p:dim() == 2 then nn.init.normal_(p, 0, 0.02)
    elseif name:match("bias$") then nn.init.zeros_(p) end
  end
end

function Bert:forward(ids, mask)
  return tensor.scope(function()
    local x = self.tok(ids) + self.pos.weight:narrow(1, 1, ids.shape[2]) + self.kind.weight[1]
    x = self.drop(self.ln(x))
    mask = mask:view(mask.shape[1], 1, 1, mask.shape[2])
    for i = 1, self.layers:len() do x = self.layers[i](x, mask) end
    return self.head(self.drop(self.pool(x:select(2, 1)):tanh()))
  end)
end

local flags = common.flags(arg)
local preset, batch = arg[1] or "tiny", flags.batch or 8
flags.steps, flags.warmup = flags.steps or tonumber(arg[2]) or 30, flags.warmup or tonumber(arg[3]) or 3
local layers, width, heads, ffn, vocab = common.sizes(PRESETS, preset)

local before = common.resident()
local accelerator = common.accelerator(flags)
local model = Bert(layers, width, heads, ffn, vocab, DROPOUT)
local optimizer = optim.AdamW(model:parameters(), { lr = 2e-5 })
model, optimizer = accelerator:prepare(model, optimizer)
local generator, span = tensor.Generator(0), tensor.arange(SEQ)

local function next_batch()
  local ids = tensor.randint(0, vocab, { batch, SEQ }, { generator = generator })
  local length = tensor.randint(math.floor(SEQ / 4), SEQ + 1, { batch, 1 }, { generator = generator })
  return ids:to(accelerator.device), span:lt(length):to(accelerator.device),
    (ids:select(2, 1) % 2):to(accelerator.device)
end

common.train(accelerator, flags, { preset = preset, batch = batch, before = before, units = batch },
  next_batch, function(ids, mask, label)
  local loss = F.cross_entropy(model(ids, mask), label)
  optimizer:zero_grad()
  accelerator:backward(loss)
  optimizer:step()
  return loss:detach()
end)
