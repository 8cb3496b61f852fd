-- Groups of ranks on GPUs: host/core/dist/device_group.c, kernels/cuda/runtime/nccl_group.cu, the
-- rings of host/core/dist/ring.c; see support/gpu_ranks.lua.
local EVERY = require "spec.support.every_collective"
local gpu_ranks = require "spec.support.gpu_ranks"
local messages = require "spec.support.messages"
local processes = require "spec.support.processes"
local ranks = require "spec.support.ranks"

local matches = messages.matches

local HEAD = [[
local dist, tensor = require "accelerate.distributed", require "accelerate.tensor"
local n, gpu = ranks, accelerate.PartialState().device
require("ffi").cdef "int usleep(unsigned); int getpid(void); int kill(int, int);"
local C = require("ffi").C
local function sleep(ms) for _ = 1, ms do C.usleep(1000) end end
]]
local FIRST = ranks.prelude_lines + select(2, HEAD:gsub("\n", "\n")) -- lines before a test's own

describe("groups of ranks on GPUs", function()
  if gpu_ranks.why or gpu_ranks.most < 2 then
    it("exchange tensors", function() pending(gpu_ranks.why or "needs 2 GPUs") end)
    return
  end

  local function works(n, body, opts)
    local out = assert(gpu_ranks.on(n, HEAD .. body .. "\nio.write('done ' .. rank .. '\\n')\n", opts))
    for r = 0, n - 1 do assert(out:find("done " .. r .. "\n", 1, true), out) end
    return out
  end
  local function fails(n, body, opts)
    opts = opts or {}
    opts.env = gpu_ranks.env(opts.env)
    opts.seconds = opts.seconds or 90
    local began = processes.now()
    local status, out, err = ranks.run(n, HEAD .. body, opts)
    assert(status ~= 0, "it should have failed: " .. out .. err)
    return err, processes.now() - began
  end

  for n = 2, math.min(gpu_ranks.most, 4) do
    it(("carry every collective in every division of %d ranks"):format(n), function()
      works(n, EVERY .. [[
        where = gpu
        for size = 1, n do
          if n % size == 0 then
            local block
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


  -- No GPU is chosen when they are made: each joins by an id of its own at its first use.
  it("join by themselves where the world's GPUs have not", function()
    if gpu_ranks.most < 3 then return pending("needs 3 GPUs") end
    assert(gpu_ranks.on(3, [[
      local dist, tensor = require "accelerate.distributed", require "accelerate.tensor"
      local gpu = "cuda:" .. rank
    ]] .. EVERY .. [[
      where = gpu
      local a, b = dist.new_group { 0, 2 }, dist.new_group { 1, 2 }
      if a.rank >= 0 then every(a, 3) end
      if b.rank >= 0 then every(b, 3) end
      every(dist.world, 3)
      every(dist.new_group { 0, 1, 2 }, 3)
    ]]))
  end)

  it("work at the same time, each at its own pace, and in turns without waiting", function()
    if gpu_ranks.most < 4 then return pending("needs 4 GPUs") end
    works(4, [[
      local mesh = dist.mesh { dp_replicate = 2, tp = 2 }
      local x = tensor.ones(1000):to(gpu)
      for _ = 1, mesh.coordinate[1] == 0 and 300 or 20 do
        dist.all_reduce(x, { group = mesh.tp, op = "mean" })
      end
      assert(x:sum():item() == 1000)
      local ys, works = {}, {}
      for k = 1, 50 do
        ys[k] = tensor.full({ k }, rank):float():to(gpu)
        dist.all_reduce(ys[k], { group = mesh.tp })
        works[k] = dist.all_reduce(ys[k], { group = mesh.dp_replicate, async_op = true })
      end
      for k = 1, 50 do
        works[k]:wait()
        assert(ys[k]:sum():item() == 6 * k)
      end
      local many = { tensor.full({ 3 }, rank):to(gpu), tensor.full({ 2 }, rank + 0.5):to(gpu) }
      core.dist.broadcast_all(many, 1, mesh.tp._handle)
      local second = mesh.tp.ranks[2]
      assert(many[1]:max():item() == second and many[2]:min():item() == second + 0.5)
    ]])
  end)

  -- More than can be open at once: each one's link is freed when all of its ranks have left it.
  it("are made and left without end", function()
    works(2, [[
      for k = 1, 140 do
        local g = dist.new_group { 0, 1 }
        local x = tensor.ones(1):to(gpu)
        local work = dist.all_reduce(x, { group = g, async_op = true })
        if k % 3 > 0 then dist.destroy_process_group(g) end
        work:wait()
        assert(x:item() == 2)
        g = nil
        if k % 10 == 0 then collectgarbage() collectgarbage() end
      end
    ]])
  end)

  it("send and receive between two ranks, of which others need not know", function()
    if gpu_ranks.most < 3 then return pending("needs 3 GPUs") end
    works(3, [[
      dist.all_reduce(tensor.ones(1):to(gpu))
      local x = tensor.full({ 70000 }, rank):float():to(gpu)
      if rank == 0 then dist.send(x, { dst = 2 }) end
      if rank == 2 then assert(dist.recv(x, { src = 0 }):max():item() == 0) end
      dist.barrier()
      -- each to the next one, all of them first
      local got = tensor.zeros(70000):to(gpu)
      x = tensor.full({ 70000 }, rank):float():to(gpu)
      local sent = dist.isend(x, { dst = (rank + 1) % 3 })
      local received = dist.irecv(got, { src = (rank + 2) % 3 })
      received:wait()
      sent:wait()
      assert(got:min():item() == (rank + 2) % 3)
    ]])
    local err = fails(3, [[
      dist.all_reduce(tensor.ones(1):to(gpu))
      local x = tensor.ones(4):to(gpu)
      if rank == 0 then dist.send(x, { dst = 2 }) end
      if rank == 2 then dist.recv(x:narrow(1, 1, 3), { src = 0 }) end
      x:sum():item()
    ]])
    matches(err, "rank 0 calls send%(float32, 4 elements, to rank 2, on the GPU%) at [^\n]*; rank 2 calls " ..
      "recv%(float32, 3 elements, from rank 0, on the GPU%)")
    err = fails(3, [[
      local x = tensor.ones(4):to("cuda:" .. rank)
      if rank == 0 then dist.send(x, { dst = 2 }) elseif rank == 2 then dist.recv(x, { src = 0 }) end
    ]])
    matches(err, "%(float32, 4 elements, %l+ rank [02], on the GPU%): the GPUs of its 3 ranks have not " ..
      "joined, which takes all of them: call another collective of GPU tensors before")
  end)

  it("that differ in a collective are told the group and both lines, at once", function()
    if gpu_ranks.most < 4 then return pending("needs 4 GPUs") end
    local err, took = fails(4, [[
local mesh = dist.mesh { dp_shard = 2, tp = 2 }
local x = tensor.ones(4):to(gpu)
if rank == 2 then
  dist.all_reduce(x, { group = mesh.tp })
elseif rank == 3 then
  dist.all_reduce(x:narrow(1, 1, 3), { group = mesh.tp })
else
  for _ = 1, 100 do dist.all_reduce(x, { group = mesh.tp, op = "mean" }) sleep(20) end
end
x:sum():item()]], { launch = { "--timeout", "600" } })
    matches(err, (
      "ranks disagree in collective #1: rank 2 calls all_reduce%%(float32, 4 elements, sum, on " ..
      "the GPU%%) in tp%%[2,3%%] at [^\n]*:%d; rank 3 calls all_reduce%%(float32, 3 elements, sum, on the " ..
      "GPU%%) in tp%%[2,3%%] at [^\n]*:%d\n"):format(FIRST + 4, FIRST + 6))
    assert.is_true(took < 15, took)
    err = fails(2, [[
      local g = dist.new_group({ 0, 1 }, { name = "tp" })
      local x = tensor.ones(4):to(gpu)
      if rank == 0 then dist.barrier(g) else dist.all_reduce(x, { group = g }) end
      x:sum():item()
    ]], { launch = { "--timeout", "600" } })
    matches(err, "rank 0 calls barrier%(%) in tp%[0,1%] at [^\n]*; rank 1 calls all_reduce%(float32, 4 " ..
      "elements, sum, on the GPU%) in tp%[0,1%]")
    err = fails(2, [[
      dist.all_to_all(tensor.ones(3):to(gpu),
        { input_split_sizes = { 1, 2 }, output_split_sizes = { 1, 1 } })
    ]])
    matches(err, "all_to_all: rank 0 sends 2 elements to rank 1, which expects 1")
  end)

  it("see a rank of theirs that is killed, has finished or stays away", function()
    if gpu_ranks.most < 4 then return pending("needs 4 GPUs") end
    local MESH = [[
      local mesh = dist.mesh { dp_shard = 2, tp = 2 }
      local x = tensor.ones(4):to(gpu)
      dist.all_reduce(x, { group = mesh.tp })
      x:sum():item()
      dist.barrier()
    ]]
    local ROUNDS = "for _ = 1, 400 do dist.all_reduce(x, { group = mesh.tp, op = 'mean' }) sleep(5) " ..
      "x:sum():item() end"
    local err, took = fails(4, MESH .. "if rank == 3 then sleep(200) C.kill(C.getpid(), 9) end\n" .. ROUNDS)
    matches(err, "rank 3 of 4 was killed by SIGKILL")
    assert.is_true(took < 15, took)
    err = fails(4, MESH .. "if rank ~= 3 then " .. ROUNDS .. " end", { launch = { "--timeout", "600" } })
    matches(err, "rank 3 has finished and will not take part in this")
    err = fails(4, MESH .. "if rank == 3 then C.kill(C.getpid(), 19) end\n" .. ROUNDS,
      { launch = { "--timeout", "1.5" } })
    matches(err, "waited 1.5 s for the ranks' devices; rank 3 last called #%d+, barrier")
  end)

  it("are watched where the rank's own thread is blocked", function()
    if not gpu_ranks.emulated then return pending("the emulated device blocks when it is to") end
    local BLOCKED = [[
      local g = dist.new_group({ 0, 1 }, { name = "tp" })
      local x = tensor.ones(4):to(gpu)
      dist.all_reduce(x, { group = g })
      x:sum():item()
      dist.barrier()
      if rank == 1 then sleep(60000) end
      dist.all_reduce(x, { group = g })
      local ok, message = pcall(function() while true do x = x * 1 end end)
      io.stderr:write("told: " .. message .. "\n")
      error(message, 0)
    ]]
    local err, took = fails(2, BLOCKED,
      { launch = { "--timeout", "1.5" }, env = { ACCEL_EMULATED_QUEUE = "40" } })
    matches(err, "told: [^\n]*collective #2, all_reduce%(float32, 4 elements, sum, on the GPU%) in " ..
      "tp%[0,1%] at [^\n]*, has waited %d+%.%d s for rank 1, which last called #%d+, barrier")
    assert.is_true(took < 30, took)
  end)

  it("end when a rank dies while they are made", function()
    if not gpu_ranks.emulated then return pending("the stand-in for NCCL goes wrong on request") end
    local err, took = fails(3, [[
      dist.all_reduce(tensor.ones(1):to(gpu))
      dist.new_group { 0, 1 }
    ]], { env = { ACCEL_FAKE_NCCL = "split:2:0" } })
    matches(err, "rank 2 of 3 was killed by SIGKILL")
    assert.is_true(took < 20, took)
  end)
end)

-- step(x): reductions along both dims of a mesh, of what a product gives.
local CAPTURED = [[
  local capture = accelerate.utils.capture
  local mesh = dist.mesh { dp_replicate = 2, tp = ranks / 2 }
  local w = (tensor.arange(16):float():reshape(4, 4) / 10):to(gpu)
  local function step(x)
    local y = x:matmul(w)
    dist.all_reduce(y, { group = mesh.tp })
    y = y * 0.5
    dist.all_reduce(y, { group = mesh.dp_replicate, op = "mean" })
    return y + dist.all_gather(y:narrow(1, 1, 1), { group = mesh.dp_replicate }):sum()
  end
  local function input(k) return (tensor.arange(8):float():reshape(2, 4) * (rank + k)):to(gpu) end
]]

describe("a captured step over groups", function()
  if gpu_ranks.why or gpu_ranks.most < 4 then
    it("has their reductions inside", function() pending(gpu_ranks.why or "needs 4 GPUs") end)
    return
  end

  it("has the bits of eager calls, and outlives the script's references to the groups", function()
    assert(gpu_ranks.on(4, HEAD .. CAPTURED .. [[
      local want, got = {}, {}
      for k = 1, 8 do want[k] = step(input(k)):cpu() end
      local recorded = capture(step)
      for k = 1, 4 do got[k] = recorded(input(k)):cpu() end
      check(recorded:stats().recorded == 1, "recorded once")
      step, mesh = nil, nil
      collectgarbage() collectgarbage()
      dist.new_group { 0, 1 }
      for k = 5, 8 do got[k] = recorded(input(k)):cpu() end
      for k = 1, 8 do check(want[k]:eq(got[k]):all():item(), "call " .. k) end
    ]]))
  end)

  it("is compared in each of them", function()
    local status, out, err = ranks.run(4, HEAD .. CAPTURED .. [[
      local former = rank
      local recorded = capture(function(x)
        x = x * 1
        dist.all_reduce(x, { group = mesh.tp })
        dist.all_reduce(x, { group = mesh.dp_replicate, op = rank == 3 and "max" or "sum" })
        return x
      end, { warmup = 1 })
      rank = 0
      recorded(input(1))
      rank = former
      recorded(input(2))
    ]], { env = gpu_ranks.env(), seconds = 60, launch = { "--timeout", "600" } })
    assert(status ~= 0, out .. err)
    matches(err, "ranks disagree in collective #%d+: rank 1 calls a captured step with 1 collective " ..
      "%(digest %x+%) in dp_replicate%[1,3%][^\n]*; rank 3 calls a captured step with 1 collective")
  end)

  it("refuses to send or receive", function()
    local _, _, err = ranks.run(2, HEAD .. [[
      dist.all_reduce(tensor.ones(1):to(gpu))
      local recorded = accelerate.utils.capture(function(x)
        x = x * 1
        if core.is_recording() then dist.send(x, { dst = 1 - rank }) end
        return x
      end, { warmup = 1 })
      for _ = 1, 2 do recorded(tensor.ones(4):to(gpu)) end
    ]], { env = gpu_ranks.env() })
    matches(err, "send of a GPU's tensor cannot be part of a captured step")
  end)
end)
