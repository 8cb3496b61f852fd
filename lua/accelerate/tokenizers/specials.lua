--- Special and added tokens of a folder: which file names which, and what is added to those that
--- tokenizer.json lists. The files and their precedence are Transformers'.
---
--- tokenizer_config.json with an added_tokens_decoder says everything. Without one, the roles of
--- special_tokens_map.json take the place of those of tokenizer_config.json, and added_tokens.json
--- has further tokens.

local checks = require "accelerate.tokenizers.checks"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local M = {}

--- The roles of special tokens, as tokenizer_config.json names them, in the order in which new ones
--- are added.
M.ROLES = { "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token" }

local IS_ROLE = {}
for _, role in ipairs(M.ROLES) do IS_ROLE[role] = true end

local CONFIG = "tokenizer_config.json"

-- A token as a file has it, a text or an object, with its flags; `special` is what a text is.
-- Without a word about it, special tokens are looked for in the text itself, and others in the
-- normalized one.
local function token_of(file, where, value, special)
  if type(value) == "string" then value = { content = value, special = special } end
  if type(value) ~= "table" or type(value.content) ~= "string" then
    checks.fail(file, "%s: expected a token or an object with its content, got %s", where,
      options.show(value))
  end
  local token = { content = value.content }
  for _, flag in ipairs { "special", "single_word", "lstrip", "rstrip" } do
    token[flag] = checks.field(file, where, value, flag, "boolean", false)
  end
  token.normalized = checks.field(file, where, value, "normalized", "boolean", not token.special)
  token.by_default = value.normalized == nil
  return token
end

local function make_special(token)
  token.special = true
  if token.by_default then token.normalized = false end
end

-- ---- roles

--- Returns the text of a role's value in a configuration, or nil.
---@param value any
---@return string?
function M.content_of(value)
  if type(value) == "table" then value = value.content end
  return type(value) == "string" and value or nil
end

--- Returns the names of all roles: the usual ones, and those of the model's own tokens, which end
--- in _token or stand in extra_special_tokens.
---@param settings table tokenizer_config.json
---@return string[]
function M.roles_of(settings)
  local roles = { unpack(M.ROLES) }
  for _, key in ipairs(ordered.sorted_keys(settings)) do
    local own = not IS_ROLE[key] and tostring(key):find "_token$" and M.content_of(settings[key])
    if own then roles[#roles + 1] = key end
  end
  return roles
end

-- special_tokens_map.json's tokens are special, whatever their objects say.
local function as_special(value)
  if type(value) ~= "table" or value.content == nil then return value end
  local token = {}
  for key, part in pairs(value) do token[key] = part end
  token.special = true
  return token
end

-- The older name counts where the new one has nothing.
local function take_additional(settings)
  local extra = settings.extra_special_tokens
  if settings.additional_special_tokens ~= nil and (type(extra) ~= "table" or next(extra) == nil) then
    settings.extra_special_tokens = settings.additional_special_tokens
  end
  settings.additional_special_tokens = nil
end

--- Puts what special_tokens_map.json says into tokenizer_config.json's table, where it counts.
---@param settings table
---@param map table?
function M.merge(settings, map)
  if type(settings.added_tokens_decoder) == "table" then map = nil end
  take_additional(settings)
  for key, value in pairs(map or {}) do
    if key ~= "additional_special_tokens" and key ~= "extra_special_tokens" then
      settings[key] = as_special(value)
    end
  end
  if map and settings.extra_special_tokens == nil then
    settings.extra_special_tokens = map.extra_special_tokens
    settings.additional_special_tokens = map.additional_special_tokens
  end
  local extra = settings.extra_special_tokens
  if type(extra) == "table" and extra[1] == nil then
    for key, value in pairs(extra) do settings[key] = value end
    settings.extra_special_tokens = nil
  end
end

-- ---- tokens that are missing

-- The content and flags of a token as text.
local function signature(token)
  return table.concat({ token.content, tostring(token.special), tostring(token.single_word),
    tostring(token.lstrip), tostring(token.rstrip), tostring(token.normalized) }, "\0")
end

local function extras_of(file, settings)
  local key = settings.extra_special_tokens ~= nil and "extra_special_tokens" or "additional_special_tokens"
  local tokens = {}
  for i, value in ipairs(checks.field(file, CONFIG, settings, key, "list", {})) do
    tokens[i] = token_of(file, ("%s: %s[%d]"):format(CONFIG, key, i), value, true)
  end
  return tokens
end

-- Tokens of added_tokens.json are special where they have a role, or tokenizer_config.json lists
-- them, as texts or in special_tokens_map.json; objects of tokenizer_config.json do not count.
local function is_plain(value) return type(value) == "string" or value.__type == nil end

-- The tokens that files give an id, by id: of tokenizer_config.json, else of added_tokens.json and
-- tokenizer.json.
local function numbered(file, settings, added, listed, is_special)
  local by_id = {}
  local function put(where, id, value)
    local number = tonumber(id)
    if not number or number % 1 ~= 0 or number < 0 then
      checks.fail(file, "%s: %s is no id", where, options.show(id))
    end
    by_id[number] = token_of(file, ("%s[%s]"):format(where, id), value, false)
  end
  if type(settings.added_tokens_decoder) == "table" then
    for id, value in pairs(settings.added_tokens_decoder) do
      put(CONFIG .. ": added_tokens_decoder", id, value)
    end
    return by_id
  end
  for content, id in pairs(added or {}) do
    local special = is_special[content] == true
    put("added_tokens.json", id, { content = content, special = special, normalized = not special })
  end
  for _, token in ipairs(listed) do by_id[token.id] = token_of(file, "added_tokens", token, false) end
  return by_id
end

local function sorted_ids(by_id)
  local ids = {}
  for id in pairs(by_id) do ids[#ids + 1] = id end
  table.sort(ids)
  return ids
end

--- Returns the tokens that a folder's files name and tokenizer.json does not list, in the order in
--- which they are added: those with ids, by these; those of roles; the extra ones.
---@param file string for messages
---@param settings table tokenizer_config.json after `merge`
---@param added table? added_tokens.json
---@param listed table[] the added_tokens of tokenizer.json
---@return table[] tokens { content, special, single_word, lstrip, rstrip, normalized }
function M.missing(file, settings, added, listed)
  local found, have, named, extras = {}, {}, {}, extras_of(file, settings)
  local has_role, is_special = {}, {}
  for _, role in ipairs(M.roles_of(settings)) do
    if settings[role] then
      local token = token_of(file, ("%s: %s"):format(CONFIG, role), settings[role], true)
      make_special(token)
      named[#named + 1], has_role[token.content] = token, true
      if is_plain(settings[role]) then is_special[token.content] = true end
    end
  end
  for i, value in ipairs(settings.extra_special_tokens or {}) do
    if is_plain(value) then is_special[extras[i].content] = true end
  end
  for _, token in ipairs(listed) do
    have[token.content], have[signature(token_of(file, "added_tokens", token, false))] = true, true
  end
  local by_id = numbered(file, settings, added, listed, is_special)
  for _, id in ipairs(sorted_ids(by_id)) do
    local token = by_id[id]
    if not have[signature(token)] then
      found[#found + 1] = token
    end
  end
  for _, token in ipairs(found) do have[token.content] = true end
  for _, list in ipairs { named, extras } do
    for _, token in ipairs(list) do
      if not have[token.content] then found[#found + 1] = token end
    end
  end
  for i = #found, 1, -1 do
    if found[i].content == "" then table.remove(found, i)
    elseif has_role[found[i].content] then make_special(found[i]) end
  end
  return found
end

--- Returns tokenizer_config.json's table for a folder whose tokenizer.json lists all tokens with
--- their flags: roles are texts.
---@param settings table
---@return table
function M.written(settings)
  local result = {}
  for key, value in pairs(settings) do result[key] = value end
  result.added_tokens_decoder = nil
  for _, role in ipairs(M.roles_of(settings)) do result[role] = M.content_of(settings[role]) end
  for _, key in ipairs { "extra_special_tokens", "additional_special_tokens" } do
    local list = settings[key]
    if type(list) == "table" then
      result[key] = {}
      for i, value in ipairs(list) do result[key][i] = M.content_of(value) end
      if not result[key][1] then result[key] = nil end
    end
  end
  return result
end

return M
