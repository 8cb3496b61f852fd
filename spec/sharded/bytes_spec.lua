-- The bytes that a rank has of a model at rest: as the plan's table says, to 5 percent, whatever
-- the sizes of the model's layers, which fall anywhere between the size classes of the CPU
-- allocator (host/core/memory/alloc.c).
-- lua/accelerate/parallel/plan/table.lua, host/core/params, host/core/memory/lasting.h.
local ranks = require "spec.support.ranks"

local MEASURED = [[
local models, optim, tensor, utils = accelerate.models, accelerate.optim, accelerate.tensor, accelerate.utils
local own_memory, sizes = require "spec.support.own_memory", require "accelerate.parallel.plan.table"
local strategy, layers = arg[1], tonumber(arg[2])
local a = accelerate.Accelerator { fsdp_plugin = { reshard_after_forward = strategy,
  auto_wrap_policy = "TRANSFORMER_BASED_WRAP" } }
local function settle()
  for _ = 1, 3 do collectgarbage() end
  core.empty_cache()
  accelerate.utils.wait_for_everyone()
  return utils.memory_stats().live_bytes, own_memory.proportional()
end
local ids = tensor.randint(0, 64, { 1, 8 })
local function trained(width, n_layer)
  local model = models.GPT2LMHeadModel {
    vocab_size = 64, n_positions = 16, n_embd = width, n_layer = n_layer, n_head = 4 }
  local optimizer
  model, optimizer = a:prepare(model, optim.AdamW(model:parameters(), { lr = 1e-3 }))
  for _ = 1, 2 do
    a:backward(model(ids, { labels = ids }).loss)
    optimizer:step()
    optimizer:zero_grad()
  end
  return model, optimizer
end
trained(32, 1) -- code, threads, windows of collectives
a:free_memory()
local live, resident = settle()
local function measure(width)
  local model, optimizer = trained(width, layers)
  local plan = a._plan
  local sum = sizes.bytes(plan, sizes.units(plan, model), 2)
  local rest = sum.values + sum.gradients + sum.states
  local function within(what, bytes, slack)
    check(math.abs(bytes - rest) < 0.05 * rest + slack,
      ("%s, width %d: %s: %.1f MB, and the plan says %.1f"):format(strategy, width, what, bytes / 1e6,
        rest / 1e6))
  end
  local live_now, resident_now = settle()
  within("tensors", live_now - live, 0)
  within("memory of the process", resident_now - resident, 6e6) -- the Lua state, buffers of the C library
end
for k = 3, #arg do
  measure(tonumber(arg[k]))
  a:free_memory()
  check(settle() < live + 1e5, "a model that was freed has left something")
end
]]

--                       strategy, ranks, layers, widths
local CASES = {
  { "NO_SHARD", 1, 4, 256, 320 }, { "FULL_SHARD", 1, 2, 768 }, { "NO_SHARD", 2, 4, 256, 384 },
  { "SHARD_GRAD_OP", 2, 4, 256, 320 }, { "SHARD_GRAD_OP", 4, 3, 512 }, { "FULL_SHARD", 2, 4, 256, 512 },
  { "FULL_SHARD", 4, 4, 384 }, { "HYBRID_SHARD", 2, 4, 320 }, { "HYBRID_SHARD_ZERO2", 4, 4, 384 },
}

describe("the bytes of a rank at rest", function()
  for _, case in ipairs(CASES) do
    local strategy, n = case[1], case[2]
    it(("are the plan's under %s on %d"):format(strategy, n), function()
      ranks.ok(n, MEASURED, { launch = { "--cpu" }, arguments = { strategy, unpack(case, 3) } })
    end)
  end

  it("are the plan's where values are gathered in bfloat16", function()
    ranks.ok(2, MEASURED,
      { launch = { "--cpu", "--mixed_precision", "bf16" }, env = { ACCEL_SHARED_PARAMETERS = "0" },
      arguments = { "FULL_SHARD", 6, 256 } })
  end)
end)
