--- What each example has to show when it is run: used on the CPU (spec/examples_spec.lua) and on a
--- GPU (spec/gpu/examples_spec.lua).

-- File name -> what to check, given a function that runs it: run(ranks, arguments...) -> stdout.
-- An example that is not here takes --max_steps and prints lines with `loss 1.2345`, the first and
-- the last step's among them.
local CHECKS = {}

local function falls(run, ranks)
  local out, losses = run(ranks, "--max_steps", "60"), {}
  for loss in out:gmatch("loss (%d+%.%d+)") do losses[#losses + 1] = tonumber(loss) end
  assert(#losses >= 2, "fewer than two lines with a loss:\n" .. out)
  assert(losses[#losses] < 0.95 * losses[1],
    ("the loss went from %g to %g"):format(losses[1], losses[#losses]))
  return out
end

CHECKS["fashion_mnist.lua"] = function(run, ranks)
  local function accuracy(steps)
    local out = run(ranks, "--epochs", "1", "--steps", tostring(steps))
    return tonumber(out:match("\ntest accuracy (0%.%d%d%d%d)\n$"))
      or error("the last line is not `test accuracy 0.xxxx`:\n" .. out)
  end
  local untrained, trained = accuracy(1), accuracy(150)
  assert(untrained < 0.6, "after one step: " .. untrained)
  assert(trained > 0.75, "after 150 steps: " .. trained)
end

-- The two image examples have small steps and large ones: how far they get in as many as fit a
-- test.
local function learns(steps, least)
  return function(run, ranks)
    local out = run(ranks, "--epochs", "1", "--steps", tostring(steps), "--batch_size", "32")
    local accuracy = tonumber(out:match("\ntest accuracy (0%.%d%d%d%d)\n$"))
      or error("the last line is not `test accuracy 0.xxxx`:\n" .. out)
    assert(accuracy > least, ("after %d steps: %g"):format(steps, accuracy))
  end
end
CHECKS["lenet.lua"] = learns(150, 0.6)
CHECKS["resnet.lua"] = learns(20, 0.2)

-- A smaller model than the example's own: this is about learning at all.
CHECKS["char_gpt.lua"] = function(run, ranks)
  falls(function(n, ...)
    return run(n, "--width", "32", "--layers", "2", "--context", "64", "--sample", "20", ...)
  end, ranks)
end

-- Short texts: passages of 32 words are cut.
CHECKS["nlp_example.lua"] = function(run, ranks)
  local out = falls(function(n, ...) return run(n, "--max_length", "16", ...) end, ranks)
  assert(out:find("\naccuracy 0%.%d%d%d%d\n$"), out)
end

-- The first games last 20 steps.
CHECKS["reinforce.lua"] = function(run, ranks)
  local out = run(ranks, "--games", "50")
  local length = tonumber(out:match("\nmean length (%d+%.%d)\n$"))
  assert(length and length > 40, out)
end

--- Runs the check of examples/`name`, on `ranks` ranks, with run(ranks, arguments...) -> stdout.
return function(name, run, ranks)
  local check = CHECKS[name] or falls
  check(run, ranks)
end
