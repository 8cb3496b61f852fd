-- host/core/dist/mpi.c, mpi_reduce.c, host/launch/joins.c: ranks of several machines that mpirun
-- starts, here on one that stands for several.
local clusters = require "spec.support.clusters"
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local processes = require "spec.support.processes"
local ranks = require "spec.support.ranks"
local messages = require "spec.support.messages"

local matches, sorted_lines = messages.matches, messages.sorted_lines

local HEAD = [[
local core = require "accelerate.core"
local dist = core.dist
local rank, n = dist.rank(), dist.world_size()
]]

describe("several machines", function()
  after_each(processes.clean)

  local EVERY = HEAD .. [[
      local function value(r, i, dtype)
        if dtype == "bool" then return (r + i) % 3 == 0 end
        return (r * 3 + i) % 4
      end
      local function filled(r, from, count, dtype)
        local t = core.arange(from, from + count)
        if dtype == "bool" then return (t + r):remainder(3):eq(0) end
        return (t + r * 3):remainder(4):to(dtype)
      end
      local function check(got, dtype, what, want)
        local list = got:totable()
        for _, i in ipairs { 1, 2, 3, #list - 1, #list } do
          if i >= 1 and i <= #list and list[i] ~= want(i) then
            error(("%s %s: element %d of %d is %s, expected %s"):format(what, dtype, i, #list,
              tostring(list[i]), tostring(want(i))))
          end
        end
      end
      local function fold(op, i, dtype)
        local acc
        for r = 0, n - 1 do
          local v = value(r, i, dtype)
          if acc == nil then acc = v
          elseif op == "sum" or op == "mean" then acc = acc + v
          elseif op == "prod" then acc = acc * v
          elseif dtype == "bool" then acc = acc or v
          else acc = (op == "max" and math.max or math.min)(acc, v) end
        end
        return op == "mean" and acc / n or acc
      end
      local cases = { float32 = { "sum", "mean", "prod" }, bfloat16 = { "sum", "max" },
        int64 = { "sum", "min" }, bool = { "max" } }
      for _, dtype in ipairs { "float32", "bfloat16", "int64", "bool" } do
        local ops = cases[dtype]
        for _, count in ipairs { 0, 1, 7, 70001 } do -- 70001 floats are more than one piece
          for _, op in ipairs(ops) do
            check(dist.all_reduce(filled(rank, 1, count, dtype), op), dtype, "all_reduce " .. op,
              function(i) return fold(op, i, dtype) end)
            local part = dist.reduce_scatter(filled(rank, 1, count * n, dtype), op)
            assert(part:numel() == count)
            check(part, dtype, "reduce_scatter " .. op,
              function(i) return fold(op, rank * count + i, dtype) end)
          end
          local function joined(i) return value(math.floor((i - 1) / count), (i - 1) % count + 1, dtype) end
          local all = dist.all_gather(filled(rank, 1, count, dtype))
          assert(all:numel() == n * count)
          check(all, dtype, "all_gather", joined)
          for root = 0, n - 1 do
            check(dist.broadcast(filled(rank, 1, count, dtype), root), dtype, "broadcast",
              function(i) return value(root, i, dtype) end)
            local here = dist.gather(filled(rank, 1, count, dtype), root)
            assert((here ~= nil) == (rank == root))
            if here then
              check(here, dtype, "gather", joined)
              for r = 0, n - 1 do
                if count > 0 then
                  assert(here:narrow(1, r * count + 1, count):eq(filled(r, 1, count, dtype)):all():item())
                end
              end
            end
          end
          dist.barrier()
        end
      end
      io.write("done " .. rank .. "\n")
  ]]

  local function with_mpi(name, body)
    it(name, clusters.why.mpirun and function() pending(clusters.why.mpirun) end or body)
  end

  --- Runs a script on machines that mpirun starts, one process each. Returns what they print.
  local function mpi(script, opts)
    opts = opts or {}
    local launch = { "--num_machines", tostring(opts.machines or 2), "--num_processes",
      tostring(opts.ranks or 4), "--num_cpu_threads_per_process", "1", "--timeout", tostring(opts.timeout
      or 20) }
    return clusters.run("mpirun", opts.machines or 2, script, { launch = launch, seconds = opts.seconds })
  end
  local function mpi_ok(...)
    local status, out, err = mpi(...)
    assert.are.equal(0, status, out .. err)
    return out
  end

  with_mpi("give the plain result of every collective, for small and for long tensors", function()
    for _, layout in ipairs { { machines = 2, ranks = 4 }, { machines = 4, ranks = 4 } } do
      local out = mpi_ok(EVERY, layout)
      for r = 0, layout.ranks - 1 do matches(out, "done " .. r .. "\n") end
    end
  end)

  with_mpi("which --mpirun_hostfile names are started by mpirun", function()
    host.in_folder(function(folder)
      disk.write(folder .. "/hosts", "localhost\n")
      -- this one machine stands for two
      disk.write(folder .. "/mpirun",
        ("#!/bin/sh\n[ \"$1 $2 $3 $4\" = '--hostfile %s/hosts --map-by ppr:1:node' ] || " ..
        "exit 9\n" ..
        "shift 4\nexec mpirun.openmpi --oversubscribe \"$@\"\n"):format(folder))
      os.execute(("chmod +x '%s/mpirun'"):format(folder))
      local _, _, env = clusters.command("mpirun", 2, "",
        { env = { PATH = folder .. ":" .. os.getenv "PATH" } })
      local status, out, err = host.run({ "--mpirun_hostfile", folder .. "/hosts", "--num_machines", "2",
        "--num_processes", "4", processes.script(HEAD .. [[
          local t = core.ones(10)
          dist.all_reduce(t)
          print(("rank %d of %d: %g %s"):format(rank, n, t[1]:item(), dist.transport()))
        ]]) }, { env = env })
      assert.are.equal(0, status, err)
      for r = 0, 3 do matches(out, ("rank %d of 4: 4 mpi\n"):format(r)) end
    end)
  end)

  with_mpi("whose ranks mpirun starts one by one, too", function()
    -- the ranks of this machine stand for those of two
    local path = processes.script([[
      export OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % 2))
      exec "$@"
    ]])
    local script = processes.script(EVERY)
    local program, words, env = clusters.command("mpirun", 4, script, {})
    for i, word in ipairs(words) do
      if word == host.path then
        table.insert(words, i, path)
        table.insert(words, i, "sh")
        break
      end
    end
    local status, out, err = host.run(words, { path = program, env = env })
    assert.are.equal(0, status, err)
    for r = 0, 3 do matches(out, "done " .. r .. "\n") end
  end)

  local TRAIN = [[
    local accelerate = require "accelerate"
    local core = require "accelerate.core"
    local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
    local ranks = core.dist.world_size()
    accelerate.utils.set_seed(3)
    local accelerator = accelerate.Accelerator()
    local x, y = core.randn(160, 12), core.randint(0, 5, { 160 })
    local model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5))
    local optimizer = optim.SGD(model:parameters(), { lr = 0.05, momentum = 0.9 })
    local loader = data.DataLoader(data.TensorDataset(x, y),
      { batch_size = 32 / ranks, shuffle = true, drop_last = true })
    model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
    local total = 0
    for _ = 1, 4 do
      for a, b in loader:iter() do
        local loss = nn.functional.cross_entropy(model(a), b)
        accelerator:backward(loss)
        optimizer:step()
        optimizer:zero_grad()
        total = total + accelerator:reduce(loss:detach(), "mean"):item()
      end
    end
    local seen = accelerator:gather_for_metrics({ accelerator.process_index })
    assert(#seen == ranks and seen[ranks] == ranks - 1)
    local all = { total }
    for _, p in ipairs(model:parameters()) do
      for _, v in ipairs(p:detach():to("cpu"):reshape(-1):totable()) do all[#all + 1] = v end
    end
    local digits = {}
    for i, v in ipairs(all) do digits[i] = ("%.17g"):format(v) end
    if accelerator.is_main_process then print("[" .. table.concat(digits, ",") .. "]") end
  ]]

  with_mpi("reduce to the same bits on every layout whose machines have 1, 2 or 4 ranks", function()
    local RANDOM = HEAD .. [[
      for _, dtype in ipairs { "float32", "bfloat16", "float64" } do
        for _, count in ipairs { 5, 9001, 400000 } do
          core.manual_seed(count + rank)
          local x = core.randn(count):to(dtype)
          local sum = dist.all_reduce(x:clone(), "sum")
          local digest = 0
          for i, v in ipairs(sum:to("float64"):totable()) do
            digest = (digest * 31 + v * 2 ^ 40 % 1e9 + i) % 1000003
          end
          io.write(("%d %s %d %.9g\n"):format(rank, dtype, count, digest))
        end
      end
    ]]
    local one = sorted_lines(ranks.ok(4, RANDOM))
    assert.are.equal(4 * 9, #one)
    for _, machine_count in ipairs { 2, 4 } do
      assert.are.same(one, sorted_lines(mpi_ok(RANDOM, { machines = machine_count, ranks = 4 })))
    end
  end)

  with_mpi("train to the bits of as many ranks on one, and to what one rank gives", function()
    local one, four = ranks.ok(1, TRAIN), ranks.ok(4, TRAIN)
    local spread = mpi_ok(TRAIN)
    assert.are.equal(four:match("%[.-%]"), spread:match("%[.-%]"))
    local a, b, worst = json.decode(one:match("%[.-%]")), json.decode(spread:match("%[.-%]")), 0
    assert.are.equal(1 + 12 * 32 + 32 + 32 * 5 + 5, #a)
    for i = 2, #a do worst = math.max(worst, math.abs(a[i] - b[i])) end
    assert.is_true(worst <= 1e-5, "parameters differ by " .. worst)
  end)

  with_mpi("tell every rank which two disagree, and where", function()
    local status, out, err = mpi(HEAD .. [[
      dist.barrier()
      local ok, message
      if rank == 3 then
        ok, message = pcall(dist.all_reduce, core.ones(3))
      else
        ok, message = pcall(dist.all_gather, core.ones(4))
      end
      io.write(("rank %d: %s\n"):format(rank, tostring(message)))
      local again, refused = pcall(dist.barrier)
      assert(not ok and not again)
      io.write(("again %d: %s\n"):format(rank, tostring(refused)))
    ]])
    assert.are.equal(0, status, err)
    for r = 0, 3 do
      matches(out, "rank " .. r ..
        ": [^\n]*ranks disagree in collective #2: " ..
        "rank 0 calls all_gather%(float32, 4 elements%) at [^\n]*; " ..
        "rank 3 calls all_reduce%(float32, 3 elements, sum%) at ")
      matches(out, "again " .. r .. ": [^\n]*an earlier collective failed: ranks disagree")
    end
  end)

  with_mpi("that mpirun starts end everywhere, and say why, when a rank fails, is killed or leaves",
    function()
    local status, _, err = mpi(HEAD .. [[
      dist.barrier()
      if rank == 2 then error "out of luck" end
      dist.all_reduce(core.ones(1e6))
    ]])
    assert.are_not.equal(0, status)
    matches(err, "accel%-run: rank 2 %(machine 1%) of 4 failed: [^\n]*out of luck")
    for _, victim in ipairs { 0, 1, 3 } do
      local elapsed = processes.stopwatch()
      status, _, err = mpi(HEAD .. ([[
        local ffi = require "ffi"
        ffi.cdef "int getpid(void); int kill(int, int);"
        dist.barrier()
        if rank == %d then ffi.C.kill(ffi.C.getpid(), 9) end
        for _ = 1, 1e6 do dist.all_reduce(core.ones(1e5)) end
      ]]):format(victim))
      assert.are_not.equal(0, status)
      matches(err, ("accel%%-run: rank %d %%(machine %d%%) of 4 was killed by SIGKILL"):format(victim,
        victim < 2 and 0 or 1))
      assert.is_true(elapsed() < 10)
    end
    for _, early in ipairs { 0, 3 } do
      status, _, err = mpi(HEAD .. ([[
        dist.barrier()
        if rank == %d then os.exit(0) end
        dist.barrier()
      ]]):format(early))
      assert.are_not.equal(0, status)
      matches(err, ("rank %d %%(machine %d%%) has finished and will not take part in this"):format(early,
        early < 2
        and 0 or 1))
    end
  end)

  with_mpi("that mpirun starts wait for a rank that does not come as long as --timeout says", function()
    for _, r in ipairs { 0, 1, 3 } do
      local status, _, err = mpi(HEAD .. ([[
        local ffi = require "ffi"
        ffi.cdef "int usleep(unsigned);"
        dist.barrier()
        if rank == %d then while true do ffi.C.usleep(1000) end end
        dist.all_reduce(core.ones(1e5))
      ]]):format(r), { timeout = 1 })
      assert.are_not.equal(0, status)
      matches(err, ("waited [123] s for rank %d %%(machine %d%%)"):format(r, r < 2 and 0 or 1))
    end
  end)
end)
