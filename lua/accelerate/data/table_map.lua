--- `filter` and `map` of tables: functions over rows, or over batches of rows as columns.
local derive = require "accelerate.data.dataset_methods"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail, show = options.fail, options.show

local parts -- private functions of table.lua

local M = {} -- methods of tables

local FILTER = {
  with_indices = { "boolean", default = false }, batched = { "boolean", default = false },
  batch_size = { "integer", default = 1000, min = 1 },
}

-- Returns rows from..to as a table of lists.
function M:_rows_of(from, to, names)
  local batch = {}
  for _, name in ipairs(names) do
    local list, values = {}, self._columns[name]
    for i = from, to do list[i - from + 1] = parts.value_at(values, self:_place(i)) end
    batch[name] = list
  end
  return batch
end

--- Returns the rows for which fn(row) is true. If batched, fn gets a table of lists and returns a
--- list of booleans.
---@param fn function
---@param opts? { with_indices: boolean?, batched: boolean?, batch_size: integer? }
function M:filter(fn, opts)
  derive.check_function("filter", fn)
  local o, kept = options.check("filter", opts, FILTER), {}
  if not o.batched then
    for i = 1, self.num_rows do
      if fn(self:_plain(i), o.with_indices and i or nil) then kept[#kept + 1] = i end
    end
    return self:select(kept)
  end
  for from = 1, self.num_rows, o.batch_size do
    local to = math.min(from + o.batch_size - 1, self.num_rows)
    local keep = fn(self:_rows_of(from, to, self.column_names), o.with_indices and lists.range(from, to)
      or nil)
    if type(keep) ~= "table" or #keep ~= to - from + 1 then
      fail("filter: the function must give a list of %d booleans, got %s", to - from + 1,
        type(keep) == "table" and #keep .. " values" or
        show(keep))
    end
    for j = 1, #keep do
      if keep[j] then kept[#kept + 1] = from + j - 1 end
    end
  end
  return self:select(kept)
end

local MAP = {
  batched = { "boolean", default = false }, batch_size = { "integer", default = 1000, min = 1 },
  with_indices = { "boolean", default = false }, remove_columns = { "list|string", optional = true },
  input_columns = { "list|string", optional = true },
}

local function new_names(old, given)
  local names, known = {}, {}
  for _, name in ipairs(old) do
    names[#names + 1] = name
    known[name] = true
  end
  for _, name in ipairs(given) do
    if not known[name] then names[#names + 1] = name end
  end
  return names
end

-- Arguments of map's function for rows from..to: their columns where it is batched, else one row's
-- values.
local function arguments_of(self, o, inputs, from, to)
  local values = o.batched and self:_rows_of(from, to, self.column_names) or self:_plain(from)
  local arguments = inputs and {} or { values }
  for k, name in ipairs(inputs or {}) do arguments[k] = values[name] end
  if o.with_indices then arguments[#arguments + 1] = o.batched and lists.range(from, to) or from end
  return arguments
end

-- The columns that a result of map's function has, in order, or false for nil.  `before`: those of
-- the rows before, which must be alike; nil at the first row.
local function names_of(result, before, from)
  if result ~= nil and (type(result) ~= "table" or getmetatable(result)) then
    fail("map: the function must give a table of columns, or nil, got %s for row %d", show(result), from)
  end
  local names = result and ordered.sorted_keys(result) or false
  local function shown(list) return list and table.concat(list, ", ") or "none" end
  if before and names and table.concat(names, "\0") ~= table.concat(before, "\0")
    or before ~= nil and not before ~= not names then
    fail("map: the function gave the columns %s for row %d, and %s before", shown(names), from, shown(before))
  end
  return names
end

--- Returns a dataset with new and changed columns. fn gets a row and returns a table of values.
--- If batched, it gets a table of lists, for batch_size rows at a time, and returns a table of
--- lists or tensors. Their number of rows may differ if all former columns are removed or
--- returned anew. Columns that fn does not return stay. If fn returns nil, nothing changes.
---@param fn function
---@param opts? { batched: boolean?, batch_size: integer?, with_indices: boolean?, remove_columns:
---  string[]|string|nil, input_columns: string[]|string|nil } input_columns: pass fn the values
---  of these columns, in order, instead of a table
---@return accelerate.TableDataset
function M:map(fn, opts)
  derive.check_function("map", fn)
  local o = options.check("map", opts, MAP)
  local kept = o.remove_columns and self:_without("map", o.remove_columns) or self.column_names
  local inputs = o.input_columns and parts.as_list("map", o.input_columns)
  for _, name in ipairs(inputs or {}) do self:_check_column("map", name) end
  local size = o.batched and o.batch_size or 1
  local made, given, count = {}, nil, 0
  for from = 1, self.num_rows, size do
    local to = math.min(from + size - 1, self.num_rows)
    local result = fn(unpack(arguments_of(self, o, inputs, from, to)))
    local names = names_of(result, given, from)
    given = names
    if names then count = count + self:_append(made, result, names, kept, from, to, o.batched) end
  end
  if not given then return o.remove_columns and self:remove_columns(o.remove_columns) or self end
  return parts.make(made, new_names(kept, given), count, nil, { format = self.format })
end

-- The number of rows that a batched result of map's function has; each column has as many. Nil for
-- a result without columns.
local function rows_of_result(result, names)
  local count
  for _, name in ipairs(names) do
    if type(name) ~= "string" then fail("map: columns are named by strings, got %s", show(name)) end
    local n = parts.rows_in(result[name])
    if not n then
      fail("map: with batched = true column '%s' must be a list or a tensor, got %s", name,
        show(result[name]))
    end
    if n ~= (count or n) then
      fail("map: the columns of one batch must be equally long; '%s' has %d rows, another one %d", name, n,
        count)
    end
    count = n
  end
  return count
end

-- Appends the result of map's function for rows from..to to the columns in `made`. Returns the
-- number of rows appended.
function M:_append(made, result, names, kept, from, to, batched)
  local rows = to - from + 1
  if not batched then
    local one = {}
    for _, name in ipairs(names) do one[name] = { result[name] } end
    result = one
  end
  local count = rows_of_result(result, names) or rows
  for _, name in ipairs(kept) do
    if result[name] == nil and count ~= rows then
      fail("map: the function gave %d rows for %d, but column '%s' stays; remove it (remove_columns) " ..
        "or give it anew", count, rows, name)
    end
  end
  for _, name in ipairs(new_names(kept, names)) do
    local column, values = made[name] or {}, result[name]
    made[name] = column
    for j = 1, count do
      if values then
        column[#column + 1] = parts.value_at(values, j)
      else
        column[#column + 1] = parts.value_at(self._columns[name], self:_place(from + j - 1))
      end
    end
  end
  return count
end

--- Adds the methods to the class. `given`: private functions of table.lua.
return function(Table, given)
  parts = given
  for name, method in next, M do Table[name] = method end
end
