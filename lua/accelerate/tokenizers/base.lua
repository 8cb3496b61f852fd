--- The class of tokenizers: what one is made of, its vocabulary and the roles of special tokens.
local checks = require "accelerate.tokenizers.checks"
local class = require "accelerate.utils.class"
local decoder = require "accelerate.tokenizers.decoder"
local options = require "accelerate.utils.options"
local pipeline = require "accelerate.tokenizers.pipeline"
local specials = require "accelerate.tokenizers.specials"

local fail, show = options.fail, options.show

local ROLES = specials.ROLES

--- Texts to token ids and back, with the ids of Hugging Face's `tokenizers`.
---
--- Texts are UTF-8; each ill-formed sequence counts as U+FFFD. Ids count from 0.
---@class accelerate.Tokenizer
---@field vocab_size integer tokens of the model's vocabulary, without those that were added
---@field model_max_length integer most tokens that the model takes; math.huge where no file says
---@field padding_side "right"|"left"
---@field truncation_side "right"|"left"
---@field chat_template string|table<string, string>|nil Jinja; where there are several, by name
---@field model_input_names string[] what a call returns by default
---@field bos_token string? a token of the vocabulary can be assigned, here and to the other roles
---@field eos_token string?
---@field unk_token string?
---@field sep_token string?
---@field pad_token string?
---@field cls_token string?
---@field mask_token string?
---@field bos_token_id integer?
---@field eos_token_id integer?
---@field unk_token_id integer?
---@field sep_token_id integer?
---@field pad_token_id integer?
---@field cls_token_id integer?
---@field mask_token_id integer?
local Tokenizer = class "Tokenizer"
Tokenizer._ROLES = ROLES

-- Role and role_id -> role and whether it is the id.
local ROLE_OF, IS_ID = {}, {}
for _, role in ipairs(ROLES) do
  ROLE_OF[role], ROLE_OF[role .. "_id"], IS_ID[role .. "_id"] = role, role, true
  class.optional(Tokenizer, ("%s %s_id"):format(role, role))
end
class.optional(Tokenizer, "chat_template")

-- Roles, also those of a model's own tokens ("image_token"), and their ids.
function Tokenizer.__index(self, key)
  local value = Tokenizer[key]
  if value ~= nil or type(key) ~= "string" then return value end
  local roles = rawget(self, "_roles")
  if not roles then return nil end
  local token = roles[key]
  if token then return token end
  token = roles[key:match "^(.*_token)_id$"]
  return token and self._vocab[token]
end

-- Assignment of a role, as a token of the vocabulary or as its id.
function Tokenizer.__newindex(self, key, value)
  local role = ROLE_OF[key]
  if key == "add_bos_token" or key == "add_eos_token" then
    fail("tokenizer.%s cannot be changed: the post_processor of tokenizer.json, or %s in " ..
      "tokenizer_config.json " ..
      "beside vocab.json, says which tokens a call adds; { add_special_tokens = false } leaves them out", key,
      key)
  end
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

-- The chat template of a configuration, or its templates by name: a list of { name, template }.
local function template_of(file, value)
  if type(value) == "string" or value == nil then return value end
  if type(value) ~= "table" then
    checks.fail(file, "tokenizer_config.json: chat_template must be a text or a list, got %s", show(value))
  end
  local templates = {}
  for i, entry in ipairs(value) do
    if type(entry) ~= "table" or type(entry.name) ~= "string" or type(entry.template) ~= "string" then
      checks.fail(file, "tokenizer_config.json: chat_template[%d] must have a name and a template, got %s", i,
        show(entry))
    end
    templates[entry.name] = entry.template
  end
  return next(templates) and templates
end

--- `accelerate.tokenizers.from_pretrained` and its neighbours make tokenizers.
---@param file string the path, for messages
---@param config table a decoded tokenizer.json
---@param settings table? a decoded tokenizer_config.json
---@param text string? the text of tokenizer.json, for save_pretrained
---@param more table? a decoded added_tokens.json
function Tokenizer:init(file, config, settings, text, more)
  settings = settings or {}
  self._file, self._text, self._settings, self._added, self._roles = file, text, settings, {}, {}
  self._places, self._literals, self._unwritten = {}, {}, {}
  self._core, self._tokens, self._vocab = pipeline.build(file, config)
  self.vocab_size = 0
  for _, token in ipairs(self._tokens) do
    if token then self.vocab_size = self.vocab_size + 1 end
  end
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
  self.chat_template = template_of(file, settings.chat_template)
  self.model_input_names = names_of(file, settings, config)
  for _, token in ipairs(specials.missing(file, settings, more, added)) do self:_add(token) end
  for _, role in ipairs(specials.roles_of(settings)) do
    self._roles[role] = specials.content_of(settings[role])
  end
end

-- Takes an added token into the lists and the C tokenizer. The last flags of a token count, but one
-- that was special stays so.
function Tokenizer:_take(token)
  local id, content = token.id, token.content
  token.special = token.special or self._special[id] or false
  self._places[content] = pipeline.add_token(self._file, self._core, token, self._places[content])
  for i = #self._tokens + 1, id do self._tokens[i] = false end
  -- one of the model's own tokens may be a part of a word, too: Gemma's "▁▁"
  if token.special or not self._vocab[content] or self._literals[id] or self._unwritten[id] then
    self._literals[id], self._unwritten[id] = nil, token
  end
  self._tokens[id + 1] = content
  self._vocab[content] = id
  self._special[id] = token.special or nil
end

-- The token of an id as decoders take it, or nil.
function Tokenizer:_written(id)
  local token = self._unwritten[id]
  if token then
    local text = token.normalized and self._core:normalize(token.content)[1] or token.content
    self._literals[id], self._unwritten[id] = decoder.literal(text, text ~= token.content), nil
  end
  return self._literals[id] or self._tokens[id + 1]
end

-- Adds a token of one's own: with the id that the vocabulary has of it, or the next free one.
-- Returns whether it is new.
function Tokenizer:_add(token)
  local known = self._vocab[token.content]
  token.id = known or self:len()
  self:_take(token)
  self._added[#self._added + 1] = token
  return known == nil
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

return Tokenizer
