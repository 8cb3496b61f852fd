-- spec/support/one_gpu.lua, what several ranks do on one GPU that they share, on the emulated
-- device.
local disk = require "spec.support.disk"
local gpu_ranks = require "spec.support.gpu_ranks"
local host = require "spec.support.host"

local function run(env)
  env.ACCEL_RUN = host.path
  return host.run({ "ranks-on-one-gpu" }, { path = "spec/support/on_gpu", env = env, seconds = 420 })
end

describe("test-ranks-on-one-gpu", function()
  if gpu_ranks.why or not gpu_ranks.emulated then
    it("shows what one card can", function()
      pending(gpu_ranks.why or "a report runs it on the card (spec/support/on_gpu)")
    end)
    return
  end

  it("shows what one card can, each part in a line", function()
    local status, out, err = run { RANKS_SECONDS = "400" } -- the emulated device takes longer than a card
    assert.are.equal(0, status, out .. err)
    local parts = select(2, out:gsub("\nok  ", "")) + 1
    assert.are.equal(13, parts, out) -- a part that is added is counted here
    assert.matches("\n13 of 13 parts ran, 0 failed, %d+ s\n$", out)
  end)

  it("prints what a part that fails printed, and ends with status 1", function()
    local status, out = run { ONLY = "every collective of 2", ACCEL_FAKE_NCCL = "corrupt:1:2" }
    assert.are.equal(1, status)
    assert.matches("^FAILED +%d+%.%d s  every collective of 2 ranks[^\n]*\n    status 1\n.*element %d+ is",
      out)
    assert.matches("1 of 13 parts ran, 1 failed", out)
  end)

  it("is a part of a report, which keeps what its parts print", function()
    host.in_folder(function(folder)
      local env = { ACCEL_RUN = host.path, OUT = folder, PARTS = "ranks", ONLY = "killed",
        SECONDS_IN_ALL = "60" }
      local status, out, err = host.run({ "report" },
        { path = "spec/support/on_gpu", env = env, seconds = 90 })
      assert.are.equal(0, status, out .. err)
      local summary = disk.read(folder .. "/summary.md")
      assert.matches("\n## ranks\n\nok  +%d+%.%d s  a rank that is killed ends the run\n1 of 13 parts ran",
        summary)
      env.SECONDS_IN_ALL = "0"
      status, out = host.run({ "report" }, { path = "spec/support/on_gpu", env = env, seconds = 60 })
      assert.are.equal(1, status)
      assert.matches("== ranks: no time is left\n== failed: ranks; ", out)
    end)
  end)

  it("names its parts where ONLY matches none", function()
    local status, out, err = run { ONLY = "misspelt" }
    assert.are.equal(1, status, out)
    assert.matches('^one_gpu: ONLY="misspelt" matches no part; they are:\nevery collective of 2 ranks', err)
  end)

  it("stops a part that takes more than is left", function()
    local status, out = run { RANKS_SECONDS = "-7", ONLY = "every collective of 2" } -- one second is left
    assert.are.equal(0, status, out)
    assert.matches("^left out, no time  every collective of 2 ranks", out)
  end)

  it("begins no part when its time is over", function()
    local status, out = run { RANKS_SECONDS = "0" }
    assert.are.equal(0, status)
    assert.matches("^left out, no time  every collective of 2 ranks", out)
    assert.matches("\n0 of 13 parts ran, 0 failed", out)
  end)
end)
