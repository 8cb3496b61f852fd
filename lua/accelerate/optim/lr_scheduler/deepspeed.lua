--- DeepSpeed's schedules: WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest, as its
--- deepspeed/runtime/lr_schedules.py defines them.
---
--- With t + 1 the number of calls of step, W = max(2, warmup_num_steps), T = total_num_steps, and
--- w(t) = ln(t + 1) / ln(W) for warmup_type "log", t / W for "linear":
---
---   WarmupLR        min + (max - min) * w(t) for t < W, then max
---   WarmupDecayLR   that for t < W, then min + (max - min) * max(0, (T - t) / max(1, T - W))
---   WarmupCosineLR  lr * (r + (1 - r) * w(t)) for t < W, then lr * (c + (1 - c) * (1 + cos(pi *
---                   x))
---                   / 2) with x = min(1, (t - W + 1) / max(1, T - W))
---   OneCycle        min + (max - min) * s(t + 1), with s rising from 0 to 1 in the first half and
---                   falling to 0 in the second; after the cycle of N steps min / (1 +
---                   decay_lr_rate * (t - N + 1) / decay_step_size). The momentum falls while the
---                   rate rises
---   LRRangeTest     min * (1 + step_rate * (t + 1) / step_size); staircase: the quotient rounded
---                   down
---
--- Before any call, at the optimizer's first step, t is -1: WarmupLR, WarmupDecayLR, OneCycle and
--- LRRangeTest have min there, WarmupCosineLR 0.

local class = require "accelerate.utils.class"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local base = require "accelerate.optim.lr_scheduler.base"

local LRScheduler = base.LRScheduler
local floor, log, max, min = math.floor, math.log, math.max, math.min

-- DeepSpeed counts from -1, the constructor's rates, and saves that count.
local DeepSpeed = class("DeepSpeedScheduler", LRScheduler)

function DeepSpeed:_given(dict)
  if dict.last_batch_iteration == nil then return dict end
  options.value(self.__name .. ":load_state_dict", "last_batch_iteration", dict.last_batch_iteration,
    { "integer", min = -1 })
  local given = LRScheduler.state_dict(self)
  given.last_epoch = dict.last_batch_iteration + 1
  given._step_count = given.last_epoch + 1
  return given
end

-- DeepSpeed's count of this step: -1 before the first call.
local function count(self) return self.last_epoch - 1 end

local function check(self, opts, schema)
  local o = options.check(self.__name, opts, schema)
  return o, o.last_batch_iteration + 1
end

local COUNT = { "integer", default = -1, min = -1 }

-- ---- warm-up

local WARMUP = {
  warmup_num_steps = { "integer", default = 1000, min = 1 },
  warmup_type = { "string", default = "log", one_of = { "log", "linear" } },
  last_batch_iteration = COUNT,
}

local function with(more)
  local schema = {}
  for _, part in ipairs { WARMUP, more } do
    for name, entry in pairs(part) do schema[name] = entry end
  end
  return schema
end

local function share(self, t)
  if self.warmup_type == "linear" then return t / self.warmup_num_steps end
  return log(t + 1) / log(self.warmup_num_steps)
end

local function set_warmup(self, o)
  self.warmup_num_steps, self.warmup_type = max(2, o.warmup_num_steps), o.warmup_type
  if o.total_num_steps then
    self.total_num_steps = o.total_num_steps
    if o.total_num_steps < self.warmup_num_steps then
      notice.main_once("%s: total_num_steps = %d is less than warmup_num_steps = %d", self.__name,
        o.total_num_steps, self.warmup_num_steps)
    end
  end
end

--- The learning rate rises from warmup_min_lr to warmup_max_lr in warmup_num_steps steps and stays
--- there: `WarmupLR(optimizer, { warmup_max_lr = 1e-3, warmup_num_steps = 100 })`.
---@class accelerate.optim.WarmupLR : accelerate.optim.LRScheduler
local WarmupLR = class("WarmupLR", DeepSpeed)

local RISE = {
  warmup_min_lr = { "number|list", default = 0 },
  warmup_max_lr = { "number|list", optional = true },
}

local function start_warmup(self, optimizer, o, last_epoch)
  local groups = base.groups_of(self, optimizer)
  local most = o.warmup_max_lr
  if most == nil then
    most = {}
    for i, group in ipairs(groups) do most[i] = group.lr end
  end
  self.min_lrs = base.for_each_group(self, groups, "warmup_min_lr", o.warmup_min_lr)
  self.max_lrs = base.for_each_group(self, groups, "warmup_max_lr", most)
  set_warmup(self, o)
  self:_attach(optimizer, last_epoch - 1)
end

--- warmup_min_lr and warmup_max_lr may be lists with a number for each group. warmup_max_lr:
--- default the groups' learning rates; warmup_type: "log" or "linear".
---@param optimizer table
---@param opts table
function WarmupLR:init(optimizer, opts)
  local o, last_epoch = check(self, opts, with(RISE))
  start_warmup(self, optimizer, o, last_epoch)
end

-- What is left of the rise after the warm-up.
function WarmupLR:_after() return 1 end

function WarmupLR:get_lr()
  local t, rates = count(self), {}
  local by = t < 0 and 0 or t < self.warmup_num_steps and share(self, t) or self:_after(t)
  for i, low in ipairs(self.min_lrs) do rates[i] = low + (self.max_lrs[i] - low) * by end
  return rates
end

--- As WarmupLR, and then falls to warmup_min_lr at total_num_steps: `WarmupDecayLR(optimizer, {
--- total_num_steps = 1000, warmup_num_steps = 100 })`.
---@class accelerate.optim.WarmupDecayLR : accelerate.optim.LRScheduler
local WarmupDecayLR = class("WarmupDecayLR", WarmupLR)

--- warmup_max_lr: default 0.001.
---@param optimizer table
---@param opts table
function WarmupDecayLR:init(optimizer, opts)
  local o, last_epoch = check(self, opts, with { total_num_steps = { "integer", min = 1 },
    warmup_min_lr = RISE.warmup_min_lr, warmup_max_lr = { "number|list", default = 1e-3 } })
  start_warmup(self, optimizer, o, last_epoch)
end

function WarmupDecayLR:_after(t)
  return max(0, (self.total_num_steps - t) / max(1, self.total_num_steps - self.warmup_num_steps))
end

--- The groups' learning rates times a ratio, which rises from warmup_min_ratio to 1 and falls along
--- a cosine to cos_min_ratio: `WarmupCosineLR(optimizer, { total_num_steps = 1000 })`.
---@class accelerate.optim.WarmupCosineLR : accelerate.optim.LRScheduler
local WarmupCosineLR = class("WarmupCosineLR", DeepSpeed)

---@param optimizer table
---@param opts table
function WarmupCosineLR:init(optimizer, opts)
  local o, last_epoch = check(self, opts, with { total_num_steps = { "integer", min = 1 },
    warmup_min_ratio = { "number", default = 0 }, cos_min_ratio = { "number", default = 1e-4 } })
  self.warmup_min_ratio, self.cos_min_ratio = o.warmup_min_ratio, o.cos_min_ratio
  set_warmup(self, o)
  self:_attach(optimizer, last_epoch - 1)
end

local function ratio(self, t)
  if t < 0 then return 0 end
  if t < self.warmup_num_steps then
    return self.warmup_min_ratio + share(self, t) * (1 - self.warmup_min_ratio)
  end
  local total = max(1, self.total_num_steps - self.warmup_num_steps)
  local done = min(1, (t - self.warmup_num_steps + 1) / total)
  return max(0, self.cos_min_ratio + (1 - self.cos_min_ratio) * (1 + math.cos(math.pi * done)) / 2)
end

function WarmupCosineLR:get_lr() return base.from_base(self, ratio(self, count(self))) end

-- ---- OneCycle

--- One rise and fall of the learning rate and of the momentum against it, then a decay:
--- `OneCycle(optimizer, { cycle_min_lr = 1e-4, cycle_max_lr = 1e-3 })`.
---@class accelerate.optim.OneCycle : accelerate.optim.LRScheduler
local OneCycle = class("OneCycle", DeepSpeed)

local CYCLE = {
  cycle_min_lr = { "number|list" }, cycle_max_lr = { "number|list" },
  decay_lr_rate = { "number", default = 0 },
  cycle_first_step_size = { "integer", default = 2000, min = 1 },
  cycle_second_step_size = { "integer", optional = true, min = 0 },
  cycle_first_stair_count = { "integer", default = 0, min = 0 },
  cycle_second_stair_count = { "integer", optional = true, min = 0 },
  decay_step_size = { "integer", default = 0, min = 0 },
  cycle_momentum = { "boolean", default = true },
  cycle_min_mom = { "number|list", default = 0.8 }, cycle_max_mom = { "number|list", default = 0.9 },
  decay_mom_rate = { "number", default = 0 },
  last_batch_iteration = COUNT,
}

-- The momentum is the first of betas, and the second becomes 0.99, as in DeepSpeed.
local function set_momenta(self, momenta)
  for i, group in ipairs(self.optimizer.param_groups) do group.betas = { momenta[i], 0.99 } end
end

--- cycle_second_step_size: default cycle_first_step_size; stair counts above 0: so many equal steps
--- in a half; decay_step_size 0: no decay. Momentum is cycled where the optimizer has betas.
---@param optimizer table
---@param opts table
function OneCycle:init(optimizer, opts)
  local o, last_epoch = check(self, opts, CYCLE)
  local groups = base.groups_of(self, optimizer)
  for name, value in pairs { first_step_size = o.cycle_first_step_size,
    second_step_size = o.cycle_second_step_size or o.cycle_first_step_size,
    first_stair_count = o.cycle_first_stair_count,
    second_stair_count = o.cycle_second_stair_count or o.cycle_first_stair_count,
    decay_step_size = o.decay_step_size, decay_lr_rate = o.decay_lr_rate, decay_mom_rate = o.decay_mom_rate,
    min_lrs = base.for_each_group(self, groups, "cycle_min_lr", o.cycle_min_lr),
    max_lrs = base.for_each_group(self, groups, "cycle_max_lr", o.cycle_max_lr) } do
    self[name] = value
  end
  self.cycle_momentum = o.cycle_momentum and (optimizer.defaults or {}).betas ~= nil
  if self.cycle_momentum then
    self.min_moms = base.for_each_group(self, groups, "cycle_min_mom", o.cycle_min_mom)
    self.max_moms = base.for_each_group(self, groups, "cycle_max_mom", o.cycle_max_mom)
  elseif o.cycle_momentum then
    notice.main_once("OneCycle: %s has no betas, so that its momentum is not cycled", optimizer.__name or
      "the optimizer")
  end
  self:_attach(optimizer, last_epoch - 1)
end

-- The height of the cycle, 0 to 1, at batch n.
local function height(self, n)
  local size = self.first_step_size + self.second_step_size
  local at = n % size
  local rising = at <= self.first_step_size
  local stairs = rising and self.first_stair_count or self.second_stair_count
  local high = rising and at / self.first_step_size or (size - at) / self.second_step_size
  return stairs > 0 and floor(rising and at * stairs / self.first_step_size
    or (size - at) * stairs / self.second_step_size) / stairs or high
end

-- How far the decay is after the cycle, in decay steps; nil while the cycle lasts.
local function decay(self, t)
  local size = self.first_step_size + self.second_step_size
  if t < size then return nil end
  return self.decay_step_size == 0 and 0 or (t - size + 1) / self.decay_step_size
end

function OneCycle:get_lr()
  local t, rates, momenta = count(self), {}, {}
  local decayed = decay(self, t)
  local high = t < 0 and 0 or decayed and 0 or height(self, t + 1)
  for i, low in ipairs(self.min_lrs) do
    rates[i] = (low + (self.max_lrs[i] - low) * high) / (1 + self.decay_lr_rate * (decayed or 0))
    if self.cycle_momentum then
      local least, most = self.min_moms[i], self.max_moms[i]
      momenta[i] = t < 0 and least
        or (most - (most - least) * high) * (1 + self.decay_mom_rate * (decayed or 0))
    end
  end
  if self.cycle_momentum then set_momenta(self, momenta) end
  return rates
end

-- ---- LRRangeTest

--- A learning rate that grows without end, to find the largest that a model bears:
--- `LRRangeTest(optimizer, { lr_range_test_min_lr = 1e-4, lr_range_test_step_rate = 5 })`.
---@class accelerate.optim.LRRangeTest : accelerate.optim.LRScheduler
local LRRangeTest = class("LRRangeTest", DeepSpeed)

local RANGE = {
  lr_range_test_min_lr = { "number|list", default = 1e-3 },
  lr_range_test_step_size = { "integer", default = 2000, min = 1 },
  lr_range_test_step_rate = { "number", default = 1 },
  lr_range_test_staircase = { "boolean", default = false },
  last_batch_iteration = COUNT,
}

---@param optimizer table
---@param opts table
function LRRangeTest:init(optimizer, opts)
  local o, last_epoch = check(self, opts, RANGE)
  self.min_lrs = base.for_each_group(self, base.groups_of(self, optimizer), "lr_range_test_min_lr",
    o.lr_range_test_min_lr)
  self.step_size, self.step_rate, self.staircase =
    o.lr_range_test_step_size, o.lr_range_test_step_rate, o.lr_range_test_staircase
  self:_attach(optimizer, last_epoch - 1)
end

function LRRangeTest:get_lr()
  local t, rates = count(self), {}
  local interval = (t + 1) / self.step_size
  local by = t < 0 and 1 or 1 + self.step_rate * (self.staircase and floor(interval) or interval)
  for i, low in ipairs(self.min_lrs) do rates[i] = low * by end
  return rates
end

for _, Class in ipairs { WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest } do
  Class._by_engine = true -- under DeepSpeed they move with the optimizer's steps
end

return { WarmupLR = WarmupLR, WarmupDecayLR = WarmupDecayLR, WarmupCosineLR = WarmupCosineLR,
  OneCycle = OneCycle, LRRangeTest = LRRangeTest }
