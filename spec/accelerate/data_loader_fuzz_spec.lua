-- Whatever the length, the batch size, the ranks and the options: every item comes exactly once, or
-- as the rule says.
local core = require "accelerate.core"
local fuzz = require "spec.support.loader_fuzz"
local ranks = require "spec.support.ranks"

local SEED = tonumber(os.getenv("ACCEL_FUZZ_SEED")) or 20260721
local ROOT = debug.getinfo(1, "S").source:match("^@(.*)spec/accelerate/[^/]*$")

describe("sharing out anything", function()
  it("gives every item exactly once", function()
    local draw, items = fuzz.drawer(SEED), 0
    for _ = 1, 1000 do
      local case, by_rank, remainder = fuzz.random_case(draw), {}, nil
      case.workers = 0
      for rank = 0, case.ranks - 1 do
        core.manual_seed(3) -- ranks have the same generators
        by_rank[rank + 1], remainder = fuzz.run(case, rank)
      end
      fuzz.check(case, by_rank, remainder)
      items = items + case.n
    end
    assert.is_true(items > 15000)
  end)

  for n = 2, 4 do
    it(("on %d ranks, dispatched or not, gathers every item once, goes on in the middle, " ..
      "and takes calls in any order"):format(n), function()
      local out = ranks.ok(n, ([[
        package.path = arg[1] .. "?.lua;" .. package.path
        local fuzz = require "spec.support.loader_fuzz"
        fuzz.any_order(200, arg[2] + ranks)
        local count = fuzz.on_ranks(%d, arg[2] + ranks)
        if rank == 0 then print(count) end
      ]]):format(80), { arguments = { ROOT == "" and "./" or ROOT, tostring(SEED) } })
      assert.is_true(tonumber(out) > 100, out)
    end)
  end
end)
