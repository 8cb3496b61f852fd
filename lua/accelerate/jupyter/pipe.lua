--- Between the process that speaks the protocol and the one that runs cells: messages (tables, as
--- JSON) over a pair of sockets, and pipes for what cells print.
local ffi = require "ffi"
local json = require "accelerate.utils.json"

ffi.cdef [[
int socketpair(int domain, int type, int protocol, int *pair);
int pipe2(int *pair, int flags);
int dup2(int from, int to);
int close(int fd);
long read(int fd, void *to, size_t n);
long send(int fd, const void *from, size_t n, int flags);
int fcntl(int fd, int command, ...);
int fflush(void *file);
long syscall(long number, ...);
]]

local M = {}

local AF_UNIX, SOCK_STREAM, SOCK_CLOEXEC, O_CLOEXEC = 1, 1, 524288, 524288
local F_SETFL, O_NONBLOCK = 4, 2048
local EINTR = 4
local SYS_pidfd_open = ffi.cast("long", 434)
local MSG_NOSIGNAL = 16384 -- the other process may be gone
local ROOM = 65536

local room = ffi.new("char[?]", ROOM)

local function pair_of(made, pair)
  if made ~= 0 then error("kernel: no pipe for the process that runs cells", 0) end
  return pair[0], pair[1]
end

--- Returns the two ends of a pair of sockets.
---@return integer
---@return integer
function M.sockets()
  local pair = ffi.new("int[2]")
  return pair_of(ffi.C.socketpair(AF_UNIX, SOCK_STREAM + SOCK_CLOEXEC, 0, pair), pair)
end

--- Returns a pipe's end for reading, which never waits, and its end for writing.
---@return integer
---@return integer
function M.pipe()
  local pair = ffi.new("int[2]")
  local from, to = pair_of(ffi.C.pipe2(pair, O_CLOEXEC), pair)
  ffi.C.fcntl(from, F_SETFL, ffi.cast("int", O_NONBLOCK))
  return from, to
end

--- Returns a file that can be read when the process has ended; nil: there is no such process, or
--- the kernel of this system is older than Linux 5.3.
---@param pid integer
---@return integer?
function M.process(pid)
  local fd = tonumber(ffi.C.syscall(SYS_pidfd_open, ffi.cast("int", pid), ffi.cast("int", 0)))
  return fd >= 0 and fd or nil
end

--- Makes `to` another name of a file.
---@param fd integer
---@param to integer
function M.redirect(fd, to) ffi.C.dup2(fd, to) end

---@param fd integer
function M.close(fd) ffi.C.close(fd) end

--- Writes out what C and Lua hold back of the output.
function M.flush() ffi.C.fflush(nil) end

-- Up to n bytes; "" at the end, nil when there is nothing now.
local function read_some(fd, n)
  while true do
    local got = tonumber(ffi.C.read(fd, room, math.min(n, ROOM)))
    if got >= 0 then return ffi.string(room, got) end
    if ffi.errno() ~= EINTR then return nil end
  end
end

--- Returns what is in a pipe now, up to a piece; nil when it is empty or at its end.
---@param fd integer
---@return string?
function M.take(fd)
  local piece = read_some(fd, ROOM)
  return piece ~= "" and piece or nil
end

local function read_all(fd, n)
  local parts = {}
  while n > 0 do
    local piece = read_some(fd, n)
    if not piece or piece == "" then return nil end
    parts[#parts + 1], n = piece, n - #piece
  end
  return table.concat(parts)
end

--- Sends a message; false when the other end is closed.
---@param fd integer
---@param value table
---@return boolean
function M.send(fd, value)
  local text = json.encode(value)
  local bytes = ffi.string(ffi.new("uint32_t[1]", #text), 4) .. text
  local at = 0
  while at < #bytes do
    local rest = ffi.cast("const char *", bytes) + at
    local wrote = tonumber(ffi.C.send(fd, rest, #bytes - at, MSG_NOSIGNAL))
    if wrote >= 0 then at = at + wrote
    elseif ffi.errno() ~= EINTR then return false end
  end
  return true
end

--- Waits for a message; nil when the other end is closed.
---@param fd integer
---@return table?
function M.receive(fd)
  local head = read_all(fd, 4)
  local text = head and read_all(fd, tonumber(ffi.cast("const uint32_t *", head)[0]))
  return text and json.decode(text)
end

return M
