--- Tables: datasets of named columns, with the methods of Hugging Face's `Dataset`.
---
---   local set = data.Dataset.from_table{ text = { "good", "bad" }, label = { 1, 0 } }
---   set = set:map(function(batch) return { input_ids = tokenize(batch.text) } end, { batched =
---     true })
---   set = set:shuffle{ seed = 42 }:remove_columns { "text" }
---   set:set_format "torch"
---
--- A sample is a table: column name -> value. Without a format, values are as they were passed.
--- With "torch", numbers and lists of numbers are tensors (int64 when the whole column is integral,
--- else float32). Methods return a new dataset that shares the columns; only set_format changes the
--- dataset itself.
local class = require "accelerate.utils.class"
local columnar = require "accelerate.data.columns"
local core = require "accelerate.core"
local dataset = require "accelerate.data.dataset"
local derive = require "accelerate.data.dataset_methods"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail, show = options.fail, options.show
local rows_in, value_at, torch_column =
  columnar.rows_in, columnar.value_at, columnar.torch_column

---@class accelerate.TableDataset: accelerate.Dataset
---@field column_names string[] in order
---@field num_rows integer
---@field num_columns integer
---@field format "torch"|nil
---@field [string] accelerate.Tensor|any[] a column by its name, in whatever format: a tensor, or a
---  list where its values are no numbers; a method or field of the same name comes first
local Table = class("TableDataset", dataset.Dataset)
class.optional(Table, "format")

-- A column is a list of values or a tensor (data/columns.lua). `_rows` maps rows to places in the
-- columns; nil: place i is row i.

-- Whether the class or one of its bases has a member.
local function has_member(Class, name)
  while Class do
    if rawget(Class, name) ~= nil then return true end
    Class = rawget(Class, "__base")
  end
  return false
end

-- A column, or its rows in order: a tensor where it can be one, else a list.
local function column_of(self, values)
  local rows, made = self._rows, columnar.torch_column(values).tensor
  if made then return rows and made:index_select(1, core.tensor(rows, { dtype = "int64" }) - 1) or made end
  local list = {}
  for i = 1, rows and #rows or #values do list[i] = values[rows and rows[i] or i] end
  return list
end

local of_dataset = Table.__index

function Table.__index(self, key)
  local columns = type(key) == "string" and rawget(self, "_columns")
  if columns and columns[key] ~= nil and not has_member(Table, key) then
    return column_of(self, columns[key])
  end
  return of_dataset(self, key)
end

-- ---- making one

local function check_columns(where, columns, names)
  if #names == 0 then fail("%s: expected at least one column", where) end
  local n
  for _, name in ipairs(names) do
    if type(name) ~= "string" then fail("%s: columns are named by strings, got %s", where, show(name)) end
    local rows = rows_in(columns[name])
    if not rows then
      fail("%s: column '%s' must be a list of values or a tensor, got %s", where, name, show(columns[name]))
    end
    if rows ~= (n or rows) then
      fail("%s: columns must be equally long; '%s' has %d rows, '%s' has %d", where, names[1], n, name, rows)
    end
    n = rows
  end
  return n
end

-- Makes a dataset of these columns; `rows`: the places of its rows in them.
local function make(columns, names, count, rows, like)
  local self = setmetatable({}, Table)
  self._columns, self._rows = columns, rows
  self.column_names, self.num_rows, self.num_columns = names, rows and #rows or count, #names
  if like then
    for _, name in ipairs { "format", "_formatted", "_shown", "_wanted", "_shared" } do
      self[name] = like[name]
    end
  end
  self._shared = self._shared or {}
  return self
end

--- Makes a dataset from columns: name -> list of values, or a tensor whose dim 1 counts the rows.
---@param columns table<string, any[]|accelerate.Tensor>
---@param opts? { column_names: string[]? } the columns, in order; default: all, sorted by name
---@return accelerate.TableDataset
function Table.from_table(columns, opts)
  local o = options.check("from_table", opts, { column_names = { "list", optional = true } })
  if type(columns) ~= "table" or getmetatable(columns) then
    fail("from_table: expected a table of columns, got %s", show(columns))
  end
  local names = o.column_names or ordered.sorted_keys(columns)
  return make(columns, names, check_columns("from_table", columns, names))
end

function Table:init(columns, opts)
  local made = Table.from_table(columns, opts)
  for name, value in pairs(made) do self[name] = value end
end

--- Makes a dataset from rows: a list of tables with equal keys.
---@param rows table[]
---@return accelerate.TableDataset
function Table.from_list(rows)
  if type(rows) ~= "table" or getmetatable(rows) or type(rows[1]) ~= "table" then
    fail("from_list: expected a list of at least one row (a table), got %s", show(rows))
  end
  local names, columns = ordered.sorted_keys(rows[1]), {}
  for _, name in ipairs(names) do columns[name] = {} end
  for i, row in ipairs(rows) do
    if type(row) ~= "table" then fail("from_list: row %d must be a table, got %s", i, show(row)) end
    for _, name in ipairs(names) do
      if row[name] == nil then fail("from_list: row %d has no '%s', but row 1 has", i, tostring(name)) end
      columns[name][i] = row[name]
    end
    if ordered.count(row) ~= #names then
      fail("from_list: row %d has %d fields, row 1 has %d", i, ordered.count(row), #names)
    end
  end
  return make(columns, names, check_columns("from_list", columns, names))
end

--- Makes a dataset from the rows that fn's iterator yields: `from_generator(function() return
--- coroutine.wrap(…) end)`.
---@param fn fun(): function returns an iterator over rows
function Table.from_generator(fn)
  local rows = {}
  for row in derive.check_function("from_generator", fn)() do rows[#rows + 1] = row end
  return Table.from_list(rows)
end

--- Reads a CSV or TSV file, plain or gzip; see data.read_csv for the options.
---@param path string
---@return accelerate.TableDataset
function Table.from_csv(path, opts)
  local columns, names = require("accelerate.data.readers").read_columns(path, opts)
  return make(columns, names, check_columns("from_csv", columns, names))
end

--- Reads a file with one JSON object on each line (JSON Lines), or one list of objects.
---@param path string
---@return accelerate.TableDataset
function Table.from_json(path) return Table.from_list(require("accelerate.data.readers").read_json(path)) end

--- Concatenates the rows of datasets with equal columns.
---@param datasets accelerate.TableDataset[]
---@return accelerate.TableDataset
function Table.concatenate(datasets)
  if type(datasets) ~= "table" or #datasets == 0 then
    fail("concatenate_datasets: expected a list of datasets, got %s", show(datasets))
  end
  local first = datasets[1]
  for k, set in ipairs(datasets) do
    if not class.is(set, Table) then
      fail("concatenate_datasets: entry %d must be a dataset with columns, got %s", k, show(set))
    end
    local same = #set.column_names == #first.column_names
    for _, name in ipairs(first.column_names) do same = same and set._columns[name] ~= nil end
    if not same then
      fail("concatenate_datasets: all must have the same columns; the first has %s, number %d has %s",
        table.concat(first.column_names, ", "),
        k, table.concat(set.column_names, ", "))
    end
  end
  local columns, count = {}, 0
  for _, name in ipairs(first.column_names) do
    local list = {}
    for _, set in ipairs(datasets) do
      for _, value in ipairs(set:column(name)) do list[#list + 1] = value end
    end
    columns[name], count = list, #list
  end
  return make(columns, { unpack(first.column_names) }, count, nil, { format = first.format })
end

-- ---- reading

function Table:len() return self.num_rows end

function Table:_place(i) return self._rows and self._rows[i] or i end

function Table:_check_column(where, name)
  for _, known in ipairs(self.column_names) do
    if known == name then return self._columns[name] end
  end
  fail("%s: there is no column %s%s", where, show(name), options.hint(name, self.column_names))
end

-- Returns the column in format "torch", computed once for all datasets that share it.
function Table:_torch(name)
  local values = self._columns[name]
  local known = self._shared[name]
  if not known or known.of ~= values then
    known = torch_column(values)
    known.of = values
    self._shared[name] = known
  end
  return known
end

function Table:_in_format(name) return self.format and (not self._formatted or self._formatted[name]) end

function Table:_names() return self._formatted and self._shown or self.column_names end

--- Returns row i: a table of the columns' values.
---@param i integer
---@return table
function Table:get(i)
  dataset.check_position("TableDataset:get", i, self.num_rows)
  local row, place = {}, self:_place(i)
  for _, name in ipairs(self:_names()) do
    if not self:_in_format(name) then
      row[name] = value_at(self._columns[name], place)
    else
      local torch = self:_torch(name)
      if torch.tensor then
        row[name] = torch.tensor:select(1, place)
      elseif torch.dtype then
        row[name] = core.tensor(self._columns[name][place], { dtype = torch.dtype })
      else
        row[name] = self._columns[name][place]
      end
    end
  end
  return row
end

--- Returns whether get_batch works without reading row by row: in format "torch", when every column
--- is one tensor or a list of strings.
function Table:can_get_batch()
  if not self.format or self.get ~= Table.get then return false end
  for _, name in ipairs(self:_names()) do
    local torch = self:_torch(name)
    if not torch.tensor and (torch.dtype or type(self._columns[name][1]) ~= "string") then return false end
  end
  return true
end

function Table:get_batch(positions)
  local batch, places = {}, {}
  for j = 1, #positions do
    dataset.check_position("TableDataset", positions[j], self.num_rows)
    places[j] = self:_place(positions[j])
  end
  local indices
  for _, name in ipairs(self:_names()) do
    local tensor = self:_torch(name).tensor
    if tensor then
      indices = indices or core.tensor(places, { dtype = "int64" }):sub(1)
      batch[name] = tensor:index_select(1, indices)
    else
      local column, values = {}, self._columns[name]
      for j = 1, #places do column[j] = values[places[j]] end
      batch[name] = column
    end
  end
  return batch
end

--- Returns the values of a column, without a format.
---@param name string
---@return any[]
function Table:column(name)
  local values, list = self:_check_column("column", name), {}
  for i = 1, self.num_rows do list[i] = value_at(values, self:_place(i)) end
  return list
end

--- Returns the different values of a column, in order of first occurrence.
function Table:unique(name)
  local seen, list = {}, {}
  for _, value in ipairs(self:column(name)) do
    if not seen[value] then
      seen[value] = true
      list[#list + 1] = value
    end
  end
  return list
end

-- Returns row i without a format.
function Table:_plain(i)
  local row, place = {}, self:_place(i)
  for _, name in ipairs(self.column_names) do row[name] = value_at(self._columns[name], place) end
  return row
end

--- Returns all rows, as a list of tables.
function Table:to_list()
  local list = {}
  for i = 1, self.num_rows do list[i] = self:_plain(i) end
  return list
end

--- Iterates over the rows: `for row in set:iter() do … end`.
function Table:iter()
  local i = 0
  return function()
    i = i + 1
    if i <= self.num_rows then return self:get(i) end
  end
end

function Table:__tostring()
  return ("Dataset(columns: %s; rows: %d)"):format(table.concat(self.column_names, ", "), self.num_rows)
end

-- ---- making others

--- Returns the rows at these positions, in this order.
---@param indices integer[] counted from 1
function Table:select(indices)
  if type(indices) ~= "table" or getmetatable(indices) then
    fail("select: expected a list of positions, got %s", show(indices))
  end
  local rows = {}
  for j = 1, #indices do
    dataset.check_position(("select: entry %d of the list"):format(j), indices[j], self.num_rows)
    rows[j] = self:_place(indices[j])
  end
  return make(self._columns, self.column_names, nil, rows, self)
end

local function as_list(where, names)
  if type(names) == "string" then return { names } end
  if type(names) ~= "table" or getmetatable(names) then
    fail("%s: expected a name or a list of names, got %s", where, show(names))
  end
  return names
end

function Table:_without(where, names)
  local gone, kept = {}, {}
  for _, name in ipairs(as_list(where, names)) do
    self:_check_column(where, name)
    gone[name] = true
  end
  for _, name in ipairs(self.column_names) do
    if not gone[name] then kept[#kept + 1] = name end
  end
  return kept
end

-- Returns a table of these rows with other columns.
function Table:_with(columns, names)
  local made = make(columns, names, self.num_rows, self._rows, self)
  if made._formatted then made:_show(self._wanted) end
  return made
end

---@param names string|string[]
function Table:remove_columns(names)
  local kept = self:_without("remove_columns", names)
  if #kept == 0 then fail("remove_columns: no column would be left") end
  return self:_with(self._columns, kept)
end

--- Returns a dataset of only these columns, in this order.
---@param names string|string[]
function Table:select_columns(names)
  names = as_list("select_columns", names)
  for _, name in ipairs(names) do self:_check_column("select_columns", name) end
  if #names == 0 then fail("select_columns: no column would be left") end
  return self:_with(self._columns, { unpack(names) })
end

--- Renames columns: { old = new }.
---@param map table<string, string>
function Table:rename_columns(map)
  local columns, names = {}, {}
  for old in pairs(map) do self:_check_column("rename_columns", old) end
  for k, name in ipairs(self.column_names) do
    names[k] = map[name] or name
    if columns[names[k]] then fail("rename_columns: there would be two columns '%s'", names[k]) end
    columns[names[k]] = self._columns[name]
  end
  return make(columns, names, self.num_rows, self._rows, { format = self.format })
end

--- Renames one column.
---@param old string
---@param new string
---@return accelerate.TableDataset
function Table:rename_column(old, new) return self:rename_columns { [old] = new } end

--- Returns a dataset with one more column.
---@param name string
---@param values any[]|accelerate.Tensor
function Table:add_column(name, values)
  local n = rows_in(values)
  if n ~= self.num_rows then
    fail("add_column: there are %d rows, got %s", self.num_rows, n and n .. " values" or show(values))
  end
  for _, known in ipairs(self.column_names) do
    if known == name then fail("add_column: there is a column '%s' already", name) end
  end
  local flat = self:_flat()
  flat._columns[name] = values
  flat.column_names[#flat.column_names + 1] = name
  flat.num_columns = #flat.column_names
  return flat
end

-- Returns a table of these rows with its own columns.
function Table:_flat()
  local columns, names = {}, { unpack(self.column_names) }
  for _, name in ipairs(names) do
    columns[name] = self._rows and self:column(name) or self._columns[name]
  end
  return make(columns, names, self.num_rows, nil, { format = self.format })
end

--- Returns the rows sorted by a column of numbers or strings. Rows with equal values keep their
--- order.
---@param name string
---@param opts? { reverse: boolean? }
function Table:sort(name, opts)
  local o = options.check("sort", opts, { reverse = { "boolean", default = false } })
  local values, order = self:column(name), {}
  for i = 1, #values do
    if type(values[i]) ~= type(values[1])
      or (type(values[i]) ~= "number" and type(values[i]) ~= "string") then
      fail("sort: column '%s' must hold numbers or strings, got %s in row %d", name, show(values[i]), i)
    end
    order[i] = i
  end
  table.sort(order, function(a, b)
    if values[a] == values[b] then return a < b end
    if o.reverse then return values[a] > values[b] end
    return values[a] < values[b]
  end)
  return self:select(order)
end

require("accelerate.data.table_map")(Table,
  { make = make, rows_in = rows_in, value_at = value_at, as_list = as_list })

-- ---- format

local FORMAT = { columns = { "list", optional = true }, output_all_columns = { "boolean", default = false } }

-- Chooses the columns of samples, and those that the format converts.
function Table:_show(opts)
  self._wanted = opts
  if not opts.columns then
    self._formatted, self._shown = nil, nil
    return
  end
  self._formatted, self._shown = {}, {}
  for _, name in ipairs(opts.columns) do self._formatted[name] = true end
  for _, name in ipairs(self.column_names) do
    if self._formatted[name] or opts.output_all_columns then self._shown[#self._shown + 1] = name end
  end
end

--- Sets the form of this dataset's samples: "torch" (numbers as tensors) or nil (as they are).
---@param kind "torch"|nil
---@param opts? { columns: string[]?, output_all_columns: boolean? } columns: samples have only
---  these, unless output_all_columns
function Table:set_format(kind, opts)
  options.value("set_format", "the format", kind, { "string", optional = true, one_of = { "torch" } })
  local o = options.check("set_format", opts, FORMAT)
  for _, name in ipairs(o.columns or {}) do self:_check_column("set_format", name) end
  self.format = kind
  self:_show(o)
end

--- Returns a new dataset with a format; see set_format.
function Table:with_format(kind, opts)
  local other = make(self._columns, self.column_names, self.num_rows, self._rows, { _shared = self._shared })
  other:set_format(kind, opts)
  return other
end

--- Removes the format: samples hold the columns' values, unconverted.
function Table:reset_format() self:set_format(nil) end

return Table
