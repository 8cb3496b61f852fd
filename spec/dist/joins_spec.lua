-- host/launch/joins.c, host/launch/local.c: ranks that other launchers start.
local clusters = require "spec.support.clusters"
local host = require "spec.support.host"
local machines = require "spec.support.machines"
local processes = require "spec.support.processes"
local messages = require "spec.support.messages"

local has, matches = messages.has, messages.matches

local SUM = [[
  local core = require "accelerate.core"
  local accelerate = require "accelerate"
  local a = accelerate.Accelerator { cpu = true }
  local t = core.ones(100000)
  t:mul_(a.process_index + 1)
  core.dist.all_reduce(t)
  io.write(("rank %d of %d, local %d of %d, backend %s, sum %g, %s %s %s\n"):format(a.process_index,
    a.num_processes, a.local_process_index, core.dist.local_world_size(), accelerate.PartialState().backend,
    t[100000]:item(), os.getenv "RANK", os.getenv "LOCAL_RANK", os.getenv "WORLD_SIZE"))
]]

for _, kind in ipairs { "mpirun", "torchrun", "srun" } do
  describe("ranks that " .. kind .. " starts", function()
    if clusters.why[kind] then
      it("join", function() pending(clusters.why[kind]) end)
      return
    end
    after_each(processes.clean)
    lazy_teardown(clusters.end_slurm)

    it("share memory as forked ranks do", function()
      local status, out, err = clusters.run(kind, 3, SUM)
      assert.are.equal(0, status, err)
      for r = 0, 2 do
        matches(out, ("rank %d of 3, local %d of 3, backend shm, sum 6, %d %d 3\n"):format(r, r, r, r))
      end
    end)

    it("report a failure once, with the other ranks' places", function()
      local status, _, err = clusters.run(kind, 3, [[
        local dist = require "accelerate.core".dist
        dist.barrier()
        if dist.rank() == 2 then error "out of luck" end
        dist.barrier()
      ]])
      assert.are_not.equal(0, status)
      local _, times = err:gsub("rank 2 of 3 failed: [^\n]*out of luck", "")
      assert.are.equal(1, times, err)
      matches(err, "accel%-run: the other ranks were\n  rank 0 [^\n]*\n  rank 1 ")
      matches(err, "accel%-run: rank 2 failed at [^\n]*:3 %(exit status 1%)\n")
      assert.is_nil(err:find("ended by SIGTERM", 1, true), err)
    end)

    it("end when one of them, or a launcher of one, is killed", function()
      for _, whom in ipairs { "getpid", "getppid" } do
        local elapsed = processes.stopwatch()
        local status, _, err = clusters.run(kind, 3, ([[
          local ffi = require "ffi"
          ffi.cdef "int getpid(void); int getppid(void); int kill(int, int);"
          local dist = require "accelerate.core".dist
          dist.barrier()
          if dist.rank() == 1 then ffi.C.kill(ffi.C.%s(), 9) end
          for _ = 1, 1e6 do dist.barrier() end
        ]]):format(whom))
        assert.are_not.equal(0, status)
        if whom == "getpid" then has(err, "accel-run: rank 1 of 3 was killed by SIGKILL") end
        assert.is_true(elapsed() < 15)
      end
    end)
  end)
end

describe("a process that another launcher started", function()
  after_each(processes.clean)

  local function refused(env, words, ...)
    words[#words + 1] = "-e"
    words[#words + 1] = "print 'ran'"
    local status, out, err = host.run(words, { env = env })
    assert.are.equal(2, status, err)
    assert.are.equal("", out)
    for _, pattern in ipairs { ... } do matches(err, pattern) end
  end

  -- Of a launcher that names no job: MVAPICH's variables.
  local function ranks_behind(wrapper, words)
    local lines = {}
    for rank = 0, 1 do
      lines[#lines + 1] = ("MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_RANK=%d MV2_COMM_WORLD_LOCAL_SIZE=2 " ..
        "MV2_COMM_WORLD_LOCAL_RANK=%d %s & "):format(rank, rank, wrapper:format(words))
    end
    return processes.output("{ " .. table.concat(lines) .. "wait; } 2>&1")
  end

  it("meets the others of its run also behind scripts, where the launcher names no job", function()
    local path = processes.script "print(('rank %s of %s'):format(os.getenv 'RANK', os.getenv 'WORLD_SIZE'))"
    local words = ("'%s' --timeout 20 '%s'"):format(host.path, path)
    for _, wrapper in ipairs { "%s", "sh -c \"%s; true\"", "sh -c \"sh -c \\\"%s; true\\\"; true\"" } do
      local said = ranks_behind(wrapper, words)
      has(said, "rank 0 of 2")
      has(said, "rank 1 of 2")
    end
  end)

  it("says that it waits for the others of its machine", function()
    for rank, text in pairs {
      [0] = "local rank 0 waits for local rank 1 of 2, which mpirun (MVAPICH) should start",
      "rank 1, local rank 1, waits for local rank 0, which mpirun (MVAPICH) should start" } do
      local _, _, err = host.run({ "--timeout", "1", "--stall_report", "0.3", processes.script "" },
        { env = { MV2_COMM_WORLD_SIZE = "2", MV2_COMM_WORLD_RANK = tostring(rank),
          MV2_COMM_WORLD_LOCAL_SIZE = "2", MV2_COMM_WORLD_LOCAL_RANK = tostring(rank) } })
      has(err, text)
    end
  end)

  it("on several machines without MPI meets at MASTER_ADDR, whoever started it", function()
    for _, prefix in ipairs { "OMPI", "MV2" } do
      local _, _, err = host.run({ "--timeout", "0.5", "--main_process_port", tostring(machines.free_port()),
        processes.script "" },
        { env = { [prefix .. "_COMM_WORLD_SIZE"] = "2", [prefix .. "_COMM_WORLD_RANK"] = "1",
        [prefix .. "_COMM_WORLD_LOCAL_SIZE"] = "1", [prefix .. "_COMM_WORLD_LOCAL_RANK"] = "0",
        MASTER_ADDR = "127.0.0.1" } })
      matches(err, "machine 0 at 127%.0%.0%.1")
    end
  end)

  it("is refused when what it says does not fit, with what was said", function()
    local mpi = { OMPI_COMM_WORLD_SIZE = "4", OMPI_COMM_WORLD_RANK = "1", OMPI_COMM_WORLD_LOCAL_SIZE = "2",
      OMPI_COMM_WORLD_LOCAL_RANK = "0" }
    refused(mpi, {}, "OMPI_COMM_WORLD_SIZE=4 and OMPI_COMM_WORLD_RANK=1 say that mpirun %(Open MPI%) started",
      "2 ranks on this machine, of which this is number 0", "mpirun %-%-map%-by slot")
    mpi.OMPI_COMM_WORLD_LOCAL_RANK = "1"
    refused(mpi, { "--num_processes", "3" }, "%-%-num_processes says 3 ranks")
    refused({ WORLD_SIZE = "2", RANK = "0" }, {}, "the machines need an address to meet at: MASTER_ADDR")
    refused({ SLURM_STEP_NUM_TASKS = "3", SLURM_PROCID = "0", SLURM_LOCALID = "0",
      SLURM_STEP_TASKS_PER_NODE = "2,1" }, {}, "SLURM_STEP_TASKS_PER_NODE=2,1", "which rank of this machine")
    refused({ WORLD_SIZE = "2", RANK = "0", MASTER_ADDR = "127.0.0.1" }, { "--max_restarts", "2" },
      "%-%-max_restarts: torchrun[^\n]* started the ranks")
  end)

  it("waits for the others of its machine as long as --timeout says", function()
    local env = { OMPI_COMM_WORLD_SIZE = "2", OMPI_COMM_WORLD_LOCAL_SIZE = "2",
      PMIX_NAMESPACE = "spec-" .. processes.own_pid() }
    for _, case in ipairs { { "0", "waited 0.3 s for local rank 1 of 2, which mpirun" },
      { "1", "rank 1, local rank 1: waited 0.3 s for local rank 0, which mpirun" } } do
      env.OMPI_COMM_WORLD_RANK, env.OMPI_COMM_WORLD_LOCAL_RANK = case[1], case[1]
      local status, _, err = host.run({ "--timeout", "0.3", "-e", "" }, { env = env })
      assert.are.equal(1, status)
      matches(err, case[2])
    end
  end)

  it("finds its machine's number and machine 0 in what srun, torchrun and a Kubernetes Job set", function()
    local function settings(env, words)
      words = words or {}
      words[#words + 1] = "--explain"
      words[#words + 1] = "x.lua"
      local status, out, err = host.run(words, { env = env })
      assert.are.equal(0, status, err)
      return function(name) return out:match("\n" .. name .. " +(%S+) +([^\n]*)") end
    end
    local slurm = { SLURM_STEP_NUM_TASKS = "6", SLURM_PROCID = "5", SLURM_LOCALID = "1",
      SLURM_STEP_TASKS_PER_NODE = "2(x3)", SLURM_JOB_ID = "71", SLURM_STEP_ID = "2" }
    for list, first in pairs { ["gpu[07-09]"] = "gpu07", ["a[3,5-6].site,b"] = "a3.site",
      ["one,two"] = "one" } do
      slurm.SLURM_STEP_NODELIST = list
      local find = settings(slurm)
      assert.are.equal("6", (find "num_processes"))
      assert.are.equal("3", (find "num_machines"))
      assert.are.equal("2", (find "machine_rank"))
      assert.same({ first, "SLURM_STEP_NODELIST" }, { find "main_process_ip" })
      assert.same({ "20570", "SLURM_JOB_ID" }, { find "main_process_port" })
    end
    -- one task a node
    slurm.SLURM_STEP_NUM_TASKS, slurm.SLURM_PROCID, slurm.SLURM_LOCALID = "3", "2", "0"
    slurm.SLURM_STEP_TASKS_PER_NODE, slurm.SLURM_STEP_NODELIST = "1(x3)", "one,two"
    for _, words in ipairs { { "--num_processes", "12" },
      { "--num_processes", "12", "--num_machines", "3" } } do
      local find = settings(slurm, words)
      assert.same({ "12", "3", "2", "one" }, { (find "num_processes"), (find "num_machines"),
        (find "machine_rank"), (find "main_process_ip") })
    end
    local torch = { WORLD_SIZE = "4", RANK = "2", LOCAL_WORLD_SIZE = "2", LOCAL_RANK = "0",
      MASTER_ADDR = "m0",
      MASTER_PORT = "2222", TORCHELASTIC_RUN_ID = "x" }
    assert.same({ "2222", "MASTER_PORT" }, { settings(torch) "main_process_port" })
    torch.TORCHELASTIC_USE_AGENT_STORE = "True"
    assert.same({ "2223", "MASTER_PORT" }, { settings(torch) "main_process_port" })
    assert.same({ "m0", "MASTER_ADDR" }, { settings(torch) "main_process_ip" })
    -- PyTorchJob and an indexed Job: a pod is a machine
    for _, names in ipairs { "RANK", "JOB_COMPLETION_INDEX" } do
      local find = settings { WORLD_SIZE = "4", [names] = "3", MASTER_ADDR = "m0", MASTER_PORT = "23456" }
      assert.same({ "4", "4", "3", "m0", "23456" }, { (find "num_processes"), (find "num_machines"),
        (find "machine_rank"), (find "main_process_ip"), (find "main_process_port") })
    end
    local find = settings({ JOB_COMPLETION_INDEX = "1", MASTER_ADDR = "m0" },
      { "--num_machines", "2", "--num_processes", "8" })
    assert.same({ "1", "m0" }, { (find "machine_rank"), (find "main_process_ip") })
  end)

  it("meets those of other machines where they say", function()
    local port, runs = machines.free_port(), {}
    local path = processes.script [[
      local dist = require "accelerate.core".dist
      dist.barrier()
      print(("rank %d of %d, local %d of %d"):format(dist.rank(), dist.world_size(), dist.local_rank(),
        dist.local_world_size()))
    ]]
    for rank = 3, 0, -1 do
      runs[rank] = processes.start({ path }, { env = { WORLD_SIZE = "4", RANK = tostring(rank),
        LOCAL_WORLD_SIZE = "2", LOCAL_RANK = tostring(rank % 2), MASTER_ADDR = "127.0.0.1",
        MASTER_PORT = tostring(port), TORCHELASTIC_RUN_ID = "spec" .. math.floor(rank / 2) } })
    end
    for rank = 0, 3 do
      local status, out, err = runs[rank]:wait(20)
      assert.are.equal(0, status, err)
      assert.are.equal(("rank %d of 4, local %d of 2\n"):format(rank, rank % 2), out)
    end
  end)
end)
