--- Random models under random sharding plans train as plain loops do
--- (spec/support/fuzz_sharded.lua). FUZZ_SEED and FUZZ_PROGRAMS make longer runs of it, from other
--- seeds.
local host = require "spec.support.host"

local FIRST, PROGRAMS = tonumber(os.getenv "FUZZ_SEED" or 1), tonumber(os.getenv "FUZZ_PROGRAMS" or 30)

-- Programs that did not, by ranks and seed.
local FOUND = { { 4, 49 }, { 2, 352 }, { 2, 53 } }

local function train(ranks, first, last, shared)
  local status, out, err = host.run({ "--cpu", "--num_processes", ranks, "spec/support/fuzz_sharded.lua",
    first, last }, { env = { ACCEL_SHARED_PARAMETERS = shared }, seconds = 60 + PROGRAMS })
  assert.are.equal(0, status, out .. err)
  assert.truthy(out:find("as plain loops do", 1, true), out)
end

describe("random sharded programs", function()
  for n = 2, 4 do
    for env, how in pairs { [""] = "where memory is shared", ["0"] = "where values are gathered" } do
      it(("train as plain loops do on %d ranks %s"):format(n, how), function()
        train(n, FIRST, FIRST + PROGRAMS - 1, env)
      end)
    end
  end

  it("train so in the cases that once did not", function()
    for _, program in ipairs(FOUND) do train(program[1], program[2], program[2], "") end
  end)
end)
