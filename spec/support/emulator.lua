--- The emulated device's own knobs and counters (kernels/cuda/emulate/emulate.h); false on other
--- devices.
local device = require "spec.support.device"
local ffi = require "ffi"

if device.kind ~= "emulated" or not device.name then return false end

ffi.cdef [[
  void ax_emulated_schedule(unsigned seed);
  long ax_emulated_calls(const char *name);
  void ax_emulated_refuse_memory(long from, long n);
  void ax_emulated_mode(int mode, unsigned value);
  const char *ax_emulated_trial(const char *name, float value);
]]
local lib = ffi.load(os.getenv("ACCEL_CUDA_PLUGIN"))
local M = {}

--- How many times each of these functions of the runtime was called.
function M.calls(names)
  local counts = {}
  for _, name in ipairs(names) do counts[name] = tonumber(lib.ax_emulated_calls(name)) end
  return counts
end

--- When streams run the work queued on them: see emulate.h.
function M.schedule(seed) lib.ax_emulated_schedule(seed) end

--- Runs fn under each schedule, and goes back to the first.
function M.under(seeds, fn)
  for _, seed in ipairs(seeds) do
    M.schedule(seed)
    local ok, err = pcall(fn, seed)
    M.schedule(0)
    if not ok then error(("schedule %d: %s"):format(seed, tostring(err)), 0) end
  end
end

--- Of the calls of cudaMalloc from now on, counted from 1, `from` and the n - 1 after it fail.
function M.refuse_memory(from, n) lib.ax_emulated_refuse_memory(from, n or 1) end

local MODES = { order = 0, math = 2, old = 3 }

--- Sets the order of threads, the freedom of functions or a device without tensor cores: see
--- "modes" in emulate.h.
function M.mode(name, value) lib.ax_emulated_mode(MODES[name], value) end

--- What a kernel of emulate/trial.cpp gives: its message, or eight numbers.
function M.trial(name, value) return ffi.string(lib.ax_emulated_trial(name, value)) end

--- Why a test does not run without the allocator's cache, as in modes with closed pages: each block
--- is an allocation of the driver's then, which waits when it ends. nil with the cache.
M.uncached = os.getenv "ACCEL_CUDA_CACHE" == "0" and "needs the allocator's cache" or nil

--- Whether products and sums of kernels are contracted.
M.contracts = os.getenv "EMULATE_FMA" ~= "off" and (function()
  local file = io.open "/proc/cpuinfo"
  local text = file and file:read "*a" or ""
  if file then file:close() end
  return text:find "%f[%w]fma%f[%W]" ~= nil
end)()

return M
