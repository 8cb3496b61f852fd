-- Every example runs for a few steps on one rank and on two, and learns.
local host = require "spec.support.host"

-- File name -> what to check, given a function that runs it: run(ranks, arguments...) -> stdout.  An example that is not here takes --max_steps
-- and prints lines with `loss 1.2345`, the first and the last step's among them.
local CHECKS = {}

local function falls(run, ranks)
  local out, losses = run(ranks, "--max_steps", "60"), {}
  for loss in out:gmatch("loss (%d+%.%d+)") do losses[#losses + 1] = tonumber(loss) end
  assert(#losses >= 2, "fewer than two lines with a loss:\n" .. out)
  assert(losses[#losses] < 0.95 * losses[1], ("the loss went from %g to %g"):format(losses[1], losses[#losses]))
end

CHECKS["fashion_mnist.lua"] = function(run, ranks)
  local function accuracy(steps)
    local out = run(ranks, "--epochs", "1", "--steps", tostring(steps))
    return tonumber(out:match("\ntest accuracy (0%.%d%d%d%d)\n$")) or error("the last line is not `test accuracy 0.xxxx`:\n" .. out)
  end
  local untrained, trained = accuracy(1), accuracy(150)
  assert(untrained < 0.6, "after one step: " .. untrained)
  assert(trained > 0.75, "after 150 steps: " .. trained)
end

-- The two image examples have small steps and large ones: how far they get in as many as fit a test.
local function learns(steps, least)
  return function(run, ranks)
    local out = run(ranks, "--epochs", "1", "--steps", tostring(steps), "--batch_size", "32")
    local accuracy = tonumber(out:match("\ntest accuracy (0%.%d%d%d%d)\n$")) or error("the last line is not `test accuracy 0.xxxx`:\n" .. out)
    assert(accuracy > least, ("after %d steps: %g"):format(steps, accuracy))
  end
end
CHECKS["lenet.lua"] = learns(150, 0.6)
CHECKS["resnet.lua"] = learns(20, 0.2)

-- A smaller model than the example's own: this is about learning at all.
CHECKS["char_gpt.lua"] = function(run, ranks)
  falls(function(n, ...) return run(n, "--width", "32", "--layers", "2", "--context", "64", "--sample", "20", ...) end, ranks)
end

local function run(name)
  return function(ranks, ...)
    local status, out, err = host.run { "--num_processes", tostring(ranks), "examples/" .. name, ... }
    assert(status == 0, ("status %d\n%s%s"):format(status, out, err))
    return out
  end
end

describe("examples", function()
  local list = io.popen("ls examples")
  for name in list:lines() do
    for ranks = 1, 2 do
      it(("%s learns on %d rank%s"):format(name, ranks, ranks == 1 and "" or "s"), function()
        local check = CHECKS[name] or falls
        check(run(name), ranks)
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

  it("fashion_mnist.lua names an option that is misspelt", function()
    local status, _, err = host.run { "examples/fashion_mnist.lua", "--epohs", "1" }
    assert.equal(1, status)
    assert.truthy(err:find("'epohs'", 1, true) and err:find("'epochs'", 1, true), err)
  end)
end)
