-- host/launch/launch.c, host/launch/flight.c, lua/accelerate/utils/signals.lua: what a launcher
-- shows of its ranks while they run, and what signals do.
local clusters = require "spec.support.clusters"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local processes = require "spec.support.processes"
local ranks = require "spec.support.ranks"
local matches = require("spec.support.messages").matches

local SIGUSR1, SIGUSR2 = 10, 12

local HEAD = [[
local core = require "accelerate.core"
local dist, ffi = core.dist, require "ffi"
ffi.cdef "int usleep(unsigned);"
io.stdout:setvbuf "no"
]]

describe("SIGUSR1 to the launcher", function()
  after_each(processes.clean)

  local SCRIPT = HEAD .. [[
    dist.barrier()
    io.write "ready\n"
    local deadline = os.time() + 60
    local function compiled()
      while os.time() < deadline do for _ = 1, 1e5 do deadline = deadline + 0 end end
    end
    local function waits() dist.barrier() end
    if dist.rank() == 1 then compiled() else waits() end
  ]]

  it("shows each rank's stack and last collective, in waits and in compiled loops, and nothing ends",
    function()
    local run = processes.start { "--num_processes", "3", processes.script(SCRIPT) }
    run:expect("ready\nready\nready\n", 10)
    processes.sleep(0.3)
    for time = 1, 2 do
      processes.sleep(time == 2 and 1.1 or 0)
      run:signal(SIGUSR1)
      assert.is_true(processes.wait_until(10, function()
        return select(2, run:stderr():gsub("SIGUSR1: rank %d is", "")) == 3 * time
      end), run:stderr())
    end
    local err = run:stderr()
    for _, r in ipairs { 0, 2 } do
      matches(err, ("SIGUSR1: rank %d is in #2, barrier%%(%%) at [^\n]*, for [^\n]*\nstack traceback:\n" ..
        "[^\n]*barrier'\n[^\n]*'waits'"):format(r))
    end
    matches(err, "SIGUSR1: rank 1 is running for [^\n]* since #1, barrier%(%) at [^\n]*\nstack " ..
      "traceback:\n[^\n]*'compiled'")
    assert.is_nil(run:ended())
    run:signal(processes.SIGTERM)
    assert.are.equal(143, (run:wait(10)))
  end)

  it("shows the stack of a run without ranks", function()
    local run = processes.start { processes.script(HEAD .. [[
      local function long()
        io.write "ready\n"
        for _ = 1, 1e9 do ffi.C.usleep(100) end
      end
      long()
    ]]) }
    run:expect("ready", 10)
    run:signal(SIGUSR1)
    run:expect("SIGUSR1:\nstack traceback:\n[^\n]*'long'", 10)
    run:signal(processes.SIGKILL)
    run:wait(5)
  end)

  local function with_mpirun(name, body)
    it(name, clusters.why.mpirun and function() pending(clusters.why.mpirun) end or body)
  end

  with_mpirun("reaches the ranks of other machines", function()
    local run = clusters.start("mpirun", 2, HEAD .. [[
      ffi.cdef "int getppid(void);"
      dist.barrier()
      io.write(("launcher %d %d\n"):format(dist.rank(), ffi.C.getppid()))
      for _ = 1, 30000 do ffi.C.usleep(1000) end
    ]], { launch = { "--num_machines", "2", "--num_processes", "4" } })
    run:expect("launcher 2 %d+\n", 20)
    local launcher, since = tonumber(run:stdout():match "launcher 2 (%d+)\n"), 0
    assert.is_true(processes.wait_until(15, function()
      if processes.now() - since > 1.5 then -- the launchers may not have met yet
        since = processes.now()
        processes.kill(launcher, SIGUSR1)
      end
      local err = run:stderr()
      return err:find "SIGUSR1: rank 0 %(machine 0%) is" and err:find "SIGUSR1: rank 1 %(machine 0%) is"
        and err:find "SIGUSR1: rank 3 %(machine 1%) is"
    end), run:stderr())
    run:signal(processes.SIGTERM)
    run:wait(15)
  end)
end)

describe("a collective that times out", function()
  after_each(processes.clean)

  it("leaves the last collectives of each rank in a file", function()
    host.in_folder(function(folder)
      local limit = host.limit(0.5)
      local status, _, err = ranks.run(2, [[
        for i = 1, 70 do core.dist.all_reduce(core.ones(i)) end
        if rank == 1 then while true do end end
        core.dist.barrier()
      ]], { launch = { "--timeout", limit, "--flight_recorder", folder } })
      assert.are.equal(1, status)
      local path = err:match "the last collectives of each rank, with their times, are in ([^\n]+)"
      assert(path and path:find(folder, 1, true), err)
      local seen = { [0] = {}, [1] = {} }
      for line in io.lines(path) do
        local one = json.decode(line)
        seen[one.rank][one.number] = one
      end
      assert.is_nil(seen[0][7])
      local late, last = seen[0][71], seen[1][70]
      assert.are.equal("barrier", late.op)
      assert.are.equal("timeout", late.ended)
      assert.is_true(late.seconds >= tonumber(limit) and late.seconds < 10 * limit)
      assert.are.equal("all_reduce", last.op)
      assert.are.equal(70, last.count)
      assert.are.equal("ok", last.ended)
      assert.matches("script.lua:%d+$", last.where)
      assert.is_nil(seen[1][71])
    end)
  end)
end)

describe("a rank that is late again and again", function()
  it("is named once", function()
    local _, err = ranks.ok(3, [[
      local ffi = require "ffi"
      ffi.cdef "int usleep(unsigned);"
      for _ = 1, 110 do
        if rank == 1 then ffi.C.usleep(50000) end -- the others come as soon as a busy machine lets them
        core.dist.barrier()
      end
    ]])
    local _, times = err:gsub(
      "rank 1 is late: between collectives it takes [%d.]+ times as long as the others",
      "")
    assert.are.equal(1, times, err)
    matches(err, "%(32 collectives, the last at [^\n]*script.lua:%d+%)")
  end)

  it("is not named when all are alike", function()
    local _, err = ranks.ok(3, [[
      local ffi = require "ffi"
      ffi.cdef "int usleep(unsigned);"
      for i = 1, 110 do
        ffi.C.usleep(i % 3 == rank and 20000 or 5000)
        core.dist.barrier()
      end
    ]])
    assert.is_nil(err:find("is late", 1, true), err)
  end)
end)

describe("a rank that is blocked outside of collectives", function()
  it("is reported with what it waits for", function()
    local began = os.tmpname()
    os.remove(began)
    local status, _, err = ranks.run(2, ([[
      local ffi = require "ffi"
      ffi.cdef "int usleep(unsigned);"
      local data, began = accelerate.data, %q
      local slow = { len = function() return 4 end, get = function()
        io.open(began, "w"):close()
        ffi.C.usleep(20e6)
        return 1
      end }
      core.dist.barrier()
      if rank == 1 then
        for _ in data.DataLoader(slow, { num_workers = 1 }):iter() do end
      end
      while not io.open(began) do ffi.C.usleep(10000) end
      for _ = 1, 100 do ffi.C.usleep(5000) end -- rank 1 waits for its worker by then
      core.dist.barrier()
    ]]):format(began), { launch = { "--timeout", host.limit(1.5) } })
    os.remove(began)
    assert.are.equal(1, status)
    matches(err, "rank 1 +in a wait for a loader's worker for [%d.]+ s, after #1, barrier%(%)")
  end)
end)

describe("on_signal", function()
  after_each(processes.clean)

  local SCRIPT = HEAD .. [[
    local accelerate = require "accelerate"
    local data = accelerate.data
    local a = accelerate.Accelerator { cpu = true }
    local loader = a:prepare(data.DataLoader(data.TensorDataset(core.randn(20000, 2)), { batch_size = 1 }))
    local steps = 0
    accelerate.on_signal(function(signal)
      a:wait_for_everyone()
      io.write(("rank %d: %s after %d\n"):format(a.process_index, signal, steps))
      os.exit(0)
    end, { signals = arg[1] and { arg[1] } or nil })
    for x in loader:iter() do
      steps = steps + 1
      if a.num_processes > 1 then dist.all_reduce(x) end
      ffi.C.usleep(2000)
      if steps == 5 then io.write "begun\n" end
    end
  ]]

  it("runs before the next batch, after as many on every rank", function()
    for _, n in ipairs { 1, 2, 3 } do
      for _, sig in ipairs { { processes.SIGTERM, "SIGTERM" }, { SIGUSR2, "SIGUSR2" } } do
        local run = processes.start { "--num_processes", tostring(n), processes.script(SCRIPT) }
        run:expect(("begun\n"):rep(n), 20)
        run:signal(sig[1])
        local status, out, err = run:wait(20)
        assert.are.equal(0, status, err)
        local steps = out:match("rank 0: " .. sig[2] .. " after (%d+)\n")
        for r = 0, n - 1 do matches(out, ("rank %d: %s after %s\n"):format(r, sig[2], steps)) end
        if n > 1 then matches(err, sig[2] .. ": the script's function runs before the next batch") end
      end
    end
  end)

  it("leaves other signals as they are, and a second one ends the run", function()
    local run = processes.start { "--num_processes", "2", processes.script(SCRIPT), "SIGUSR2" }
    run:expect("begun\nbegun\n", 20)
    run:signal(processes.SIGTERM)
    assert.are.equal(143, (run:wait(10)))
    run = processes.start { "--num_processes", "2", processes.script(HEAD .. [[
      require "accelerate".on_signal(function() end)
      dist.barrier()
      io.write "begun\n"
      while true do end
    ]]) }
    run:expect("begun\nbegun\n", 20)
    run:signal(processes.SIGTERM)
    run:expect("a second signal ends the run", 5)
    run:signal(processes.SIGTERM)
    assert.are.equal(143, (run:wait(10)))
  end)

  it("checks its arguments", function()
    local accelerate = require "accelerate"
    assert.has_error(function() accelerate.on_signal(5) end)
    assert.has_error(function() accelerate.on_signal(print, { signals = { "SIGKILL" } }) end)
    assert.has_error(function() accelerate.on_signal(print, { signal = {} }) end)
    assert.is_nil(accelerate.check_signal())
  end)

  it("gets Slurm's early signal", clusters.why.srun and function() pending(clusters.why.srun) end
    or function()
    finally(clusters.end_slurm)
    local run = clusters.start("srun", 2, SCRIPT, {})
    run:expect("begun\nbegun\n", 30)
    local listed = io.popen(("SLURM_CONF=%s squeue -h -o %%i"):format(clusters.slurm()))
    local job = listed:read "*n"
    listed:close()
    os.execute(("SLURM_CONF=%s scancel --signal=USR2 %d.0"):format(clusters.slurm(), job))
    local status, out, err = run:wait(30)
    assert.are.equal(0, status, err)
    local steps = out:match "rank 0: SIGUSR2 after (%d+)\n"
    matches(out, ("rank 1: SIGUSR2 after %s\n"):format(steps))
  end)
end)
