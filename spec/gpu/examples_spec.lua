--- The examples on a device, as they are: on a GPU until they have learned what
--- spec/examples_spec.lua asks of them on the CPU; on the devices that are none for a few steps.
local device = require "spec.support.device"
local example_checks = require "spec.support.example_checks"
local host = require "spec.support.host"

if not device.name then
  describe("examples on the device", function() it("need one", function() pending(device.reason) end) end)
  return
end

local FASHION = (os.getenv("FASHION_MNIST_DIR") or "/usr/share/datasets/fashion-mnist") ..
  "/train-images-idx3-ubyte.gz"

-- A few steps, and what the last line must look like.
local SHORT = {
  ["augment.lua"] = { { "--max_steps", "2", "--batch_size", "8" }, "loss %d" },
  ["char_gpt.lua"] = { { "--max_steps", "2", "--width", "32", "--layers", "1", "--context", "64", "--sample",
    "3" }, "validation loss %d" },
  ["fashion_mnist.lua"] = { { "--epochs", "1", "--steps", "2" }, "test accuracy %d" },
  ["lenet.lua"] = { { "--epochs", "1", "--steps", "1", "--batch_size", "4" }, "test accuracy %d" },
  ["lstm_copy.lua"] = { { "--max_steps", "1", "--hidden", "8", "--batch_size", "4", "--length", "2" },
    "copied %d" },
  ["resnet.lua"] = { { "--epochs", "1", "--steps", "1", "--batch_size", "4" }, "test accuracy %d" },
  ["nlp_example.lua"] = { { "--max_steps", "1", "--batch_size", "2", "--max_length", "8" }, "accuracy %d" },
  ["reinforce.lua"] = { { "--games", "1" }, "mean length %d" },
  ["by_feature/tracking.lua"] = { { "--max_steps", "2", "--batch_size", "8" }, "loss %d" },
  ["by_feature/profiler.lua"] = { { "--max_steps", "18", "--batch_size", "8" }, "loss %d" },
  ["cv_example.lua"] = { { "--epochs", "1", "--steps", "1", "--batch_size", "4" }, "test accuracy %d" },
  ["complete_cv_example.lua"] = { { "--max_steps", "1", "--batch_size", "4" }, "test accuracy %d" },
  ["complete_nlp_example.lua"] = { { "--max_steps", "1", "--batch_size", "2", "--max_length", "8" },
    "accuracy %d" },
  ["dqn.lua"] = { { "--max_steps", "80" }, "mean length %d" },
  ["gan.lua"] = { { "--max_steps", "1" }, "of 8 clusters" },
  ["inference/distributed_generation.lua"] = { { "--max_steps", "1" }, "texts go on" },
  ["inference/embeddings.lua"] = { {}, "neighbours" },
  ["inference/gguf.lua"] = { { "--max_steps", "1" }, "the whole model's" },
  ["inference/offload.lua"] = { { "--max_new_tokens", "2" }, "the tokens are those of the whole model" },
}
local FOUR_STEPS = { { "--max_steps", "4" }, "loss %d" }
-- What is small enough for threads that are run one by one.
local EMULATED = { ["lstm_copy.lua"] = true, ["by_feature/tracking.lua"] = true }

local check = example_checks.check
local function run(name) return example_checks.runner(name, 100) end

describe(("examples on %s (%s)"):format(device.name, device.kind), function()
  local list = io.popen("cd examples && find * -name '*.lua' | LC_ALL=C sort")
  for name in list:lines() do
    it(name .. (device.kind == "cuda" and " learns" or " takes a few steps"), function()
      local f = assert(io.open("examples/" .. name))
      local wants_pictures = f:read("*a"):find("FashionMNIST", 1, true)
      f:close()
      f = wants_pictures and io.open(FASHION)
      if f then
        f:close()
      elseif wants_pictures then
        return pending("needs Fashion-MNIST: there is no " .. FASHION)
      end
      if device.kind == "cuda" then return check(name, run(name), 1) end
      if device.kind == "emulated" and not EMULATED[name] then
        return pending("takes too long on the emulated device")
      end
      local short = SHORT[name] or FOUR_STEPS
      local out = run(name)(1, unpack(short[1]))
      assert(out:match("[^\n]*\n$"):find(short[2]) or out:find(short[2]), out)
    end)
  end
  list:close()

  it("run on the device when nothing else is said", function()
    local status, out, err = host.run { "-e", "print(require('accelerate').Accelerator().device)" }
    assert.are.equal(0, status, err)
    assert.is_truthy(out:find("cuda", 1, true), out)
  end)
end)
