-- host/launch/launch.c and the failing side of host/core/dist/shm.c: who is named, what the others
-- see, how soon, and what is left.
local host = require "spec.support.host"
local processes = require "spec.support.processes"
local messages = require "spec.support.messages"

local has, matches = messages.has, messages.matches

-- Status, stderr and seconds of a run of n ranks; the line numbers of `body` start at 3.
local function run(n, body, options)
  local path = processes.script(
    "local core = require 'accelerate.core'\nlocal dist, rank, line = core.dist, core.dist.rank(), " ..
    "debug.getinfo\n" .. body)
  local arguments = { "--num_processes", tostring(n), path }
  for i, word in ipairs(options or {}) do table.insert(arguments, i, word) end
  local elapsed = processes.stopwatch()
  local status, _, err = host.run(arguments, { seconds = 60 })
  return status, err, elapsed(), path
end

local function last_line(text) return text:match("([^\n]*)\n?$") end
local function lacks(text, pattern)
  assert.is_nil(text:find(pattern), ("%q is in:\n%s"):format(pattern, text))
end

describe("a failing rank", function()
  after_each(processes.clean)

  it("that raises ends the run within a second, with its traceback, line and status last", function()
    local status, err, seconds, path = run(3,
      "dist.barrier()\nlocal function inner() error('boom') end\nif rank == 1 then\n  " ..
      "inner()\nend\ndist.all_reduce(core.ones(7))")
    assert.equal(1, status)
    assert.is_true(seconds < 3, seconds)
    matches(err, "rank 1 of 3 failed: [^\n]*:4: boom\nstack traceback:\n")
    matches(err, ":4: in function 'inner'\n[^\n]*:6: in main chunk\n")
    assert.equal(("accel-run: rank 1 failed at %s:4 (exit status 1)"):format(path), last_line(err))
    local _, count = err:gsub("stack traceback", "")
    assert.equal(1, count)
  end)

  it("wakes the others with an error that names it, which is not reported as theirs", function()
    local status, err = run(2, [[
      dist.barrier()
      if rank == 1 then
        require("ffi").cdef "int usleep(unsigned);"
        for _ = 1, 300 do require("ffi").C.usleep(1000) end -- rank 0 waits by then
        error("boom")
      end
      local ok, message = pcall(dist.all_reduce, core.ones(3))
      io.stderr:write("caught: " .. message .. "\n")
      local again, second = pcall(dist.barrier)
      assert(not again)
      error(message, 0)
    ]])
    assert.equal(1, status)
    matches(err, "caught: [^\n]*:9: all_reduce: rank 1 failed: [^\n]*:7: boom\n")
    matches(err, "rank 0 +in #2, all_reduce%(float32, 3 elements, sum%) at [^\n]*:9, for %d+%.%d s\n")
    matches(last_line(err), "^accel%-run: rank 1 failed at .*:7 %(exit status 1%)$")
    lacks(err, "rank 0 of 2 failed")
  end)

  it("that computes when another fails is ended as well", function()
    local status, err, seconds = run(3,
      "dist.barrier()\nlocal soon = os.clock() + 0.1\nwhile rank < 2 or os.clock() < soon do os.time() " ..
      "end\nerror('boom')")
    assert.equal(1, status)
    assert.is_true(seconds < 2.5, seconds)
    matches(err, "rank 0 +running for")
    has(err, "rank 2 failed at")
  end)

  it("that ignores SIGTERM is killed", function()
    local status, _, seconds = run(2, [[
      local ffi = require "ffi"
      ffi.cdef "void (*signal(int sig, void (*handler)(int)))(int);"
      ffi.C.signal(15, ffi.cast("void (*)(int)", 1))
      dist.barrier()
      if rank == 1 then error("boom") end
      while true do os.time() end
    ]])
    assert.equal(1, status)
    assert.is_true(seconds < 3, seconds)
  end)

  it("that calls os.exit gives the run its status and line", function()
    local status, err, seconds, path = run(2,
      "dist.barrier()\nif rank == 1 then os.exit(3) end\ndist.barrier()")
    assert.equal(3, status)
    assert.is_true(seconds < 3, seconds)
    matches(err, "rank 1 of 2 failed: os.exit%(3%) was called\nstack traceback:")
    assert.equal(("accel-run: rank 1 failed at %s:4 (exit status 3)"):format(path), last_line(err))
    assert.equal(1, (run(2, "if rank == 0 then os.exit(false) end dist.barrier()")))
  end)

  it("that exits behind Lua's back is named with its status", function()
    local status, err = run(2,
      "dist.barrier()\nif rank == 1 then require('ffi').cdef 'void _exit(int);' " ..
      "require('ffi').C._exit(7) end\ndist.barrier()")
    assert.equal(7, status)
    matches(last_line(err), "^accel%-run: rank 1 exited with status 7, last seen at .*:3 %(exit status 7%)$")
  end)

  it("that is done while others wait for it is named to them", function()
    for _, way in ipairs { "return", "os.exit(0)",
      "require('ffi').cdef 'void _exit(int);' require('ffi').C._exit(0)" } do
      local status, err, seconds = run(3, "dist.barrier()\nif rank == 1 then " .. way ..
        " end\ndist.all_reduce(core.ones(2))")
      assert.equal(1, status)
      assert.is_true(seconds < 3, seconds)
      matches(err, "all_reduce: rank 1 has finished and will not take part in this %(it last called #1, " ..
        "barrier%(%) at [^\n]*:3%)")
      matches(last_line(err), "rank [02] failed at .*:5 ")
    end
  end)

  it("that is done is no failure when nobody waits for it", function()
    local status, err = run(3,
      "dist.barrier()\nif rank == 1 then return end\nlocal s = 0\nfor i = 1, 1e6 do s = s + i end")
    assert.equal(0, status)
    assert.equal("", err)
  end)

  it("that is killed is named with the signal", function()
    for name, sig in pairs { SIGKILL = 9, SIGABRT = 6, SIGTERM = 15 } do
      local status, err, seconds = run(3,
        ("dist.barrier()\nif rank == 2 then require('ffi').cdef 'int kill(int, int); int getpid(void);' " ..
        "require('ffi').C.kill(require('ffi').C.getpid(), %d) end\ndist.barrier()"):format(sig))
      assert.equal(128 + sig, status)
      assert.is_true(seconds < 3, seconds)
      matches(err, "rank 2 of 3 was killed by " .. name)
      matches(last_line(err), "rank 2 was killed by " .. name .. ".*, last seen at .*:3 %(exit status " ..
        128 + sig .. "%)$")
    end
  end)

  it("may fail before its first line", function()
    local status, err = run(2, "this is no Lua")
    assert.equal(1, status)
    matches(err, "rank [01] of 2 failed: .*'=' expected near 'is'")
  end)

  it("may fail with anything, also nothing or a huge text", function()
    local status, err = run(2, "error()")
    assert.equal(1, status)
    has(err, "the script ended with error()")
    status, err = run(2, "error({})")
    assert.equal(1, status)
    has(err, "(error object is a table value)")
    status, err = run(2, "error(setmetatable({}, { __tostring = function() return 'told' end }))")
    assert.equal(1, status)
    has(err, "failed: told\n")
    status, err = run(2, "error(('x'):rep(1e6))")
    assert.equal(1, status)
    assert.is_true(#err < 20000)
    matches(err, "xxx%.%.%.\n")
  end)

  it("names the script line of an error that the library passed on", function()
    local status, err, _, path = run(2, [[
      local function traced(m) local text = debug.traceback(m, 2) return text end
      local ok, message = xpcall(function()
        local x = nil
        x.y = 1
      end, traced)
      error(message, 0)
    ]])
    assert.equal(1, status)
    matches(last_line(err), host.shown_path(path):gsub("%p", "%%%0") .. ":6 %(exit status 1%)$")
    local _, count = err:gsub("stack traceback", "")
    assert.equal(1, count)
  end)
end)

describe("ranks that disagree", function()
  after_each(processes.clean)

  -- rank 0 runs `a`, rank 1 `b`; the error must name both, with their lines
  local function disagree(a, b, text_a, text_b)
    local status, err, seconds = run(2, ("dist.barrier()\nif rank == 0 then\n  %s\nelse\n  %s\nend"):format(a,
      b))
    assert.equal(1, status)
    assert.is_true(seconds < 3, seconds)
    matches(err, "ranks disagree in collective #2: rank 0 calls " .. text_a ..
      " at [^\n]*:5; rank 1 calls " ..
      text_b .. " at [^\n]*:7\n")
  end

  it("about the op are told so", function()
    disagree("dist.all_reduce(core.ones(5))", "dist.broadcast(core.ones(5), 0)",
      "all_reduce%(float32, 5 elements, sum%)", "broadcast%(float32, 5 elements, from rank 0%)")
    disagree("dist.barrier()", "dist.all_gather(core.ones(1))", "barrier%(%)",
      "all_gather%(float32, 1 element%)")
  end)
  it("about the dtype are told so", function()
    disagree("dist.all_reduce(core.ones(5))", "dist.all_reduce(core.ones(5):double())",
      "all_reduce%(float32, 5 elements, sum%)", "all_reduce%(float64, 5 elements, sum%)")
  end)
  it("about the size are told so", function()
    disagree("dist.all_reduce(core.ones(5))", "dist.all_reduce(core.ones(100000))",
      "all_reduce%(float32, 5 elements, sum%)", "all_reduce%(float32, 100000 elements, sum%)")
    disagree("dist.all_gather(core.ones(0))", "dist.all_gather(core.ones(4))",
      "all_gather%(float32, 0 elements%)", "all_gather%(float32, 4 elements%)")
  end)
  it("about the root are told so", function()
    disagree("dist.broadcast(core.ones(5), 0)", "dist.broadcast(core.ones(5), 1)",
      "broadcast%(float32, 5 elements, from rank 0%)", "broadcast%(float32, 5 elements, from rank 1%)")
    disagree("dist.gather(core.ones(5), 1)", "dist.gather(core.ones(5), 0)",
      "gather%(float32, 5 elements, to rank 1%)", "gather%(float32, 5 elements, to rank 0%)")
  end)
  it("about nothing but the shape are told so", function()
    disagree("dist.all_gather(core.ones(2, 3))", "dist.all_gather(core.ones(3, 2))",
      "all_gather%(float32, 6 elements%) of shape %[2, 3%]",
      "all_gather%(float32, 6 elements%) of shape %[3, 2%]")
    -- a number counts as [1]
    assert.equal(0, (run(2, "dist.all_gather(rank == 0 and core.tensor(1) or core.ones(1))")))
  end)
  it("about the reduction are told so", function()
    disagree("dist.all_reduce(core.ones(5), 'max')", "dist.all_reduce(core.ones(5), 'min')",
      "all_reduce%(float32, 5 elements, max%)", "all_reduce%(float32, 5 elements, min%)")
    disagree("dist.reduce_scatter(core.ones(4))", "dist.reduce_scatter(core.ones(4), 'prod')",
      "reduce_scatter%(float32, 2 elements, sum%)", "reduce_scatter%(float32, 2 elements, prod%)")
  end)

  it("all get the error, also among four", function()
    local status, err = run(4, [[
      dist.barrier()
      local ok, message = pcall(dist.all_reduce, core.ones(rank == 2 and 3 or 4))
      io.stderr:write(("%d caught: %s\n"):format(rank, message))
      local again, second = pcall(dist.barrier)
      io.stderr:write(("%d again: %s\n"):format(rank, second))
      local ffi = require "ffi"
      ffi.cdef "int usleep(unsigned);"
      for _ = 1, 100 do ffi.C.usleep(1000) end
    ]])
    assert.equal(0, status)
    for rank = 0, 3 do
      matches(err, rank .. " caught: [^\n]*:4: all_reduce: ranks disagree in collective #2: rank 0 calls " ..
        "[^\n]*4 elements[^\n]*; rank 2 calls [^\n]*3 elements")
      matches(err, rank .. " again: [^\n]*:6: barrier: an earlier collective failed: ranks disagree")
    end
  end)

  it("name the user's line, not the library's", function()
    host.in_folder(function(folder)
      local path = folder .. "/train.lua"
      local f = assert(io.open(path, "w"))
      f:write("local core = require 'accelerate.core'\nlocal function helper(t)\n  " ..
        "core.dist.all_reduce(t)\nend\nhelper(core.ones(core.dist.rank() + 1))\n")
      f:close()
      local status, _, err = host.run { "--num_processes", "2", path }
      assert.equal(1, status)
      matches(err, "rank 0 calls all_reduce%(float32, 1 element, sum%) at [^\n]*/train%.lua:3; rank 1 calls")
    end)
  end)
end)

describe("a wait", function()
  after_each(processes.clean)

  it("is looked at as often as --monitor_interval says", function()
    for interval, reported in pairs { ["0.1"] = true, ["30"] = false } do
      local status, err = run(2,
        "dist.barrier()\nif rank == 1 then local t = os.time() while os.time() < t + 2 do end " ..
        "end\ndist.barrier()",
        { "--stall_report", "0.3", "--monitor_interval", interval })
      assert.equal(0, status)
      assert.equal(reported, err:find("no progress for", 1, true) ~= nil, err)
    end
  end)

  it("is reported while it lasts, and ends after the timeout with an error that names who was missing",
    function()
    local status, err, seconds = run(2,
      "dist.barrier()\nif rank == 1 then while true do os.time() end end\ndist.all_reduce(core.ones(7))",
      { "--stall_report", "0.3", "--timeout", "1.2" })
    assert.equal(1, status)
    assert.is_true(seconds < 4, seconds)
    matches(err, "no progress for %d+ s; waits end after 1.2 s %(%-%-timeout%)\n  rank 0 +in #2, " ..
      "all_reduce%(float32, 7 elements, sum%) at [^\n]*:5, for %d+%.%d s\n  rank 1 +running for %d+%.%d " ..
      "s since #1, barrier%(%) at [^\n]*:3\n")
    matches(err, "all_reduce: waited 1.2 s for rank 1, which last called #1, barrier%(%) at [^\n]*:3 " ..
      "%(%-%-timeout sets the limit%)")
    matches(last_line(err), "rank 0 failed at .*:5 ")
  end)

  it("takes its limits from the environment too", function()
    local path = processes.script(
      "local d = require('accelerate.core').dist\nif d.rank() == 1 then while true do os.time() end " ..
      "end\nd.barrier()")
    local status, _, err = host.run({ "--num_processes", "2", path },
      { env = { ACCELERATE_TIMEOUT = "0.5" } })
    assert.equal(1, status)
    has(err, "barrier: waited 0.5 s for rank 1, which has called none yet")
  end)
end)

describe("a stopped rank", function()
  after_each(processes.clean)

  it("is reported at once; the run goes on when it does", function()
    local path = processes.script(processes.PRELUDE ..
      "dist.barrier()\nlocal go = os.getenv('GO')\nlocal n = 0\nrepeat n = dist.all_reduce(core.tensor({ " ..
      "io.open(go) and 1 or 0 })):item() until n > 0\n")
    local go = os.tmpname()
    os.remove(go)
    local r = processes.start({ "--num_processes", "2", "--stall_timeout", "20", path },
      { env = { GO = go } })
    local pids = r:ranks(2)
    processes.sleep(0.05)
    processes.kill(pids[1], processes.SIGSTOP)
    r:expect("rank 1 %(process " .. pids[1] ..
      "%) was stopped by SIGSTOP; it was [^\n]* The run ends unless it goes on within 20 s", 1)
    processes.kill(pids[1], processes.SIGCONT)
    r:expect("rank 1 goes on", 2)
    io.open(go, "w"):close()
    local status = r:wait(10)
    os.remove(go)
    assert.equal(0, status)
  end)

  it("is no news when all are stopped and go on together (Ctrl-Z, fg)", function()
    local path = processes.script(processes.PRELUDE ..
      "dist.barrier()\nlocal go = os.getenv('GO')\nlocal n = 0\nrepeat n = dist.all_reduce(core.tensor({ " ..
      "io.open(go) and 1 or 0 })):item() until n > 0\n")
    local go = os.tmpname()
    os.remove(go)
    local limit = host.limit(1)
    local r = processes.start({ "--num_processes", "2", "--stall_timeout", limit, "--timeout", limit,
      "--stall_report", tostring(limit / 2), path }, { env = { GO = go } })
    r:ranks(2)
    processes.sleep(0.1)
    processes.kill(-r.pid, processes.SIGSTOP)
    processes.sleep(2.2 * limit)
    processes.kill(-r.pid, processes.SIGCONT)
    processes.sleep(0.3)
    io.open(go, "w"):close()
    local status, _, err = r:wait(10)
    os.remove(go)
    assert.equal("", err)
    assert.equal(0, status)
  end)

  it("ends the run after the stall timeout, with a table", function()
    local path = processes.script(processes.PRELUDE .. "dist.all_reduce(core.ones(10))\n" ..
      "if dist.rank() == 2 then io.stderr:write('rank 2 has begun\\n') end\n" ..
      "while true do dist.all_reduce(core.ones(10)) end\n")
    local r = processes.start { "--num_processes", "3", "--stall_timeout", "0.5", path }
    local pids = r:ranks(3)
    r:expect("rank 2 has begun", 5)
    processes.kill(pids[2], processes.SIGSTOP)
    local status, _, err = r:wait(3)
    assert.equal(128 + processes.SIGSTOP, status)
    has(err, "rank 2 of 3 was stopped by SIGSTOP and did not go on within 0.5 s; it was ")
    matches(err, "\n  rank 0 +in #%d+, all_reduce%(float32, 10 elements, sum%) at [^\n]+:%d+, for %d+%.%d " ..
      "s\n  rank 1 +in #")
    matches(last_line(err), "rank 2 was stopped by SIGSTOP and did not go on within 0.5 s, last seen at " ..
      "[^\n]*:%d+ %(exit status 147%)$")
    assert.is_true(r:nothing_left(1))
  end)
end)

describe("the launcher", function()
  after_each(processes.clean)

  local LOOP = processes.PRELUDE .. "while true do dist.all_reduce(core.ones(10)) end\n"

  it("leaves nothing when it is killed", function()
    local r = processes.start { "--num_processes", "3", processes.script(LOOP) }
    r:ranks(3)
    r:signal(processes.SIGKILL)
    assert.equal(137, (r:wait(5)))
    assert.is_true(r:nothing_left(1))
  end)

  it("ends everything at Ctrl-C and says where the ranks were", function()
    local r = processes.start { "--num_processes", "2", processes.script(LOOP) }
    r:ranks(2)
    processes.sleep(0.05)
    processes.kill(-r.pid, processes.SIGINT) -- to all, as the terminal does
    local status, _, err = r:wait(2)
    assert.equal(130, status)
    matches(err, "the run was ended by SIGINT; the ranks were\n  rank 0 +.*\n  rank 1 ")
    lacks(err, "failed")
    assert.is_true(r:nothing_left(1))
  end)

  it("ends everything at SIGTERM", function()
    local r = processes.start { "--num_processes", "2",
      processes.script(processes.PRELUDE .. "while true do os.time() end") }
    r:ranks(2)
    r:signal(processes.SIGTERM)
    assert.equal(143, (r:wait(2)))
    assert.is_true(r:nothing_left(1))
  end)

  it("passes output through, whole and in each rank's order", function()
    local path = processes.script(
      "local r = require('accelerate.core').dist.rank()\nfor i = 1, 100 do print(('rank %d line " ..
      "%d'):format(r, i)) end")
    local status, out, err = host.run { "--num_processes", "3", path }
    assert.equal(0, status)
    assert.equal("", err)
    local seen = { [0] = 0, 0, 0 }
    for r, i in out:gmatch("rank (%d) line (%d+)\n") do
      assert.equal(seen[tonumber(r)] + 1, tonumber(i))
      seen[tonumber(r)] = tonumber(i)
    end
    assert.same({ [0] = 100, 100, 100 }, seen)
  end)

  it("gives stdin to rank 0 only", function()
    local path = processes.script(
      "local r = require('accelerate.core').dist.rank()\nio.write(('%d:%s\\n'):format(r, " ..
      "tostring(io.read('*l'))))")
    local _, out = host.run({ "--num_processes", "2", path }, { stdin = "line\n" })
    has(out, "0:line\n")
    has(out, "1:nil\n")
  end)

  it("runs a script from stdin, and -e, on every rank", function()
    local _, out = host.run({ "--num_processes", "2", "-", "word" },
      { stdin = "print(arg[0], ..., require('accelerate.core').dist.rank())" })
    matches(out, "%-\tword\t0\n")
    matches(out, "%-\tword\t1\n")
    _, out = host.run { "--num_processes", "2", "-e",
      "print('rank ' .. require('accelerate.core').dist.rank())" }
    has(out, "rank 0\n")
    has(out, "rank 1\n")
  end)

  it("shares the cores out among the ranks, unless told otherwise", function()
    local show = "print(os.getenv('OMP_NUM_THREADS'), os.getenv('OMP_WAIT_POLICY'))"
    local _, out = host.run { "--num_processes", "64", "-e", show }
    local _, lines = out:gsub("1\tpassive\n", "")
    assert.equal(64, lines)
    _, out = host.run { "--num_processes", "2", "--num_cpu_threads_per_process", "3", "-e", show }
    matches(out, "^3\t[^\n]*\n3\t")
    _, out = host.run({ "--num_processes", "2", "-e", show }, { env = { OMP_NUM_THREADS = "5" } })
    matches(out, "^5\t[^\n]*\n5\t")
  end)

  it("waits less between parallel regions where other processes want the cores", function()
    local show = "print(os.getenv 'GOMP_SPINCOUNT', os.getenv 'OMP_WAIT_POLICY')"
    local function shell(script) -- this process has set the variables for those that it starts
      local _, out = host.run({ "-c", "unset GOMP_SPINCOUNT OMP_WAIT_POLICY; " .. script, host.path, show },
        { path = "/bin/sh" })
      return out
    end
    assert.equal("1000\tnil\n", shell [[
      for i in $(seq $(nproc)); do while :; do :; done & loops="$loops $!"; done
      "$0" -e "$1"; kill $loops]])
    assert.equal("7\tnil\n", shell 'GOMP_SPINCOUNT=7 "$0" -e "$1"')
    assert.equal("nil\tactive\n", shell 'OMP_WAIT_POLICY=active "$0" -e "$1"')
  end)

  it("leaves nothing in shared memory", function()
    -- Files, and segments by number, that no process has: of other programs that run now there may
    -- be some for a moment; what the run left would stay.
    local function unused()
      local list = {}
      local used = processes.output "grep -ho ' /dev/shm/.*' /proc/[0-9]*/maps" .. "\n"
      for path in processes.output("find /dev/shm -maxdepth 1 -type f"):gmatch "[^\n]+" do
        if not used:find(" " .. path .. "\n", 1, true) then list[path] = true end
      end
      for line in io.lines "/proc/sysvipc/shm" do
        local id, users = line:match "^%s*%-?%d+%s+(%d+)%s+%d+%s+%d+%s+%d+%s+%d+%s+(%d+)"
        if users == "0" then list[id] = true end
      end
      return list
    end
    local before, left = unused(), nil
    run(2, "dist.barrier()\nif rank == 1 then error('boom') end\ndist.barrier()")
    processes.wait_until(10, function()
      left = {}
      for name in pairs(unused()) do
        if not before[name] then left[#left + 1] = name end
      end
      return #left == 0
    end)
    assert.same({}, left)
  end)
end)
