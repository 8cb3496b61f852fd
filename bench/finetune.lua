-- A fine-tuning step of BertForSequenceClassification on padded batches: dropout 0.1, AdamW with lr
-- 2e-5, batch 8 of 128 tokens; one line of JSON.
--
--   accel-run --num_cpu_threads_per_process 1 bench/finetune.lua [PRESET=mini] [STEPS=20]
--     [WARMUP=3] [FLAGS of common.lua]
--
-- The same work as peer/finetune.py, which is Transformers: random ids, lengths between a quarter
-- of the row and all of it, the label is the parity of the first token.
local tensor, models = require "accelerate.tensor", require "accelerate.models"
local optim = require "accelerate.optim"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

--               layers width heads ffn vocab
local PRESETS = { base = { 12, 768, 12, 3072, 30522 }, mini = { 4, 256, 4, 1024, 30522 },
  smoke = { 1, 32, 2, 64, 100 } }
local SEQ = 128

local flags = common.flags(arg)
local preset, batch = arg[1] or "mini", flags.batch or 8
flags.steps, flags.warmup = flags.steps or tonumber(arg[2]) or 20, flags.warmup or tonumber(arg[3]) or 3
local layers, width, heads, ffn, vocab = unpack(PRESETS[preset]
  or error("the presets are mini, base and smoke, got " .. preset))

local before = common.resident()
local accelerator = common.accelerator(flags)
local model = models.BertForSequenceClassification { num_hidden_layers = layers, hidden_size = width,
  num_attention_heads = heads, intermediate_size = ffn, vocab_size = vocab }
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
  next_batch, function(ids, mask, labels)
  local loss = model { input_ids = ids, attention_mask = mask, labels = labels }.loss
  optimizer:zero_grad()
  accelerator:backward(loss)
  optimizer:step()
  return loss:detach()
end)
