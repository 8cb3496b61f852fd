-- Fifty steps under every strategy, beside whole models: several architectures, numbers of ranks
-- and settings at a time.  See training_spec.lua for each alone.
-- spec/support/check_equal_training.lua has all of them.
local programs = require "spec.support.sharded_programs"

local worst = programs.worst

-- The numbers that train(...) gives on n ranks; `gathering`: each rank gathers the values.
local function train(n, call, gathering) return programs.train(n, { call }, gathering)[1] end

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

  -- model, options beside the steps': each as one rank has it
  for name, case in pairs {
    ["with windows"] = { "gpt", "accumulate = 2" },
    ["with frozen parameters and windows"] = { "odd", "thaw = 1000, accumulate = 2" },
    ["with parameters that train from step 20 on"] = { "t5", "thaw = 20" },
    ["with two groups"] = { "gpt", "groups = 2" },
    ["with two optimizers"] = { "t5", "optimizers = 2" },
    ["whose units compute again in backward"] = { "gpt", "recompute = true" },
    ["with ignored modules, all ranks on one batch"] = { "gpt", "alike = true, ignored = '.*norm'" },
    ["with batch norm over the ranks"] = { "resnet", "sync = true, clip = false" },
  } do
    it(name .. " give one rank's numbers", function()
      local function call(plan, more)
        return ("%q, %q, { %s, %s%s }"):format(case[1], plan, STEPS, case[2], more or "")
      end
      local one = train(1, call "DDP")
      local three = programs.train(3, { call "ZeRO-2", call "ZeRO-3" }, true)
      local four = programs.train(4, { call("HYBRID_SHARD", ", replicate = 2"),
        call("HYBRID_SHARD_ZERO2", ", replicate = 2") })
      for _, there in ipairs { three[1], three[2], four[1], four[2] } do
        assert.is_true(worst(one, there) <= 1e-5, ("%g"):format(worst(one, there)))
      end
    end)
  end

  it("have the same bits in a second run, and in one that was killed and goes on", function()
    for n, case in pairs { [2] = { "ZeRO-2", "" }, [3] = { "ZeRO-3", "" },
      [4] = { "HYBRID_SHARD_ZERO2", ", replicate = 2" } } do
      local call = ("'gpt', %q, { %s, accumulate = 2%s"):format(case[1], STEPS, case[2])
      local whole = programs.train(n, { call .. " }", call .. " }" }, n == 3)
      assert.are.equal(0, worst(whole[1], whole[2]), case[1])
      local resumed = programs.resumed(n, call, n == 3)
      assert.is_true(#resumed > 60) -- two numbers of each of 30 steps, and the parameters
      assert.are.equal(0, worst(resumed, programs.tail(whole[1], #resumed)), case[1])
    end
  end)
end)
