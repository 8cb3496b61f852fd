-- Sessions at a real (pseudo) terminal.
local ffi = require "ffi"
local host = require "spec.support.host"
local processes = require "spec.support.processes"

ffi.cdef [[
  int posix_openpt(int flags);
  int forkpty(int *terminal, char *name, const void *settings, const void *size);
  long read(int fd, void *buf, size_t n);
  long write(int fd, const void *buf, size_t n);
  int unsetenv(const char *name);
]]
local C = ffi.C

-- A session: send(text) types, expect(pattern) waits for output that was not yet expected.
local Session = {}
Session.__index = Session

--- Starts the host on a terminal of its own.
---@param arguments string[]
---@param env table<string, string|false>? false: not set; over TERM=dumb, a UTF-8 locale and no
---  history
function Session.open(arguments, env)
  local terminal = ffi.new("int[1]")
  local argv = ffi.new("const char *[?]", #arguments + 2)
  argv[0] = host.path
  for i, word in ipairs(arguments) do argv[i] = word end
  io.stdout:flush()
  local pid = C.forkpty(terminal, nil, nil, nil)
  if pid == 0 then
    C.setenv("TERM", "dumb", 1)
    C.setenv("LC_ALL", "C.UTF-8", 1)
    C.setenv("ACCELERATE_HISTORY", "", 1)
    for name, value in pairs(env or {}) do
      if value then C.setenv(name, value, 1) else C.unsetenv(name) end
    end
    C.execv(host.path, ffi.cast("char *const *", argv))
    C._exit(127)
  end
  assert(pid > 0, "forkpty failed")
  return setmetatable({ pid = pid, fd = terminal[0], text = "", at = 1 }, Session)
end

function Session:pump(milliseconds)
  local p = ffi.new("spec_poll[1]", { { self.fd, 1, 0 } })
  if C.poll(p, 1, milliseconds) <= 0 then return end
  local buf = ffi.new("char[4096]")
  local n = C.read(self.fd, buf, 4096)
  if n > 0 then self.text = self.text .. ffi.string(buf, n):gsub("\r", "") else self.closed = true end
end

function Session:expect(pattern)
  local first, last, capture
  local function appears()
    first, last, capture = self.text:find(pattern, self.at)
    if not first and not self.closed then self:pump(20) end
    return first
  end
  if not processes.wait_until(10, appears, nil, function() return self.closed end) then
    self:stop()
    error(("%q did not appear in: %s"):format(pattern, self.text:sub(self.at)), 2)
  end
  self.at = last + 1
  return capture
end

function Session:send(text) C.write(self.fd, text, #text) end

-- Types `key` several times a second until the pattern appears: of two signals that a busy machine
-- hands over together one is lost.
function Session:insist(key, pattern)
  local typed = 0
  processes.wait_until(10, function()
    if processes.now() - typed > 0.3 then
      self:send(key)
      typed = processes.now()
    end
    self:pump(20)
    return self.closed or self.text:find(pattern, self.at)
  end)
  return self:expect(pattern)
end

-- Types a line at the prompt and waits for the answer.
function Session:ask(line, pattern)
  self:expect("> $")
  self:send(line .. "\n")
  self:expect("\n")
  return self:expect(pattern)
end

function Session:stop()
  processes.kill(self.pid, 9)
  C.waitpid(self.pid, ffi.new("int[1]"), 0)
  C.close(self.fd)
end

function Session:finish()
  local status = ffi.new("int[1]")
  assert(processes.wait_until(10, function()
    self:pump(1)
    return C.waitpid(self.pid, status, 1) == self.pid
  end), "the prompt did not end")
  C.close(self.fd)
  return bit.rshift(status[0], 8)
end

-- A root without /dev/pts (a plain chroot, say) has no pseudo terminals.
local function has_terminal()
  local fd = C.posix_openpt(2) -- O_RDWR
  if fd >= 0 then C.close(fd) end
  return fd >= 0
end

--- Returns a function that writes a spec which needs a pseudo terminal: at_terminal(name, body).
---@param it function busted's
---@param pending function busted's
function Session.specs(it, pending)
  return function(name, body)
    it(name, function()
      if not has_terminal() then
        return pending("needs pseudo terminals, which this root has not: no /dev/pts")
      end
      body()
    end)
  end
end

return Session
