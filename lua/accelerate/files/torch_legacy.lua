--- PyTorch's files from before version 1.6, which are no archive: pickles of a magic number, the
--- protocol, facts about the writer's machine, the value and the keys of its storages, then the
--- storages in the order of their keys, each a number of elements and their bytes.
local ffi = require "ffi"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local names = require "accelerate.files.pickle_names"
local pickle = require "accelerate.files.pickle"
local torch = require "accelerate.files.torch"

local fail = options.fail

local M = {}

local MAGIC = "\138\10l\252\156F\249 j\168P\25."  -- an integer of ten bytes
local PROTOCOL, PIECE = 1001, 2 ^ 16

--- Returns whether a file that begins with these bytes, 32 or more, is one of torch.save.
---@param bytes string
---@return boolean
function M.begins(bytes) return (bytes:find(MAGIC, 1, true) or 99) < 16 end

-- The storages of a file, by key, which are made while its value is read and filled afterwards:
-- their bytes come behind the value. They are no larger than the file.
local Storages = {}
Storages.__index = Storages

local function storages_of(path, bytes, device)
  return setmetatable({ path = path, left = bytes, device = device, found = {} }, Storages)
end

function Storages:fail(message, ...) fail("load: '%s': " .. message, self.path, ...) end

function Storages:make(key, kind, count)
  local dtype, other, size = torch.dtype_of(kind), names.other_storage(kind)
  if not dtype and not other then self:fail("a tensor of %s, whose size is not known", kind) end
  size = size or core.empty({ 0 }, { dtype = dtype }):element_size()
  self.left = self.left - count * size
  if count < 0 or count % 1 ~= 0 or self.left < 0 then
    self:fail("the bytes of storage '%s' are missing", key)
  end
  local made = { dtype = dtype, size = size, count = count }
  made.tensor = dtype and core.empty({ count }, { dtype = dtype, device = self.device })
  self.found[key] = made
  return made
end

-- The tensor over a storage's elements; nil where there are no tensors of their type.
function Storages:get(kind, key, count)
  local made = self.found[key] or self:make(key, kind, count)
  if made.dtype ~= torch.dtype_of(kind) then self:fail("storage '%s' has two types", key) end
  if made.count ~= count then
    self:fail("storage '%s' has %d elements; expected %s", key, made.count, options.show(count))
  end
  return made.tensor
end

-- Nothing in these pickles is a tensor.
local function plain(path)
  local function refuse() fail("load: '%s': a tensor stands where the file's header is expected", path) end
  return { storage = refuse, tensor = refuse, parameter = refuse }
end

local function check_header(r, path, hooks)
  local protocol, machine = r:value(hooks), r:value(hooks)
  if protocol ~= PROTOCOL then
    fail("load: '%s': protocol %s of torch.save; known is %d", path, options.show(protocol), PROTOCOL)
  end
  if type(machine) == "table" and machine.little_endian == false then
    fail("load: '%s': its elements are in big-endian order; expected little-endian", path)
  end
end

local int64 = ffi.new("int64_t[1]")

-- Reads the elements of a storage, which begin at the file's place.
local function fill(self, f, key)
  local made, count = self.found[key], f:read(8)
  if not count or #count < 8 then self:fail("the bytes of storage '%s' are missing", key) end
  ffi.copy(int64, count, 8)
  if tonumber(int64[0]) ~= made.count then
    self:fail("storage '%s' has %.0f elements; expected %s", key, tonumber(int64[0]),
      options.show(made.count))
  end
  local left, here = made.count * made.size, f:seek()
  if left > f:seek "end" - here then self:fail("the bytes of storage '%s' are missing", key) end
  made.filled = true
  if not made.tensor then return f:seek("set", here + left) end
  f:seek("set", here)
  local t = made.tensor.device == "cpu" and made.tensor or core.empty({ made.count }, { dtype = made.dtype })
  local to = ffi.cast("char *", t:data_ptr())
  while left > 0 do
    local piece = f:read(math.min(left, PIECE))
    if not piece then self:fail("the bytes of storage '%s' are missing", key) end
    ffi.copy(to, piece, #piece)
    to, left = to + #piece, left - #piece
  end
  if t ~= made.tensor then made.tensor:copy_(t) end
end

-- Reads all storages, in the order of their keys, from the place `at` of the file on.
function Storages:fill(f, at, keys)
  if type(keys) ~= "table" then self:fail("the keys of its storages are no list") end
  f:seek("set", at)
  for _, key in ipairs(keys) do
    if not self.found[key] then self:fail("nothing uses its storage %s", options.show(key)) end
    fill(self, f, key)
  end
  for _, key in ipairs(ordered.keys(self.found)) do
    if not self.found[key].filled then self:fail("the bytes of storage '%s' are missing", key) end
  end
end

local function value_of(f, path, device, left)
  local r = pickle.stream(function(bytes) return f:read(bytes) end, ("load: '%s'"):format(path))
  local hooks, storages = plain(path), storages_of(path, f:seek "end", device)
  f:seek("set", 0)
  r.at = f:read(32):find(MAGIC, 1, true) + #MAGIC
  f:seek("set", 0)
  check_header(r, path, hooks)
  local over, waiting = torch.hooks(path, function(...) return storages:get(...) end), {}
  over.later = function(fn) waiting[#waiting + 1] = fn end
  local value = r:value(over, left)
  local keys = r:value(hooks)
  storages:fill(f, r.at - 1, keys or {})
  for _, fn in ipairs(waiting) do fn() end
  return value
end

--- Returns the value of such a file, and the file. Raises for values that are no plain data, or
--- leaves them out and notes them in `left`.
---@param path string
---@param device string? where tensors go; default: the CPU
---@param left string[]?
---@return any value
---@return { close: function, _check: function } file
function M.load(path, device, left)
  local f, why = io.open(path, "rb")
  if not f then fail("load: %s", why) end
  local ok, value = pcall(value_of, f, path, device, left)
  f:close()
  if not ok then error(value, 0) end
  return value, { close = function() end, _check = function() end }
end

return M
