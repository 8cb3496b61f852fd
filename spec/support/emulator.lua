--- The emulated device's own knobs and counters (kernels/cuda/emulate/emulate.h); false on other
--- devices.
local device = require "spec.support.device"
local ffi = require "ffi"

if device.kind ~= "emulated" or not device.name then return false end

ffi.cdef [[
  void ax_emulated_schedule(unsigned seed);
  long ax_emulated_calls(const char *name);
  void ax_emulated_refuse_memory(long from, long n);
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

return M
