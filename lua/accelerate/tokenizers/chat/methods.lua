--- What stands behind a value's '.': the methods of Python's texts, maps and lists; and how `a.b`,
--- `a[b]` and `a[b:c]` find what they name.
local calls = require "accelerate.tokenizers.chat.calls"
local format = require "accelerate.tokenizers.chat.format"
local numbers = require "accelerate.tokenizers.chat.numbers"
local run = require "accelerate.tokenizers.chat.run"
local texts = require "accelerate.tokenizers.chat.texts"
local values = require "accelerate.tokenizers.chat.values"

local fail = run.fail
local text_of, integer = calls.text, calls.integer

local M = {}

-- A method: its signature, and function(value, what, arguments of the signature).
local function method(signature, fn) return { signature = signature, fn = fn } end

-- ---- texts

local function strip(left, right)
  return method("/chars?", function(text, what, chars)
    return texts.strip(text, calls.optional_text(what, chars), left, right)
  end)
end

local function splitting(split)
  return method("sep? maxsplit?", function(text, what, separator, most)
    return values.list(split(text, calls.optional_text(what, separator), integer(what, most, -1)))
  end)
end

-- The part of a text between two places that count from 0, as a slice's; and where it begins.
local function part(text, what, from, to)
  local n = texts.length(text)
  local function place(value, default)
    if value == nil or value == values.NONE then return default end
    value = integer(what, value)
    return value < 0 and math.max(0, n + value) or value
  end
  local begin, stop = place(from, 0), math.min(place(to, n), n)
  if begin > stop then return nil, begin end
  if begin == 0 and stop == n then return text, 0 end
  return texts.sub(text, begin + 1, stop), begin
end

-- Whether a text begins or ends with another one, or with one of a tuple's.
local function edge(fits)
  return method("/prefix start? end?", function(text, what, wanted, from, to)
    local inside = part(text, what, from, to)
    local list = values.kind(wanted) == "tuple" and wanted or { wanted }
    for i = 1, #list do
      local one = text_of(what, list[i])
      run.look(#one)
      if inside and fits(inside, one) then return true end
    end
    return false
  end)
end

local function begins(text, with) return text:sub(1, #with) == with end
local function ends(text, with) return with == "" or text:sub(-#with) == with end

-- The place of a text in another one, from 0, or -1.
local function place_of(find)
  return function(text, what, wanted, from, to)
    wanted = text_of(what, wanted)
    local inside, begin = part(text, what, from, to)
    if not inside then return -1 end
    local at = find(inside, wanted)
    return at and begin + texts.length(inside:sub(1, at - 1)) or -1
  end
end

local find = place_of(function(text, wanted) return (texts.find(text, wanted, 1)) end)
local rfind = place_of(function(text, wanted)
  if wanted == "" then return #text + 1 end
  return (texts.rfind(text, wanted, #text))
end)

local function or_raise(look)
  return function(text, what, wanted, from, to)
    local at = look(text, what, wanted, from, to)
    if at < 0 then fail("%s: there is no %s", what, values.quote(wanted)) end
    return at
  end
end

local function count(text, what, wanted, from, to)
  wanted = text_of(what, wanted)
  local inside = part(text, what, from, to)
  if not inside then return 0 end
  if wanted == "" then return texts.length(inside) + 1 end
  return #texts.split(inside, wanted, -1) - 1
end

local function aligned(align)
  return method("/width fillchar?", function(text, what, width, fill)
    fill = fill == nil and " " or text_of(what, fill)
    if texts.length(fill) ~= 1 then
      fail("%s needs one character to fill with, got %s", what, values.quote(fill))
    end
    return M.align(text, integer(what, width), align, fill)
  end)
end

--- Returns a text filled up to a width. Python puts the odd blank of a centred text to the left
--- where the width is odd.
---@param align "<"|">"|"^"
function M.align(text, width, align, fill)
  local gap = width - texts.length(text)
  if align ~= "^" or gap <= 0 then return format.padded(text, width, align, fill) end
  local left = math.floor(gap / 2) + (gap % 2 == 1 and width % 2 == 1 and 1 or 0)
  run.made(#text + gap * #fill)
  return fill:rep(left) .. text .. fill:rep(gap - left)
end

-- The parts before, of and behind a separator.
local function partition(last)
  return method("/sep", function(text, what, separator)
    separator = text_of(what, separator)
    if separator == "" then fail("%s: an empty separator", what) end
    run.made(#text)
    local from, to
    if last then from, to = texts.rfind(text, separator, #text)
    else from, to = texts.find(text, separator, 1) end
    local parts = from and { text:sub(1, from - 1), separator, text:sub(to + 1) }
      or last and { "", "", text } or { text, "", "" }
    return values.list(parts, "tuple")
  end)
end

-- Whether a text is not empty and each of its characters fits.
local function all(pattern, what_for)
  return method("/", function(text, what)
    for piece in texts.pieces(text) do
      if piece:find("[^" .. pattern .. "\128-\255]") then return false end
    end
    if text:find "[\128-\255]" then fail("%s: %s beyond ASCII are not supported", what, what_for) end
    return text ~= ''
  end)
end

-- Whether a text has letters with case, and all are of one case.
local function cased(change)
  return function(text)
    if change(text) ~= text then return false end
    for _, char in ipairs(texts.characters(text)) do
      if texts.is_cased(char) then return true end
    end
    return false
  end
end

M.is_lower, M.is_upper = cased(texts.lower), cased(texts.upper)

local function tabs_expanded(text, what, size)
  size = integer(what, size, 8)
  local out, column = {}, 0
  for i, char in ipairs(texts.characters(text)) do
    out[i] = char
    if char == "\t" then out[i] = texts.rep(" ", size > 0 and size - column % size or 0) end
    column = (char == "\n" or char == "\r") and 0 or column + #(char == "\t" and out[i] or " ")
  end
  return texts.join(out, "")
end

local function zero_filled(text, what, width)
  local sign, digits = text:match "^([-+]?)(.*)$"
  return sign .. texts.rep("0", integer(what, width) - texts.length(text)) .. digits
end

local function joined(separator, what, list)
  local out = {}
  for i, entry in ipairs(values.walk(what, list)) do out[i] = text_of(what, entry) end
  return texts.join(out, separator)
end

-- A method without arguments.
local function plain(fn) return method("/", function(text) return fn(text) end) end

local TEXT = {
  strip = strip(true, true), lstrip = strip(true, false), rstrip = strip(false, true),
  split = splitting(texts.split), rsplit = splitting(texts.rsplit),
  splitlines = method("keepends?", function(text, _, keep)
    return values.list(texts.lines(text, calls.flag(keep, false)))
  end),
  startswith = edge(begins), endswith = edge(ends),
  find = method("/sub start? end?", find), rfind = method("/sub start? end?", rfind),
  index = method("/sub start? end?", or_raise(find)), rindex = method("/sub start? end?", or_raise(rfind)),
  count = method("/sub start? end?", count),
  replace = method("/old new count?", function(text, what, old, new, most)
    return texts.replace(text, text_of(what, old), text_of(what, new), integer(what, most, -1))
  end),
  removeprefix = method("/prefix", function(text, what, prefix)
    run.made(#text)
    return begins(text, text_of(what, prefix)) and text:sub(#text_of(what, prefix) + 1) or text
  end),
  removesuffix = method("/suffix", function(text, what, suffix)
    run.made(#text)
    return ends(text, text_of(what, suffix)) and text:sub(1, #text - #text_of(what, suffix)) or text
  end),
  upper = plain(texts.upper), lower = plain(texts.lower), title = plain(texts.title),
  capitalize = plain(texts.capitalize), swapcase = plain(texts.swapcase),
  isspace = plain(function(text) return text ~= "" and texts.skip_space(text, 1) > #text end),
  isascii = plain(function(text) return not text:find "[\128-\255]" end),
  islower = plain(M.is_lower), isupper = plain(M.is_upper),
  isalpha = all("%a", "letters"), isdigit = all("%d", "digits"), isdecimal = all("%d", "digits"),
  isnumeric = all("%d", "digits"), isalnum = all("%w", "letters"),
  center = aligned "^", ljust = aligned "<", rjust = aligned ">",
  zfill = method("/width", zero_filled), expandtabs = method("tabsize?", tabs_expanded),
  partition = partition(false), rpartition = partition(true),
  join = method("/iterable", joined),
  format = { free = true,
    fn = function(text, _, args, named) return format.braces(text, args, named, M) end },
  format_map = method("/mapping", function(text, what, map)
    if values.kind(map) ~= "map" then fail("%s needs a map, got %s", what, values.shown(map)) end
    return format.braces(text, {}, map, M)
  end),
}

-- ---- maps and lists

local function view(kind)
  return method("/", function(map) return values.view(map, kind) end)
end

local MAP = {
  keys = view "dict_keys", values = view "dict_values", items = view "dict_items",
  get = method("/key default?", function(map, _, key, default)
    local found = values.find(map, key)
    if found ~= nil then return found end
    return default == nil and values.NONE or default
  end),
  copy = method("/", function(map)
    local copy = values.map()
    for key, value in values.each(map) do values.put(copy, key, value) end
    return copy
  end),
}

local LIST = {
  count = method("/value", function(list, _, value)
    local n = 0
    for i = 1, #list do n = n + (values.equal(list[i], value) and 1 or 0) end
    return n
  end),
  index = method("/value start? stop?", function(list, what, value, from, to)
    local n = #list
    from, to = integer(what, from, 0), integer(what, to, n)
    if from < 0 then from = math.max(0, n + from) end
    if to < 0 then to = n + to end
    for i = from + 1, math.min(to, n) do
      if values.equal(list[i], value) then return i - 1 end
    end
    fail("%s: the value is not in the list", what)
  end),
}

local function copied(list)
  local copy = {}
  for i = 1, #list do copy[i] = list[i] end
  run.step(#copy)
  return values.list(copy)
end

local METHODS = { text = TEXT, map = MAP, list = { copy = method("/", copied) }, tuple = LIST, range = LIST }
for name, entry in pairs(LIST) do METHODS.list[name] = entry end

-- Methods of Python that are not here: they change a value, or are left out.
local CHANGING = {}
for name in ("append clear extend insert pop popitem remove reverse setdefault sort update"):gmatch "%a+" do
  CHANGING[name] = true
end
local MISSING = { text = {}, map = { fromkeys = true }, markup = {}, integer = {}, float = {} }
for name in ("casefold encode isidentifier isprintable istitle maketrans translate"):gmatch "%a+" do
  MISSING.text[name] = true
end
-- These would escape what they are given.
for _, name in ipairs { "join", "replace", "format", "format_map" } do MISSING.markup[name] = true end
for name in pairs(MISSING.text) do MISSING.markup[name] = true end
for name in ("as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex imag " ..
  "is_integer numerator real to_bytes"):gmatch "[%a_]+" do
  MISSING.integer[name], MISSING.float[name] = true, true
end
MISSING.boolean = MISSING.integer

local KIND = { text = "a text", map = "a map", list = "a list", tuple = "a tuple", range = "a range" }

-- What comes of a text that is marked as HTML is marked, too.
local function marked(result)
  if type(result) == "string" then return values.markup(result) end
  if not values.is_sequence(result) then return result end
  local list = {}
  for i = 1, #result do list[i] = marked(result[i]) end
  return values.list(list, result.kind)
end

-- The method of a value, or nil.
local function method_of(value, kind, name)
  if kind == "markup" and TEXT[name] and not MISSING.markup[name] then
    local plain_one = M.attribute(value.text, name)
    return values.callable(plain_one.name,
      function(args, named) return marked(plain_one.call(args, named)) end)
  end
  local found = METHODS[kind] and METHODS[kind][name]
  if found then
    local what = ("the method '%s' of %s"):format(name, KIND[kind])
    return values.callable(what, function(args, named)
      if found.free then return found.fn(value, what, args, named) end
      return found.fn(value, what, calls.take(what, found.signature, args, named))
    end)
  end
  if (kind == "list" or kind == "map") and CHANGING[name] and not (kind == "map" and LIST[name]) then
    return values.undefined("the method '%s' changes %s, which a template may not do", name, KIND[kind])
  end
  if MISSING[kind] and MISSING[kind][name] then
    fail("the method '%s' of %s is not supported", name, values.shown(value))
  end
end

-- ---- finding

local function fields_of(value, kind)
  if kind == "namespace" then return value.values end
  if kind == "loop" then return value.fields end
  return (kind == "callable" or kind == "tuple") and value.fields or nil
end

local function missing(value, name)
  return values.undefined("%s has no '%s'", values.shown(value), tostring(name))
end

-- What is a value's attribute: a field, a method; nil: none.
local function field(value, name)
  local kind = values.kind(value)
  local fields = fields_of(value, kind)
  local found = fields and fields[name]
  if type(found) == "function" then found = found(value) end
  if found ~= nil then return found end
  return method_of(value, kind, name)
end

--- Returns `value.name`: an attribute, or else what a map has under the name.
---@param name string
function M.attribute(value, name)
  values.defined(value)
  local found = field(value, name)
  if found == nil and values.kind(value) == "map" then found = values.get(value, name) end
  if found == nil then return missing(value, name) end
  return found
end

--- Returns what is an attribute alone, as the filter attr has it.
---@param name string
function M.own(value, name)
  local found = field(values.defined(value), name)
  if found == nil then return missing(value, name) end
  return found
end

-- The entry of a list or the character of a text, or nil.
local function entry_at(value, index)
  local list = values.text_of(value)
  if list then
    local n = texts.length(list)
    if index < 0 then index = n + index end
    if index < 0 or index >= n then return nil end
    local char = texts.sub(list, index + 1, index + 1)
    return value == list and char or marked(char)
  end
  if not values.is_sequence(value) then return nil end
  return value[index < 0 and #value + index + 1 or index + 1]
end

--- Returns `value[index]`; undefined where there is none.
function M.index(value, index)
  values.defined(value)
  local found
  local number, float = numbers.of(index)
  if values.kind(value) == "map" then
    found = values.get(value, index)
  elseif number and not float then
    found = entry_at(value, number)
  end
  if found ~= nil then return found end
  local name = values.text_of(index)
  if name then found = field(value, name) end
  if found ~= nil then return found end
  return missing(value, values.kind(index) == "undefined" and "undefined" or values.repr(index))
end

-- The first place, the end and the step of a slice of n entries; places count from 0.
local function bounds(n, from, to, step)
  local function clamp(at, least, most)
    if at < 0 then at = at + n end
    return math.min(math.max(at, least), most)
  end
  if step > 0 then return clamp(from or 0, 0, n), clamp(to or n, 0, n) end
  return clamp(from or n - 1, -1, n - 1), to and clamp(to, -1, n - 1) or -1
end

local function sliced(list, from, to, step)
  local out = {}
  for i = from, to + (step > 0 and -1 or 1), step do out[#out + 1] = list[i + 1] end
  run.step(#out)
  return out
end

-- A slice of a text; a part of one piece is copied as a whole.
local function sliced_text(text, from, to, step)
  if step == 1 then return texts.sub(text, from + 1, to) end
  return texts.join(sliced(texts.characters(text), from, to, step), "")
end

--- Returns `value[from:to:step]`; none: not given.
function M.slice(value, from, to, step)
  values.defined(value)
  local limits = {}
  for i, limit in pairs { from, to, step } do
    local number, float = numbers.of(limit)
    if limit ~= values.NONE then
      if not number or float then fail("a slice's bounds are integers, got %s", values.shown(limit)) end
      limits[i] = number
    end
  end
  local text = values.text_of(value)
  if not text and not values.is_sequence(value) then fail("a slice of %s", values.shown(value)) end
  step = limits[3] or 1
  if step == 0 then fail "a slice's step is 0" end
  local n = text and texts.length(text) or #value
  local first, stop = bounds(n, limits[1], limits[2], step)
  if text then
    local cut = sliced_text(text, first, stop, step)
    return value == text and cut or marked(cut)
  end
  local out = values.list(sliced(value, first, stop, step), value.kind)
  if value.kind == "range" then
    local function at(place) return value.from + place * value.step end
    out.from, out.to, out.step = at(first), at(stop), value.step * step
  end
  return out
end

return M
