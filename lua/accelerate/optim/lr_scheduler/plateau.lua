--- ReduceLROnPlateau: a learning rate that falls when a metric stops improving.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local recording = require "accelerate.capture.recording"
local base = require "accelerate.optim.lr_scheduler.base"
local live_rates = require "accelerate.optim.rates"

local fail = options.fail

--- lr is multiplied by factor when the metric has not improved for more than patience steps:
--- `ReduceLROnPlateau(optimizer, { factor = 0.5, patience = 3 })`, then
--- `scheduler:step(validation_loss)`.
---@class accelerate.optim.ReduceLROnPlateau : accelerate.optim.LRScheduler
---@field best number the best metric so far, infinite before the first
---@field num_bad_epochs integer steps since the last improvement
---@field cooldown_counter integer steps left in which the metric is ignored
local ReduceLROnPlateau = class("ReduceLROnPlateau", base.LRScheduler)

local OPTIONS = {
  mode = { "string", default = "min", one_of = { "min", "max" } },
  factor = { "number", default = 0.1, below = 1 },
  patience = { "integer", default = 10, min = 0 },
  threshold = { "number", default = 1e-4 },
  threshold_mode = { "string", default = "rel", one_of = { "rel", "abs" } },
  cooldown = { "integer", default = 0, min = 0 },
  min_lr = { "number|list", default = 0 },
  eps = { "number", default = 1e-8 },
}

local function worst(self) return self.mode == "min" and math.huge or -math.huge end

--- mode: whether a lower ("min") or a higher ("max") metric is better. An improvement must exceed
--- threshold, a share of the best metric, or with threshold_mode = "abs" an absolute difference.
--- After a reduction, cooldown steps are ignored. min_lr: lower limit of the learning rate, a
--- number or one for each group. Changes of at most eps are not made.
---@param optimizer table
---@param opts? table
---@param opts? table
function ReduceLROnPlateau:init(optimizer, opts)
  local o = options.check("ReduceLROnPlateau", opts, OPTIONS)
  local groups = base.groups_of(self, optimizer)
  self.optimizer = optimizer
  for _, name in ipairs { "mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "eps" } do
    self[name] = o[name]
  end
  self.min_lrs = base.for_each_group(self, groups, "min_lr", o.min_lr)
  if type(o.min_lr) == "number" then self.default_min_lr = o.min_lr end
  self.last_epoch = 0
  self.best = worst(self)
  self.num_bad_epochs, self.cooldown_counter = 0, 0
  self._last_lr = base.scaled(self)
end

local function is_better(self, value)
  local best, by = self.best, self.threshold
  if self.mode == "min" then
    return value < (self.threshold_mode == "rel" and best * (1 - by) or best - by)
  end
  return value > (self.threshold_mode == "rel" and best * (1 + by) or best + by)
end

local function reduce(self)
  local groups = self.optimizer.param_groups
  if #groups ~= #self.min_lrs then
    if not self.default_min_lr then
      fail("ReduceLROnPlateau: the optimizer has %d parameter groups now and min_lr %d values; change " ..
        "scheduler.min_lrs", #groups, #self.min_lrs)
    end
    self.min_lrs = base.for_each_group(self, groups, "min_lr", self.default_min_lr)
  end
  for i, group in ipairs(groups) do
    local lr = math.max(group.lr * self.factor, self.min_lrs[i])
    if group.lr - lr > self.eps then group.lr = lr end
  end
  live_rates.agree(self.optimizer)
end

local function take_metric(self, metrics, epoch)
  base.begin(self)
  local value = type(metrics) == "number" and metrics or metrics:item()
  self.last_epoch = epoch or self.last_epoch + 1
  if is_better(self, value) then
    self.best, self.num_bad_epochs = value, 0
  else
    self.num_bad_epochs = self.num_bad_epochs + 1
  end
  if self.cooldown_counter > 0 then
    self.cooldown_counter, self.num_bad_epochs = self.cooldown_counter - 1, 0
  end
  if self.num_bad_epochs > self.patience then
    reduce(self)
    self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
  end
  self._last_lr = base.scaled(self)
end

local STEP = { metrics = { "any", optional = true }, epoch = { "number", optional = true, min = -1 } }

--- Updates the learning rates from the metric of one more epoch, or of `epoch`.
---@param metrics number|accelerate.Tensor one number
---@param epoch? number
function ReduceLROnPlateau:step(metrics, epoch, ...)
  local where = "ReduceLROnPlateau:step"
  local o = options.read(where, { "metrics", "epoch" }, STEP, metrics, epoch, ...)
  options.value(where, "metrics", o.metrics, { "number|tensor" })
  return recording.schedule(self, take_metric, o.metrics, o.epoch)
end

-- An infinite best is left out: file formats cannot represent it.
function ReduceLROnPlateau:state_dict()
  local dict = base.LRScheduler.state_dict(self)
  if math.abs(self.best) == math.huge then dict.best = nil end
  return dict
end

ReduceLROnPlateau._may_miss = { best = true, default_min_lr = true }

function ReduceLROnPlateau:load_state_dict(dict)
  base.LRScheduler.load_state_dict(self, dict)
  self.best = options.value("ReduceLROnPlateau:load_state_dict", "best", dict.best,
    { "number", default = worst(self) })
end

return { ReduceLROnPlateau = ReduceLROnPlateau }
