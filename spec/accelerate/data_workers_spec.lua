-- Worker processes of a loader: what they read, and in which order.
-- luacheck: ignore 512 (loops that are left by break are what some tests are about)
local core = require "accelerate.core"
local data = require "accelerate.data"
local ffi = require "ffi"
local processes = require "spec.support.processes"
local raises = require("spec.support.messages").raises
local samples = require "spec.support.samples"

local plain = samples.plain

ffi.cdef "int getpid(void);"

local function walk(loader)
  for _ in loader:iter() do end -- luacheck: ignore
end

-- Reads random numbers, strings and nested tables.
local mixed = plain(53, function(i)
  return { x = core.rand(3, 4), i = i, name = "sample " .. i, pair = { a = { i, 2 * i }, flag = i % 2 == 0 } }
end)

local function digest(loader, passes)
  local lines = {}
  for _ = 1, passes or 1 do
    for b in loader:iter() do
      lines[#lines + 1] = ("%s %.7f %s %s %s"):format(table.concat(b.i:totable(), ","), b.x:sum():item(),
        table.concat(b.name, ";"),
        table.concat(b.pair.a[2]:totable(), ","), tostring(b.pair.flag:totable()[1]))
    end
  end
  return table.concat(lines, "\n")
end

local function mixed_loader(opts)
  opts.batch_size, opts.shuffle, opts.generator = 5, true, core.Generator(4)
  return data.DataLoader(mixed, opts)
end

describe("worker processes", function()
  teardown(processes.clean)

  it("give the same batches, random numbers included, for any number of workers and for none", function()
    core.manual_seed(11)
    local expected = digest(mixed_loader {}, 2)
    for _, opts in ipairs { { num_workers = 1 }, { num_workers = 2 },
      { num_workers = 3, prefetch_factor = 1 },
      { num_workers = 2, persistent_workers = true } } do
      assert.equal(expected, digest(mixed_loader(opts), 2))
    end
    core.manual_seed(12)
    assert.not_equal(expected, digest(mixed_loader { num_workers = 2 }, 2))
    core.manual_seed(0)
  end)

  it("draw other numbers in each pass and batch, and leave the generator of the step alone", function()
    local loader = data.DataLoader(plain(4, function() return core.rand(1) end), { batch_size = 1 })
    local seen = {}
    core.manual_seed(3)
    local before = core.default_generator():get_state()
    for _ = 1, 2 do
      for x in loader:iter() do seen[x:item()] = true end
    end
    assert.equal(before, core.default_generator():get_state())
    local n = 0
    for _ in pairs(seen) do n = n + 1 end
    assert.equal(8, n)
    core.manual_seed(0)
  end)

  it("draw in a pass without its first batches what they draw in the whole one", function()
    local set = plain(12, function(i) return { i = i, r = core.rand(1, { dtype = "float64" }) } end)
    local skip_first_batches = require("accelerate").skip_first_batches
    for _, opts in ipairs { {}, { num_workers = 2 } } do
      opts.batch_size = 2
      local whole, rest = {}, {}
      local loader = data.DataLoader(set, opts)
      local skipped = skip_first_batches(loader, 3)
      for b in loader:iter() do whole[#whole + 1] = b.r:sum():item() end
      for b in skipped:iter() do rest[#rest + 1] = b.r:sum():item() end
      assert.same({ unpack(whole, 4) }, rest)
    end
  end)

  it("keep the order when one is slower", function()
    local set = plain(24, function(i)
      if i % 8 < 4 then processes.sleep(0.005) end
      return i
    end)
    local got = {}
    for b in data.DataLoader(set, { batch_size = 4, num_workers = 2 }):iter() do
      got[#got + 1] = b[1]:item()
    end
    assert.same({ 1, 5, 9, 13, 17, 21 }, got)
  end)

  it("pass every kind of value", function()
    local loader = data.DataLoader(plain(2, function(i) return i end),
      { num_workers = 1, batch_size = 2, collate_fn = function()
      return core.arange(6):view(2, 3):transpose(1, 2), { true, false, [10] = "ten", deep = { {} } }, nil, "",
        core.empty(0, 3),
        core.tensor(2.5, { dtype = "bfloat16" }), math.huge
    end })
    local x, t, none, text, empty, scalar, huge = loader:iter()()
    assert.same({ { 0, 3 }, { 1, 4 }, { 2, 5 } }, x:totable())
    assert.same({ true, false, [10] = "ten", deep = { {} } }, t)
    assert.is_nil(none)
    assert.equal("", text)
    assert.same({ 0, 3 }, empty.shape)
    assert.equal("bfloat16", scalar.dtype)
    assert.equal(2.5, scalar:item())
    assert.equal(math.huge, huge)
  end)

  it("are sent requests of any length while they read none", function()
    local flag, long = os.tmpname(), ("x"):rep(5e6)
    os.remove(flag)
    local worker = core._worker_start(function(channel)
      local freed = false
      for _ = 1, 500 do -- the parent makes the file once it has sent all
        local f = io.open(flag)
        freed = f ~= nil
        if f then f:close() break end
        os.execute("sleep 0.01")
      end
      for ticket = 1, 3 do channel:reply(ticket, 1, freed, #channel:receive()) end
      channel:receive()
    end)
    worker:send(long)
    worker:send("short")
    worker:send(long)
    io.open(flag, "w"):close()
    for ticket, length in ipairs { 5e6, 5, 5e6 } do
      assert.same({ ticket, 1, true, length }, { core._worker_wait({ worker }, 1, 30) })
    end
    os.remove(flag)
    worker:close()
  end)

  it("read tensors and single samples", function()
    local set = data.TensorDataset(core.arange(20):view(10, 2), core.arange(10))
    local got = {}
    for x, y in data.DataLoader(set, { batch_size = 4, num_workers = 2 }):iter() do
      got[#got + 1] = { x:size(1), y:sum():item() }
    end
    assert.same({ { 4, 6 }, { 4, 22 }, { 2, 17 } }, got)
    local sum = 0
    for _, y in data.DataLoader(set, { batch_size = false, num_workers = 2 }):iter() do
      sum = sum + y:item()
    end
    assert.equal(45, sum)
  end)

  it("leave batches alone that the script keeps, however many, and reuse the memory of those it does not",
    function()
    local set = plain(400, function(i) return core.full({ 20000 }, i) end)
    local kept = {}
    for x in data.DataLoader(set, { batch_size = 2, num_workers = 2 }):iter() do kept[#kept + 1] = x end
    assert.equal(200, #kept)
    for k, x in ipairs(kept) do
      assert.equal(2 * k - 1, x[{ 1, 1 }]:item())
      assert.equal(2 * k, x[{ 2, 20000 }]:item())
    end
    kept[1]:zero_()
    assert.equal(3, kept[2][{ 1, 1 }]:item())
    kept = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    local before = core.memory_stats().live_bytes
    for _ = 1, 3 do walk(data.DataLoader(set, { batch_size = 2, num_workers = 1 })) end
    collectgarbage()
    collectgarbage()
    assert.equal(before, core.memory_stats().live_bytes)
  end)

  it("grow with batches that grow", function()
    local loader = data.DataLoader(plain(12, function(i) return core.full({ 4 ^ (i % 6) * 10, 2 }, i) end),
      { num_workers = 1 })
    local n = 0
    for x in loader:iter() do
      n = n + 1
      assert.same({ 1, 4 ^ (n % 6) * 10, 2 }, x.shape)
      assert.equal(n, x[{ 1, -1, 2 }]:item())
    end
    assert.equal(12, n)
  end)

  it("raise a sample's error at its place, with the worker's stack", function()
    local set = plain(40, function(i)
      if i == 25 then error("no such picture") end
      return i
    end)
    local got = 0
    local err = raises("batch 7: DataLoader: sample 25: ", function()
      for _ in data.DataLoader(set, { batch_size = 4, num_workers = 2 }):iter() do got = got + 1 end
    end)
    assert.equal(6, got)
    assert.truthy(err:find("DataLoader: worker 0 (process ", 1, true), err)
    assert.truthy(err:find("data_workers_spec.lua:%d+: no such picture"), err)
    assert.equal(1, select(2, err:gsub("stack traceback:", "")))
    assert.same({}, samples.workers())
  end)

  it("say what cannot go from one process to another", function()
    local loader = data.DataLoader(plain(4, function(i) return i end),
      { num_workers = 1, collate_fn = function() return { inner = { 1, print } } end })
    raises("part 1.inner[2] is a function, which cannot go from one process to another", walk, loader)
    local cycle = {}
    cycle.me = cycle
    loader = data.DataLoader(plain(4, function(i) return i end),
      { num_workers = 1, collate_fn = function() return cycle end })
    raises("part 1.me is part 1 itself: a table that holds itself cannot go", walk, loader)
  end)

  it("are missed within a second when they are killed, even one whose turn it is not", function()
    local set = plain(200, function(i)
      processes.sleep(0.2)
      return i
    end)
    local next_batch = data.DataLoader(set, { num_workers = 2 }):iter()
    next_batch()
    local pids = samples.workers()
    assert.equal(2, #pids)
    processes.kill(pids[2], processes.SIGKILL)
    local elapsed = processes.stopwatch()
    local err = raises("was killed by SIGKILL", function()
      while next_batch() do end -- luacheck: ignore
    end)
    local seconds = elapsed()
    assert.is_true(seconds < 1.5, ("took %g s"):format(seconds))
    assert.truthy(err:find("worker %d ended before its time: process " .. pids[2]), err)
    assert.same({}, samples.workers())
  end)

  it("may not leave by os.exit, which is told", function()
    raises("exited with status 3", walk,
      data.DataLoader(plain(4, function() os.exit(3) end), { num_workers = 1 }))
  end)

  it("are given up after timeout", function()
    local set = plain(8, function(i)
      if i == 3 then processes.sleep(30) end
      return i
    end)
    local elapsed = processes.stopwatch()
    raises("gave no batch 3 in 0.3 s (timeout)", walk,
      data.DataLoader(set, { num_workers = 1, timeout = 0.3 }))
    assert.is_true(elapsed() < 3)
    assert.same({}, samples.workers())
  end)

  it("run worker_init_fn and know who they are", function()
    assert.is_nil(data.get_worker_info())
    local started
    local set = plain(6, function(i)
      local info = data.get_worker_info()
      return { i, info.id, info.num_workers, started, info.dataset ~= nil and info.seed ~= nil and 1 or 0 }
    end)
    local loader = data.DataLoader(set,
      { num_workers = 2, worker_init_fn = function(id) started = 100 + id end })
    local got = {}
    for b in loader:iter() do
      got[#got + 1] = { b[1]:item(), b[2]:item(), b[3]:item(), b[4]:item(), b[5]:item() }
    end
    assert.same({ { 1, 0, 2, 100, 1 }, { 2, 1, 2, 101, 1 }, { 3, 0, 2, 100, 1 }, { 4, 1, 2, 101, 1 },
      { 5, 0, 2, 100, 1 },
      { 6, 1, 2, 101, 1 } }, got)
    assert.is_nil(started)
    raises("worker_init_fn: ", walk,
      data.DataLoader(set, { num_workers = 1, worker_init_fn = function() error("cannot") end }))
  end)

  it("read streams, each worker its own part", function()
    local Numbers = data.class("Numbers", data.IterableDataset)
    function Numbers:iter()
      local info = data.get_worker_info()
      local i, step = info and info.id or 0, info and info.num_workers or 1
      i = i + 1 - step
      return function()
        i = i + step
        if i <= 11 then return i end
      end
    end
    local function read(opts)
      local got = {}
      for b in data.DataLoader(Numbers(), opts):iter() do got[#got + 1] = b:totable() end
      return got
    end
    assert.same({ { 1, 2, 3, 4 }, { 5, 6, 7, 8 }, { 9, 10, 11 } }, read { batch_size = 4 })
    assert.same({ { 1, 3, 5, 7 }, { 2, 4, 6, 8 }, { 9, 11 }, { 10 } },
      read { batch_size = 4, num_workers = 2 })
    assert.same({ { 1, 3 }, { 2, 4 }, { 5, 7 }, { 6, 8 }, { 9, 11 } },
      read { batch_size = 2, num_workers = 2, drop_last = true })
    assert.same({}, samples.workers())
  end)

  it("stay for the next pass when asked to, and end with it otherwise", function()
    local set = plain(4, function() return ffi.C.getpid() end)
    local function pids(loader)
      local seen = {}
      for b in loader:iter() do seen[#seen + 1] = b:item() end
      return seen
    end
    local loader = data.DataLoader(set, { num_workers = 2, persistent_workers = true })
    local first = pids(loader)
    assert.equal(first[1], first[3])
    assert.not_equal(first[1], first[2])
    assert.same(first, pids(loader))
    assert.equal(2, #samples.workers())
    loader:close()
    assert.same({}, samples.workers())
    assert.not_same(first, pids(loader)) -- starts new ones
    loader:close()
    loader = data.DataLoader(set, { num_workers = 2 })
    first = pids(loader)
    assert.same({}, samples.workers())
    assert.not_same(first, pids(loader))
  end)

  it("serve passes inside each other, and a pass after a break", function()
    for _, persistent in ipairs { false, true } do
      local loader = data.DataLoader(plain(6, function(i) return i end),
        { num_workers = 2, persistent_workers = persistent })
      local got = {}
      for a in loader:iter() do
        for b in loader:iter() do
          got[#got + 1] = a:item() * 10 + b:item()
          if b:item() == 4 then break end
        end
      end
      local expected = {}
      for a = 1, 6 do
        for b = 1, 4 do expected[#expected + 1] = a * 10 + b end
      end
      assert.same(expected, got)
      loader:close()
      assert.same({}, samples.workers())
    end
  end)

  it("tell a dataset the number of the pass", function()
    local set = plain(3, function(i) return i end)
    set.set_epoch = function(self, epoch) self.epoch = epoch end
    set.get = function(self, i) return 10 * (self.epoch or 0) + i end
    local loader = data.DataLoader(set, { batch_size = 3, num_workers = 1, persistent_workers = true })
    assert.same({ 1, 2, 3 }, loader:iter()():totable())
    loader:set_epoch(4)
    assert.same({ 41, 42, 43 }, loader:iter()():totable())
    loader:close()
  end)

  it("are gone when the collector has found a pass that was left by break", function()
    local loader = data.DataLoader(plain(100, function(i) return i end), { num_workers = 2 })
    loader:iter()()
    jit.flush()
    collectgarbage()
    collectgarbage()
    assert.is_true(processes.wait_until(2, function() return #samples.workers() == 0 end))
  end)

  it("take part in no collective and start no workers", function()
    raises("only the ranks themselves take part in collectives", walk,
      data.DataLoader(plain(1, function() return core.dist.all_reduce(core.ones(1)) end),
      { num_workers = 1 }))
    raises("a worker process cannot start workers of its own", walk, data.DataLoader(plain(1, function()
      return data.DataLoader(plain(1, function() return 1 end), { num_workers = 1 }):iter()()
    end), { num_workers = 1 }))
  end)

  it("have one thread", function()
    raises("a loader's worker process has one thread, got 2", walk,
      data.DataLoader(plain(1, function() return core.set_num_threads(2) end), { num_workers = 1 }))
  end)

  it("start after OpenMP's threads have run, and while the background thread is alive", function()
    local threads = core.get_num_threads()
    core.set_num_threads(2)
    local big = core.rand(600, 600)
    local sum = big:matmul(big):sum():item()
    local next_row = data.DataLoader(data.TensorDataset(big), { batch_size = 100, background = true }):iter()
    next_row()
    local loader = data.DataLoader(plain(4, function() return big:matmul(big):sum() end),
      { num_workers = 2, timeout = 30 })
    for x in loader:iter() do assert.near(sum, x:item(), math.abs(sum) * 1e-5) end
    assert.same({ 100, 600 }, next_row().shape)
    core.set_num_threads(threads)
  end)
end)
