--- Tokenizers of folders without a tokenizer.json: BERT's vocab.txt, GPT-2's vocab.json with
--- merges.txt. Both become the tables that a tokenizer.json holds.
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

local function text_of(where, path)
  local text, why = fs.read(path)
  if not text then fail("%s: %s", where, why) end
  return text
end

local function special(vocab, names)
  local list = {}
  for _, name in ipairs(names) do
    if vocab[name] then
      list[#list + 1] = { id = vocab[name], content = name, special = true, normalized = false,
        single_word = false, lstrip = false, rstrip = false }
    end
  end
  table.sort(list, function(a, b) return a.id < b.id end)
  return list
end

local BERT = { cls_token = "[CLS]", sep_token = "[SEP]", pad_token = "[PAD]", unk_token = "[UNK]",
  mask_token = "[MASK]" }

-- The text of a special token: of the settings, else BERT's.
local function role_of(settings, role)
  local value = settings[role]
  if type(value) == "table" then value = value.content end
  return type(value) == "string" and value or BERT[role]
end

local function bert(where, path, settings)
  local vocab, id = {}, 0
  for line in text_of(where, path):gmatch("([^\n]*)\n?") do
    line = line:gsub("\r$", "")
    if line ~= "" then vocab[line] = id end
    id = id + 1
  end
  local names = {}
  for role in pairs(BERT) do
    settings[role] = role_of(settings, role)
    names[#names + 1] = settings[role]
  end
  local cls, sep = settings.cls_token, settings.sep_token
  if not vocab[cls] or not vocab[sep] then
    fail("%s: '%s': there is no line %s", where, path, vocab[cls] and sep or cls)
  end
  local lower = settings.do_lower_case ~= false
  local function part(name, type_id) return { SpecialToken = { id = name, type_id = type_id } } end
  local first = { part(cls, 0), { Sequence = { id = "A", type_id = 0 } }, part(sep, 0) }
  return {
    version = "1.0", added_tokens = special(vocab, names),
    normalizer = { type = "BertNormalizer", clean_text = true, lowercase = lower,
      strip_accents = type(settings.strip_accents) == "boolean" and settings.strip_accents or nil,
      handle_chinese_chars = settings.tokenize_chinese_chars ~= false },
    pre_tokenizer = { type = "BertPreTokenizer" },
    post_processor = { type = "TemplateProcessing", single = first,
      pair = { first[1], first[2], first[3], { Sequence = { id = "B", type_id = 1 } }, part(sep, 1) },
      special_tokens = { [cls] = { id = cls, ids = { vocab[cls] }, tokens = { cls } },
        [sep] = { id = sep, ids = { vocab[sep] }, tokens = { sep } } } },
    decoder = { type = "WordPiece", prefix = "##", cleanup = true },
    model = { type = "WordPiece", unk_token = settings.unk_token, continuing_subword_prefix = "##",
      max_input_chars_per_word = 100, vocab = vocab },
  }
end

--- Returns the tokens that a call adds around a text, by add_bos_token and add_eos_token (OPT's
--- tokenizer is
-- GPT-2's with the first one); nil for none. With a tokenizer.json its post_processor says so, as
-- in Transformers.
function M.template_of(where, path, vocab, settings)
  local tokens, first, second = {}, {}, {}
  local function add(role, type_id, list)
    if settings["add_" .. role] ~= true then return end
    local name = settings[role]
    if type(name) == "table" then name = name.content end
    if not vocab[name] then
      fail("%s: add_%s of tokenizer_config.json needs a token that '%s' has, and %s is '%s'", where, role,
        path,
        role, tostring(name))
    end
    tokens[name] = { id = name, ids = { vocab[name] }, tokens = { name } }
    list[#list + 1] = { SpecialToken = { id = name, type_id = type_id } }
  end
  for type_id, list in pairs { [0] = first, second } do -- each by itself
    add("bos_token", type_id, list)
    list[#list + 1] = { Sequence = { id = type_id == 0 and "A" or "B", type_id = type_id } }
    add("eos_token", type_id, list)
  end
  if next(tokens) == nil then return nil end
  local pair = { unpack(first) }
  for _, part in ipairs(second) do pair[#pair + 1] = part end
  return { type = "TemplateProcessing", single = first, pair = pair, special_tokens = tokens }
end

local function gpt2(where, path, merges_path, settings)
  local vocab, why = json.decode(text_of(where, path))
  if type(vocab) ~= "table" then fail("%s: '%s': %s", where, path, why or "expected an object") end
  local merges = {}
  for line in text_of(where, merges_path):gmatch("[^\n]+") do
    line = line:gsub("\r$", "")
    if line ~= "" and not (line:find("^#version") and #merges == 0) then merges[#merges + 1] = line end
  end
  local names = {}
  for _, role in ipairs { "bos_token", "eos_token", "unk_token" } do
    settings[role] = settings[role] or "<|endoftext|>"
    names[#names + 1] = type(settings[role]) == "table" and settings[role].content or settings[role]
  end
  local added = special(vocab, names)
  for i = #added, 2, -1 do
    if added[i].id == added[i - 1].id then table.remove(added, i) end
  end
  local prefix = settings.add_prefix_space == true
  return {
    version = "1.0", added_tokens = added[1] and added or nil,
    pre_tokenizer = { type = "ByteLevel", add_prefix_space = prefix, trim_offsets = true, use_regex = true },
    post_processor = M.template_of(where, path, vocab, settings)
      or { type = "ByteLevel", add_prefix_space = true, trim_offsets = false, use_regex = true },
    decoder = { type = "ByteLevel", add_prefix_space = true, trim_offsets = true, use_regex = true },
    model = { type = "BPE", vocab = vocab, merges = merges },
  }
end

-- Files that are not read: SentencePiece's and Mistral's.
local OTHERS = { "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json",
  "tokenizer.model.v3" }

-- What a message says of a tokenizer of another kind in the folder, or "".
local function other_tokenizer(folder)
  for _, name in ipairs(OTHERS) do
    if fs.exists(fs.join(folder, name)) then
      return ("; %s is not read: `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)` of " ..
        "Transformers writes a tokenizer.json from it"):format(name)
    end
  end
  return ""
end

--- Reads what a folder has.
---@param where string what messages begin with
---@param folder string
---@param settings table tokenizer_config.json; special tokens that it lacks are added
---@return string path the file that was read
---@return table config as in a tokenizer.json
function M.read(where, folder, settings)
  local txt, map, merges = fs.join(folder, "vocab.txt"), fs.join(folder, "vocab.json"),
    fs.join(folder, "merges.txt")
  if fs.exists(map) and fs.exists(merges) then return map, gpt2(where, map, merges, settings) end
  if fs.exists(txt) then return txt, bert(where, txt, settings) end
  fail("%s: %s has no tokenizer; expected tokenizer.json, vocab.txt, or vocab.json with merges.txt%s", where,
    folder, other_tokenizer(folder))
end

return M
