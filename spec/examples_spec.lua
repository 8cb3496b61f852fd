-- Every example runs for a few steps on one rank and on two, and learns.
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local example_checks = require "spec.support.example_checks"
local pictures = require("spec.reference.files_reference").pictures

local check, run = example_checks.check, example_checks.runner

describe("examples", function()
  local list = io.popen("cd examples && find * -name '*.lua' | LC_ALL=C sort")
  for name in list:lines() do
    for ranks = 1, 2 do
      it(("%s learns on %d rank%s"):format(name, ranks, ranks == 1 and "" or "s"), function()
        check(name, run(name), ranks)
      end)
    end
  end
  list:close()

  it("fashion_mnist.lua gives the same bits twice, on two ranks", function()
    local function weights()
      local bytes
      host.in_folder(function(folder)
        run("fashion_mnist.lua")(2, "--epochs", "1", "--steps", "20", "--save", folder)
        local f = assert(io.open(folder .. "/model.safetensors", "rb"))
        bytes = f:read("*a")
        f:close()
      end)
      return bytes
    end
    local first = weights()
    assert.is_true(#first > 800000)
    assert.is_true(first == weights())
  end)

  it("are joined by the README's script, which saves its model", function()
    local f = assert(io.open("README.md"))
    local script = f:read("*a"):match("```lua\n(.-)```"):gsub("for epoch = 1, 2 do", "for epoch = 1, 1 do")
    f:close()
    host.in_folder(function(folder)
      f = assert(io.open(folder .. "/train.lua", "w"))
      f:write(script)
      f:close()
      local status, out, err = host.run({ "--num_processes", "2", "train.lua" }, { folder = folder })
      assert.equal(0, status, err)
      assert(tonumber(out:match("^epoch 1: loss (%d%.%d+)\n$")) < 1, out)
      assert(io.open(folder .. "/out/model.safetensors")):close()
    end)
  end)

  it("of images read a folder of pictures", function()
    host.in_folder(function(folder)
      for _, class in ipairs { "train/cat", "train/dog", "test/cat", "test/dog" } do
        os.execute(("mkdir -p '%s/%s'"):format(folder, class))
        for i = 1, 4 do
          local file = class:find "cat" and pictures.png[1] or pictures.jpeg[1]
          disk.write(("%s/%s/%d.png"):format(folder, class, i), disk.from_hex(file))
        end
      end
      for name, epochs in pairs { ["cv_example.lua"] = "--epochs",
        ["complete_cv_example.lua"] = "--num_epochs" } do
        local out = run(name)(1, "--data_dir", folder, "--image_size", "16", "--batch_size", "4", epochs, "1")
        assert(out:find "\ntest accuracy %d%.%d%d%d%d\n$", out)
      end
    end)
  end)

  it("name what is missing", function()
    for _, case in ipairs {
      { "gpt2.lua", "--data", "--data /nowhere names no file" },
      { "nlp_example.lua", "--data_dir", "nlp_example.lua: --data_dir: /nowhere/train.tsv: No such file" },
      { "inference/embeddings.lua", "--texts", "embeddings.lua: --texts: /nowhere: No such file" },
      { "inference/gguf.lua", "--model", "gguf.lua: --model: /nowhere: No such file" },
      { "cv_example.lua", "--data_dir", "cannot read the directory /nowhere/train" },
    } do
      local status, _, err = host.run { "examples/" .. case[1], case[2], "/nowhere" }
      assert.equal(1, status)
      assert(err:find(case[3], 1, true), err)
    end
  end)

  it("print what they open with for --help", function()
    local status, out, err = host.run { "--num_processes", "2", "examples/by_feature/memory.lua", "--help" }
    assert.equal(0, status, err)
    assert.equal("A batch size that fits: training is tried", out:match("^[^\n]*"):sub(1, 41))
    local _, more = out:gsub("Options, with", "")
    assert.equal(1, more)
  end)

  it("fashion_mnist.lua names an option that is misspelt", function()
    local status, _, err = host.run { "examples/fashion_mnist.lua", "--epohs", "1" }
    assert.equal(1, status)
    assert.truthy(err:find("'epohs'", 1, true) and err:find("'epochs'", 1, true), err)
  end)
end)
