-- host/launch/machines.c, host/launch/door.c, host/core/dist/tcp.c, chain.c: ranks of several
-- machines, which here are launches side by side on one. Those that mpirun starts:
-- machines_mpi_spec.
local host = require "spec.support.host"
local machines = require "spec.support.machines"
local processes = require "spec.support.processes"
local messages = require "spec.support.messages"

local has, matches = messages.has, messages.matches

local HEAD = [[
local core = require "accelerate.core"
local dist = core.dist
local rank, n = dist.rank(), dist.world_size()
]]

describe("several machines", function()
  after_each(processes.clean)

  it("number their ranks through, and each from 0", function()
    local out = machines.ok([[
      local accelerate = require "accelerate"
      local a = accelerate.Accelerator()
      io.write(("%d %d %d %s %s %s %s %s %s %s\n"):format(a.process_index, a.local_process_index,
        a.num_processes, tostring(a.is_main_process),
        tostring(a.is_local_main_process), accelerate.PartialState().backend, os.getenv("RANK"),
        os.getenv("LOCAL_RANK"), os.getenv("WORLD_SIZE"),
        os.getenv("LOCAL_WORLD_SIZE")))
      a:wait_for_everyone()
    ]], { machines = 3, ranks = 6 })
    for r = 0, 5 do
      matches(out, ("%d %d 6 %s %s tcp %d %d 6 2\n"):format(r, r % 2, tostring(r == 0),
        tostring(r % 2 == 0), r,
        r % 2))
    end
  end)

  it("without MPI exchange no tensors of the CPU, and say what starts a run with it", function()
    local out = machines.ok(HEAD .. [[
      local accelerate = require "accelerate"
      local a = accelerate.Accelerator()
      local ok, message = pcall(dist.all_reduce, core.ones(20000))
      print(ok, message)
      assert(not pcall(dist.broadcast, core.ones(20000), 0))
      -- small ones go on, as a run on GPUs needs them
      assert(dist.all_reduce(core.tensor { rank, 1 }, "sum"):eq(core.tensor { 6, 4 }):all():item())
      assert(dist.all_reduce(core.tensor({ rank }, { dtype = "int64" }), "max"):item() == 3)
      assert(dist.reduce_scatter(core.arange(8):to("float32"), "mean"):eq(
        core.tensor { 2 * rank, 2 * rank + 1 }):all():item())
      local here = dist.gather(core.tensor { rank }, 2)
      assert((here ~= nil) == (rank == 2) and (not here or here:eq(core.tensor { 0, 1, 2, 3 }):all():item()))
      assert(dist.broadcast(core.tensor { rank }, 3):item() == 3)
      dist.barrier()
      print(a.process_index, table.concat(dist.all_gather_bytes(("x"):rep(rank)), ","))
    ]])
    matches(out, "false\t[^\n]*all_reduce%(float32, 20000 elements, sum%): tensors of more than 64 KiB in " ..
      "the CPU's memory travel " ..
      "between " ..
      "machines through MPI, [^\n]*mpirun %-n 2 %-%-map%-by ppr:1:node accel%-run %-%-num_machines 2 " ..
      "%-%-num_processes 4 script.lua")
    for r = 0, 3 do matches(out, r .. "\t,x,xx,xxx\n") end
  end)

  it("end everywhere, and say why, when a rank fails, is killed or leaves early", function()
    local ended = machines.run(HEAD ..
      "dist.barrier()\nif rank == 2 then error('out of luck') end\ndist.barrier()")
    matches(ended[1].err, "accel%-run: rank 2 %(machine 1%) of 4 failed: [^\n]*out of luck")
    matches(ended[0].err, "accel%-run: rank 2 %(machine 1%) failed: [^\n]*out of luck; the ranks of this " ..
      "machine were\n  rank 0 ")
    assert.are.equal(1, ended[0].status)

    for _, victim in ipairs { 0, 3 } do
      local port, path = machines.free_port(), processes.script(processes.PRELUDE ..
        "for _ = 1, 1e6 do dist.barrier() end")
      local runs = { [1] = machines.start(1, port, path), [0] = machines.start(0, port, path) }
      local mine = runs[victim < 2 and 0 or 1]
      mine:expect("pid " .. victim .. " %d+\n", 10)
      processes.kill(tonumber(mine:stdout():match("pid " .. victim .. " (%d+)\n")), processes.SIGKILL)
      local elapsed = processes.stopwatch()
      for k = 0, 1 do
        local status, _, err = runs[k]:wait(5)
        matches(err, ("rank %d %%(machine %d%%)[^\n]* was killed by SIGKILL"):format(victim, victim < 2 and 0
          or 1))
        assert.are.equal(runs[k] == mine and 137 or 1, status)
      end
      assert.is_true(elapsed() < 3)
    end

    ended = machines.run(HEAD .. "dist.barrier()\nif rank == 3 then os.exit(0) end\ndist.barrier()")
    matches(ended[0].err,
      "rank 3 %(machine 1%), which last called #1, barrier%(%) at [^\n]*, has finished " ..
      "and will not take part in this")
    has(ended[1].err, "rank 3 (machine 1), which last called #1, ")
  end)

  it("end when another machine's launcher is gone", function()
    local port, path = machines.free_port(), processes.script(processes.PRELUDE ..
      "for _ = 1, 1e6 do dist.barrier() end")
    local runs = { [1] = machines.start(1, port, path), [0] = machines.start(0, port, path) }
    runs[1]:expect("pid 3 %d+\n", 10)
    processes.sleep(0.05)
    runs[1]:signal(processes.SIGKILL)
    local status, _, err = runs[0]:wait(5)
    assert.are.equal(1, status)
    has(err, "machine 1 (127.0.0.1) is gone")
    runs[1]:wait(5)
  end)

  it("wait for a rank that does not come as long as --timeout says", function()
    for _, r in ipairs { 3, 0 } do
      local ended = machines.run(HEAD .. "dist.barrier()\nif rank == " .. r .. [[ then
        local ffi = require "ffi"
        ffi.cdef "int usleep(unsigned);"
        while true do ffi.C.usleep(1000) end
      end
      dist.barrier()
      ]], { timeout = 2 })
      if r == 3 then
        for k = 0, 1 do
          matches(ended[k].err,
            "waited 2 s for rank 3 %(machine 1%), which last called #1, barrier%(%) at " ..
            "[^\n]* %(%-%-timeout sets the limit%)")
        end
      else
        matches(ended[0].err .. ended[1].err,
          "waited 3 s for rank 0 %(machine 0%), through which all ranks meet: it, or one that it waits " ..
          "for, has not come")
      end
    end
  end)

  it("that do not all come: each says whom it waited for, where and how long", function()
    local port, path = machines.free_port(), processes.script("")
    local first = machines.start(0, port, path, { timeout = 2 })
    local status, _, err = first:wait(5)
    assert.are.equal(1, status)
    matches(err, "waited 2 s at 127%.0%.0%.1:" .. port ..
      " for machine 1 of 2 %(%-%-timeout sets the limit%)")
    local second = machines.start(1, port, path, { timeout = 2 })
    status, _, err = second:wait(5)
    assert.are.equal(1, status)
    matches(err, "machine 1 could not reach machine 0 at 127%.0%.0%.1:" .. port ..
      ": Connection refused; tried %d+ times in 2 s %(%-%-timeout%)")
    -- Two of three: the one that came gets an error.
    first = machines.start(0, port, path, { timeout = 2, machines = 3, ranks = 3 })
    second = machines.start(1, port, path, { timeout = 8, machines = 3, ranks = 3 })
    status, _, err = second:wait(12)
    assert.are.equal(1, status)
    matches(err, "machine 0 at 127%.0%.0%.1:" .. port .. ": waited 2 s at [^\n]* for machine 2 of 3")
    first:wait(5)
  end)

  it("refuse a machine with other settings, on both sides, and one with the same number", function()
    local port, path = machines.free_port(), processes.script("")
    local first, second = machines.start(0, port, path), machines.start(1, port, path, { ranks = 6 })
    local status, _, err = first:wait(5)
    local text = "machine 1 %(127%.0%.0%.1%) was given %-%-num_machines 2 %-%-num_processes 6, and " ..
      "machine 0 %-%-num_machines 2 %-%-num_processes 4"
    assert.are.equal(1, status)
    matches(err, text)
    status, _, err = second:wait(5)
    assert.are.equal(1, status)
    matches(err, "machine 0 at 127%.0%.0%.1:" .. port .. " refuses machine 1: " .. text)

    first = machines.start(0, port, path, { machines = 3, ranks = 3 })
    local twins = { machines.start(1, port, path, { machines = 3, ranks = 3 }),
      machines.start(1, port, path, { machines = 3, ranks = 3 }), first }
    for _, run in ipairs(twins) do
      status, _, err = run:wait(5)
      assert.are.equal(1, status)
      has(err, "there are two machines with --machine_rank 1: one at 127.0.0.1, one at 127.0.0.1")
    end
  end)

  it("wait again for one that went away before the run began, and do not hear strangers", function()
    local port, path = machines.free_port(), processes.script(
      "print('rank ' .. require 'accelerate.core'.dist.rank())")
    local options = { machines = 3, ranks = 3 }
    local first = machines.start(0, port, path, options)
    assert(machines.send(port, ("GET / HTTP/1.1\r\nHost: somewhere\r\nAccept: text/plain\r\n\r\n")))
    first:expect("a connection from 127%.0%.0%.1 to 127%.0%.0%.1:" .. port .. " is none of accel%-run's", 5)
    local second = machines.start(1, port, path, options)
    assert.is_true(processes.wait_until(10, function() return machines.connected(port) end))
    processes.sleep(0.3) -- and has sent its number
    second:signal(processes.SIGKILL)
    first:expect("machine 1 %(127%.0%.0%.1%) went away before the run began; machine 0 waits for it again", 5)
    second:wait(5)
    local others = { machines.start(1, port, path, options), machines.start(2, port, path, options), first }
    for k, run in ipairs(others) do
      local status, out, err = run:wait(10)
      assert.are.equal(0, status, err)
      assert.are.equal("rank " .. k % 3 .. "\n", out)
    end
  end)

  it("keep their port: another run, other programs and late machines are told", function()
    local port, close = machines.listen()
    local path = processes.script(processes.PRELUDE ..
      "ffi.cdef 'int usleep(unsigned);'\nfor _ = 1, 400 do dist.barrier() ffi.C.usleep(2000) end " ..
      "io.write('end\\n')")
    local status, _, err = machines.start(0, port, path):wait(5)
    assert.are.equal(1, status)
    matches(err, "machine 0 cannot listen at 127%.0%.0%.1:" .. port ..
      ": Address already in use; another program, or another run")
    close()

    local first, second = machines.start(0, port, path), machines.start(1, port, path)
    first:expect("pid 0 ", 10)
    status, _, err = machines.start(0, port, path):wait(5)
    assert.are.equal(1, status)
    has(err, "Address already in use")
    status, _, err = machines.start(1, port, path):wait(5)
    assert.are.equal(1, status)
    has(err, "refuses machine 1: the run at this address has all of its 2 machines, and has begun")
    local out
    status, out, err = first:wait(10)
    assert.are.equal(0, status, err)
    assert.are.equal(2, select(2, out:gsub("end\n", "")))
    has(err, "machine 1 of another run (127.0.0.1) was refused")
    assert.are.equal(0, (second:wait(10)))
  end)

  it("are checked before anything starts", function()
    local function usage(words, ...)
      words[#words + 1] = "-e"
      words[#words + 1] = "print('ran')"
      local status, out, err = host.run(words)
      assert.are.equal(2, status, err)
      assert.are.equal("", out)
      for _, text in ipairs { ... } do assert(err:find(text, 1, true), err) end
    end
    usage({ "--num_machines", "2", "--num_processes", "5", "--main_process_ip", "127.0.0.1" },
      "5 ranks (--num_processes)", "2 machines (--num_machines)")
    usage({ "--num_machines", "2", "--num_processes", "4" }, "--main_process_ip ADDRESS")
    usage({ "--num_machines", "2", "--num_processes", "4", "--machine_rank", "2", "--main_process_ip",
      "127.0.0.1" }, "--machine_rank: expected 0 to 1", "got 2")
    usage({ "--machine_rank", "1" }, "--machine_rank: expected 0 to 0, for there is 1 machine")
    usage({ "--num_machines", "2", "--num_processes", "2", "--main_process_ip", "127.0.0.1",
      "--main_process_port", "0" }, "--main_process_port", "got 0")
    local status, _, err = host.run({ "-e", "" },
      { env = { ACCELERATE_NUM_MACHINES = "2", ACCELERATE_NUM_PROCESSES = "2",
      ACCELERATE_MACHINE_RANK = "7" } })
    assert.are.equal(2, status)
    has(err, "environment variable ACCELERATE_MACHINE_RANK: expected 0 to 1")
    status, _, err = host.run { "--num_machines", "2", "--num_processes", "2", "--main_process_ip",
      "192.0.2.1", "--main_process_port", tostring(machines.free_port()), "--timeout", "0.5", "-e", "" }
    assert.are.equal(1, status)
    matches(err, "machine 0 has no address of 192%.0%.2%.1:%d+; it listens at all that it has")
    has(err, "waited 0.5 s")
  end)

  it("reach machine 0 at any of its addresses, whatever its own name resolves to", function()
    local script = "print(require('accelerate.core').dist.rank())"
    for _, addresses in ipairs { { "0.0.0.0", "127.0.0.1" }, { "0.0.0.0", "127.0.0.2" } } do
      local out = machines.ok(script, { ranks = 2, addresses = addresses })
      assert.are.equal(2, select(2, out:gsub("[01]\n", "")), out)
    end
    if not io.open("/proc/net/if_inet6") then return end
    assert.truthy(machines.ok(script, { ranks = 2, addresses = { "::", "::1" } }):find "1\n")
  end)

  it("are numbered by a launcher that starts one accel-run on each", function()
    local script = "print('rank ' .. require('accelerate.core').dist.rank())"
    local launchers = {
      { "SLURM_STEP_NUM_TASKS", "SLURM_PROCID" }, { "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK" },
      { "PMI_SIZE", "PMI_RANK" }, { "WORLD_SIZE", "RANK" },
    }
    for _, names in ipairs(launchers) do
      local out = machines.ok(script, { started_by = function(rank)
        return { [names[1]] = "2", [names[2]] = tostring(rank) }
      end })
      for rank = 0, 3 do assert.truthy(out:find("rank " .. rank .. "\n", 1, true), out) end
    end
    local words = { "--num_machines", "2", "--num_processes", "4", "--main_process_ip", "127.0.0.1", "-e",
      "" }
    local function refused(env, text)
      local status, _, err = host.run(words, { env = env })
      assert.are.equal(2, status, err)
      matches(err, text)
    end
    refused({ SLURM_STEP_NUM_TASKS = "4", SLURM_PROCID = "1" },
      "2 machines, and SLURM_STEP_NUM_TASKS=4 says that srun [^\n]*started 4 processes; " ..
      "it must start one on each machine %(srun %-%-ntasks%-per%-node=1%)")
    table.insert(words, 1, "--machine_rank=0")
    refused({ SLURM_STEP_NUM_TASKS = "2", SLURM_PROCID = "1" },
      "%-%-machine_rank is 0, and SLURM_PROCID=1; leave %-%-machine_rank out")
  end)
end)
