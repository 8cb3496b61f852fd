-- Accelerator { check_replicas = n }: ranks whose parameters have drifted apart are named.
local accelerate = require "accelerate"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"

local SCRIPT = [[
local nn, optim = require "accelerate.nn", require "accelerate.optim"
local accelerator = accelerate.Accelerator { cpu = true, check_replicas = 2 }
local model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
model, optimizer = accelerator:prepare(model, optimizer)
local function step()
  accelerator:backward(model(core.ones(2, 3)):sum())
  optimizer:step()
  optimizer:zero_grad()
end
-- a bit that flips in a rank's memory
local function flip(r)
  if rank == r then
    local p = require("ffi").cast("uint32_t *", model[2].weight:data_ptr())
    p[3] = require("bit").bxor(p[3], 2 ^ 16)
  end
end
]]

describe("check_replicas", function()
  it("names the odd rank out, the step, the parameter and the distance, on all ranks", function()
    ranks.ok(3, SCRIPT .. [[
      for _ = 1, 4 do step() end
      flip(1)
      step() -- the fifth: not compared
      local ok, why = pcall(step)
      check(not ok and why:find("check_replicas: after 6 optimizer steps the parameters of rank 1 differ " ..
        "from those of the other 2; first '1.weight': 1 of 5 elements, by up to ", 1, true), tostring(why))
      local distance = tonumber(why:match("by up to (%S+)"))
      check(distance > 0 and distance < 0.1, tostring(why))
    ]])
  end)

  it("has no majority to go by on two ranks", function()
    ranks.ok(2, SCRIPT .. [[
      step()
      flip(1)
      local ok, why = pcall(step)
      check(not ok and why:find("after 2 optimizer steps the parameters differ between rank 0 and rank 1; " ..
        "first '1.weight': 1 of 5 elements", 1, true), tostring(why))
    ]])
  end)

  it("ends the run with the message", function()
    local status, _, err = ranks.run(3, SCRIPT .. "step() flip(2) step()")
    assert.equal(1, status)
    assert.truthy(err:find("parameters of rank 2 differ from those of the other 2", 1, true), err)
  end)

  it("leaves alone what is alike, what LocalSGD trains, and runs of one rank", function()
    ranks.ok(2, SCRIPT .. [[
      for _ = 1, 4 do step() end
      require("accelerate.local_sgd").LocalSGD(accelerator, model, 100, function()
        for i = 1, 4 do
          accelerator:backward(model(core.ones(2, 3) * (rank + i)):sum())
          optimizer:step()
          optimizer:zero_grad()
        end
      end)
      for _ = 1, 2 do step() end
    ]])
    ranks.ok(1, SCRIPT .. "for _ = 1, 4 do step() end")
  end)

  it("takes a number from 1 on", function()
    state.reset()
    for _, wrong in ipairs { 0, 1.5, "2" } do
      assert.error_matches(function() accelerate.Accelerator { cpu = true, check_replicas = wrong } end,
        "check_replicas")
    end
    state.reset()
  end)
end)
