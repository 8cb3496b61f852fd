-- A sample of `make test-faults`: faults injected into short runs on purpose.  Each is noticed in
-- time, named, leaves nothing behind, and the next run goes on with the same bits.
local faults = require "spec.faults.run"

describe("a fault", function()
  it("is noticed and named, and the next run has the same bits", function()
    local seed, lines = os.time(), {}
    math.randomseed(seed)
    local bad, count = faults.run(true, 2, nil, function(row)
      if not row:good() then lines[#lines + 1] = row:text(1) end
    end)
    assert(bad == 0, ("ACCEL_SEED=%d\n%s"):format(seed, table.concat(lines, "\n")))
    assert.is_true(count > 40)
  end)
end)
