--- The machine a process runs on: kernel version, processors, and the processors near a GPU.
local core = require "accelerate.core"
local env = require "accelerate.utils.environment"
local fs = require "accelerate.utils.fs"
local notice = require "accelerate.utils.notice"
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

-- ---- processors ---------------------------------------------------------------------------------

local library  -- of this file, once it is needed: { ffi, nvml }

--- The C library's and NVML's functions; nvml is nil, and the second result why, where there is no
--- NVIDIA driver.
local function libraries()
  if library then return library.ffi, library.nvml, library.why end
  local ffi = require "ffi"
  ffi.cdef [[
    typedef struct { unsigned long bits[16]; } ax_cpu_set;  /* 1024 processors, as glibc's cpu_set_t */
    int sched_getaffinity(int pid, size_t size, ax_cpu_set *set);
    int sched_setaffinity(int pid, size_t size, const ax_cpu_set *set);
    int nvmlInit_v2(void);
    int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device);
    int nvmlDeviceGetCpuAffinity(void *device, unsigned int words, unsigned long *set);
  ]]
  local ok, nvml = pcall(ffi.load, "libnvidia-ml.so.1")
  if not ok then library = { ffi = ffi, why = "there is no NVIDIA driver (libnvidia-ml.so.1)" }
  elseif nvml.nvmlInit_v2() ~= 0 then library = { ffi = ffi, why = "the NVIDIA driver's nvmlInit failed" }
  else library = { ffi = ffi, nvml = nvml } end
  return library.ffi, library.nvml, library.why
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
  local ffi = libraries()
  local set = ffi.new "ax_cpu_set"
  if ffi.C.sched_getaffinity(0, ffi.sizeof(set), set) ~= 0 then
    options.fail("cpu_affinity: sched_getaffinity failed: errno %d", ffi.errno())
  end
  return numbers(set)
end

--- Binds all threads of this process to processors.
local function bind(ffi, set)
  for _, thread in ipairs(assert(fs.list("/proc/self/task"))) do
    if ffi.C.sched_setaffinity(tonumber(thread), ffi.sizeof(set), set) ~= 0 then
      return ("sched_setaffinity failed: errno %d"):format(ffi.errno())
    end
  end
end

local INDEX = { "integer", min = 0 }
local AFFINITY = { verbose = { "boolean", optional = true } }

--- Binds this process to the processors near GPU number `local_process_index`, every time it is
--- called. Does nothing if CUDA is not in use.
---@param local_process_index integer counts from 0
---@param opts { verbose: boolean? }? verbose: print which processors;
---  default: ACCELERATE_DEBUG_MODE
---@return integer[]? cpus the processors, or nil where nothing was bound
function M.override_numa_affinity(local_process_index, opts)
  options.value("override_numa_affinity", "local_process_index", local_process_index, INDEX)
  opts = options.check("override_numa_affinity", opts, AFFINITY)
  if core.device_count("cuda") == 0 then return nil end
  local ffi, nvml, why = libraries()
  local set, device = ffi.new "ax_cpu_set", ffi.new "void *[1]"
  if nvml then
    local status = nvml.nvmlDeviceGetHandleByIndex_v2(local_process_index, device)
    if status == 0 then status = nvml.nvmlDeviceGetCpuAffinity(device[0], 16, set.bits) end
    why = status == 0 and bind(ffi, set) or status ~= 0 and ("NVML gave error %d"):format(status) or nil
  end
  if why then
    options.fail("override_numa_affinity: the processors near GPU %d could not be used: %s",
      local_process_index, why)
  end
  local cpus = numbers(set)
  local verbose = opts.verbose
  if verbose == nil then verbose = env.flag("ACCELERATE_DEBUG_MODE", false) end
  if verbose then
    notice.here("process %d runs on processors %s", local_process_index, table.concat(cpus, " "))
  end
  return cpus
end

local bound = {}

--- Binds this process to the processors near GPU number `local_process_index`, once for each index.
--- Does nothing if CUDA is not in use.
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
