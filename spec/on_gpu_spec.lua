-- spec/support/on_gpu, which runs specs and benchmarks on a machine with a GPU: what it refuses.
local host = require "spec.support.host"

local function refused(words, env, expected)
  env.ACCEL_RUN = host.path
  local status, out, err = host.run(words, { path = "spec/support/on_gpu", env = env })
  assert.are_not.equal(0, status, out)
  assert.are.equal(expected, (err:match "^[^\n]*"))
end

describe("on_gpu", function()
  if not io.open "spec/support/on_gpu" then return end

  it("runs no report of parts that there are not", function()
    refused({ "report" }, { PARTS = "bench test" },
      "on_gpu: PARTS has 'test'; the parts of a report are ranks, bench, tests, collectives")
    refused({ "report", "bench" }, {},
      "on_gpu: a report takes no arguments, got 'bench'; PARTS='bench tests' chooses parts")
  end)

  it("takes whole numbers of seconds alone", function()
    for _, text in ipairs { "ten", "-5", "1.5" } do
      refused({ "report" }, { SECONDS_IN_ALL = text },
        ("on_gpu: SECONDS_IN_ALL must be a number of seconds, got '%s'"):format(text))
    end
    refused({ "memcheck" }, { MEMCHECK_SECONDS = "5m" },
      "on_gpu: MEMCHECK_SECONDS must be a number of seconds, got '5m'")
  end)

  it("checks the settings of ranks on one GPU and of the benchmark", function()
    refused({ "ranks-on-one-gpu" }, { RANKS_SECONDS = "soon" },
      'one_gpu: RANKS_SECONDS must be a number of seconds, got "soon"')
    refused({ "ranks-on-one-gpu", "mismatch" }, {},
      'one_gpu: no arguments are taken, got "mismatch"; ONLY=PATTERN chooses parts')
    refused({ "bench-gpu" }, { ROUNDS = "many" }, 'accel-run: bench: ROUNDS must be a number, got "many"')
    refused({ "bench-gpu" }, { COMPILE = "yes" }, 'accel-run: bench: COMPILE must be no or all, got "yes"')
    refused({ "bench-gpu", "GPT" }, {},
      'accel-run: bench: no arguments are taken, got "GPT"; ONLY=PATTERN chooses rows')
  end)
end)
