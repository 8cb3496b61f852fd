--- The values of chat templates, as Python has them. Texts, booleans and integers are Lua's; None,
--- undefined, floats, lists, maps and what can be called are tables whose metatable has `kind`.
local numbers = require "accelerate.tokenizers.chat.numbers"
local run = require "accelerate.tokenizers.chat.run"
local texts = require "accelerate.tokenizers.chat.texts"

local fail = run.fail

local M = {}

local None = { kind = "none" }
local Undefined = { kind = "undefined" }
local Sequence = { kind = "sequence" }
local Map = { kind = "map" }
local Namespace = { kind = "namespace" }
local Callable = { kind = "callable" }
local Markup = { kind = "markup" }

M.NONE = setmetatable({}, None)

--- Returns a value that is not there; `hint` says why.
function M.undefined(format, ...) return setmetatable({ hint = format:format(...) }, Undefined) end

--- Makes a sequence of a Lua list, which it takes.
---@param list any[]
---@param kind "list"|"tuple"|"range"|"dict_keys"|"dict_values"|"dict_items"|nil default "list"
function M.list(list, kind)
  run.step(4)
  list.kind = kind or "list"
  return setmetatable(list, Sequence)
end

--- Returns a sequence that can be walked over once.
---@param make fun(): any[] called when it is walked over
function M.iterator(make) return setmetatable({ kind = "iterator", make = make }, Sequence) end

--- Returns a text that is marked as HTML.
function M.markup(text) return setmetatable({ text = text }, Markup) end

--- Returns a value that templates can call.
---@param name string for messages: "the function 'range'"
---@param call fun(args: any[], named: table): any
function M.callable(name, call) return setmetatable({ name = name, call = call }, Callable) end

--- Returns an empty map; its keys are walked in the order in which they come.
function M.map()
  run.step(8)
  return setmetatable({ keys = {}, values = {} }, Map)
end

--- Returns an empty namespace.
function M.namespace() return setmetatable({ keys = {}, values = {} }, Namespace) end

--- Returns "text", "integer", "boolean", "float", "none", "undefined", "map", "namespace",
--- "markup", "callable", "loop", or the kind of a sequence.
---@return string
function M.kind(value)
  local kind = type(value)
  if kind == "string" then return "text" end
  if kind == "number" then return "integer" end
  if kind == "boolean" then return "boolean" end
  kind = getmetatable(value).kind
  return kind == "sequence" and value.kind or kind
end
local kind_of = M.kind

local SHOWN = { integer = "an integer", iterator = "an iterator", none = "none", undefined = "undefined",
  markup = "a text", dict_keys = "a map's keys", dict_values = "a map's values",
  dict_items = "a map's items", callable = "a function" }

--- Returns the words for a value's kind in messages.
---@return string
function M.shown(value)
  local kind = kind_of(value)
  if kind == "undefined" then return value.hint end
  return SHOWN[kind] or "a " .. kind
end

--- Raises for an undefined value.
function M.defined(value)
  if type(value) == "table" and getmetatable(value) == Undefined then fail("%s", value.hint) end
  return value
end

--- Returns the text of a text or of a marked one, or nil.
function M.text_of(value)
  if type(value) == "string" then return value end
  return type(value) == "table" and getmetatable(value) == Markup and value.text or nil
end

local IS_SEQUENCE = { list = true, tuple = true, range = true }

--- Returns whether a value is a list, a tuple or a range.
function M.is_sequence(value) return IS_SEQUENCE[kind_of(value)] == true end

-- ---- maps

-- What a key is found by: 1, 1.0 and True are one key.
local function hash(key)
  local kind = kind_of(key)
  if kind == "text" or kind == "integer" or kind == "none" then return key end
  local number = numbers.of(key)
  if number and number == number then return number end
  if kind == "markup" then return key.text end
  if kind == "undefined" then return Undefined end
  if kind == "tuple" or kind == "range" then return "\0" .. M.repr(key) end
  if kind ~= "list" and kind ~= "map" then return key end -- itself
end

function M.refuse_key(key)
  fail("a list or a map cannot be a key, got %s", M.shown(key))
end

--- Sets a key of a map.
function M.put(map, key, value)
  local h = hash(key)
  if h == nil then M.refuse_key(key) end
  if map.values[h] == nil then map.keys[#map.keys + 1] = key end
  map.values[h] = value
  run.step()
end

--- Returns the value of a key of a map, or nil.
function M.get(map, key)
  local h = hash(key)
  if h ~= nil then return map.values[h] end
end

--- Returns the value of a key of a map, or nil. Raises for what cannot be a key.
function M.find(map, key)
  if hash(key) == nil then M.refuse_key(key) end
  return M.get(map, key)
end

--- Iterates over the keys and values of a map.
function M.each(map)
  local i = 0
  return function()
    i = i + 1
    local key = map.keys[i]
    if key == nil then return nil end
    run.step()
    return key, map.values[hash(key)]
  end
end

local function pairs_of(map)
  local list = {}
  for key, value in M.each(map) do list[#list + 1] = M.list({ key, value }, "tuple") end
  return list
end

--- Returns the list of a map's keys, values or items.
---@param map table
---@param kind "dict_keys"|"dict_values"|"dict_items"
function M.view(map, kind)
  local list = {}
  if kind == "dict_items" then
    list = pairs_of(map)
  else
    for key, value in M.each(map) do list[#list + 1] = kind == "dict_keys" and key or value end
  end
  return M.list(list, kind)
end

-- ---- walking

--- Returns the entries of what can be walked over, or nil. The list is not to be changed.
---@return any[]?
function M.entries(value)
  local kind = kind_of(value)
  if kind == "text" or kind == "markup" then return texts.characters(M.text_of(value)) end
  if kind == "map" then return value.keys end
  if kind == "undefined" then return {} end
  if kind == "iterator" then
    local make = value.make
    value.make = function() return {} end
    return make()
  end
  return getmetatable(value) == Sequence and value or nil
end

--- Returns the entries of what can be walked over, or raises.
---@param what string for the message: "the filter 'join'"
---@return any[]
function M.walk(what, value)
  local list = M.entries(value)
  if not list then fail("%s needs what can be walked over, got %s", what, M.shown(value)) end
  run.step(#list)
  return list
end

--- Returns the number of entries, or nil for what has none.
---@return integer?
function M.length(value)
  local kind = kind_of(value)
  local text = M.text_of(value)
  if text then return texts.length(text) end
  if kind == "map" then return #value.keys end
  if kind == "undefined" then return 0 end
  if kind == "loop" then return value.length end
  return kind ~= "iterator" and getmetatable(value) == Sequence and #value or nil
end

function M.truth(value)
  if value == true or value == false then return value end
  local number = numbers.of(value)
  if number then return number ~= 0 end
  if value == M.NONE then return false end
  local text = M.text_of(value)
  if text then return text ~= "" end
  return M.length(value) ~= 0
end

-- ---- comparing

local SAME_KIND = { markup = "text", dict_keys = "dict_keys" }

local function equal_maps(a, b)
  if #a.keys ~= #b.keys then return false end
  for key, value in M.each(a) do
    local other = M.get(b, key)
    if other == nil or not M.equal(value, other) then return false end
  end
  return true
end

local function equal_lists(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if not M.equal(a[i], b[i]) then return false end
  end
  return true
end

--- Returns whether two values are equal, as Python has it.
---@return boolean
function M.equal(a, b)
  run.step()
  if rawequal(a, b) then return true end
  local x, y = numbers.of(a), numbers.of(b)
  if x or y then return x == y end
  local kind, other = kind_of(a), kind_of(b)
  if kind == "text" and other == "text" then return a == b end
  kind, other = SAME_KIND[kind] or kind, SAME_KIND[other] or other
  if kind ~= other then return false end
  if kind == "text" then return M.text_of(a) == M.text_of(b) end
  if kind == "undefined" then return true end
  if kind == "map" then return equal_maps(a, b) end
  return (IS_SEQUENCE[kind] or kind == "dict_keys") and equal_lists(a, b) or false
end

--- Returns whether one value comes before another one; raises for those that have no order.
---@return boolean
function M.less(a, b, sign)
  run.step()
  local x, y = numbers.of(a), numbers.of(b)
  if x and y then return x < y end
  x, y = M.text_of(a), M.text_of(b)
  if x and y then
    run.look(math.min(#x, #y) / 4)
    return x < y
  end
  M.defined(a)
  M.defined(b)
  local kind = kind_of(a)
  if kind ~= kind_of(b) or kind ~= "list" and kind ~= "tuple" then
    fail("'%s' of %s and %s", sign or "<", M.shown(a), M.shown(b))
  end
  for i = 1, math.min(#a, #b) do
    if not M.equal(a[i], b[i]) then return M.less(a[i], b[i], sign) end
  end
  return #a < #b
end

--- Returns whether a list, a text or a map's keys hold a value.
---@return boolean
function M.contains(holder, value)
  local text = M.text_of(holder)
  if text then
    local wanted = M.text_of(M.defined(value))
    if not wanted then fail("'in' of a text needs a text, got %s", M.shown(value)) end
    return texts.find(text, wanted, 1) ~= nil
  end
  if kind_of(holder) == "map" then return M.find(holder, value) ~= nil end
  for _, entry in ipairs(M.walk("'in'", holder)) do
    if M.equal(entry, value) then return true end
  end
  return false
end

-- ---- texts of values

local HTML = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ["'"] = "&#39;", ['"'] = "&#34;" }

--- Returns the text of a value with the signs of HTML escaped; texts marked as HTML stay.
---@return string
function M.html(value)
  if kind_of(value) == "markup" then return value.text end
  local text = M.text(value)
  run.made(#text * 5)
  return texts.gsub(text, "[&<>'\"]", HTML)
end

local ESCAPES = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\\"] = "\\\\" }

-- Whether Python shows a character beyond ASCII as an escape: blanks and what is not seen.
local function is_hidden(char)
  local code = texts.code(char)
  return code < 0xA1 or texts.is_space(char) or code == 0xAD or code == 0x61C or code == 0x180E
    or code >= 0x200B and code <= 0x200F or code >= 0x202A and code <= 0x202E
    or code >= 0x2060 and code <= 0x206F or code >= 0xE000 and code <= 0xF8FF or code == 0xFEFF
    or code >= 0xFFF0 and code <= 0xFFFB or code % 0x10000 >= 0xFFFE or code >= 0xE0000
end

local function escaped(char)
  if ESCAPES[char] then return ESCAPES[char] end
  if #char == 1 then return ("\\x%02x"):format(char:byte()) end
  if not is_hidden(char) then return char end
  local code = texts.code(char)
  if code < 0x100 then return ("\\x%02x"):format(code) end
  return (code < 0x10000 and "\\u%04x" or "\\U%08x"):format(code)
end

--- Returns a text in quotes, as Python writes it.
---@param text string
---@return string
function M.quote(text)
  run.made(#text * 2)
  local mark = "'"
  if text:find("'", 1, true) and not text:find('"', 1, true) then mark = '"' end
  local out = texts.gsub(texts.gsub(text, "[%c\\\127]", escaped), "[\194-\244][\128-\191]*", escaped)
  if mark == "'" then out = texts.gsub(out, "'", "\\'") end
  return mark .. out .. mark
end

local function repr_map(map)
  local out = {}
  for key, value in M.each(map) do out[#out + 1] = M.repr(key) .. ": " .. M.repr(value) end
  return "{" .. texts.join(out, ", ") .. "}"
end

local function repr_sequence(list)
  local kind, out = list.kind, {}
  if kind == "range" then
    local step = list.step ~= 1 and ", " .. list.step or ""
    return ("range(%d, %d%s)"):format(list.from, list.to, step)
  end
  if kind == "iterator" then fail("an iterator has no text; use the filter list or join") end
  for i = 1, #list do out[i] = M.repr(list[i]) end
  local text = texts.join(out, ", ")
  if kind == "tuple" then return "(" .. text .. (#out == 1 and ",)" or ")") end
  return kind == "list" and "[" .. text .. "]" or ("%s([%s])"):format(kind, text)
end

local REPR = {
  none = function() return "None" end,
  undefined = function() return "Undefined" end,
  boolean = function(value) return value and "True" or "False" end,
  integer = numbers.text,
  float = numbers.text,
  text = M.quote,
  map = repr_map,
  namespace = function(value) return "<Namespace " .. repr_map(value) .. ">" end,
  markup = function(value) return "Markup(" .. M.quote(value.text) .. ")" end,
  callable = function(value) fail("%s has no text; it is to be called", value.name) end,
  loop = function(value) return ("<LoopContext %d/%d>"):format(value.index, value.length) end,
}

--- Returns the text of a value inside of a list: texts stand in quotes.
---@return string
function M.repr(value)
  run.step()
  local repr = REPR[kind_of(value)]
  if repr then return repr(value) end
  return repr_sequence(value)
end

--- Returns the text that a value prints as.
---@return string
function M.text(value)
  if type(value) == "string" then return value end
  local kind = kind_of(value)
  if kind == "undefined" then return "" end
  if kind == "markup" then return value.text end
  return M.repr(value)
end

return M
