--- The caller's values as values of templates: copies, so that no template changes them.
local core = require "accelerate.core"
local numbers = require "accelerate.tokenizers.chat.numbers"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local values = require "accelerate.tokenizers.chat.values"

local M = {}

local MOST_DEPTH = 100

-- The order of the keys in what Transformers' functions and guides write; others follow, sorted.
local ORDER = { "role", "content", "reasoning_content", "tool_calls", "tool_call_id", "id", "type",
  "function", "name", "title", "enum", "items", "description", "text", "arguments", "parameters",
  "properties", "required", "return" }
local RANK = {}
for i, name in ipairs(ORDER) do RANK[name] = i end

-- The variables whose maps have that order.
local RANKED = { messages = true, tools = true, documents = true }

-- Empty tables that are lists. Others are maps.
local LISTS = { required = true, enum = true, tool_calls = true, content = true, anyOf = true, allOf = true,
  oneOf = true }

-- The keys of a map in order; `rank`: the places of some of them, nil for none.
local function keys_of(map, rank)
  local keys = ordered.keys(map)
  if not rank or ordered.is_ordered(map) then return keys end
  local place = {}
  for i, key in ipairs(keys) do place[key] = i end
  table.sort(keys, function(a, b)
    local x, y = rank[a] or math.huge, rank[b] or math.huge
    if x ~= y then return x < y end
    return place[a] < place[b]
  end)
  return keys
end

-- The order inside of an entry. The arguments of a function have names of their own: they come as
-- its `required` has them.
local function rank_inside(key, parent, rank)
  if not rank or key == "arguments" then return nil end
  if key ~= "properties" or type(parent.required) ~= "table" then return RANK end
  local places = {}
  for i, name in ipairs(parent.required) do places[name] = i end
  return places
end

local convert

local function convert_map(where, value, rank, depth)
  local map = values.map()
  for _, key in ipairs(keys_of(value, rank)) do
    if type(key) ~= "string" then
      options.fail("%s: a table has list and map entries, or a list has holes", where)
    end
    local entry = value[key]
    local empty = LISTS[key] and type(entry) == "table" and next(entry) == nil
    values.put(map, core._utf8_repair(key), empty and values.list {}
      or convert(where .. "." .. key, entry, rank_inside(key, value, rank), depth + 1))
  end
  return map
end

local function convert_table(where, value, rank, depth)
  if depth > MOST_DEPTH then options.fail("%s: nested too deep, or inside of itself", where) end
  local is_list = value[1] ~= nil or require("accelerate.utils.json").is_list(value)
  if not is_list or not ordered.is_list(value) then return convert_map(where, value, rank, depth) end
  local list = {}
  for i = 1, #value do list[i] = convert(("%s[%d]"):format(where, i), value[i], rank, depth + 1) end
  return values.list(list)
end

function convert(where, value, rank, depth)
  local kind = type(value)
  if kind == "boolean" then return value end
  if kind == "string" then return core._utf8_repair(value) end
  if kind == "number" then
    local whole = value % 1 == 0 and math.abs(value) < 2 ^ 53
    return whole and value or numbers.float(value)
  end
  if kind == "table" then return convert_table(where, value, rank, depth) end
  options.fail("%s: a template takes texts, numbers, booleans and tables of them, got %s", where,
    options.show(value))
end

--- Returns the caller's variables as values of templates. `tools` and `documents` are none where
--- they are not given, as in Transformers; the keys of messages, tools and documents come in the
--- order that Transformers writes them in.
---@param where string for messages
---@param variables table<string, any>
---@return table<string, any>
function M.all(where, variables)
  local out = { tools = values.NONE, documents = values.NONE }
  for name, value in ordered.pairs(variables) do
    out[name] = convert(where .. ": " .. tostring(name), value, RANKED[name] and RANK or nil, 0)
  end
  return out
end

return M
