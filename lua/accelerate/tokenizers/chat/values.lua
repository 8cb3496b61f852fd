--- The values of chat templates: Python's texts, tests, filters and methods, as far as templates
--- use them. None is M.NONE; undefined is nil. A table with [1], and an empty one, is a list.
local json = require "accelerate.utils.json"
local lexer = require "accelerate.tokenizers.chat.lexer"

local fail = lexer.fail

local M = { NONE = setmetatable({}, { __tostring = function() return "None" end }) }

local function is_table(value) return type(value) == "table" and value ~= M.NONE end
local function is_list(value) return is_table(value) and (value[1] ~= nil or next(value) == nil) end

--- Returns the word for a value's kind in messages.
function M.kind(value)
  if value == nil then return "undefined" end
  if value == M.NONE then return "none" end
  if is_table(value) then return is_list(value) and "a list" or "a map" end
  return type(value) == "string" and "a text" or "a " .. type(value)
end

local CHARACTER = "[%z\1-\127\194-\244][\128-\191]*"

local function characters(text)
  local list = {}
  for char in text:gmatch(CHARACTER) do list[#list + 1] = char end
  return list
end

--- Returns the text that a value prints as.
function M.text(value, line)
  if value == nil then return "" end
  if type(value) == "string" then return value end
  if type(value) == "boolean" then return value and "True" or "False" end
  if value == M.NONE then return "None" end
  if type(value) == "number" then
    return value % 1 == 0 and ("%d"):format(value) or ("%.17g"):format(value):gsub("0+$", "")
  end
  fail(line, "%s has no text here; use the filter tojson", M.kind(value))
end

function M.truth(value)
  if value == nil or value == M.NONE or value == false or value == 0 or value == "" then return false end
  return not is_table(value) or next(value) ~= nil
end

function M.equal(a, b)
  if not is_table(a) or not is_table(b) then return a == b end
  for key, value in pairs(a) do
    if not M.equal(value, b[key]) then return false end
  end
  for key in pairs(b) do
    if a[key] == nil then return false end
  end
  return true
end

--- Returns whether a list, a text or a map's keys have a value.
function M.contains(holder, value, line)
  if type(holder) == "string" then return holder:find(M.text(value, line), 1, true) ~= nil end
  if is_list(holder) then
    for _, entry in ipairs(holder) do
      if M.equal(entry, value) then return true end
    end
    return false
  end
  if is_table(holder) then return holder[value] ~= nil end
  fail(line, "'in' needs a list, a text or a map, got %s", M.kind(holder))
end

--- Returns value[index]; nil where there is none.
function M.index(value, index, line)
  if type(index) == "number" and (is_list(value) or type(value) == "string") then
    if type(value) == "string" then value = characters(value) end
    return value[index < 0 and #value + index + 1 or index + 1]
  end
  if is_table(value) then
    if index == M.NONE or index == nil then return nil end
    return value[index]
  end
  if value == nil then fail(line, "'%s' of something undefined", tostring(index)) end
  return nil
end

function M.slice(value, from, to, step, line)
  local text = type(value) == "string"
  local list = text and characters(value) or value
  if not is_list(list) then fail(line, "a slice needs a list or a text, got %s", M.kind(value)) end
  for _, bound in pairs { from, to, step } do
    if type(bound) ~= "number" then fail(line, "a slice's bounds are numbers, got %s", M.kind(bound)) end
  end
  local n, out = #list, {}
  step = step or 1
  if step == 0 then fail(line, "a slice's step is 0") end
  local function clamp(at, least, most)
    if at < 0 then at = at + n end
    return math.min(math.max(at, least), most)
  end
  if step > 0 then
    for i = clamp(from or 0, 0, n), clamp(to or n, 0, n) - 1, step do out[#out + 1] = list[i + 1] end
  else
    for i = clamp(from or n - 1, -1, n - 1), (to and clamp(to, -1, n - 1) or -1) + 1, step do
      out[#out + 1] = list[i + 1]
    end
  end
  return text and table.concat(out) or out
end

local function length(value, line)
  if type(value) == "string" then return #characters(value) end
  if is_list(value) then return #value end
  if not is_table(value) then fail(line, "length needs a list, a map or a text, got %s", M.kind(value)) end
  local n = 0
  for _ in pairs(value) do n = n + 1 end
  return n
end

local function sorted_keys(map)
  local keys = {}
  for key in pairs(map) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end

local function items(map, line)
  if not is_table(map) then fail(line, "items needs a map, got %s", M.kind(map)) end
  local list = {}
  for i, key in ipairs(sorted_keys(map)) do list[i] = { key, map[key] } end
  return list
end

-- ---- tests: `value is NAME`

M.TESTS = {
  defined = function(v) return v ~= nil end,
  undefined = function(v) return v == nil end,
  none = function(v) return v == M.NONE end,
  string = function(v) return type(v) == "string" end,
  number = function(v) return type(v) == "number" end,
  integer = function(v) return type(v) == "number" and v % 1 == 0 end,
  boolean = function(v) return type(v) == "boolean" end,
  mapping = function(v) return is_table(v) and (not is_list(v) or next(v) == nil) end,
  sequence = function(v) return is_list(v) or type(v) == "string" end,
  iterable = function(v) return is_table(v) or type(v) == "string" end,
  ["true"] = function(v) return v == true end,
  ["false"] = function(v) return v == false end,
  even = function(v) return type(v) == "number" and v % 2 == 0 end,
  odd = function(v) return type(v) == "number" and v % 2 == 1 end,
}

-- ---- methods and filters: function(value, line, ...)

local function need_text(name, value, line)
  if type(value) ~= "string" then fail(line, "%s needs a text, got %s", name, M.kind(value)) end
  return value
end

-- Characters to strip: white space, or those of a text.
local function set_of(chars) return chars and "[" .. chars:gsub("%W", "%%%0") .. "]" or "%s" end

local function strip(left, right)
  return function(value, line, chars)
    value = need_text("strip", value, line)
    if type(chars) ~= "string" then chars = nil end
    if chars == "" then return value end
    if left then value = value:gsub("^" .. set_of(chars) .. "+", "") end
    if right then
      local n = #value
      while n > 0 and value:find("^" .. set_of(chars), n) do n = n - 1 end
      value = value:sub(1, n)
    end
    return value
  end
end

local function replace(value, line, old, new)
  value, old, new = need_text("replace", value, line), need_text("replace", old, line),
    need_text("replace", new, line)
  if old == "" then fail(line, "replace of an empty text") end
  return (value:gsub(old:gsub("%W", "%%%0"), (new:gsub("%%", "%%%%"))))
end

local function capitalize(value, line)
  value = need_text("capitalize", value, line)
  return value:sub(1, 1):upper() .. value:sub(2):lower()
end

local function split(value, line, separator, most)
  local out, at = {}, 1
  value = need_text("split", value, line)
  if separator == nil or separator == M.NONE then
    for word in value:gmatch("%S+") do out[#out + 1] = word end
    return out
  end
  separator = need_text("split", separator, line)
  if separator == "" then fail(line, "split at an empty text") end
  most = type(most) == "number" and most or math.huge
  while #out < most do
    local from, to = value:find(separator, at, true)
    if not from then break end
    out[#out + 1] = value:sub(at, from - 1)
    at = to + 1
  end
  out[#out + 1] = value:sub(at)
  return out
end

M.METHODS = {
  strip = strip(true, true), lstrip = strip(true, false), rstrip = strip(false, true), replace = replace,
  split = split, capitalize = capitalize, items = items,
  upper = function(v, line) return need_text("upper", v, line):upper() end,
  lower = function(v, line) return need_text("lower", v, line):lower() end,
  title = function(v, line)
    return (need_text("title", v, line):lower():gsub("%f[%a]%a", string.upper))
  end,
  startswith = function(v, line, with)
    return need_text("startswith", v, line):sub(1, #need_text("startswith", with, line)) == with
  end,
  endswith = function(v, line, with)
    with = need_text("endswith", with, line)
    return with == "" or need_text("endswith", v, line):sub(-#with) == with
  end,
  keys = function(v, line)
    if not is_table(v) then fail(line, "keys needs a map, got %s", M.kind(v)) end
    return sorted_keys(v)
  end,
  values = function(v, line)
    local list = items(v, line)
    for i = 1, #list do list[i] = list[i][2] end
    return list
  end,
  get = function(v, line, key, otherwise)
    local found = M.index(v, key, line)
    if found == nil then return otherwise == nil and M.NONE or otherwise end
    return found
  end,
}

M.FILTERS = {
  trim = M.METHODS.strip, upper = M.METHODS.upper, lower = M.METHODS.lower, title = M.METHODS.title,
  capitalize = capitalize, replace = replace, items = items, length = length, count = length,
  string = M.text and function(v, line) return M.text(v, line) end,
  list = function(v, line)
    if type(v) == "string" then return characters(v) end
    return is_list(v) and v or fail(line, "list needs a list or a text, got %s", M.kind(v))
  end,
  first = function(v, line) return M.index(v, 0, line) end,
  last = function(v, line) return M.index(v, -1, line) end,
  int = function(v) return math.floor(tonumber(v) or 0) end,
  abs = function(v, line)
    return type(v) == "number" and math.abs(v) or fail(line, "abs needs a number, got %s", M.kind(v))
  end,
  default = function(v, _, otherwise, also_false)
    if v == nil or (also_false == true and not M.truth(v)) then
      return otherwise == nil and "" or otherwise
    end
    return v
  end,
  join = function(v, line, separator)
    if not is_list(v) then fail(line, "join needs a list, got %s", M.kind(v)) end
    local out = {}
    for i = 1, #v do out[i] = M.text(v[i], line) end
    return table.concat(out, separator == nil and "" or need_text("join", separator, line))
  end,
  tojson = function(v, line, indent)
    local ok, text = pcall(json.encode, v == M.NONE and {} or v, type(indent) == "number" and indent or 0)
    return ok and text or fail(line, "tojson: %s", tostring(text))
  end,
}

return M
