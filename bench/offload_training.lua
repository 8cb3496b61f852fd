-- Training with values, gradients and states in files: linear layers, one row, AdamW; one line of
-- JSON.
--
--   accel-run --num_cpu_threads_per_process 2 bench/offload_training.lua [WIDTH=2048] [LAYERS=24]
--     [ROUNDS=5] [FOLDER=/var/tmp]
--
-- step_ms: a step; read_mb and written_mb: what it read from the disk and wrote to it, as the
-- system counts (/proc/self/io); plain_ms: as many bytes read, and then written, in one piece each,
-- by requests of 8 MiB past the page cache, by one thread.  Steps and plain passes take turns;
-- least times of the rounds.  Steps need the processor, too: on a machine with other work they lose
-- more than the plain pass does.  of_disk: the bandwidth of a step, of that of the plain pass.
-- optimizer_ms: the part of a step that optimizer:step() is.
local ffi = require "ffi"
local accelerate = require "accelerate"
local nn, tensor, optim = accelerate.nn, accelerate.tensor, accelerate.optim
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

ffi.cdef [[
  int open(const char *path, int flags, ...);
  int close(int fd);
  int unlink(const char *path);
  long pread(int fd, void *to, size_t n, long at);
  long pwrite(int fd, const void *from, size_t n, long at);
  int getpid(void);
  int posix_memalign(void **out, size_t alignment, size_t n);
]]
local READ_WRITE, CREATE, DIRECT, REQUEST, PAGE = 2, 64, 0x4000, 8 * 2 ^ 20, 4096
local width, layers = tonumber(arg[1]) or 2048, tonumber(arg[2]) or 24
local rounds, folder = tonumber(arg[3]) or 5, arg[4] or "/var/tmp"

local function seconds(fn, ...)
  local began = common.now()
  fn(...)
  return common.now() - began
end

-- Bytes that this process has read from disks and written to them, so far.
local function moved()
  local file = assert(io.open "/proc/self/io")
  local text = file:read "*a"
  file:close()
  return tonumber(text:match "\nread_bytes: (%d+)"), tonumber(text:match "\nwrite_bytes: (%d+)")
end

local accelerator = accelerate.Accelerator { fsdp_plugin = { cpu_offload = true, offload_folder = folder,
  auto_wrap_policy = "SIZE_BASED_WRAP", min_num_params = width * width } }
local list = {}
for i = 1, layers do list[i] = nn.Linear(width, width, { bias = false }) end
local model = nn.Sequential(list)
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-4 })
model, optimizer = accelerator:prepare(model, optimizer)
local x = tensor.ones(1, width)

local optimizer_seconds
local function step()
  accelerator:backward(model(x):sum())
  optimizer_seconds = seconds(optimizer.step, optimizer)
  optimizer:zero_grad()
end

-- A file beside the others, for the plain pass.
local path = ("%s/accel-bench-%d"):format(folder, ffi.C.getpid())
local fd = ffi.C.open(path, bit.bor(READ_WRITE, CREATE, DIRECT), ffi.cast("int", 384))
assert(fd >= 0, "no file with transfers past the page cache can be made in " .. folder)
ffi.C.unlink(path)
local room = ffi.new "void *[1]"
assert(ffi.C.posix_memalign(room, PAGE, REQUEST) == 0)

local function pass(request, bytes)
  for at = 0, bytes - 1, REQUEST do
    local n = math.min(REQUEST, math.ceil((bytes - at) / PAGE) * PAGE)
    assert(request(fd, room[0], n, at) == n, "the plain pass failed")
  end
end

step() -- makes the states
local best = { step = math.huge, plain = math.huge, optimizer = math.huge }
local read, written
for _ = 1, rounds do
  local read_before, written_before = moved()
  best.step = math.min(best.step, seconds(step))
  best.optimizer = math.min(best.optimizer, optimizer_seconds)
  local read_after, written_after = moved()
  read, written = read_after - read_before, written_after - written_before
  pass(ffi.C.pwrite, read) -- what is there to read
  best.plain = math.min(best.plain, seconds(function()
    pass(ffi.C.pread, read)
    pass(ffi.C.pwrite, written)
  end))
end
ffi.C.close(fd)
common.emit { width = width, layers = layers, params = layers * width * width, read_mb = read / 1e6,
  written_mb = written / 1e6, step_ms = best.step * 1e3, optimizer_ms = best.optimizer * 1e3,
  plain_ms = best.plain * 1e3, of_disk = best.plain / best.step }
