--- From tokens back to text: the decoders of a tokenizer.json.
local checks = require "accelerate.tokenizers.checks"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local field = checks.field

local M = {}

local CHARACTER = "[%z\1-\127\194-\244][\128-\191]*"

-- Replaces every occurrence of a plain text.
local function replace(text, old, new)
  if old == "" then return text end
  return (text:gsub(old:gsub("%p", "%%%0"), (new:gsub("%%", "%%%%"))))
end

local CLEAN = { { " .", "." }, { " ?", "?" }, { " !", "!" }, { " ,", "," }, { " ' ", "'" }, { " n't", "n't" },
  { " 'm", "'m" }, { " do not", " don't" }, { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" } }

--- Removes the spaces before punctuation and contractions that splitting had put there.
---@param text string
---@param within_token boolean? also "do not" to "don't", as the WordPiece decoder does
---@return string
function M.clean_up(text, within_token)
  for _, pair in ipairs(CLEAN) do
    if within_token or pair[1] ~= " do not" then text = replace(text, pair[1], pair[2]) end
  end
  return text
end

-- ---- the byte-level alphabet

local byte_of, char_of = {}, {}
do
  local function utf8(code)
    if code < 128 then return string.char(code) end
    return string.char(192 + math.floor(code / 64), 128 + code % 64)
  end
  local others = 256
  for byte = 0, 255 do
    local plain = byte >= 33 and byte <= 126 or byte >= 161 and byte <= 172 or byte >= 174
    local char = utf8(plain and byte or others)
    if not plain then others = others + 1 end
    byte_of[char], char_of[string.char(byte)] = string.char(byte), char
  end
end

--- Returns bytes in the alphabet in which byte-level tokens are written.
---@param bytes string
---@return string
function M.to_alphabet(bytes) return (bytes:gsub(".", char_of)) end

-- The bytes of a token; the token itself when it is not written in the alphabet.
local function from_alphabet(token)
  for char in token:gmatch(CHARACTER) do
    if not byte_of[char] then return token end
  end
  return (token:gsub(CHARACTER, byte_of))
end

-- ---- decoders: each makes a function of a list of tokens, which returns another list

local DECODERS = {}

local function make(file, where, config)
  return checks.kind(file, where, config, DECODERS)(file, where, config)
end

-- Calls fn for each token; added tokens stay as they are, or are what fn_literal makes of them. One
-- that the normalizer changed has the marks of the vocabulary's tokens.
local function each(fn, fn_literal)
  return function(tokens)
    for i = 1, #tokens do
      local token = tokens[i]
      if type(token) ~= "string" and token.normalized then token = token[1] end
      if type(token) == "string" then tokens[i] = fn(token, i, #tokens)
      elseif fn_literal then tokens[i] = fn_literal(token, i) end
    end
    return tokens
  end
end

-- Makes one token of neighbouring ones that take_in(token) keeps as a list of texts; join(list)
-- gives their text. Added tokens stay between them.
local function in_runs(take_in, join)
  return function(tokens)
    local out, run = {}, {}
    local function flush()
      if run[1] then out[#out + 1] = join(run) end
      run = {}
    end
    for i = 1, #tokens do
      local text = type(tokens[i]) == "string" and take_in(tokens[i])
      if text then run[#run + 1] = text
      else
        flush()
        out[#out + 1] = tokens[i]
      end
    end
    flush()
    return out
  end
end

function DECODERS.ByteLevel()
  return in_runs(from_alphabet, function(run) return core._utf8_repair(table.concat(run)) end)
end

function DECODERS.WordPiece(file, where, config)
  local prefix = field(file, where, config, "prefix", "string", "##")
  local cleanup = field(file, where, config, "cleanup", "boolean", true)
  return each(function(token, i)
    if i > 1 then
      if prefix ~= "" and token:sub(1, #prefix) == prefix then token = token:sub(#prefix + 1)
      else token = " " .. token end
    end
    return cleanup and M.clean_up(token, true) or token
  end, function(literal, i)
    local apart = " " .. literal[1]
    local joins = i == 1 or cleanup and M.clean_up(apart, true) == literal[1]
    return joins and literal or M.literal(apart)
  end)
end

function DECODERS.Metaspace(file, where, config)
  local replacement = field(file, where, config, "replacement", "string", "\226\150\129")
  local scheme = field(file, where, config, "prepend_scheme", "string",
    config.add_prefix_space == false and "never" or "always")
  return each(function(token, i)
    return replace(token, replacement, i == 1 and scheme ~= "never" and "" or " ")
  end)
end

function DECODERS.BPEDecoder(file, where, config)
  local suffix = field(file, where, config, "suffix", "string", "</w>")
  return each(function(token, i, n) return replace(token, suffix, i == n and "" or " ") end)
end

function DECODERS.ByteFallback()
  local function byte_of_token(token)
    local hex = token:match("^<0x(%x%x)>$")
    return hex and string.char(tonumber(hex, 16))
  end
  return in_runs(byte_of_token, function(bytes)
    local text = table.concat(bytes)
    return core._utf8_repair(text) == text and text or ("\239\191\189"):rep(#bytes)
  end)
end

local function fused(tokens, between)
  for i = 1, #tokens do
    if type(tokens[i]) ~= "string" then tokens[i] = tokens[i][1] end
  end
  return table.concat(tokens, between)
end

function DECODERS.Fuse() return function(tokens) return { fused(tokens) } end end

function DECODERS.Strip(file, where, config)
  local content = field(file, where, config, "content", "string")
  local start, stop = field(file, where, config, "start", "integer"),
    field(file, where, config, "stop", "integer")
  if content == "" then checks.fail(file, "%s: content is empty", where) end
  return each(function(token)
    local from, to = 1, #token
    for _ = 1, start do
      if token:sub(from, from + #content - 1) ~= content then break end
      from = from + #content
    end
    for _ = 1, stop do
      if to - #content + 1 < from or token:sub(to - #content + 1, to) ~= content then break end
      to = to - #content
    end
    return token:sub(from, to)
  end)
end

function DECODERS.Replace(file, where, config)
  local pattern, content = field(file, where, config, "pattern", "map"),
    field(file, where, config, "content", "string")
  if pattern.Regex ~= nil then
    checks.fail(file, "%s: the pattern %s is not supported; supported are plain texts", where,
      options.show(pattern.Regex))
  end
  pattern = field(file, where .. ".pattern", pattern, "String", "string")
  return each(function(token) return replace(token, pattern, content) end)
end

function DECODERS.Sequence(file, where, config)
  local list, fns = field(file, where, config, "decoders", "list"), {}
  for i = 1, #list do
    local at = ("%s.decoders[%d]"):format(where, i)
    if type(list[i]) ~= "table" then
      checks.fail(file, "%s: expected an object, got %s", at, options.show(list[i]))
    end
    fns[i] = make(file, at, list[i])
  end
  return function(tokens)
    for _, fn in ipairs(fns) do tokens = fn(tokens) end
    return tokens
  end
end

--- Returns an added token, as the decoders take it: they write it as it is.
---@param content string
---@param normalized boolean? the normalizer has changed it
---@return { [1]: string, normalized: boolean? }
function M.literal(content, normalized) return { content, normalized = normalized } end

--- Returns a function that makes a text of a list of tokens (which it may change): texts, and added
--- tokens as `literal` has them.
---@param file string for messages
---@param config table? the file's `decoder`; nil: tokens are joined with spaces
---@return fun(tokens: (string|string[])[]): string
function M.build(file, config)
  if config == nil then
    return function(tokens) return fused(tokens, " ") end
  end
  if type(config) ~= "table" then
    checks.fail(file, "decoder: expected an object, got %s", options.show(config))
  end
  local fn = make(file, "decoder", config)
  return function(tokens) return fused(fn(tokens)) end
end

return M
