-- Training with values, gradients and states in files: linear layers, one row, AdamW; one line of
-- JSON.
--
--   accel-run --num_cpu_threads_per_process 2 bench/offload_training.lua [WIDTH=2048] [LAYERS=24]
--     [ROUNDS=5] [FOLDER=/var/tmp]
--
-- warm_ms: a step as it is, with what the page cache still has; optimizer_ms: the part of it that
-- optimizer:step() is.  cold_ms: a step of files that the page cache has nothing of, until all that
-- it wrote is on the disk, as with files larger than memory; read_mb and written_mb: what that read
-- from the disk and wrote to it, as the system counts (/proc/self/io).  plain_ms: as many bytes
-- read, and then written, in one piece each, by requests of 8 MiB past the page cache, by one
-- thread.  Cold steps and plain passes take turns; least times of the rounds.  of_disk: the
-- bandwidth of a cold step over that of the plain pass.  Steps need the processor, too: on
-- a machine with other work they lose more than the plain pass does.
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
  int fdatasync(int fd);
  int posix_fadvise(int fd, long at, long n, int advice);
  long readlink(const char *path, char *to, size_t n);
  int posix_memalign(void **out, size_t alignment, size_t n);
]]
local READ_WRITE, CREATE, DIRECT, DONTNEED, REQUEST, PAGE = 2, 64, 0x4000, 4, 8 * 2 ^ 20, 4096
local width, layers = tonumber(arg[1]) or 2048, tonumber(arg[2]) or 24
local rounds, folder = tonumber(arg[3]) or 5, arg[4] or "/var/tmp"

local seconds = common.seconds

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

-- The files without a name in which the model is.
local function files()
  local found, name = {}, ffi.new "char[4096]"
  for number = 3, 255 do
    local n = ffi.C.readlink("/proc/self/fd/" .. number, name, 4096)
    local text = n > 0 and ffi.string(name, n) or ""
    if number ~= fd and text:sub(1, #folder) == folder and text:find("(deleted)", 1, true) then
      found[#found + 1] = number
    end
  end
  return found
end

local function sync() for _, file in ipairs(files()) do ffi.C.fdatasync(file) end end

step() -- makes the states
assert(#files() > 0, "no files of the model were found in " .. folder)
local best = { warm = math.huge, cold = math.huge, plain = math.huge, optimizer = math.huge }
local read, written
for _ = 1, rounds do
  best.warm = math.min(best.warm, seconds(step))
  best.optimizer = math.min(best.optimizer, optimizer_seconds)
  sync()
  for _, file in ipairs(files()) do ffi.C.posix_fadvise(file, 0, 0, DONTNEED) end
  local read_before, written_before = moved()
  best.cold = math.min(best.cold, seconds(function()
    step()
    sync()
  end))
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
  written_mb = written / 1e6, warm_ms = best.warm * 1e3, optimizer_ms = best.optimizer * 1e3,
  cold_ms = best.cold * 1e3, plain_ms = best.plain * 1e3, of_disk = best.plain / best.cold }
