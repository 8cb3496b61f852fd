--- The filter tojson: JSON as Python's json.dumps writes it.
local calls = require "accelerate.tokenizers.chat.calls"
local numbers = require "accelerate.tokenizers.chat.numbers"
local run = require "accelerate.tokenizers.chat.run"
local sort = require "accelerate.tokenizers.chat.sort"
local texts = require "accelerate.tokenizers.chat.texts"
local values = require "accelerate.tokenizers.chat.values"
local buffer = require "string.buffer"

local fail = run.fail

local M = {}

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n",
  ["\r"] = "\\r", ["\t"] = "\\t" }

local function escape(c) return ESCAPES[c] or ("\\u%04x"):format(c:byte()) end

local function ascii(char)
  local code = texts.code(char)
  if code < 0x10000 then return ("\\u%04x"):format(code) end
  code = code - 0x10000
  return ("\\u%04x\\u%04x"):format(0xD800 + math.floor(code / 1024), 0xDC00 + code % 1024)
end

local Writer = {}
Writer.__index = Writer

function Writer:put(text)
  run.made(#text)
  self.out:put(text)
end

function Writer:string(text)
  run.made(#text)
  text = texts.gsub(text, '[%z\1-\31"\\]', escape)
  if self.ensure_ascii then text = texts.gsub(text, "[\127\194-\244][\128-\191]*", ascii) end
  self:put('"' .. text .. '"')
end

local WORDS = { nan = "NaN", inf = "Infinity", ["-inf"] = "-Infinity" }

local function number_text(value)
  local text = numbers.text(value)
  return WORDS[text] or text
end

-- The text of a key, which JSON has as a text.
local function key_text(key)
  local kind = values.kind(key)
  if kind == "text" then return key end
  if kind == "markup" then return key.text end
  if kind == "boolean" then return tostring(key) end
  if kind == "none" then return "null" end
  if kind == "integer" or kind == "float" then return number_text(key) end
  fail("tojson: a map's keys are texts, numbers, booleans and none, got %s", values.shown(key))
end

-- The entries of a list or map between brackets.
function Writer:body(open, close, n, pad, entry)
  local inner = pad and pad .. self.indent
  self:put(open)
  for i = 1, n do
    if i > 1 then self:put(self.between) end
    if inner then self:put("\n" .. inner) end
    entry(i, inner)
  end
  if inner and n > 0 then self:put("\n" .. pad) end
  self:put(close)
end

function Writer:map(map, pad)
  local keys = map.keys
  if self.sort_keys then
    keys = sort(keys, values.less)
  end
  self:body("{", "}", #keys, pad, function(i, inner)
    self:string(key_text(keys[i]))
    self:put(self.colon)
    self:value(values.get(map, keys[i]), inner)
  end)
end

local PLAIN = { ["list"] = true, tuple = true }

function Writer:value(value, pad)
  local kind = values.kind(value)
  run.step()
  if kind == "text" or kind == "markup" then return self:string(values.text_of(value)) end
  if kind == "integer" or kind == "float" then return self:put(number_text(value)) end
  if kind == "boolean" then return self:put(tostring(value)) end
  if kind == "none" then return self:put "null" end
  if kind == "map" then return self:map(value, pad) end
  if not PLAIN[kind] then fail("tojson: %s has no JSON", values.shown(value)) end
  self:body("[", "]", #value, pad, function(i, inner) self:value(value[i], inner) end)
end

-- The text that a level is indented by, or nil for one line.
local function indent_of(indent)
  if indent == nil or indent == values.NONE then return nil end
  local text = values.text_of(indent)
  return text or texts.rep(" ", calls.integer("tojson: indent", indent))
end

local function separators_of(separators, indented)
  if separators == nil or separators == values.NONE then return indented and "," or ", ", ": " end
  if not values.is_sequence(separators) or #separators ~= 2 then
    fail("tojson: separators must be two texts, got %s", values.shown(separators))
  end
  return calls.text("tojson: separators", separators[1]), calls.text("tojson: separators", separators[2])
end

--- Returns a value's JSON. The arguments are those of json.dumps; nil: its defaults, but
--- ensure_ascii is off.
---@return string
function M.encode(value, ensure_ascii, indent, separators, sort_keys)
  local text = indent_of(indent)
  local writer = setmetatable({ out = buffer.new(), indent = text,
    ensure_ascii = calls.flag(ensure_ascii, false), sort_keys = calls.flag(sort_keys, false) }, Writer)
  writer.between, writer.colon = separators_of(separators, text ~= nil)
  writer:value(value, text and "")
  return writer.out:get()
end

return M
