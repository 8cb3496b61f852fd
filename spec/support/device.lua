--- The device that device specs run on: a GPU when ACCEL_TEST_DEVICE=cuda (make test-gpu), else the backend of
--- spec/support/fake_device.c, whose memory the host cannot touch.  Required before anything asks for CUDA.
local ffi = require "ffi"
local core = require "accelerate.core"
local host = require "spec.support.host"

ffi.cdef "int setenv(const char *name, const char *value, int overwrite);"

local M = { fake = os.getenv("ACCEL_TEST_DEVICE") ~= "cuda" }
if M.fake then ffi.C.setenv("ACCEL_CUDA_PLUGIN", host.path:match("^(.*)/") .. "/libax_fake_device.so", 1) end

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
