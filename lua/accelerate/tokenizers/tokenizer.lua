--- The tokenizer that scripts use: texts to ids with padding and truncation, ids to texts.
local chat = require "accelerate.tokenizers.chat"
local checks = require "accelerate.tokenizers.checks"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local decoder = require "accelerate.tokenizers.decoder"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local options = require "accelerate.utils.options"
local padding = require "accelerate.tokenizers.padding"
local pipeline = require "accelerate.tokenizers.pipeline"

local fail, show = options.fail, options.show

-- The roles of special tokens, as tokenizer_config.json names them.
local ROLES = { "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token" }

--- Texts to token ids and back, with the ids of Hugging Face's `tokenizers`.
---
--- Texts are UTF-8; each ill-formed sequence counts as U+FFFD. Ids count from 0.
---@class accelerate.Tokenizer
---@field model_max_length integer most tokens that the model takes; math.huge where nobody says
---@field padding_side "right"|"left"
---@field truncation_side "right"|"left"
---@field chat_template string? Jinja
---@field model_input_names string[] what a call returns by default
---@field bos_token string? and so on: eos_token, unk_token, sep_token, pad_token, cls_token,
---  mask_token; a token of the vocabulary can be assigned
---@field pad_token_id integer? and so on, for each of them
local Tokenizer = class "Tokenizer"

-- Role and role_id -> role and whether it is the id.
local ROLE_OF, IS_ID = {}, {}
for _, role in ipairs(ROLES) do
  ROLE_OF[role], ROLE_OF[role .. "_id"], IS_ID[role .. "_id"] = role, role, true
end

function Tokenizer.__index(self, key)
  local value = Tokenizer[key]
  if value ~= nil or not ROLE_OF[key] then return value end
  local token = self._roles[ROLE_OF[key]]
  if IS_ID[key] then return token and self._vocab[token] end
  return token
end

-- Assignment of a role, as a token of the vocabulary or as its id.
function Tokenizer.__newindex(self, key, value)
  local role = ROLE_OF[key]
  if not role then return rawset(self, key, value) end
  local where, token = "tokenizer." .. key, value
  if IS_ID[key] and value ~= nil then
    options.value("tokenizer", key, value, { "integer", min = 0 })
    token = self._tokens[value + 1]
    if not token then fail("%s: there is no id %d; ids are 0 to %d", where, value, #self._tokens - 1) end
  elseif value ~= nil then
    options.value("tokenizer", key, value, { "string" })
    if not self._vocab[value] then
      fail("%s: the vocabulary has no token %s; add_special_tokens adds it", where, show(value))
    end
  end
  self._roles[role], self._settings[role] = token, token
end

-- A special token in a configuration is a text or an object with one.
local function content_of(value)
  if type(value) == "table" then value = value.content end
  return type(value) == "string" and value or nil
end

local function side(file, config, name)
  local value = checks.field(file, "tokenizer_config.json", config, name, "string", "right")
  if value ~= "right" and value ~= "left" then
    checks.fail(file, "tokenizer_config.json: %s must be right or left, got %s", name, show(value))
  end
  return value
end

local function names_of(file, settings, config)
  local names = checks.field(file, "tokenizer_config.json", settings, "model_input_names", "list", {})
  if #names > 0 then return names end
  local model = config.model.type
  if model == "WordPiece" then return { "input_ids", "token_type_ids", "attention_mask" } end
  return { "input_ids", "attention_mask" }
end

-- Texts of a configuration's templates by name, or the one.
local function template_of(value)
  if type(value) == "string" then return value end
  if type(value) ~= "table" then return nil end
  for _, entry in ipairs(value) do
    if type(entry) == "table" and entry.name == "default" and type(entry.template) == "string" then
      return entry.template
    end
  end
end

--- `accelerate.tokenizers.from_pretrained` and its neighbours make tokenizers.
---@param file string the path, for messages
---@param config table a decoded tokenizer.json
---@param settings table? a decoded tokenizer_config.json
---@param text string? the text of tokenizer.json, for save_pretrained
function Tokenizer:init(file, config, settings, text)
  settings = settings or {}
  self._file, self._text, self._settings, self._added, self._roles = file, text, settings, {}, {}
  self._core, self._tokens, self._vocab = pipeline.build(file, config)
  self._decode = decoder.build(file, config.decoder)
  self._special = {}
  local added = checks.field(file, "the file", config, "added_tokens", "list", {})
  for i = 1, #added do
    if type(added[i]) ~= "table" then
      checks.fail(file, "added_tokens[%d]: expected an object, got %s", i, show(added[i]))
    end
    self:_take(added[i])
  end
  self.padding_side, self.truncation_side = side(file, settings, "padding_side"),
    side(file, settings, "truncation_side")
  local most = checks.field(file, "tokenizer_config.json", settings, "model_max_length", "number", math.huge)
  self.model_max_length = most > 1e12 and math.huge or most
  self.clean_up_tokenization_spaces = checks.field(file, "tokenizer_config.json", settings,
    "clean_up_tokenization_spaces", "boolean", false)
  self.chat_template = template_of(settings.chat_template)
  self.model_input_names = names_of(file, settings, config)
  for _, role in ipairs(ROLES) do
    self._roles[role] = content_of(settings[role])
  end
end

-- Takes an added token into the lists and the C tokenizer.
function Tokenizer:_take(token)
  pipeline.add_token(self._file, self._core, token)
  local id, content = token.id, token.content
  for i = #self._tokens + 1, id do self._tokens[i] = false end
  self._tokens[id + 1] = content
  self._vocab[content] = id
  self._special[id] = token.special or nil
end

function Tokenizer:__tostring()
  return ("Tokenizer(%s, %d tokens)"):format(self._file, self:len())
end

--- Returns the number of ids, added tokens included; `#tokenizer` is this.
---@return integer
function Tokenizer:len() return #self._tokens end
function Tokenizer:__len() return #self._tokens end

--- Returns a copy of the vocabulary.
---@return table<string, integer> ids by token
function Tokenizer:get_vocab()
  local copy = {}
  for token, id in pairs(self._vocab) do copy[token] = id end
  return copy
end

-- ---- texts to ids

local CALL = {
  add_special_tokens = { "boolean", default = true },
  padding = { "boolean|string", default = false,
    one_of = { true, false, "longest", "max_length", "do_not_pad" } },
  truncation = { "boolean|string", default = false,
    one_of = { true, false, "longest_first", "only_first", "only_second", "do_not_truncate" } },
  max_length = { "integer", optional = true, min = 0 },
  pad_to_multiple_of = { "integer", optional = true, min = 1 },
  padding_side = { "string", optional = true, one_of = { "right", "left" } },
  return_tensors = { "boolean|string", default = false, one_of = { true, false, "pt" } },
  return_attention_mask = { "boolean", optional = true },
  return_token_type_ids = { "boolean", optional = true },
  return_special_tokens_mask = { "boolean", default = false },
  return_offsets_mapping = { "boolean", default = false },
  return_word_ids = { "boolean", default = false },
  return_length = { "boolean", default = false },
  split_special_tokens = { "boolean", default = false },
  return_overflowing_tokens = { "boolean", default = false },
  stride = { "integer", default = 0, min = 0 },
}

local function check_texts(where, what, value)
  if type(value) ~= "table" or getmetatable(value) then
    fail("%s: %s must be a string or a list of strings, got %s", where, what, show(value))
  end
  for i = 1, #value do
    if type(value[i]) ~= "string" then
      fail("%s: %s[%d] must be a string, got %s", where, what, i, show(value[i]))
    end
  end
  return value
end

-- Arguments of a call as lists; `single` says that one text was given.
local function texts_of(where, text, pair)
  local single = type(text) == "string"
  if single then text = { text } end
  check_texts(where, "text", text)
  if pair == nil then return text, nil, single end
  if type(pair) == "string" and single then pair = { pair } end
  check_texts(where, "pair", pair)
  if #pair ~= #text then fail("%s: %d texts, but %d second ones", where, #text, #pair) end
  return text, pair, single
end

local function is_options(value)
  return type(value) == "table" and getmetatable(value) == nil and value[1] == nil and next(value) ~= nil
end

-- How long rows may become: nil for any length.
function Tokenizer:_limit(o)
  if o.truncation == false or o.truncation == "do_not_truncate" then return nil end
  local limit = o.max_length or self.model_max_length
  return limit < math.huge and limit or nil
end

function Tokenizer:_run(text, pair, o)
  local limit = self:_limit(o)
  local how = not limit and "do_not_truncate" or o.truncation == true and "longest_first" or o.truncation
  return self._core:encode(text, pair, o.add_special_tokens, o.return_offsets_mapping,
    o.split_special_tokens, how, self.truncation_side == "left", limit, o.return_overflowing_tokens,
    o.stride)
end

-- Which fields a call returns, with the field of C's encodings, and what pads it.
function Tokenizer:_fields(o)
  local function wanted(name, option)
    if option ~= nil then return option end
    for _, given in ipairs(self.model_input_names) do
      if given == name then return true end
    end
    return false
  end
  local fields = { { "input_ids", "ids", self.pad_token_id or 0 } }
  if wanted("token_type_ids", o.return_token_type_ids) then fields[2] = { "token_type_ids", "types", 0 } end
  if wanted("attention_mask", o.return_attention_mask) then
    fields[#fields + 1] = { "attention_mask", "mask", 0 }
  end
  if o.return_special_tokens_mask then fields[#fields + 1] = { "special_tokens_mask", "special", 1 } end
  return fields
end

-- The width that rows are padded to; nil: each keeps its length.
function Tokenizer:_width(where, o, longest)
  if o.padding == false or o.padding == "do_not_pad" then return nil end
  if not self.pad_token_id then
    fail("%s: padding needs a pad_token, and the tokenizer has none; set tokenizer.pad_token_id", where)
  end
  local width = longest
  if o.padding == "max_length" then
    width = math.max(longest, o.max_length or self.model_max_length)
    if width == math.huge then fail("%s: padding 'max_length' needs option 'max_length'", where) end
  end
  return padding.rounded(width, o.pad_to_multiple_of)
end

-- Row i of the encodings as lists.
local function row_of(encodings, i, fields, o, width, left)
  local row, ids = {}, encodings:row(i, "ids")
  local n = #ids
  local gap = width and width - n or 0
  for _, entry in ipairs(fields) do
    local list = entry[2] == "ids" and ids or entry[2] == "mask" and padding.ones(n)
      or encodings:row(i, entry[2])
    row[entry[1]] = padding.extend(list, gap, entry[3], left)
  end
  if o.return_offsets_mapping then
    row.offset_mapping = padding.extend(encodings:row(i, "offsets"), gap, function() return { 0, 0 } end,
      left)
  end
  if o.return_word_ids then
    local words = encodings:row(i, "words")
    for k = 1, #words do words[k] = words[k] and words[k] + 1 end
    row.word_ids = padding.extend(words, gap, false, left)
  end
  if o.return_length then row.length = #row.input_ids end
  return row
end

local function as_tensors(encodings, fields, o, width, left, where)
  local rows, longest = encodings:size()
  if not width then
    for i = 1, rows do
      if #encodings:row(i, "ids") ~= longest then
        fail("%s: rows of %d and %d tokens make no tensor; use padding = true and truncation = true", where,
          #encodings:row(i, "ids"), longest)
      end
    end
  end
  local result = {}
  for _, entry in ipairs(fields) do
    result[entry[1]] = encodings:tensor(entry[2], width or longest, entry[3], left)
  end
  for _, name in ipairs { "offset_mapping", "word_ids", "length" } do
    local list = {}
    for i = 1, rows do
      list[i] = row_of(encodings, i, {}, o, nil, left)[name]
      if name ~= "length" and list[i] and width then
        padding.extend(list[i], width - #list[i], name == "word_ids" and false
          or function() return { 0, 0 } end,
          left)
      end
    end
    if list[1] then result[name] = list end
  end
  return result
end

-- Encodes lists of texts.
function Tokenizer:_batch(where, text, pair, o, single)
  local encodings, mapping = self:_run(text, pair, o)
  local rows, longest = encodings:size()
  local fields, width = self:_fields(o), self:_width(where, o, longest)
  local left = (o.padding_side or self.padding_side) == "left"
  if o.return_tensors then
    local result = as_tensors(encodings, fields, o, width, left, where)
    result.overflow_to_sample_mapping = mapping
    return result
  end
  if single and not mapping then return row_of(encodings, 1, fields, o, width, left) end
  local result = { overflow_to_sample_mapping = mapping }
  for _, entry in ipairs(fields) do result[entry[1]] = {} end
  for i = 1, rows do
    for name, value in pairs(row_of(encodings, i, fields, o, width, left)) do
      result[name] = result[name] or {}
      result[name][i] = value
    end
  end
  return result
end

--- Encodes a text or a list of texts: `tokenizer(text, pair, options)`, with Transformers' options
--- and results. `input_ids`, `attention_mask` and, where the model takes them, `token_type_ids` are
--- lists; for a list of texts, lists of lists; with return_tensors, int64 tensors [texts, tokens].
--- offset_mapping holds {from, to} for each token: `text:sub(from + 1, to)` is its text, and {0, 0}
--- stands for special tokens. word_ids holds the number of each token's word, from 1, and false for
--- special tokens. special_tokens_mask is 1 for the tokens that the post-processor added.
---
--- With truncation and return_overflowing_tokens, what does not fit makes further rows, and
--- overflow_to_sample_mapping holds the number of each row's text, from 1. Results are then lists
--- of lists for a single text too. Neighbouring rows of a text share `stride` tokens. Where both
--- texts of a pair are cut (longest_first), there is a row for each part of the one with each of
--- the other.
---@param text string|string[]
---@param pair string|string[]|nil second texts
---@param opts { add_special_tokens: boolean?, padding: boolean|"longest"|"max_length"|nil,
---  truncation: boolean|"longest_first"|"only_first"|"only_second"|nil, max_length: integer?,
---  pad_to_multiple_of: integer?, padding_side: string?, return_tensors: boolean|"pt"|nil,
---  return_attention_mask: boolean?, return_token_type_ids: boolean?, return_special_tokens_mask:
---  boolean?, return_offsets_mapping: boolean?, return_word_ids: boolean?, return_length: boolean?,
---  split_special_tokens: boolean?, return_overflowing_tokens: boolean?, stride: integer? }?
---  max_length counts special tokens, default the model's; stride: default 0
---@return table<string, any>
function Tokenizer:__call(text, pair, opts)
  if opts == nil and is_options(pair) then pair, opts = nil, pair end
  local single
  local o = options.check("tokenizer", opts, CALL)
  text, pair, single = texts_of("tokenizer", text, pair)
  return self:_batch("tokenizer", text, pair, o, single)
end

--- Encodes one text, or a pair, and returns the ids. Options as in a call.
---@param text string
---@param pair string?
---@param opts table?
---@return integer[]
function Tokenizer:encode(text, pair, opts)
  if opts == nil and is_options(pair) then pair, opts = nil, pair end
  options.value("encode", "text", text, { "string" })
  options.value("encode", "pair", pair, { "string", optional = true })
  local o = options.check("encode", opts, CALL)
  return self:_batch("encode", { text }, pair and { pair }, o, not o.return_tensors).input_ids
end

--- Encodes lists of texts: a call for which `texts` is a list.
---@param texts string[]
---@param pairs string[]?
---@param opts table?
---@return table<string, any>
function Tokenizer:encode_batch(texts, pairs, opts)
  if opts == nil and is_options(pairs) then pairs, opts = nil, pairs end
  local o = options.check("encode_batch", opts, CALL)
  check_texts("encode_batch", "texts", texts)
  local text, pair = texts_of("encode_batch", texts, pairs)
  return self:_batch("encode_batch", text, pair, o, false)
end

--- Returns the tokens of a text, without special tokens.
---@param text string
---@return string[]
function Tokenizer:tokenize(text)
  options.value("tokenize", "text", text, { "string" })
  return self:convert_ids_to_tokens(self._core:encode({ text }):row(1, "ids"))
end

--- Returns the text after the normalizer.
---@param text string
---@return string
function Tokenizer:normalize(text)
  options.value("normalize", "text", text, { "string" })
  return self._core:normalize(text)[1]
end

--- Returns the id of a token, or of each one of a list; the unknown token's for others, or nil.
---@param tokens string|string[]
---@return integer|integer[]|nil
function Tokenizer:convert_tokens_to_ids(tokens)
  if type(tokens) == "string" then return self._vocab[tokens] or self.unk_token_id end
  local ids = {}
  for i, token in ipairs(check_texts("convert_tokens_to_ids", "tokens", tokens)) do
    ids[i] = self._vocab[token] or self.unk_token_id
    if not ids[i] then fail("convert_tokens_to_ids: there is no token %s", show(token)) end
  end
  return ids
end

-- A list of ids, from a list or a tensor of one dimension.
local function ids_of(where, ids)
  if type(ids) == "number" then return { ids } end
  if type(ids) == "userdata" and core.is_tensor(ids) then ids = ids:flatten():tolist() end
  if type(ids) ~= "table" then fail("%s: ids must be a list or a tensor, got %s", where, show(ids)) end
  for i = 1, #ids do
    if type(ids[i]) ~= "number" then
      fail("%s: ids[%d] must be an integer, got %s", where, i, show(ids[i]))
    end
  end
  return ids
end

--- Returns the token of an id, or of each one of a list. Raises for ids that there are not.
---@param ids integer|integer[]|accelerate.Tensor
---@return string|string[]
function Tokenizer:convert_ids_to_tokens(ids)
  local tokens = {}
  for i, id in ipairs(ids_of("convert_ids_to_tokens", ids)) do
    tokens[i] = self._tokens[id + 1]
    if not tokens[i] then
      fail("convert_ids_to_tokens: there is no id %s; ids are 0 to %d", show(id), #self._tokens - 1)
    end
  end
  return type(ids) == "number" and tokens[1] or tokens
end

local DECODE = { skip_special_tokens = { "boolean", default = false },
  clean_up_tokenization_spaces = { "boolean", optional = true } }

--- Returns the text of ids. Ids that there are not are left out. Bytes that are no UTF-8 become
--- U+FFFD.
---@param ids integer[]|accelerate.Tensor|integer
---@param opts { skip_special_tokens: boolean?, clean_up_tokenization_spaces: boolean? }? the second
---  one removes spaces before punctuation; default as tokenizer_config.json says, else false
---@return string
function Tokenizer:decode(ids, opts)
  local o = options.check("decode", opts, DECODE)
  local tokens = {}
  for _, id in ipairs(ids_of("decode", ids)) do
    local token = self._tokens[id + 1]
    if token and not (o.skip_special_tokens and self._special[id]) then tokens[#tokens + 1] = token end
  end
  local text = self._decode(tokens)
  local clean = o.clean_up_tokenization_spaces
  if clean == nil then clean = self.clean_up_tokenization_spaces end
  return clean and decoder.clean_up(text) or text
end

--- Returns the texts of several lists of ids, or of the rows of a tensor [texts, tokens].
---@param sequences integer[][]|accelerate.Tensor
---@param opts table? as for decode
---@return string[]
function Tokenizer:batch_decode(sequences, opts)
  if type(sequences) == "userdata" and core.is_tensor(sequences) then sequences = sequences:tolist() end
  if type(sequences) ~= "table" then
    fail("batch_decode: expected a list of lists or a tensor, got %s", show(sequences))
  end
  local texts = {}
  for i = 1, #sequences do texts[i] = self:decode(sequences[i], opts) end
  return texts
end

-- ---- padding what was encoded before

local PAD = {
  padding = { "boolean|string", default = true, one_of = { true, "longest", "max_length" } },
  max_length = { "integer", optional = true, min = 0 },
  pad_to_multiple_of = { "integer", optional = true, min = 1 },
  padding_side = { "string", optional = true, one_of = { "right", "left" } },
}

--- Pads what calls returned for single texts (lists of numbers by name, such as input_ids) to one
--- length and joins it to tensors [rows, tokens]: what a loader's collate_fn needs. `labels` are
--- padded with -100; numbers become a tensor [rows].
---@param rows table<string, integer[]|number>[]
---@param opts { padding: boolean|"longest"|"max_length"|nil, max_length: integer?,
---  pad_to_multiple_of: integer?, padding_side: "right"|"left"|nil }?
---@return table<string, accelerate.Tensor>
function Tokenizer:pad(rows, opts)
  local o = options.check("pad", opts, PAD)
  local longest = padding.longest("pad", rows)
  local width = self:_width("pad", o, longest)
  return padding.join(rows, width, self.pad_token_id, (o.padding_side or self.padding_side) == "left")
end

-- ---- tokens of one's own

--- Adds tokens that texts are cut at. Their ids follow the last one; a model's embeddings must be
--- as many. Tokens that the vocabulary has keep their ids.
---@param tokens string[]
---@param special boolean? decode can leave them out; default false
---@return integer added how many are new
function Tokenizer:add_tokens(tokens, special)
  local new = 0
  for i, token in ipairs(check_texts("add_tokens", "tokens", tokens)) do
    if token == "" then fail("add_tokens: tokens[%d] is empty", i) end
    local id = self._vocab[token]
    if not id then
      id = self:len()
      new = new + 1
    end
    local entry = { id = id, content = token, special = special == true, normalized = not special,
      single_word = false, lstrip = false, rstrip = false }
    self:_take(entry)
    self._added[#self._added + 1] = entry
  end
  return new
end

--- Gives special tokens their roles, and adds those that are not there yet.
---@param tokens table<string, string|string[]> pad_token and the other roles;
---  additional_special_tokens: a list
---@return integer added how many are new
function Tokenizer:add_special_tokens(tokens)
  local new = 0
  options.value("add_special_tokens", "tokens", tokens, { "table" })
  for _, role in ipairs(ROLES) do
    local token = tokens[role]
    if token ~= nil then
      options.value("add_special_tokens", role, token, { "string" })
      new = new + self:add_tokens({ token }, true)
      self[role] = token
    end
  end
  for name in pairs(tokens) do
    local known = name == "additional_special_tokens"
    for _, role in ipairs(ROLES) do known = known or role == name end
    if not known then fail("add_special_tokens: there is no role %s", show(name)) end
  end
  if tokens.additional_special_tokens then
    new = new + self:add_tokens(tokens.additional_special_tokens, true)
  end
  return new
end

-- ---- chats

local CHAT = {
  add_generation_prompt = { "boolean", default = false },
  tokenize = { "boolean", default = true },
  return_tensors = { "boolean|string", default = false, one_of = { true, false, "pt" } },
  chat_template = { "string", optional = true },
  variables = { "table", optional = true },
}

--- Writes a conversation as the model was trained to see it, by the template of its folder.
--- Templates are Jinja; docs/tokenizers.md lists what is understood, and the rest raises with its
--- line.
---@param messages { role: string, content: string }[]
---@param opts { add_generation_prompt: boolean?, tokenize: boolean?, return_tensors:
---  boolean|"pt"|nil, chat_template: string?, variables: table? }? tokenize: false returns the
---  text; variables: more names for the template
---@return integer[]|accelerate.Tensor|string
function Tokenizer:apply_chat_template(messages, opts)
  local o = options.check("apply_chat_template", opts, CHAT)
  local template = o.chat_template or self.chat_template
  if not template then
    fail("apply_chat_template: the tokenizer has no chat template; give one as option 'chat_template'")
  end
  options.value("apply_chat_template", "messages", messages, { "table" })
  local variables = { messages = messages, add_generation_prompt = o.add_generation_prompt }
  for _, role in ipairs(ROLES) do variables[role] = self[role] end
  for name, value in pairs(o.variables or {}) do variables[name] = value end
  local text = chat.render(template, variables)
  if not o.tokenize then return text end
  return self:encode(text, { add_special_tokens = false, return_tensors = o.return_tensors })
end

-- ---- saving

-- tokenizer.json with tokens added behind those that it lists.
local function with_added(text, added)
  if #added == 0 then return text end
  local _, at = text:find('"added_tokens"%s*:%s*%[')
  local entries = {}
  for i, entry in ipairs(added) do entries[i] = json.encode(entry) end
  local list = table.concat(entries, ", ")
  if not at then
    return (text:gsub("^%s*{", function(brace) return brace .. '"added_tokens": [' .. list .. "]," end))
  end
  local empty = text:find("^%s*%]", at + 1)
  return text:sub(1, at) .. list .. (empty and "" or ", ") .. text:sub(at + 1)
end

--- Writes tokenizer.json and tokenizer_config.json, which Transformers reads, to a folder.
---@param folder string made when it is missing
function Tokenizer:save_pretrained(folder)
  options.value("save_pretrained", "folder", folder, { "string" })
  local ok, why = fs.make_dirs(folder)
  if not ok then fail("save_pretrained: %s", why) end
  local settings = {}
  for name, value in pairs(self._settings) do settings[name] = value end
  settings.tokenizer_class = settings.tokenizer_class or "PreTrainedTokenizerFast"
  for name, text in pairs { ["tokenizer.json"] = with_added(self._text, self._added),
    ["tokenizer_config.json"] = json.encode(settings, 2) .. "\n" } do
    ok, why = core._write_file(fs.join(folder, name), text)
    if not ok then fail("save_pretrained: %s", why) end
  end
end

return Tokenizer
