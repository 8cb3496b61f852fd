--- The filters of Jinja: `value | NAME(arguments)`.
local calls = require "accelerate.tokenizers.chat.calls"
local format = require "accelerate.tokenizers.chat.format"
local json = require "accelerate.tokenizers.chat.json"
local methods = require "accelerate.tokenizers.chat.methods"
local numbers = require "accelerate.tokenizers.chat.numbers"
local run = require "accelerate.tokenizers.chat.run"
local sequences = require "accelerate.tokenizers.chat.sequences"
local texts = require "accelerate.tokenizers.chat.texts"
local values = require "accelerate.tokenizers.chat.values"

local fail, integer = run.fail, calls.integer

local M = { FILTERS = {} }
local FILTERS = M.FILTERS

for name, entry in pairs(sequences.FILTERS) do FILTERS[name] = entry end

local function define(name, signature, fn) FILTERS[name] = { signature = signature, fn = fn } end

-- ---- texts: other values count as the texts that they print as

for name, fn in pairs { upper = texts.upper, lower = texts.lower, capitalize = texts.capitalize,
  title = texts.title_words } do
  define(name, "", function(value) return fn(values.text(value)) end)
end

define("trim", "chars?", function(value, what, chars)
  return texts.strip(values.text(value), calls.optional_text(what, chars), true, true)
end)

define("string", "", function(value)
  return values.kind(value) == "markup" and value or values.text(value)
end)

define("replace", "old new count?", function(value, what, old, new, most)
  if most == values.NONE then most = nil end
  return texts.replace(values.text(value), values.text(old), values.text(new), integer(what, most, -1))
end)

define("center", "width?", function(value, what, width)
  return methods.align(values.text(value), integer(what, width, 80), "^", " ")
end)

define("indent", "width? first? blank?", function(value, what, width, first, blank)
  local text = calls.text(what, value)
  local pad = width ~= nil and values.text_of(width) or texts.rep(" ", integer(what, width, 4))
  first, blank = calls.flag(first, false), calls.flag(blank, false)
  local lines = texts.lines(text .. "\n", false)
  run.made(#text + #lines * #pad)
  for i, line in ipairs(lines) do
    if i == 1 and first or i > 1 and (blank or line ~= "") then lines[i] = pad .. line end
  end
  return texts.join(lines, "\n")
end)

define("truncate", "length? killwords? end? leeway?", function(value, what, length, killwords, ending, leeway)
  local tail = ending == nil and "..." or calls.text(what, ending)
  if leeway == values.NONE then leeway = nil end
  length, leeway = integer(what, length, 255), integer(what, leeway, 5)
  local n, kept = values.length(value), length - texts.length(tail)
  if kept < 0 or leeway < 0 then fail("%s: the length %d is less than its ending's", what, length) end
  if n and n <= length + leeway then return value end
  local text = texts.sub(calls.text(what, value), 1, kept)
  if not calls.flag(killwords, false) then text = texts.rsplit(text, " ", 1)[1] end
  return text .. tail
end)

define("wordcount", "", function(value)
  local text = values.text(value)
  local n, at = 0, 1
  while true do
    local _, to = text:find("[%w_\128-\255]+", at)
    if not to then return n end
    run.step(1 + (to - at) / 64)
    n, at = n + 1, to + 1
  end
end)

define("urlencode", "", function(value, what)
  local text = values.text_of(value)
  if not text then fail("%s needs a text, got %s", what, values.shown(value)) end
  run.made(#text * 3)
  return texts.gsub(text, "[^%w_.~/-]", function(c) return ("%%%02X"):format(c:byte()) end)
end)

FILTERS.format = { free = true, fn = function(value, what, args, named)
  if #args > 0 and #named.keys > 0 then fail("%s takes values with names or without, not both", what) end
  local given = #named.keys > 0 and named or values.list({ unpack(args) }, "tuple")
  return format.percent(values.text(value), given)
end }

define("escape", "", function(value) return values.markup(values.html(value)) end)
FILTERS.e = FILTERS.escape
define("forceescape", "", function(value) return values.markup(values.html(values.text(value))) end)
define("safe", "", function(value) return values.markup(values.text(value)) end)

-- ---- numbers

-- What int and float make of a value: a number, a text, or nil.
local function number_or_text(value)
  values.defined(value)
  local number = numbers.of(value)
  if number then return number end
  return nil, values.text_of(value)
end

local function truncated(number)
  if not number or number ~= number or math.abs(number) == math.huge then return nil end
  return numbers.integer(number < 0 and math.ceil(number) or math.floor(number))
end

define("int", "default? base?", function(value, what, default, base)
  local number, text = number_or_text(value)
  base = integer(what, base, 10)
  if base ~= 0 and (base < 2 or base > 36) then fail("%s: base must be 0 or 2 to 36, got %d", what, base) end
  local found
  if text then
    found = numbers.parse_integer(text, base) or truncated(numbers.parse_float(text))
  else
    found = truncated(number)
  end
  if found == nil then return default == nil and 0 or default end
  return found
end)

define("float", "default?", function(value, _, default)
  local number, text = number_or_text(value)
  number = number or text and numbers.parse_float(text)
  if not number then return default == nil and numbers.float(0) or default end
  return numbers.float(number)
end)

define("abs", "", function(value, what)
  local number, float = numbers.of(values.defined(value))
  if not number then fail("%s needs a number, got %s", what, values.shown(value)) end
  return float and numbers.float(math.abs(number)) or math.abs(number)
end)

-- Half goes to the even neighbour.
local function half_even(number)
  local low = math.floor(number)
  local rest = number - low
  if rest > 0.5 or rest == 0.5 and low % 2 == 1 then low = low + 1 end
  return low
end

local function round_float(number, precision)
  if precision >= 0 then
    if precision > 17 or number ~= number or math.abs(number) == math.huge then return number end
    return tonumber((number < 0 and "-" or "") .. numbers.format("f", precision, math.abs(number)))
  end
  return half_even(number * 10 ^ precision) * 10 ^ -precision
end

local METHODS = { ceil = math.ceil, floor = math.floor }

define("round", "precision? method?", function(value, what, precision, method)
  precision, method = integer(what, precision, 0), method == nil and "common" or calls.text(what, method)
  local number, float = numbers.of(values.defined(value))
  if not number then fail("%s needs a number, got %s", what, values.shown(value)) end
  if method == "common" then
    if float then return numbers.float(round_float(number, precision)) end
    return precision >= 0 and number or numbers.integer(round_float(number, precision))
  end
  local fn = METHODS[method] or fail("%s: method must be common, ceil or floor, got '%s'", what, method)
  return numbers.float((fn(number * 10 ^ precision) + 0) / 10 ^ precision) -- + 0: no -0
end)

local BYTES = { [false] = { 1000, "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB" },
  [true] = { 1024, "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB" } }

define("filesizeformat", "binary?", function(value, what, binary)
  local number, text = number_or_text(value)
  number = number or text and numbers.parse_float(text)
  if not number then fail("%s needs a number, got %s", what, values.shown(value)) end
  local names = BYTES[calls.flag(binary, false)]
  local base = names[1]
  if number == 1 then return "1 Byte" end
  if number < base then return ("%d Bytes"):format(number) end
  local i = 1
  while i < 8 and number >= base ^ (i + 1) do i = i + 1 end
  return ("%s %s"):format(numbers.format("f", 1, base * number / base ^ (i + 1)), names[i + 1])
end)

-- ---- others

define("default", "default_value? boolean?", function(value, _, default, boolean)
  if values.kind(value) == "undefined" or calls.flag(boolean, false) and not values.truth(value) then
    return default == nil and "" or default
  end
  return value
end)
FILTERS.d = FILTERS.default

define("attr", "name", function(value, what, name) return methods.own(value, calls.text(what, name)) end)

define("tojson", "ensure_ascii? indent? separators? sort_keys?",
  function(value, _, ...) return json.encode(value, ...) end)

FILTERS.map = { free = true, fn = function(value, what, args, named)
  return sequences.mapped(value, what, args, named, M.apply)
end }

--- Returns what a filter makes of a value.
---@param name string
---@param value any
---@param args any[]
---@param named table a map
function M.apply(name, value, args, named)
  local filter = FILTERS[name]
  if not filter then fail("the filter '%s' is not supported", name) end
  local what = ("the filter '%s'"):format(name)
  if filter.free then return filter.fn(value, what, args, named) end
  return filter.fn(value, what, calls.take(what, filter.signature, args, named))
end

return M
