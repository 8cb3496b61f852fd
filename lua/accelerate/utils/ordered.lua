--- Order that does not depend on the process. `pairs` walks a table in an order that differs
--- between processes, even for string keys, so every walk over a table whose keys are not 1..n goes
--- through here.
---
---   local d = ordered.new()           -- remembers the order in which keys are added
---   d.b = 1; d.a = 2                  -- (Lua does not promise the order of `d.b, d.a = 1, 2`)
---   for key, value in ordered.pairs(d) do … end           -- b, a
---   for key, value in ordered.pairs({ b = 1, a = 2 }) do … end   -- a, b: plain tables are
---     walked in sorted order

local ordered = {}

local RANK = { number = 1, string = 2, boolean = 3 }

local function before(a, b)
  local ta, tb = type(a), type(b)
  if ta ~= tb then return RANK[ta] < RANK[tb] end
  if ta == "boolean" then return not a and b end
  return a < b
end

--- The keys of a plain table: numbers ascending, then strings, then booleans. Raises on keys of
--- other types, which have no order.
---@param t table
---@return any[] keys
function ordered.sorted_keys(t)
  local keys = {}
  for key in next, t do
    if not RANK[type(key)] then
      require("accelerate.utils.options").fail(
        "a table with a %s as key has no order: keys must be numbers, strings or booleans", type(key))
    end
    keys[#keys + 1] = key
  end
  table.sort(keys, before)
  return keys
end

local function is_ordered(t)
  local meta = getmetatable(t)
  return type(meta) == "table" and type(rawget(meta, "__order")) == "table"
end

--- Returns whether `t` is a table from ordered.new.
---@param t table
---@return boolean
function ordered.is_ordered(t) return is_ordered(t) end

--- An empty table that remembers the order in which its keys are added. A key set to nil and added
--- again moves to the end; one that is given another value keeps its place.
---@return table
function ordered.new()
  local keys, place = {}, {}
  local meta = { __order = keys }
  function meta.__newindex(t, key, value)  -- only called for keys without a value
    if value == nil then return end
    local at = place[key]
    if at then  -- it was removed before
      table.remove(keys, at)
      for i = at, #keys do place[keys[i]] = i end
    end
    keys[#keys + 1] = key
    place[key] = #keys
    rawset(t, key, value)
  end
  return setmetatable({}, meta)
end

--- The keys of `t` in order: of addition for tables from ordered.new, sorted for others.
---@param t table
---@return any[] keys a fresh list
function ordered.keys(t)
  if not is_ordered(t) then return ordered.sorted_keys(t) end
  local keys = {}
  for _, key in ipairs(getmetatable(t).__order) do
    if rawget(t, key) ~= nil then keys[#keys + 1] = key end
  end
  return keys
end

--- Iterates over key, value in the order of ordered.keys. The table may be changed while it is
--- walked; keys added meanwhile are not visited, removed ones are skipped.
---@param t table
---@return fun(): any, any
function ordered.pairs(t)
  local keys, i = ordered.keys(t), 0
  return function()
    while true do
      i = i + 1
      local key = keys[i]
      if key == nil then return nil end
      local value = rawget(t, key)
      if value ~= nil then return key, value end
    end
  end
end

--- The number of keys that have a value.
---@param t table
---@return integer
function ordered.count(t)
  local n = 0
  for _ in next, t do n = n + 1 end
  return n
end

--- Returns whether `t` is a list: its keys are exactly 1..n (an empty table is a list).
---@param t table
---@return boolean
function ordered.is_list(t)
  local n, most = 0, 0 -- not #t, which with a hole may be any border
  for key in next, t do
    if type(key) ~= "number" or key < 1 or key % 1 ~= 0 then return false end
    n, most = n + 1, math.max(most, key)
  end
  return n == most
end

return ordered
