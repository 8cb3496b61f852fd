-- The bytes that a rank has of a sharded model, at rest: as the plan's table says, to 5 percent.
-- The sizes here are near those of the CPU allocator's classes (host/core/memory/alloc.c), to which
-- it rounds up.  lua/accelerate/parallel/sharded/table.lua, host/core/params.
local ranks = require "spec.support.ranks"

local MEASURED = [[
local models, optim, tensor, utils = accelerate.models, accelerate.optim, accelerate.tensor, accelerate.utils
local sizes = require "accelerate.parallel.sharded.table"
local strategy = arg[1]
local a = accelerate.Accelerator { fsdp_plugin = { reshard_after_forward = strategy,
  auto_wrap_policy = "TRANSFORMER_BASED_WRAP" } }
-- The share of each process in memory that several map counts as that part of it.
local function proportional()
  for line in io.lines "/proc/self/smaps_rollup" do
    local kb = line:match "^Pss:%s+(%d+)"
    if kb then return tonumber(kb) * 1024 end
  end
end
local function settle()
  for _ = 1, 3 do collectgarbage() end
  core.empty_cache()
  accelerate.utils.wait_for_everyone()
end
local ids = tensor.randint(0, 64, { 1, 8 })
settle()
local live, resident = utils.memory_stats().live_bytes, proportional()
local model = models.GPT2LMHeadModel {
  vocab_size = 64, n_positions = 16, n_embd = 336, n_layer = 6, n_head = 4 }
local optimizer
model, optimizer = a:prepare(model, optim.AdamW(model:parameters(), { lr = 1e-3 }))
for _ = 1, 2 do
  a:backward(model(ids, { labels = ids }).loss)
  optimizer:step()
  optimizer:zero_grad()
end
settle()
local plan = a._plan
local sum = sizes.bytes(plan, sizes.units(plan, model), 2)
local rest = sum.values + sum.gradients + sum.states
-- Between what rests and that with the memory of the two units, which may be kept for the next step.
local function within(what, bytes, slack)
  check(bytes > 0.95 * rest - slack and bytes < 1.05 * sum.total + slack,
    ("%s: %s: %.1f MB, and the plan says %.1f to %.1f"):format(strategy, what, bytes / 1e6, rest / 1e6,
      sum.total / 1e6))
end
within("tensors", utils.memory_stats().live_bytes - live, 0)
within("memory of the process", proportional() - resident, 6e6) -- the Lua state, threads, messages
]]

describe("the bytes of a rank at rest", function()
  for _, case in ipairs { { "NO_SHARD", 1, 2 }, { "SHARD_GRAD_OP", 2, 4 }, { "FULL_SHARD", 2, 4 } } do
    it(("are the plan's under %s"):format(case[1]), function()
      for k = 2, 3 do ranks.ok(case[k], MEASURED, { launch = { "--cpu" }, arguments = { case[1] } }) end
    end)
  end
end)
