--- Tensors on another device: making, moving, reading, recording, and what is refused.
local device = require "spec.support.device"
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local host = require "spec.support.host"
local raises = require("spec.support.messages").raises

if not device.name then
  describe("devices", function() it("need one", function() pending(device.reason) end) end)
  return
end

local D = device.name
local emulator = require "spec.support.emulator"
local gpu_ranks = require "spec.support.gpu_ranks"

describe("a tensor on a device", function()
  it("is made there by every constructor", function()
    local options = { device = D }
    for name, t in pairs {
      zeros = tensor.zeros(2, options), ones = tensor.ones(2, options), full = tensor.full({ 2 }, 7, options),
      arange = tensor.arange(3, options),
      eye = tensor.eye(2, options), linspace = tensor.linspace(0, 1, 3, options),
      tensor = tensor({ 1, 2 }, options), randn = tensor.randn(3, options),
      randint = tensor.randint(0, 9, { 3 }, options), randperm = tensor.randperm(5, options),
      like = tensor.ones_like(tensor.zeros(2, options)),
    } do
      assert.are.equal(D, t.device, name)
      assert.are.equal("cpu", t:to("cpu").device, name)
    end
    assert.are.same({ 7, 7 }, tensor.full({ 2 }, 7, options):totable())
    assert.are.same({ { 1, 0 }, { 0, 1 } }, tensor.eye(2, options):totable())
  end)

  it("has the bits of the CPU's random numbers", function()
    for _, name in ipairs { "rand", "randn" } do
      local here = tensor[name](1001, { generator = tensor.Generator(5) })
      local there = tensor[name](1001, { generator = tensor.Generator(5), device = D })
      assert.is_true(tensor.equal(here, there:to("cpu")), name)
    end
    assert.are.same(tensor.randperm(100, { generator = tensor.Generator(5) }):totable(),
      tensor.randperm(100, { generator = tensor.Generator(5), device = D }):totable())
  end)

  it("comes back as it went, strided and cast", function()
    local x = tensor.randn(4, 6)
    local there = x:t():to(D)
    assert.is_true(tensor.equal(x:t(), there:to("cpu")))
    assert.is_true(tensor.equal(x:double(), x:to { device = D, dtype = "float64" }:to("cpu")))
    assert.are.equal(there, there:to(D))
    assert.are_not.equal(there, there:to { device = D, copy = true })
    local back = tensor.zeros(6, 4):t()
    back:copy_(there:t())
    assert.is_true(tensor.equal(x, back))
  end)

  it("prints, and gives its values", function()
    assert.are.equal(("tensor([1., 2.], device='%s')"):format(D), tostring(tensor({ 1, 2 }, { device = D })))
    assert.are.equal(3, tensor({ 1, 2 }, { device = D }):sum():item())
  end)

  it("is read and written by position, slice and mask", function()
    local x = tensor({ { 1, 2, 3 }, { 4, 5, 6 } }, { device = D })
    assert.are.same({ 2, 3 }, x[{ 1, { 2, 3 } }]:totable())
    assert.are.same({ 4, 5, 6 }, x[x:gt(3)]:totable())
    x[1] = 0
    x[{ 2, 3 }] = tensor(9, { device = D })
    x[x:eq(5)] = -1
    assert.are.same({ { 0, 0, 0 }, { 4, -1, 9 } }, x:totable())
  end)

  it("sends its gradient back to where a leaf lies", function()
    local w = tensor({ 1, 2, 3 }, { requires_grad = true })
    local y = (w:to(D) * tensor({ 4, 5, 6 }, { device = D })):to("cpu"):sum()
    y:backward()
    assert.are.equal("cpu", w.grad.device)
    assert.are.same({ 4, 5, 6 }, w.grad:totable())
  end)

  it("copies across devices in place, recorded", function()
    local w = tensor({ 1, 2 }, { requires_grad = true })
    local x = tensor.zeros(2, { device = D })
    x:copy_(w * 2)
    x:sum():backward()
    assert.are.same({ 2, 2 }, w.grad:totable())
  end)

  it("reaches another one's memory without the host, asked once for each way", function()
    if not emulator then return pending("the emulated device counts the runtime's calls") end
    local script = [[
      local ffi = require "ffi"
      ffi.cdef "long ax_emulated_calls(const char *name); void ax_emulated_reach(int device, int peer);"
      local plugin = ffi.load(os.getenv "ACCEL_CUDA_PLUGIN")
      local function calls(name) return tonumber(plugin.ax_emulated_calls(name)) end
      local function counted(asked, turned_on, staged)
        local found = { calls "cudaDeviceCanAccessPeer", calls "cudaDeviceEnablePeerAccess",
          calls "cudaMemcpyAsync by way of the host" }
        check(found[1] == asked and found[2] == turned_on and found[3] == staged, table.concat(found, " "))
      end
      local x = core.tensor { 1, 2, 3 }
      local function moved(from, to)
        local y = x:to("cuda:" .. from):to("cuda:" .. to)
        check(text((y * 2):to("cpu")) == "2 4 6")
      end
    ]]
    gpu_ranks.on(1, script .. [[
      for _ = 1, 3 do moved(0, 1) end
      counted(1, 1, 0)
      for _ = 1, 3 do moved(1, 0) end
      counted(2, 2, 0)
      plugin.ax_emulated_reach(2, 0)
      for _ = 1, 3 do moved(0, 2) end
      counted(3, 3, 0)
    ]])
    gpu_ranks.on(1, script .. [[
      for _ = 1, 3 do moved(0, 1) end
      counted(1, 0, 3)
    ]], { env = { ACCEL_EMULATED_PEERS = "0" } })
  end)

  it("does not meet tensors of another device", function()
    raises(("add: tensors lie on different devices: %s and cpu"):format(D),
      function() return tensor.ones(2, { device = D }) + tensor.ones(2) end)
    raises("add_: the tensor being changed lies on cpu, an argument on " .. D,
      function() tensor.ones(2):add_(tensor.ones(2, { device = D })) end)
    raises("data_ptr: the tensor is on another device",
      function() tensor.ones(2, { device = D }):data_ptr() end)
  end)

  it("needs a device that is there", function()
    local n = core.device_count("cuda")
    raises(("cuda:%d: this process sees %d CUDA device"):format(n, n), tensor.zeros, 2,
      { device = "cuda:" .. n })
    raises('expected "cpu", "cuda" or "cuda:N", got "cuda:-1"', tensor.zeros, 2, { device = "cuda:-1" })
  end)

  it("gives its memory back", function()
    collectgarbage() collectgarbage()
    local before = core.memory_stats(D).live_bytes
    local x = tensor.zeros(1000, 100, { device = D })
    assert.is_true(core.memory_stats(D).live_bytes >= before + 400000)
    tensor.release(x)
    assert.are.equal(before, core.memory_stats(D).live_bytes)
  end)

  it("runs out of memory with an error that says what is live, and goes on", function()
    raises("out of memory", tensor.empty, 2 ^ 44, { device = D, dtype = "uint8" })
    assert.are.equal(4, tensor.ones(4, { device = D }):sum():item())
  end)

  it("is the default where set_default_device says so", function()
    device.with(function() assert.are.equal(D, tensor.zeros(1).device) end)
    assert.are.equal("cpu", tensor.zeros(1).device)
    assert.has_error(function() device.with(error, "x") end)
    assert.are.equal("cpu", tensor.zeros(1).device)
  end)
end)

describe("without CUDA", function()
  it("a script is told why, each time", function()
    local code = [[local core = require "accelerate.core"
      for _ = 1, 2 do print(select(2, pcall(core.zeros, 2, { device = "cuda" }))) end
      print(core.device_count("cuda"))]]
    local status, out = host.run({ "-e", code }, { env = { ACCEL_CUDA_PLUGIN = "/nowhere/libax_cuda.so" } })
    assert.are.equal(0, status)
    local _, times = out:gsub(
      "zeros: CUDA cannot be used here:\n" ..
        "  this build has no CUDA backend: there is no /nowhere/libax_cuda.so", "")
    assert.are.equal(2, times, out)
    assert.is_truthy(out:find("\n0\tCUDA cannot be used here"))
  end)
end)
