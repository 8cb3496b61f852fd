-- Fine-tunes BERT for the classification of texts, in mixed precision if asked to.
--
--   accel-run examples/nlp_example.lua
--   accel-run --num_processes 2 --mixed_precision bf16 examples/nlp_example.lua
--   accel-run examples/nlp_example.lua --model_dir bert-base-uncased --data_dir SST-2 --lr 2e-5
--
-- --model_dir is a folder in Hugging Face's layout with a tokenizer (or a name in its local cache),
-- --data_dir a folder of GLUE's SST-2 form: train.tsv and dev.tsv with the columns sentence and
-- label.  With neither, a small BERT learns, from its first weights on, which licence a passage of
-- 32 words is from: the licences that every Debian and Ubuntu system carries, in five families.
-- The last line is `accuracy 0.xxxx` of passages that were not trained on: 0.78 after the 300
-- steps on one process.  Options, with their defaults:
--   --model_dir NAME  --data_dir FOLDER  --max_steps 300  --batch_size 16 (of each process)
--   --lr 2e-3 (2e-5 with --model_dir)  --max_length 128 (tokens)  --seed 42
--   --save FOLDER (not saved)
--   --strategy NAME (FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2, or
--       zero0
--     to zero3: what is cut over the processes; each has all)
local accelerate = require "accelerate"
local data, models, metrics, optim = accelerate.data, accelerate.models, accelerate.metrics, accelerate.optim
local tensor, utils = accelerate.tensor, accelerate.utils

local options = utils.options.arguments("nlp_example.lua", arg, {
  model_dir = { "string", optional = true },
  data_dir = { "string", optional = true },
  max_steps = { "integer", default = 300, min = 1 },
  batch_size = { "integer", default = 16, min = 1 },
  lr = { "number", optional = true, above = 0 },
  max_length = { "integer", default = 128, min = 4 },
  seed = { "integer", default = 42, min = 0 },
  save = { "string", optional = true },
  strategy = { "string", optional = true, one_of = { "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD",
    "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "zero0", "zero1", "zero2", "zero3" } },
})
utils.set_seed(options.seed)
local zero = (options.strategy or ""):match "^zero(%d)$"
local accelerator = accelerate.Accelerator { deepspeed_plugin = zero
  and accelerate.DeepSpeedPlugin { zero_stage = tonumber(zero), gradient_clipping = 1.0 } or nil,
  fsdp_plugin = options.strategy and not zero and accelerate.FullyShardedDataParallelPlugin {
    reshard_after_forward = options.strategy, auto_wrap_policy = "TRANSFORMER_BASED_WRAP" } or nil }

-- ---- texts and labels

-- A list of { text, label } of a file with a header line and tabs between columns.
local function read_tsv(path)
  local list, place = {}, nil
  local file, why = io.open(path)
  if not file then error("nlp_example.lua: --data_dir: " .. why, 0) end
  for line in file:lines() do
    local cells = {}
    for cell in (line .. "\t"):gmatch("(.-)\t") do cells[#cells + 1] = cell end
    if place then list[#list + 1] = { cells[place.sentence], tonumber(cells[place.label]) }
    else
      place = {}
      for i, name in ipairs(cells) do place[name] = i end
      if not (place.sentence and place.label) then
        error(path .. ": expected the columns sentence and label in the first line, got " .. line, 0)
      end
    end
  end
  file:close()
  return list
end

local FAMILIES = { { "GPL-2", "GPL-3", "LGPL-2.1" }, { "GFDL-1.2", "GFDL-1.3" }, { "Apache-2.0" },
  { "MPL-1.1", "MPL-2.0" }, { "CC0-1.0", "Artistic" } }
local WORDS = 32

-- Passages of the licences; every fifth is for testing.
local function read_licences()
  local train, test = {}, {}
  for label, names in ipairs(FAMILIES) do
    for _, name in ipairs(names) do
      local file, words = io.open("/usr/share/common-licenses/" .. name), {}
      for word in (file and file:read("*a") or ""):gmatch("%S+") do words[#words + 1] = word end
      if file then file:close() end
      for at = 1, #words - WORDS, WORDS do
        local to = (at - 1) / WORDS % 5 == 4 and test or train
        to[#to + 1] = { table.concat(words, " ", at, at + WORDS - 1), label - 1 }
      end
    end
  end
  if #train == 0 then error("no licences in /usr/share/common-licenses; give --data_dir", 0) end
  return train, test
end

local train_list, test_list
if options.data_dir then
  train_list, test_list = read_tsv(options.data_dir .. "/train.tsv"), read_tsv(options.data_dir .. "/dev.tsv")
else
  train_list, test_list = read_licences()
end
local classes = 0
for _, item in ipairs(train_list) do classes = math.max(classes, item[2] + 1) end

-- ---- tokens

local PAD, UNKNOWN, START, STOP = 0, 1, 2, 3

-- A function from a list of texts to input_ids and attention_mask: every word of the training texts
-- that occurs twice is a token.
local function word_tokens()
  local counts, ids, size = {}, {}, 4
  local function words_of(text) return text:lower():gmatch("[%a']+") end
  for _, item in ipairs(train_list) do
    for word in words_of(item[1]) do
      counts[word] = (counts[word] or 0) + 1
      if counts[word] == 2 then
        ids[word] = size
        size = size + 1
      end
    end
  end
  return function(texts)
    local rows = {}
    for i, text in ipairs(texts) do
      local row = { START }
      for word in words_of(text) do
        if #row < options.max_length - 1 then row[#row + 1] = ids[word] or UNKNOWN end
      end
      row[#row + 1] = STOP
      rows[i] = tensor(row, { dtype = "int64" })
    end
    local padded = accelerate.nn.utils.rnn.pad_sequence(rows, { batch_first = true, padding_value = PAD })
    return { input_ids = padded, attention_mask = padded:ne(PAD):long() }
  end, size
end

local tokens_of, vocabulary
if options.model_dir then
  local tokenizer = accelerate.tokenizers.from_pretrained(options.model_dir)
  tokens_of = function(texts)
    local batch = tokenizer(texts, { padding = true, truncation = true, max_length = options.max_length,
      return_tensors = "pt" })
    return { input_ids = batch.input_ids, attention_mask = batch.attention_mask }
  end
else
  tokens_of, vocabulary = word_tokens()
end

local function collate(samples)
  local texts, labels = {}, {}
  for i, sample in ipairs(samples) do texts[i], labels[i] = sample[1], sample[2] end
  local batch = tokens_of(texts)
  batch.labels = tensor(labels, { dtype = "int64" })
  return batch
end

-- ---- model and loop

local model
if options.model_dir then
  model = models.BertForSequenceClassification.from_pretrained(options.model_dir, { num_labels = classes,
    ignore_mismatched_sizes = true })
else
  model = models.BertForSequenceClassification { vocab_size = vocabulary, hidden_size = 64,
    num_labels = classes,
    num_hidden_layers = 2, num_attention_heads = 4, intermediate_size = 128,
    max_position_embeddings = options.max_length }
end
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr or options.model_dir and 2e-5 or 2e-3 })
local function loader(list, shuffle)
  local set = { len = function() return #list end, get = function(_, i) return list[i] end }
  return data.DataLoader(set, { batch_size = options.batch_size, shuffle = shuffle, collate_fn = collate,
    drop_last = shuffle })
end
local train, test = loader(train_list, true), loader(test_list, false)
model, optimizer, train, test = accelerator:prepare(model, optimizer, train, test)
local scheduler = accelerator:prepare(optim.lr_scheduler.get_linear_schedule_with_warmup(optimizer,
  -- a prepared scheduler counts the steps of all ranks
  { num_warmup_steps = math.floor(options.max_steps * accelerator.num_processes / 10),
    num_training_steps = options.max_steps * accelerator.num_processes }))

local function learn()
  local step = 0
  model:train()
  while true do
    for batch in train:iter() do
      local loss = model(batch).loss
      accelerator:backward(loss)
      accelerator:clip_grad_norm_(model:parameters(), 1.0)
      optimizer:step()
      scheduler:step()
      optimizer:zero_grad()
      step = step + 1
      if step == 1 or step % 50 == 0 or step == options.max_steps then
        accelerator:print(("step %d: loss %.4f"):format(step,
          accelerator:gather(loss:detach():view(1)):mean():item()))
      end
      if step == options.max_steps then return end
    end
  end
end

local function accuracy()
  local metric = metrics.load "accuracy"
  model:eval()
  tensor.no_grad(function()
    for batch in test:iter() do
      local found = model(batch).logits:argmax(2)
      local predictions, references = unpack(accelerator:gather_for_metrics { found, batch.labels })
      metric:add_batch(predictions, references)
    end
  end)
  return metric:compute().accuracy
end

learn()
local share = accuracy()
accelerator:wait_for_everyone()
if options.save then
  utils.summon_full_params(model, { writeback = false }, model.save_pretrained, model, options.save)
end
accelerator:print(("accuracy %.4f"):format(share))
