-- Sharded training with ranks on GPUs: gathers and reductions of host/core/params/home.c over
-- kernels/cuda/runtime/nccl.cu; see support/gpu_ranks.lua and spec/sharded/training_spec.lua.
local gpu_ranks = require "spec.support.gpu_ranks"
local json = require "accelerate.utils.json"
local programs = require "spec.support.sharded_programs"

local worst = programs.worst

describe("sharded training on GPUs of several ranks", function()
  if gpu_ranks.why then
    it("is that of one", function() pending(gpu_ranks.why) end)
    return
  end

  local function train(n, call)
    return json.decode(assert(gpu_ranks.on(n, programs.TRAIN .. "give((train(" .. call .. ")))")))
  end

  it("gives two and four ranks the losses, norms and parameters of one", function()
    if gpu_ranks.most < 2 then return pending("needs 2 GPUs") end
    for _, model in ipairs { "gpt", "odd" } do
      local one = train(1, ("%q, 'DDP'"):format(model))
      for n = 2, math.min(gpu_ranks.most, 4), 2 do
        for _, strategy in ipairs { "ZeRO-1", "ZeRO-2", "ZeRO-3" } do
          local there = train(n, ("%q, %q"):format(model, strategy))
          assert.is_true(worst(one, there) <= 2e-5,
            ("%s under %s on %d GPUs: %g"):format(model, strategy, n, worst(one, there)))
        end
      end
    end
  end)

  it("trains in bfloat16 and float16 as replicas do", function()
    if gpu_ranks.most < 2 then return pending("needs 2 GPUs") end
    for _, precision in ipairs { "bf16", "fp16" } do
      local opts = ("{ precision = %q, accumulate = 2 }"):format(precision)
      local plain = train(2, "'gpt', 'DDP', " .. opts)
      local there = train(2, "'gpt', 'ZeRO-3', " .. opts)
      assert.is_true(worst(plain, there) <= 2e-2, ("%s: %g"):format(precision, worst(plain, there)))
    end
  end)

  it("gives the same bits twice", function()
    if gpu_ranks.most < 2 then return pending("needs 2 GPUs") end
    local call = "'gpt', 'ZeRO-3', { accumulate = 2 }"
    assert.are.equal(0, worst(train(2, call), train(2, call)))
  end)
end)
