--- What each example has to show when it is run: used on the CPU (spec/examples_spec.lua) and on a
--- GPU (spec/gpu/examples_spec.lua).
local host = require "spec.support.host"

-- File name -> what to check, given a function that runs it: run(ranks, arguments...) -> stdout.
-- An example that is not here takes --max_steps and prints lines with `loss 1.2345`, the first and
-- the last step's among them.
local CHECKS = {}

local function falls(run, ranks, steps)
  local out, losses = run(ranks, "--max_steps", tostring(steps or 60)), {}
  for loss in out:gmatch("loss (%d+%.%d+)") do losses[#losses + 1] = tonumber(loss) end
  assert(#losses >= 2, "fewer than two lines with a loss:\n" .. out)
  assert(losses[#losses] < 0.95 * losses[1],
    ("the loss went from %g to %g"):format(losses[1], losses[#losses]))
  return out
end

-- Adapters learn a second text over a model that stays as the first one has made it.
CHECKS["qlora.lua"] = function(run, ranks)
  local out = falls(run, ranks, 60)
  local first, last = out:match "GPL%-3, step 1: loss (%d+%.%d+)", out:match "\nloss (%d+%.%d+)"
  assert(tonumber(last) < 0.95 * tonumber(first), out)
end

CHECKS["by_feature/fsdp.lua"] = function(run, ranks)
  local cut = falls(run, ranks)
  local whole = run(ranks, "--max_steps", "60", "--strategy", "NO_SHARD")
  assert(cut:find("^sharding plan of GPT2LMHeadModel with AdamW: FULL_SHARD on " .. ranks .. " rank"), cut)
  assert(cut:match "step 60: [^\n]*" == whole:match "step 60: [^\n]*", cut .. whole)
  local function peak(out) return tonumber(out:match "at most (%d+%.%d) MB of tensors on rank 0") end
  assert(ranks == 1 or peak(cut) < peak(whole), cut .. whole)
end

CHECKS["by_feature/deepspeed.lua"] = function(run, ranks)
  local cut, whole = falls(run, ranks), run(ranks, "--max_steps", "60", "--stage", "0")
  assert(cut:match "step 60: [^\n]*" == whole:match "step 60: [^\n]*", cut .. whole)
  local function peak(out) return tonumber(out:match "at most (%d+%.%d) MB of tensors on rank 0") end
  assert(ranks == 1 or peak(cut) < peak(whole), cut .. whole)
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
local function learns(steps, least, ...)
  local more = { ... }
  return function(run, ranks)
    local out = run(ranks, "--epochs", "1", "--steps", tostring(steps), "--batch_size", "32", unpack(more))
    local accuracy = tonumber(out:match("\ntest accuracy (0%.%d%d%d%d)\n$"))
      or error("the last line is not `test accuracy 0.xxxx`:\n" .. out)
    assert(accuracy > least, ("after %d steps: %g"):format(steps, accuracy))
  end
end
CHECKS["lenet.lua"] = learns(150, 0.6)
CHECKS["resnet.lua"] = learns(20, 0.2, "--batch_size", "16")
CHECKS["cv_example.lua"] = learns(28, 0.25, "--batch_size", "16", "--lr", "0.02", "--workers", "1")
-- A run that is stopped goes on from its checkpoint, says so, and ends as one that was not stopped.
-- Returns its output. last: a pattern of what it ends with.
local function resumes(run, ranks, steps, last, ...)
  local folder, more, whole = os.tmpname(), { ... }, nil
  os.remove(folder)
  local every = tostring(math.ceil(steps / 2))
  local function out(...)
    local all = { "--output_dir", folder, "--checkpointing_steps", every, ... }
    for _, v in ipairs(more) do all[#all + 1] = v end
    return run(ranks, unpack(all))
  end
  local ok, why = pcall(function()
    whole = falls(function(_, ...) return out(...) end, ranks, steps)
    -- as if it had been killed before the second checkpoint, which the run that goes on writes
    local first, second = folder .. "/checkpoints/checkpoint_0", folder .. "/checkpoints/checkpoint_1"
    assert(os.execute(("mv '%s' '%s'"):format(second, folder)))
    local resumed = out("--resume_from_checkpoint", first, "--max_steps", tostring(steps))
    assert(resumed:find(("goes on from %s, step %s\n"):format(first, every), 1, true), resumed)
    assert(io.open(second .. "/model.safetensors"), "no second checkpoint"):close()
    local ending = whole:match(last)
    assert(ending and resumed:find(ending, 1, true), whole .. resumed)
    local step = ("\nstep %d: [^\n]*\n"):format(steps)
    assert(resumed:match(step) == whole:match(step), whole .. resumed)
  end)
  os.execute(("rm -rf '%s'"):format(folder))
  assert(ok, why)
  return whole
end

CHECKS["complete_cv_example.lua"] = function(run, ranks)
  local out = resumes(run, ranks, 30,
    "\n(epoch %d+: test accuracy 0%.%d%d%d%d\ntest accuracy 0%.%d%d%d%d\n)$",
    "--batch_size", "32")
  assert(tonumber(out:match("\ntest accuracy (0%.%d%d%d%d)\n$")) > 0.4, out)
end

CHECKS["complete_nlp_example.lua"] = function(run, ranks)
  resumes(run, ranks, 50, "\n(epoch %d+: accuracy 0%.%d%d%d%d\naccuracy 0%.%d%d%d%d\n)$", "--max_length",
    "32")
end

-- A smaller model than the example's own: this is about learning at all.
CHECKS["char_gpt.lua"] = function(run, ranks)
  falls(function(n, ...)
    return run(n, "--width", "32", "--layers", "2", "--context", "64", "--sample", "20", ...)
  end, ranks)
end

-- With --strategy a model is cut, and its last loss is that of a whole one.
local function same_under(strategies, run, ranks)
  local function last(...)
    local out = run(ranks, "--max_steps", "8", ...)
    return assert(tonumber(out:match "step 8: loss (%d+%.%d+)"), out)
  end
  local whole = last()
  for _, strategy in ipairs(ranks > 1 and strategies or {}) do
    local there = last("--strategy", strategy)
    assert(math.abs(there - whole) <= 2e-4, ("%s: %g beside %g"):format(strategy, there, whole))
  end
end

CHECKS["gpt2.lua"] = function(run, ranks)
  local function short(n, ...) return run(n, "--context", "64", ...) end
  falls(short, ranks, 20)
  same_under({ "FULL_SHARD", "SHARD_GRAD_OP", "zero2", "zero3" }, short, ranks)
end

-- Short texts: passages of 32 words are cut.
CHECKS["nlp_example.lua"] = function(run, ranks)
  local function short(n, ...) return run(n, "--max_length", "16", ...) end
  local out = falls(short, ranks)
  same_under({ "FULL_SHARD", "zero1" }, short, ranks)
  assert(out:find("\naccuracy 0%.%d%d%d%d\n$"), out)
end

-- How many of the eight clusters are found, and how many of the drawn points are in one.
CHECKS["gan.lua"] = function(run, ranks)
  local clusters, share = run(ranks, "--max_steps", "500")
    :match("\n(%d) of 8 clusters, (%d%.%d%d) of the points in one\n$")
  assert(tonumber(clusters) >= 6 and tonumber(share) > 0.3, ("%s clusters, %s"):format(clusters, share))
end

-- The first games last 20 steps.
CHECKS["dqn.lua"] = function(run, ranks)
  local length = tonumber(run(ranks, "--max_steps", "1500"):match("\nmean length (%d+%.%d)\n$"))
  assert(length > 30, length)
end

CHECKS["inference/distributed_generation.lua"] = function(run, ranks)
  local out = falls(run, ranks, 80)
  assert(tonumber(out:match("\n(%d+) of 16 texts go on rightly\n$")) >= 12, out)
end

-- By chance it is one of three.
CHECKS["inference/embeddings.lua"] = function(run, ranks)
  local right, all = run(ranks):match("(%d+) of (%d+) neighbours are of one licence\n$")
  assert(tonumber(all) > 200 and right / all > 0.5, ("%s of %s"):format(right, all))
end

CHECKS["inference/offload.lua"] = function(run, ranks)
  local out = run(ranks, "--max_new_tokens", "8")
  assert(out:find("disk", 1, true), out)
  assert(out:find("the tokens are those of the whole model", 1, true), out)
end

CHECKS["inference/gguf.lua"] = function(run, ranks)
  local out = falls(run, ranks, 150)
  assert(out:find("  lm_head +disk\n") and out:find("  model.embed_tokens +cpu\n"), out)
  assert(out:find("\nthe text goes on rightly, and is the whole model's\n$"), out)
end

-- The first games last 20 steps.
CHECKS["reinforce.lua"] = function(run, ranks)
  local out = run(ranks, "--games", "50")
  local length = tonumber(out:match("\nmean length (%d+%.%d)\n$"))
  assert(length and length > 40, out)
end

local M = {}

--- Returns run(ranks, arguments...) -> stdout for examples/`name`.
---@param name string
---@param seconds? number the longest that it may take
function M.runner(name, seconds)
  return function(ranks, ...)
    local status, out, err = host.run({ "--num_processes", tostring(ranks), "examples/" .. name, ... },
      { seconds = seconds })
    assert(status == 0, ("status %d\n%s%s"):format(status, out, err))
    return out
  end
end

--- Runs the check of examples/`name`, on `ranks` ranks, with run(ranks, arguments...) -> stdout.
function M.check(name, run, ranks)
  local check = CHECKS[name] or falls
  check(run, ranks)
end

return M
