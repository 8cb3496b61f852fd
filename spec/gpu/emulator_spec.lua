--- The emulated device sees what it is there for: each of its modes, with a kernel that is wrong
--- (kernels/cuda/emulate/trial.cpp) and with one that is right.
local emulator = require "spec.support.emulator"
local host = require "spec.support.host"

if not emulator then
  describe("the emulator", function()
    it("needs the emulated device", function() pending "not the emulated device" end)
  end)
  return
end

-- A trial in a process of its own, with the guard pages that are for whole processes.
local function guarded(name, guard)
  local status, out, err = host.run({ "-" }, {
    env = { ACCEL_EMULATED_GUARD = guard, ACCEL_CUDA_CACHE = "0" },
    stdin = ('print(require("spec.support.emulator").trial(%q, 3))'):format(name),
  })
  assert.are.equal(0, status, err)
  return (out:gsub("%s+$", ""))
end

local function in_order(order, name, value)
  emulator.mode("order", order)
  local result = emulator.trial(name, value)
  emulator.mode("order", 0)
  return result
end

describe("the emulator", function()
  it("names thread, address and line of a misaligned access", function()
    local message = emulator.trial("misaligned", 0)
    assert.truthy(
      message:match "^block %(0, 0, 0%), thread 3: misaligned address 0x%x+4: not a multiple of 16 ")
    assert.truthy(message:find("trial.cpp", 1, true))
  end)

  it("stops an access behind or in front of an allocation", function()
    assert.truthy(guarded("behind",
      "1"):match "^block %(0, 0, 0%), thread 0: access to 0x%x+, 32 bytes behind " ..
      "the start of an allocation of 32 bytes$")
    assert.truthy(guarded("in front", "2"):find("4 bytes in front of an allocation of 32 bytes", 1, true))
    assert.is_nil(guarded("in front", "1"):find("access", 1, true))
    assert.truthy(guarded("two warps", "1"):match "^%d")
  end)

  it("gives results of captured steps back one by one without the allocator's cache", function()
    local status, out, err = host.run({ "-" }, { env = { ACCEL_CUDA_CACHE = "0" }, stdin = [[
      local accelerate, tensor = require "accelerate", require "accelerate.tensor"
      local results = {}
      for round = 1, 3 do
        local step = accelerate.utils.capture(function(v)
          tensor.release(tensor.cat { v, v, v, v }) -- its block is divided among the results
          return v * 2, v * 3, v + 1, v - 1
        end, { warmup = 1 })
        local x = tensor.arange(1000):float():to "cuda"
        for _ = 1, 3 do results[round] = { step(x) } end
      end
      collectgarbage() collectgarbage() -- the steps: their memory becomes the allocator's, divided as it is
      local sum = 0
      for k = 1, 4 do
        for round = 1, 3 do sum = sum + results[round][k]:sum():item() tensor.release(results[round][k]) end
      end
      print(sum)
    ]] })
    assert.are.equal(0, status, err)
    assert.are.equal(3 * (2 + 3 + 1 + 1) * 499500, tonumber(out))
  end)

  it("fills new memory with NaNs where it has guard pages", function()
    assert.truthy(guarded("not written", "1"):find "nan")
    assert.truthy(guarded("not written", "2"):find "nan")
  end)

  it("shows a missing barrier by running threads in other orders", function()
    in_order(0, "no barrier", 1)
    local rising, falling = in_order(0, "no barrier", 2), in_order(1, "no barrier", 3)
    assert.are.equal(("1 "):rep(7) .. "1", rising)
    assert.are.equal(("3 "):rep(7) .. "3", falling)
    local drawn = {}
    for seed = 2, 9 do drawn[in_order(seed, "no barrier", 10 + seed)] = true end
    assert.truthy(next(drawn, next(drawn)), "all drawn orders agree")
    local right = in_order(0, "two warps", 5)
    for order = 1, 9 do assert.are.equal(right, in_order(order, "two warps", 5)) end
  end)

  it("contracts products and sums, as nvcc does", function()
    -- (1 + 2^-12)^2 - 1 has a bit that the rounded square loses
    local v = 1 + 2 ^ -12
    local result = tonumber(emulator.trial("fused", v):match "^%S+")
    assert.is_near(emulator.contracts and 2 ^ -11 + 2 ^ -24 or 2 ^ -11, result, 2 ^ -30)
  end)

  it("moves functions by up to two units in the last place, always alike for a seed", function()
    local exact = tonumber(emulator.trial("exponential", 0.3):match "^%S+")
    local seen = {}
    for seed = 1, 40 do
      emulator.mode("math", seed)
      local a, b, one = emulator.trial("exponential", 0.3):match "^(%S+) (%S+) (%S+)"
      emulator.mode("math", 0)
      assert.are.equal(a, b)
      assert.are.equal("1", one)
      local units = (tonumber(a) - exact) / 2 ^ -23
      assert.is_true(math.abs(units) <= 2.1, a)
      seen[math.floor(units + 0.5)] = true
    end
    for units = -2, 2 do assert.is_true(seen[units], units .. " was never drawn") end
  end)
end)
