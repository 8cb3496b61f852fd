--- How fast weights are read where they rest: measured in some hundredths of a second, or stated.
local core = require "accelerate.core"

local M = {}

local ROUNDS = 3 -- the fastest counts
local MEMORY, DEVICE, TRANSFER = 64e6, 256e6, 64e6 -- bytes: more than caches hold
local COLS = 2048

local function fastest(device, run)
  local least = math.huge
  run() -- pages, buffers and code come to their places
  for _ = 1, ROUNDS do
    if device ~= "cpu" then core.synchronize(device) end
    local began = core._wall()
    run()
    if device ~= "cpu" then core.synchronize(device) end
    least = math.min(least, core._wall() - began)
  end
  return math.max(least, 1e-9)
end

-- An encoded matrix of about `bytes`: { codes, scales, more }, its rows and bytes.
local function encoded_matrix(name, bytes, device)
  local info, size = core._encodings()[name], 64
  local rows = math.max(1, math.floor(bytes / (COLS / info.block * info.bytes)))
  local n = rows * COLS
  local function filled(shape, value, dtype)
    return core.full(shape, value, { dtype = dtype, device = device })
  end
  local parts = { filled({ n / info.block * info.bytes }, 17, "uint8") }
  local scales = ({ nf4 = { n / size }, fp4 = { n / size }, int8 = { rows }, affine4 = { rows, COLS / size },
    affine8 = { rows, COLS / size }, fp8 = { math.ceil(rows / size), COLS / size },
    fp8_rows = { rows } })[name]
  if scales then parts[2] = filled(scales, 1, "float32") end
  if name:find "^affine" then parts[3] = filled(scales, 8, "uint8") end
  local total = 0
  for i = 1, 3 do total = total + (parts[i] and parts[i]:numel() * parts[i]:element_size() or 0) end
  return parts, rows, total
end

--- Returns the bytes of weights that a product of one row reads in a second, out of memory of the
--- device that computes.
---@param device string
---@param kind string the type of the weights, or the name of their encoding
---@return number
function M.products(device, kind)
  local bytes = device == "cpu" and MEMORY or DEVICE
  local x = core.ones({ 1, COLS }, { device = device })
  return core.no_grad(function()
    local info = core._encodings()[kind]
    if info then
      local row, parts, rows, total = core._row "_linear_encoded", encoded_matrix(kind, bytes, device)
      return total / fastest(device, function()
        return row(x, parts[1], parts[2], parts[3], nil, info.number, rows, COLS, 64, kind == "int8" and 6
          or nil)
      end)
    end
    x = x:to(kind)
    local rows = math.floor(bytes / x:element_size() / COLS)
    local weight = core.full({ rows, COLS }, 0.5, { dtype = kind, device = device })
    return bytes / fastest(device, function() return core.linear(x, weight) end)
  end)
end

--- Returns the bytes that come from memory of the host to a device in a second.
---@param device string
---@return number
function M.transfers(device)
  local home = core.full({ TRANSFER / 4 }, 1, {})
  local fine, pinned = pcall(home.pin_memory, home)
  if fine then home = pinned end
  return TRANSFER / fastest(device, function() return home:to(device) end)
end

-- ---- files

local O_DIRECT, CHUNK, PARTS = 0x4000, 4 * 2 ^ 20, 16 -- O_DIRECT of x86-64: past the page cache

local ffi
local function libc()
  if not ffi then
    ffi = require "ffi"
    ffi.cdef [[
      int open(const char *path, int flags, ...);
      int close(int fd);
      long read(int fd, void *to, size_t n);
    ]]
  end
  return ffi.C
end

--- Returns the bytes of a file that the disk gives in a second, past the page cache; nil and why
--- where the file system has no such reads.
---@param path string
---@return number? speed
---@return string? why
function M.disk(path)
  local C = libc()
  local fd = C.open(path, O_DIRECT)
  if fd < 0 then return nil, "its file system has no reads past the page cache" end
  local room = ffi.new("char[?]", CHUNK + 4096)
  local address = tonumber(ffi.cast("uintptr_t", room))
  local to = room + (4096 - address % 4096) % 4096
  local sum, began = 0, core._wall()
  for _ = 1, PARTS do
    local n = tonumber(C.read(fd, to, CHUNK))
    if n <= 0 then break end
    sum = sum + n
  end
  local seconds = core._wall() - began
  C.close(fd)
  if sum == 0 then return nil, "it could not be read" end
  return sum / math.max(seconds, 1e-9)
end

return M
