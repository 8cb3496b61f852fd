-- Where a rank with a GPU runs and what it touches: the device that its state chose
-- (kernels/cuda/runtime/device.cu, pinned.cu), and the processors and memory near it
-- (lua/accelerate/machine/system.lua), by a folder that stands in for the kernel's /sys.
local gpu_ranks = require "spec.support.gpu_ranks"
local host = require "spec.support.host"
local system = require "accelerate.machine.system"

local function write(path, text)
  assert(require("accelerate.utils.fs").make_dirs((path:match("^(.*)/"))))
  local f = assert(io.open(path, "w"))
  f:write(text, "\n")
  f:close()
end

--- A machine of `nodes` NUMA nodes; `near[k]`: the processors next to cuda:(k - 1), as the kernel
--- writes them.
local function machine(folder, nodes, near)
  for node = 0, nodes - 1 do write(("%s/devices/system/node/node%d/cpulist"):format(folder, node), "0") end
  for index, cpus in ipairs(near) do
    local device = ("%s/bus/pci/devices/0000:%02x:00.0"):format(folder, index - 1)
    write(device .. "/local_cpulist", cpus)
    write(device .. "/numa_node", tostring((index - 1) % nodes))
  end
end

describe("a rank's place", function()
  if not gpu_ranks.emulated or gpu_ranks.why then
    it("is near its GPU", function() pending(gpu_ranks.why or "the emulated device counts contexts") end)
    return
  end
  local CONTEXTS = [[
    local ffi = require "ffi"
    ffi.cdef "long ax_emulated_calls(const char *name);"
    local plugin = ffi.load(os.getenv("ACCEL_CUDA_PLUGIN"))
    local function contexts(index) return tonumber(plugin.ax_emulated_calls("context on cuda:" .. index)) end
  ]]

  it("is its own GPU alone, also when memory is pinned before anything is on the GPU", function()
    for _, chosen in ipairs { "accelerate.PartialState()", "-- none was chosen" } do
      local out = assert(gpu_ranks.on(2, CONTEXTS .. chosen .. [[

        check(contexts(0) + contexts(1) == 0, "nothing was used")
        local x = core.ones(4):pin_memory()
        check(x:is_pinned() and contexts(rank) == 1 and contexts(1 - rank) == 0, "pinned")
        local y = x:to(accelerate.PartialState().device)
        core.dist.all_reduce(y, "sum")
        check(y:sum():item() == 8 and contexts(rank) == 1 and contexts(1 - rank) == 0, "used")
        print("done " .. rank)
      ]]))
      assert.matches("done 0", out)
      assert.matches("done 1", out)
    end
    -- of one process: the device that it chose, or used last
    gpu_ranks.on(1, CONTEXTS .. [[
      accelerate.PartialState()
      core.ones(4):pin_memory()
      check(contexts(0) == 0 and contexts(1) == 1)
    ]], { env = { ACCELERATE_TORCH_DEVICE = "cuda:1" } })
    gpu_ranks.on(1, CONTEXTS .. [[
      local x = core.ones(4, { device = "cuda:1" })
      core.ones(4):pin_memory()
      check(contexts(0) == 0 and contexts(1) == 1)
    ]])
  end)

  local SHOW = [[
    accelerate.PartialState()
    local cpus = table.concat(require("accelerate.machine.system").cpu_affinity(), ",")
    io.write(("%d: %s; %d threads\n"):format(rank, cpus, core.get_num_threads()))
  ]]
  local mine = system.cpu_affinity()
  local all = table.concat(mine, ",")
  local first, last = mine[1], mine[#mine]

  local function shown(settings)
    settings.OMP_NUM_THREADS = settings.OMP_NUM_THREADS or ""
    return (assert(gpu_ranks.on(2, SHOW, { env = settings })))
  end

  it("is the processors next to its GPU, with as many threads", function()
    if #mine < 2 then return pending("needs two processors") end
    host.in_folder(function(folder)
      machine(folder, 2, { tostring(first), ("%d,1000-1023"):format(last) })
      local out = shown { ACCEL_SYSFS = folder }
      assert.matches(("0: %d; 1 threads\n"):format(first), out)
      assert.matches(("1: %d; 1 threads\n"):format(last), out)
      -- what the user chose stays
      out = shown { ACCEL_SYSFS = folder, OMP_NUM_THREADS = "3" }
      assert.matches(("0: %d; 3 threads\n"):format(first), out)
      out = shown { ACCEL_SYSFS = folder, ACCELERATE_CPU_AFFINITY = "0" }
      assert.matches(("0: %s;"):format(all), out)
      assert.matches(("1: %s;"):format(all), out)
      -- alone, a process keeps all of them, unless ACCELERATE_CPU_AFFINITY=1
      local alone = "0: %s;"
      assert.matches(alone:format(all), (gpu_ranks.on(1, SHOW, { env = { ACCEL_SYSFS = folder } })))
      assert.matches(alone:format(first), (gpu_ranks.on(1, SHOW,
        { env = { ACCEL_SYSFS = folder, ACCELERATE_CPU_AFFINITY = "1" } })))
    end)
  end)

  it("prefers the memory of its GPU's node, where the kernel lets it", function()
    host.in_folder(function(folder)
      machine(folder, 2, { all, all })
      local allowed = assert(gpu_ranks.on(2, [[
        local ffi = require "ffi"
        ffi.cdef "long syscall(long number, ...);"
        accelerate.PartialState()
        local mode, mask = ffi.new "int[1]", ffi.new "uint64_t[16]"
        local number = jit.arch == "x64" and 239 or 236
        local got = ffi.C.syscall(number, mode, mask, ffi.cast("unsigned long", 1024),
          ffi.cast("void *", 0), ffi.cast("unsigned long", 0))
        if rank == 0 then print(got == 0 and mode[0] == 1 and mask[0] == 1 and "prefers 0" or
          ("forbidden: %d %d %s"):format(tonumber(got), mode[0], tostring(mask[0]))) end
      ]], { env = { ACCEL_SYSFS = folder } }))
      if allowed:find("forbidden: %-1") then return pending("this container forbids get_mempolicy") end
      assert.are.equal("prefers 0\n", allowed)
    end)
  end)

  it("is left alone where there is one node, or nothing of what the kernel names is the process's", function()
    host.in_folder(function(folder)
      machine(folder, 1, { tostring(first), tostring(first) })
      assert.matches(("0: %s;"):format(all), shown { ACCEL_SYSFS = folder })
      machine(folder .. "/other", 2, { "1000-1023", "1000-1023" })
      assert.matches(("1: %s;"):format(all), shown { ACCEL_SYSFS = folder .. "/other" })
      assert.matches(("1: %s;"):format(all), shown { ACCEL_SYSFS = "/nowhere" })
    end)
  end)

  it("is shown by accel-run env", function()
    host.in_folder(function(folder)
      machine(folder, 2, { "0-3,8", "4-7" })
      local status, out, err = host.run({ "env" }, { env = gpu_ranks.env { ACCEL_SYSFS = folder } })
      assert.are.equal(0, status, err)
      assert.matches("Near cuda:0: processors 0%-3,8, NUMA node 0, PCI bus 0000:00:00.0", out)
      assert.matches("Near cuda:1: processors 4%-7, NUMA node 1, PCI bus 0000:01:00.0", out)
      assert.matches("Near cuda:2: not known: [^\n]*0000:02:00.0/local_cpulist cannot be read", out)
    end)
  end)
end)
