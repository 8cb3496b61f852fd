-- A rank whose own thread is blocked, in a launch or inside NCCL, while another does not come: the
-- watchdog of kernels/cuda/runtime/nccl_watch.cu and host/core/dist/watch.c.  The emulated device's
-- launches block when their queue is full, as a driver's do; the stand-in for NCCL goes wrong as a
-- spec says.
local gpu_ranks = require "spec.support.gpu_ranks"
local processes = require "spec.support.processes"
local ranks = require "spec.support.ranks"

local START = [[
  local ffi = require "ffi"
  ffi.cdef "int getpid(void); int usleep(unsigned); int fork(void); void _exit(int);"
  ffi.cdef "int waitpid(int, int *, int);"
  local function sleep(seconds) for _ = 1, seconds * 10 do ffi.C.usleep(100000) end end
  local function watchdogs()
    local pipe = io.popen(("cat /proc/%d/task/*/comm"):format(ffi.C.getpid()))
    local _, count = pipe:read("*a"):gsub("ax%-watchdog", "")
    pipe:close()
    return count
  end
  local function tell(what, fn)
    local began = os.time()
    local ok, message = pcall(fn)
    local text = "rank %d, %s, after %d s: %s\n"
    io.stderr:write(text:format(rank, what, os.time() - began, tostring(message)))
    if not ok then error(message, 0) end
  end
  local x = core.ones(4):to(accelerate.PartialState().device)
  core.dist.all_reduce(x, "sum")
  x:sum():item()
  core.dist.barrier()
]]
local FIRST = ranks.prelude_lines + select(2, START:gsub("\n", "\n"))  -- lines before a spec's own

local function fails(script, opts)
  local launch = { "--timeout", opts.timeout or "1.5", "--stall_report", "0.7" }
  local began = processes.now()
  local status, out, err = ranks.run(2, START .. script, {
    env = gpu_ranks.env { ACCEL_EMULATED_QUEUE = "40", ACCEL_FAKE_NCCL = opts.fake or "" },
    launch = launch, seconds = 90 })
  assert(status ~= 0, "it should have failed: " .. out .. err)
  return err, processes.now() - began
end

-- What rank 0 does in all of them: it launches until the driver blocks it.
local ENDLESS = [[
  core.dist.all_reduce(x, "sum")
  tell("launching", function()
    while true do x = x * 1 end
  end)
]]

-- A kernel that ends in so many seconds.
local BUSY = [[
  ffi.cdef "void ax_emulated_busy(double seconds);"
  local function busy(time) ffi.load(os.getenv "ACCEL_CUDA_PLUGIN").ax_emulated_busy(time) end
]]

--- The seconds that a rank's own clock counted.
local function seconds(err, what)
  return tonumber(err:match(what .. ", after (%d+) s: ")) or error("no time in:\n" .. err)
end

describe("the watchdog of a rank with a GPU", function()
  if not gpu_ranks.emulated or gpu_ranks.why then
    it("watches what the rank's own thread cannot", function()
      pending(gpu_ranks.why or "the emulated device blocks when it is to")
    end)
    return
  end

  it("ends a launch that blocks because another rank does not come, and says which", function()
    local err = fails([[
      if rank == 1 then sleep(60) end
    ]] .. ENDLESS, {})
    local line = FIRST + 2
    assert.matches(("rank 0, launching, after %%d+ s: [^\n]*collective #%%d+, all_reduce%%(float32, 4 " ..
      "elements, sum, on the GPU%%) at [^\n]*script.lua:%d, has waited %%d+%%.%%d s for rank 1, which " ..
      "last called #%%d+, barrier%%(%%) at [^\n]*script.lua:%d %%(%%-%%-timeout sets the limit%%)"):format(
      line,
      FIRST), err)
    local took = seconds(err, "rank 0, launching")
    assert.is_true(took >= 1 and took < 30, err)
    -- meanwhile the launcher's table has shown it
    assert.matches(("rank 0   in a launch on cuda:0 %%(mul, near [^\n]*script.lua:%d[^\n]*%%) for " ..
      "%%d+%%.%%d s, after " ..
      "#%%d+, all_reduce"):format(line + 2), err)
    assert.matches("rank 0 of 2 failed", err)
  end)

  it("ends it when the other rank fails, long before the time is over", function()
    local err, took = fails([[
      if rank == 1 then
        sleep(1)
        error("no more")
      end
    ]] .. ENDLESS, { timeout = "600" })
    assert.matches("rank 1 of 2 failed: [^\n]*no more", err)
    assert.is_true(took < 60)
  end)

  it("names the GPUs where all ranks have come", function()
    local err = fails([[
      if rank == 1 then
        core.dist.all_reduce(x, "sum")
        sleep(60)
      end
    ]] .. ENDLESS, { fake = "hang:1:1" })
    assert.matches("rank 0, launching, after %d+ s: [^\n]*all_reduce%(float32, 4 elements, sum, on the " ..
      "GPU%) at " ..
      "[^\n]*, has waited %d+%.%d s for the GPUs and the links between them: all ranks have begun it", err)
  end)

  it("ends a call of NCCL that does not return", function()
    local err = fails([[
      if rank == 1 then
        core.dist.all_reduce(x, "sum")
        sleep(60)
      end
      tell("inside", function() core.dist.all_reduce(x, "sum") end)
    ]], { fake = "stuck:0:1" })
    assert.matches(
      "rank 0, inside, after %d+ s: [^\n]*all_reduce%(float32, 4 elements, sum, on the GPU%) at " ..
      "[^\n]*, has waited %d+%.%d s", err)
  end)

  it("has the launcher end the run when the rank does not come back", function()
    local err, took = fails([[
      if rank == 1 then sleep(60) end
      tell("deaf", function() core.dist.all_reduce(x, "sum") end)
    ]], { fake = "deaf:0:1" })
    assert.not_matches("rank 0, deaf", err)
    assert.matches("rank 0 of 2 failed: collective #%d+, all_reduce[^\n]+ has waited %d+%.%d s for rank 1",
      err)
    assert.is_true(took < 45)
  end)

  -- A call of NCCL that takes its time, as the first of a kind does, comes before the collective is
  -- in the stream; the computation that it waits for comes after.
  it("does not count computation before a collective, however long it is", function()
    local out = assert(gpu_ranks.on(2, START .. BUSY .. [[
      busy(4)
      x = x * 1
      core.dist.all_reduce(x, "sum")
      sleep(5)
      check(x:sum():item() == 16)
      print("done " .. rank)
    ]], { env = { ACCEL_FAKE_NCCL = "slow:0:1" }, seconds = 90,
      launch = { "--timeout", "1.5", "--stall_report", "0.7" } }))
    assert.matches("done 0", out)
    assert.matches("done 1", out)
  end)

  -- The host waits, not the watchdog: with no collective open, with one behind the computation, and
  -- with one that has ended before it.
  it("does not count computation that the host waits for", function()
    local out = assert(gpu_ranks.on(2, START .. BUSY .. [[
      busy(3)
      check((x * 1):sum():item() == 8)
      busy(3)
      core.dist.all_reduce(x, "sum")
      check(x:sum():item() == 16)
      core.dist.all_reduce(x, "sum")
      busy(3)
      check(x:sum():item() == 32)
      print("done " .. rank)
    ]], { seconds = 90, launch = { "--timeout", "1.5", "--stall_report", "0.7" } }))
    assert.matches("done 0", out)
    assert.matches("done 1", out)
  end)

  it("has the host's wait for a collective end, its time counted from the computation's end", function()
    local err = fails(BUSY .. [[
      busy(3)
      core.dist.all_reduce(x, "sum")
      if rank == 1 then sleep(60) end
      tell("waiting", function() x:sum():item() end)
    ]], { fake = "hang:1:1" })
    assert.matches("rank 0, waiting, after %d+ s: [^\n]*waited 1.5 s for the ranks' devices", err)
    assert.is_true(seconds(err, "rank 0, waiting") >= 4, err)
  end)

  it("ends one that hangs behind a computation, its time counted from the computation's end", function()
    local err = fails(BUSY .. [[
      busy(4)
      if rank == 1 then
        core.dist.all_reduce(x, "sum")
        sleep(60)
      end
    ]] .. ENDLESS, { fake = "slow:0:1,hang:1:1" })
    assert.matches("rank 0, launching, after %d+ s: [^\n]*all_reduce%(float32, 4 elements, sum, on the " ..
      "GPU%) at [^\n]*, has waited %d+%.%d s for the GPUs and the links between them", err)
    assert.is_true(seconds(err, "rank 0, launching") >= 4, err)
  end)

  -- The watchdog stays inside NCCL, and with it what keeps the owner's calls out of it.
  it("does not keep a rank inside an abort that does not return", function()
    local err = fails([[
      if rank == 1 then sleep(60) end
      tell("queueing", function()
        while true do core.dist.all_reduce(x, "sum") end
      end)
    ]], { fake = "numb:0:0" })
    assert.matches("rank 0, queueing, after %d+ s: [^\n]*collective #%d+, all_reduce[^\n]* has waited", err)
    -- nor at its end, when it has not used the device since
    local began = processes.now()
    ranks.run(2, START .. [[
      if rank == 0 then core.dist.all_reduce(x, "sum") end
      sleep(4)
    ]], { env = gpu_ranks.env { ACCEL_FAKE_NCCL = "numb:0:0" }, seconds = 60,
      launch = { "--timeout", "1.5" } })
    assert.is_true(processes.now() - began < 45)
  end)

  it("raises what NCCL reports", function()
    local err = fails([[
      if rank == 1 then
        core.dist.all_reduce(x, "sum")
        sleep(60)
      end
    ]] .. ENDLESS, { fake = "error:0:1", timeout = "600" })
    assert.matches("rank 0, launching, after %d+ s: [^\n]*collective #%d+, all_reduce[^\n]* failed: " ..
      "[^\n]*NCCL: " ..
      "remote process exited or there was a network error: [^\n]*the link to another rank went down", err)
  end)

  it("ends with a rank that is killed inside NCCL", function()
    local err = fails([[
      if rank == 1 then
        sleep(0.5)
        core.dist.all_reduce(x, "sum")
      end
    ]] .. ENDLESS, { fake = "die:1:1", timeout = "600" })
    assert.matches("rank 1 of 2 was killed by SIGKILL", err)
  end)

  it("leaves the device to a rank that catches the error, and raises it once", function()
    local err = fails([[
      if rank == 1 then sleep(60) end
      core.dist.all_reduce(x, "sum")
      local ok, message = pcall(function() while true do x = x * 1 end end)
      check(not ok and message:find("has waited", 1, true), message)
      check((core.ones(2):to(x.device) + 1):sum():item() == 4)
      io.stderr:write("then: " .. select(2, pcall(core.dist.all_reduce, x, "sum")) .. "\n")
      error("the end")
    ]], {})
    assert.matches("then: [^\n]*an earlier collective of the GPUs failed: collective #%d+, " ..
      "all_reduce[^\n]* has waited", err)
    assert.matches("the end", err)
  end)

  it("is one thread for as long as ranks are joined, and none of a fork's", function()
    local out = assert(gpu_ranks.on(2, START .. [[
      check(watchdogs() == 1, "joined")
      local child = ffi.C.fork()
      if child == 0 then ffi.C._exit(watchdogs() == 0 and 7 or 1) end
      local status = ffi.new "int[1]"
      check(ffi.C.waitpid(child, status, 0) == child and status[0] == 7 * 256, "in the child")
      -- more than are open at once, and a wait that is longer than a tick
      for _ = 1, 300 do core.dist.all_reduce(x, "max") end
      sleep(0.3)
      check(x:sum():item() == 8)
      accelerate.PartialState():destroy_process_group()
      check(watchdogs() == 0, "left")
      print("done " .. rank)
    ]]))
    assert.matches("done 0", out)
    assert.matches("done 1", out)
    gpu_ranks.on(1, gpu_ranks.alone .. [[
      local ffi = require "ffi"
      ffi.cdef "int getpid(void);"
      local pipe = io.popen(("cat /proc/%d/task/*/comm"):format(ffi.C.getpid()))
      check(not pipe:read("*a"):find("watchdog", 1, true), "alone")
      pipe:close()
    ]])
  end)

  it("survives a script that ends its process by itself", function()
    gpu_ranks.on(2, START .. "os.exit(0)")
  end)
end)
