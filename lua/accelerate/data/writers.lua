--- Writers of files, beside the readers: NumPy's, CSV and TSV, PNG. A file appears whole or not at
--- all.
local ffi = require "ffi"
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local png = require "accelerate.plot.png"

local fail, show = options.fail, options.show

local M = {}

local function check_tensor(where, what, value)
  if not core.is_tensor(value) then fail("%s: %s must be a tensor, got %s", where, what, show(value)) end
  return value
end

-- ---- NumPy

local DESCR = { float32 = "<f4", float64 = "<f8", float16 = "<f2", bfloat16 = "bfloat16", int64 = "<i8",
  int32 = "<i4", uint8 = "|u1", bool = "|b1", complex64 = "<c8", complex128 = "<c16",
  float8_e4m3fn = "float8_e4m3fn",
  float8_e5m2 = "float8_e5m2" }

-- The header of version 1.0: a Python literal, filled with spaces to a multiple of 64 bytes.
local function npy_header(t)
  local shape = t.shape
  local sizes = table.concat(shape, ", ") .. (#shape == 1 and "," or "")
  local text = ("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }"):format(DESCR[t.dtype], sizes)
  text = text .. (" "):rep(-(#text + 11) % 64) .. "\n"
  return "\147NUMPY\1\0" .. string.char(#text % 256, math.floor(#text / 256)) .. text
end

--- Writes a tensor to a NumPy .npy file, in C order. NumPy itself reads bfloat16 and the types of
--- eight bits only with ml_dtypes.
---@param path string
---@param t accelerate.Tensor any shape and type
function M.write_npy(path, t)
  options.value("write_npy", "path", path, { "string" })
  check_tensor("write_npy", "argument 2", t)
  core._parts_write(path, { npy_header(t), t }, "write_npy")
end

--- Writes tensors to a NumPy .npz archive, stored. `data.read_npz` and `numpy.load` give them by
--- name.
---@param path string
---@param tensors table<string, accelerate.Tensor>
function M.write_npz(path, tensors)
  options.value("write_npz", "path", path, { "string" })
  if type(tensors) ~= "table" or class.of(tensors) then
    fail("write_npz: expected a table of tensors by name, got %s", show(tensors))
  end
  local members = {}
  for name in next, tensors do options.value("write_npz", "a name", name, { "string" }) end
  for _, name in ipairs(ordered.keys(tensors)) do
    local t = check_tensor("write_npz", ("'%s'"):format(name), tensors[name])
    members[#members + 1] = { name .. ".npy", npy_header(t), t }
  end
  core._zip_write(path, members, "write_npz")
end

-- ---- CSV

-- The shortest text that reads back as the same number of its type.
local function float_text(value, first, last, back)
  if value ~= value then return "" end  -- read_csv gives NaN for an empty field
  if value % 1 == 0 and math.abs(value) < 1e15 and not (value == 0 and 1 / value < 0) then
    return ("%.0f"):format(value)
  end
  for digits = first, last - 1 do
    local text = ("%." .. digits .. "g"):format(value)
    if back(tonumber(text)) == value then return text end
  end
  return ("%." .. last .. "g"):format(value)
end

local function as_double(v) return v end
local function as_float(v) return tonumber(ffi.cast("float", v)) end
local function double_text(v) return float_text(v, 14, 17, as_double) end
local function float32_text(v) return float_text(v, 6, 9, as_float) end

-- A column of whole numbers would be read as integers, and one of empty fields as texts.
local function as_floats(list)
  local whole, empty = true, true
  for _, text in ipairs(list) do
    whole, empty = whole and text:find("^%-?%d+$") ~= nil, empty and text == ""
  end
  for i, text in ipairs(list) do
    if whole then list[i] = text .. ".0" elseif empty then list[i] = "nan" end
  end
  return list
end

-- The texts of a tensor's elements.
local function tensor_texts(t)
  local list = {}
  local integers = t.dtype == "int64"
  t = t:detach():to("cpu"):contiguous()
  if integers then
    local at = t:data_ptr()
    for i = 1, t:numel() do list[i] = tostring(at[i - 1]):gsub("LL$", "") end
    return list
  end
  local text = t.dtype == "bool" and tostring or t.dtype == "float64" and double_text or float32_text
  for i, v in ipairs(t:totable()) do list[i] = text(v) end
  return core._is_float(t) and as_floats(list) or list
end

local function column_texts(name, column, quoted)
  if core.is_tensor(column) then
    if column:dim() ~= 1 then
      fail("write_csv: column '%s' must have one dim, got [%s]", name, table.concat(column.shape, ", "))
    end
    return tensor_texts(column)
  end
  if type(column) ~= "table" or class.of(column) or not ordered.is_list(column) then
    fail("write_csv: column '%s' must be a tensor or a list, got %s", name, show(column))
  end
  local list = {}
  for i, v in ipairs(column) do
    if type(v) == "string" then list[i] = quoted(v)
    elseif type(v) == "number" then list[i] = double_text(v)
    elseif type(v) == "boolean" then list[i] = tostring(v)
    else
      fail("write_csv: row %d of column '%s' must be a string, a number or a boolean, got %s", i, name,
        show(v))
    end
  end
  return list
end

local CSV = { delimiter = { "string", optional = true }, column_names = { "list", optional = true },
  header = { "boolean", default = true } }

-- A dataset's column: a tensor stays one, so that its type decides the digits.
local function column_of(set, name)
  local values = set:_check_column("write_csv", name)
  if not core.is_tensor(values) then return set:column(name) end
  if not set._rows then return values end
  local places = {}
  for i = 1, set.num_rows do places[i] = set:_place(i) - 1 end
  return values:index_select(1, core.tensor(places, { dtype = "int64" }))
end

-- Names and columns of a dataset or a table of columns.
local function columns_of(given, names)
  if type(given) == "table" and class.is(given, require("accelerate.data.table")) then
    local columns = {}
    for _, name in ipairs(given.column_names) do columns[name] = column_of(given, name) end
    return columns, names or given.column_names
  end
  if type(given) ~= "table" or class.of(given) then
    fail("write_csv: expected a dataset with columns or a table of columns by name, got %s", show(given))
  end
  return given, names or ordered.keys(given)
end

--- Writes columns to a CSV or TSV file that `read_csv` and other programs read. Numbers are written
--- with the fewest digits that give them back; NaN is an empty field. A string is quoted where it
--- must be.
---@param path string
---@param columns accelerate.TableDataset|table<string, accelerate.Tensor|any[]> tensors of one dim,
---  or lists of strings, numbers and booleans, all of one length
---@param opts { delimiter: string?, column_names: string[]?, header: boolean? }? delimiter: default
---  a tab for .tsv, else a comma; column_names: which columns, in order; header: default true
function M.write_csv(path, columns, opts)
  options.value("write_csv", "path", path, { "string" })
  local o = options.check("write_csv", opts, CSV)
  local delimiter = o.delimiter or path:lower():match("%.tsv$") and "\t" or ","
  if #delimiter ~= 1 or delimiter:find('[\r\n"%z]') then
    fail("write_csv: option 'delimiter' must be one character, got %s", show(delimiter))
  end
  local function quoted(text)
    if text:find('[",\r\n\t]') or text:find(delimiter, 1, true) or text:find("^\239\187\191") then
      return '"' .. text:gsub('"', '""') .. '"'
    end
    return text
  end
  local given, names = columns_of(columns, o.column_names)
  local texts, head, rows, lines = {}, {}, nil, {}
  for k, name in ipairs(names) do
    options.value("write_csv", "the name of a column", name, { "string" })
    if given[name] == nil then fail("write_csv: there is no column '%s'", name) end
    texts[k], head[k] = column_texts(name, given[name], quoted), quoted(name)
    rows = rows or #texts[k]
    if #texts[k] ~= rows then
      fail("write_csv: column '%s' has %d rows, column '%s' has %d", name, #texts[k], names[1], rows)
    end
  end
  local function add(row)
    local line = table.concat(row, delimiter)
    lines[#lines + 1] = (line == "" and '""' or line) .. "\n"  -- readers skip a blank line
  end
  if o.header then add(head) end
  for i = 1, rows or 0 do
    local row = {}
    for k = 1, #names do row[k] = texts[k][i] end
    add(row)
  end
  core._parts_write(path, { table.concat(lines) }, "write_csv")
end

-- ---- pictures

--- Writes an image to a PNG file, 8 bits a channel. Floating-point values go from 0 to 1 and are
--- clamped.
---@param path string ends in .png
---@param image accelerate.Tensor [channels, height, width] with 1 to 4 channels, or [height, width]
function M.write_image(path, image)
  options.value("write_image", "path", path, { "string" })
  if not path:lower():match("%.png$") then
    fail("write_image: '%s': expected a path that ends in .png; other formats are not written", path)
  end
  check_tensor("write_image", "argument 2", image)
  if image:dim() ~= 2 and image:dim() ~= 3 then
    fail("write_image: expected [channels, height, width] or [height, width], got [%s]",
      table.concat(image.shape, ", "))
  end
  core._parts_write(path, { (png.encode(png.pictures("write_image", image)[1])) }, "write_image")
end

return M
