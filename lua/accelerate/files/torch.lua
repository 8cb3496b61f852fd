--- PyTorch's files (`.pt`, `.bin`): a zip archive with a pickle of the value and one entry of bytes
--- for each storage.
local core = require "accelerate.core"
local layout = require "accelerate.files.layout"
local nested = require "accelerate.files.nested"
local options = require "accelerate.utils.options"
local parameter = require "accelerate.nn.parameter"
local pickle = require "accelerate.files.pickle"
local writer = require "accelerate.files.pickle_writer"

local fail = options.fail

local M = {}

local STORAGES = { float32 = "FloatStorage", float64 = "DoubleStorage", float16 = "HalfStorage",
  bfloat16 = "BFloat16Storage", int64 = "LongStorage", int32 = "IntStorage", uint8 = "ByteStorage",
  bool = "BoolStorage", complex64 = "ComplexFloatStorage", complex128 = "ComplexDoubleStorage" }
local DTYPES = {}
for dtype, name in pairs(STORAGES) do DTYPES["torch." .. name] = dtype end
-- Types of elements that came later have no storages of their own.
for _, dtype in ipairs { "float8_e4m3fn", "float8_e5m2" } do STORAGES[dtype] = "UntypedStorage" end
DTYPES["torch.storage.UntypedStorage"] = "uint8"

--- Returns the type of a storage's elements; nil where there are no tensors of it. The bytes of one
--- that has no type are uint8.
---@param kind string the storage's class, with its module
---@return string?
function M.dtype_of(kind) return DTYPES[kind] end

-- ---- writing

local function contiguous_strides(shape)
  local strides, step = {}, 1
  for d = #shape, 1, -1 do
    strides[d] = step
    step = step * math.max(shape[d], 1)
  end
  return strides
end

-- The members of an archive with this pickle and the elements of its storages.
local function members_with(pickled, storages)
  local members = { { "archive/data.pkl", pickled }, { "archive/byteorder", "little" } }
  for i, elements in ipairs(storages) do
    members[#members + 1] = { ("archive/data/%d"):format(i - 1), elements }
  end
  members[#members + 1] = { "archive/version", "3\n" }
  return members
end

--- Returns the members (core._zip_write) of the archive that holds a nested value.
---@param value any
---@param where string what messages begin with
---@return table[]
function M.members(value, where)
  local flat = nested.flatten(value, where)
  local pieces, views = layout.of(flat.tensors)
  local tensors, storages = {}, {}
  for i, view in ipairs(views) do
    local t, piece = flat.tensors[i], pieces[view.piece].tensor
    local shape = view.shape or piece.shape
    tensors[i] = { storage = STORAGES[t.dtype], dtype = t.dtype, key = tostring(view.piece - 1),
      count = piece:numel(),
      offset = view.offset or 0, shape = shape, strides = view.strides or contiguous_strides(shape),
      requires_grad = t.requires_grad and t.is_leaf, parameter = parameter.is(t) }
  end
  for i, piece in ipairs(pieces) do storages[i] = piece.tensor end
  return members_with(writer.write(flat, tensors), storages)
end

--- Returns the members of the archive that holds None.
---@return table[]
function M.members_of_none() return members_with("\128\2N.", {}) end

--- Returns the members of the archive that holds one contiguous tensor.
---@param dtype string
---@param shape integer[]
---@param count integer its elements
---@param elements accelerate.Tensor|integer 1-d; or their bytes, where the archive is only measured
---@return table[]
function M.members_of_tensor(dtype, shape, count, elements)
  local flat = { value = { tensor = 1 }, tables = {} }
  return members_with(writer.write(flat,
    { { storage = STORAGES[dtype], dtype = dtype, key = "0", count = count,
    offset = 0, shape = shape, strides = contiguous_strides(shape), requires_grad = false,
    parameter = false } }),
    { elements })
end

--- Writes a nested value to a file that `torch.load(path, weights_only=True)` reads.
---@param value any
---@param path string
---@param where string what messages begin with
---@param save userdata? a save that the file is added to; nil: it is written
function M.save(value, path, where, save)
  core._zip_write(path, M.members(value, ("%s: '%s'"):format(where, path)), "save", save)
end

-- ---- reading

-- Entries by their name below the archive's folder.
local function entries_of(archive, path)
  local entries, folder = {}, nil
  for i, name in ipairs(archive:names()) do
    local above, rest = name:match("^([^/]+)/(.+)$")
    if above then
      if rest == "data.pkl" and folder and folder ~= above then
        fail("load: '%s': it has two entries data.pkl, in the folders '%s' and '%s'", path,
          folder:sub(1, 100),
          above:sub(1, 100))
      end
      if rest == "data.pkl" then folder = above end
      if entries[name] then fail("load: '%s': two entries are called '%s'", path, name:sub(1, 100)) end
      entries[name] = i
    end
  end
  if not folder then
    fail("load: '%s': a zip archive without data.pkl is no file of torch.save (data.read_npz " ..
      "reads NumPy's archives)", path)
  end
  return function(name) return entries[folder .. "/" .. name] end
end

-- Raises for a wrong checksum; what is read is freed at once.
local function verify(archive, i, dtype, threads)
  core.scope(function() archive:tensor(i, dtype, threads) end)
end

-- Gives storages by key as 1-d tensors, each read once, by all cores that the process may use.
local function storages_of(archive, entry, path, device, lent)
  local found, get, threads = {}, lent and archive._lend or archive.tensor, core._cores()
  return function(kind, key, count)
    local dtype = M.dtype_of(kind)
    if not dtype then return nil end
    if found[key] then
      if found[key].dtype ~= dtype then fail("load: '%s': storage '%s' has two types", path, key) end
      return found[key]
    end
    local i = entry("data/" .. key)
    if not i then fail("load: '%s': the bytes of storage '%s' are missing", path, key) end
    if lent == "verified" then verify(archive, i, dtype, threads) end
    local t = get(archive, i, dtype, threads)
    if t:numel() ~= count then
      fail("load: '%s': storage '%s' has %d elements; expected %s", path, key, t:numel(), options.show(count))
    end
    found[key] = device and t:to(device) or t
    return found[key]
  end
end

local function checked(path, fn, ...)
  local ok, result = pcall(fn, ...)
  if not ok then
    result = tostring(result)
    fail("%s", result:find(path, 1, true) and result or ("load: '%s': %s"):format(path, result))
  end
  return result
end

--- Returns what makes tensors and parameters over storages while a pickle is read.
---@param path string
---@param storage fun(kind: string, key: string, count: number): accelerate.Tensor?
---@return table
function M.hooks(path, storage)
  return {
    storage = storage,
    tensor = function(over, offset, shape, strides, requires_grad)
      local t = checked(path, over._window, over, shape, strides, offset)
      if requires_grad and core._is_float(t) then t.requires_grad = true end
      return t
    end,
    parameter = function(t, requires_grad)
      return checked(path, parameter.new, t, { requires_grad = requires_grad })
    end,
  }
end

-- An archive can pack a thousand times as many opcodes as it has bytes, and each may make a table.
local function most_opcodes(path, n)
  if n then return 8 * n + 1e6 end
  local f = assert(io.open(path, "rb"))
  local bytes = f:seek "end"
  f:close()
  return 8 * bytes + 1e6
end

--- Returns the value of a file that torch.save wrote. Raises for values that are no plain data, or
--- leaves them out and notes them in `left`.
---@param path string
---@param device string? where tensors go; default: the CPU
---@param lent "lent"|"verified"|nil tensors are over the mapped file; their checksums are compared
---  where it says "verified"
---@param left string[]?
---@param at integer? the archive is `n` bytes of the file from byte `at` (from 0) on; default: all
---@param n integer?
---@param beside table? an open archive of the same file
---@return any value
---@return table archive open
function M.load(path, device, lent, left, at, n, beside)
  local archive = beside and beside:_other(at, n) or core._zip_open(path, "load", at, n)
  local entry = entries_of(archive, path)
  local order = entry("byteorder")
  if order and archive:text(order) ~= "little" then
    fail("load: '%s': its elements are in big-endian order; expected little-endian", path)
  end
  local value = pickle.read(archive:text(entry("data.pkl")), ("load: '%s'"):format(path),
    M.hooks(path, storages_of(archive, entry, path, device, lent)), left, most_opcodes(path, n))
  return value, archive
end

return M
