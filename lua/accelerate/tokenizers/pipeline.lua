--- Builds the C tokenizer from the parts of a tokenizer.json.
local base64 = require "accelerate.utils.base64"
local checks = require "accelerate.tokenizers.checks"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local field = checks.field

local M = {}

local function flags(file, where, t, list)
  local sum = 0
  for _, entry in ipairs(list) do
    if field(file, where, t, entry[1], "boolean", entry[3]) then sum = sum + entry[2] end
  end
  return sum
end

-- ---- normalizers: each function adds steps to the C tokenizer

local NORMALIZERS = {}

local function add_normalizer(file, where, t, config)
  if not config then return end
  if type(config) ~= "table" then
    checks.fail(file, "%s: expected an object, got %s", where, options.show(config))
  end
  checks.kind(file, where, config, NORMALIZERS)(file, where, t, config)
end

local function plain(kind) return function(_, _, t) t:normalizer(kind, "", "", 0) end end

for _, name in ipairs { "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt" } do
  NORMALIZERS[name] = plain(name:lower())
end
NORMALIZERS.StripAccents = plain "strip_accents"

function NORMALIZERS.Sequence(file, where, t, config)
  local list = field(file, where, config, "normalizers", "list")
  for i = 1, #list do add_normalizer(file, ("%s.normalizers[%d]"):format(where, i), t, list[i]) end
end

function NORMALIZERS.BertNormalizer(file, where, t, config)
  local lowercase = field(file, where, config, "lowercase", "boolean", true)
  t:normalizer("bert", "", "", flags(file, where, config, { { "clean_text", 1, true },
    { "handle_chinese_chars", 2, true }, { "strip_accents", 4, lowercase }, { "lowercase", 8, true } }))
end

function NORMALIZERS.Strip(file, where, t, config)
  t:normalizer("strip", "", "", flags(file, where, config,
    { { "strip_left", 1, true }, { "strip_right", 2, true } }))
end

function NORMALIZERS.Prepend(file, where, t, config)
  t:normalizer("prepend", field(file, where, config, "prepend", "string"), "", 0)
end

-- Patterns that Replace knows, with the flags of replace_spaces.
local RUNS = { [" +"] = 0, ["\\s+"] = 1, [" {2,}"] = 2, ["\\s{2,}"] = 3 }

function NORMALIZERS.Replace(file, where, t, config)
  local pattern, content = field(file, where, config, "pattern", "map"),
    field(file, where, config, "content", "string")
  if pattern.Regex == nil then
    t:normalizer("replace", field(file, where .. ".pattern", pattern, "String", "string"), content, 0)
  elseif RUNS[pattern.Regex] then
    t:normalizer("replace_spaces", "", content, RUNS[pattern.Regex])
  else
    checks.fail(file, "%s: the pattern %s is not supported; supported are plain texts and ' +', '\\s+', " ..
      "' {2,}', '\\s{2,}'", where, options.show(pattern.Regex))
  end
end

function NORMALIZERS.Precompiled(file, where, t, config)
  local text = field(file, where, config, "precompiled_charsmap", "string", "")
  if text == "" then return end
  local bytes = base64.decode(text)
  if not bytes then checks.fail(file, "%s: precompiled_charsmap is not base64", where) end
  t:normalizer("charsmap", bytes, "", 0)
end

-- ---- pre-tokenizers

local SPLITTERS = {}
local BEHAVIOURS = { Removed = 0, Isolated = 1, MergedWithPrevious = 2, MergedWithNext = 3, Contiguous = 4 }

local function add_splitter(file, where, t, config, last)
  if not config then return end
  if type(config) ~= "table" then
    checks.fail(file, "%s: expected an object, got %s", where, options.show(config))
  end
  local add, name = checks.kind(file, where, config, SPLITTERS)
  if name == "ByteLevel" and not last then
    checks.fail(file, "%s: ByteLevel is supported as the last pre-tokenizer", where)
  end
  add(file, where, t, config, last)
end

local function behaviour(file, where, config)
  local name = field(file, where, config, "behavior", "string", "Isolated")
  local number = BEHAVIOURS[name]
  if not number then
    checks.fail(file, "%s: behavior must be one of Removed, Isolated, MergedWithPrevious, MergedWithNext, " ..
      "Contiguous, got %s", where, options.show(name))
  end
  return number * 16
end

function SPLITTERS.Sequence(file, where, t, config, last)
  local list = field(file, where, config, "pretokenizers", "list")
  for i = 1, #list do
    add_splitter(file, ("%s.pretokenizers[%d]"):format(where, i), t, list[i], last and i == #list)
  end
end

function SPLITTERS.BertPreTokenizer(_, _, t) t:splitter("bert", "", "", 0) end
function SPLITTERS.WhitespaceSplit(_, _, t) t:splitter("whitespace_split", "", "", 0) end
function SPLITTERS.Whitespace(_, _, t) t:splitter("whitespace", "", "", 0) end

function SPLITTERS.Punctuation(file, where, t, config)
  t:splitter("punctuation", "", "", behaviour(file, where, config))
end

function SPLITTERS.Digits(file, where, t, config)
  t:splitter("digits", "", "", flags(file, where, config, { { "individual_digits", 1, false } }))
end

function SPLITTERS.CharDelimiterSplit(file, where, t, config)
  t:splitter("text", field(file, where, config, "delimiter", "string"), "", 0)
end

function SPLITTERS.Split(file, where, t, config)
  local pattern, how = field(file, where, config, "pattern", "map"), behaviour(file, where, config)
  how = how + flags(file, where, config, { { "invert", 1, false } })
  if pattern.Regex == nil then
    t:splitter("text", field(file, where .. ".pattern", pattern, "String", "string"), "", how)
    return
  end
  local regex = field(file, where .. ".pattern", pattern, "Regex", "string")
  local number = core._text_pattern(regex)
  if not number then
    checks.fail(file, "%s: the pattern %s is not supported; supported are those of GPT-2, " ..
      "Llama 3, Qwen 2, o200k and CLIP", where, options.show(regex))
  end
  t:splitter("pattern", "", "", how + 256 * number)
end

function SPLITTERS.Metaspace(file, where, t, config)
  local scheme = field(file, where, config, "prepend_scheme", "string",
    config.add_prefix_space == false and "never" or "always")
  local bits = ({ never = 0, first = 1, always = 2 })[scheme]
  local replacement = field(file, where, config, "replacement", "string", "\226\150\129")
  if not bits then
    checks.fail(file, "%s: prepend_scheme must be one of always, first, never, got %s", where,
      options.show(scheme))
  end
  if replacement == "" then checks.fail(file, "%s: replacement is empty", where) end
  t:splitter("metaspace", replacement, "", bits + flags(file, where, config, { { "split", 4, true } }))
end

function SPLITTERS.ByteLevel(file, where, t, config)
  t:splitter("byte_level", "", "", flags(file, where, config,
    { { "add_prefix_space", 1, true }, { "use_regex", 2, true } }))
end

-- Whether a pre-tokenizer writes texts in the byte-level alphabet.
local function is_byte_level(config)
  if type(config) ~= "table" then return false end
  if config.type == "ByteLevel" then return true end
  if config.type ~= "Sequence" or type(config.pretokenizers) ~= "table" then return false end
  for _, part in ipairs(config.pretokenizers) do
    if is_byte_level(part) then return true end
  end
  return false
end

-- ---- models

local MOST_IDS = 2 ^ 24

-- Tokens by id + 1, with false where there is none.
local function by_id(file, vocab)
  local tokens, n = {}, 0
  for token, id in pairs(vocab) do
    if type(token) ~= "string" or type(id) ~= "number" or id % 1 ~= 0 or id < 0 or id >= MOST_IDS then
      checks.fail(file, "model.vocab: the token %s has the id %s; ids are integers from 0",
        options.show(token), options.show(id))
    end
    if tokens[id + 1] then
      checks.fail(file, "model.vocab: the tokens %s and %s both have the id %d", options.show(tokens[id + 1]),
        options.show(token), id)
    end
    tokens[id + 1] = token
    if id + 1 > n then n = id + 1 end
  end
  if n > 8 * #tokens + 2 ^ 16 and n > 2 ^ 16 then
    checks.fail(file, "model.vocab: ids go up to %d, but there are far fewer tokens", n - 1)
  end
  for i = 1, n do tokens[i] = tokens[i] or false end
  return tokens, n
end

local MODELS = {}

local function unknown_of(file, config, vocab)
  local name = field(file, "model", config, "unk_token", "string", false)
  return name and vocab[name] or -1
end

function MODELS.WordPiece(file, t, config)
  local vocab = field(file, "model", config, "vocab", "map")
  local tokens, n = by_id(file, vocab)
  t:model("WordPiece", {
    unk = unknown_of(file, config, vocab),
    prefix = field(file, "model", config, "continuing_subword_prefix", "string", "##"),
    longest = field(file, "model", config, "max_input_chars_per_word", "integer", 100),
  }, n, tokens)
  return tokens, vocab
end

function MODELS.WordLevel(file, t, config)
  local vocab = field(file, "model", config, "vocab", "map")
  local tokens, n = by_id(file, vocab)
  t:model("WordLevel", { unk = unknown_of(file, config, vocab) }, n, tokens)
  return tokens, vocab
end

function MODELS.BPE(file, t, config, bytes)
  local vocab, merges = field(file, "model", config, "vocab", "map"),
    field(file, "model", config, "merges", "list")
  local tokens, n = by_id(file, vocab)
  if field(file, "model", config, "dropout", "number", 0) ~= 0 then
    checks.fail(file, "model: dropout of merges is not supported")
  end
  t:model("BPE", {
    unk = unknown_of(file, config, vocab), bytes = bytes,
    prefix = field(file, "model", config, "continuing_subword_prefix", "string", ""),
    suffix = field(file, "model", config, "end_of_word_suffix", "string", ""),
    byte_fallback = field(file, "model", config, "byte_fallback", "boolean", false),
    fuse_unk = field(file, "model", config, "fuse_unk", "boolean", false),
    ignore_merges = field(file, "model", config, "ignore_merges", "boolean", false),
  }, n, tokens)
  t:merges(merges)
  return tokens, vocab
end

function MODELS.Unigram(file, t, config)
  local list = field(file, "model", config, "vocab", "list")
  local tokens, scores, vocab = {}, {}, {}
  for i = 1, #list do
    local entry = list[i]
    if type(entry) ~= "table" or type(entry[1]) ~= "string" or type(entry[2]) ~= "number" then
      checks.fail(file, "model.vocab[%d]: expected a token and its score", i)
    end
    tokens[i], scores[i], vocab[entry[1]] = entry[1], entry[2], i - 1
  end
  t:model("Unigram", {
    unk = field(file, "model", config, "unk_id", "integer", -1), fuse_unk = true,
    byte_fallback = field(file, "model", config, "byte_fallback", "boolean", false),
  }, #list, tokens, scores)
  return tokens, vocab
end

-- ---- post-processors

local PROCESSORS = {}

local function add_processor(file, where, t, config)
  if not config then return end
  if type(config) ~= "table" then
    checks.fail(file, "%s: expected an object, got %s", where, options.show(config))
  end
  checks.kind(file, where, config, PROCESSORS)(file, where, t, config)
end

function PROCESSORS.Sequence(file, where, t, config)
  local list = field(file, where, config, "processors", "list")
  for i = 1, #list do add_processor(file, ("%s.processors[%d]"):format(where, i), t, list[i]) end
end

function PROCESSORS.ByteLevel(file, where, t, config)
  t:trim(field(file, where, config, "trim_offsets", "boolean", true),
    field(file, where, config, "add_prefix_space", "boolean", true))
end

-- The three numbers of each part of a template.
local function template(file, where, parts, specials)
  local list = {}
  for i = 1, #parts do
    local part, at = parts[i], ("%s[%d]"):format(where, i)
    if type(part) ~= "table" then
      checks.fail(file, "%s: expected an object, got %s", at, options.show(part))
    end
    local kind = part.Sequence and "Sequence" or "SpecialToken"
    part = field(file, at, part, kind, "map")
    local name, type_id = field(file, at, part, "id", "string"), field(file, at, part, "type_id",
      "integer", 0)
    if type_id < 0 or type_id > 255 then checks.fail(file, "%s: a type_id of %g", at, type_id) end
    local ids = { -1 }
    if kind == "SpecialToken" then
      local special = field(file, where, specials, name, "map")
      ids = field(file, where, special, "ids", "list")
    elseif name ~= "A" and name ~= "B" then
      checks.fail(file, "%s: there is no text %s", at, options.show(name))
    end
    for k = 1, #ids do
      local id = field(file, at, ids, k, "integer")
      if id < -1 or id >= 2 ^ 31 then checks.fail(file, "%s: %g is no id", at, id) end
      list[#list + 1] = id
      list[#list + 1] = name == "B" and 1 or 0
      list[#list + 1] = type_id
    end
  end
  return list
end

function PROCESSORS.TemplateProcessing(file, where, t, config)
  local specials = field(file, where, config, "special_tokens", "map", {})
  for _, name in ipairs { "single", "pair" } do
    local parts = field(file, where, config, name, "list", {})
    t:template(name == "pair", template(file, where .. "." .. name, parts, specials))
  end
end

-- "[CLS]", id and "[SEP]", id of the older forms.
local function ends_of(file, where, config)
  local ids = {}
  for i, name in ipairs { "cls", "sep" } do
    ids[i] = field(file, where, field(file, where, config, name, "list"), 2, "integer")
    if ids[i] < 0 or ids[i] >= 2 ^ 31 then checks.fail(file, "%s: %g is no id", where, ids[i]) end
  end
  return ids[1], ids[2]
end

function PROCESSORS.BertProcessing(file, where, t, config)
  local cls, sep = ends_of(file, where, config)
  t:template(false, { cls, 0, 0, -1, 0, 0, sep, 0, 0 })
  t:template(true, { cls, 0, 0, -1, 0, 0, sep, 0, 0, -1, 1, 1, sep, 0, 1 })
end

function PROCESSORS.RobertaProcessing(file, where, t, config)
  local cls, sep = ends_of(file, where, config)
  t:template(false, { cls, 0, 0, -1, 0, 0, sep, 0, 0 })
  t:template(true, { cls, 0, 0, -1, 0, 0, sep, 0, 0, sep, 0, 0, -1, 1, 0, sep, 0, 0 })
  PROCESSORS.ByteLevel(file, where, t, config)
end

-- ---- all of it

M.ADDED = { { "special", 1 }, { "single_word", 2 }, { "lstrip", 4 }, { "rstrip", 8 }, { "normalized", 16 } }

--- Adds a token to the C tokenizer, or gives the one at `place` other flags.
---@param file string for messages
---@param t userdata
---@param token { content: string, id: integer }
---@param place integer?
---@return integer place
function M.add_token(file, t, token, place)
  local bits = 0
  for _, entry in ipairs(M.ADDED) do
    if field(file, "added_tokens", token, entry[1], "boolean", false) then bits = bits + entry[2] end
  end
  local id = field(file, "added_tokens", token, "id", "integer")
  if id < 0 or id >= MOST_IDS then checks.fail(file, "added_tokens: %g is no id", id) end
  return t:add(field(file, "added_tokens", token, "content", "string"), id, bits, place)
end

--- Builds a tokenizer from a decoded tokenizer.json.
---@param file string for messages
---@param config table
---@return userdata tokenizer of accelerate.core
---@return table tokens by id + 1, false where there is none
---@return table<string, integer> vocab
function M.build(file, config)
  local t = core._tokenizer()
  local model = field(file, "the file", config, "model", "map")
  local bytes = is_byte_level(config.pre_tokenizer)
  local make, kind
  if model.type == nil then -- files of old versions
    kind = model.merges and "BPE" or model.continuing_subword_prefix and "WordPiece" or "Unigram"
    make = MODELS[kind]
  else
    make, kind = checks.kind(file, "model", model, MODELS)
  end
  if bytes and kind ~= "BPE" then
    checks.fail(file, "pre_tokenizer: ByteLevel is supported with BPE, not with %s", kind)
  end
  local tokens, vocab = make(file, t, model, bytes)
  add_normalizer(file, "normalizer", t, config.normalizer)
  add_splitter(file, "pre_tokenizer", t, config.pre_tokenizer, true)
  add_processor(file, "post_processor", t, config.post_processor)
  return t, tokens, vocab
end

return M
