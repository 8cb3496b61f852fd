--- JSON: reading, and writing with sorted keys.
local class = require "accelerate.utils.class"
local ordered = require "accelerate.utils.ordered"

local M = {}

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n",
  ["\r"] = "\\r", ["\t"] = "\\t" }

local function quote(text)
  return '"' .. text:gsub('[%c"\\]', function(c) return ESCAPES[c] or ("\\u%04x"):format(c:byte()) end) .. '"'
end

local List = { __deepcopy = class.copied }

--- Marks a table as a list: it is written as `[]` when it is empty.
---@param values any[]?
---@return any[] values
function M.list(values) return setmetatable(values or {}, List) end

--- Returns whether a table was marked by json.list.
---@param value table
---@return boolean
function M.is_list(value) return getmetatable(value) == List end

--- The shortest text that reads back as the same number.
local function number_text(value)
  if value % 1 == 0 and math.abs(value) < 2 ^ 53 then return ("%.0f"):format(value) end
  for digits = 14, 16 do
    local text = ("%." .. digits .. "g"):format(value)
    if tonumber(text) == value then return text end
  end
  return ("%.17g"):format(value)
end

local function write(value, indent, pad, out)
  local kind = type(value)
  if kind == "string" then
    out[#out + 1] = quote(value)
  elseif kind == "number" then
    if value ~= value or value == math.huge or value == -math.huge then
      error("json: a number that is not finite", 0)
    end
    out[#out + 1] = number_text(value)
  elseif kind == "boolean" then
    out[#out + 1] = tostring(value)
  elseif kind == "table" then
    local keys, list = {}, value[1] ~= nil or getmetatable(value) == List
    for key in pairs(value) do
      if not list and type(key) ~= "string" then
        error("json: a map's keys must be strings, got a " .. type(key), 0)
      end
      keys[#keys + 1] = key
    end
    if list and not ordered.is_list(value) then error("json: a table with list and map entries", 0) end
    table.sort(keys)
    local inner = pad .. (" "):rep(indent)
    local gap, last = indent > 0 and "\n" .. inner or "", indent > 0 and "\n" .. pad or ""
    out[#out + 1] = list and "[" or "{"
    for i, key in ipairs(keys) do
      out[#out + 1] = (i > 1 and (indent > 0 and "," or ", ") or "") .. gap
      if not list then out[#out + 1] = quote(key) .. ": " end
      write(value[key], indent, inner, out)
    end
    if #keys > 0 then out[#out + 1] = last end
    out[#out + 1] = list and "]" or "}"
  else
    error("json: cannot write a " .. kind, 0)
  end
end

--- Returns the text of a value made of maps, lists, strings, finite numbers and booleans. An empty
--- table is written as `{}`.
---@param indent integer? spaces for each level; 0 (default): one line
---@return string
function M.encode(value, indent)
  local out = {}
  write(value, indent or 0, "", out)
  return table.concat(out)
end

local function utf8(code)
  if code < 0x80 then return string.char(code) end
  if code < 0x800 then return string.char(0xC0 + math.floor(code / 64), 0x80 + code % 64) end
  if code < 0x10000 then
    return string.char(0xE0 + math.floor(code / 4096), 0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
  end
  return string.char(0xF0 + math.floor(code / 262144), 0x80 + math.floor(code / 4096) % 64,
    0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
end

local UNESCAPES = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", ['"'] = '"', ["\\"] = "\\",
  ["/"] = "/" }

local function fail(text, at, what)
  local _, line = text:sub(1, at):gsub("\n", "")
  error(("json: %s at line %d"):format(what, line + 1), 0)
end

local QUOTE, COMMA, COLON = ('",:'):byte(1, 3)

local function read_string(text, at)
  local stop = text:find('["\\]', at + 1)
  if stop and text:byte(stop) == QUOTE then return text:sub(at + 1, stop - 1), stop + 1 end -- the common case
  local parts, from = {}, at + 1
  while true do
    stop = text:find('["\\]', from)
    if not stop then fail(text, at, "a string without its end") end
    parts[#parts + 1] = text:sub(from, stop - 1)
    if text:sub(stop, stop) == '"' then return table.concat(parts), stop + 1 end
    local c = text:sub(stop + 1, stop + 1)
    if c == "u" then
      local code = tonumber(text:match("^%x%x%x%x", stop + 2) or "", 16)
      if not code then fail(text, stop, "a bad \\u escape") end
      from = stop + 6
      if code >= 0xD800 and code < 0xDC00 then  -- the first half of a pair
        local low = tonumber(text:match("^\\u(%x%x%x%x)", from) or "", 16)
        if not low or low < 0xDC00 or low > 0xDFFF then fail(text, stop, "half of a surrogate pair") end
        code, from = 0x10000 + (code - 0xD800) * 1024 + (low - 0xDC00), from + 6
      elseif code >= 0xDC00 and code < 0xE000 then
        fail(text, stop, "half of a surrogate pair")
      end
      parts[#parts + 1] = utf8(code)
    elseif UNESCAPES[c] then
      parts[#parts + 1], from = UNESCAPES[c], stop + 2
    else
      fail(text, stop, "a bad escape")
    end
  end
end

-- JSON's numbers; tonumber takes others, too.
local function number_of(word)
  local rest = word:match("^%-?0(.*)$") or word:match("^%-?[1-9]%d*(.*)$")
  rest = rest and rest:gsub("^%.%d+", "")
  return (rest == "" or rest and rest:find("^[eE][+-]?%d+$")) and tonumber(word)
end

-- What Python writes where JSON has no number.
local NO_NUMBERS = { NaN = 0 / 0, Infinity = 1 / 0, ["-Infinity"] = -1 / 0 }

-- Whether a number is the one that the word says: above 2^53 a double leaves integers out.
local function is_exact(word, number)
  return #word < 16 or not word:find("^%-?%d+$") or ("%.0f"):format(number) == word
end

local MAX_DEPTH = 200
local read

local function skip(text, at)
  local c = text:byte(at)
  if c and c > 32 then return at end
  return text:find("[^ \t\r\n]", at) or #text + 1
end

local function read_items(text, at, depth, close, item)
  local last = close:byte()
  at = skip(text, at + 1)
  if text:byte(at) == last then return at + 1 end
  while true do
    at = skip(text, item(at, depth))
    local c = text:byte(at)
    if c == last then return at + 1 end
    if c ~= COMMA then fail(text, at, ("expected ',' or '%s'"):format(close)) end
    at = skip(text, at + 1)
  end
end

function read(text, at, depth, exact)
  if depth > MAX_DEPTH then fail(text, at, "nested too deep") end
  local c = text:sub(at, at)
  if c == '"' then return read_string(text, at) end
  local result = {}
  if c == "{" then
    at = read_items(text, at, depth, "}", function(from)
      if text:byte(from) ~= QUOTE then fail(text, from, "expected a key") end
      local key, stop = read_string(text, from)
      stop = skip(text, stop)
      if text:byte(stop) ~= COLON then fail(text, stop, "expected ':'") end
      result[key], stop = read(text, skip(text, stop + 1), depth + 1, exact)
      return stop
    end)
    return result, at
  elseif c == "[" then
    local n = 0
    at = read_items(text, at, depth, "]", function(from)
      n = n + 1
      local stop
      result[n], stop = read(text, from, depth + 1, exact)
      return stop
    end)
    return result, at
  end
  local word = text:match("^[%w%.%+%-]+", at)
  if word and NO_NUMBERS[word] then return NO_NUMBERS[word], at + #word end
  if word == "true" then return true, at + 4 end
  if word == "false" then return false, at + 5 end
  if word == "null" then return nil, at + 4 end
  local number = word and number_of(word)
  if not number then fail(text, at, "expected a value") end
  if number == math.huge or number == -math.huge then
    fail(text, at, "a number beyond 1.8e308")
  end
  if exact and not is_exact(word, number) then
    fail(text, at, ("%s, an integer that Lua's numbers do not hold exactly; write it as a text"):format(word))
  end
  return number, at + #word
end

--- Returns the value of `text` (null becomes nil), or nil and the reason. Reads NaN, Infinity and
--- -Infinity, which Python's json writes.
---@param text string
---@param exact boolean? true: an integer that a double does not hold is an error
function M.decode(text, exact)
  local ok, value, at = pcall(function()
    local from = skip(text, 1)
    return read(text, from, 0, exact)
  end)
  if not ok and text:find("^version https://git%-lfs") then
    value = "json: it is a Git LFS pointer, not the file that it stands for; `git lfs pull` fetches that"
  end
  if not ok then return nil, value end
  if skip(text, at) <= #text then return nil, "json: text after the value" end
  return value
end

return M
