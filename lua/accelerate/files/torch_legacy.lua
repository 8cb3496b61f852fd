--- PyTorch's files from before version 1.6, which are no archive: pickles of a magic number, the
--- protocol, facts about the writer's machine, the value and the keys of its storages, then the
--- storages in the order of their keys, each a number of elements and their bytes.
local ffi = require "ffi"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
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

-- Makes values without their tensors, and notes the storages that they need.
local function survey(path, needed)
  local none = core.zeros(1)
  return {
    storage = function(kind, key, count)
      local dtype, other, size = torch.dtype_of(kind), names.other_storage(kind)
      if not dtype and not other then
        fail("load: '%s': a tensor of %s, whose size is not known", path, kind)
      end
      size = size or core.empty({ 0 }, { dtype = dtype }):element_size()
      needed[key] = needed[key] or { dtype = dtype, size = size, count = count }
      return dtype and none
    end,
    tensor = function() return none:detach() end,
    parameter = function(t) return t end,
  }
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

-- The elements of the storage that begins at the file's place, a 1-d tensor; nil, behind them,
-- where there are no tensors of their type.
local function elements(f, path, key, entry)
  local count = f:read(8)
  if not count or #count < 8 then fail("load: '%s': the bytes of storage '%s' are missing", path, key) end
  ffi.copy(int64, count, 8)
  if tonumber(int64[0]) ~= entry.count then
    fail("load: '%s': storage '%s' has %.0f elements; expected %s", path, key, tonumber(int64[0]),
      options.show(entry.count))
  end
  local left = entry.count * entry.size
  local here = f:seek()
  if entry.count < 0 or entry.count % 1 ~= 0 or left > f:seek("end") - here then
    fail("load: '%s': the bytes of storage '%s' are missing", path, key)
  end
  if not entry.dtype then return f:seek("set", here + left) and nil end
  f:seek("set", here)
  local t = core.empty({ entry.count }, { dtype = entry.dtype })
  local to = ffi.cast("char *", t:data_ptr())
  while left > 0 do
    local piece = f:read(math.min(left, PIECE))
    if not piece then fail("load: '%s': the bytes of storage '%s' are missing", path, key) end
    ffi.copy(to, piece, #piece)
    to, left = to + #piece, left - #piece
  end
  return t
end

-- All storages by key, from the place `at` of the file on.
local function storages(f, at, path, keys, needed, device)
  if type(keys) ~= "table" then fail("load: '%s': the keys of its storages are no list", path) end
  local found = {}
  f:seek("set", at)
  for _, key in ipairs(keys) do
    if not needed[key] then
      fail("load: '%s': nothing uses its storage %s", path, options.show(key))
    end
    local t = elements(f, path, key, needed[key])
    found[key] = t and device and t:to(device) or t
  end
  return function(kind, key, count)
    local t = found[key]
    if not torch.dtype_of(kind) then return nil end
    if not t then fail("load: '%s': the bytes of storage '%s' are missing", path, key) end
    if t.dtype ~= torch.dtype_of(kind) then
      fail("load: '%s': storage '%s' has two types", path, key)
    end
    if t:numel() ~= count then
      fail("load: '%s': storage '%s' has %d elements; expected %s", path, key, t:numel(), options.show(count))
    end
    return t
  end
end

local function value_of(f, path, device, left)
  local r = pickle.stream(function(bytes) return f:read(bytes) end, ("load: '%s'"):format(path))
  local needed, hooks = {}, plain(path)
  r.at = f:read(32):find(MAGIC, 1, true) + #MAGIC
  f:seek("set", 0)
  check_header(r, path, hooks)
  local start = r.at
  r:value(survey(path, needed), left and {})
  local keys = r:value(hooks)
  local read = storages(f, r.at - 1, path, keys or {}, needed, device)
  r.at = start
  return r:value(torch.hooks(path, read), left)
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
