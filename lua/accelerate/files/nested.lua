--- Nested values as flat lists of tables and tensors, for files; and back.
---
--- The lists name what occurs twice once, and so keep shared tables, shared tensors and circles; no
--- step is recursive, so that depth costs nothing.
local core = require "accelerate.core"
local nested = require "accelerate.utils.nested"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local python = require "accelerate.utils.python"

local fail = options.fail

local M = {}

---@class accelerate.files.Reference stands for a table or a tensor
---@field table integer?
---@field tensor integer?

---@class accelerate.files.Flat
---@field value any a number, string, boolean or reference
---@field tables { list: any[]?, keys: any[]?, values: any[]?, ordered: boolean?, nones: any[]?,
---  kind: string? }[] of such values; nones and kind: what accelerate.utils.python notes
---@field tensors accelerate.Tensor[]
---@field names string[] where each tensor was met first: "optimizer.state.0.exp_avg"

local LEAVES = { string = true, number = true, boolean = true }
local EXPECTED = "expected a tensor, a number, a string, a boolean or a plain table"

local function path_of(parents, at, key)
  local keys = { key }
  while parents[at] do
    keys[#keys + 1] = parents[at].key
    at = parents[at].table
  end
  local path, first = "", math.min(#keys, 40)
  if first < #keys then path = "…" end
  for i = first, 1, -1 do path = nested.extend(path, keys[i]) end
  return path == "" and "the value" or path
end

local function name_of(parents, at, key)
  local keys = { tostring(key) }
  while parents[at] and #keys < 40 do
    table.insert(keys, 1, tostring(parents[at].key))
    at = parents[at].table
  end
  return table.concat(keys, ".")
end

local function refuse(where, parents, at, key, value)
  local hint = ""
  if type(value) == "table" and type(value.state_dict) == "function" then
    hint = "; give what its state_dict() returns"
  end
  fail("%s: %s is %s; %s%s", where, path_of(parents, at, key), nested.kind_of(value), EXPECTED, hint)
end

-- Adds what is noted of a table to its entry. A key that got a value since has no None any more.
local function add_note(entry, t, note)
  local found = {}
  for _, key in ipairs(ordered.sorted_keys(note.nones or found)) do
    local value, number = rawget(t, key), type(key) == "number"
    if entry.list and value == false or not entry.list and not number and value == nil then
      found[#found + 1] = key
    end
  end
  entry.nones, entry.kind = #found > 0 and found or nil, note.kind
  return entry
end

-- Whether a table is a list: also of PyTorch's entries.
local function is_list(t, note)
  if ordered.is_ordered(t) or not ordered.is_list(t) then return false end
  for key in next, note and note.nones or {} do
    if type(key) ~= "number" then return false end
  end
  return true
end

-- The lists of a table: its references.
local function entry_of(t, refer, at, where, parents)
  local note = python.of(t)
  if is_list(t, note) then
    local list = {}
    for i = 1, #t do list[i] = refer(t[i], at, i, false) end
    return note and add_note({ list = list }, t, note) or { list = list }
  end
  for key in next, t do
    if not LEAVES[type(key)] then
      fail("%s: %s has a %s as key; keys must be strings, numbers or booleans", where,
        parents[at] and path_of(parents, parents[at].table, parents[at].key) or "the value",
        core.is_tensor(key) and "tensor" or type(key))
    end
  end
  local keys, values = ordered.keys(t), {}
  for i, key in ipairs(keys) do values[i] = refer(rawget(t, key), at, key) end
  local entry = { keys = keys, values = values, ordered = ordered.is_ordered(t) or nil }
  return note and add_note(entry, t, note) or entry
end

--- Returns the tables and tensors of a value as lists. Raises for what is no data, and names where
--- it is, unless `leave_out` is given: it is called with the place of each such value and the
--- value, which is then taken out of the table; false takes its place in a list. It raises for the
--- whole.
---@param value any
---@param where string what messages begin with
---@param leave_out? fun(path: string, value: any, is_whole: boolean)
---@return accelerate.files.Flat
function M.flatten(value, where, leave_out)
  local flat = { tables = {}, tensors = {}, names = {} }
  local queue, references, parents = {}, {}, {}
  local function refer(item, at, key, blank)
    if LEAVES[type(item)] then return item end
    local known = references[item]
    if known then return known end
    if core.is_tensor(item) then
      local n = #flat.tensors + 1
      flat.tensors[n], flat.names[n] = item, key == nil and "value" or name_of(parents, at, key)
      known = { tensor = n }
    elseif nested.is_container(item) then
      queue[#queue + 1] = item
      if at then parents[#queue] = { table = at, key = key } end
      known = { table = #queue }
    elseif leave_out then
      leave_out(path_of(parents, at, key), item, at == nil)
      queue[at][key] = blank
      return blank
    else
      refuse(where, parents, at, key, item)
    end
    references[item] = known
    return known
  end
  if value == nil then fail("%s: the value is nil; %s", where, EXPECTED) end
  flat.value = refer(value)
  local at = 1
  while queue[at] do
    flat.tables[at] = entry_of(queue[at], refer, at, where, parents)
    at = at + 1
  end
  return flat
end

return M
