--- `filter` and `map` of tables: functions over rows, or over batches of rows as columns.
local derive = require "accelerate.data.dataset_methods"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail, show = options.fail, options.show

--- Adds the methods to the class. `parts`: private functions of table.lua.
return function(Table, parts)
  local make, rows_in, value_at, as_list = parts.make, parts.rows_in, parts.value_at, parts.as_list

  local FILTER = {
    with_indices = { "boolean", default = false }, batched = { "boolean", default = false },
    batch_size = { "integer", default = 1000, min = 1 },
  }

  -- Returns rows from..to as a table of lists.
  function Table:_rows_of(from, to, names)
    local batch = {}
    for _, name in ipairs(names) do
      local list, values = {}, self._columns[name]
      for i = from, to do list[i - from + 1] = value_at(values, self:_place(i)) end
      batch[name] = list
    end
    return batch
  end

  --- Returns the rows for which fn(row) is true. If batched, fn gets a table of lists and returns a
  --- list of booleans.
  ---@param fn function
  ---@param opts? { with_indices: boolean?, batched: boolean?, batch_size: integer? }
  function Table:filter(fn, opts)
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

  --- Returns a dataset with new and changed columns. fn gets a row and returns a table of values.
  --- If batched, it gets a table of lists, for batch_size rows at a time, and returns a table of
  --- lists or tensors. Their number of rows may differ if all former columns are removed or
  --- returned anew. Columns that fn does not return stay. If fn returns nil, nothing changes.
  ---@param fn function
  ---@param opts? { batched: boolean?, batch_size: integer?, with_indices: boolean?, remove_columns:
  ---  string[]|string|nil, input_columns: string[]|string|nil } input_columns: pass fn the values
  ---  of these columns, in order, instead of a table
  ---@return accelerate.TableDataset
  function Table:map(fn, opts)
    derive.check_function("map", fn)
    local o = options.check("map", opts, MAP)
    local kept = o.remove_columns and self:_without("map", o.remove_columns) or self.column_names
    local inputs = o.input_columns and as_list("map", o.input_columns)
    for _, name in ipairs(inputs or {}) do self:_check_column("map", name) end
    local size = o.batched and o.batch_size or 1
    local made, given, count = {}, nil, 0
    for from = 1, self.num_rows, size do
      local to = math.min(from + size - 1, self.num_rows)
      local arguments
      if o.batched then
        local batch = self:_rows_of(from, to, self.column_names)
        arguments = inputs and {} or { batch }
        for k, name in ipairs(inputs or {}) do arguments[k] = batch[name] end
        if o.with_indices then arguments[#arguments + 1] = lists.range(from, to) end
      else
        local row = self:_plain(from)
        arguments = inputs and {} or { row }
        for k, name in ipairs(inputs or {}) do arguments[k] = row[name] end
        if o.with_indices then arguments[#arguments + 1] = from end
      end
      local result = fn(unpack(arguments))
      if result ~= nil and (type(result) ~= "table" or getmetatable(result)) then
        fail("map: the function must give a table of columns, or nil, got %s for row %d", show(result), from)
      end
      local names = result and ordered.sorted_keys(result)
      if given and names and table.concat(names, "\0") ~= table.concat(given, "\0")
        or (given == false) ~= (names == nil) and from > 1 then
        fail("map: the function gave the columns %s for row %d, and %s before", names
          and table.concat(names, ", ") or "none", from,
          given and table.concat(given, ", ") or "none")
      end
      given = names or false
      if names then count = count + self:_append(made, result, names, kept, from, to, o.batched) end
    end
    if not given then return o.remove_columns and self:remove_columns(o.remove_columns) or self end
    return make(made, new_names(kept, given), count, nil, { format = self.format })
  end

  -- Appends the result of map's function for rows from..to to the columns in `made`. Returns the
  -- number of rows appended.
  function Table:_append(made, result, names, kept, from, to, batched)
    local rows = to - from + 1
    if not batched then
      local one = {}
      for _, name in ipairs(names) do one[name] = { result[name] } end
      result = one
    end
    local count
    for _, name in ipairs(names) do
      if type(name) ~= "string" then fail("map: columns are named by strings, got %s", show(name)) end
      local n = rows_in(result[name])
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
          column[#column + 1] = value_at(values, j)
        else
          column[#column + 1] = value_at(self._columns[name], self:_place(from + j - 1))
        end
      end
    end
    return count
  end
end
