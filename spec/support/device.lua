--- The device that device specs run on, by ACCEL_TEST_DEVICE.  Required before anything uses CUDA.
---   (nothing)   the CPU's kernels over memory that the host cannot touch
---               (spec/support/fake_device.c)
---   emulated    the CUDA kernels, run on the host (make test-emulated)
---   cuda        a GPU (make test-gpu)
local ffi = require "ffi"
local core = require "accelerate.core"
local host = require "spec.support.host"

ffi.cdef "int setenv(const char *name, const char *value, int overwrite);"

local kind = os.getenv("ACCEL_TEST_DEVICE") or "fake"
local M = { fake = kind == "fake", kind = kind }
local plugin = ({ fake = "libax_fake_device.so", emulated = "libax_cuda_emulated.so" })[kind]
local build = host.path:match("^(.*)/")
if plugin then ffi.C.setenv("ACCEL_CUDA_PLUGIN", build .. "/" .. plugin, 1) end
-- The emulated device never meets NVIDIA's own libraries, which would look for a GPU.
if kind == "emulated" then ffi.C.setenv("ACCEL_CUDA_LIBRARIES", build .. "/fakes", 1) end

local count, reason = core.device_count("cuda")
M.name, M.reason = count > 0 and "cuda:0" or nil, reason

--- Runs fn(...) with constructors making tensors on the device.
function M.with(fn, ...)
  local former = core.set_default_device(M.name)
  local results = { pcall(fn, ...) }
  core.set_default_device(former)
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2, table.maxn(results))
end

return M
