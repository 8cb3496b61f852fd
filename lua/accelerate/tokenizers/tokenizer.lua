--- The tokenizer that scripts use: ids to texts, added tokens and saving, beside what base.lua,
--- encoding.lua and chats.lua have.
local checks = require "accelerate.tokenizers.checks"
local core = require "accelerate.core"
local decoder = require "accelerate.tokenizers.decoder"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local options = require "accelerate.utils.options"
local specials = require "accelerate.tokenizers.specials"
local Tokenizer = require "accelerate.tokenizers.chats"

local fail, show = options.fail, options.show
local ROLES = Tokenizer._ROLES

-- ---- tokens and ids

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
  for i, token in ipairs(checks.texts("convert_tokens_to_ids", "tokens", tokens)) do
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
    local token = self:_written(id)
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

-- ---- tokens of one's own

--- Adds tokens that texts are cut at. Their ids follow the last one; a model's embeddings must be
--- as many. Tokens that the vocabulary has keep their ids.
---@param tokens string[]
---@param special boolean? decode can leave them out; default false
---@return integer added how many are new
function Tokenizer:add_tokens(tokens, special)
  local new = 0
  for i, token in ipairs(checks.texts("add_tokens", "tokens", tokens)) do
    if token == "" then fail("add_tokens: tokens[%d] is empty", i) end
    local is_new = self:_add { content = token, special = special == true, normalized = not special,
      single_word = false, lstrip = false, rstrip = false }
    if is_new then new = new + 1 end
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

-- ---- saving

-- Where the string that begins at `at` of a JSON text ends.
local function string_end(text, at)
  while true do
    at = text:find('["\\]', at + 1)
    if text:sub(at, at) == '"' then return at end
    at = at + 1
  end
end

-- Where the list that begins at `from` of a JSON text ends.
local function list_end(text, from)
  local depth, at = 0, from - 1
  repeat
    at = text:find('[%[%]"]', at + 1)
    local char = text:sub(at, at)
    if char == '"' then at = string_end(text, at)
    else depth = depth + (char == "[" and 1 or -1) end
  until depth == 0
  return at
end

-- tokenizer.json with tokens added, in place of those of its list that are the same text.
local function with_added(text, added)
  if #added == 0 then return text end
  local from, to = text:match '"added_tokens"%s*:%s*()%['
  local entries, place = {}, {}
  if from then
    to = list_end(text, from)
    entries = json.decode(text:sub(from, to))
  end
  for i, entry in ipairs(entries) do place[entry.content] = i end
  for _, entry in ipairs(added) do
    place[entry.content] = place[entry.content] or #entries + 1
    entries[place[entry.content]] = { id = entry.id, content = entry.content, special = entry.special,
      normalized = entry.normalized, single_word = entry.single_word, lstrip = entry.lstrip,
      rstrip = entry.rstrip }
  end
  local list = json.encode(entries)
  if from then return text:sub(1, from - 1) .. list .. text:sub(to + 1) end
  return (text:gsub("^%s*{", function(brace) return brace .. '"added_tokens": ' .. list .. "," end))
end

--- Writes tokenizer.json and tokenizer_config.json, which Transformers reads, to a folder.
---@param folder string made when it is missing
function Tokenizer:save_pretrained(folder)
  options.value("save_pretrained", "folder", folder, { "string" })
  local ok, why = fs.make_dirs(folder)
  if not ok then fail("save_pretrained: %s", why) end
  local settings = specials.written(self._settings)
  settings.chat_template = self:_written_templates()
  settings.tokenizer_class = settings.tokenizer_class or "PreTrainedTokenizerFast"
  for name, text in pairs { ["tokenizer.json"] = with_added(self._text, self._added),
    ["tokenizer_config.json"] = json.encode(settings, 2) .. "\n" } do
    ok, why = core._write_file(fs.join(folder, name), text)
    if not ok then fail("save_pretrained: %s", why) end
  end
end

return Tokenizer
