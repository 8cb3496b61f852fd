-- How long this machine stood still: a virtual machine that its host pauses, a laptop that sleeps.
-- A clerk, a process of its own, sleeps for moments and adds up what each sleep took too long.
local ffi = require "ffi"
require "spec.support.posix"

ffi.cdef [[
  typedef struct { int fd; short events, revents; } spec_poll;
  int poll(spec_poll *list, unsigned long n, int timeout);
  void *mmap(void *at, size_t size, int protection, int flags, int fd, long from);
]]
local C = ffi.C

local M = {}

local MOMENT = 0.01 -- seconds that the clerk sleeps
local LATE = 0.03 -- what a sleep may take longer where nothing stands still

local lost -- seconds, in memory that the clerk writes

-- In the clerk.  `alive` closes when this process ends.
local function keep_books(alive)
  collectgarbage "stop" -- finalisers belong to the process that was copied
  local list, clock = ffi.new("spec_poll[1]", { { alive, 1, 0 } }), ffi.new "spec_time"
  local function now()
    C.clock_gettime(1, clock)
    return tonumber(clock.seconds) + tonumber(clock.nanoseconds) * 1e-9
  end
  local before = now()
  while C.poll(list, 1, MOMENT * 1000) == 0 do
    local at = now()
    if at - before > MOMENT + LATE then lost[0] = lost[0] + (at - before - MOMENT) end
    before = at
  end
end

-- Two forks: the clerk is nobody's child, so that no spec meets it among its own.
local function start()
  local ends = ffi.new "int[2]"
  local READ_WRITE, SHARED_ANONYMOUS, CLOSE_ON_EXEC = 3, 33, 524288
  lost = ffi.cast("double *", C.mmap(nil, 4096, READ_WRITE, SHARED_ANONYMOUS, -1, 0))
  assert(C.pipe2(ends, CLOSE_ON_EXEC) == 0, "no pipe")
  io.stdout:flush()
  local child = C.fork()
  if child == 0 then
    C.close(ends[1])
    if C.fork() == 0 then keep_books(ends[0]) end
    C._exit(0)
  end
  C.close(ends[0]) -- the other end closes with this process
  C.waitpid(child, ffi.new "int[1]", 0)
end

--- Seconds for which this machine stood still since the first call.
---@return number
function M.lost()
  if not lost then start() end
  return lost[0]
end

return M
