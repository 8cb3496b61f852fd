-- host/script/ends.c, and host/launch/launch_report.c: ends of a process that no Lua error
-- announces, and their reports.
local host = require "spec.support.host"
local processes = require "spec.support.processes"
local messages = require "spec.support.messages"

local has, matches = messages.has, messages.matches

local LIMITED = [[
local ffi = require "ffi"
ffi.cdef "struct limit { unsigned long now, most; }; int setrlimit(int what, const struct limit *l);"
local RLIMIT_CPU, RLIMIT_DATA = 0, 2
local function limit(what, n) assert(ffi.C.setrlimit(what, ffi.new("struct limit", n, 2 * n)) == 0) end
local function data()
  for line in io.lines "/proc/self/status" do
    local kb = line:match "^VmData:%s+(%d+)"
    if kb then return tonumber(kb) * 1024 end
  end
end
]]

-- Status and stderr of a run of n ranks; rank 1 or the only one runs `body`, the others wait for
-- it.  Its first line is line 13.
local FIRST = 13
local function run(n, body)
  local path = processes.script(LIMITED ..
    'local core = require "accelerate.core"\nif core.dist.rank() == ' ..
    n - 1 .. " then\n" .. body .. '\nend\nif core.dist.world_size() > 1 then core.dist.barrier() end')
  local status, _, err = host.run({ "--cpu", "--num_processes", tostring(n), path }, { seconds = 60 })
  return status, err, path
end

-- On one rank and on the second of two: the text and the line that are to be reported.
local function reported(body, text, line)
  local status, err, path = run(1, body)
  assert.equal(1, status)
  matches(err, ("accel%%-run: %s:%d: "):format(path:gsub("%p", "%%%0"), line))
  has(err, text)
  status, err, path = run(2, body)
  assert.equal(1, status)
  has(err, "rank 1 of 2 failed: " .. text)
  has(err, ("accel-run: rank 1 failed at %s:%d (exit status 1)"):format(path, line))
end

describe("an end that no error announces:", function()
  after_each(processes.clean)

  local sanitized = host.path:find("[at]san") and "a sanitizer has its own memory and handlers"

  it("no memory for compiled code is reported with the line and the limit", function()
    if sanitized then return pending(sanitized) end
    reported([[
      local hot = {}
      for i = 1, 300 do
        hot[i] = loadstring(("local n = 0 for i = 1, 2000 do n = n + i % " .. i .. " end return n"))
      end
      limit(RLIMIT_DATA, data())
      for i = 1, 300 do hot[i]() end]],
      "out of memory: LuaJIT could not make 4 MiB for compiled code writable (", FIRST + 5)
  end)

  it("Lua's objects without memory are told from tensors, with the limit", function()
    if sanitized then return pending(sanitized) end
    local status, err = run(2, [[
      limit(RLIMIT_DATA, data() + 40e6)
      local kept = {}
      for i = 1, 1e7 do kept[i] = { i } end]])
    assert.equal(1, status)
    matches(err, "rank 1 of 2 failed: [^\n]*not enough memory for Lua's own objects; the process may have " ..
      "%d+%.%d MB of data %(ulimit %-d%)\n")
  end)

  it("a full C stack is reported with the line", function()
    if sanitized then return pending(sanitized) end
    local text = "C stack overflow ("
    reported("local function f() return (('x'):gsub('x', f)) end f()", text, FIRST)
    reported("local function f()\nreturn coroutine.wrap(f)()\nend\nf()", text, FIRST + 3)
  end)

  it("another fault ends the process by its signal", function()
    if sanitized then return pending(sanitized) end
    local status, err = run(2, "ffi.cast('int *', 8)[0] = 1")
    assert.equal(139, status)
    has(err, "rank 1 of 2 was killed by SIGSEGV; it was running for")
    assert.equal(139, (run(2, "os.execute 'kill -SEGV $PPID'")))
  end)

  it("an exit of C's with a status is none of a finished rank", function()
    local status, err = run(2, "ffi.cdef 'void exit(int);' ffi.C.exit(4)")
    assert.equal(4, status)
    has(err, "rank 1 of 2 exited with status 4; it was running for")
  end)

  it("a signal of the kernel's is explained", function()
    local status, err = run(2, "limit(RLIMIT_CPU, 1) while true do end")
    assert.equal(128 + 24, status)
    has(err, "rank 1 of 2 was killed by SIGXCPU (as the kernel does at a limit of processor time, ulimit -t)")
  end)
end)
