-- Machines that share no network but a bridge: what they find out about each other, over the
-- meeting and over MPI.
local clusters = require "spec.support.clusters"
local host = require "spec.support.host"
local namespaces = require "spec.support.namespaces"
local processes = require "spec.support.processes"
local messages = require "spec.support.messages"

local has, matches = messages.has, messages.matches

-- Ranks that add up what they hold; then, where `arg[1]` says so, all the time.
local SCRIPT = [[
  local accelerate = require "accelerate"
  local tensor = require "accelerate.tensor"
  local ffi = require "ffi"
  ffi.cdef "int usleep(unsigned);"
  local a = accelerate.Accelerator { cpu = true }
  local size = arg[2] and tonumber(arg[2]) or 4
  local sum = a:reduce(tensor.full({ size }, a.process_index + 1), "sum")
  io.write(("rank %d: %d of %g\n"):format(a.process_index, size, sum:mean():item()))
  io.stdout:flush()
  while arg[1] == "on" do
    a:reduce(sum, "mean")
    ffi.C.usleep(20000)
  end
  if arg[1] == "error" and a.process_index == 3 then error "boom" end
  a:wait_for_everyone()
]]

local why = namespaces.why()

describe("machines with networks of their own", function()
  local function on_machines(name, body, needs)
    local missing = why or needs
    it(name, missing and function() pending(missing) end or body)
  end

  before_each(function() if not why then namespaces.make(3) end end)
  after_each(function()
    if not why then namespaces.remove(3) end
    processes.clean()
  end)

  -- Starts `n` machines of two ranks each that meet at machine 0's address.
  local function start(n, arguments)
    local path, runs = processes.script(SCRIPT), {}
    for i = 0, n - 1 do
      local words = { host.path, "--num_machines", tostring(n), "--num_processes", tostring(2 * n),
        "--machine_rank", tostring(i), "--main_process_ip", namespaces.address(0), "--main_process_port",
        "29517", "--timeout", "4", path }
      for _, word in ipairs(arguments or {}) do words[#words + 1] = word end
      runs[i] = namespaces.start(i, words)
    end
    return runs
  end

  on_machines("meet at machine 0's address", function()
    local runs = start(3)
    for i = 0, 2 do
      local status, out, err = runs[i]:wait(30)
      assert.equal(0, status, err)
      for r = 2 * i, 2 * i + 1 do matches(out, ("rank %d: 4 of 21\n"):format(r)) end
    end
  end)

  on_machines("end with the ranks' names when a cable is cut", function()
    local runs = start(2, { "on" })
    runs[1]:expect("rank 3: 4 of 10\n", 30)
    namespaces.cut(1)
    local status, _, err = runs[0]:wait(30)
    assert.equal(1, status)
    matches(err, "waited 4 s for rank [23] %(machine 1%), which last called #")
    status, _, err = runs[1]:wait(30)
    assert.equal(1, status)
    matches(err, "rank [23] %(machine 1%) of 4 failed: [^\n]*waited [^\n]* for rank 0 %(machine 0%)")
  end)

  on_machines("of mpirun: each rank's launcher is there, and nothing is said", function()
    local run = namespaces.mpirun(2, 2, { processes.script(SCRIPT), "once", "300000" })
    local status, out, err = run:wait(60)
    assert.equal(0, status, err)
    for r = 0, 3 do matches(out, ("rank %d: 300000 of 10\n"):format(r)) end
    assert.equal("", err)
  end, clusters.why.mpirun)

  on_machines("of mpirun: an error there is named here", function()
    local run = namespaces.mpirun(2, 2, { processes.script(SCRIPT), "error" })
    local status, _, err = run:wait(60)
    assert.not_equal(0, status)
    matches(err, "rank 3 %(machine 1%) of 4 failed: [^\n]*: boom\n")
    has(err, "rank 3 (machine 1) failed")
  end, clusters.why.mpirun)
end)
