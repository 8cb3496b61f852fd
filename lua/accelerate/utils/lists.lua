--- Plain tables: lists, shapes among them, and tables in tables.
local M = {}

--- Returns whether two lists, shapes say, have the same entries.
---@param a any[]
---@param b any[]
---@return boolean
function M.same(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return true
end

--- Returns the shape of a tensor, or a list of sizes, as messages show it: "[2, 3]".
---@param x accelerate.Tensor|integer[]
---@return string
function M.shape_text(x) return ("[%s]"):format(table.concat(x.shape or x, ", ")) end

--- Returns the integers from `from` to `to`.
---@param from integer
---@param to integer
---@return integer[]
function M.range(from, to)
  local list = {}
  for i = from, to do list[#list + 1] = i end
  return list
end

--- Returns a table with true under each entry.
---@param list any[]
---@return table<any, true>
function M.set(list)
  local set = {}
  for _, value in ipairs(list) do set[value] = true end
  return set
end

--- Returns what fn makes of each entry.
---@param list any[]
---@param fn fun(value: any): any
---@return any[]
function M.map(list, fn)
  local out = {}
  for i, value in ipairs(list) do out[i] = fn(value) end
  return out
end

--- Returns the product of numbers: of a shape, how many elements it has.
---@param list number[]
---@return number
function M.product(list)
  local product = 1
  for _, n in ipairs(list) do product = product * n end
  return product
end

--- Returns the entries in lists, one for each key, in the order in which the keys first appear.
---@param list any[]
---@param key_of fun(value: any): string
---@return any[][]
function M.grouped(list, key_of)
  local groups, by_key = {}, {}
  for _, value in ipairs(list) do
    local key = key_of(value)
    if not by_key[key] then
      by_key[key] = {}
      groups[#groups + 1] = by_key[key]
    end
    table.insert(by_key[key], value)
  end
  return groups
end

--- Returns the list that a value is or walks: a plain table itself; the entries of an object with
--- __ipairs, a ParameterList say; what a function gives until nil, { name, value } where it gives
--- two. nil for other values.
---@param value any
---@return any[]?
function M.walked(value)
  if type(value) == "table" then
    local meta = getmetatable(value)
    if meta == nil then return value end
    local walk, list = type(meta) == "table" and meta.__ipairs, {}
    if not walk then return nil end
    for i, item in walk(value) do list[i] = item end
    return list
  elseif type(value) == "function" then
    local list = {}
    for first, second in value do list[#list + 1] = second ~= nil and { first, second } or first end
    return list
  end
end

--- Returns what a plain table has that a list has not, "the key 'lr'" or "no entry 2": what reads
--- it as a list would pass over it. nil where its entries are 1 to n and no others.
---@param list table
---@return string?
function M.fault(list)
  local n, most = 0, 0
  for key in next, list do
    if type(key) ~= "number" or key < 1 or key % 1 ~= 0 then
      return ("the key %s"):format(type(key) == "string" and ("'%s'"):format(key) or tostring(key))
    end
    n, most = n + 1, math.max(most, key)
  end
  for i = 1, n < most and most or 0 do
    if rawget(list, i) == nil then return ("no entry %d"):format(i) end
  end
end

local DEEPEST = 1000

local function copied(value, depth)
  if type(value) ~= "table" then return value end
  if depth > DEEPEST then
    require("accelerate.utils.options").fail("tables inside each other more than %d times, or a table " ..
      "inside itself, cannot be copied", DEEPEST)
  end
  local copy = {}
  for key, item in next, value do copy[key] = copied(item, depth + 1) end
  return copy
end

--- Returns a copy of tables in tables; other values, tensors say, are those of the original. Raises
--- for a table inside itself.
---@param value any
---@return any
function M.copied(value) return copied(value, 1) end

--- Splits a line at its tabs.
---@param line string
---@return string[] fields one more than there are tabs
function M.fields(line)
  local fields = {}
  for field in (line .. "\t"):gmatch "([^\t]*)\t" do fields[#fields + 1] = field end
  return fields
end

return M
