-- Captured steps of sharded models on CPU ranks, where a captured function runs at every call; on
-- devices see spec/gpu/sharded_capture_spec.lua.
local programs = require "spec.support.sharded_programs"

-- Trains some steps as they are and captured, on n ranks, and compares the bits. how: the
-- arguments of train up to the options' closing brace.
local function compare(n, how, gathers)
  local there = programs.train(n, { how .. " }", how .. ", captured = true }",
    how .. ", captured = true, backend = 'cudagraphs' }" }, gathers)
  for k = 2, 3 do
    assert.are.equal(0, programs.worst(there[1], there[k]), ("%s on %d ranks, way %d"):format(how, n, k))
  end
end

describe("captured steps of a sharded model on CPU ranks", function()
  for n, how in pairs { [2] = "'gpt', 'FULL_SHARD', { steps = 10",
    [3] = "'gpt', 'SHARD_GRAD_OP', { steps = 5, accumulate = 2",
    [4] = "'gpt', 'HYBRID_SHARD', { steps = 5, replicate = 2" } do
    for _, gathers in ipairs { false, true } do
      it(("have the bits of others on %d ranks that %s"):format(n, gathers and "gather" or "share memory"),
        function() compare(n, how, gathers) end)
    end
  end

  it("go on from a checkpoint, also of a run that was killed between them", function()
    local call = "'gpt', 'FULL_SHARD', { steps = 50, captured = true"
    local whole = programs.train(2, { call .. " }" }, true)[1]
    local there = programs.resumed(2, call, true)
    assert.are.equal(0, programs.worst(programs.tail(whole, #there), there))
  end)
end)
