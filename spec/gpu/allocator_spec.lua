--- The allocator of a device: its statistics, what it does when memory runs out, and what it says
--- then.
local device = require "spec.support.device"
local core = require "accelerate.core"
local cuda = require "accelerate.cuda"
local emulator = require "spec.support.emulator"
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"
local has = require("spec.support.messages").has
local host = require "spec.support.host"

if not device.name then
  describe("memory of a device", function() it("needs one", function() pending(device.reason) end) end)
  return
end

local D = device.name
local MB = 1024 * 1024

local LINE = debug.getinfo(1, "l").currentline + 2
local function bytes(n)
  local t = tensor.empty(n, { dtype = "uint8", device = D })
  return t -- no tail call, which would leave no line
end

-- Fills the device with blocks of n bytes; returns them and the message of the end.
local function fill(n)
  local kept = {}
  while true do
    local ok, t = pcall(bytes, n)
    if not ok then return kept, t end
    kept[#kept + 1] = t
    if #kept > 4000 then return kept, "it never ended" end
  end
end

local function collect()
  collectgarbage()
  collectgarbage()
end

describe("memory of a device", function()
  before_each(function()
    collect()
    utils.clear_device_cache()
  end)

  it("is counted under PyTorch's names", function()
    local before = cuda.memory_allocated()
    cuda.reset_peak_memory_stats(0)
    local x = bytes(8 * MB)
    assert.are.equal(before + 8 * MB, cuda.memory_allocated(D))
    tensor.release(x)
    assert.are.equal(before, cuda.memory_allocated("cuda"))
    assert.is_true(cuda.max_memory_allocated() >= before + 8 * MB)
    cuda.reset_peak_memory_stats()
    assert.are.equal(cuda.memory_allocated(), cuda.max_memory_allocated())
    if not device.fake then
      assert.is_true(cuda.memory_reserved() >= cuda.memory_allocated() + 8 * MB)
      assert.are.equal(cuda.memory_reserved(), cuda.max_memory_reserved())
      local free, total = cuda.mem_get_info()
      assert.is_true(free > 0 and free <= total)
      cuda.empty_cache()
      assert.is_true(select(1, cuda.mem_get_info()) >= free + 8 * MB)
    end
    assert.is_true(tensor.cuda.is_available())
    assert.error_matches(function() cuda.memory_allocated("gpu") end,
      'memory_allocated: expected the number of a GPU or a name such as "cuda:0"', 1, true)
  end)

  it("is told by line and size", function()
    local x, small = bytes(3 * MB), bytes(100)
    local text = cuda.memory_summary()
    has(text, ("1 x 3.1 MB at spec/gpu/allocator_spec.lua:%d (empty)"):format(LINE))
    if not device.fake then has(text, "up to 1 KiB") end
    tensor.release(x, small)
    assert.is_nil(cuda.memory_summary():find("1 x 3.1 MB", 1, true))
  end)

  it("ends in an error that says what is live, largest first, and goes on when some is let go", function()
    if device.kind == "cuda" then return pending("fills a gigabyte, not a real GPU") end
    local other = tensor.zeros({ 7, MB }, { dtype = "uint8", device = D })
    local kept, message = fill(50 * MB)
    assert.is_true(#kept >= 15, #kept .. ": " .. message)
    has(message, "empty: cuda:0: out of memory: 52")
    has(message, ("%d x 52.4 MB at spec/gpu/allocator_spec.lua:%d (empty)"):format(#kept, LINE))
    has(message, "1 x 7.3 MB at spec/gpu/allocator_spec.lua:")
    assert.is_true(message:find("x 52.4 MB", 1, true) < message:find("x 7.3 MB", 1, true))
    assert.is_true(utils.should_reduce_batch_size(message))
    kept[#kept] = nil
    collect()
    assert.are.equal(0, bytes(50 * MB):zero_():sum():item())
    tensor.release(other)
  end)

  it("is taken from the Lua collector before it runs out", function()
    if device.kind == "cuda" then return pending("fills a gigabyte, not a real GPU") end
    if device.fake then return pending("the fake device has no allocator of its own") end
    collectgarbage("stop")
    local ok, message = pcall(function()
      for _ = 1, 60 do bytes(50 * MB) end -- each is garbage at once
    end)
    collectgarbage("restart")
    assert.is_true(ok, message)
  end)

  describe("on the emulated device", function()
    if not emulator then
      it("can be made to fail", function() pending("needs the emulated device") end)
      return
    end

    it("is tried for again with the cache given back, and fails for one call alone", function()
      local before = cuda.memory_stats()
      local cached = bytes(30 * MB)
      tensor.release(cached)
      emulator.refuse_memory(1, 1)
      local x = bytes(64 * MB) -- the first cudaMalloc fails, the cache is emptied, the next one does not
      local after = cuda.memory_stats()
      assert.are.equal(before.retries + 1, after.retries)
      assert.are.equal(before.failures, after.failures)
      emulator.refuse_memory(1, 5) -- twice more with Lua garbage collected, and without traces
      local ok, message = pcall(bytes, 80 * MB)
      assert.is_false(ok)
      has(message, "out of memory: 83.9 MB asked for")
      emulator.refuse_memory(0, 0)
      assert.are.equal(before.failures + 1, cuda.memory_stats().failures)
      assert.are.equal(80 * MB, bytes(80 * MB):fill_(1):sum():item())
      tensor.release(x)
    end)

    it("of a large device sees fewer collections", function()
      local function collections(gigabytes)
        local status, out, err = host.run({ "-e", [[
          local tensor = require "accelerate.tensor"
          for _ = 1, 250 do tensor.empty(4 * 2^20, { dtype = "uint8", device = "cuda" }) end
          print(require("accelerate.core").memory_stats().pressure_collections)]] },
          { env = { ACCEL_EMULATED_GB = gigabytes } })
        assert.are.equal(0, status, err)
        return tonumber(out)
      end
      assert.is_true(collections "1" > 4)  -- at the latest each 128 MB
      assert.is_true(collections "80" < 2)  -- the first comes before the device's memory is known
    end)

    it("of a large cached block is not cut for small requests while there is other memory", function()
      local huge = bytes(300 * MB)
      tensor.release(huge)
      local reserved = cuda.memory_reserved()
      local x = bytes(3 * MB)
      assert.are.equal(reserved + 20 * MB, cuda.memory_reserved()) -- a segment of its own
      local calls = emulator.calls { "cudaMalloc" }
      huge = bytes(300 * MB) -- and the large one is still whole
      assert.are.same(calls, emulator.calls { "cudaMalloc" })
      tensor.release(huge)
      emulator.refuse_memory(1, 2)
      local y, z = bytes(18 * MB), bytes(3 * MB) -- with no other memory it is cut
      emulator.refuse_memory(0, 0)
      tensor.release(x, y, z)
    end)

    it("joins what is freed, so that sizes that change do not use it up", function()
      tensor.manual_seed(4)
      local kept = {}
      for i = 1, 400 do
        kept[i % 6] = bytes((1 + i * 7919 % 60) * MB)
        if i % 20 == 0 then collect() end
      end
      for k in pairs(kept) do kept[k] = nil end
      collect()
      utils.clear_device_cache()
      assert.is_true(cuda.memory_reserved() < 25 * MB, cuda.memory_summary())
    end)

    it("sent ahead falls back to the ordinary way when there is no room", function()
      local x = tensor.randn(300, 300)
      emulator.refuse_memory(1, 1)
      local t = core._send(tensor.zeros(30 * MB, { dtype = "uint8" }), D)
      emulator.refuse_memory(0, 0)
      assert.is_nil(t)
      assert.are.equal(0, (x:to(D):to("cpu") - x):abs():max():item())
    end)
  end)
end)

describe("memory of the CPU", function()
  it("ends in an error that says what is live, too", function()
    collect()
    core.empty_cache()
    local kept, message = {}, nil
    core.set_memory_limit(core.memory_stats().live_bytes + 100 * MB)
    for _ = 1, 100 do
      local ok, t = pcall(tensor.empty, 6 * MB, { dtype = "uint8" })
      if not ok then
        message = t
        break
      end
      kept[#kept + 1] = t
    end
    core.set_memory_limit(0)
    assert.is_truthy(message)
    has(message, ("%d x 6.3 MB at "):format(#kept))
  end)
end)
