--- YAML 1.1 as PyYAML reads it, and writing what PyYAML reads to the same values.
local core = require "accelerate.core"
local ordered = require "accelerate.utils.ordered"

local M = {}

--- What null is read as, and written for.
M.null = core._yaml_null

--- Returns the value of a YAML (or JSON) text: maps, lists, texts, numbers, booleans, and `null`.
--- Raises "name:line: what is wrong".
---@param text string
---@param name string? what messages call the text; default "yaml"
---@param json boolean? read it as JSON; default false
---@return any
---@return table<table, table<any, integer>> lines lines[t][k] is the line of entry k of the table t
function M.decode(text, name, json)
  local value, lines = core._yaml_read(name or "yaml", text, json or false)
  if value == nil then error(lines, 0) end
  return value, lines
end

-- ---- writing

-- The parts of UTF-8 that YAML allows without an escape, from the second byte on.
local function utf8_length(text, at)
  local a, b, c, d = text:byte(at, at + 3)
  local function follows(x) return x and x >= 0x80 and x < 0xC0 end
  if a >= 0xC2 and a < 0xE0 and follows(b) then return 2, (a - 0xC0) * 64 + b - 0x80 end
  if a >= 0xE0 and a < 0xF0 and follows(b) and follows(c) then
    return 3, ((a - 0xE0) * 64 + b - 0x80) * 64 + c - 0x80
  end
  if a >= 0xF0 and a < 0xF5 and follows(b) and follows(c) and follows(d) then
    return 4, (((a - 0xF0) * 64 + b - 0x80) * 64 + c - 0x80) * 64 + d - 0x80
  end
end

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t",
  ["\0"] = "\\0" }

-- The letter at `at`, as it stands in double quotes; its length; whether that is an escape.
local function letter(text, at)
  local byte = text:byte(at)
  local char = text:sub(at, at)
  if ESCAPES[char] then return ESCAPES[char], 1, byte < 32 end
  if byte >= 32 and byte < 127 then return char, 1, false end
  if byte < 128 then return ("\\x%02X"):format(byte), 1, true end
  local n, code = utf8_length(text, at)
  if not n or (code >= 0xD800 and code < 0xE000) or code > 0x10FFFF
    or n == 3 and code < 0x800 or n == 4 and code < 0x10000 then
    error("yaml: a text that is not UTF-8 cannot be written", 0)
  end
  if code < 0xA0 or code == 0x2028 or code == 0x2029 or code == 0xFEFF or code == 0xFFFE
    or code == 0xFFFF then
    return ("\\u%04X"):format(code), n, true
  end
  return text:sub(at, at + n - 1), n, false
end

local function quoted(text)
  local parts, at, escaped = {}, 1, false
  while at <= #text do
    local shown, n, escape = letter(text, at)
    parts[#parts + 1], at, escaped = shown, at + n, escaped or escape
  end
  if escaped then return '"' .. table.concat(parts) .. '"' end
  return "'" .. text:gsub("'", "''") .. "'"
end

local function text_of(text)
  local bare = text:find "^[%a/_][%w_%-./+@]*$" and #text > 1 and core._yaml_plain(text)
  return bare and text or quoted(text)
end

local function number_of(value)
  if value ~= value then return ".nan" end
  if value == math.huge then return ".inf" elseif value == -math.huge then return "-.inf" end
  if value % 1 == 0 and math.abs(value) < 2 ^ 53 then return ("%.0f"):format(value) end
  local text
  for digits = 14, 17 do
    text = ("%." .. digits .. "g"):format(value)
    if tonumber(text) == value then break end
  end
  -- PyYAML takes 1e-05 for a text
  return text:find(".", 1, true) and text or text:find "e" and text:gsub("e", ".0e") or text .. ".0"
end

local function scalar(value)
  local kind = type(value)
  if kind == "string" then return text_of(value) end
  if kind == "number" then return number_of(value) end
  if kind == "boolean" then return tostring(value) end
  if value == M.null then return "null" end
  error("yaml: cannot write a " .. kind, 0)
end

-- Texts before numbers before booleans, each in its order.
local function sorted_keys(map)
  local keys, rank = {}, { string = 1, number = 2, boolean = 3 }
  for key in next, map do
    if not rank[type(key)] then
      error("yaml: a key must be a text, a number or a boolean, got a " .. type(key), 0)
    end
    keys[#keys + 1] = key
  end
  table.sort(keys, function(a, b)
    local x, y = rank[type(a)], rank[type(b)]
    if x ~= y then return x < y end
    if x == 3 then return not a and b end
    return a < b
  end)
  return keys
end

local write

local function write_entry(out, head, value, pad, depth)
  if type(value) ~= "table" then
    out[#out + 1] = pad .. head .. " " .. scalar(value)
  elseif next(value) == nil then
    out[#out + 1] = pad .. head .. " {}"
  else
    out[#out + 1] = pad .. head
    write(out, value, pad .. "  ", depth + 1)
  end
end

function write(out, value, pad, depth)
  if depth > 60 then
    error("yaml: tables inside each other more than 60 times, or a table inside itself", 0)
  end
  local keys = sorted_keys(value)
  if value[1] ~= nil then
    if not ordered.is_list(value) then error("yaml: a table with list and map entries", 0) end
    for _, item in ipairs(value) do write_entry(out, "-", item, pad, depth) end
    return
  end
  for _, key in ipairs(keys) do
    local shown = scalar(key)
    if #shown > 1000 then error("yaml: a key of more than 1000 letters", 0) end
    write_entry(out, shown .. ":", value[key], pad, depth)
  end
end

--- Returns the text of a value, its keys sorted. An empty table is written as `{}`. Raises for
--- functions and other objects.
---@param value any
---@return string
function M.encode(value)
  if type(value) ~= "table" then return scalar(value) .. "\n" end
  if next(value) == nil then return "{}\n" end
  local out = {}
  write(out, value, "", 1)
  return table.concat(out, "\n") .. "\n"
end

return M
