--- Texts to ids: calls of a tokenizer, with padding and truncation, and padding of what was encoded
--- before.
local checks = require "accelerate.tokenizers.checks"
local options = require "accelerate.utils.options"
local padding = require "accelerate.tokenizers.padding"
local Tokenizer = require "accelerate.tokenizers.base"

local fail = options.fail

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
  is_split_into_words = { "boolean", default = false },
  return_overflowing_tokens = { "boolean", default = false },
  stride = { "integer", default = 0, min = 0 },
}

-- A list of texts that are lists of words; `single` says that one was given.
local function words_of(where, what, texts)
  if type(texts) ~= "table" or getmetatable(texts) then
    fail("%s: with is_split_into_words, %s must be a list of words or a list of such lists, got %s", where,
      what,
      options.show(texts))
  end
  local single = type(texts[1]) ~= "table"
  if single then texts = { texts } end
  for i, words in ipairs(texts) do
    checks.texts(where, single and what or ("%s[%d]"):format(what, i), words)
  end
  return texts, single
end

local function check_pairs(where, text, pair)
  if #pair ~= #text then fail("%s: %d texts, but %d second ones", where, #text, #pair) end
end

local function split_texts_of(where, text, pair)
  local single, also_single
  text, single = words_of(where, "text", text)
  if pair == nil then return text, nil, single end
  pair, also_single = words_of(where, "pair", pair)
  if single ~= also_single then
    fail("%s: text is %s, and pair is %s", where, single and "one list of words" or "a list of texts",
      also_single and "one list of words" or "a list of texts")
  end
  check_pairs(where, text, pair)
  return text, pair, single
end

-- Arguments of a call as lists; `single` says that one text was given.
local function texts_of(where, text, pair, split)
  if split then return split_texts_of(where, text, pair) end
  local single = type(text) == "string"
  if single then text = { text } end
  checks.texts(where, "text", text)
  if pair == nil then return text, nil, single end
  if type(pair) == "string" and single then pair = { pair } end
  checks.texts(where, "pair", pair)
  check_pairs(where, text, pair)
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

-- The width that rows are padded to; nil: each keeps its length. With "max_length" a row may be
-- longer, and keeps its length.
function Tokenizer:_width(where, o, longest)
  if o.padding == false or o.padding == "do_not_pad" then return nil end
  if not self.pad_token_id then
    fail("%s: padding needs a pad_token, and the tokenizer has none; set tokenizer.pad_token_id", where)
  end
  local width = longest
  if o.padding == "max_length" then
    width = o.max_length or self.model_max_length
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
  local wide, result = width, {}
  if not width or longest > width then
    local lengths = {}
    for i = 1, rows do lengths[i] = #encodings:row(i, "ids") end
    wide = padding.tensor_width(where, width, lengths)
  end
  for _, entry in ipairs(fields) do
    result[entry[1]] = encodings:tensor(entry[2], wide, entry[3], left)
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
--- special tokens. With is_split_into_words a text is a list of words: word_ids are their places in
--- it, and offsets those within the word. special_tokens_mask is 1 for the tokens that the
--- post-processor added.
---
--- With truncation and return_overflowing_tokens, what does not fit makes further rows, and
--- overflow_to_sample_mapping holds the number of each row's text, from 1. Results are then lists
--- of lists for a single text too. Neighbouring rows of a text share `stride` tokens. Where both
--- texts of a pair are cut (longest_first), there is a row for each part of the one with each of
--- the other.
---@param text string|string[]|string[][]
---@param pair string|string[]|string[][]|nil second texts
---@param opts { add_special_tokens: boolean?, padding: boolean|"longest"|"max_length"|nil,
---  truncation: boolean|"longest_first"|"only_first"|"only_second"|nil, max_length: integer?,
---  pad_to_multiple_of: integer?, padding_side: string?, return_tensors: boolean|"pt"|nil,
---  return_attention_mask: boolean?, return_token_type_ids: boolean?, return_special_tokens_mask:
---  boolean?, return_offsets_mapping: boolean?, return_word_ids: boolean?, return_length: boolean?,
---  split_special_tokens: boolean?, is_split_into_words: boolean?, return_overflowing_tokens:
---  boolean?, stride: integer? }?
---  max_length counts special tokens, default the model's; stride: default 0
---@return table<string, any>
function Tokenizer:__call(text, pair, opts)
  if opts == nil and is_options(pair) then pair, opts = nil, pair end
  local single
  local o = options.check("tokenizer", opts, CALL)
  text, pair, single = texts_of("tokenizer", text, pair, o.is_split_into_words)
  return self:_batch("tokenizer", text, pair, o, single)
end

--- Encodes one text, or a pair, and returns the ids. Options as in a call.
---@param text string|string[]
---@param pair string|string[]|nil
---@param opts table?
---@return integer[]
function Tokenizer:encode(text, pair, opts)
  if opts == nil and is_options(pair) then pair, opts = nil, pair end
  local o = options.check("encode", opts, CALL)
  local kind = o.is_split_into_words and "list" or "string"
  options.value("encode", "text", text, { kind })
  options.value("encode", "pair", pair, { kind, optional = true })
  local texts, pairs_of = texts_of("encode", text, pair, o.is_split_into_words)
  return self:_batch("encode", texts, pairs_of, o, not o.return_tensors).input_ids
end

--- Encodes lists of texts: a call for which `texts` is a list.
---@param texts string[]
---@param pairs string[]?
---@param opts table?
---@return table<string, any>
function Tokenizer:encode_batch(texts, pairs, opts)
  if opts == nil and is_options(pairs) then pairs, opts = nil, pairs end
  local o = options.check("encode_batch", opts, CALL)
  if not o.is_split_into_words then checks.texts("encode_batch", "texts", texts) end
  local text, pair = texts_of("encode_batch", texts, pairs, o.is_split_into_words)
  return self:_batch("encode_batch", text, pair, o, false)
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
  local longest, lengths = padding.longest("pad", rows), {}
  for i, row in ipairs(rows) do lengths[i] = #row.input_ids end
  local width = padding.tensor_width("pad", self:_width("pad", o, longest), lengths)
  return padding.join(rows, width, self.pad_token_id, (o.padding_side or self.padding_side) == "left")
end

return Tokenizer
