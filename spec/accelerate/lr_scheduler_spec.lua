local accelerate = require "accelerate"
local core = require "accelerate.core"
local optim = require "accelerate.optim"
local class = require "accelerate.utils.class"
local disk = require "spec.support.disk"
local ordered = require "accelerate.utils.ordered"
local json = require "accelerate.utils.json"
local message = require("spec.support.messages").message
local saved = require "spec.reference.saving_reference"
local utils = require "accelerate.utils"
local lr_scheduler = optim.lr_scheduler
local reference = dofile("spec/reference/optim_reference.lua").schedules

local function two_groups(Class, opts)
  opts = opts or {}
  opts.lr = 1
  return (Class or optim.SGD)({
    { params = { core.zeros(2, { requires_grad = true }) }, lr = 0.4 },
    { params = { core.zeros(3, { requires_grad = true }) }, lr = 0.05 },
  }, opts)
end
local function with_momentum() return two_groups(optim.SGD, { momentum = 0.9 }) end
local function with_betas() return two_groups(optim.Adam) end

local S = lr_scheduler

-- name -> function(optimizer, last_epoch) of the schedules of gen_optim_reference.py, which also
-- need:
local OPTIMIZERS = { one_cycle = with_momentum, one_cycle_linear = with_betas, cyclic = with_momentum,
  cyclic_half = with_betas }
local MAKERS = {
  step = function(o) return S.StepLR(o, { step_size = 3, gamma = 0.5 }) end,
  step_resumed = function(o, at) return S.StepLR(o, { step_size = 3, gamma = 0.5, last_epoch = at }) end,
  multistep = function(o) return S.MultiStepLR(o, { milestones = { 6, 2, 6, 3 }, gamma = 0.5 }) end,
  multistep_resumed = function(o, at)
    return S.MultiStepLR(o, { milestones = { 2, 6 }, gamma = 0.5, last_epoch = at })
  end,
  exponential = function(o) return S.ExponentialLR(o, { gamma = 0.9 }) end,
  exponential_resumed = function(o, at) return S.ExponentialLR(o, { gamma = 0.9, last_epoch = at }) end,
  constant = function(o) return S.ConstantLR(o, { factor = 0.25, total_iters = 4 }) end,
  linear = function(o) return S.LinearLR(o, { start_factor = 0.2, end_factor = 0.8, total_iters = 4 }) end,
  linear_default = function(o) return S.LinearLR(o) end,
  linear_resumed = function(o, at) return S.LinearLR(o, { total_iters = 8, last_epoch = at }) end,
  polynomial = function(o) return S.PolynomialLR(o, { total_iters = 5, power = 2 }) end,
  polynomial_resumed = function(o, at)
    return S.PolynomialLR(o, { total_iters = 8, power = 0.5, last_epoch = at })
  end,
  lambda_one = function(o) return S.LambdaLR(o, function(t) return 1 / (1 + t) end) end,
  lambda_each = function(o)
    return S.LambdaLR(o, { function(t) return 0.9 ^ t end, function(t) return math.min(1, (t + 1) / 4) end })
  end,
  multiplicative = function(o)
    return S.MultiplicativeLR(o, { function(t) return 1 - t / 10 end, function() return 1.5 end })
  end,
  cosine = function(o) return S.CosineAnnealingLR(o, { T_max = 4 }) end,
  cosine_min = function(o) return S.CosineAnnealingLR(o, { T_max = 7, eta_min = 0.01 }) end,
  cosine_resumed = function(o, at) return S.CosineAnnealingLR(o, { T_max = 7, last_epoch = at }) end,
  restarts = function(o) return S.CosineAnnealingWarmRestarts(o, { T_0 = 3 }) end,
  restarts_longer = function(o)
    return S.CosineAnnealingWarmRestarts(o, { T_0 = 2, T_mult = 2, eta_min = 0.01 })
  end,
  one_cycle = function(o) return S.OneCycleLR(o, { max_lr = 0.5, total_steps = 12 }) end,
  one_cycle_linear = function(o)
    return S.OneCycleLR(o, {
      max_lr = { 0.5, 0.1 }, epochs = 4, steps_per_epoch = 3, anneal_strategy = "linear", pct_start = 0.5,
      div_factor = 10,
    })
  end,
  one_cycle_three = function(o)
    return S.OneCycleLR(o, { max_lr = 0.5, total_steps = 14, three_phase = true, pct_start = 0.4,
      final_div_factor = 100, cycle_momentum = false })
  end,
  cyclic = function(o) return S.CyclicLR(o, { base_lr = 0.1, max_lr = 0.5, step_size_up = 3 }) end,
  cyclic_half = function(o)
    return S.CyclicLR(o, { base_lr = { 0.1, 0.2 }, max_lr = 0.5, step_size_up = 2, step_size_down = 3,
      mode = "triangular2" })
  end,
  cyclic_exp = function(o)
    return S.CyclicLR(o, { base_lr = 0.1, max_lr = 0.5, step_size_up = 2, mode = "exp_range", gamma = 0.9,
      cycle_momentum = false })
  end,
  cyclic_own = function(o)
    return S.CyclicLR(o, {
      base_lr = 0.1, max_lr = 0.5, step_size_up = 2, scale_fn = function(x)
        return 1 / (1 + x)
      end, scale_mode = "iterations", cycle_momentum = false,
    })
  end,
  sequential = function(o)
    return S.SequentialLR(o, {
      schedulers = {
        S.ConstantLR(o, { factor = 0.1, total_iters = 2 }),
        S.LinearLR(o, { start_factor = 0.2, total_iters = 3 }), S.ExponentialLR(o, { gamma = 0.9 }),
      },
      milestones = { 2, 6 },
    })
  end,
  sequential_restarts = function(o)
    local parts = { S.LinearLR(o, { start_factor = 0.1, total_iters = 4 }),
      S.CosineAnnealingWarmRestarts(o, { T_0 = 3 }) }
    return S.SequentialLR(o, { schedulers = parts, milestones = { 4 } })
  end,
  chained = function(o)
    return S.ChainedScheduler { S.ConstantLR(o, { factor = 0.1, total_iters = 3 }),
      S.ExponentialLR(o, { gamma = 0.9 }) }
  end,
  plateau = function(o) return S.ReduceLROnPlateau(o, { factor = 0.5, patience = 2 }) end,
  plateau_abs = function(o)
    return S.ReduceLROnPlateau(o, { factor = 0.5, patience = 1, threshold_mode = "abs", threshold = 0.6,
      cooldown = 2, min_lr = { 0.02, 0.01 } })
  end,
  plateau_max = function(o)
    return S.ReduceLROnPlateau(o, { mode = "max", factor = 0.3, patience = 4, eps = 0.01 })
  end,
  get_constant = function(o) return S.get_constant_schedule(o) end,
  get_constant_with_warmup = function(o) return S.get_constant_schedule_with_warmup(o, 4) end,
  get_linear = function(o) return S.get_linear_schedule_with_warmup(o, 3, 8) end,
  get_linear_resumed = function(o, at)
    return S.get_linear_schedule_with_warmup(o,
      { num_warmup_steps = 3, num_training_steps = 8, last_epoch = at })
  end,
  get_cosine = function(o)
    return S.get_scheduler("cosine", o, { num_warmup_steps = 3, num_training_steps = 9 })
  end,
  get_cosine_waves = function(o) return S.get_cosine_schedule_with_warmup(o, 2, 9, { num_cycles = 1.5 }) end,
  get_restarts = function(o)
    return S.get_scheduler("cosine_with_restarts", o, 2, 9,
      { scheduler_specific_kwargs = { num_cycles = 2 } })
  end,
  get_polynomial = function(o)
    return S.get_polynomial_decay_schedule_with_warmup(o, 2, 8, { lr_end = 0.1, power = 2 })
  end,
  get_inverse_sqrt = function(o)
    return S.get_scheduler("inverse_sqrt", o, { num_warmup_steps = 3, num_training_steps = 100 })
  end,
  get_inverse_sqrt_slow = function(o) return S.get_inverse_sqrt_schedule(o, 0, { timescale = 5 }) end,
  get_cosine_min = function(o)
    return S.get_cosine_with_min_lr_schedule_with_warmup(o, 2, 8, { min_lr = 0.2 })
  end,
  get_wsd = function(o)
    return S.get_wsd_schedule(o, { num_warmup_steps = 2, num_decay_steps = 3, num_stable_steps = 3,
      min_lr_ratio = 0.1 })
  end,
  get_wsd_other = function(o)
    local kwargs = { num_decay_steps = 3, warmup_type = "cosine", decay_type = "1-sqrt" }
    return S.get_scheduler("warmup_stable_decay", o,
      { num_warmup_steps = 3, num_training_steps = 9, scheduler_specific_kwargs = kwargs })
  end,
  get_wsd_third = function(o)
    return S.get_wsd_schedule(o, { num_warmup_steps = 3, num_decay_steps = 3, num_training_steps = 9,
      warmup_type = "1-sqrt", decay_type = "linear" })
  end,
}
MAKERS.step_changed, MAKERS.cosine_changed = MAKERS.step, MAKERS.cosine_min

-- The metric of gen_optim_reference.py at step t, from 0.
local function metric(t) return t < 16 and math.max(3 - t / 2, 1) or 0.9 - t / 100 end

local function is_plateau(name) return name:find("^plateau") ~= nil end
local function step(scheduler, name, t) return scheduler:step(is_plateau(name) and metric(t) or nil) end
-- How often the reference's first scheduler was stepped before another one took over.
local RESUMED_AT = {
  step_resumed = 4, multistep_resumed = 3, exponential_resumed = 3, linear_resumed = 3,
  polynomial_resumed = 3, cosine_resumed = 4,
  get_linear_resumed = 4,
}

describe("learning rates equal those of PyTorch and Transformers:", function()
  for _, name in ipairs(ordered.sorted_keys(reference)) do
    it(name, function()
      local o = (OPTIMIZERS[name] or two_groups)()
      local at = RESUMED_AT[name]
      if at then
        local first = MAKERS[name](o, -1)
        for _ = 1, at do first:step() end
      end
      local scheduler = MAKERS[name](o, at)
      for i, expected in ipairs(reference[name]) do
        if i > 1 or is_plateau(name) then
          if (name:find("changed") or name == "linear_default") and i == 6 then o.param_groups[1].lr = 0.2 end
          o:step()
          step(scheduler, name, i - 1)
        end
        local rates = scheduler:get_last_lr()
        for g, group in ipairs(o.param_groups) do
          assert.near(expected[g], rates[g], 1e-14)
          assert.equal(rates[g], group.lr)
          if expected[3] then
            assert.near(expected[2 + g], group.betas and group.betas[1] or group.momentum, 1e-14)
          end
        end
        if not at and name ~= "chained" then
          assert.equal(is_plateau(name) and i or i - 1, scheduler.last_epoch)
        end
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
    for _, name in ipairs(ordered.sorted_keys(MAKERS)) do
      local new = OPTIMIZERS[name] or two_groups
      local o = new()
      local scheduler = MAKERS[name](o)
      for t = 1, 5 do step(scheduler, name, t) end
      local p = new()
      local other = MAKERS[name](p)
      other:load_state_dict(json.decode(json.encode(scheduler:state_dict())))  -- it can be written to a file
      p:load_state_dict(o:state_dict())
      for t = 6, 10 do
        step(scheduler, name, t)
        step(other, name, t)
        assert.same(scheduler:get_last_lr(), other:get_last_lr())
        assert.same(o.param_groups[2].betas or o.param_groups[2].momentum, p.param_groups[2].betas
          or p.param_groups[2].momentum)
      end
      assert.same(scheduler:state_dict(), other:state_dict())
    end
  end)

  it("go on from PyTorch's states as PyTorch does", function()
    local made = {
      multistep = function(o) return S.MultiStepLR(o, { 4 }, 0.5) end,
      multistep_first = function(o) return S.MultiStepLR(o, { 1, 2, 8 }, 0.5) end,
      onecycle = function(o) return S.OneCycleLR(o, 0.4, 12) end,
      onecycle_three = function(o)
        return S.OneCycleLR(o, { 0.4, 0.3 }, { total_steps = 14, anneal_strategy = "linear" })
      end,
      onecycle_flat = function(o)
        return S.OneCycleLR(o, 0.4, { total_steps = 12, cycle_momentum = false })
      end,
      cyclic = function(o) return S.CyclicLR(o, 0.1, 0.4, 3) end,
      lambda = function(o) return S.LambdaLR(o, function(epoch) return 0.95 ^ epoch end) end,
      sequence = function(o)
        return S.SequentialLR(o, { S.ConstantLR(o, 0.5, 3), S.MultiStepLR(o, { 1, 2, 2 }, 0.5) }, { 7 })
      end,
    }
    local seen, path = 0, os.tmpname()
    disk.write(path, disk.from_hex(saved.schedules))
    for _, entry in ipairs(utils.load(path)) do
      local o = two_groups(optim.SGD, { momentum = 0.8 })
      local scheduler = made[entry.name](o)
      o:load_state_dict(entry.optimizer)
      scheduler:load_state_dict(entry.scheduler)
      for _, row in ipairs(entry.rows) do
        scheduler:step()
        local groups = o.param_groups
        for i, found in ipairs { groups[1].lr, groups[1].momentum, groups[2].lr, groups[2].momentum } do
          assert.near(row[i], found, 1e-9, entry.name)
        end
      end
      seen = seen + 1
    end
    os.remove(path)
    assert.equal(8, seen)
    local scheduler = made.onecycle(two_groups(optim.SGD, { momentum = 0.8 }))
    local dict = scheduler:state_dict()
    dict._schedule_phases[2].start_lr = "lr"
    assert.matches("phase 2 of _schedule_phases is none", message(scheduler.load_state_dict, scheduler, dict))
    dict._schedule_phases = {}
    assert.matches("phase 1 of _schedule_phases is none", message(scheduler.load_state_dict, scheduler, dict))
    dict = scheduler:state_dict()
    local phases = dict._schedule_phases
    dict._schedule_phases, dict.pct_start, dict.three_phase = nil, 0.5, true -- an earlier version's
    scheduler:load_state_dict(dict)
    assert.same({ 5, 10, 11 },
      { scheduler._schedule_phases[1].end_step, scheduler._schedule_phases[2].end_step,
      scheduler._schedule_phases[3].end_step })
    assert.equal(2, #phases)
    scheduler = made.multistep(two_groups())
    dict = scheduler:state_dict()
    dict.milestones = { ["3"] = 2, ["1"] = 1 } -- a Counter in JSON
    scheduler:load_state_dict(dict)
    assert.same({ 1, 3, 3 }, scheduler.milestones)
    dict.milestones = { x = 2 }
    assert.matches("a milestone must be an integer, got 'x'", message(scheduler.load_state_dict, scheduler,
      dict))
  end)

  it("save tables of a script's own class, and leave out objects", function()
    local scheduler = S.ExponentialLR(two_groups(), 0.5)
    scheduler.table_of, scheduler.model = { a = { 1, { b = 2 } } }, require("accelerate.nn").Linear(1, 1)
    local dict = scheduler:state_dict()
    assert.same({ a = { 1, { b = 2 } } }, dict.table_of)
    assert.is_nil(dict.model)
    scheduler.table_of.a[1] = 5
    scheduler:load_state_dict(dict)
    assert.equal(1, scheduler.table_of.a[1])
    assert.equal("Linear", scheduler.model.__name)
  end)

  it("may take a learning rate below 0, with which an optimizer's state is loaded", function()
    local function new()
      local o = two_groups(optim.SGD, { momentum = 0.9 })
      -- CosineAnnealingLR's recursive formula goes below 0 where another schedule changes the rate
      -- that it finds.
      return o, S.ChainedScheduler { S.CosineAnnealingLR(o, { T_max = 4, eta_min = 0.1 }),
        S.ExponentialLR(o, { gamma = 0.3 }) }
    end
    local o, scheduler = new()
    local steps = 0
    repeat
      scheduler:step()
      steps = steps + 1
    until o.param_groups[2].lr < 0 or steps == 20
    assert.is_true(o.param_groups[2].lr < 0)
    o.param_groups[1].momentum = -0.1
    local p = new()
    p:load_state_dict(o:state_dict())
    for g = 1, 2 do
      assert.equal(o.param_groups[g].lr, p.param_groups[g].lr)
      assert.equal(o.param_groups[g].momentum, p.param_groups[g].momentum)
    end
    assert.matches("must be a number", message(p.load_state_dict, p, { state = {}, param_groups = {
      { params = { 0 }, lr = "fast" }, { params = { 1 } } } }))
  end)

  it("move alike when they are prepared", function()
    local accelerator = accelerate.Accelerator()
    for _, name in ipairs(ordered.sorted_keys(MAKERS)) do
      local new = OPTIMIZERS[name] or two_groups
      local o, p = new(), new()
      local scheduler, other = MAKERS[name](o), MAKERS[name](p)
      local q, prepared = accelerator:prepare(p, other)
      for t = 1, 8 do
        step(scheduler, name, t)
        q:step()
        step(prepared, name, t)
        assert.same(scheduler:get_last_lr(), prepared:get_last_lr())
      end
      assert.same(scheduler:state_dict(), prepared:state_dict())
      local late = MAKERS[name](q)  -- made for the prepared optimizer
      assert.equal(q, accelerator:prepare_scheduler(late).optimizer)
    end
  end)

  it("save a plateau before its first metric", function()
    local scheduler = MAKERS.plateau(two_groups())
    local dict = json.decode(json.encode(scheduler:state_dict()))
    scheduler:step(4)
    scheduler:load_state_dict(dict)
    assert.equal(math.huge, scheduler.best)
    assert.equal(0, scheduler.last_epoch)
  end)

  it("take a metric as a tensor, and pass over none", function()
    local o = two_groups()
    local scheduler = lr_scheduler.ReduceLROnPlateau(o, { patience = 0 })
    scheduler:step(core.tensor(1))
    scheduler:step(core.tensor(1):div(0) * 0)  -- NaN is no better
    assert.near(0.04, o.param_groups[1].lr, 1e-15)
    assert.matches("ReduceLROnPlateau:step: metrics is missing", message(scheduler.step, scheduler))
  end)

  it("follow a fractional epoch where they can", function()
    local o = two_groups()
    local scheduler = lr_scheduler.CosineAnnealingWarmRestarts(o, { T_0 = 2, T_mult = 2 })
    scheduler:step(2.5)  -- half a step into the second cycle, which is 4 long
    assert.near(0.4 * (1 + math.cos(math.pi / 8)) / 2, o.param_groups[1].lr, 1e-15)
    scheduler:step(1)
    assert.near(0.2, o.param_groups[1].lr, 1e-15)
  end)

  -- the learning rate after step(5), and after one more step, of PyTorch
  for name, case in next, {
    StepLR = { { 2, 0.1 }, 0.01, 0.001 },
    MultiStepLR = { { { 2, 4 }, 0.5 }, 0.25, 0.25 },
    ExponentialLR = { { 0.5 }, 0.03125, 0.015625 },
    ConstantLR = { { 0.25, 6 }, 0.25, 1 },
    LinearLR = { { 0.5, 1, 8 }, 0.8125, 0.875 },
    PolynomialLR = { { 8, 2 }, 0.140625, 0.0625 },
    CosineAnnealingLR = { { 10, 0.1 }, 0.55, 0.41094235253127376 },
    LambdaLR = { { function(epoch) return 1 / (epoch + 1) end }, 1 / 6, 1 / 7 },
    MultiplicativeLR = { { function(epoch) return epoch / 10 end }, 0.5, 0.3 },
    CyclicLR = { { 0.1, 1, 4 }, 0.775, 0.55 },
    OneCycleLR = { { 1, 10 }, 0.6112620219362893, 0.38874197806371075 },
    CosineAnnealingWarmRestarts = { { 4 }, 0.8535533905932737, 0.5 },
  } do
    it(("of class %s step to an epoch"):format(name), function()
      local o = optim.SGD({ core.zeros(1, { requires_grad = true }) }, 1, 0.9)
      local scheduler = S[name](o, unpack(case[1]))
      scheduler:step(5)
      assert.equal(5, scheduler.last_epoch)
      assert.near(case[2], o.param_groups[1].lr, 1e-15)
      assert.near(case[2], scheduler:get_last_lr()[1], 1e-15)
      scheduler:step()
      assert.equal(6, scheduler.last_epoch)
      assert.near(case[3], o.param_groups[1].lr, 1e-15)
      local again = S[name](optim.SGD({ core.zeros(1, { requires_grad = true }) }, 1, 0.9), unpack(case[1]))
      again:step { epoch = 5 }
      assert.near(case[2], again:get_last_lr()[1], 1e-15)
    end)
  end

  it("take an epoch with a metric, and check it", function()
    local plateau = S.ReduceLROnPlateau(two_groups())
    plateau:step(0.5, 7)
    assert.equal(7, plateau.last_epoch)
    plateau:step { metrics = 0.5 }
    assert.equal(8, plateau.last_epoch)
    local steps = S.StepLR(two_groups(), 2)
    assert.matches("StepLR:step: option 'epoch' must be a number, got 'five'",
      message(steps.step, steps, "five"))
    assert.matches("StepLR:step: option 'epoch' must be at least %-1, got %-3",
      message(steps.step, steps, -3))
    assert.matches("StepLR:step: an argument too many: 2", message(steps.step, steps, 1, 2))
    assert.matches("StepLR:step: unknown option 'epoc'; did you mean 'epoch'",
      message(steps.step, steps, { epoc = 1 }))
    local chain = S.ChainedScheduler { steps }
    assert.matches("ChainedScheduler:step takes no arguments, got 5", message(chain.step, chain, 5))
    local sequence = S.SequentialLR(steps.optimizer, { S.StepLR(steps.optimizer, 2), steps }, { 3 })
    assert.matches("SequentialLR:step takes no arguments, got 5", message(sequence.step, sequence, 5))
  end)

  it("save everything but the optimizer and functions", function()
    local dict = MAKERS.cosine_min(two_groups()):state_dict()
    assert.same({ T_max = 7, eta_min = 0.01, base_lrs = { 0.4, 0.05 }, last_epoch = 0, _step_count = 1,
      _last_lr = { 0.4, 0.05 } }, dict)
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
    assert.matches("CosineAnnealingLR: unknown option 't_max'; did you mean 'T_max'%?",
      message(lr_scheduler.CosineAnnealingLR, o, { t_max = 1 }))
    assert.matches("StepLR: option 'step_size' must be at least 1, got 0",
      message(lr_scheduler.StepLR, o, { step_size = 0 }))
    assert.matches("StepLR: expected an optimizer, got 3", message(lr_scheduler.StepLR, 3, { step_size = 1 }))
    assert.matches("LambdaLR: 1 functions for 2 parameter groups",
      message(lr_scheduler.LambdaLR, o, { math.sin }))
    assert.matches("LambdaLR: lr_lambda must be a function, got 3", message(lr_scheduler.LambdaLR, o, 3))
    assert.matches("function 1 returned nil for step 0", message(lr_scheduler.LambdaLR, o, function() end))
    assert.matches("OneCycleLR: total_steps is missing, or epochs and steps_per_epoch",
      message(S.OneCycleLR, o, { max_lr = 1, epochs = 3 }))
    assert.matches("OneCycleLR: max_lr: 1 values for 2 parameter groups",
      message(S.OneCycleLR, o, { max_lr = { 1 }, total_steps = 3 }))
    assert.matches("OneCycleLR: cycle_momentum needs an optimizer with momentum or betas",
      message(S.OneCycleLR, two_groups(optim.Adagrad), { max_lr = 1, total_steps = 3 }))
    local one = S.OneCycleLR(with_momentum(), { max_lr = 1, total_steps = 2 })
    one:step()
    one:step()
    assert.matches("OneCycleLR: step 3 of a schedule of total_steps = 2", message(one.step, one))
    local constant = S.ConstantLR(o)
    local function sequence(...) return message(S.SequentialLR, ...) end
    assert.matches("SequentialLR: 1 scheduler%(s%) need 0 milestone%(s%), got 1",
      sequence(o, { schedulers = { constant }, milestones = { 3 } }))
    assert.matches("scheduler 1 %(ConstantLR%) drives another optimizer",
      sequence(two_groups(), { schedulers = { constant }, milestones = {} }))
    assert.matches("scheduler 2 is a ReduceLROnPlateau, whose steps need a metric",
      message(S.ChainedScheduler, { constant, S.ReduceLROnPlateau(o) }))
    assert.matches("the list of schedulers is empty", message(S.ChainedScheduler, {}))
    assert.matches("get_scheduler: name must be one of .*, got 'liner'; did you mean 'linear'",
      message(S.get_scheduler, "liner", o))
    assert.matches("get_scheduler: 'linear' needs num_training_steps",
      message(S.get_scheduler, "linear", o, 3))
    assert.matches("get_linear_schedule_with_warmup: option 'num_training_steps' is missing",
      message(S.get_linear_schedule_with_warmup, o, 3))
    assert.matches("argument 3 must be a table of options, got 5",
      message(S.get_constant_schedule_with_warmup, o, 3, 5))
    assert.matches("lr_end %(2%) must be below the optimizer's lr",
      message(S.get_polynomial_decay_schedule_with_warmup, o, 3, 5, { lr_end = 2 }))
    o = two_groups()
    local scheduler = MAKERS.step(o)
    o:add_param_group { params = { core.zeros(1, { requires_grad = true }) } }
    assert.matches("the optimizer has 3 parameter groups now and had 2", message(scheduler.step, scheduler))
  end)

  it("name what a resumed one-cycle schedule lacks", function()
    local o = two_groups()
    for _, group in ipairs(o.param_groups) do group.initial_lr = group.lr end
    assert.matches("OneCycleLR: last_epoch = 7 resumes a schedule, but parameter group 1 has no max_lr; " ..
      "load the optimizer's state first", message(S.OneCycleLR, o, 0.1, 20, { last_epoch = 7 }))
  end)

  it("take all arguments by position", function()
    local o = two_groups()
    local by_name = S.OneCycleLR(o, { max_lr = 0.5, total_steps = 26, pct_start = 0.25,
      anneal_strategy = "linear", cycle_momentum = false, div_factor = 10, final_div_factor = 100,
      three_phase = true })
    local other = two_groups()
    local by_place = S.OneCycleLR(other, 0.5, 26, nil, nil, 0.25, "linear", false, 0.85, 0.95, 10, 100, true)
    for _ = 1, 20 do
      for k, rate in ipairs(by_name:get_last_lr()) do assert.equal(rate, by_place:get_last_lr()[k]) end
      by_name:step()
      by_place:step()
    end
    local cycle = S.CyclicLR(o, 0.1, 0.3, 2, 2, "triangular", 1, function() return 0.5 end, "cycle", false)
    cycle:step()
    assert.is_near(0.15, cycle:get_last_lr()[1], 1e-12)
    local plateau = S.ReduceLROnPlateau(o, "min", 0.5, 0, 1e-4, "rel", 0, 0, 1)
    plateau:step(1)
    plateau:step(1) -- a change below eps = 1, which is not made
    assert.is_near(0.15, plateau:get_last_lr()[1], 1e-12)
  end)
end)
