-- Groups of some ranks: host/core/dist (ax_group_split, the walks of steps.c), host/bind/dist.c,
-- lua/accelerate/distributed.  Each collective against a plain reference in every division, groups
-- that work at the same time, and what goes wrong inside one.
local EVERY = require "spec.support.every_collective"
local host = require "spec.support.host"
local messages = require "spec.support.messages"
local processes = require "spec.support.processes"

local matches = messages.matches

local HEAD = [[
local core, dist = require "accelerate.core", require "accelerate.distributed"
local tensor = require "accelerate.tensor"
local rank, n = dist.get_rank(), dist.get_world_size()
require("ffi").cdef "int usleep(unsigned); int raise(int); int getpid(void); int kill(int, int);"
local C = require("ffi").C
local function sleep(ms) for _ = 1, ms do C.usleep(1000) end end
]]
local HEAD_LINES = select(2, HEAD:gsub("\n", "\n"))

local run_on, works = processes.on_ranks(HEAD)

-- Status, stdout, stderr and seconds of a run of n ranks.
local function run(...)
  local elapsed = processes.stopwatch()
  local status, out, err = run_on(...)
  return status, out, err, elapsed()
end

describe("groups of ranks", function()
  after_each(processes.clean)

  for n = 1, 8 do
    it(("carry every collective in every division of %d ranks"):format(n), function()
      works(n, EVERY .. [[
        -- blocks and strides of each size, and groups that share ranks
        for size = 1, n do
          if n % size == 0 then
            local block = {}
            for first = 0, n - 1, size do
              local list = {}
              for k = 0, size - 1 do list[k + 1] = first + k end
              local g = dist.new_group(list, { name = "block" })
              if g.rank >= 0 then block = g end
            end
            every(block, 3)
            every(block, 0)
            local mesh = dist.mesh { dp_replicate = size, tp = n / size }
            every(mesh.tp, 5)
            every(mesh.dp_replicate, 2)
            every(mesh.tp, 1)
          end
        end
        local odd = {}
        for r = 0, n - 1, 2 do odd[#odd + 1] = r end
        local g = dist.new_group(odd)
        if g.rank >= 0 then every(g, 4) end
        every(dist.world, 4)
      ]])
    end)
  end

  it("carry tensors of many windows", function()
    works(4, EVERY .. [[
      local mesh = dist.mesh { dp_shard = 2, tp = 2 }
      every(mesh.tp, 300000)
      every(mesh.dp_shard, 70001)
      every(dist.world, 150000)
    ]])
  end)

  it("work at the same time, each at its own pace", function()
    works(4, [[
      local mesh = dist.mesh { dp_replicate = 2, tp = 2 }
      local x = tensor.ones(1000)
      local rounds = mesh.coordinate[1] == 0 and 3000 or 100
      for _ = 1, rounds do dist.all_reduce(x, { group = mesh.tp, op = "mean" }) end
      assert(x:sum():item() == 1000)
      for k = 1, 50 do -- in turns over three groups
        local y = tensor.full({ 3 }, rank)
        dist.all_reduce(y, { group = mesh.tp })
        dist.all_reduce(y, { group = mesh.dp_replicate })
        assert(y[1]:item() == 6)
        assert(dist.all_reduce(tensor.ones(1)):item() == 4)
      end
    ]])
  end)

  it("are made and left without end", function()
    works(3, [[
      for k = 1, 400 do
        local g = dist.new_group { 0, 1 + k % 2 }
        if g.rank >= 0 then
          assert(dist.all_reduce(tensor.ones(1), { group = g }):item() == 2)
          if k % 3 > 0 then dist.destroy_process_group(g) end
        end
        g = nil
        if k % 20 == 0 then collectgarbage() collectgarbage() end
      end
    ]])
  end)

  it("are their ranks': a loader's worker process takes no part in one, and ends none", function()
    works(2, [[
      local data = require "accelerate.data"
      local group = dist.new_group { 0, 1 }
      dist.all_reduce(tensor.ones(1), { group = group })
      dist.barrier()
      local set = { len = function() return 1 end }
      function set:get()
        local done, why = pcall(dist.all_reduce, tensor.ones(1), { group = group })
        assert(not done and why:find("only the ranks themselves take part in collectives", 1, true), why)
        dist.destroy_process_group(group)
        return tensor.ones(1)
      end
      for x in data.DataLoader(set, { num_workers = 1 }):iter() do assert(x:item() == 1) end
      local later = dist.new_group { 0, 1 } -- takes counters that nobody uses
      for k = 1, 5 do
        for _, g in ipairs { group, later } do
          local x = tensor.full({ 3 }, k)
          dist.all_reduce(x, { group = g })
          assert(x:sum():item() == 6 * k)
        end
      end
    ]])
  end)

  it("say what they are", function()
    local out = works(4, [[
      local mesh = dist.mesh { dp_shard = 2, tp = 2 }
      local g = dist.new_group({ 3, 1 }, { name = "odd" })
      if rank == 3 then
        print(mesh, mesh.tp, g, #g, table.concat(dist.get_process_group_ranks(g), " "))
        print(dist.get_rank(g), dist.get_world_size(g), dist.get_backend(), dist.world)
      elseif rank == 0 then
        print(g, dist.get_rank(g), dist.get_world_size(g))
      end
    ]])
    matches(out, "Mesh%(dp_shard=2 x tp=2%)\tProcessGroup%(tp%[2,3%], rank 1 of 2%)\t" ..
      "ProcessGroup%(odd%[1,3%], rank 1 of 2%)\t2\t1 3\n")
    matches(out, "1\t2\tshm\tProcessGroup%(world, rank 3 of 4%)\n")
    matches(out, "ProcessGroup%(odd%[1,3%], this rank is not in it%)\t%-1\t%-1\n")
  end)

  it("refuse wrong arguments with what was given", function()
    works(2, [[
      local function refused(want, fn, ...)
        local ok, why = pcall(fn, ...)
        assert(not ok and why:find(want, 1, true), tostring(why))
      end
      refused("new_group: entry 2 is 5; the world's ranks are 0 to 1", dist.new_group, { 0, 5 })
      refused("rank 1 is in the list twice", dist.new_group, { 1, 1 })
      refused("mesh: the sizes multiply to 4 (dp_shard=2 x tp=2), and the run has 2 ranks", dist.mesh,
        { dp_shard = 2, tp = 2 })
      refused("mesh: unknown option 'tpp'; did you mean 'tp'?", dist.mesh, { tpp = 2 })
      refused("new_group: all ranks must give the same list: rank 0 gives { 0 }, rank 1 { 1 }",
        dist.new_group, { rank })
      local g = dist.new_group { 1 }
      local x = tensor.ones(2)
      if rank == 0 then
        refused("all_reduce: rank 0 is not in group[1], and cannot take part in its collectives",
          dist.all_reduce, x, { group = g })
      else
        refused("broadcast: src is rank 0 of the world, which is not in group[1]", dist.broadcast, x,
          { src = 0, group = g })
        dist.destroy_process_group(g)
        refused("all_reduce: group[1] was destroyed by destroy_process_group", dist.all_reduce, x,
          { group = g })
      end
      refused("send: rank " .. rank .. " is this rank itself", dist.send, x, { dst = rank })
      refused("send: dst is missing", dist.send, x, {})
      refused("all_to_all: input_split_sizes has 1 entries; world has 2 ranks", dist.all_to_all, x,
        { input_split_sizes = { 2 } })
      refused("all_to_all: 3 rows do not divide by 2 ranks", dist.all_to_all, tensor.ones(3))
      refused("all_reduce: expected a tensor, got 5", dist.all_reduce, 5)
    ]])
  end)

  it("carry nested values of the utilities", function()
    works(4, [[
      local utils = require("accelerate").utils
      local mesh = dist.mesh { dp_shard = 2, tp = 2 }
      local all = utils.gather({ x = tensor.full({ 1 }, rank) }, { group = mesh.tp })
      assert(all.x:sum():item() == (rank < 2 and 1 or 5))
      local sum = utils.reduce(tensor.full({ 1 }, rank), "sum", { group = mesh.dp_shard })
      assert(sum:item() == 2 + rank % 2 * 2)
      local first = mesh.tp.ranks[1]
      local x = utils.broadcast(tensor.full({ 1 }, rank), { from_process = first, group = mesh.tp })
      assert(x:item() == first)
      local objects = utils.gather_object({ "r" .. rank }, { group = mesh.tp })
      assert(table.concat(objects) == (rank < 2 and "r0r1" or "r2r3"))
      local padded = utils.pad_across_processes(tensor.ones(rank + 1), { group = mesh.tp })
      assert(padded:numel() == (rank < 2 and 2 or 4) and padded:sum():item() == rank + 1)
      local list = utils.broadcast_object_list({ rank, "x" }, { from_process = first + 1, group = mesh.tp })
      assert(list[1] == first + 1 and list[2] == "x")
      local ok, why = pcall(utils.broadcast_object_list, { 1 }, { from_process = 3 - rank, group = mesh.tp })
      assert(not ok and why:find("broadcast_object_list: from_process is rank " .. 3 - rank ..
        ", which is not in tp[", 1, true), why)
    ]])
  end)
end)

describe("a failure inside a group", function()
  after_each(processes.clean)

  it("by other arguments names the group, both ranks and both lines", function()
    local status, _, err, seconds = run(4, [[
local mesh = dist.mesh { dp_shard = 2, tp = 2 }
if rank == 2 then
  dist.all_reduce(tensor.ones(3), { group = mesh.tp })
elseif rank == 3 then
  dist.all_reduce(tensor.ones(4), { group = mesh.tp })
else
  for _ = 1, 100 do dist.all_reduce(tensor.ones(3), { group = mesh.tp }) sleep(20) end
end]])
    assert.equal(1, status)
    assert.is_true(seconds < 3, seconds)
    matches(err, (
      "ranks disagree in collective #1: rank 2 calls all_reduce%%(float32, 3 elements, sum%%) in " ..
      "tp%%[2,3%%] at [^\n]*:%d; rank 3 calls all_reduce%%(float32, 4 elements, sum%%) " ..
      "in tp%%[2,3%%] at [^\n]*:%d\n")
      :format(HEAD_LINES + 3, HEAD_LINES + 5))
  end)

  it("by a rank that is in another collective is noticed within a second, with the circle", function()
    local status, _, err, seconds = run(3, [[
local g = dist.new_group({ 0, 1 }, { name = "tp" })
if rank == 0 then
  dist.all_reduce(tensor.ones(3), { group = g })
else
  dist.barrier()
end]])
    assert.equal(1, status)
    assert.is_true(seconds < 3, seconds)
    matches(err, ("ranks wait for each other: rank 0 calls all_reduce%%(float32, 3 elements, sum%%) in " ..
      "tp%%[0,1%%] at " ..
      "[^\n]*:%d and waits for rank 1; rank 1 calls barrier%%(%%) at [^\n]*:%d and waits for rank 0\n")
      :format(HEAD_LINES + 3, HEAD_LINES + 5))
  end)

  it("by two ranks that both receive is noticed within a second", function()
    local status, _, err, seconds = run(2, "local x = tensor.ones(2)\ndist.recv(x, { src = 1 - rank })")
    assert.equal(1, status)
    assert.is_true(seconds < 3, seconds)
    matches(err, "ranks wait for each other: rank 0 calls recv%(float32, 2 elements, from rank 1%) at " ..
      "[^\n]* and " ..
      "waits for rank 1; rank 1 calls recv%(float32, 2 elements, from rank 0%)")
  end)

  it("by a rank that dies ends the run within a second, with its name", function()
    local status, _, err, seconds = run(4, [[
local mesh = dist.mesh { dp_shard = 2, tp = 2 }
if rank == 3 then sleep(200) C.kill(C.getpid(), 9) end
for _ = 1, 1000 do dist.all_reduce(tensor.ones(3), { group = mesh.tp }) sleep(5) end]])
    assert.equal(137, status)
    assert.is_true(seconds < 3, seconds)
    matches(err, "rank 3 of 4 was killed by SIGKILL")
    matches(err, "rank 2 +in #%d+, all_reduce%(float32, 3 elements, sum%) in tp%[2,3%] at ")
  end)

  it("by a rank that is stopped ends when the limit is reached, with a table that names the group", function()
    local status, _, err, seconds = run(4, [[
local mesh = dist.mesh { dp_shard = 2, tp = 2 }
if rank == 1 then C.kill(C.getpid(), 19) end
if rank > 1 then for _ = 1, 4000 do dist.all_reduce(tensor.ones(3), { group = mesh.tp }) sleep(5) end end
dist.all_reduce(tensor.ones(3), { group = mesh.tp })]], { "--timeout", host.limit(1) })
    assert.is_true(status ~= 0)
    assert.is_true(seconds < 8, seconds)
    matches(err, "waited [%d.]+ s in tp%[0,1%] for rank 1, which last called #%d+, all_gather")
    matches(err, "\n  rank 3 [^\n]*, all_reduce%(float32, 3 elements, sum%) in tp%[2,3%] at ")
  end)

  it("by a rank that has finished is noticed at once", function()
    local status, _, err, seconds = run(3, [[
local g = dist.new_group({ 0, 2 }, { name = "pair" })
if rank == 0 then dist.all_reduce(tensor.ones(3), { group = g }) end]])
    assert.equal(1, status)
    assert.is_true(seconds < 3, seconds)
    matches(err, "rank 2 has finished and will not take part in this")
  end)

  it("by splits that do not fit names both ranks, on both", function()
    local status, _, err = run(2, [[
dist.all_to_all(tensor.ones(3), { input_split_sizes = { 1, 2 }, output_split_sizes = { 1, 1 } })]])
    assert.equal(1, status)
    matches(err, "all_to_all: rank 0 sends 2 elements to rank 1, which expects 1")
  end)
end)

-- A loss of a rank's x through a collective, summed over the ranks, against differences in float64;
-- then the sum of its gradient's squares likewise.
local GRADIENTS = [[
local f = dist.functional
local cases = {
  all_reduce = function(x) return f.all_reduce(x) end,
  ["mean"] = function(x) return f.all_reduce(x, { op = "mean" }) end,
  all_gather = function(x) return f.all_gather(x) end,
  reduce_scatter = function(x) return f.reduce_scatter(x) end,
  ["reduce_scatter mean"] = function(x) return f.reduce_scatter(x, { op = "mean" }) end,
  all_to_all = function(x) return f.all_to_all(x) end,
}
-- Compares `got`, this rank's gradient of total(x), with differences, rank by rank.
local function compare(name, got, total, x)
  for owner = 0, n - 1 do
    for k = 1, x:numel() do
      local sides = {}
      for _, h in ipairs { 1e-6, -1e-6 } do
        local moved = x:clone()
        if owner == rank then moved:view(-1)[k] = x:view(-1)[k]:item() + h end
        sides[#sides + 1] = dist.all_reduce(total(moved):detach()):item()
      end
      local slope = (sides[1] - sides[2]) / 2e-6
      if owner == rank then
        local own = got:view(-1)[k]:item()
        assert(math.abs(own - slope) < 1e-6 * math.max(1, math.abs(slope)),
          ("%s: %g, expected %g"):format(name, own, slope))
      end
    end
  end
end
local names = {}
for name in pairs(cases) do names[#names + 1] = name end
table.sort(names)
for _, name in ipairs(names) do
  tensor.manual_seed(5 + rank)
  local x = tensor.randn(2 * n, 2, { dtype = "float64" })
  local c = tensor.randn(unpack(cases[name](x).shape)):double()
  local function loss(t) return (cases[name](t):square() * c):sum() end
  local function gradient(t, again)
    local leaf = t:clone():requires_grad_()
    return tensor.grad(loss(leaf), leaf, { create_graph = again }), leaf
  end
  compare(name, gradient(x), loss, x)
  local g, leaf = gradient(x, true)
  compare(name .. ", again", tensor.grad(g:square():sum(), leaf), function(t)
    return gradient(t):square():sum()
  end, x)
end
]]

describe("distributed, written as torch.distributed is", function()
  after_each(processes.clean)

  it("takes arguments in PyTorch's order", function()
    works(2, [[
      local x = tensor.ones(2) * (rank + 1)
      assert(dist.broadcast(x, 1)[1]:item() == 2)
      assert(dist.all_reduce(x, "sum")[1]:item() == 4)
      local group = dist.new_group({ 0, 1 })
      x = tensor.ones(2) * (rank + 1)
      assert(dist.all_reduce(x, "max", group)[1]:item() == 2)
      dist.reduce(x, 1, "sum", { group = group })
      assert(x[1]:item() == (rank == 1 and 4 or 2))
      if rank == 0 then dist.send(x, 1) else assert(dist.recv(x, 0)[1]:item() == 2) end
    ]])
  end)

  it("begins sends and receives that both sides begin first, and runs them in one order", function()
    works(3, [[
      local to, from = (rank + 1) % n, (rank + n - 1) % n
      local out, got = tensor.full({ 300000 }, rank), tensor.zeros(300000)
      local sent, received = dist.isend(out, { dst = to }), dist.irecv(got, { src = from })
      assert(not sent:is_completed() and not received:is_completed())
      assert(received:wait() and sent:is_completed() and sent:wait())
      assert(got:min():item() == from and got:max():item() == from)
      -- several between two ranks keep their order; the next collective runs them
      local g = dist.new_group({ 0, 1 })
      if g.rank >= 0 then
        local other, gets, works = 1 - rank, {}, {}
        for k = 1, 4 do
          gets[k] = tensor.zeros(2)
          works[k] = dist.recv(gets[k], { src = other, group = g, async_op = true })
          dist.send(tensor.full({ 2 }, 10 * k + rank):float(), { dst = other, group = g, async_op = true })
        end
        dist.barrier(g)
        for k = 1, 4 do
          assert(works[k]:is_completed() and gets[k][2]:item() == 10 * k + other)
        end
      end
      if rank == 0 then dist.isend(out, 1) else got = rank == 1 and dist.irecv(got, 0) end
      dist.barrier()
      local ok, why = pcall(dist.isend, out, { dst = rank })
      assert(not ok and why:find("send: rank " .. rank .. " is this rank itself", 1, true), why)
      ok, why = pcall(dist.irecv, out, {})
      assert(not ok and why:find("recv: src is missing: from which rank?", 1, true), why)
    ]])
  end)

  it("refuses names that it lacks, with what to write", function()
    works(1, [[
      local function says(words, fn, ...)
        local message = select(2, pcall(fn, ...))
        assert(message:find(words, 1, true), message)
      end
      local function read(name) return dist[name] end
      says("'init_process_group'; instead: nothing: ranks that accel-run has", read, "init_process_group")
      says('\'ReduceOp\'; instead: a text, as { op = "sum" }', read, "ReduceOp")
      says("'all_gather_object'; instead: accelerate.utils.gather_object", read, "all_gather_object")
      says("has no 'brodcast'; did you mean 'broadcast'?", read, "brodcast")
      says("no list is filled: what comes is returned", dist.all_gather, { tensor.ones(1) }, tensor.ones(1))
      assert(dist.world.size == 1 and dist.functional.all_reduce)
    ]])
  end)
end)

describe("collectives with gradients", function()
  after_each(processes.clean)
  for _, n in ipairs { 2, 3 } do
    it(("have those of finite differences on %d ranks"):format(n), function() works(n, GRADIENTS) end)
  end

  it("normalise batches over a group", function()
    works(4, [[
      local nn = require "accelerate.nn"
      local mesh = dist.mesh { dp_shard = 2, tp = 2 }
      tensor.manual_seed(3)
      local whole = tensor.randn(4, 6, 3)
      local norm = nn.SyncBatchNorm(3, { process_group = mesh.dp_shard })
      local plain = nn.BatchNorm1d(3)
      local both = tensor.cat({ whole[rank % 2 + 1], whole[rank % 2 + 3] }, { dim = 1 })
      local got, want = norm(whole[rank + 1]), plain(both):narrow(1, rank < 2 and 1 or 7, 6)
      assert((got - want):abs():max():item() < 1e-5)
      assert((norm.running_mean - plain.running_mean):abs():max():item() < 1e-6)
    ]])
  end)

  it("make a layer that is divided over the ranks equal to one that is not", function()
    works(2, [[
      local nn = require "accelerate.nn"
      local F = nn.functional
      tensor.manual_seed(1)
      local x, w1, w2 = tensor.randn(3, 4), tensor.randn(8, 4), tensor.randn(4, 8)
      local whole = { w1:clone():requires_grad_(), w2:clone():requires_grad_() }
      F.linear(F.relu(F.linear(x, whole[1])), whole[2]):square():sum():backward()
      -- rows of w1, columns of w2; every rank computes the loss, so each brings half of it
      local a = w1:narrow(1, 4 * rank + 1, 4):clone():requires_grad_()
      local b = w2:narrow(2, 4 * rank + 1, 4):clone():requires_grad_()
      local y = dist.functional.all_reduce(F.linear(F.relu(F.linear(x, a)), b))
      ;(y:square():sum() / n):backward()
      assert((a.grad - whole[1].grad:narrow(1, 4 * rank + 1, 4)):abs():max():item() < 1e-3)
      assert((b.grad - whole[2].grad:narrow(2, 4 * rank + 1, 4)):abs():max():item() < 1e-3)
    ]])
  end)
end)
