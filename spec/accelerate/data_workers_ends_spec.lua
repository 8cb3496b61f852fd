-- Worker processes: how they end, and prepared loaders that have them.
-- luacheck: ignore 512 (loops that are left by break are what some tests are about)
local data = require "accelerate.data"
local ffi = require "ffi"
local processes = require "spec.support.processes"
local ranks = require "spec.support.ranks"
local samples = require "spec.support.samples"

local plain = samples.plain

ffi.cdef "int getpid(void);"

describe("worker processes", function()
  teardown(processes.clean)

  -- A script whose workers print their pids; what ends it is up to the test.
  local SCRIPT = processes.PRELUDE .. [[
    local data = require "accelerate.data"
    ffi.cdef "int usleep(unsigned n);"
    local set = { len = function() return 1000 end, get = function(_, i)
      ffi.C.usleep(2000)
      return i
    end }
    local loader = data.DataLoader(set, { num_workers = 2, worker_init_fn = function(id)
      io.write(("worker %d %d\n"):format(id + 10 * dist.rank(), ffi.C.getpid()))
    end })
    for x in loader:iter() do
      if x:item() == 5 then
        io.write("five\n")
        ENDING
      end
    end
  ]]

  local function worker_pids(run, count)
    local pids = {}
    assert.is_true(processes.wait_until(20, function()
      for id, pid in run:stdout():gmatch("worker (%d+) (%d+)\n") do pids[tonumber(id)] = tonumber(pid) end
      local n = 0
      for _ in pairs(pids) do n = n + 1 end
      return n == count
    end), run:stderr())
    return pids
  end

  local function gone(pids)
    return processes.wait_until(2, function()
      for _, pid in pairs(pids) do
        if processes.alive(pid) then return false end
      end
      return true
    end)
  end

  it("leave nothing behind however the script ends", function()
    for ending, status in pairs { ["break"] = 0, ["error 'done'"] = 1, ["os.exit(4)"] = 4, ["os.exit(0)"] = 0,
      ["ffi.C.kill(ffi.C.getpid(), 9)"] = 137 } do
      local run = processes.start({ processes.script((SCRIPT:gsub("ENDING", function() return ending end))) },
        -- os.exit leaves all where it is
        { env = { ASAN_OPTIONS = (os.getenv "ASAN_OPTIONS" or "") .. ":detect_leaks=0" } })
      local pids = worker_pids(run, 2)
      assert.equal(status, (run:wait(30)), ending)
      assert.is_true(gone(pids), ending)
    end
  end)

  it("that are stopped are named soon and awaited; slow ones are not taken for stopped", function()
    local run = processes.start { processes.script((SCRIPT:gsub("ENDING", ""):gsub("usleep%(2000%)",
      "usleep(i == 10 and 900000 or 2000)"):gsub("return 1000", "return 4000"))) }
    local pids = worker_pids(run, 2)
    run:expect("five", 20)
    processes.sleep(1.5) -- past the slow one
    assert.equal("", run:stderr())
    processes.kill(pids[1], processes.SIGSTOP)
    local elapsed = processes.stopwatch()
    run:expect(("DataLoader: worker 1: process %d was stopped by SIGSTOP; " ..
      "batch %%d+ comes when it goes on"):format(pids[1]), 5)
    local seconds = elapsed()
    assert.is_true(seconds < 1.5, ("took %g s"):format(seconds))
    processes.sleep(0.6)
    processes.kill(pids[1], processes.SIGCONT)
    local status, _, err = run:wait(20)
    assert.equal(0, status)
    assert.equal(1, select(2, err:gsub("\n", "")), err) -- once
    assert.is_true(gone(pids))
  end)

  it("leave it to their rank to answer Ctrl-C", function()
    local run = processes.start {
      processes.script((SCRIPT:gsub("ENDING", "for _ = 1, 3000 do ffi.C.usleep(10000) core.zeros(1) end"))) }
    local pids = worker_pids(run, 2)
    run:expect("five", 20)
    processes.kill(-run.pid, processes.SIGINT)
    local status, _, err = run:wait(20)
    assert.equal(130, status)
    assert.truthy(err:find("interrupted", 1, true), err)
    assert.is_true(gone(pids))
  end)

  it("leave nothing behind when their rank is killed", function()
    local run = processes.start { "--num_processes", "2",
      processes.script((SCRIPT:gsub("ENDING", "ffi.C.usleep(30000000)"))) }
    local pids = worker_pids(run, 4)
    run:ranks(2)
    run:expect("five", 20)
    processes.kill(run.rank_pids[1], processes.SIGKILL)
    assert.equal(137, (run:wait(20)))
    assert.is_true(gone(pids))
  end)

  it("serve prepared loaders: the same batches on two ranks", function()
    local out = ranks.ok(2, [[
      local data = accelerate.data
      local set = { len = function() return 45 end,
        get = function(_, i) return { x = core.rand(2), i = i } end }
      local function read(opts)
        opts.batch_size, opts.shuffle, opts.generator = 4, true, core.Generator(7)
        local loader = accelerate.Accelerator {}:prepare(data.DataLoader(set, opts))
        local lines = {}
        for pass = 1, 2 do
          for b in loader:iter() do lines[#lines + 1] = ("%s %.7f"):format(text(b.i), b.x:sum():item()) end
        end
        local skipped = accelerate.skip_first_batches(loader, 2)
        for b in skipped:iter() do lines[#lines + 1] = ("%s %.7f"):format(text(b.i), b.x:sum():item()) end
        return table.concat(lines, "\n")
      end
      local expected = read {}
      check(expected == read { num_workers = 2 }, "two workers")
      check(expected == read { num_workers = 1, persistent_workers = true }, "one that stays")
      io.write(rank, " ", #expected > 100 and "good" or "short", "\n")
    ]])
    assert.truthy(out:find("0 good") and out:find("1 good"), out)
  end)

  it("of a prepared loader's pass that was left by break are gone when the next one starts", function()
    local accelerator = require("accelerate").Accelerator {}
    local loader = accelerator:prepare(data.DataLoader(plain(40, function(i) return i end),
      { num_workers = 2 }))
    local next_batch = loader:iter()
    next_batch()
    local first = samples.workers()
    assert.equal(2, #first)
    local n = 0
    for _ in loader:iter() do
      n = n + 1
      if n == 1 then
        for _, pid in ipairs(samples.workers()) do assert.is_true(pid ~= first[1] and pid ~= first[2]) end
      end
    end
    assert.equal(40, n)
    assert.same({}, samples.workers())
  end)

  it("of passes left by break do not pile up, of one loader or of many", function()
    local accelerator = require("accelerate").Accelerator {}
    local function set() return plain(8, function(i) return i end) end
    local function stream()
      return { iter = function()
        local i = 0
        return function()
          i = i + 1
          return i < 8 and i or nil
        end
      end }
    end
    local kinds = {
      raw = function(loader) return loader or data.DataLoader(set(), { num_workers = 2 }) end,
      many = function() return data.DataLoader(set(), { num_workers = 2 }) end,
      prepared = function(loader)
        return loader or accelerator:prepare(data.DataLoader(set(), { num_workers = 2 }))
      end,
      stream = function(loader) return loader or data.DataLoader(stream(), { num_workers = 2 }) end,
    }
    for kind, make in pairs(kinds) do
      local loader
      for k = 1, 40 do
        loader = make(loader)
        for _ in loader:iter() do break end
        if k % 10 == 0 then
          assert.is_true(#samples.workers() <= 4, kind .. ": " .. #samples.workers() .. " processes after " ..
            k ..
            " breaks")
        end
      end
    end
    collectgarbage()
    collectgarbage()
    assert.is_true(#samples.workers() <= 2) -- what the last loop's own variables may still hold
  end)

  it("of a pass that goes on inside another one of the same loader are started again", function()
    local loader = data.DataLoader(plain(3, function(i) return i end), { num_workers = 1 })
    local seen = {}
    for x in loader:iter() do
      for y in loader:iter() do seen[#seen + 1] = x:totable()[1] * 10 + y:totable()[1] end
    end
    assert.same({ 11, 12, 13, 21, 22, 23, 31, 32, 33 }, seen)
    local prepared, count = require("accelerate").Accelerator {}:prepare(
      data.DataLoader(plain(3, function(i) return i end), { num_workers = 1 })), 0
    for _ in prepared:iter() do
      for _ in prepared:iter() do count = count + 1 end
    end
    assert.equal(9, count)
  end)

  it("serve prepared streams", function()
    ranks.ok(2, [[
      local data = accelerate.data
      local set = { iter = function()
        local info = data.get_worker_info()
        local i, step = (info and info.id or 0) + 1, info and info.num_workers or 1
        i = i - step
        return function() i = i + step if i <= 32 then return i end end
      end }
      local function read(dispatch)
        local accelerator, got = accelerate.Accelerator { dispatch_batches = dispatch }, {}
        local loader = accelerator:prepare(data.DataLoader(set, { batch_size = 4, num_workers = 2 }))
        for x in loader:iter() do got[#got + 1] = text(x) end
        return table.concat(got, "|")
      end
      local expected = rank == 0 and "1 3 5 7|2 4 6 8|17 19 21 23|18 20 22 24"
        or "9 11 13 15|10 12 14 16|25 27 29 31|26 28 30 32"
      check(read(false) == expected, read(false))
      expected = rank == 0 and "1 3 5 7|9 11 13 15|17 19 21 23|25 27 29 31"
        or "2 4 6 8|10 12 14 16|18 20 22 24|26 28 30 32"
      check(read(nil) == expected, read(nil)) -- rank 0 reads for both
    ]])
  end)
end)
