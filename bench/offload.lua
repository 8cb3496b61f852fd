-- A model whose weights rest in a safetensors file: 24 linear layers, one row; one line of JSON.
--
--   accel-run --num_cpu_threads_per_process 1 bench/offload.lua [WIDTH=2048] [ROUNDS=5]
--
-- The same work as peer/offload.py, which is Accelerate's load_checkpoint_and_dispatch with the map
-- { "": "disk" }.  memory_ms: a pass over weights in memory; warm_ms: over the file, whose pages
-- are in the page cache; cold_ms: the first pass when they are not; read_ms: a plain read of the
-- file then.  Medians over the rounds.
local ffi = require "ffi"
local accelerate = require "accelerate"
local nn, tensor, utils = accelerate.nn, accelerate.tensor, accelerate.utils
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

ffi.cdef [[
  int open(const char *path, int flags, ...);
  int close(int fd);
  long read(int fd, void *to, size_t n);
  int fdatasync(int fd);
  int getpid(void);
  int posix_fadvise(int fd, long at, long n, int advice);
]]
local DONTNEED, LAYERS, CHUNK = 4, 24, 4 * 2 ^ 20
local width, rounds = tonumber(arg[1]) or 2048, tonumber(arg[2]) or 5

local function network()
  local layers = {}
  for i = 1, LAYERS do layers[i] = nn.Linear(width, width, { bias = false }) end
  return nn.Sequential(unpack(layers)):eval()
end

local seconds = common.seconds

local x = tensor.ones(1, width)
local function pass(model) return tensor.no_grad(function() return model(x):sum():item() end) end
local function dispatched(path)
  local empty = accelerate.init_empty_weights(network)
  return accelerate.load_checkpoint_and_dispatch(empty, path, { device_map = { [""] = "disk" } })
end

-- Runs fn(fd) with the file out of the page cache.
local function cold(path, fn)
  local fd = ffi.C.open(path, 0)
  ffi.C.fdatasync(fd)
  ffi.C.posix_fadvise(fd, 0, 0, DONTNEED)
  local time = fn(fd)
  ffi.C.close(fd)
  return time
end

local function read_all(fd)
  local to = ffi.new("char[?]", CHUNK)
  return seconds(function() while ffi.C.read(fd, to, CHUNK) > 0 do end end)
end

-- A process of its own measures one cold read and one cold pass: pages that any process has mapped
-- stay in the page cache.
if arg[3] then
  local read = cold(arg[3], read_all)
  local model = dispatched(arg[3])
  print(read, cold(arg[3], function() return seconds(pass, model) end))
  return
end

local path = os.tmpname() .. ".safetensors"
local plain = network()
utils.save(plain:state_dict(), path)
local times = { memory = {}, warm = {}, cold = {}, read = {} }
for i = 1, rounds do
  local child = io.popen(("/proc/%d/exe --num_cpu_threads_per_process 1 %s %d 1 %s"):format(ffi.C.getpid(),
    arg[0],
    width, path))
  times.read[i], times.cold[i] = child:read("*n", "*n")
  child:close()
end
local expected, warm = pass(plain), dispatched(path)
assert(pass(warm) == expected)
for i = 1, 5 * rounds do
  times.memory[i] = seconds(pass, plain)
  times.warm[i] = seconds(pass, warm)
end
os.remove(path)
local function ms(name) return common.median(times[name]) * 1e3 end
common.emit { width = width, file_mb = LAYERS * width * width * 4 / 1e6, memory_ms = ms "memory",
  warm_ms = ms "warm", cold_ms = ms "cold", read_ms = ms "read" }
