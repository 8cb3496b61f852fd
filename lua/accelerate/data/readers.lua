--- Readers of files: CSV and TSV, JSON, NumPy's formats, pictures. Each checks what it reads;
--- errors name the file and the problem.
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local options = require "accelerate.utils.options"

local fail, show = options.fail, options.show

local M = {}

local CSV = {
  delimiter = { "string", optional = true },
  quote = { "string|boolean", default = '"' },
  header = { "boolean", default = true },
  column_names = { "list", optional = true },
  types = { "table", optional = true },
  float = { "string", default = "float32", one_of = { "float32", "float64" } },
  skip_lines = { "integer", default = 0, min = 0 },
  columns = { "list", optional = true },
}
local TYPES = { "string", "int64", "int32", "uint8", "float32", "float64", "bool" }

local function one_byte(where, name, value)
  if #value ~= 1 or value == "\n" or value == "\r" or value == "\0" then
    fail("%s: option '%s' must be one character, got %s", where, name, show(value))
  end
  return value
end

local function delimiter_of(path, given)
  if given then return one_byte("read_csv", "delimiter", given) end
  local plain = path:lower():gsub("%.gz$", "")
  return (plain:match("%.tsv$") or plain:match("%.tab$")) and "\t" or ","
end

-- Returns the names of the columns, and the row in which the data begin.
local function names_of(path, file, o)
  local rows, columns = file:size()
  local names, first = o.column_names, 1
  if o.header then
    if rows == 0 then
      fail("read_csv: '%s': is empty; expected a line with the names of the columns", path)
    end
    names, first = names or file:row(1), 2
  end
  if not names then
    names = {}
    for k = 1, columns do names[k] = "column_" .. k end
  end
  if rows > 0 and #names ~= columns then
    fail("read_csv: '%s': has %d columns, but there are %d names", path, columns, #names)
  end
  local seen = {}
  for k, name in ipairs(names) do
    if seen[name] then
      fail("read_csv: '%s': columns %d and %d are both called '%s'", path, seen[name], k, name)
    end
    seen[name] = k
  end
  return names, first, seen
end

--- Reads the columns of a CSV or TSV file, plain or gzip: name -> tensor (of numbers) or list of
--- strings. Also returns the names in order.
---@param path string
---@param opts? table see read_csv
---@return table<string, accelerate.Tensor|string[]> columns
---@return string[] names
function M.read_columns(path, opts)
  local o = options.check("read_csv", opts, CSV)
  if type(path) ~= "string" then fail("read_csv: expected a path, got %s", show(path)) end
  if o.quote == true then fail("read_csv: option 'quote' must be a character or false") end
  local file = core._csv(path, delimiter_of(path, o.delimiter), o.quote
    and one_byte("read_csv", "quote", o.quote) or "", o.skip_lines)
  local names, first, place = names_of(path, file, o)
  for name, kind in pairs(o.types or {}) do
    if not place[name] then
      fail("read_csv: '%s': there is no column '%s'%s", path, tostring(name), options.hint(name, names))
    end
    options.value("read_csv", ("the type of column '%s'"):format(name), kind, { "string", one_of = TYPES })
  end
  local wanted, columns = o.columns or names, {}
  for _, name in ipairs(wanted) do
    if not place[name] then
      fail("read_csv: '%s': there is no column '%s'%s", path, tostring(name), options.hint(name, names))
    end
    local kind = o.types and o.types[name]
    columns[name] = select(1, file:size()) == 0 and {}
      or file:column(place[name], first, name, kind == "string" and "text" or kind and "typed" or "guess",
      kind ~= "string" and kind or o.float)
  end
  return columns, wanted
end

--- Reads a CSV or TSV file, plain or gzip, as a dataset. A column of integers becomes int64. A
--- column of numbers becomes float32 (option `float`), with NaN for empty fields. Other columns are
--- strings.
---
--- Options: delimiter (default: a tab for .tsv, else a comma), quote (default '"'; false: none),
--- header (default true: the first line names the columns), column_names, types = { name =
--- "string"|"int64"|"int32"|"uint8"|"float32"|"float64"|"bool" }, float, skip_lines (lines to skip
--- at the beginning), columns (read only these).
---@param path string
---@param opts? table
---@return accelerate.TableDataset
function M.read_csv(path, opts) return require("accelerate.data.table").from_csv(path, opts) end

--- Returns the rows of a file with one JSON object on each line, or with one list of objects. NaN,
--- Infinity and -Infinity are read as Python writes them. Raises for integers that Lua's numbers do
--- not hold exactly.
---@param path string
---@return table[]
function M.read_json(path)
  local text, problem = fs.read(path)
  if not text then fail("read_json: '%s': cannot be read: %s", path, problem) end
  local function decode(part, where)
    local value, why = json.decode(part, true)
    if why and where == "line 1: " and type((json.decode(text, true))) == "table" then
      fail("read_json: '%s': one object over several lines; expected one on each line, or a list of objects",
        path)
    end
    if why then
      why = why:gsub("^json: ", "")
      if where ~= "" then why = why:gsub(" at line 1$", "") end
      fail("read_json: '%s': %s%s", path, where, why)
    end
    if type(value) ~= "table" then
      fail("read_json: '%s': %sexpected an object, got %s", path, where, show(value))
    end
    return value
  end
  if text:match("^%s*%[") then return decode(text, "") end
  local rows, number = {}, 0
  for line in (text .. "\n"):gmatch("(.-)\r?\n") do
    number = number + 1
    if line:find("%S") then rows[#rows + 1] = decode(line, ("line %d: "):format(number)) end
  end
  return rows
end

--- Reads a NumPy .npy file (NEP 1) as a tensor, in either byte order, and C or Fortran order. Types
--- that tensors lack are widened.
---@param path string
---@return accelerate.Tensor
M.read_npy = core.read_npy
--- Reads a NumPy .npz archive as a table of tensors by name. Entries may be stored or deflated.
---@param path string
---@return table<string, accelerate.Tensor>
M.read_npz = core.read_npz
--- Reads an IDX file (MNIST's format), plain or gzip, as a tensor.
---@param path string
---@return accelerate.Tensor
M.read_idx = core.read_idx

local MODES = { RGB = 3, GRAY = 1, UNCHANGED = 0 }

local function channels_of(where, mode)
  mode = options.value(where, "the mode", mode,
    { "string", default = "RGB", one_of = { "RGB", "GRAY", "UNCHANGED" } })
  return MODES[mode]
end

--- Reads a JPEG or PNG file as uint8 [channels, height, width]. Transparency is dropped; 16 bits a
--- channel become 8.
---@param path string
---@param mode? "RGB"|"GRAY"|"UNCHANGED" default RGB
---@return accelerate.Tensor
function M.read_image(path, mode) return core.read_image(path, channels_of("read_image", mode)) end

--- Decodes the bytes of a JPEG or PNG file as uint8 [channels, height, width]. Transparency is
--- dropped; 16 bits a channel become 8.
---@param bytes string
---@param mode? "RGB"|"GRAY"|"UNCHANGED" default RGB
---@return accelerate.Tensor
function M.decode_image(bytes, mode) return core.decode_image(bytes, channels_of("decode_image", mode)) end

return M
