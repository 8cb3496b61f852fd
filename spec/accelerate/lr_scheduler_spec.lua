local core = require "accelerate.core"
local optim = require "accelerate.optim"
local class = require "accelerate.utils.class"
local lr_scheduler = optim.lr_scheduler
local reference = dofile("spec/support/optim_reference.lua").schedules

local function message(fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  return err
end

local function two_groups()
  return optim.SGD {
    { params = { core.zeros(2, { requires_grad = true }) }, lr = 0.4 }, { params = { core.zeros(3, { requires_grad = true }) }, lr = 0.05 },
  }
end

local MAKERS = {
  step = function(o) return lr_scheduler.StepLR(o, { step_size = 3, gamma = 0.5 }) end,
  lambda_one = function(o) return lr_scheduler.LambdaLR(o, function(t) return 1 / (1 + t) end) end,
  lambda_each = function(o)
    return lr_scheduler.LambdaLR(o, { function(t) return 0.9 ^ t end, function(t) return math.min(1, (t + 1) / 4) end })
  end,
  cosine = function(o) return lr_scheduler.CosineAnnealingLR(o, { T_max = 4 }) end,
  cosine_min = function(o) return lr_scheduler.CosineAnnealingLR(o, { T_max = 7, eta_min = 0.01 }) end,
}
MAKERS.step_changed, MAKERS.cosine_changed = MAKERS.step, MAKERS.cosine_min

describe("learning rates equal PyTorch's:", function()
  for _, name in ipairs { "step", "step_changed", "lambda_one", "lambda_each", "cosine", "cosine_min", "cosine_changed" } do
    it(name, function()
      local o = two_groups()
      local scheduler = MAKERS[name](o)
      for i, expected in ipairs(reference[name]) do
        if i > 1 then
          if name:find("changed") and i == 6 then o.param_groups[1].lr = 0.2 end
          o:step()
          scheduler:step()
        end
        local rates = scheduler:get_last_lr()
        for g = 1, 2 do
          assert.near(expected[g], rates[g], 1e-14)
          assert.equal(rates[g], o.param_groups[g].lr)
        end
        assert.equal(i - 1, scheduler.last_epoch)
      end
    end)
  end
end)

describe("schedulers", function()
  it("put initial_lr into the groups", function()
    local o = two_groups()
    MAKERS.lambda_each(o)
    assert.equal(0.4, o.param_groups[1].initial_lr)
    assert.equal(0.05, o.param_groups[2].initial_lr)
    assert.equal(0.05 / 4, o.param_groups[2].lr)
  end)

  it("go on where a state_dict was taken", function()
    for _, name in ipairs { "step", "lambda_one", "cosine_min" } do
      local o = two_groups()
      local scheduler = MAKERS[name](o)
      for _ = 1, 5 do scheduler:step() end
      local p = two_groups()
      local other = MAKERS[name](p)
      other:load_state_dict(scheduler:state_dict())
      p:load_state_dict(o:state_dict())
      for _ = 1, 9 do
        scheduler:step()
        other:step()
        assert.same(scheduler:get_last_lr(), other:get_last_lr())
      end
      assert.same(scheduler:state_dict(), other:state_dict())
    end
  end)

  it("save everything but the optimizer and functions", function()
    local dict = MAKERS.cosine_min(two_groups()):state_dict()
    assert.same({ T_max = 7, eta_min = 0.01, base_lrs = { 0.4, 0.05 }, last_epoch = 0, _step_count = 1, _last_lr = { 0.4, 0.05 } }, dict)
    dict.base_lrs[1] = 9
    assert.matches("'last_epoch' is missing", message(function()
      dict.last_epoch = nil
      MAKERS.cosine_min(two_groups()):load_state_dict(dict)
    end))
  end)

  it("resume from last_epoch when the groups know their initial_lr", function()
    local o = two_groups()
    assert.matches("last_epoch = 3 resumes a schedule, but parameter group 1 has no initial_lr",
      message(lr_scheduler.StepLR, o, { step_size = 2, last_epoch = 3 }))
    for _, group in ipairs(o.param_groups) do group.initial_lr = 1 end
    local scheduler = lr_scheduler.LambdaLR(o, function(t) return t end, { last_epoch = 3 })
    assert.same({ 4, 4 }, scheduler:get_last_lr())
  end)

  it("can be written by users", function()
    local Halving = class("Halving", lr_scheduler.LRScheduler)
    function Halving:get_lr()
      local rates = {}
      for i, base in ipairs(self.base_lrs) do rates[i] = base / 2 ^ self.last_epoch end
      return rates
    end
    local o = two_groups()
    local scheduler = Halving(o)
    scheduler:step()
    assert.same({ 0.2, 0.025 }, scheduler:get_last_lr())
    local Bad = class("Bad", lr_scheduler.LRScheduler)
    assert.matches("Bad has no get_lr method", message(Bad, o))
    function Bad.get_lr() return { 1 } end
    assert.matches("Bad: get_lr must return 2 learning rate", message(Bad, o))
  end)

  it("check what they are given", function()
    local o = two_groups()
    assert.matches("CosineAnnealingLR: option 'T_max' is missing", message(lr_scheduler.CosineAnnealingLR, o))
    assert.matches("CosineAnnealingLR: unknown option 't_max'; did you mean 'T_max'%?", message(lr_scheduler.CosineAnnealingLR, o, { t_max = 1 }))
    assert.matches("StepLR: option 'step_size' must be at least 1, got 0", message(lr_scheduler.StepLR, o, { step_size = 0 }))
    assert.matches("StepLR: expected an optimizer, got 3", message(lr_scheduler.StepLR, 3, { step_size = 1 }))
    assert.matches("LambdaLR: 1 functions for 2 parameter groups", message(lr_scheduler.LambdaLR, o, { math.sin }))
    assert.matches("LambdaLR: lr_lambda must be a function, got 3", message(lr_scheduler.LambdaLR, o, 3))
    assert.matches("function 1 returned nil for step 0", message(lr_scheduler.LambdaLR, o, function() end))
    local scheduler = MAKERS.step(o)
    o:add_param_group { params = { core.zeros(1, { requires_grad = true }) } }
    assert.matches("the optimizer has 3 parameter groups now and had 2", message(scheduler.step, scheduler))
  end)
end)
