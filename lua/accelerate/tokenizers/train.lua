--- Learns a byte-level BPE from texts.
local core = require "accelerate.core"
local decoder = require "accelerate.tokenizers.decoder"
local json = require "accelerate.utils.json"
local options = require "accelerate.utils.options"

local fail, show = options.fail, options.show

local M = {}

local OPTIONS = {
  vocab_size = { "integer", default = 30000, min = 256 },
  min_frequency = { "integer", default = 2, min = 0 },
  special_tokens = { "list", default = {} },
  add_prefix_space = { "boolean", default = false },
  pattern = { "string", default = "gpt2", one_of = { "gpt2", "llama3" } },
  eos_token = { "string", optional = true },
}

local LLAMA3 = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" ..
  " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

-- The pre-tokenizer of the file, after its steps were added to the C tokenizer.
local function splitter(t, o)
  local level = { type = "ByteLevel", add_prefix_space = o.add_prefix_space, trim_offsets = true,
    use_regex = o.pattern == "gpt2" }
  if o.pattern == "llama3" then
    t:splitter("pattern", "", "", 16 + 256 * core._text_pattern(LLAMA3))
  end
  t:splitter("byte_level", "", "", (o.add_prefix_space and 1 or 0) + (o.pattern == "gpt2" and 2 or 0))
  if o.pattern == "gpt2" then return level end
  return { type = "Sequence", pretokenizers = { { type = "Split", pattern = { Regex = LLAMA3 },
    behavior = "Isolated", invert = false }, level } }
end

-- Feeds all texts to the trainer.
local function feed(trainer, t, texts)
  if type(texts) == "table" then
    for i = 1, #texts do
      if type(texts[i]) ~= "string" then
        fail("train_bpe: texts[%d] must be a string, got %s", i, show(texts[i]))
      end
      trainer:feed(t, texts[i])
    end
    return
  end
  if type(texts) ~= "function" then
    fail("train_bpe: texts must be a list of strings or a function, got %s", show(texts))
  end
  for text in texts do
    if type(text) ~= "string" then
      fail("train_bpe: expected a string from the function, got %s", show(text))
    end
    trainer:feed(t, text)
  end
end

--- See accelerate.tokenizers.train_bpe.
---@return table config as in a tokenizer.json
---@return string text of the file
---@return table settings as in a tokenizer_config.json
function M.bpe(texts, opts)
  local o = options.check("train_bpe", opts, OPTIONS)
  local specials = o.special_tokens
  for i, token in ipairs(specials) do
    if type(token) ~= "string" or token == "" then
      fail("train_bpe: special_tokens[%d] must be a text, got %s", i, show(token))
    end
  end
  local t, trainer = core._tokenizer(), core._bpe_trainer()
  local pre_tokenizer = splitter(t, o)
  feed(trainer, t, texts)
  local tokens, pairs_of = trainer:run(o.vocab_size, o.min_frequency, specials)
  local vocab, merges, added = {}, {}, {}
  for i, token in ipairs(tokens) do
    tokens[i] = i <= #specials and token or decoder.to_alphabet(token)
    vocab[tokens[i]] = i - 1
  end
  for i = 1, #pairs_of / 2 do merges[i] = { tokens[pairs_of[2 * i - 1] + 1], tokens[pairs_of[2 * i] + 1] } end
  for i, token in ipairs(specials) do
    added[i] = { id = vocab[token], content = token, special = true, normalized = false, single_word = false,
      lstrip = false, rstrip = false }
  end
  local level = { type = "ByteLevel", add_prefix_space = true, trim_offsets = true, use_regex = true }
  local config = { version = "1.0", added_tokens = added, pre_tokenizer = pre_tokenizer,
    post_processor = level,
    decoder = level, model = { type = "BPE", vocab = vocab, merges = merges, fuse_unk = false,
    byte_fallback = false, ignore_merges = false } }
  local text = json.encode(config)
  for _, name in ipairs { "added_tokens", "merges" } do -- empty lists, not empty objects
    text = text:gsub('"' .. name .. '": {}', '"' .. name .. '": []')
  end
  return config, text, { eos_token = o.eos_token, pad_token = o.eos_token }
end

return M
