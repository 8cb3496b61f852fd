--- Tokenizers out of the settings of GGUF files: byte-level BPE, and SentencePiece's BPE with its
--- scores. The result is what a tokenizer.json and a tokenizer_config.json would say.

local options = require "accelerate.utils.options"

local fail, show = options.fail, options.show

local M = {}

local UNKNOWN, CONTROL, OWN = 2, 3, 4 -- tokenizer.ggml.token_type
local SPACE = "\226\150\129" -- U+2581, which stands for a space

-- ---- settings

local function read(file, key, kind)
  local value = file:get("tokenizer." .. key)
  if value ~= nil and type(value) ~= kind then
    fail("%s: the setting tokenizer.%s must be a %s, got %s", file.where, key,
      kind == "table" and "list" or kind, show(value))
  end
  return value
end

-- A list with an entry of a kind for each token; nil: there is none.
local function read_list(file, key, kind, count)
  local list = read(file, key, "table")
  if not list then return nil end
  if count and #list ~= count then
    fail("%s: the setting tokenizer.%s must have %d entries, one for each token, got %d", file.where, key,
      count, #list)
  end
  if list[1] ~= nil and type(list[1]) ~= kind then
    fail("%s: the setting tokenizer.%s must be a list of %ss, got %s", file.where, key, kind, show(list[1]))
  end
  return list
end

local ROLES = { bos_token = "bos", eos_token = "eos", unk_token = "unknown", pad_token = "padding",
  sep_token = "seperator", cls_token = "cls", mask_token = "mask" }

-- The special tokens by their roles.
local function set_roles(file, tokens, settings)
  for role, name in next, ROLES do
    local id = read(file, ("ggml.%s_token_id"):format(name), "number")
    if id and id ~= 2 ^ 32 - 1 then
      settings[role] = tokens[id + 1]
        or fail("%s: the setting tokenizer.ggml.%s_token_id is %g; ids are 0 to %d", file.where, name, id,
          #tokens - 1)
    end
  end
end

-- The chat template, or a list of those with names.
local function template_of(file)
  local default, list = read(file, "chat_template", "string"), {}
  for _, key in ipairs(file.keys) do
    local name = key:match "^tokenizer%.chat_template%.(.+)$"
    if name then
      list[#list + 1] = { name = name, template = read(file, "chat_template." .. name, "string") }
    end
  end
  if #list == 0 then return default end
  if default then table.insert(list, 1, { name = "default", template = default }) end
  return list
end

-- Tokens that are found in texts before they are split: control tokens, and those of the model's
-- makers.
local function added_of(tokens, types)
  local list = {}
  for i, kind in ipairs(types or {}) do
    if kind == CONTROL or kind == OWN then
      list[#list + 1] = { id = i - 1, content = tokens[i], special = kind == CONTROL, normalized = false,
        single_word = false, lstrip = false, rstrip = false }
    end
  end
  return list
end

local function vocab_of(tokens)
  local vocab = {}
  for i, token in ipairs(tokens) do vocab[token] = i - 1 end
  return vocab
end

-- ---- byte-level BPE

local GPT2 = [['s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+]]
local LLAMA3 = [[(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+]] ..
  [[[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+]]
local QWEN2 = [[(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*]] ..
  [[|\s*[\r\n]+|\s+(?!\S)|\s+]]

local function by_pattern(pattern, own)
  local how = { type = "Sequence", pretokenizers = {
    { type = "Split", pattern = { Regex = pattern }, behavior = "Isolated", invert = false },
    { type = "ByteLevel", add_prefix_space = false, trim_offsets = true, use_regex = false } } }
  return { how = how, ignore_merges = own and own.ignore_merges, bos = own and own.bos }
end
local DIGITS = { how = { type = "Sequence", pretokenizers = {
  { type = "Digits", individual_digits = true },
  { type = "ByteLevel", add_prefix_space = false, trim_offsets = true, use_regex = true } } } }

-- tokenizer.ggml.pre -> how texts are split, whether a whole word that is a token stays one, and
-- whether texts begin with the first token where the file does not say.
local llama3, plain3 = by_pattern(LLAMA3, { ignore_merges = true, bos = true }), by_pattern(LLAMA3)
local PRE = { default = by_pattern(GPT2), ["gpt-2"] = by_pattern(GPT2), ["phi-2"] = by_pattern(GPT2),
  olmo = by_pattern(GPT2), ["roberta-bpe"] = by_pattern(GPT2),
  ["llama-bpe"] = llama3, llama3 = llama3, ["llama-v3"] = llama3, falcon3 = llama3,
  ["smaug-bpe"] = plain3, dbrx = plain3, qwen2 = by_pattern(QWEN2),
  ["deepseek-r1-qwen"] = by_pattern(QWEN2), starcoder = DIGITS, refact = DIGITS, smollm = DIGITS,
  ["command-r"] = DIGITS }

local function utf8(code)
  if code < 128 then return string.char(code) end
  return string.char(192 + math.floor(code / 64), 128 + code % 64)
end

-- The letters that stand for bytes.
local letters
local function alphabet()
  if letters then return letters end
  letters = { of = {}, known = {} }
  local extra = 256
  for byte = 0, 255 do
    local itself = byte >= 33 and byte <= 126 or byte >= 161 and byte ~= 173
    letters.of[byte] = utf8(itself and byte or extra)
    letters.known[letters.of[byte]] = true
    if not itself then extra = extra + 1 end
  end
  return letters
end

-- A token in these letters, where it has others.
local function spelled(token)
  local a = alphabet()
  for c in token:gmatch "[%z\1-\127\192-\255][\128-\191]*" do
    if not a.known[c] then return (token:gsub(".", function(b) return a.of[b:byte()] end)) end
  end
  return token
end

local function byte_level(file, tokens, types)
  local name = read(file, "ggml.pre", "string") or "default"
  local pre = PRE[name]
  if not pre then
    local known = {}
    for key in next, PRE do known[#known + 1] = key end
    table.sort(known)
    fail("%s: tokenizer.ggml.pre %s is not there; known are %s", file.where, show(name),
      table.concat(known, ", "))
  end
  local merges = read_list(file, "ggml.merges", "string")
    or fail("%s: the setting tokenizer.ggml.merges is missing", file.where)
  local written = {}
  for i, token in ipairs(tokens) do
    local kind = types and types[i]
    written[i] = (kind == CONTROL or kind == OWN) and token or spelled(token)
  end
  return { pre_tokenizer = pre.how, decoder = { type = "ByteLevel", add_prefix_space = true,
    trim_offsets = true,
    use_regex = true },
    model = { type = "BPE", vocab = vocab_of(written), merges = merges,
      ignore_merges = pre.ignore_merges or false } }, pre.bos
end

-- ---- SentencePiece

-- The places between the characters of a text.
local function cuts(text)
  local list = {}
  for at in text:gmatch "()[%z\1-\127\192-\255][\128-\191]*" do
    if at > 1 then list[#list + 1] = at end
  end
  return list
end

-- All ways to make a token of two others. The best tokens come first, then the longer parts.
local function merges_of(tokens, vocab, scores)
  local list = {}
  for i, token in ipairs(tokens) do
    local own = {}
    local places = cuts(token)
    for k, at in ipairs(places) do
      local left, right = token:sub(1, at - 1), token:sub(at)
      if vocab[left] and vocab[right] then
        own[#own + 1] = { left, right, scores[i], k, #places + 1 - k }
      end
    end
    table.sort(own, function(a, b)
      if a[1] ~= b[1] then return vocab[a[1]] < vocab[b[1]] end
      return vocab[a[2]] < vocab[b[2]]
    end)
    for _, merge in ipairs(own) do
      list[#list + 1] = merge
      merge[6] = #list
    end
  end
  table.sort(list, function(a, b)
    for k = 3, 5 do
      if a[k] ~= b[k] then return a[k] > b[k] end
    end
    return a[6] < b[6]
  end)
  for i, merge in ipairs(list) do list[i] = { merge[1], merge[2] } end
  return list
end

local function replaced(from, to) return { type = "Replace", pattern = { String = from }, content = to } end
local GEMMA = { gemma = true, gemma2 = true }

-- Gemma's spaces are spaces in its file, and its merges follow the order of its tokens.
local function gemma_tokens(tokens)
  local list, scores = {}, {}
  for i, token in ipairs(tokens) do
    local spaces = token:find "^ +$"
    list[i], scores[i] = spaces and SPACE:rep(#token) or token, -i
  end
  return list, scores
end

local function sentencepiece(file, tokens, types)
  local architecture = file:get "general.architecture"
  local scores = read_list(file, "ggml.scores", "number", #tokens)
  local given = read_list(file, "ggml.merges", "string")
  if not scores and not given then fail("%s: the setting tokenizer.ggml.scores is missing", file.where) end
  local prefixed = read(file, "ggml.add_space_prefix", "boolean") ~= false
  local decoders = { replaced(SPACE, " "), { type = "ByteFallback" }, { type = "Fuse" } }
  local config = { decoder = { type = "Sequence", decoders = decoders } }
  if GEMMA[architecture] then
    tokens, scores = gemma_tokens(tokens)
    config.normalizer = replaced(" ", SPACE)
  elseif architecture == "phi3" and prefixed then
    config.normalizer = { type = "Sequence",
      normalizers = { { type = "Prepend", prepend = SPACE }, replaced(" ", SPACE) } }
  else
    config.pre_tokenizer = { type = "Metaspace", replacement = SPACE, split = false,
      prepend_scheme = prefixed and "first" or "never" }
  end
  if prefixed and not GEMMA[architecture] then
    decoders[4] = { type = "Strip", content = " ", start = 1, stop = 0 }
  end
  local vocab, unknown = vocab_of(tokens), nil
  for i, kind in ipairs(types or {}) do
    if kind == UNKNOWN then unknown = unknown or tokens[i] end
  end
  config.model = { type = "BPE", vocab = vocab, merges = given or merges_of(tokens, vocab, scores),
    unk_token = unknown, fuse_unk = true, byte_fallback = true }
  return config, true
end

local BUILDERS = { gpt2 = byte_level, llama = sentencepiece }

--- Returns the parts of a tokenizer.
---@param file accelerate.models.GgufFile
---@return table config as in a tokenizer.json
---@return table settings as in a tokenizer_config.json
function M.of(file)
  local kind = read(file, "ggml.model", "string")
  if kind == nil then fail("%s: there is no tokenizer in it (tokenizer.ggml.model)", file.where) end
  local build = BUILDERS[kind] or fail("%s: tokenizer.ggml.model %s is not there; known are gpt2 and llama",
    file.where, show(kind))
  local tokens = read_list(file, "ggml.tokens", "string")
  if not tokens or #tokens == 0 then fail("%s: the setting tokenizer.ggml.tokens is missing", file.where) end
  local types = read_list(file, "ggml.token_type", "number", #tokens)
  local settings = { chat_template = template_of(file) }
  set_roles(file, tokens, settings)
  local config, bos = build(file, tokens, types)
  config.version, config.added_tokens = "1.0", added_of(tokens, types)
  settings.add_bos_token = read(file, "ggml.add_bos_token", "boolean")
  if settings.add_bos_token == nil then
    settings.add_bos_token = bos and settings.bos_token ~= nil or false
  end
  settings.add_eos_token = read(file, "ggml.add_eos_token", "boolean") or false
  config.post_processor = require("accelerate.tokenizers.vocabulary").template_of(file.where, file.path,
    config.model.vocab, settings)
  return config, settings
end

return M
