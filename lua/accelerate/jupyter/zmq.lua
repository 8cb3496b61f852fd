--- ZeroMQ sockets: the few calls of libzmq that a kernel needs. The library is opened at run time.
local ffi = require "ffi"

ffi.cdef [[
typedef struct { unsigned char bytes[64]; } __attribute__((aligned(8))) accelerate_zmq_msg;
typedef struct { void *socket; int fd; short events, revents; } accelerate_zmq_item;
void *zmq_ctx_new(void);
int zmq_ctx_term(void *context);
void *zmq_socket(void *context, int type);
int zmq_close(void *socket);
int zmq_bind(void *socket, const char *address);
int zmq_connect(void *socket, const char *address);
int zmq_setsockopt(void *socket, int option, const void *value, size_t size);
int zmq_poll(accelerate_zmq_item *items, int n, long milliseconds);
int zmq_send(void *socket, const void *data, size_t size, int flags);
int zmq_msg_init(accelerate_zmq_msg *m);
int zmq_msg_recv(accelerate_zmq_msg *m, void *socket, int flags);
void *zmq_msg_data(accelerate_zmq_msg *m);
size_t zmq_msg_size(const accelerate_zmq_msg *m);
int zmq_msg_more(const accelerate_zmq_msg *m);
int zmq_msg_close(accelerate_zmq_msg *m);
int zmq_errno(void);
const char *zmq_strerror(int number);
int getppid(void);
]]

local M = { PUB = 1, SUB = 2, REQ = 3, REP = 4, DEALER = 5, ROUTER = 6 }

local IDENTITY, SUBSCRIBE, LINGER, MAXMSGSIZE, ROUTER_MANDATORY = 5, 6, 17, 22, 33
local DONTWAIT, SNDMORE, POLLIN = 1, 2, 1
local EINTR, EAGAIN = 4, 11
local LINGER_MS = 500
local MOST = 256 * 2 ^ 20 -- bytes of a frame that is received

local lib, context

-- ---- the library

-- The library that a process has loaded: Jupyter's has the one inside pyzmq's wheel.
local function mapped(pid)
  local file = pid and io.open(("/proc/%d/maps"):format(pid))
  local found
  for line in file and file:lines() or function() end do
    found = found or line:match("%s(/.*/libzmq[^/]*%.so[^/]*)$")
  end
  if file then file:close() end
  return found
end

-- Where pip has put pyzmq, its folder pyzmq.libs is beside it.
local PYZMQ = [[python3 -c '
import glob, importlib.util, os
origin = importlib.util.find_spec("zmq").origin
for path in glob.glob(os.path.join(os.path.dirname(origin), "..", "pyzmq.libs", "libzmq*")):
    print(path)' 2>/dev/null]]

local function of_python()
  local pipe = io.popen(PYZMQ)
  local path = pipe and pipe:read "*l"
  if pipe then pipe:close() end
  return path
end

local places = {
  function() return "libzmq.so.5" end,
  function() return "libzmq.so" end,
  function() return mapped(tonumber(os.getenv "JPY_PARENT_PID")) end,
  function() return mapped(ffi.C.getppid()) end,
  of_python,
}

--- Opens the library: the system's, else the one that Jupyter's own process has loaded, else the
--- one of python3's package pyzmq.
---@return boolean? opened nil where none can be loaded
---@return string? problem with the loader's words
function M.open()
  local words = {}
  if lib then return true end
  for _, place in ipairs(places) do
    local name = place()
    local fine, found = pcall(ffi.load, name or "")
    if name and fine then
      lib = found
      return true
    end
    if name then words[#words + 1] = tostring(found) end
  end
  return nil, (
    "libzmq cannot be loaded (Debian's and Ubuntu's package is libzmq5, pip's is pyzmq): %s"):format(
    table.concat(words, "; "))
end

local function reason() return ffi.string(lib.zmq_strerror(lib.zmq_errno())) end

local function set(socket, option, kind, value)
  lib.zmq_setsockopt(socket, option, ffi.new(kind .. "[1]", value), ffi.sizeof(kind))
end

--- Makes a socket.
---@param kind integer M.ROUTER and its like
---@return ffi.cdata* socket
function M.socket(kind)
  context = context or lib.zmq_ctx_new()
  local socket = lib.zmq_socket(context, kind)
  if socket == nil then error("kernel: no socket: " .. reason(), 0) end
  set(socket, LINGER, "int", LINGER_MS)
  set(socket, MAXMSGSIZE, "int64_t", MOST)
  if kind == M.SUB then lib.zmq_setsockopt(socket, SUBSCRIBE, "", 0) end
  return socket
end

--- Names the socket for ROUTER sockets that it connects to.
---@param socket ffi.cdata*
---@param name string
function M.name(socket, name) lib.zmq_setsockopt(socket, IDENTITY, name, #name) end

--- Binds to an address.
---@param socket ffi.cdata*
---@param address string "tcp://127.0.0.1:5555"
function M.bind(socket, address)
  if lib.zmq_bind(socket, address) ~= 0 then
    error(("kernel: %s cannot be used: %s"):format(address, reason()), 0)
  end
end

--- Connects to an address.
---@param socket ffi.cdata*
---@param address string
function M.connect(socket, address)
  if lib.zmq_connect(socket, address) ~= 0 then
    error(("kernel: %s cannot be used: %s"):format(address, reason()), 0)
  end
end

--- Waits until one of the sockets and files can be read.
---@param list any[] sockets and numbers of files
---@param milliseconds integer -1: no limit
---@return table<any, true> ready
function M.poll(list, milliseconds)
  local items = ffi.new("accelerate_zmq_item[?]", #list)
  for i, one in ipairs(list) do
    items[i - 1].events = POLLIN
    if type(one) == "number" then items[i - 1].fd = one else items[i - 1].socket = one end
  end
  lib.zmq_poll(items, #list, milliseconds)
  local ready = {}
  for i, one in ipairs(list) do ready[one] = items[i - 1].revents ~= 0 or nil end
  return ready
end

local function receive_frame(socket, message)
  while lib.zmq_msg_recv(message, socket, DONTWAIT) < 0 do
    local number = lib.zmq_errno()
    if number == EAGAIN then return nil end
    if number ~= EINTR then error("kernel: a message cannot be read: " .. reason(), 0) end
  end
  return ffi.string(lib.zmq_msg_data(message), lib.zmq_msg_size(message))
end

--- Returns the frames of the next message; nil when none is there.
---@param socket ffi.cdata*
---@return string[]?
function M.receive(socket)
  local message, frames = ffi.new("accelerate_zmq_msg"), {}
  lib.zmq_msg_init(message)
  repeat
    local frame = receive_frame(socket, message)
    frames[#frames + 1] = frame
  until not frame or lib.zmq_msg_more(message) == 0
  lib.zmq_msg_close(message)
  return #frames > 0 and frames or nil
end

--- Makes `send` of a ROUTER socket return false while no peer has the name in the first frame.
---@param socket ffi.cdata*
function M.know_peers(socket) set(socket, ROUTER_MANDATORY, "int", 1) end

--- Sends frames as one message. A peer that is gone is not an error.
---@param socket ffi.cdata*
---@param frames string[]
---@return boolean sent
function M.send(socket, frames)
  for i, frame in ipairs(frames) do
    while lib.zmq_send(socket, frame, #frame, i < #frames and SNDMORE or 0) < 0 do
      if lib.zmq_errno() ~= EINTR then return false end
    end
  end
  return true
end

--- Closes sockets, after the messages under way have left.
---@param sockets table<any, ffi.cdata*>
function M.close(sockets)
  for _, socket in pairs(sockets) do lib.zmq_close(socket) end -- each by itself
  if context then lib.zmq_ctx_term(context) end
  context = nil
end

return M
