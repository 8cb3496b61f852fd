--- Files that trackers write. Each write goes to the system at once, so a killed run loses nothing
--- and a forked process has nothing to write twice. Failures outside the script (a full disk, a
--- removed directory) are raised as objects, which `failure` distinguishes from mistakes.
local ffi = require "ffi"
local class = require "accelerate.utils.class"
local fs = require "accelerate.utils.fs"

ffi.cdef [[
typedef long accelerate_ssize;
int open(const char *path, int flags, ...);
accelerate_ssize write(int fd, const void *data, size_t n);
int close(int fd);
int gethostname(char *name, size_t size);
int getpid(void);
struct accelerate_timeval { long sec; long usec; };
int gettimeofday(struct accelerate_timeval *now, void *zone);
]]
local C = ffi.C

-- open(2)'s flags, the same on all Linux processors that LuaJIT runs on.
local O_WRONLY, O_CREAT, O_EXCL, O_APPEND, O_CLOEXEC = 1, 64, 128, 1024, 524288
local EINTR = 4

local M = {}

local Failure = class.open("Failure")
function Failure:init(message) self.message = message end
function Failure:__tostring() return self.message end

--- Raises a failure outside the script.
function M.fail(message, ...)
  if select("#", ...) > 0 then message = message:format(...) end
  error(Failure(message), 0)
end
local fail = M.fail

--- Returns the message of an error from `fail`; nil for other errors.
function M.failure(err) return class.is(err, Failure) and err.message or nil end

local function reason() return ffi.string(C.strerror(ffi.errno())) end

local Out = class.open("Out")

function Out:init(path, how)
  local flags = O_WRONLY + O_CREAT + O_APPEND + O_CLOEXEC + (how and how.new and O_EXCL or 0)
  local fd = C.open(path, flags, ffi.cast("int", 438))  -- 438: 0666, less the umask
  if fd < 0 then fail("cannot open %s: %s", path, reason()) end
  self.path = path
  self._held = ffi.gc(ffi.new("int[1]", fd), function(h)
    if h[0] >= 0 then C.close(h[0]) end
  end)
end

--- Opens a file for appending.
---@param path string
---@param how { new: boolean? }? new: fail if the file exists
function M.open(path, how) return Out(path, how) end

--- Writes all of `text`. Writing to a file that was removed fails, too; the system would accept the
--- text and drop it.
function Out:write(text)
  local fd = self._held[0]
  if fd < 0 then fail("%s is closed", self.path) end
  if not fs.exists(self.path) then fail("%s is gone: it, or a directory above it, was removed", self.path) end
  local at, left = ffi.cast("const char *", text), #text
  while left > 0 do
    local n = tonumber(C.write(fd, at, left))
    if n < 0 then
      if ffi.errno() ~= EINTR then fail("cannot write to %s: %s", self.path, reason()) end
    else
      at, left = at + n, left - n
    end
  end
end

function Out:close()
  local fd = self._held[0]
  if fd < 0 then return end
  self._held[0] = -1
  if C.close(fd) ~= 0 then fail("cannot close %s: %s", self.path, reason()) end
end

--- Makes a directory and its parents. Fails if it cannot.
function M.make_dirs(path)
  local ok, why = fs.make_dirs(path)
  if not ok then fail("%s", why) end
end

--- Replaces a file atomically. Fails if it cannot.
function M.save(path, text)
  local ok, why = fs.write(path, text)
  if not ok then fail("%s", tostring(why)) end
end

--- Copies a file of any size, replacing what is at `to`. Fails if it cannot.
function M.copy(from, to)
  local source, why = io.open(from, "rb")
  if not source then fail("cannot open %s", why) end
  local beside = to .. "." .. M.random_hex(4)
  local out = M.open(beside, { new = true })
  local ok, err = pcall(function()
    for piece in function() return source:read(1048576) end do out:write(piece) end
    out:close()
  end)
  source:close()
  if ok then
    ok, err = fs.rename(beside, to)
    if ok then return end
    err = Failure(err)
  end
  os.remove(beside)
  error(err, 0)
end

local tv = ffi.new("struct accelerate_timeval")

--- Returns the seconds since 1970, to the microsecond.
function M.now()
  C.gettimeofday(tv, nil)
  return tonumber(tv.sec) + tonumber(tv.usec) * 1e-6
end

function M.hostname()
  local name = ffi.new("char[256]")
  if C.gethostname(name, 255) ~= 0 then return "localhost" end
  return ffi.string(name)
end

function M.pid() return C.getpid() end

--- Returns `n` random bytes in hexadecimal, for names that differ between runs whatever the seed.
---@param n integer
function M.random_hex(n)
  local source = io.open("/dev/urandom", "rb")
  local bytes = source and source:read(n)
  if source then source:close() end
  if not bytes or #bytes < n then fail("cannot read /dev/urandom") end
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

--- Returns a name made safe for a path: characters that file systems or tools may refuse become
--- "_".
function M.safe_name(name) return (name:gsub("[^%w%.%-_]", "_")) end

return M
