--- Turns what trackers get into plain Lua values: tensors of one element become numbers, names are
--- sorted.
local core = require "accelerate.core"
local json = require "accelerate.utils.json"
local notice = require "accelerate.messages.notice"
local ordered = require "accelerate.utils.ordered"

local M = {}

--- Returns a tensor of one element as a number or boolean; nil for a larger tensor.
function M.item(x)
  if x:numel() ~= 1 then return nil end
  local ok, value = pcall(x.item, x)
  if ok then return value end
  return x:detach():to("float64"):item()  -- an int64 above 2^53
end

--- Returns whether all keys of a table are texts, numbers or booleans, which can be sorted.
local function has_order(map)
  for key in next, map do
    local kind = type(key)
    if kind ~= "string" and kind ~= "number" and kind ~= "boolean" then return false end
  end
  return true
end

--- Returns a value as a number, text, boolean or map of numbers; nil for other values.
---@param value any
---@return number|string|boolean|table<string, number>|nil
function M.plain(value)
  if core.is_tensor(value) then return M.item(value) end
  local kind = type(value)
  if kind == "number" or kind == "string" or kind == "boolean" then return value end
  if kind == "cdata" then return tonumber(value) end
  if kind ~= "table" or getmetatable(value) ~= nil and not ordered.is_ordered(value)
    or not has_order(value) then
    return nil
  end
  local map = {}
  for key, entry in ordered.pairs(value) do
    local number = type(entry) == "table" and nil or M.plain(entry)
    if type(number) == "boolean" then number = number and 1 or 0 end
    if type(number) ~= "number" then return nil end
    map[tostring(key)] = number
  end
  if next(map) == nil then return nil end
  return map
end

--- Returns values in the order of their names. Leaves out values that cannot be stored, with one
--- notice for each name.
---@param who string the tracker's name
---@param values table<string, any>
---@return { [1]: string, [2]: any }[]
function M.read(who, values)
  local list = {}
  for _, name in ipairs(ordered.keys(values)) do
    local value = M.plain(values[name])
    if value == nil then
      notice.here_once("%s: the value of '%s' is no number, text, map of numbers or tensor of one " ..
        "element, and is left out", who, tostring(name))
    else
      list[#list + 1] = { tostring(name), value }
    end
  end
  return list
end

local function settings(value)
  if core.is_tensor(value) then
    if value:numel() == 1 then return M.item(value) end
    return settings(value:detach():totable())
  end
  local kind = type(value)
  if kind == "number" or kind == "string" or kind == "boolean" then return value end
  if kind ~= "table" or getmetatable(value) ~= nil and not ordered.is_ordered(value)
    or not has_order(value) then
    return tostring(value)
  end
  local copy = {}
  if ordered.is_list(value) then
    for i, entry in ipairs(value) do copy[i] = settings(entry) end
    return copy
  end
  for _, key in ipairs(ordered.keys(value)) do copy[tostring(key)] = settings(value[key]) end
  return copy
end

--- Returns the settings of a run as plain nested values (lists and maps); other values become text.
---@param config table<string, any>
M.settings = settings

--- Returns settings without nesting, in the order of their names: `optimizer = { lr = 1 }` becomes
--- "optimizer/lr"; lists become JSON text.
---@return { [1]: string, [2]: number|string|boolean }[]
function M.flat(config)
  local list = {}
  local function walk(prefix, value)
    if type(value) ~= "table" then list[#list + 1] = { prefix, value }
    elseif ordered.is_list(value) and #value > 0 then list[#list + 1] = { prefix, M.json(value) }
    else
      for _, key in ipairs(ordered.keys(value)) do
        walk(prefix == "" and key or prefix .. "/" .. key, value[key])
      end
    end
  end
  walk("", settings(config))
  return list
end

local function finite(value)
  if type(value) == "number" then
    if value ~= value then return "NaN" end
    if value == math.huge then return "Infinity" end
    if value == -math.huge then return "-Infinity" end
  elseif type(value) == "table" then
    local copy = {}
    -- order does not matter: keys are distinct
    for key, entry in next, value do copy[key] = finite(entry) end
    return copy
  end
  return value
end

--- Encodes a value as one line of JSON. NaN and the infinities, which JSON lacks, become the texts
--- "NaN", "Infinity" and "-Infinity".
---@return string
function M.json(value) return (json.encode(finite(value), 0)) end

return M
