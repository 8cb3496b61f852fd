-- Embeddings on all ranks: each encodes its share of the texts, the embeddings are gathered, and
-- each text looks for its nearest neighbour.
--
--   accel-run --num_processes 2 examples/inference/embeddings.lua
--   accel-run --num_processes 2 examples/inference/embeddings.lua --model_dir all-MiniLM-L6-v2
--     --texts FILE
--
-- --model_dir is a folder of a BERT with a tokenizer in Hugging Face's layout (or a name in its
-- local cache), --texts a file with a text on each line. Without texts, they are passages of 48
-- words of the licences that every Debian and Ubuntu system carries. Without a model, a BERT with
-- new weights reads words by a hash: its embedding is a bag of words in 256 dimensions. The last
-- line is `x of y neighbours are of one licence`: 218 of 317; one of three would be by chance.
-- Options, with their defaults:
--   --model_dir NAME  --texts FILE  --batch_size 32  --max_length 64 (tokens)  --count 400
--   (passages)
local accelerate = require "accelerate"
local models, tensor, utils = accelerate.models, accelerate.tensor, accelerate.utils
local F = accelerate.nn.functional

local options = utils.options.arguments("embeddings.lua", arg, {
  model_dir = { "string", optional = true },
  texts = { "string", optional = true },
  batch_size = { "integer", default = 32, min = 1 },
  max_length = { "integer", default = 64, min = 4, max = 512 },
  count = { "integer", default = 400, min = 2 },
})
utils.set_seed(0)
local accelerator = accelerate.Accelerator {}

-- ---- texts

local texts, licence_of = {}, {}
if options.texts then
  local file, why = io.open(options.texts)
  if not file then error("embeddings.lua: --texts: " .. why, 0) end
  for line in file:lines() do texts[#texts + 1] = line end
  file:close()
else
  local LENGTH = 48
  for _, name in ipairs { "GPL-3", "Apache-2.0", "GFDL-1.3", "MPL-2.0", "Artistic", "CC0-1.0" } do
    local file, words = io.open("/usr/share/common-licenses/" .. name), {}
    for word in (file and file:read("*a") or ""):gmatch("%S+") do words[#words + 1] = word end
    if file then file:close() end
    for at = 1, #words - LENGTH, LENGTH do
      if #texts == options.count then break end
      texts[#texts + 1] = table.concat(words, " ", at, at + LENGTH - 1)
      licence_of[#texts] = name
    end
  end
  if #texts < 2 then error("no licences in /usr/share/common-licenses; give --texts", 0) end
end

-- ---- model and tokens

local WORDS, PAD = 4096, 0

-- Every word of five letters and more is a token: a number from 1 on that depends on its letters.
local function by_hash(list)
  local rows = {}
  for i, text in ipairs(list) do
    local row = {}
    for word in text:lower():gmatch("%a%a%a%a%a+") do
      local h = 0
      for c in word:gmatch(".") do h = (h * 31 + c:byte()) % (WORDS - 1) end
      if #row < options.max_length then row[#row + 1] = h + 1 end
    end
    rows[i] = tensor(#row > 0 and row or { 1 }, { dtype = "int64" })
  end
  local ids = accelerate.nn.utils.rnn.pad_sequence(rows, { batch_first = true, padding_value = PAD })
  return { input_ids = ids, attention_mask = ids:ne(PAD):long() }
end

local model, tokens_of
if options.model_dir then
  local tokenizer = accelerate.tokenizers.from_pretrained(options.model_dir)
  model = models.BertModel.from_pretrained(options.model_dir)
  tokens_of = function(list)
    return tokenizer(list,
      { padding = true, truncation = true, max_length = options.max_length, return_tensors = "pt" })
  end
else
  model = models.BertModel { vocab_size = WORDS, hidden_size = 256, num_hidden_layers = 1,
    num_attention_heads = 4, intermediate_size = 128 }
  tokens_of = by_hash
end
model = model:to(accelerator.device):eval()

-- ---- embeddings: the mean of a text's tokens, of length 1

local function embed(list)
  local batch = tokens_of(list)
  local ids, mask = batch.input_ids:to(accelerator.device), batch.attention_mask:to(accelerator.device)
  local states = model({ input_ids = ids, attention_mask = mask }).last_hidden_state
  local weights = mask:unsqueeze(3):to(states.dtype)
  return F.normalize((states * weights):sum(2) / weights:sum(2), { dim = 2 })
end

-- With apply_padding the last rank's share is filled up, so that gather finds equally long ones.
local all = tensor.no_grad(function()
  local mine = accelerator:split_between_processes(texts, { apply_padding = true }, function(part)
    local rows = {}
    for at = 1, #part, options.batch_size do
      rows[#rows + 1] = embed({ unpack(part, at, math.min(#part, at + options.batch_size - 1)) })
    end
    return tensor.cat(rows, 1)
  end)
  return accelerator:gather(mine):cpu()
end)
all = all:narrow(1, 1, #texts)
-- What all texts have in common separates none of them.
all = F.normalize(all - all:mean({ 1 }, true), { dim = 2 })

-- ---- each text's nearest neighbour

local alike = all:mm(all:t()) - 2 * tensor.eye(#texts)
local likeness, nearest = alike:max(2)
nearest = nearest:totable()
if options.texts then
  for i, text in ipairs(texts) do
    accelerator:print(("%.3f  %s | %s"):format(likeness[i]:item(), text, texts[nearest[i] + 1]))
  end
else
  local same = 0
  for i = 1, #texts do
    if licence_of[i] == licence_of[nearest[i] + 1] then same = same + 1 end
  end
  accelerator:print(("%d of %d neighbours are of one licence"):format(same, #texts))
end
