-- A rank, or the launcher, is killed or stopped at a random moment, again and again: each time it
-- is noticed in time and named, and nothing is left.  ACCEL_STRESS=100 sets the number of rounds
-- for each case (default 3).
local processes = require "spec.support.processes"

local ROUNDS = tonumber(os.getenv("ACCEL_STRESS") or 3)
local RANKS = 2
local NOTICED = 1 -- seconds from the signal to the end of the run
local STALL = 0.3 -- the stall timeout for stopped ranks

local WORK = {
  ["inside a collective"] = [[
    local t = core.ones(200000)
    return function() dist.all_reduce(t, "mean") end]],
  ["inside a reduction of gradients"] = [[
    local layout = core.flat({ core.ones(4000000, { requires_grad = true }) }, 1)
    layout:give_grads()
    local t = layout:grads()
    return function() dist.all_reduce(t, "mean") end]],
  ["in backward"] = [[
    local w = core.randn(256, 256, { requires_grad = true })
    local x = core.randn(64, 256)
    local n = 0
    return function()
      local y = x
      for _ = 1, 8 do y = y:linear(w):tanh() end
      y:sum():backward()
      w.grad = nil
      n = n + 1
      if n % 50 == 0 then dist.barrier() end
    end]],
  ["in item()"] = [[
    local x, n = core.ones(50000), 0
    return function()
      x:sum():item()
      n = n + 1
      if n % 50 == 0 then dist.barrier() end
    end]],
}

local PLACES = { "inside a collective", "inside a reduction of gradients", "in backward", "in item()" }

local function script_for(work)
  return processes.script(processes.PRELUDE .. "local function make()\n" .. WORK[work] ..
    "\nend\nlocal step = make()\nstep()\ndist.barrier()\nio.write('ready\\n')\nwhile true do step() end\n")
end

-- One run with a signal at a random moment; returns its status, stderr and the seconds from the
-- signal to its end.
local function round(path, target, sig)
  local r = processes.start { "--num_processes", tostring(RANKS), "--stall_timeout", tostring(STALL), path }
  local pids = r:ranks(RANKS)
  r:expect("ready\n", 20)
  processes.sleep(math.random() * 0.03)
  local victim = math.random(0, RANKS - 1)
  local elapsed = processes.stopwatch()
  processes.kill(target == "rank" and pids[victim] or r.pid, sig)
  local status, _, err = r:wait(20)
  local seconds = elapsed()
  assert(r:nothing_left(1), "ranks outlived the run: " .. err)
  return status, err, seconds, victim
end

local function rounds(path, target, sig, limit, check)
  for i = 1, ROUNDS do
    local status, err, seconds, victim = round(path, target, sig)
    local ok, message = pcall(check, status, err, victim)
    if not ok then error(("round %d: %s\n%s"):format(i, message, err), 0) end
    assert(seconds < limit, ("round %d: noticed after %.2f s, not %g\n%s"):format(i, seconds, limit, err))
  end
end

describe("#slow a rank", function()
  math.randomseed(tonumber(os.getenv("ACCEL_STRESS_SEED") or os.time()))
  after_each(processes.clean)

  for _, work in ipairs(PLACES) do
    it("that is killed " .. work .. " ends the run, named", function()
      rounds(script_for(work), "rank", processes.SIGKILL, NOTICED, function(status, err, victim)
        assert.equal(137, status)
        assert.is_truthy(err:find(("rank %d of 2 was killed by SIGKILL"):format(victim), 1, true))
        assert.is_truthy(err:match("([^\n]*)\n$"):find(("^accel%%-run: rank %d was killed by SIGKILL.* " ..
          "%%(exit status 137%%)$"):format(victim)))
        assert.is_truthy(err:find(("\n  rank %d +[ir][nu]"):format(1 - victim)))
      end)
    end)

    it("that is stopped " .. work .. " ends the run after the stall timeout, named", function()
      rounds(script_for(work), "rank", processes.SIGSTOP, STALL + NOTICED, function(status, err, victim)
        assert.equal(147, status)
        assert.is_truthy(err:find(("rank %d (process "):format(victim), 1, true))
        assert.is_truthy(
          err:match("([^\n]*)\n$"):find(("^accel%%-run: rank %d was stopped by SIGSTOP"):format(victim)))
      end)
    end)
  end
end)

describe("#slow the launcher", function()
  after_each(processes.clean)

  for _, work in ipairs(PLACES) do
    it("that is killed with its ranks " .. work .. " leaves nothing", function()
      rounds(script_for(work), "launcher", processes.SIGKILL, NOTICED,
        function(status) assert.equal(137, status) end)
    end)
  end
end)
