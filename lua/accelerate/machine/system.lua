--- The machine a process runs on: kernel version, processors, and the processors near a GPU.
local core = require "accelerate.core"
local env = require "accelerate.utils.environment"
local fs = require "accelerate.utils.fs"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"

local M = {}

local LEAST = { 5, 5, 0 }  -- older kernels let collectives of several processes hang

--- Reports, once, that the Linux kernel is older than 5.5.0.
---@param release string? as `uname -r` prints it; default: this machine's
---@return boolean old
function M.check_os_kernel(release)
  options.value("check_os_kernel", "release", release, { "string", optional = true })
  release = release or fs.read("/proc/sys/kernel/osrelease")  -- not there: no Linux
  local version = { (release or ""):match("^(%d+)%.(%d+)%.?(%d*)") }
  if #version == 0 then return false end
  for i, least in ipairs(LEAST) do
    local number = tonumber(version[i]) or 0
    if number > least then return false end
    if number < least then
      notice.main_once("the Linux kernel is %s, older than %s, with which processes may hang; a newer " ..
        "one is recommended",
        release:match("%d[%d.]*%d"), table.concat(LEAST, "."))
      return true
    end
  end
  return false
end

-- ---- processors

local library  -- the C library, once its functions are declared

local function libc()
  if library then return library, library.C end
  library = require "ffi"
  library.cdef [[
    typedef struct { unsigned long bits[16]; } ax_cpu_set;  /* 1024 processors, as glibc's cpu_set_t */
    int sched_getaffinity(int pid, size_t size, ax_cpu_set *set);
    int sched_setaffinity(int pid, size_t size, const ax_cpu_set *set);
    long syscall(long number, ...);
  ]]
  return library, library.C
end

local function numbers(set)
  local bit, list = require "bit", {}
  local bytes = require "ffi".cast("const uint8_t *", set.bits)
  for i = 0, 1023 do
    if bit.band(bytes[bit.rshift(i, 3)], bit.lshift(1, i % 8)) ~= 0 then list[#list + 1] = i end
  end
  return list
end

--- Returns the processors that this process may run on.
---@return integer[] cpus counted from 0
function M.cpu_affinity()
  local ffi, C = libc()
  local set = ffi.new "ax_cpu_set"
  if C.sched_getaffinity(0, ffi.sizeof(set), set) ~= 0 then
    options.fail("cpu_affinity: sched_getaffinity failed: errno %d", ffi.errno())
  end
  return numbers(set)
end

--- Binds all threads of this process to processors; what failed, or nil.
local function bind(cpus)
  local ffi, C = libc()
  local bit, set = require "bit", ffi.new "ax_cpu_set"
  local bytes = ffi.cast("uint8_t *", set.bits)
  for _, cpu in ipairs(cpus) do
    local at = bit.rshift(cpu, 3)
    bytes[at] = bit.bor(bytes[at], bit.lshift(1, cpu % 8))
  end
  for _, thread in ipairs(assert(fs.list("/proc/self/task"))) do
    if C.sched_setaffinity(tonumber(thread), ffi.sizeof(set), set) ~= 0 then
      return ("sched_setaffinity failed: errno %d"):format(ffi.errno())
    end
  end
end

local SET_MEMPOLICY = { x64 = 238, arm64 = 237 }  -- numbers of the system call
local PREFERRED = 1  -- other nodes are used when this one is full

--- Takes memory from `node` first, on this thread and those that it starts. Containers may forbid
--- it; memory then comes from the node of the thread that touches it first.
local function prefer_memory(node)
  local number = SET_MEMPOLICY[jit.arch]
  if not number or node > 63 then return end
  local ffi, C = libc()
  local mask = ffi.new("uint64_t[1]", ffi.cast("uint64_t", 1))
  mask[0] = require("bit").lshift(mask[0], node)
  C.syscall(number, ffi.cast("long", PREFERRED), mask, ffi.cast("unsigned long", 65))
end

-- ---- NUMA nodes

--- Returns a path below the folder in which the kernel describes the machine. Specs set another
--- folder.
local function sysfs(...) return table.concat({ env.text("ACCEL_SYSFS", "/sys"), ... }, "/") end

--- The numbers of "0-3,8,10-11".
local function cpu_list(text)
  local list = {}
  for first, last in text:gmatch("(%d+)%-?(%d*)") do
    for cpu = tonumber(first), tonumber(last) or tonumber(first) do
      if cpu < 1024 then list[#list + 1] = cpu end
    end
  end
  return list
end

local function node_count()
  local count = 0
  for _, name in ipairs(fs.list(sysfs("devices/system/node")) or {}) do
    if name:find("^node%d+$") then count = count + 1 end
  end
  return count
end

--- The processors and the memory next to a GPU, or nil and why they are not known.
---@param index integer the GPU's number; counts from 0
---@return { bus: string, node: integer?, cpus: string }? place cpus: "0-15,32-47"; node nil:
---  unknown
---@return string? reason
function M.gpu_place(index)
  local bus = core._device_bus(("cuda:%d"):format(index))
  if not bus then return nil, "the device has no address on the PCI bus" end
  local folder = sysfs("bus/pci/devices", bus)
  local cpus = fs.read(folder .. "/local_cpulist")
  if not cpus or not cpus:find("%d") then return nil, ("%s/local_cpulist cannot be read"):format(folder) end
  local node = tonumber(fs.read(folder .. "/numa_node") or "")
  return { bus = bus, node = node and node >= 0 and node or nil, cpus = cpus:match("%S+") }
end

--- Those of a GPU's processors that this process may use, and the place; nil and the reason where
--- there is nothing to choose.
local function near(index)
  local nodes = node_count()
  if nodes < 2 then return nil, "the machine has one NUMA node" end
  local place, why = M.gpu_place(index)
  if not place then return nil, why end
  local mine, cpus = {}, {}
  for _, cpu in ipairs(M.cpu_affinity()) do mine[cpu] = true end
  for _, cpu in ipairs(cpu_list(place.cpus)) do
    if mine[cpu] then cpus[#cpus + 1] = cpu end
  end
  if #cpus == 0 then return nil, ("this process may use none of the processors %s"):format(place.cpus) end
  return cpus, place
end

--- Limits the threads to this rank's share of `cpus`, which the ranks with GPUs at the same place
--- divide among themselves. A number that the user chose stays.
local function limit_threads(cpus, place)
  local omp, ranks = env.text("OMP_NUM_THREADS"), core.dist.local_world_size()
  if omp and omp ~= env.text("ACCEL_RUN_THREADS") then return end
  local sharing = 0
  for index = 0, math.min(ranks, (core.device_count("cuda"))) - 1 do
    local other = M.gpu_place(index)
    if other and other.cpus == place.cpus then sharing = sharing + 1 end
  end
  local most = math.max(1, math.floor(#cpus / math.max(1, sharing)))
  if core.get_num_threads() > most then core.set_num_threads(most) end
end

local INDEX = { "integer", min = 0 }
local AFFINITY = { verbose = { "boolean", optional = true } }

--- Binds this process to the processors near GPU number `local_process_index`, of those that it may
--- use, and takes memory from their NUMA node first, every time it is called. Limits the number of
--- threads to the rank's share of these processors, unless OMP_NUM_THREADS sets it. Does nothing if
--- CUDA is not in use, or where the machine has one NUMA node.
---@param local_process_index integer counts from 0
---@param opts { verbose: boolean? }? verbose: print which processors;
---  default: ACCELERATE_DEBUG_MODE
---@return integer[]? cpus the processors, or nil where nothing was bound
---@return string? reason why nothing was bound
function M.override_numa_affinity(local_process_index, opts)
  options.value("override_numa_affinity", "local_process_index", local_process_index, INDEX)
  opts = options.check("override_numa_affinity", opts, AFFINITY)
  local count = core.device_count("cuda")
  if count == 0 then return nil, "CUDA is not in use" end
  if local_process_index >= count then
    options.fail("override_numa_affinity: the processors near GPU %d could not be used: GPUs are 0 to %d",
      local_process_index, count - 1)
  end
  local cpus, place = near(local_process_index)
  local verbose = opts.verbose
  if verbose == nil then verbose = env.flag("ACCELERATE_DEBUG_MODE", false) end
  local why = cpus and bind(cpus) or not cpus and place or nil
  if why then
    if verbose then notice.here("process %d is not bound: %s", local_process_index, why) end
    return nil, why
  end
  if place.node then prefer_memory(place.node) end
  limit_threads(cpus, place)
  if verbose then
    notice.here("process %d runs on processors %s", local_process_index, table.concat(cpus, " "))
  end
  return cpus
end

local bound = {}

--- Binds this process to the processors near GPU number `local_process_index`, once for each index.
--- Does nothing if CUDA is not in use, or where the machine has one NUMA node. Ranks of a run with
--- several GPUs call it by themselves, unless ACCELERATE_CPU_AFFINITY=0.
---@param local_process_index integer
---@param opts { verbose: boolean? }?
---@return integer[]? cpus
function M.set_numa_affinity(local_process_index, opts)
  options.value("set_numa_affinity", "local_process_index", local_process_index, INDEX)
  if bound[local_process_index] == nil then
    bound[local_process_index] = M.override_numa_affinity(local_process_index, opts) or false
  end
  return bound[local_process_index] or nil
end

return M
