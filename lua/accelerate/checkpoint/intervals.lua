--- Files of values that are cut over ranks: each rank writes one file of its own pieces, and any
--- number of ranks reads them by intervals.
---
--- A file holds 1-d tensors, and for each one a row: the value that it is a piece of, the value's
--- whole shape, and the piece's first element in the flattened value. In a safetensors file the
--- rows are the text `intervals` of its metadata, in a file of PyTorch's format they stand beside
--- the tensors:
---
---   { "version": 1, "rank": r, "ranks": n,
---     "pieces": [ { "key": KEY, "name": NAME, "shape": [..], "from": i }, .. ] }
---
--- So a rank writes without asking another one, and a reader sees from the files alone what there
--- is. Whole values, in safetensors files or PyTorch's, are read the same way.
local boxes = require "accelerate.checkpoint.boxes"
local core = require "accelerate.core"
local files = require "accelerate.files"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local pieces = require "accelerate.checkpoint.pieces"
local weights = require "accelerate.weights"

local fail = options.fail

local M = {}

local VERSION, STEM = 1, "intervals"

-- ---- writing

---@class accelerate.Interval a rank's piece of a value
---@field name string
---@field shape integer[] of the whole value
---@field from integer its first element in the flattened value, from 0
---@field tensor accelerate.Tensor 1-d, contiguous

-- Refuses what no reader would take.
local function check_interval(where, item)
  local t = item.tensor
  if type(item.name) ~= "string" or not pieces.is_shape(item.shape) or not core.is_tensor(t)
    or t:dim() ~= 1 then
    fail("%s: a piece must have a name, the value's shape and a 1-d tensor, got %s", where,
      options.show(item))
  end
  local n, numel = t:numel(), boxes.count(item.shape)
  if type(item.from) ~= "number" or item.from < 0 or item.from % 1 ~= 0 or item.from + n > numel then
    fail("%s: '%s' has %.0f elements; the piece has %d from %s on", where, item.name, numel, n,
      tostring(item.from))
  end
end

-- The key of a piece's tensor: the value's name, and where the piece begins when it is not all.
local function key_of(item)
  if item.tensor:numel() == boxes.count(item.shape) then return item.name end
  return ("%s@%.0f"):format(item.name, item.from)
end

--- Writes a rank's pieces to a file.
---@param path string one that ends in .safetensors is such a file, another one PyTorch's
---@param rank integer
---@param list accelerate.Interval[]
---@param opts { ranks: integer?, save: userdata? }? ranks: how many write, for the messages of
---  readers; save: one (core._save_new) that the file is added to, else it is written
function M.write_file(path, rank, list, opts)
  opts = opts or {}
  local rows, tensors, values = {}, {}, ordered.new()
  for i, item in ipairs(list) do
    check_interval("intervals.write", item)
    local key = key_of(item)
    if values[key] then fail("intervals.write: '%s' is given twice", key) end
    values[key] = item.tensor
    tensors[i] = { key, item.tensor }
    rows[i] = { key = key, name = item.name, shape = json.list { unpack(item.shape) }, from = item.from }
  end
  local head = { version = VERSION, rank = rank, ranks = opts.ranks, pieces = json.list(rows) }
  if path:match "%.safetensors$" then
    core.safetensors_save(path, tensors, { [STEM] = json.encode(head) }, opts.save)
  else
    files.write({ [STEM] = json.encode(head), tensors = values }, path, false, nil, opts.save)
  end
end

--- Writes a rank's pieces into a folder, as intervals_<rank>.safetensors.
---@param folder string
---@param rank integer
---@param list accelerate.Interval[]
---@param opts { ranks: integer?, save: userdata? }?
function M.write(folder, rank, list, opts)
  M.write_file(fs.join(folder, ("%s_%d.safetensors"):format(STEM, rank)), rank, list, opts)
end

-- ---- reading

-- An open file: its tensors by key, without their elements; and what its rows say, or nil where its
-- values are whole.
local function open_safetensors(reader, path)
  local file = core.safetensors_open(path)
  reader:holds(function() file:close() end)
  local function check() file:_check() end
  return {
    keys = file:keys(), rows = file:metadata()[STEM],
    shape = function(key) return file:get_shape(key) end,
    dtype = function(key) return file:_readable(key) and file:get_dtype(key) end,
    kind = function(key) return "a tensor of " .. file:get_dtype(key) end,
    lend = function(key) return file:_lend(key), check end,
  }
end

local function open_torch(reader, path)
  local value, close = files.lend(path)
  reader:holds(close)
  if type(value) ~= "table" then
    fail("%s: %s holds %s; expected tensors by name", reader.where, path, options.show(value))
  end
  local rows = type(rawget(value, STEM)) == "string" and type(value.tensors) == "table" and value[STEM]
  local tensors = rows and value.tensors or value
  return {
    keys = ordered.keys(tensors), rows = rows or nil,
    shape = function(key) return tensors[key].shape end,
    dtype = function(key) return core.is_tensor(tensors[key]) and tensors[key].dtype end,
    kind = function(key) return options.show(tensors[key]) end,
    lend = function(key) return tensors[key] end,
  }
end

-- Adds the pieces that the rows of a file name.
local function add_rows(reader, path, file)
  local head, why = json.decode(file.rows)
  if type(head) ~= "table" or type(head.pieces) ~= "table" or head.version ~= VERSION then
    fail("%s: %s: its text '%s' is damaged%s", reader.where, path, STEM, why and ": " .. why or "")
  end
  local keys = {}
  for _, key in ipairs(file.keys) do keys[key] = true end
  for i, row in ipairs(head.pieces) do
    if type(row) ~= "table" or type(row.name) ~= "string" or not keys[row.key] or not file.dtype(row.key)
      or not pieces.is_shape(row.shape) or type(row.from) ~= "number" or row.from < 0
      or row.from % 1 ~= 0 then
      fail("%s: %s: piece %d of its text '%s' is none", reader.where, path, i, STEM)
    end
    local n = boxes.count(file.shape(row.key))
    reader:add(row.name, file.dtype(row.key), row.shape, { file = path, from = row.from, n = n,
      lend = function() return file.lend(row.key) end })
  end
  return head
end

-- Adds the values of a file that holds them whole.
local function add_whole(reader, path, file)
  for _, key in ipairs(file.keys) do
    local dtype = file.dtype(key)
    if not dtype then reader:fail("'%s' in %s is %s", tostring(key), path, file.kind(key)) end
    if reader:has(key) then reader:fail("'%s' is in %s and in another file of it", key, path) end
    local shape = file.shape(key)
    reader:add(key, dtype, shape, { file = path, from = 0, n = boxes.count(shape),
      lend = function() return file.lend(key) end })
  end
end

local function add_file(reader, path, lacking)
  local file = (files.is_torch(path) and open_torch or open_safetensors)(reader, path)
  if not file.rows then return add_whole(reader, path, file) end
  local head = add_rows(reader, path, file)
  if type(head.rank) == "number" then lacking[head.rank] = true end
  lacking.ranks = math.max(lacking.ranks or 0, type(head.ranks) == "number" and head.ranks or 0)
end

-- The ranks whose files are not there, for the messages about gaps.
local function lacking_text(found)
  local list = {}
  for rank = 0, math.min(found.ranks or 0, 4096) - 1 do
    if not found[rank] then list[#list + 1] = rank end
  end
  if #list == 0 then return nil end
  return ("; %d ranks wrote it, and the file%s of rank %s %s not there"):format(found.ranks,
    #list > 1 and "s" or "", table.concat(list, ", ", 1, math.min(#list, 8)), #list > 1 and "are" or "is")
end

--- Returns a reader of files that each hold pieces, or whole values.
---@param where string what messages begin with
---@param path string what they belong to
---@param list string[]
---@return accelerate.IntervalReader
function M.open_files(where, path, list)
  local reader, found = pieces.new(where, path), {}
  local ok, why = pcall(function()
    for _, file in ipairs(list) do add_file(reader, file, found) end
  end)
  if not ok then
    reader:close()
    error(why, 0)
  end
  reader.lacking = lacking_text(found)
  return reader
end

-- The files of pieces in a folder, in the order of their ranks.
local function interval_files(folder)
  local found = {}
  for _, name in ipairs(fs.list(folder) or {}) do
    local rank = name:match "^intervals_(%d+)%.safetensors$"
    if rank then found[#found + 1] = { rank = tonumber(rank), path = fs.join(folder, name) } end
  end
  table.sort(found, function(a, b) return a.rank < b.rank end)
  for i, one in ipairs(found) do found[i] = one.path end
  return found
end

--- Returns whether a folder holds pieces of values: ours, or a distributed checkpoint of PyTorch's.
---@param path string
---@return boolean
function M.is_sharded(path) return fs.exists(fs.join(path, ".metadata")) or #interval_files(path) > 0 end

--- Returns a reader of what `path` holds: a folder of pieces, PyTorch's distributed checkpoint, or
--- whole values in a file, an index (*.index.json) or a folder with either. Only headers
--- are read at once. Close it when all is read.
---@param path string
---@param where string? what messages begin with; default "load"
---@return accelerate.IntervalReader
function M.open(path, where)
  where = where or "load"
  options.value(where, "path", path, { "string" })
  if fs.is_dir(path) then
    if fs.exists(fs.join(path, ".metadata")) then
      return require("accelerate.checkpoint.dcp").open(path, where)
    end
    local found = interval_files(path)
    if #found > 0 then return M.open_files(where, path, found) end
  end
  return M.open_files(where, path, (weights.find_files(path, where)))
end

return M
