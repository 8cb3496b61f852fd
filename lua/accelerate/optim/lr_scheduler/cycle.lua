--- Learning rates that rise and fall, with opposite momentum: OneCycleLR, CyclicLR.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local python = require "accelerate.utils.python"
local base = require "accelerate.optim.lr_scheduler.base"

local LRScheduler = base.LRScheduler
local fail = options.fail

-- ---- momentum

-- Finds the momentum to cycle: `momentum`, or the first of `betas`.
local function find_momentum(self, optimizer)
  local defaults = optimizer.defaults
  if defaults.momentum == nil and defaults.betas == nil then
    fail("%s: cycle_momentum needs an optimizer with momentum or betas; give cycle_momentum = false",
      self.__name)
  end
  self.use_beta1 = defaults.betas ~= nil
end

local function set_momentum(self, group, momentum)
  if self.use_beta1 then
    group.betas = { momentum, group.betas[2] }
  else
    group.momentum = momentum
  end
end

-- Stores the momentum's limits in the groups, where a resumed schedule finds them.
local function start_momentum(self, groups, most, least)
  for i, group in ipairs(groups) do
    set_momentum(self, group, most[i])
    group.max_momentum, group.base_momentum = most[i], least[i]
  end
end

-- ---- OneCycleLR

--- lr rises from max_lr / div_factor to max_lr in the first pct_start of total_steps, then falls to
--- initial_lr / final_div_factor: `OneCycleLR(optimizer, { max_lr = 0.1, total_steps = 1000 })`.
--- Step it after every batch.
---@class accelerate.optim.OneCycleLR : accelerate.optim.LRScheduler
---@field total_steps integer
local OneCycleLR = class("OneCycleLR", LRScheduler)

local ONE_CYCLE = {
  max_lr = { "number|list" },
  total_steps = { "integer", optional = true, min = 1 },
  epochs = { "integer", optional = true, min = 1 },
  steps_per_epoch = { "integer", optional = true, min = 1 },
  pct_start = { "number", default = 0.3, min = 0, max = 1 },
  anneal_strategy = { "string", default = "cos", one_of = { "cos", "linear" } },
  cycle_momentum = { "boolean", default = true },
  base_momentum = { "number|list", default = 0.85 },
  max_momentum = { "number|list", default = 0.95 },
  div_factor = { "number", default = 25 },
  final_div_factor = { "number", default = 1e4 },
  three_phase = { "boolean", default = false },
}

-- Returns the phases as PyTorch saves them: the last step of each, and the entries of a group that
-- are the limits of lr and momentum.
local function phases_of(total_steps, pct_start, three_phase)
  local function phase(last, lr_from, lr_to, momentum_from, momentum_to)
    return { end_step = last, start_lr = lr_from, end_lr = lr_to, start_momentum = momentum_from,
      end_momentum = momentum_to }
  end
  local rising = phase(pct_start * total_steps - 1, "initial_lr", "max_lr", "max_momentum", "base_momentum")
  if not three_phase then
    return { rising, phase(total_steps - 1, "max_lr", "min_lr", "base_momentum", "max_momentum") }
  end
  return {
    rising,
    phase(2 * pct_start * total_steps - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"),
    phase(total_steps - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"),
  }
end

--- max_lr, base_momentum and max_momentum may be lists with a number for each group. epochs and
--- steps_per_epoch together replace total_steps. three_phase: lr falls to initial_lr in as many
--- steps as it rose, then to its minimum in the remaining steps. The momentum falls from
--- max_momentum to base_momentum while lr rises, and rises while lr falls.
---@param optimizer table
---@param opts table
function OneCycleLR:init(optimizer, opts)
  local o = base.check(self, opts, ONE_CYCLE)
  local groups = base.groups_of(self, optimizer)
  if not o.total_steps and not (o.epochs and o.steps_per_epoch) then
    fail("OneCycleLR: total_steps is missing, or epochs and steps_per_epoch")
  end
  self.total_steps = o.total_steps or o.epochs * o.steps_per_epoch
  self._schedule_phases = phases_of(self.total_steps, o.pct_start, o.three_phase)
  self._anneal_func_type, self.cycle_momentum = o.anneal_strategy, o.cycle_momentum
  local max_lrs = base.for_each_group(self, groups, "max_lr", o.max_lr)
  if o.cycle_momentum then find_momentum(self, optimizer) end
  local most = base.for_each_group(self, groups, "max_momentum", o.max_momentum)
  local least = base.for_each_group(self, groups, "base_momentum", o.base_momentum)
  if o.last_epoch == -1 then
    for i, group in ipairs(groups) do
      group.initial_lr, group.max_lr = max_lrs[i] / o.div_factor, max_lrs[i]
      group.min_lr = group.initial_lr / o.final_div_factor
    end
    if o.cycle_momentum then start_momentum(self, groups, most, least) end
  else
    for i, group in ipairs(groups) do
      for _, name in ipairs { "max_lr", "min_lr" } do
        if group[name] == nil then
          fail("OneCycleLR: last_epoch = %d resumes a schedule, but parameter group %d has no %s; " ..
            "load the optimizer's state first", o.last_epoch, i, name)
        end
      end
    end
  end
  self:_attach(optimizer, o.last_epoch)
end

local function anneal(self, from, to, share)
  if self._anneal_func_type == "linear" then return (to - from) * share + from end
  return to + (from - to) / 2 * (math.cos(math.pi * share) + 1)
end

function OneCycleLR:get_lr()
  local t, phases, start = self.last_epoch, self._schedule_phases, 0
  if t > self.total_steps then
    fail("OneCycleLR: step %d of a schedule of total_steps = %d", t, self.total_steps)
  end
  local at = 1
  while at < #phases and t > phases[at].end_step do
    start, at = phases[at].end_step, at + 1
  end
  local phase = phases[at]
  local share = phase.end_step == start and 1 or (t - start) / (phase.end_step - start)
  local rates = {}
  for i, group in ipairs(self.optimizer.param_groups) do
    rates[i] = anneal(self, group[phase.start_lr], group[phase.end_lr], share)
    if self.cycle_momentum then
      set_momentum(self, group, anneal(self, group[phase.start_momentum], group[phase.end_momentum], share))
    end
  end
  return rates
end

-- The phases of a file may be two or three, whatever those here are.
OneCycleLR._any_length = { _schedule_phases = true }

local LIMITS = { initial_lr = true, max_lr = true, min_lr = true, base_momentum = true, max_momentum = true }

-- States of earlier versions have what the phases are made of.
function OneCycleLR:_given(dict)
  local phases = dict._schedule_phases
  if phases == nil and type(dict.total_steps) == "number" and type(dict.pct_start) == "number" then
    local given = {}
    for name, value in next, dict do given[name] = value end
    given._schedule_phases = phases_of(dict.total_steps, dict.pct_start, dict.three_phase)
    return given
  end
  if type(phases) ~= "table" then return dict end
  for i = 1, math.max(1, #phases) do
    local phase = phases[i]
    local fits = type(phase) == "table" and type(phase.end_step) == "number"
    for _, name in ipairs { "start_lr", "end_lr", "start_momentum", "end_momentum" } do
      fits = fits and LIMITS[phase[name]]
    end
    if not fits then fail("OneCycleLR:load_state_dict: phase %d of _schedule_phases is none", i) end
  end
  return dict
end

-- ---- CyclicLR

--- lr rises from base_lr to max_lr in step_size_up steps, falls back in step_size_down steps, and
--- so on: `CyclicLR(optimizer, { base_lr = 1e-3, max_lr = 0.1, step_size_up = 2000 })`.
---@class accelerate.optim.CyclicLR : accelerate.optim.LRScheduler
local CyclicLR = class("CyclicLR", LRScheduler)

local CYCLIC = {
  base_lr = { "number|list" },
  max_lr = { "number|list" },
  step_size_up = { "integer", default = 2000, min = 1 },
  step_size_down = { "integer", optional = true, min = 1 },
  mode = { "string", default = "triangular", one_of = { "triangular", "triangular2", "exp_range" } },
  gamma = { "number", default = 1 },
  scale_fn = { "function", optional = true },
  scale_mode = { "string", default = "cycle", one_of = { "cycle", "iterations" } },
  cycle_momentum = { "boolean", default = true },
  base_momentum = { "number|list", default = 0.8 },
  max_momentum = { "number|list", default = 0.9 },
}

--- mode: "triangular"; "triangular2": each cycle is half as high as the one before; "exp_range":
--- the height is gamma ^ step. scale_fn replaces mode: a function of the cycle (from 1), or with
--- scale_mode = "iterations" of the step, that returns the height. step_size_down: default
--- step_size_up.
---@param optimizer table
---@param opts table
function CyclicLR:init(optimizer, opts)
  local o = base.check(self, opts, CYCLIC)
  local groups = base.groups_of(self, optimizer)
  local base_lrs = base.for_each_group(self, groups, "base_lr", o.base_lr)
  self.max_lrs = base.for_each_group(self, groups, "max_lr", o.max_lr)
  self.total_size = o.step_size_up + (o.step_size_down or o.step_size_up)
  self.step_ratio = o.step_size_up / self.total_size
  self.mode, self.gamma, self.scale_fn, self.cycle_momentum = o.mode, o.gamma, o.scale_fn, o.cycle_momentum
  self.scale_mode = o.scale_fn and o.scale_mode or o.mode == "exp_range" and "iterations" or "cycle"
  if o.cycle_momentum then
    find_momentum(self, optimizer)
    self.base_momentums = base.for_each_group(self, groups, "base_momentum", o.base_momentum)
    self.max_momentums = base.for_each_group(self, groups, "max_momentum", o.max_momentum)
  end
  if o.last_epoch == -1 then
    for i, group in ipairs(groups) do group.lr = base_lrs[i] end
    if o.cycle_momentum then start_momentum(self, groups, self.max_momentums, self.base_momentums) end
  end
  self:_attach(optimizer, o.last_epoch, base_lrs)
end

--- Returns everything but the optimizer and functions. In PyTorch's files scale_fn is None.
---@return table
function CyclicLR:state_dict() return python.none(LRScheduler.state_dict(self), "_scale_fn_custom") end

local function height(self, cycle)
  local x = self.scale_mode == "cycle" and cycle or self.last_epoch
  if self.scale_fn then return self.scale_fn(x) end
  if self.mode == "triangular2" then return 1 / 2 ^ (x - 1) end
  return self.mode == "exp_range" and self.gamma ^ x or 1
end

function CyclicLR:get_lr()
  local cycle = math.floor(1 + self.last_epoch / self.total_size)
  local x = 1 + self.last_epoch / self.total_size - cycle
  local share = x <= self.step_ratio and x / self.step_ratio or (x - 1) / (self.step_ratio - 1)
  local by, rates = share * height(self, cycle), {}
  for i, group in ipairs(self.optimizer.param_groups) do
    local low = self.base_lrs[i]
    rates[i] = low + (self.max_lrs[i] - low) * by
    if self.cycle_momentum then
      set_momentum(self, group, self.max_momentums[i] - (self.max_momentums[i] - self.base_momentums[i]) * by)
    end
  end
  return rates
end

return { OneCycleLR = OneCycleLR, CyclicLR = CyclicLR }
