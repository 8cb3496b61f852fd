-- Programs that a script starts go when the run is killed, however that happens.
-- ACCEL_STRESS=100 sets the number of rounds for each case (default 3).
local ffi = require "ffi"
local processes = require "spec.support.processes"

local ROUNDS = tonumber(os.getenv("ACCEL_STRESS") or 3)
ffi.cdef "int getpid(void);"
local SLEEP = "sleep " .. 10 ^ 6 + ffi.C.getpid() -- known among the machine's processes

-- Each rank has a program that reads from it, one that it never hears of again, and one below a
-- shell.
local SCRIPT = processes.PRELUDE .. ([[
  local reader = io.popen("exec cat >/dev/null", "w")
  os.execute("sh -c 'echo own $$; trap : TERM; while :; do SLEEP; done' &")
  local child = io.popen("echo own $$; SLEEP; true")
  io.write(child:read() .. "\n") -- one write: print's two of several ranks may mix
  io.stdout:flush()
  dist.barrier()
  io.write("ready\n")
  while true do ENDING dist.all_reduce(core.ones(1000)) end
]]):gsub("SLEEP", SLEEP)

local function sleepers()
  local pipe = io.popen("ps -eo pid,args")
  local list = {}
  for line in pipe:lines() do
    local pid, args = line:match("^%s*(%d+) (.*)$")
    if args == SLEEP then list[#list + 1] = tonumber(pid) end
  end
  pipe:close()
  return list
end

-- Waits for the programs, which a shell may start after it has printed its number; returns how many
-- there are.
local function sleeping(n)
  processes.wait_until(10, function() return #sleepers() >= n end)
  return #sleepers()
end

local function own(run)
  local pids = {}
  for pid in run:stdout():gmatch("own (%d+)\n") do pids[#pids + 1] = tonumber(pid) end
  return pids
end

local started = {} -- what a test that fails would leave

local function end_all()
  for _, pid in ipairs(started) do
    if processes.alive(pid) then processes.kill(pid, processes.SIGKILL) end
  end
  for _, pid in ipairs(sleepers()) do processes.kill(pid, processes.SIGKILL) end
  started = {}
end

local function start(ending, ranks)
  local run = processes.start({ "--num_processes", tostring(ranks),
    processes.script((SCRIPT:gsub("ENDING", ending))) },
    -- os.exit leaves all where it is
    { env = { ASAN_OPTIONS = (os.getenv "ASAN_OPTIONS" or "") .. ":detect_leaks=0" } })
  run:ranks(ranks)
  run:expect("ready\n", 20)
  processes.wait_until(10, function() return #own(run) == 2 * ranks end)
  for _, pid in ipairs(own(run)) do started[#started + 1] = pid end
  assert.equal(2 * ranks, #own(run), run:stdout() .. run:stderr())
  return run
end

local function gone(run, seconds)
  return processes.wait_until(seconds, function()
    for _, pid in ipairs(own(run)) do
      if processes.alive(pid) then return false end
    end
    return #sleepers() == 0
  end)
end

-- A guard has its name a moment after it began.
local function guard_of(run)
  local guard
  assert.is_true(processes.wait_until(10, function()
    guard = tonumber(processes.output("pgrep -P " .. run.pid .. " accel-guard"))
    return guard
  end), "no guard")
  return guard
end

describe("programs that a script started", function()
  after_each(function()
    end_all()
    processes.clean()
  end)

  local cases = {
    ["the launcher is killed"] = function(run) run:signal(processes.SIGKILL) end,
    ["the launcher is told to end"] = function(run) run:signal(processes.SIGTERM) end,
    ["Ctrl-C is pressed"] = function(run) processes.kill(-run.pid, processes.SIGINT) end,
    ["all of the group is killed"] = function(run) processes.kill(-run.pid, processes.SIGKILL) end,
    ["a rank is killed"] = function(run) processes.kill(run.rank_pids[1], processes.SIGKILL) end,
  }
  local names = {}
  for name in pairs(cases) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    it("go when " .. name, function()
      for round = 1, ROUNDS do
        local run = start("", 2)
        processes.sleep(math.random() * 0.02)
        cases[name](run)
        local status = run:wait(10)
        assert.not_equal(0, status)
        assert.is_true(gone(run, 5), ("round %d: left: %s"):format(round, table.concat(sleepers(), " ")))
        assert.is_true(run:nothing_left(1))
      end
    end)
  end

  it("go when the script fails", function()
    local run = start("error('done')", 2)
    assert.equal(1, (run:wait(10)))
    assert.is_true(gone(run, 1)) -- what was killed may still be ending
  end)

  -- While execve works, a process shows no environment.
  it("go when they are on their way into another program", function()
    local path = processes.script("")
    processes.script(("if [ $# = 1 ]; then echo own $$; fi\ntrap '' TERM\nexec sh '%s'\n"):format(path), path)
    for round = 1, 2 * ROUNDS do
      local run = processes.start { "--num_processes", "2", processes.script(([[
        os.execute("sh '%s' first &")
        require("accelerate.core").dist.barrier()
        error "done"]]):format(path)) }
      assert.equal(1, (run:wait(20)))
      for _, pid in ipairs(own(run)) do started[#started + 1] = pid end
      assert.is_true(gone(run, 1), "round " .. round)
    end
  end)

  it("stay when the script ends well, and when they are started to stay", function()
    local run = start("os.exit(0)", 2)
    assert.equal(0, (run:wait(10)))
    assert.equal(4, sleeping(4))
    end_all()
    run = processes.start { "--num_processes", "2", processes.script((([[
      os.execute("env -u ACCEL_RUN_ID SLEEP &")
      error("done")
    ]]):gsub("SLEEP", SLEEP))) }
    assert.equal(1, (run:wait(10)))
    assert.is_true(sleeping(1) >= 1)
  end)

  it("leave no guard behind", function()
    local run = start("", 2)
    local guard = guard_of(run)
    assert.is_true(processes.alive(guard))
    run:signal(processes.SIGTERM)
    run:wait(10)
    assert.is_false(processes.alive(guard))
    assert.equal(-1, ffi.C.kill(guard, 0))
  end)

  it("are no reason to fail when the guard was killed", function()
    for _, ranks in ipairs { 1, 2 } do
      local sign = processes.script("")
      os.remove(sign)
      local run = processes.start { "--num_processes", tostring(ranks), processes.script(([[
        os.execute("true")
        io.write("ready\n") io.stdout:flush()
        repeat until io.open("%s")]]):format(sign)) }
      run:expect("ready\n", 20)
      local guard = guard_of(run)
      processes.kill(guard, processes.SIGKILL)
      io.open(sign, "w"):close()
      assert.equal(0, (run:wait(20)), run:stderr())
    end
  end)
end)

describe("programs that a script started in a run of one process", function()
  after_each(function()
    end_all()
    processes.clean()
  end)

  local ALONE = ([[
    local child = io.popen("echo own $$; SLEEP; true")
    print(child:read())
    os.execute("sh -c 'echo own $$; trap : TERM; while :; do SLEEP; done' &")
    io.write("ready\n")
    io.stdout:flush()
    ENDING
    while true do end
  ]]):gsub("SLEEP", SLEEP)

  local function start_alone(ending)
    local run = processes.start({ processes.script((ALONE:gsub("ENDING", ending))) },
      { env = { ASAN_OPTIONS = (os.getenv "ASAN_OPTIONS" or "") .. ":detect_leaks=0" } })
    run:expect("ready\n", 20)
    processes.wait_until(10, function() return #own(run) == 2 end)
    for _, pid in ipairs(own(run)) do started[#started + 1] = pid end
    assert.equal(2, #own(run), run:stdout() .. run:stderr())
    return run
  end

  for _, how in ipairs { "SIGKILL", "SIGTERM" } do
    it("go when it gets " .. how, function()
      for round = 1, ROUNDS do
        local run = start_alone("")
        processes.sleep(math.random() * 0.02)
        run:signal(processes[how])
        assert.not_equal(0, (run:wait(10)))
        assert.is_true(gone(run, 5), ("round %d: left: %s"):format(round, table.concat(sleepers(), " ")))
      end
    end)
  end

  it("stay when it ends, and its guard goes", function()
    for _, status in ipairs { 0, 3 } do
      local sign = processes.script("")
      os.remove(sign)
      local run = start_alone(("repeat until io.open('%s') os.exit(%d)"):format(sign, status))
      local guard = guard_of(run)
      assert.is_true(processes.alive(guard))
      io.open(sign, "w"):close()
      assert.equal(status, (run:wait(10)))
      assert.equal(2, sleeping(2))
      assert.is_false(processes.alive(guard))
      end_all()
    end
  end)

  it("are the only reason for a guard", function()
    local run = processes.start { processes.script("print('ready') io.stdout:flush() while true do end") }
    run:expect("ready\n", 20)
    assert.equal("", processes.output("pgrep -P " .. run.pid))
    run:signal(processes.SIGKILL)
    run:wait(10)
  end)
end)
