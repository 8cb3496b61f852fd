--- The filters of Jinja that go over lists: map, select, sort, join and their neighbours.
---
--- A filter is { signature, fn }: function(value, what, the arguments of the signature). Filters
--- that Python has as generators give iterators, which can be walked over once.
local calls = require "accelerate.tokenizers.chat.calls"
local methods = require "accelerate.tokenizers.chat.methods"
local numbers = require "accelerate.tokenizers.chat.numbers"
local run = require "accelerate.tokenizers.chat.run"
local sort = require "accelerate.tokenizers.chat.sort"
local tests = require "accelerate.tokenizers.chat.tests"
local texts = require "accelerate.tokenizers.chat.texts"
local values = require "accelerate.tokenizers.chat.values"

local fail, integer = run.fail, calls.integer

local M = {}

local function filter(signature, fn) return { signature = signature, fn = fn } end

-- ---- attributes

-- Returns a function that follows "a.b.0" from an entry; nil or none: the entry itself.
local function getter(what, attribute, default)
  if attribute == nil or attribute == values.NONE then return function(entry) return entry end end
  local parts = { attribute }
  local text = values.text_of(attribute)
  if text then
    parts = texts.split(text, ".", -1)
    for i, part in ipairs(parts) do parts[i] = tonumber(part:match "^%d+$") or part end
  elseif type(attribute) ~= "number" then
    fail("%s: an attribute is a text or an integer, got %s", what, values.shown(attribute))
  end
  if default == values.NONE then default = nil end
  return function(entry)
    for _, part in ipairs(parts) do
      entry = methods.index(entry, part)
      if default ~= nil and values.kind(entry) == "undefined" then entry = default end
    end
    return entry
  end
end

local function caseless(value)
  local text = values.text_of(value)
  return text and texts.lower(text) or value
end

-- Returns a function that gives what entries are compared by.
local function key_getter(what, attribute, case_sensitive, default)
  local get = getter(what, attribute, default)
  if calls.flag(case_sensitive, false) then return get end
  return function(entry) return caseless(get(entry)) end
end

-- Keys for several attributes, "a,b".
local function keys_getter(what, attribute, case_sensitive)
  local text = values.text_of(attribute or values.NONE)
  if not text or not text:find(",", 1, true) then return key_getter(what, attribute, case_sensitive) end
  local gets = {}
  for i, part in ipairs(texts.split(text, ",", -1)) do gets[i] = key_getter(what, part, case_sensitive) end
  return function(entry)
    local key = {}
    for i, get in ipairs(gets) do key[i] = get(entry) end
    return values.list(key, "tuple")
  end
end

-- Entries in the order of their keys.
local function sorted(list, key_of, reverse)
  local keyed = {}
  for i = 1, #list do keyed[i] = { key = key_of(list[i]), entry = list[i] } end
  local function less(a, b) return values.less(a.key, b.key) end
  local out = sort(keyed, reverse and function(a, b) return less(b, a) and true or false end or less)
  for i = 1, #out do out[i] = out[i].entry end
  return out
end

-- ---- filters

local function mapped(value, what, args, named, apply)
  local fn
  local attribute = #args == 0 and values.get(named, "attribute")
  if attribute then
    local _, default = calls.take(what, "attribute default?", args, named)
    fn = getter(what, attribute, default)
  else
    local name = values.text_of(args[1] or values.NONE)
    if not name then fail("%s needs the name of a filter, or attribute=", what) end
    local rest = { unpack(args, 2) }
    fn = function(entry) return apply(name, entry, rest, named) end
  end
  return values.iterator(function()
    local out = {}
    if not values.truth(value) then return out end
    for i, entry in ipairs(values.walk(what, value)) do out[i] = fn(entry) end
    return out
  end)
end

-- select, reject and those by an attribute.
local function choosing(wanted, by_attribute)
  return { free = true, fn = function(value, what, args, named)
    local get, at = function(entry) return entry end, 1
    if by_attribute then
      if args[1] == nil then fail("%s needs the name of an attribute", what) end
      get, at = getter(what, args[1]), 2
    end
    local name, rest = args[at], { unpack(args, at + 1) }
    local function holds(entry)
      if name == nil then return values.truth(entry) end
      return tests.holds(calls.text(what, name), entry, rest, named)
    end
    return values.iterator(function()
      local out = {}
      if not values.truth(value) then return out end
      for _, entry in ipairs(values.walk(what, value)) do
        if holds(get(entry)) == wanted then out[#out + 1] = entry end
      end
      return out
    end)
  end }
end

local function first(value, what)
  if values.kind(value) == "iterator" then
    local list = values.walk(what, value)
    value.make = function() return { unpack(list, 2) } end
    return list[1] or values.undefined "the first of an empty sequence"
  end
  local entry = values.walk(what, value)[1]
  if entry == nil then return values.undefined "the first of an empty sequence" end
  return entry
end

local function last(value, what)
  if values.kind(value) == "iterator" then
    fail("%s needs a list, got an iterator; use the filter list", what)
  end
  local list = values.walk(what, value)
  if #list == 0 then return values.undefined "the last of an empty sequence" end
  return list[#list]
end

-- min and max: of equal entries the first one.
local function extreme(before)
  return filter("case_sensitive? attribute?", function(value, what, case_sensitive, attribute)
    local list, key_of = values.walk(what, value), key_getter(what, attribute, case_sensitive)
    if #list == 0 then return values.undefined "an extreme of an empty sequence" end
    local best, best_key = list[1], key_of(list[1])
    for i = 2, #list do
      local key = key_of(list[i])
      if before(key, best_key) then best, best_key = list[i], key end
    end
    return best
  end)
end

local function sum(value, what, attribute, start)
  local get, total = getter(what, attribute), start == nil and 0 or start
  if values.text_of(total) then fail("%s does not add texts; use the filter join", what) end
  for _, entry in ipairs(values.walk(what, value)) do total = M.add(total, get(entry)) end
  return total
end

local function unique(value, what, case_sensitive, attribute)
  local key_of = key_getter(what, attribute, case_sensitive)
  return values.iterator(function()
    local seen, out = values.map(), {}
    for _, entry in ipairs(values.walk(what, value)) do
      local key = key_of(entry)
      if values.get(seen, key) == nil then
        values.put(seen, key, true)
        out[#out + 1] = entry
      end
    end
    return out
  end)
end

local function grouped(value, what, attribute, default, case_sensitive)
  local key_of = key_getter(what, attribute, case_sensitive, default)
  local shown, out, group, key = getter(what, attribute, default), {}, nil, nil
  for _, entry in ipairs(sorted(values.walk(what, value), key_of)) do
    local own = key_of(entry)
    if not group or not values.equal(own, key) then
      group, key = values.list {}, own
      local pair = values.list({ shown(entry), group }, "tuple")
      pair.fields = { grouper = pair[1], list = group }
      out[#out + 1] = pair
    end
    group[#group + 1] = entry
  end
  return values.list(out)
end

local function batched(value, what, size, fill)
  size = integer(what, size)
  return values.iterator(function()
    local out, row = {}, nil
    for _, entry in ipairs(values.walk(what, value)) do
      if not row or #row == size then
        row = values.list {}
        out[#out + 1] = row
      end
      row[#row + 1] = entry
    end
    while row and fill ~= nil and fill ~= values.NONE and #row < size do
      run.step()
      row[#row + 1] = fill
    end
    return out
  end)
end

local function columns(value, what, n, fill)
  n = integer(what, n)
  return values.iterator(function()
    if n == 0 then fail("%s into 0 parts", what) end
    local list, out, at = values.walk(what, value), {}, 0
    local each, more = math.floor(#list / n), #list % n
    for i = 1, n do
      run.step()
      local column = values.list {}
      for k = 1, each + (i <= more and 1 or 0) do column[k] = list[at + k] end
      at = at + #column
      if fill ~= nil and fill ~= values.NONE and i > more then column[#column + 1] = fill end
      out[i] = column
    end
    return out
  end)
end

local function reversed(value, what)
  local text = values.text_of(value)
  if text then return texts.join(texts.reversed(texts.characters(text)), "") end
  local list = texts.reversed(values.walk(what, value))
  return values.iterator(function() return list end)
end

local function joined(value, what, separator, attribute)
  local get, out = getter(what, attribute), {}
  for i, entry in ipairs(values.walk(what, value)) do out[i] = values.text(get(entry)) end
  return texts.join(out, separator == nil and "" or values.text(separator))
end

local SORTED_BY = { key = 1, value = 2 }

local function dictsorted(value, what, case_sensitive, by, reverse)
  if values.kind(value) ~= "map" then fail("%s needs a map, got %s", what, values.shown(value)) end
  local place = SORTED_BY[by == nil and "key" or by]
  if not place then fail("%s: by must be 'key' or 'value', got %s", what, values.repr(by)) end
  local key_of = key_getter(what, nil, case_sensitive)
  local list = sorted(values.view(value, "dict_items"), function(pair) return key_of(pair[place]) end,
    calls.flag(reverse, false))
  return values.list(list)
end

local function items(value, what)
  local kind = values.kind(value)
  if kind ~= "map" and kind ~= "undefined" then fail("%s needs a map, got %s", what, values.shown(value)) end
  return values.iterator(function() return kind == "map" and values.view(value, "dict_items") or {} end)
end

local function listed(value, what)
  local out = {}
  for i, entry in ipairs(values.walk(what, value)) do out[i] = entry end
  return values.list(out)
end

local function length(value, what)
  return values.length(value) or fail("%s needs a list, a map or a text, got %s", what, values.shown(value))
end

--- Filters by name. `map` needs to call filters by name: filters.lua adds it.
M.FILTERS = {
  list = filter("", listed), length = filter("", length), count = filter("", length),
  first = filter("", first), last = filter("", last), join = filter("d? attribute?", joined),
  items = filter("", items), dictsort = filter("case_sensitive? by? reverse?", dictsorted),
  sort = filter("reverse? case_sensitive? attribute?", function(value, what, reverse, case, attribute)
    return values.list(sorted(values.walk(what, value), keys_getter(what, attribute, case),
      calls.flag(reverse, false)))
  end),
  unique = filter("case_sensitive? attribute?", unique),
  min = extreme(values.less), max = extreme(function(a, b) return values.less(b, a) end),
  sum = filter("attribute? start?", sum), groupby = filter("attribute default? case_sensitive?", grouped),
  batch = filter("linecount fill_with?", batched), slice = filter("slices fill_with?", columns),
  reverse = filter("", reversed),
  select = choosing(true, false), reject = choosing(false, false),
  selectattr = choosing(true, true), rejectattr = choosing(false, true),
}
M.mapped = mapped

--- Returns a + b: of numbers, texts, lists or tuples.
function M.add(a, b)
  local number = numbers.compute("+", a, b)
  if number ~= nil then return number end
  values.defined(a)
  values.defined(b)
  local kind = values.kind(a)
  if type(a) == "string" and type(b) == "string" then
    run.made(#a + #b)
    return a .. b
  end
  if values.text_of(a) and values.text_of(b) then return values.markup(values.html(a) .. values.html(b)) end
  if kind ~= values.kind(b) or kind ~= "list" and kind ~= "tuple" then
    fail("'+' of %s and %s", values.shown(a), values.shown(b))
  end
  local both = {}
  for i = 1, #a do both[i] = a[i] end
  for i = 1, #b do both[#a + i] = b[i] end
  run.step(#both)
  return values.list(both, kind)
end

return M
