-- Groups of ranks on several machines: host/core/dist/across.c and links.c, and the machines'
-- shared memory where all ranks of a group are on one.  Two launches on this host stand for two
-- machines.
local EVERY = require "spec.support.every_collective"
local clusters = require "spec.support.clusters"
local host = require "spec.support.host"
local machines = require "spec.support.machines"
local messages = require "spec.support.messages"
local processes = require "spec.support.processes"

local has, matches = messages.has, messages.matches

local HEAD = [[
local core, dist = require "accelerate.core", require "accelerate.distributed"
local tensor = require "accelerate.tensor"
local rank, n = dist.get_rank(), dist.get_world_size()
require("ffi").cdef "int usleep(unsigned); int getpid(void); int kill(int, int);"
local C = require("ffi").C
local function sleep(ms) for _ = 1, ms do C.usleep(1000) end end
]]
local HEAD_LINES = select(2, HEAD:gsub("\n", "\n"))

-- Ranks 0 and 1 are on machine 0, ranks 2 and 3 on machine 1.
local DIVISIONS = EVERY .. [[
local mesh = dist.mesh { dp_replicate = 2, dp_shard = 2 }
every(mesh.dp_shard, 5)
every(mesh.dp_replicate, 5)
every(mesh.dp_replicate, 0)
every(mesh.dp_shard, 3)
for _, list in ipairs { { 0, 3 }, { 0, 1, 2 }, { 1, 2, 3 }, { 0, 1, 2, 3 } } do
  local g = dist.new_group(list)
  if g.rank >= 0 then
    every(g, 4)
    every(g, 2000)
  end
end
-- pieces of reductions, and what is left of them
every(mesh.dp_replicate, 150001)
every(dist.new_group(), 70001)
-- at the same time, each at its own pace
local x = tensor.ones(100)
for _ = 1, mesh.coordinate[2] == 0 and 300 or 20 do
  dist.all_reduce(x, { group = mesh.dp_replicate, op = "mean" })
end
assert(x:sum():item() == 100)
-- what the world's own transport leaves out
local part = dist.scatter(rank == 2 and tensor.arange(8) or nil, { src = 2 })
assert(part[2]:item() == 2 * rank + 1)
assert(dist.reduce(tensor.full({ 3 }, rank), { dst = 1 })[1]:item() == (rank == 1 and 6 or rank))
local got = dist.all_to_all(tensor.arange(4) + 10 * rank)
for r = 0, 3 do assert(got[r + 1]:item() == 10 * r + rank) end
local ok, why = pcall(dist.send, x, { dst = (rank + 1) % 4 })
assert(not ok and why:find("make a group of them (distributed.new_group)", 1, true), why)
dist.barrier()
io.write("done " .. rank .. "\n")
]]

describe("groups over machines", function()
  after_each(processes.clean)

  it("carry every collective in every division of 2 x 2 ranks", function()
    local out = machines.ok(HEAD .. DIVISIONS, { seconds = 60 })
    for r = 0, 3 do has(out, "done " .. r .. "\n") end
  end)

  it("carry them in ranks that mpirun starts", function()
    if clusters.why.mpirun then return pending(clusters.why.mpirun) end
    local status, out, err = clusters.run("mpirun", 2, HEAD .. DIVISIONS, { seconds = 60,
      launch = { "--num_machines", "2", "--num_processes", "4", "--num_cpu_threads_per_process", "1",
        "--timeout", "20" } })
    assert.equal(0, status, out .. err)
    for r = 0, 3 do has(out, "done " .. r .. "\n") end
  end)

  it("give the bits of as many ranks on one machine", function()
    local SUMS = HEAD .. [[
      local g = dist.new_group { 0, 1, 3 }
      if g.rank >= 0 then
        tensor.manual_seed(5 + rank)
        for _, dtype in ipairs { "float32", "bfloat16" } do
          local x = tensor.randn(30011):to(dtype)
          dist.all_reduce(x, { group = g, op = "mean" })
          local part = dist.reduce_scatter(tensor.randn(300):to(dtype), { group = g })
          if rank == 1 then io.write("[", core._checksum { x, part }, "]\n") end
        end
      end
    ]]
    local status, one, err = host.run({ "--num_processes", "4",
      processes.script(SUMS) }, { seconds = 60 })
    assert.equal(0, status, err)
    local two, sums = machines.ok(SUMS), {}
    for sum in one:gmatch "%[.-%]" do
      has(two, sum)
      sums[#sums + 1] = sum
    end
    assert.equal(2, #sums)
  end)

  it("tell the ranks that differ, with the group and both lines", function()
    local ended = machines.run(HEAD .. [[
local mesh = dist.mesh { dp_replicate = 2, dp_shard = 2 }
local g = mesh.dp_replicate
if rank == 1 then
  dist.all_reduce(tensor.ones(3), { group = g })
elseif rank == 3 then
  dist.all_reduce(tensor.ones(4), { group = g })
else
  for _ = 1, 100 do dist.all_reduce(tensor.ones(3), { group = g }) sleep(20) end
end]], { seconds = 30 })
    for k = 0, 1 do
      assert.equal(1, ended[k].status)
      matches(ended[k].err, ("ranks disagree in collective #1: rank 1 calls all_reduce%%(float32, 3 " ..
        "elements, sum%%) in dp_replicate%%[1,3%%] at [^\n]*:%d; rank 3 calls all_reduce%%(float32, 4 " ..
        "elements, sum%%) in dp_replicate%%[1,3%%] at [^\n]*:%d"):format(HEAD_LINES + 4, HEAD_LINES + 6))
    end
    ended = machines.run(HEAD .. [[
dist.all_to_all(tensor.ones(5), { group = dist.new_group(), input_split_sizes = { 1, 2, 1, 1 },
  output_split_sizes = { 1, 1, 1, 1 } })]], { seconds = 30 })
    matches(ended[0].err, "all_to_all: rank %d sends 2 elements to rank 1, which expects 1")
  end)

  it("see a rank that is killed, has ended or stays away", function()
    local ROUNDS = [[
local g = dist.mesh { dp_replicate = 2, dp_shard = 2 }.dp_replicate
%s
for _ = 1, 2000 do dist.all_reduce(tensor.ones(3), { group = g }) sleep(5) end]]
    local elapsed = processes.stopwatch()
    local ended = machines.run(HEAD .. ROUNDS:format "if rank == 3 then C.kill(C.getpid(), 9) end",
      { seconds = 30 })
    matches(ended[0].err, "rank 3 %(machine 1%)[^\n]* was killed by SIGKILL")
    assert.is_true(elapsed() < 4, elapsed())
    ended = machines.run(HEAD .. ROUNDS:format "if rank == 3 then os.exit(0) end", { seconds = 30 })
    matches(ended[0].err, "the connection to rank 3 %(machine 1%) has ended")
    ended = machines.run(HEAD .. ROUNDS:format "if rank == 3 then C.kill(C.getpid(), 19) end",
      { seconds = 40, launch = { "--timeout", host.limit(1) } })
    matches(ended[0].err, "waited [%d.]+ s for rank 3 %(machine 1%), which has not come %(%-%-timeout sets")
  end)

  it("are made and left without end", function()
    local out = machines.ok(HEAD .. [[
      for k = 1, 60 do
        local g = dist.new_group { k % 2, 2 }
        if g.rank >= 0 then
          assert(dist.all_reduce(tensor.ones(1), { group = g }):item() == 2)
          if k % 3 > 0 then dist.destroy_process_group(g) end
        end
        g = nil
        if k % 10 == 0 then collectgarbage() collectgarbage() end
      end
      local open = io.popen("ls /proc/" .. C.getpid() .. "/fd | wc -l"):read("*n")
      assert(open < 60, open)
      io.write("done " .. rank .. "\n")
    ]])
    for r = 0, 3 do has(out, "done " .. r .. "\n") end
  end)
end)
