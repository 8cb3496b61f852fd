--- CUDA does not survive a fork: what children of a process that used a device may do, and their
--- error messages.
local device = require "spec.support.device"
local core = require "accelerate.core"
local data = require "accelerate.data"
local ffi = require "ffi"
local tensor = require "accelerate.tensor"
local has = require("spec.support.messages").has

if not device.name then
  describe("forks and devices", function() it("need a device", function() pending(device.reason) end) end)
  return
end

local D = device.name
ffi.cdef [[
int fork(void);
int pipe(int ends[2]);
long read(int fd, void *buf, unsigned long n);
long write(int fd, const void *buf, unsigned long n);
int close(int fd);
void _exit(int status);
int waitpid(int pid, int *status, int options);
]]

-- Runs fn in a forked child and returns what it returns, as text.
local function in_child(fn)
  local ends, buffer, parts = ffi.new("int[2]"), ffi.new("char[4096]"), {}
  assert.are.equal(0, ffi.C.pipe(ends))
  io.stdout:flush()
  local pid = ffi.C.fork()
  if pid == 0 then
    local _, text = pcall(fn)
    text = tostring(text)
    ffi.C.write(ends[1], text, #text)
    ffi.C._exit(0)
  end
  ffi.C.close(ends[1])
  while true do
    local n = tonumber(ffi.C.read(ends[0], buffer, 4096))
    if n <= 0 then break end
    parts[#parts + 1] = ffi.string(buffer, n)
  end
  ffi.C.close(ends[0])
  ffi.C.waitpid(pid, nil, 0)
  return table.concat(parts)
end

describe("a child of a process that used a device", function()
  local x = tensor.ones(4, { device = D })

  it("is told so, with the line that used it first, and lets go of tensors in peace", function()
    if device.fake then return pending("the fake device does not mind") end
    local said = in_child(function() return tensor.zeros(3, { device = D }) end)
    has(said, "CUDA cannot be used in this process")
    has(said, "had used CUDA before, first at ")
    has(said, "CUDA does not survive that")
    has(in_child(function() return x + 1 end), "CUDA cannot be used in this process")
    has(in_child(function() return x:to("cpu") end), "CUDA cannot be used in this process")
    has(in_child(function() return core._send(tensor.ones(3), D) end), "CUDA cannot be used in this process")
    assert.are.equal("gone", in_child(function()
      tensor.release(x)
      collectgarbage()
      return "gone"
    end))
    assert.are.equal(4, x:sum():item()) -- the parent's is as it was
  end)
end)

describe("a loader's worker", function()
  it("may not use a device, whether it was used before or not", function()
    local set = { len = function() return 2 end, get = function() return tensor.zeros(2, { device = D }) end }
    local ok, message = pcall(function()
      for _ in data.DataLoader(set, { num_workers = 1 }):iter() do end -- luacheck: ignore
    end)
    assert.is_false(ok)
    has(message, "a loader's worker process uses no GPU")
    local counted = { len = function() return 2 end,
      get = function() return tensor.tensor((core.device_count("cuda"))) end }
    for n in data.DataLoader(counted, { num_workers = 1 }):iter() do assert.are.equal(0, n:item()) end
  end)

  it("gives batches of the CPU while its parent uses the device", function()
    local set, sum = { len = function() return 8 end,
      get = function(_, i) return tensor.full({ 5 }, i) end }, tensor.zeros(1, { device = D })
    for x in data.DataLoader(set, { num_workers = 2, batch_size = 2, pin_memory = true }):iter() do
      sum:add_(x:to(D, { non_blocking = true }):sum())
    end
    assert.are.equal(180, sum:item())
  end)
end)
