-- Ranks on GPUs: host/core/dist/device_group.c, dist/ring.c, kernels/cuda/runtime/nccl.cu; see
-- support/gpu_ranks.lua.
local emulator = require "spec.support.emulator"
local gpu_ranks = require "spec.support.gpu_ranks"
local processes = require "spec.support.processes"
local ranks = require "spec.support.ranks"

local why, emulated, most, env, on = gpu_ranks.why, gpu_ranks.emulated, gpu_ranks.most, gpu_ranks.env,
  gpu_ranks.on

describe("ranks on GPUs", function()
  if why then
    it("exchange tensors", function() pending(why) end)
    return
  end

  local EVERY = [[
    local dist = core.dist
    local gpu = accelerate.PartialState().device
    if ranks == 1 then dist.join_device(0) end
    local ops = {
      float32 = { "sum", "mean", "max", "min", "prod" }, float64 = { "sum", "mean", "max", "min", "prod" },
      float16 = { "sum", "mean", "max", "min", "prod" }, bfloat16 = { "sum", "mean", "max", "min", "prod" },
      int64 = { "sum", "max", "min", "prod" }, int32 = { "sum", "max", "min", "prod" },
        uint8 = { "sum", "max", "min", "prod" },
      bool = { "max", "min" },
    }
    local tolerance = { float32 = 1e-6, float64 = 1e-14, float16 = 4e-3, bfloat16 = 3e-2 }
    local function filled(count, dtype, shift)
      local list = {}
      for i = 1, count do
        list[i] = (rank * 3 + i * 7 + shift) % 5
        if dtype == "bool" then
          list[i] = list[i] > 1
        elseif dtype:find("float") then
          list[i] = list[i] / 2 - 1
        end
      end
      return count == 0 and core.zeros({ 0 }, { dtype = dtype }) or core.tensor(list, { dtype = dtype })
    end
    local checked = 0
    local function same(what, got, want)
      check(got.device == gpu and got.dtype == want.dtype, what .. ": " .. got.device .. " " .. got.dtype)
      check(table.concat(got.shape, " ") == table.concat(want.shape, " "), what .. ": shape")
      local a, b = got:totable(), want:totable()
      for i = 1, #b do
        local near = a[i] == b[i] or type(b[i]) == "number"
          and math.abs(a[i] - b[i]) <= (tolerance[want.dtype] or 0) * math.max(1, math.abs(b[i]))
        check(near, ("%s, element %d: %s on the GPU, %s on the CPU"):format(what, i, tostring(a[i]),
          tostring(b[i])))
      end
      checked = checked + 1
    end
    for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8",
      "bool" } do
      for _, count in ipairs { 0, 1, 3, 1000 } do
        for shift, op in ipairs(ops[dtype]) do
          local here = filled(count, dtype, shift)
          local there = here:to(gpu)
          check(dist.all_reduce(there, op) == there)
          same("all_reduce " .. op .. " " .. dtype .. " " .. count, there, dist.all_reduce(here, op))
          here = filled(count * ranks, dtype, shift)
          same("reduce_scatter " .. op .. " " .. dtype, dist.reduce_scatter(here:to(gpu), op),
            dist.reduce_scatter(here, op))
        end
        local here = filled(count, dtype, 1)
        same("all_gather " .. dtype, dist.all_gather(here:to(gpu)), dist.all_gather(here))
        for root = 0, ranks - 1 do
          local there, all = here:to(gpu), dist.gather(here, root)
          same("broadcast " .. dtype, dist.broadcast(there, root), dist.broadcast(here:clone(), root))
          local gathered = dist.gather(here:to(gpu), root)
          check((gathered == nil) == (rank ~= root))
          if all then same("gather " .. dtype, gathered, all) end
        end
      end
    end
    -- any strides; the computation before and after keeps its place
    local x = (core.arange(24):float():reshape(4, 6) * (rank + 1)):to(gpu)
    local view = x:transpose(1, 2)
    dist.all_reduce(view, "sum")
    check(x[2][3]:item() == 8 * ranks * (ranks + 1) / 2)
    local y = x
    for _ = 1, 20 do y = dist.all_reduce(y * 0.5 + 1, "mean") end
    check((y - 2):abs():max():item() < 1e-3)
    dist.barrier()
    -- many as one
    local many = { core.full({ 3 }, rank):to(gpu), core.full({ 2, 2 }, rank, { dtype = "int64" }):to(gpu),
      core.full({}, rank + 0.5):to(gpu) }
    dist.broadcast_all(many, ranks - 1)
    for i, t in ipairs(many) do
      check(t:max():item() == ranks - 1 + (i == 3 and 0.5 or 0) and t:min():item() == t:max():item(),
        "broadcast_all")
    end
    -- a sum that waits until it is read has what was there before
    local written = core.full({ 64, 64 }, rank):float():to(gpu)
    local sum = written + core.zeros({ 64, 64 }, { device = gpu })
    dist.broadcast_all({ written, core.ones(8):to(gpu) }, ranks - 1)
    check(sum:max():item() == rank and written:max():item() == ranks - 1, "written behind a sum")
    -- begun without waiting
    local a, works = {}, {}
    for k = 1, 100 do
      a[k] = core.full({ k }, rank + k):to(gpu)
      works[k] = dist.all_reduce(a[k], "sum", 0, true)
    end
    for k = 100, 1, -1 do works[k]:wait() works[k]:wait() end
    for k = 1, 100 do check(a[k]:sum():item() == k * (k * ranks + ranks * (ranks - 1) / 2), "begun " .. k) end
    dist.all_reduce(core.ones(5):to(gpu), "sum", 0, true)
    works = nil
    collectgarbage() collectgarbage()
    check(dist.device_group() == "nccl")
    check(checked > 300)
    print("done " .. rank)
  ]]

  it("carry out every collective, of every type, as ranks on the CPU do", function()
    for n = 1, math.min(most, 4) do
      local out = assert(on(n, EVERY))
      for rank = 0, n - 1 do assert.matches("done " .. rank, out) end
    end
  end)

  it("keep NCCL from reductions without a fixed order, unless results may differ", function()
    local function nvls(before, more)
      return on(1, before .. [[
        core.dist.join_device(0)
        core.dist.all_reduce(core.ones(4):to(accelerate.PartialState().device))
        print(("NVLS %s"):format(os.getenv "NCCL_NVLS_ENABLE"))
      ]], { env = more })
    end
    assert.matches("NVLS 0", nvls "")
    assert.matches("NVLS nil", nvls "accelerate.tensor.use_deterministic_algorithms(false)\n")
    assert.matches("NVLS 1", nvls("", { NCCL_NVLS_ENABLE = "1" }))
  end)

  it("give the same results however late the device gets to its work", function()
    if not emulated then return pending("the emulated device chooses when it works") end
    for _, schedule in ipairs { "1", "2", "3", "5", "6", "7" } do
      local out = on(2, EVERY, { env = { ACCEL_EMULATED_SCHEDULE = schedule } })
      assert.matches("done 0", out)
    end
  end)

  it("compare what they ask for also when one is far ahead, and after any number of collectives of the CPU",
    function()
    if most < 2 then return pending("needs 2 GPUs") end
    on(2, [[
      require("ffi").cdef "int usleep(unsigned);"
      for _ = 1, 150 do core.dist.barrier() end
      local x = core.ones(4):to(accelerate.PartialState().device)
      for round = 1, 3 do
        if rank == round % 2 then require("ffi").C.usleep(100000) end
        for k = 1, 150 do
          core.dist.all_reduce(x, k % 2 == 0 and "mean" or "max")
          if k % 50 == 0 then core.dist.barrier() end
        end
      end
      check(x:sum():item() == 4)
    ]])
    local status, _, err = ranks.run(2, [[
      local x = core.ones(4):to(accelerate.PartialState().device)
      for k = 1, 200 do core.dist.all_reduce(x, rank == 1 and k == 170 and "min" or "max") end
      x:sum():item()
    ]], { env = env() })
    assert.are.equal(1, status)
    assert.matches("ranks disagree in collective #171: rank 0 calls all_reduce%(float32, 4 elements, " ..
      "max, on the GPU%)", err)
  end)

  it("are what the state says, and are chosen with their machine's numbers", function()
    if most < 2 then return pending("needs 2 GPUs") end
    local out = on(2, [[
      local state = accelerate.PartialState()
      io.write(("%s %s %s\n"):format(state.device, state.backend, state.distributed_type))
      check(accelerate.Accelerator().device == "cuda:" .. rank)
      local x = core.ones(2):to(state.device)
      check(accelerate.utils.gather(x):sum():item() == 4)
      check(accelerate.utils.reduce(x, "sum"):sum():item() == 4)
    ]])
    assert.matches("cuda:0 nccl MULTI_GPU\n", out)
    assert.matches("cuda:1 nccl MULTI_GPU\n", out)
    out = on(2, [[local state = accelerate.PartialState()
      io.write(state.device, " ", state.distributed_type, "\n")]], { launch = { "--cpu" } })
    assert.are.equal("cpu MULTI_CPU\ncpu MULTI_CPU\n", out)
  end)

  it("take the GPUs that --gpu_ids names", function()
    if not emulated then return pending("the emulated device has numbers to choose from") end
    local out = on(2, [[
      local state = accelerate.PartialState()
      core.dist.all_reduce(core.ones(2):to(state.device), "sum")
      io.write(("%s %s %d\n"):format(state.device, os.getenv("CUDA_VISIBLE_DEVICES"),
        core.device_count("cuda")))
    ]], { launch = { "--gpu_ids", "3,1" } })
    assert.matches("cuda:0 3,1 2\n", out)
    assert.matches("cuda:1 3,1 2\n", out)
  end)

  local function fails(n, script, opts)
    opts = opts or {}
    opts.env = env(opts.env)
    local status, out, err = ranks.run(n, script, opts)
    assert(status ~= 0, "it should have failed: " .. out .. err)
    return err
  end

  it("that differ in a collective are told both lines, at once, whoever came first", function()
    if most < 2 then return pending("needs 2 GPUs") end
    for _, late in ipairs { 0, 1 } do
      local began = processes.now()
      local err = fails(2, ([[
        local gpu = accelerate.PartialState().device
        local x = core.ones(4):to(gpu)
        core.dist.all_reduce(x, "sum")
        if rank == %d then
          require("ffi").cdef "int usleep(unsigned);"
          require("ffi").C.usleep(300000)
        end
        if rank == 0 then
          core.dist.all_reduce(x, "sum")
        else
          core.dist.all_reduce(x:narrow(1, 1, 3), "sum")
        end
        x:sum():item()
      ]]):format(late))
      local line = ranks.prelude_lines + 9
      assert.matches(("rank 0 calls all_reduce%%(float32, 4 elements, sum, on the GPU%%) at " ..
        "[^\n]*script.lua:%d"):format(line), err)
      assert.matches(("rank 1 calls all_reduce%%(float32, 3 elements, sum, on the GPU%%) at " ..
        "[^\n]*script.lua:%d"):format(line + 2), err)
      assert.is_true(processes.now() - began < 15)
    end
    -- one on the GPU, the other on the CPU
    local err = fails(2, [[
      local x = core.ones(4):to(accelerate.PartialState().device)
      core.dist.all_reduce(x, "sum")
      if rank == 0 then core.dist.barrier() else core.dist.all_reduce(x, "sum") end
      x:sum():item()
    ]])
    assert.matches("rank 0 calls barrier%(%) at [^\n]+; rank 1 calls all_reduce%(float32, 4 elements, " ..
      "sum, on the GPU%)", err)
    -- before they have joined
    err = fails(2, [[
      local x = core.ones(4):to(accelerate.PartialState().device)
      if rank == 0 then core.dist.barrier() else core.dist.all_reduce(x, "sum") end
    ]])
    assert.matches("rank 0 calls barrier%(%) at [^\n]+; rank 1 calls the joining of the ranks' GPUs", err)
  end)

  it("see a rank that is killed, fails, ends or stays away, and end", function()
    if most < 2 then return pending("needs 2 GPUs") end
    local START = [[
      local ffi = require "ffi"
      ffi.cdef "int getpid(void); int kill(int pid, int sig); int usleep(unsigned);"
      local x = core.ones(4):to(accelerate.PartialState().device)
      core.dist.all_reduce(x, "sum")
      x:sum():item()
      core.dist.barrier()
    ]]
    local began = processes.now()
    local err = fails(2, START .. [[
      if rank == 1 then ffi.C.kill(ffi.C.getpid(), 9) ffi.C.usleep(1e6) end
      core.dist.all_reduce(x, "sum")
      x:sum():item()
    ]])
    assert.matches("rank 1 was killed by SIGKILL", err)
    assert.is_true(processes.now() - began < 20)
    err = fails(2, START .. [[
      if rank == 1 then ffi.C.usleep(500000) error("no more") end
      core.dist.all_reduce(x, "sum")
      local ok, message = pcall(x.item, x:sum())
      io.stderr:write("rank 0 was told: " .. tostring(message) .. "\n")
      error(message, 0)
    ]])
    assert.matches("rank 0 was told: [^\n]*rank 1 failed: [^\n]*no more", err)
    err = fails(2, START .. [[
      if rank == 0 then
        core.dist.all_reduce(x, "sum")
        x:sum():item()
      end
    ]])
    assert.matches("rank 1 has finished and will not take part in this", err)
    err = fails(2, START .. [[
      if rank == 1 then ffi.C.usleep(5e6) end
      core.dist.all_reduce(x, "sum")
      x:sum():item()
    ]], { launch = { "--timeout", "1" } })
    assert.matches("waited 1 s for the ranks' devices; rank 1 last called #%d+, barrier", err)
    -- after it nothing works, and says why
    err = fails(2, START .. [[
      if rank == 0 then
        core.dist.all_reduce(x, "sum")
        print(pcall(x.item, x:sum()))
        io.stderr:write("then: " .. select(2, pcall(core.dist.all_reduce, x, "sum")) .. "\n")
        io.stderr:write("and: " .. select(2, pcall(core.dist.barrier)) .. "\n")
        error("the end")
      end
    ]])
    assert.matches("then: [^\n]*an earlier collective of the GPUs failed: rank 1 has finished", err)
    assert.matches("and: [^\n]*an earlier collective failed: rank 1 has finished", err)
  end)

  it("see it in an allocation that has to wait, which is not out of memory", function()
    if not emulated then return pending("the emulated device refuses memory on demand") end
    if emulator.uncached then return pending(emulator.uncached) end
    local err = fails(2, [[
      local ffi = require "ffi"
      ffi.cdef "int usleep(unsigned); void ax_emulated_refuse_memory(long from, long n);"
      local lib = ffi.load(os.getenv "ACCEL_CUDA_PLUGIN")
      local gpu = accelerate.PartialState().device
      local x = core.ones(4):to(gpu)
      core.dist.all_reduce(x, "sum")
      x:sum():item()
      core.dist.barrier()
      if rank == 1 then ffi.C.usleep(500000) error("no more") end
      core.dist.all_reduce(x, "sum")
      local y = x:sum()
      lib.ax_emulated_refuse_memory(1, 1000)
      local ok, message = pcall(core.zeros, 50 * 2 ^ 20, { dtype = "uint8", device = gpu })
      io.stderr:write("rank 0 was told: " .. tostring(message) .. "\n")
      error(message, 0)
    ]])
    assert.matches("rank 0 was told: [^\n]*rank 1 failed: [^\n]*no more", err)
    assert.not_matches("out of memory", err)
  end)

  it("may share a GPU with ACCEL_SHARE_GPU=1, which is said, and NCCL takes each for a machine", function()
    local several = most + 1
    local out, err = ranks.ok(several, [[
      local gpu = accelerate.PartialState().device
      local x = core.full({ 3 }, rank):float():to(gpu)
      check(core.dist.all_reduce(x, "sum"):sum():item() == 3 * ranks * (ranks - 1) / 2)
      local C = require "ffi"
      C.cdef "char *getenv(const char *);"
      local function set(name) return C.string(C.C.getenv(name)) end
      print(gpu, set "NCCL_HOSTID", set "NCCL_NET", set "NCCL_SOCKET_IFNAME")
    ]], { env = env { ACCEL_SHARE_GPU = "1" } })
    for rank = 0, most do
      assert.matches(("cuda:%d\taccel%%-rank%%-%d\tSocket\tlo\n"):format(rank % most, rank), out)
    end
    assert.matches(("%d ranks share %d GPUs? %%(ACCEL_SHARE_GPU=1%%), " ..
      "which is for tests: times mean nothing"):format(several, most), err)
    assert.equal(1, select(2, err:gsub("times mean nothing", "")))
    -- --gpu_ids, and settings of NCCL's that were there
    out = ranks.ok(2, [[
      core.dist.all_reduce(core.ones(2):to(accelerate.PartialState().device), "sum")
      local C = require "ffi"
      C.cdef "char *getenv(const char *);"
      print(accelerate.PartialState().device, C.string(C.C.getenv "NCCL_NET"))
    ]], { env = env { ACCEL_SHARE_GPU = "1", NCCL_NET = "mine" }, launch = { "--gpu_ids", "0" } })
    assert.equal("cuda:0\tmine\ncuda:0\tmine\n", out)
  end)

  it("that are more than the GPUs, or want another's, are refused", function()
    local n = most + 1
    local err = fails(n, [[accelerate.Accelerator()]])
    assert.matches(("%d ranks on this machine, and %d GPUs?[^:]*: a GPU takes one rank; start %d with " ..
      "%%-%%-num_processes"):format(n, most, most), err)
    if most < 2 then return end
    err = fails(2, [[core.dist.all_reduce(core.ones(2):to("cuda:0"), "sum")]])
    assert.matches("ranks 0 and 1 use the same GPU %([%x:.]+%); each needs one of its own", err)
    err = fails(2, [[
      accelerate.PartialState()
      core.dist.all_reduce(core.ones(2):to("cuda:" .. rank), "sum")
      core.dist.all_reduce(core.ones(2):to("cuda:" .. 1 - rank), "sum")
    ]])
    assert.matches("the tensor is on cuda:%d, and this rank's collectives run on cuda:%d: " ..
      "a rank has one device", err)
    err = fails(2, [[accelerate.PartialState { backend = "shm" }]])
    assert.matches("backend = 'shm' with ranks on GPUs", err)
    err = fails(2, [[accelerate.PartialState()]], { env = { ACCELERATE_TORCH_DEVICE = "cuda:1" } })
    assert.matches("ACCELERATE_TORCH_DEVICE=cuda:1 with 2 ranks: each rank has a GPU of its own", err)
    if not emulated then return end
    err = fails(2, [[core.dist.all_reduce(core.ones(2):to(accelerate.PartialState().device), "sum")]],
      { env = { ACCEL_CUDA_LIBRARIES = "/nowhere" } })
    assert.matches("exchanging tensors between GPUs needs a stand%-in for libnccl.so.2", err)
  end)
end)
