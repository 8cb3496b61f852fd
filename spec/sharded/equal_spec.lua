-- Fifty steps under every strategy, beside whole models: several architectures, numbers of ranks
-- and settings at a time.  See training_spec.lua for each alone.
local json = require "accelerate.utils.json"
local programs = require "spec.support.sharded_programs"
local ranks = require "spec.support.ranks"

local worst = programs.worst

-- The numbers that train(...) gives on n ranks; `gathering`: each rank gathers the values.
local function train(n, call, gathering)
  return json.decode(ranks.ok(n, programs.TRAIN .. "give((train(" .. call .. ")))",
    { launch = { "--cpu" }, env = { ACCEL_SHARED_PARAMETERS = gathering and "0" or "1" } }))
end

local STRATEGIES = { "ZeRO-1", "ZeRO-2", "ZeRO-3" }
-- clips as training_spec does; the rate is small, so that rounding does not grow over the steps
local STEPS = "steps = 50, options = { lr = 0.02, momentum = 0.9 }"

describe("fifty steps", function()
  for _, model in ipairs { "gpt", "bert", "t5" } do
    it(("of a %s give one rank's losses, norms and parameters"):format(model), function()
      local one = train(1, ("%q, 'DDP', { %s }"):format(model, STEPS))
      for n = 2, 4 do
        local strategy = STRATEGIES[n == 4 and 3 or n - 1]
        for _, name in ipairs(n == 2 and { "ZeRO-3", strategy } or { strategy }) do
          local there = train(n, ("%q, %q, { %s }"):format(model, name, STEPS), n == 2)
          assert.is_true(worst(one, there) <= 1e-5,
            ("%s under %s on %d ranks: %g"):format(model, name, n, worst(one, there)))
        end
      end
    end)
  end

  it("of a ResNet give the bits of replicas, whose statistics are each rank's", function()
    for n = 2, 3 do
      local options = STEPS .. ", clip = false"
      local plain = train(n, ("'resnet', 'DDP', { %s }"):format(options))
      for _, name in ipairs(STRATEGIES) do
        assert.are.equal(0, worst(plain, train(n, ("'resnet', %q, { %s }"):format(name, options), n == 3)),
          name)
      end
    end
  end)

  it("with windows, two copies and bfloat16 stay as near as its rounding", function()
    local options = STEPS .. ", accumulate = 2, precision = 'bf16'"
    local plain = train(4, ("'bert', 'DDP', { %s }"):format(options))
    local there = train(4, ("'bert', 'HYBRID_SHARD', { %s, replicate = 2, reduced = 'bfloat16' }")
      :format(options), true)
    for i, x in ipairs(plain) do
      assert.is_true(math.abs(x - there[i]) <= 0.05 * math.max(1, math.abs(x)),
        ("number %d: %g beside %g"):format(i, x, there[i]))
    end
  end)
end)
