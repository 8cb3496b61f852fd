-- How much more a rank has during a step than at rest: lua/accelerate/parallel/sharded/init.lua.
local ranks = require "spec.support.ranks"

describe("a step of full sharding", function()
  it("has few units whole at a time, also where the model's own unit is used first and last", function()
    ranks.ok(2, [[
      local models, optim, tensor = accelerate.models, accelerate.optim, accelerate.tensor
      local sizes, utils = require "accelerate.parallel.plan.table", accelerate.utils
      local a = accelerate.Accelerator { fsdp_plugin = { auto_wrap_policy = "TRANSFORMER_BASED_WRAP" } }
      local model = models.GPT2LMHeadModel {
        vocab_size = 64, n_positions = 16, n_embd = 256, n_layer = 8, n_head = 4 }
      local optimizer
      model, optimizer = a:prepare(model, optim.AdamW(model:parameters(), { lr = 1e-3 }))
      local ids = tensor.randint(0, 64, { 1, 8 })
      local function step()
        a:backward(model(ids, { labels = ids }).loss)
        optimizer:step()
        optimizer:zero_grad()
      end
      step()
      collectgarbage() collectgarbage()
      local rest = utils.memory_stats().live_bytes
      utils.reset_peak_memory_stats()
      step()
      local plan = a._plan
      local sum = sizes.bytes(plan, sizes.units(plan, model), 2)
      local values, gradients = sum.whole_values, sum.whole_gradients
      local more = utils.memory_stats().peak_bytes - rest
      local buffers = values.units * values.unit + gradients.units * gradients.unit
      assert(more < 1.2 * buffers,
        ("%.1f MB more than at rest; two units have %.1f"):format(more / 1e6, buffers / 1e6))
    ]])
  end)
end)
