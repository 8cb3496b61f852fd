-- Fine-tunes a small GPT-2 of a folder: tokenizer, blocks of text, groups of AdamW, generation.
local accelerate = require "accelerate"
local models, tokenizers = require "accelerate.models", require "accelerate.tokenizers"
local optim, data, tensor = accelerate.optim, accelerate.data, accelerate.tensor
accelerate.utils.set_seed(0)

-- a folder as one would download it
local file = os.tmpname() -- makes the file, too
local folder = file .. ".gpt"
local sentences = {}
for _, who in ipairs { "the cat", "a dog", "the bird", "my friend" } do
  for _, what in ipairs { "sees", "likes", "follows" } do
    for _, whom in ipairs { "the mouse", "a fish", "the moon" } do
      sentences[#sentences + 1] = who .. " " .. what .. " " .. whom .. " ."
    end
  end
end
do
  local tokenizer = tokenizers.train_bpe(sentences, { vocab_size = 320, eos_token = "<|endoftext|>",
    special_tokens = { "<|endoftext|>" } })
  tokenizer:save_pretrained(folder)
  local config = { model_type = "gpt2", vocab_size = #tokenizer, n_positions = 64, n_embd = 48,
    n_layer = 2, n_head = 4 }
  models.GPT2LMHeadModel.from_config(config):save_pretrained(folder)
end

local tokenizer = tokenizers.from_pretrained(folder)
tokenizer.pad_token = tokenizer.eos_token
local model = models.AutoModelForCausalLM.from_pretrained(folder)
model.config.use_cache = false

local ids = {}
for _ = 1, 6 do
  for _, s in ipairs(sentences) do
    for _, id in ipairs(tokenizer:encode(s .. tokenizer.eos_token)) do ids[#ids + 1] = id end
  end
end
local block = 32
local blocks = {}
for at = 1, #ids - block, block do
  local piece = { unpack(ids, at, at + block - 1) }
  blocks[#blocks + 1] = { input_ids = tensor.tensor(piece, { dtype = "int64" }) }
end
local loader = data.DataLoader(blocks, { batch_size = 8, shuffle = true })

local accelerator = accelerate.Accelerator { gradient_accumulation_steps = 2, mixed_precision = "bf16" }
local decay, no_decay = {}, {}
for name, p in model:named_parameters() do
  local group = (name:find("bias") or name:find("ln_")) and no_decay or decay
  group[#group + 1] = p
end
local optimizer = optim.AdamW({ { params = decay, weight_decay = 0.1 },
  { params = no_decay, weight_decay = 0.0 } }, { lr = 4e-3 })
local epochs = 8
local scheduler = optim.lr_scheduler.get_cosine_schedule_with_warmup(optimizer,
  { num_warmup_steps = 5, num_training_steps = epochs * #loader })
model:gradient_checkpointing_enable()
model, optimizer, loader, scheduler = accelerator:prepare(model, optimizer, loader, scheduler)

for epoch = 1, epochs do
  model:train()
  local total = 0
  for step, batch in ipairs(loader) do
    accelerator:accumulate(model, function()
      local outputs = model({ input_ids = batch.input_ids, labels = batch.input_ids })
      local loss = outputs.loss
      total = total + loss:detach():float():item()
      accelerator:backward(loss)
      if accelerator.sync_gradients then accelerator:clip_grad_norm_(model:parameters(), 1.0) end
      optimizer:step()
      scheduler:step()
      optimizer:zero_grad()
    end)
    if step == #loader and epoch % 4 == 0 then
      accelerator:print(("epoch %d: perplexity %.2f"):format(epoch, math.exp(total / #loader)))
    end
  end
end
model:eval()
local unwrapped = accelerator:unwrap_model(model)
unwrapped:save_pretrained(folder .. "/tuned")
tokenizer:save_pretrained(folder .. "/tuned")
local tuned = models.AutoModelForCausalLM.from_pretrained(folder .. "/tuned")
local inputs = tokenizer("the cat", { return_tensors = "pt" })
local out = tuned:generate(inputs.input_ids,
  { max_new_tokens = 8, do_sample = false, pad_token_id = tokenizer.eos_token_id })
print(tokenizer:decode(out[1], { skip_special_tokens = true }))
os.execute("rm -r " .. folder .. " " .. file)
