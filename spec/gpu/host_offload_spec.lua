-- Values, gradients and optimizer states of models on GPUs that rest in host memory:
-- host/core/params/place.c, host/core/optim/staged.c, lua/accelerate/parallel/sharded/places.lua.
local gpu_ranks = require "spec.support.gpu_ranks"
local json = require "accelerate.utils.json"
local programs = require "spec.support.sharded_programs"

local worst = programs.worst

describe("offload to host memory", function()
  if gpu_ranks.why then
    it("trains as memory of the device does", function() pending(gpu_ranks.why) end)
    return
  end

  local function train(n, call)
    return json.decode(assert(gpu_ranks.on(n, programs.TRAIN .. "give((train(" .. call .. ")))")))
  end

  local STATES = 'offload = { states = "cpu" }'
  local ALL = 'offload = { states = "cpu", values = "cpu", gradients = "cpu" }'

  it("trains as memory of the device does, on one rank and two", function()
    for n = 1, math.min(gpu_ranks.most, 2) do
      for _, case in ipairs {
        { "gpt", "ZeRO-3", "accumulate = 2", ALL }, { "odd", "ZeRO-3", "value = 0.01", ALL },
        { "gpt", "ZeRO-1", "accumulate = 2", STATES },
        { "odd", "ZeRO-2", "clip = 0.5", 'offload = { states = "cpu", gradients = "cpu" }' },
        { "odd", "ZeRO-3", "optimizer = 'Adagrad', options = { lr = 0.01 }", STATES },
      } do
        local model, plan, opts, offload = unpack(case)
        local plain = train(n, ("%q, %q, { %s }"):format(model, plan, opts))
        local there = train(n, ("%q, %q, { %s, %s }"):format(model, plan, opts, offload))
        assert.is_true(worst(plain, there) <= 1e-5,
          ("%d ranks, %s, %s, %s: %g"):format(n, plan, opts, offload, worst(plain, there)))
      end
    end
  end)

  it("trains with Adafactor where its parts are in host memory, and refuses whole parameters", function()
    local opts = "steps = 3, optimizer = 'Adafactor', options = { lr = 0.003, eps = { 3e-2, 1e-3 } }"
    for n = 1, math.min(gpu_ranks.most, 2) do
      local plain = train(n, ("'gpt', 'ZeRO-3', { %s }"):format(opts))
      local there = train(n, ("'gpt', 'ZeRO-3', { %s, %s }"):format(opts, ALL))
      assert.is_true(worst(plain, there) <= 1e-5, ("%d ranks: %g"):format(n, worst(plain, there)))
    end
    local ok, why = pcall(train, 1, ("'gpt', 'ZeRO-1', { %s, %s }"):format(opts, STATES))
    assert.is_false(ok)
    assert.matches(
      "its steps need whole matrices, and states of parameter %d+, which is on %a+:0, rest in host",
      tostring(why))
  end)

  it("trains in half types, with a loss scale in float16", function()
    for _, precision in ipairs { "bf16", "fp16" } do
      local opts = ("precision = %q, accumulate = 2"):format(precision)
      for n = 1, math.min(gpu_ranks.most, 2) do
        local plain = train(n, ("'gpt', 'ZeRO-3', { %s }"):format(opts))
        local there = train(n, ("'gpt', 'ZeRO-3', { %s, %s }"):format(opts, ALL))
        assert.is_true(worst(plain, there) <= 2e-2,
          ("%s, %d ranks: %g"):format(precision, n, worst(plain, there)))
      end
    end
  end)
end)
