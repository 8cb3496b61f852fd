-- Averages of sharded models: lua/accelerate/parallel/sharded/averages.lua.
local programs = require "spec.support.sharded_programs"
local ranks = require "spec.support.ranks"

describe("AveragedModel of a sharded model", function()
  local PROGRAM = programs.TRAIN .. [[
    local swa = optim.swa_utils
    local function run(plan, make)
      state.reset()
      core.manual_seed(4)
      local accelerator = accelerate.Accelerator {}
      accelerator._plan = plan_of(plan, {})
      local model, x, loss_of = models.odd()
      local optimizer = optim.SGD(model:parameters(), { lr = 0.05, momentum = 0.9 })
      model, optimizer = accelerator:prepare(model, optimizer)
      local average = swa.AveragedModel(model, make())
      local rows = BATCH / ranks
      local part, all = x:narrow(1, 1 + rank * rows, rows), {}
      for _ = 1, 4 do
        accelerator:backward(loss_of(model, part))
        optimizer:step()
        optimizer:zero_grad()
        average:update_parameters(model)
        all[#all + 1] = core.no_grad(function() return loss_of(average, part):item() end)
      end
      accelerate.utils.summon_full_params(average, function()
        for _, p in ipairs(average:parameters()) do
          for _, v in ipairs(p:detach():reshape(-1):totable()) do all[#all + 1] = v end
        end
      end)
      return all, average
    end
    local function mean() return {} end
    local function ema() return { multi_avg_fn = swa.get_ema_multi_avg_fn(0.9) } end
    local function own() return { avg_fn = swa.get_ema_avg_fn(0.8), use_buffers = true } end
    for _, make in ipairs { mean, ema, own } do
      local plain = run("DDP", make)
      for _, strategy in ipairs { "ZeRO-2", "ZeRO-3" } do
        local there, average = run(strategy, make)
        for i = 1, #plain do
          check(plain[i] == there[i], ("%s %d: %g beside %g"):format(strategy, i, plain[i], there[i]))
        end
        check(strategy == "ZeRO-2" or parallel.is_cut(average.module.first.weight))
      end
    end
    if rank == 0 then print "averaged" end
  ]]

  it("is cut as the model is, and has the bits of whole averages", function()
    for n = 2, 3 do
      for _, shared in ipairs { "1", "0" } do
        local out = ranks.ok(n, PROGRAM, { launch = { "--cpu" }, env = { ACCEL_SHARED_PARAMETERS = shared } })
        assert.matches("averaged", out)
      end
    end
  end)

  it("refuses another device, by name", function()
    local out = ranks.ok(2, programs.TRAIN .. [[
      local _, model = train("gpt", "ZeRO-3", { steps = 1 })
      local ok, err = pcall(optim.swa_utils.AveragedModel, model, { device = "cpu" })
      check(not ok and tostring(err):find("AveragedModel: device: the model is cut over ranks", 1, true), err)
      if rank == 0 then print "refused" end
    ]], { launch = { "--cpu" } })
    assert.matches("refused", out)
  end)
end)
