-- Generation on all ranks: each continues its share of the prompts, and the main process collects
-- the texts in the prompts' order.
--
--   accel-run --num_processes 2 examples/inference/distributed_generation.lua
--   accel-run --num_processes 2 examples/inference/distributed_generation.lua --model_dir gpt2
--     --prompts prompts.txt
--
-- --model_dir is a folder of a causal language model with a tokenizer in Hugging Face's layout (or
-- a name in its local cache), --prompts a file with a prompt on each line. Without a model, a small
-- GPT-2 learns on the spot to go on with the alphabet, which takes some seconds; the last line is
-- then `x of 16 texts go on rightly`: 16 of 16. Options, with their defaults:
--   --model_dir NAME  --prompts FILE  --max_new_tokens 6  --batch_size 4  --max_steps 150 (of
--   learning)
local accelerate = require "accelerate"
local models, optim, tensor, utils = accelerate.models, accelerate.optim, accelerate.tensor, accelerate.utils

local options = utils.options.arguments("distributed_generation.lua", arg, {
  model_dir = { "string", optional = true },
  prompts = { "string", optional = true },
  max_new_tokens = { "integer", default = 6, min = 1 },
  batch_size = { "integer", default = 4, min = 1 },
  max_steps = { "integer", default = 150, min = 1 },
})
if options.prompts and not options.model_dir then
  error("distributed_generation.lua: --prompts needs --model_dir", 0)
end
utils.set_seed(0)
local accelerator = accelerate.Accelerator {}

-- ---- a small model: a letter is a token, z is followed by a

local function letters(text)
  local ids = {}
  for i = 1, #text do ids[i] = text:byte(i) - 97 end
  return ids
end

local function learned_model()
  local model = models.GPT2LMHeadModel { n_layer = 2, n_embd = 32, n_head = 2, vocab_size = 26,
    n_positions = 32, resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0, bos_token_id = 0, eos_token_id = -1 }
  local optimizer = optim.AdamW(model:parameters(), { lr = 3e-3 })
  local prepared
  prepared, optimizer = accelerator:prepare(model, optimizer)
  for step = 1, options.max_steps do
    local start = tensor.randint(0, 26, { 16, 1 })
    local ids = (start + tensor.arange(16):view(1, 16)):remainder(26):to(accelerator.device)
    local loss = prepared({ input_ids = ids, labels = ids }).loss
    accelerator:backward(loss)
    optimizer:step()
    optimizer:zero_grad()
    if step == 1 or step % 50 == 0 or step == options.max_steps then
      accelerator:print(("step %d: loss %.4f"):format(step, loss:item()))
    end
  end
  return model:eval()
end

-- ---- model, prompts, and functions from texts to ids and back

local model, encode, decode
local prompts = {}
if options.model_dir then
  model = models.AutoModelForCausalLM.from_pretrained(options.model_dir):to(accelerator.device)
  -- A decoder's rows are padded on the left: the next token comes behind the last column.
  local tokenizer = accelerate.tokenizers.from_pretrained(options.model_dir)
  tokenizer.padding_side = "left"
  if not tokenizer.pad_token then tokenizer.pad_token = tokenizer.eos_token end
  encode = function(texts) return tokenizer(texts, { padding = true, return_tensors = "pt" }) end
  decode = function(ids) return tokenizer:decode(ids, { skip_special_tokens = true }) end
  if options.prompts then
    local file, why = io.open(options.prompts)
    if not file then error("distributed_generation.lua: --prompts: " .. why, 0) end
    for line in file:lines() do prompts[#prompts + 1] = line end
    file:close()
  else
    prompts = { "The capital of France is", "Once upon a time", "To train a network, one needs" }
  end
else
  model = learned_model()
  encode = function(texts)
    local rows = {}
    for i, text in ipairs(texts) do rows[i] = letters(text) end
    return { input_ids = tensor(rows, { dtype = "int64" }) }
  end
  decode = function(ids)
    local out = {}
    for i, id in ipairs(ids:totable()) do out[i] = string.char(97 + id) end
    return table.concat(out)
  end
  for i = 0, 15 do prompts[i + 1] = decode(tensor { i, i + 1, i + 2, i + 3 } % 26) end
end

-- ---- each rank's share, batch by batch

local texts = accelerator:split_between_processes(prompts, function(part)
  local done = {}
  for at = 1, #part, options.batch_size do
    local batch = encode({ unpack(part, at, math.min(#part, at + options.batch_size - 1)) })
    for name, value in pairs(batch) do batch[name] = value:to(accelerator.device) end
    local ids = model:generate({ input_ids = batch.input_ids, attention_mask = batch.attention_mask },
      { max_new_tokens = options.max_new_tokens })
    for row = 1, ids:size(1) do done[#done + 1] = decode(ids[row]:cpu()) end
  end
  return done
end)

-- The shares follow each other in the ranks' order, so the texts are in the prompts' order.
local all = utils.gather_object(texts)
for _, text in ipairs(all) do accelerator:print(text) end
if not options.model_dir then
  local right, alphabet = 0, ("abcdefghijklmnopqrstuvwxyz"):rep(3)
  for i, text in ipairs(all) do
    if text == alphabet:sub(i, i + 3 + options.max_new_tokens) then right = right + 1 end
  end
  accelerator:print(("%d of %d texts go on rightly"):format(right, #all))
end
