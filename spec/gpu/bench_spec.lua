--- The benchmarks' scripts on a device, at sizes at which their figures mean nothing: that they
--- run, and say what they measured.
local device = require "spec.support.device"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"

if not device.name then
  describe("benchmarks on the device", function() it("need one", function() pending(device.reason) end) end)
  return
end

local function bench(script, ...)
  local status, out, err = host.run({ "--num_cpu_threads_per_process", "1", "bench/" .. script .. ".lua",
    ... }, { seconds = 120 })
  assert.are.equal(0, status, out .. err)
  local line = assert(json.decode(out:match("{[^\n]*}")))
  assert.are.equal(device.name, line.device)
  return line
end

local function trained(line)
  for _, field in ipairs { "step_ms", "loop_step_ms", "per_second", "peak_device_mb", "loss" } do
    assert(type(line[field]) == "number" and line[field] > 0, field .. " is " .. tostring(line[field]))
  end
end

describe(("benchmarks on %s (%s)"):format(device.name, device.kind), function()
  it("train a GPT, and name what a step computes", function()
    local line = bench("gpt", "smoke", "2", "1", "--device", "cuda", "--dtype", "bf16")
    trained(line)
    assert.are.equal((6 * line.params + 12 * 32 * 16) * 32, line.flops)
    assert.are.same({ 1, 0 }, { line.deterministic, line.conv_tf32 })
  end)

  it("train with the switches that flags name", function()
    local line = bench("gpt", "smoke", "1", "1", "--device", "cuda", "--nondeterministic", "--conv-tf32")
    assert.are.same({ 0, 1 }, { line.deterministic, line.conv_tf32 })
    assert.are.equal(1, bench("gpt", "smoke", "1", "1", "--device", "cuda", "--tf32").conv_tf32)
  end)

  it("train in fp8", function()
    trained(bench("gpt", "smoke", "1", "1", "--device", "cuda", "--dtype", "fp8"))
  end)

  it("train with captured steps", function()
    if device.fake then return pending("the fake device records nothing") end
    local line = bench("gpt", "smoke", "2", "4", "--device", "cuda", "--capture")
    trained(line)
    assert.are.equal(1, line.captured)
  end)

  it("train a BERT and a CNN", function()
    if device.kind == "emulated" then return pending("takes too long on the emulated device") end
    trained(bench("bert", "smoke", "1", "1", "--device", "cuda", "--batch", "2"))
    if device.kind == "cuda" then trained(bench("cnn", "4", "1", "1", "--device", "cuda")) end
  end)

  it("measure single kernels", function()
    if device.kind == "emulated" then return pending("takes too long on the emulated device") end
    local line = bench("kernels", "--device", "cuda", "--mb", "0.125", "--side", "16", "--launches", "100",
      "--steps", "1")
    for _, field in ipairs { "copy_gbs", "gelu_grad_bf16_of_copy", "adamw_of_copy", "mm_bf16_16_tflops",
      "mm_fp8_16_tflops", "row_Q4_K_gbs", "row_nf4_gbs", "row_int8_gbs",
      "add_ns", "attention_grad_ms" } do
      assert(line[field] > 0, field)
    end
    if device.kind == "cuda" then assert(line.bare_launch_ns > 0) end
  end)

  it("make tables of a row with and without determinism, without PyTorch; name rows that do not exist",
    function()
    host.in_folder(function(folder)
      local env = { BENCH_SMOKE = "cuda", BENCH_OUT = folder, ROUNDS = "2", PYTHON = "/nowhere/python",
        ONLY = "^GPT%-2 124M, T 1024, batch 8, bf16" }
      local status, out, err = host.run({ "bench/gpu.lua" }, { env = env, seconds = 120 })
      assert.are.equal(0, status, out .. err)
      assert.is_truthy(out:find("| GPT%-2 124M, T 1024, batch 8, bf16 | %d"), out)
      assert.is_truthy(out:find("| GPT%-2 124M, T 1024, batch 8, bf16, not deterministic | %d"), out)
      assert.is_truthy(out:find("The price of determinism, GPT%-2 [^\n]*: %-?[%d.]+ %% of the throughput"),
        out)
      assert.is_truthy(out:find("has no PyTorch", 1, true), out)
      local f = assert(io.open(folder .. "/bench-gpu.jsonl"))
      local measured = f:read("*a")
      f:close()
      local _, lines = measured:gsub("\n", "\n")
      assert.are.equal(4, lines)
      assert.is_truthy(measured:find('"side": "accel", [^\n]*"deterministic": 1'), measured)
      assert.is_truthy(measured:find('"side": "free", [^\n]*"deterministic": 0'), measured)
      env.ONLY = "no such row"
      status, _, err = host.run({ "bench/gpu.lua" }, { env = env })
      assert.are.equal(1, status)
      assert.is_truthy(err:find("matches no row", 1, true), err)
    end)
  end)

  it("measure float32 convolutions in TF32", function()
    host.in_folder(function(folder)
      local status, out, err = host.run({ "bench/gpu.lua" }, { seconds = 120, env = { BENCH_SMOKE = "cuda",
        BENCH_OUT = folder, ROUNDS = "1", PYTHON = "/nowhere/python", ONLY = "^ResNet.*fp32, conv" } })
      assert.are.equal(0, status, out .. err)
      assert.is_truthy(out:find("| ResNet%-50, [^|]*, fp32, convolutions in TF32 | %d"), out)
      assert.is_truthy(require("spec.support.disk").read(folder .. "/bench-gpu.jsonl")
        :find('"conv_tf32": 1', 1, true))
    end)
  end)

  it("refuse flags that they do not know", function()
    local status, _, err = host.run { "bench/mlp.lua", "--devise", "cuda" }
    assert.are.equal(1, status)
    assert.is_truthy(err:find("unknown flag --devise", 1, true), err)
  end)
end)
