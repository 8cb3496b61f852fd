-- host/repl.c: the prompt, on a real (pseudo) terminal.
local ffi = require "ffi"
local host = require "spec.support.host"
local processes = require "spec.support.processes"

ffi.cdef [[
  int posix_openpt(int flags);
  int forkpty(int *terminal, char *name, const void *settings, const void *size);
  long read(int fd, void *buf, size_t n);
  long write(int fd, const void *buf, size_t n);
  int close(int fd);
  typedef struct { int fd; short events, revents; } spec_poll;
  int poll(spec_poll *list, unsigned long n, int timeout);
]]
local C = ffi.C

-- A session: send(text) types, expect(pattern) waits for output that was not yet expected.
local Session = {}
Session.__index = Session

local function open(arguments, env)
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
    for name, value in pairs(env or {}) do C.setenv(name, value, 1) end
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
  local deadline = processes.now() + 10 * host.stretch()
  while true do
    local first, last, capture = self.text:find(pattern, self.at)
    if first then
      self.at = last + 1
      return capture
    end
    if self.closed or processes.now() > deadline then
      self:stop()
      error(("%q did not appear in: %s"):format(pattern, self.text:sub(self.at)), 2)
    end
    self:pump(100)
  end
end

function Session:send(text) C.write(self.fd, text, #text) end

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

local function at_terminal(name, body)
  it(name, function()
    if not has_terminal() then
      return pending("needs pseudo terminals, which this root has not: no /dev/pts")
    end
    body()
  end)
end

describe("the prompt", function()
  local s
  local function start(arguments, env) s = open(arguments or {}, env) end

  at_terminal("prints the values of expressions", function()
    start()
    s:ask("1 + 1", "^2\n")
    s:ask("'a', nil, 3", "^a\tnil\t3\n")
    s:ask("= 7", "^7\n")
    s:ask("x = 5", "")
    s:ask("x * 2", "^10\n")
    s:expect("> $")
    s:send("\4")
    assert.equal(0, s:finish())
  end)

  at_terminal("reads statements over several lines", function()
    start()
    s:ask("for i = 1, 3 do", "")
    s:expect(">> $")
    s:send("  io.write(i, ';')\n")
    s:expect(">> $")
    s:send("end\n")
    s:expect("1;2;3;")
    s:stop()
  end)

  at_terminal("goes on after errors", function()
    start()
    s:ask("error('oops')", "accel%-run: .*oops\nstack traceback:")
    s:ask("x x", "'=' expected near 'x'")
    s:ask("nil + 1", "arithmetic on a nil value")
    s:ask("setmetatable({}, { __tostring = function() error('no') end })", "could not be printed")
    s:ask("2 * 3", "^6\n")
    s:stop()
  end)

  at_terminal("drops the line, and unfinished input, at Ctrl-C", function()
    start()
    s:expect("> $")
    s:send("y = 'dropped'")
    s:expect("dropped'")
    s:send("\3")
    s:ask("y", "^nil\n")
    s:ask("function f()", "")
    s:expect(">> $")
    s:send("\3")
    s:ask("4 * 4", "^16\n")
    s:stop()
  end)

  at_terminal("stops what runs at Ctrl-C, compiled or not, and keeps the session", function()
    start()
    s:ask("kept = 3", "")
    for _, loop in ipairs { "while true do os.time() end", "while true do kept = kept + 1 end",
      "local i = 0 while true do i = i + 1 end" } do
      s:ask("io.write('on\\n') " .. loop, "^on\n")
      processes.sleep(0.2) -- it is compiled by then
      s:send("\3")
      s:expect("interrupted\nstack traceback:")
      s:ask("3 * 3", "^9\n")
    end
    s:ask("kept > 3", "^true\n")
    s:stop()
  end)

  at_terminal("has the library's modules as globals, loaded when they are named", function()
    start()
    s:ask("package.loaded['accelerate.tensor'] == nil", "^true\n")
    s:ask("tensor.ones(2):sum():item()", "^2\n")
    s:ask("package.loaded['accelerate.tensor'] == tensor", "^true\n")
    s:ask("no_such_thing", "^nil\n")
    s:stop()
  end)

  at_terminal("follows a script with -i, also one that fails", function()
    host.in_folder(function(folder)
      local path = folder .. "/s.lua"
      local f = assert(io.open(path, "w"))
      f:write("value = 42\nif arg[1] then error('failed') end\n")
      f:close()
      start { "-i", path }
      s:ask("value", "^42\n")
      s:stop()
      start { "-i", path, "x" }
      s:expect(":2: failed\nstack traceback:")
      s:ask("value", "^42\n")
      s:stop()
    end)
  end)

  at_terminal("remembers lines from one session to the next", function()
    host.in_folder(function(folder)
      local env = { ACCELERATE_HISTORY = folder .. "/history" }
      start({}, env)
      s:ask("'remembered ' .. 1", "^remembered 1\n")
      s:expect("> $")
      s:send("\4")
      assert.equal(0, s:finish())
      start({}, env)
      s:expect("> $")
      s:send("\16\n") -- Ctrl-P: the line before
      s:expect("\nremembered 1\n")
      s:stop()
    end)
  end)

  at_terminal("takes UTF-8", function()
    start()
    s:ask("#'é'", "^2\n")
    s:stop()
  end)

  it("is not used when stdin is no terminal", function()
    local status, out = host.run({}, { stdin = "print 'from stdin'" })
    assert.equal(0, status)
    assert.equal("from stdin\n", out)
  end)
end)
