--- The device that device specs run on, by ACCEL_TEST_DEVICE.  Required before anything uses CUDA.
---   (nothing)   the CPU's kernels over memory that the host cannot touch
---               (spec/fakes/fake_device.c)
---   emulated    the CUDA kernels, run on the host (make test-emulated)
---   cuda        a GPU (make test-gpu)
local ffi = require "ffi"
local assert = require "luassert"
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

local PARTS = { complex64 = "float32", complex128 = "float64" }

--- Returns random numbers of a type and shape on the CPU, complex ones by their parts.
function M.numbers(dtype, ...)
  local x = core.randn(...)
  if not PARTS[dtype] then return x:to(dtype) end
  return core.complex(x:to(PARTS[dtype]), core.randn(...):to(PARTS[dtype]))
end

--- Fails unless a and b agree in shape, type and values: differences relative to the largest
--- number, both parts of complex ones. Either may be on a device.
function M.agree(a, b, tolerance, what)
  assert.are.same(b.shape, a.shape, what)
  assert.are.equal(b.dtype, a.dtype, what)
  a, b = a:detach():to("cpu"), b:detach():to("cpu")
  if b.dtype:find "complex" then a, b = a:view_as_real(), b:view_as_real() end
  if b:numel() == 0 then return end
  a, b = a:double(), b:double()
  local most, off = math.max(1, b:abs():max():item()), (a - b):abs():max():item()
  assert.is_true(off <= tolerance * most, ("%s: off by %g of %g"):format(what, off, most))
end

--- Runs fn, which may neither wait for the device nor send anything to it.
function M.stays(fn)
  if M.fake then return fn() end
  local before = core.memory_stats(M.name)
  local results = { fn() }
  local after = core.memory_stats(M.name)
  assert.are.equal(before.waits, after.waits)
  assert.are.equal(before.uploads, after.uploads)
  return unpack(results)
end

return M
