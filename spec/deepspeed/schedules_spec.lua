-- DeepSpeed's schedules beside those of the package
-- (generators/gen_deepspeed_schedules_reference.py).
local accelerate = require "accelerate"
local optim, tensor = accelerate.optim, accelerate.tensor

local function optimizer()
  local p, q = tensor.zeros({ 2 }, { requires_grad = true }), tensor.zeros({ 2 }, { requires_grad = true })
  return optim.AdamW({ { params = { p }, lr = 0.05 }, { params = { q }, lr = 0.1 } })
end

describe("DeepSpeed's schedules", function()
  for i, case in ipairs(require "spec.reference.deepspeed_schedules_reference") do
    it(("have the package's learning rates and momenta: %s, case %d"):format(case[1], i), function()
      local adam = optimizer()
      local schedule = optim.lr_scheduler[case[1]](adam, case[2])
      for step = 3, #case do
        local expected, groups = case[step], adam.param_groups
        assert.near(expected[1], groups[1].lr, 1e-12, ("step %d"):format(step - 3))
        assert.near(expected[2], groups[2].lr, 1e-12, ("step %d"):format(step - 3))
        assert.near(expected[3], groups[1].betas[1], 1e-12, ("step %d"):format(step - 3))
        schedule:step()
      end
    end)
  end

  it("go on from a state_dict, and from one of DeepSpeed's", function()
    local options = { total_num_steps = 12, warmup_max_lr = 0.02, warmup_num_steps = 4 }
    local whole, adam = optim.lr_scheduler.WarmupDecayLR(optimizer(), options), optimizer()
    for _ = 1, 6 do whole:step() end
    local resumed = optim.lr_scheduler.WarmupDecayLR(adam, options)
    resumed:load_state_dict(whole:state_dict())
    local foreign = optim.lr_scheduler.WarmupDecayLR(optimizer(), options)
    foreign:load_state_dict { last_batch_iteration = 5 }
    for _ = 1, 3 do
      whole:step()
      resumed:step()
      foreign:step()
      assert.are.same(whole:get_last_lr(), resumed:get_last_lr())
      assert.are.same(whole:get_last_lr(), foreign:get_last_lr())
    end
  end)

  it("take arguments by position, as DeepSpeed's constructors do", function()
    local adam = optimizer()
    local schedule = optim.lr_scheduler.WarmupLR(adam, 0.001, 0.01, 4, "linear")
    schedule:step()
    schedule:step()
    assert.near(0.001 + 0.009 / 4, adam.param_groups[1].lr, 1e-12)
  end)

  it("refuse what DeepSpeed refuses, by name", function()
    for name, case in pairs {
      WarmupLR = { { warmup_num_steps = 0 },
        "WarmupLR: option 'warmup_num_steps' must be at least 1, got 0" },
      WarmupDecayLR = { {}, "WarmupDecayLR: option 'total_num_steps' is missing" },
      OneCycle = { { cycle_min_lr = 1, cycle_max_lr = 2, cycle_first_step_size = 0 },
        "OneCycle: option 'cycle_first_step_size' must be at least 1, got 0" },
      LRRangeTest = { { lr_range_test_min_lr = { 1 } }, "LRRangeTest: lr_range_test_min_lr: 1 values for 2" },
      WarmupCosineLR = { { total_num_steps = 4, warmup_type = "cubic" },
        "WarmupCosineLR: option 'warmup_type' must be one of log, linear, got 'cubic'" },
    } do
      assert.error_matches(function() optim.lr_scheduler[name](optimizer(), case[1]) end, case[2], 1, true)
    end
  end)
end)
