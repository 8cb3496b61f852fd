-- Fine-tunes BERT for the classification of texts with what a longer run needs: checkpoints, going
-- on from one, trackers, an evaluation after each epoch, and the best model kept.
--
--   accel-run examples/complete_nlp_example.lua
--   accel-run --num_processes 2 --mixed_precision bf16 examples/complete_nlp_example.lua
--     --checkpointing_steps 50 --output_dir out --with_tracking true
--   accel-run examples/complete_nlp_example.lua --output_dir out --resume_from_checkpoint latest
--   accel-run examples/complete_nlp_example.lua --model_dir bert-base-uncased --data_dir glue
--
-- --model_dir is a folder of a BERT with a tokenizer in Hugging Face's layout (or a name in its
-- local cache), --data_dir GLUE's folder of SST-2. With neither, a small BERT and a tokenizer learn
-- from the licences that every Debian and Ubuntu system carries which of five families a passage of
-- 32 words is from. The last line is `accuracy 0.xxxx` of the best epoch, on passages that were not
-- trained on: 0.81 on one process, where each family alone would give 0.44 at most.
-- A run that goes on from a checkpoint ends with the numbers of one that was not stopped. Options,
-- with their defaults:
--   --model_dir NAME  --data_dir FOLDER  --num_epochs 8  --batch_size 16 (of each process)
--   --lr 1e-3 (2e-5 with --model_dir)  --max_length 64 (tokens)  --seed 42
--   --checkpointing_steps N or epoch (none)  --resume_from_checkpoint FOLDER or latest
--   --with_tracking false  --output_dir FOLDER (checkpoints, trackers' files, the best model in
--   best; nothing is kept)  --max_steps N (stop after N steps)
local accelerate = require "accelerate"
local data, models, metrics, optim = accelerate.data, accelerate.models, accelerate.metrics, accelerate.optim
local tensor, tokenizers, utils = accelerate.tensor, accelerate.tokenizers, accelerate.utils

local options = utils.options.arguments("complete_nlp_example.lua", arg, {
  model_dir = { "string", optional = true },
  data_dir = { "string", optional = true },
  num_epochs = { "integer", default = 8, min = 1 },
  batch_size = { "integer", default = 16, min = 1 },
  lr = { "number", optional = true, above = 0 },
  max_length = { "integer", default = 64, min = 4 },
  seed = { "integer", default = 42, min = 0 },
  checkpointing_steps = { "string", optional = true },
  resume_from_checkpoint = { "string", optional = true },
  with_tracking = { "boolean", default = false },
  output_dir = { "string", optional = true },
  max_steps = { "integer", default = math.huge, min = 1 },
})
local every = tonumber(options.checkpointing_steps)
for _, name in ipairs { "checkpointing_steps", "resume_from_checkpoint", "with_tracking" } do
  if options[name] and not options.output_dir then
    error(("complete_nlp_example.lua: --%s needs --output_dir"):format(name), 0)
  end
end
if options.checkpointing_steps and options.checkpointing_steps ~= "epoch" and not (every and every >= 1) then
  error("complete_nlp_example.lua: --checkpointing_steps must be a number from 1 on or epoch, got " ..
    options.checkpointing_steps, 0)
end
utils.set_seed(options.seed)

-- Checkpoints get the names checkpoints/checkpoint_0, _1 and so on; the newest three are kept. A
-- stateful loader's place in its pass is part of them.
local accelerator = accelerate.Accelerator {
  log_with = options.with_tracking and { "tensorboard", "jsonl" } or nil,
  project_config = options.output_dir and accelerate.ProjectConfiguration { project_dir = options.output_dir,
    automatic_checkpoint_naming = true, total_limit = 3 } or nil,
  dataloader_config = accelerate.DataLoaderConfiguration { use_stateful_dataloader = true },
}
if options.with_tracking then
  accelerator:init_trackers("complete_nlp_example", { config = { num_epochs = options.num_epochs,
    batch_size = options.batch_size, seed = options.seed } })
end

-- ---- texts and labels

local FAMILIES = { { "GPL-2", "GPL-3", "LGPL-2.1" }, { "GFDL-1.2", "GFDL-1.3" }, { "Apache-2.0" },
  { "MPL-1.1", "MPL-2.0" }, { "CC0-1.0", "Artistic" } }
local WORDS = 32

-- Passages of the licences; every fifth is for testing.
local function licences()
  local train, test = {}, {}
  for label, names in ipairs(FAMILIES) do
    for _, name in ipairs(names) do
      local file, words = io.open("/usr/share/common-licenses/" .. name), {}
      for word in (file and file:read("*a") or ""):gmatch("%S+") do words[#words + 1] = word end
      if file then file:close() end
      for at = 1, #words - WORDS, WORDS do
        local to = (at - 1) / WORDS % 5 == 4 and test or train
        to[#to + 1] = { sentence = table.concat(words, " ", at, at + WORDS - 1), label = label - 1 }
      end
    end
  end
  if #train == 0 then error("no licences in /usr/share/common-licenses; give --data_dir", 0) end
  return data.Dataset.from_list(train), data.Dataset.from_list(test)
end

local train_set, test_set, classes
if options.data_dir then
  local sets = data.load_glue("sst2", options.data_dir)
  train_set, test_set, classes = sets.train, sets.validation, 2
else
  train_set, test_set = licences()
  classes = #FAMILIES
end

-- ---- tokens and model

local tokenizer, model
if options.model_dir then
  tokenizer = tokenizers.from_pretrained(options.model_dir)
  model = models.BertForSequenceClassification.from_pretrained(options.model_dir, { num_labels = classes,
    ignore_mismatched_sizes = true })
else
  local texts = {}
  for i = 1, train_set:len() do texts[i] = train_set:get(i).sentence end
  tokenizer = tokenizers.train_bpe(texts, { vocab_size = 2000, special_tokens = { "<pad>" } })
  tokenizer.pad_token = "<pad>"
  model = models.BertForSequenceClassification { vocab_size = #tokenizer, hidden_size = 64,
    num_labels = classes, num_hidden_layers = 2, num_attention_heads = 4, intermediate_size = 128,
    max_position_embeddings = options.max_length }
end

-- Each batch is as long as its longest text.
local function collate(samples)
  local texts, labels = {}, {}
  for i, sample in ipairs(samples) do texts[i], labels[i] = sample.sentence, sample.label end
  local batch = tokenizer(texts,
    { padding = true, truncation = true, max_length = options.max_length, return_tensors = "pt" })
  return { input_ids = batch.input_ids, attention_mask = batch.attention_mask,
    labels = tensor(labels, { dtype = "int64" }) }
end

local train = data.DataLoader(train_set,
  { batch_size = options.batch_size, shuffle = true, drop_last = true, collate_fn = collate })
local test = data.DataLoader(test_set, { batch_size = options.batch_size, collate_fn = collate })
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr or options.model_dir and 2e-5 or 1e-3 })
local updates = options.num_epochs * train:len() -- a prepared scheduler counts all ranks' steps
local scheduler = optim.lr_scheduler.get_linear_schedule_with_warmup(optimizer,
  { num_warmup_steps = math.floor(updates / 10), num_training_steps = updates })
model, optimizer, train, test, scheduler = accelerator:prepare(model, optimizer, train, test, scheduler)

-- ---- where the run is: part of every checkpoint

local progress = { epoch = 1, step = 0, best = 0, loss = 0 }
function progress:state_dict()
  return { epoch = self.epoch, step = self.step, best = self.best, loss = self.loss }
end
function progress:load_state_dict(state)
  for name, value in pairs(state) do self[name] = value end
end
accelerator:register_for_checkpointing(progress)
if options.resume_from_checkpoint then
  local folder = options.resume_from_checkpoint
  folder = accelerator:load_state(folder ~= "latest" and folder or nil)
  local number = folder:match("checkpoint_(%d+)/?$")
  if number then accelerator.project_configuration.iteration = number + 1 end  -- of the next save_state
  accelerator:print(("goes on from %s, step %d"):format(folder, progress.step))
end

-- ---- the loop

local function train_epoch()
  model:train()
  for batch in train:iter() do
    local loss = model(batch).loss
    accelerator:backward(loss)
    accelerator:clip_grad_norm_(model:parameters(), 1.0)
    optimizer:step()
    scheduler:step()
    optimizer:zero_grad()
    progress.step = progress.step + 1
    progress.loss = progress.loss + loss:item()
    if progress.step == 1 or progress.step % 50 == 0 or progress.step == options.max_steps then
      accelerator:print(("step %d: loss %.4f"):format(progress.step,
        accelerator:gather(loss:detach():view(1)):mean():item()))
    end
    if every and progress.step % every == 0 then accelerator:save_state() end
    if progress.step == options.max_steps then return end
  end
end

local function evaluate()
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

while progress.epoch <= options.num_epochs and progress.step < options.max_steps do
  train_epoch()
  local accuracy = evaluate()
  accelerator:print(("epoch %d: accuracy %.4f"):format(progress.epoch, accuracy))
  if options.with_tracking then
    accelerator:log({ accuracy = accuracy, train_loss = progress.loss / train:len(), epoch = progress.epoch },
      { step = progress.step })
  end
  if accuracy > progress.best then
    progress.best = accuracy
    if options.output_dir then
      accelerator:unwrap_model(model):save_pretrained(options.output_dir .. "/best")
    end
  end
  progress.epoch, progress.loss = progress.epoch + 1, 0
  if options.checkpointing_steps == "epoch" and progress.step < options.max_steps then
    accelerator:save_state()
  end
end

accelerator:wait_for_everyone()
accelerator:end_training()
accelerator:print(("accuracy %.4f"):format(progress.best))
