-- Values that are gathered in a half type: host/core/params/home_values.c,
-- host/core/ops/autocast.c.
local programs = require "spec.support.sharded_programs"
local ranks = require "spec.support.ranks"

local GATHERING = programs.GATHERING

-- run(name, plan): losses of training and evaluation, and the parameters after some
-- steps.  With "DDP" the values are rounded by hand, whole, for each pass.
local BOTH = programs.TRAIN .. [[
local function run(name, plan)
  state.reset()
  core.manual_seed(4)
  local accelerator = accelerate.Accelerator { mixed_precision = "bf16" }
  accelerator._plan = plan_of(plan, {})
  local model, x, loss_of = models[name]()
  local optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
  model, optimizer = accelerator:prepare(model, optimizer)
  local rows = BATCH / ranks
  local part, all, kept = x:narrow(1, 1 + rank * rows, rows):to(accelerator.device), {}, {}
  local function rounded(on)
    if plan ~= "DDP" then return end
    core.no_grad(function()
      for i, p in ipairs(model:parameters()) do
        if on then kept[i] = p:detach():clone() end
        p:copy_(on and kept[i]:to("bfloat16"):float() or kept[i])
      end
    end)
  end
  for step = 1, 6 do
    rounded(true)
    local loss = loss_of(model, part)
    accelerator:backward(loss)
    all[#all + 1] = loss:item()
    core.no_grad(function() all[#all + 1] = loss_of(model, part):item() end)
    rounded(false)
    optimizer:step()
    optimizer:zero_grad()
  end
  parallel.summon(model, false, nil, function()
    for _, p in ipairs(model:parameters()) do
      for _, v in ipairs(p:detach():reshape(-1):totable()) do all[#all + 1] = v end
    end
  end)
  return all
end
]]

describe("values gathered in a half type", function()
  it("train as whole values that are rounded before each pass, with the same bits", function()
    for n = 2, 3 do
      local out = ranks.ok(n, BOTH .. [[
        for _, name in ipairs { "gpt", "odd", "net" } do
          local a, b = run(name, "DDP"), run(name, "ZeRO-3")
          for i = 1, #a do
            check(a[i] == b[i], ("%s: number %d: %g beside %g"):format(name, i, a[i], b[i]))
          end
        end
        if rank == 0 then print "equal" end
      ]], GATHERING)
      assert.matches("equal", out)
    end
  end)

  it("are sent in that type", function()
    local status, _, err = ranks.run(2, programs.TRAIN .. [[
      local _, model, _, accelerator = train("gpt", "ZeRO-3", { steps = 1, precision = "bf16" })
      if rank == 0 then core.dist.barrier() else model(core.randint(0, 19, { 2, 6 })) end
    ]], GATHERING)
    assert.are_not.equal(0, status)
    assert.matches("all_gather%(bfloat16, %d+ elements%)", err)
  end)

  it("have gradients that are sent in the type that they are reduced in", function()
    for strategy, cut in pairs { ["ZeRO-2"] = "gradients", ["ZeRO-3"] = "values and gradients" } do
      local status, _, err = ranks.run(2, programs.TRAIN .. [[
        local _, model, _, accelerator = train("gpt", "]] .. strategy .. [[", { steps = 2, accumulate = 2,
          reduced = "bfloat16" })
        local loss = model(core.randint(0, 19, { 2, 6 })):sum()
        if rank == 0 then core.dist.barrier() else accelerator:backward(loss) end
      ]], { launch = { "--cpu" } })
      assert.are_not.equal(0, status, cut)
      assert.matches("reduce_scatter%(bfloat16, %d+ elements, mean%)", err)
    end
  end)

  it("are exact inside summon_full_params, where forward passes see edits", function()
    local out = ranks.ok(2, programs.TRAIN .. [[
      local third = core.tensor(1 / 3):item()
      local _, model = train("gpt", "ZeRO-3", { steps = 1, precision = "bf16" })
      local weight, x = model.h[1].up.weight, core.randint(0, 19, { 2, 6 })
      local inside
      local function output() return core.no_grad(function() return model(x) end) end
      local function far(a, b) return (a - b):abs():max():item() end
      local before = output()
      accelerate.utils.summon_full_params(model, function()
        core.no_grad(function() weight:fill_(1 / 3) end)
        check(weight[1][1]:item() == third)
        inside = output()
      end)
      local less, more = far(output(), inside), far(before, inside)
      check(less < 0.3 and more > 3, ("%g, %g"):format(less, more))
      accelerate.utils.summon_full_params(model, { writeback = false }, function()
        check(weight[1][1]:item() == third)
      end)
      if rank == 0 then print "exact" end
    ]], GATHERING)
    assert.matches("exact", out)
  end)

  it("are named where a model does not run", function()
    local out = ranks.ok(2, programs.TRAIN .. [[
      local _, model = train("gpt", "ZeRO-3", { steps = 1, precision = "bf16" })
      local ok, err = pcall(function()
        return require("accelerate.tensor").autocast({ dtype = "bfloat16" }, function()
          return model.h[2].up(core.ones(1, 16))
        end)
      end)
      local what = "h.1.up.weight of unit h.1 (Block) is cut over 2 ranks"
      assert(not ok and tostring(err):find(what, 1, true), err)
      if rank == 0 then print "named" end
    ]], GATHERING)
    assert.matches("named", out)
  end)

  it("are taken in float32 by code outside of autocast, inside the model", function()
    local out = ranks.ok(2, programs.TRAIN .. [[
      local Wide = nn.class "Wide"
      function Wide:init() self.fc, self.h = nn.Linear(8, 8), nn.ModuleList { nn.Linear(8, 8) } end
      function Wide:forward(x)
        x = self.h[1](self.fc(x))
        return require("accelerate.tensor").autocast({ enabled = false }, function()
          return (self.fc.weight * 1):sum() + x:float():sum()
        end)
      end
      function models.wide()
        return Wide(), core.randn(BATCH, 8), function(m, x) return m(x):square() end
      end
      local one = train("wide", "ZeRO-3", { precision = "bf16", steps = 3, options = { lr = 1e-4 } })
      check(one[#one] == one[#one])
      if rank == 0 then print "wide" end
    ]], GATHERING)
    assert.matches("wide", out)
  end)
end)
