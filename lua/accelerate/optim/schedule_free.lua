--- What optim.SGDScheduleFree and optim.AdamWScheduleFree share ("The Road Less Scheduled", Defazio
--- et al., arXiv 2405.15682).
---
--- Three sequences take the place of a learning rate schedule: z, which steps; x, the weighted mean
--- of z, which is to be evaluated; and y, a point between them where gradients are taken. The
--- parameters are y while the optimizer is in training mode and x otherwise; z is kept.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local recording = require "accelerate.capture.recording"
local Optimizer = require "accelerate.optim.optimizer"
local rates = require "accelerate.optim.rates"

local fail = options.fail

---@class accelerate.optim.ScheduleFree : accelerate.optim.Optimizer
local ScheduleFree = class("ScheduleFree", Optimizer)
ScheduleFree._no_complex = true

-- What a group counts; the names are those of its authors' implementation.
local COUNTS = {
  k = { "integer", default = 0, min = 0 },
  train_mode = { "boolean", default = false },
  weight_sum = { "number", default = 0 },
  lr_max = { "number", default = -1 },
  scheduled_lr = { "number", default = 0 },
}

-- The options that both have.
function ScheduleFree.schema(own)
  own.weight_decay = { "number", default = 0, min = 0 }
  own.warmup_steps = { "integer", default = 0, min = 0 }
  own.r = { "number", default = 0 }
  own.weight_lr_power = { "number", default = 2 }
  return own
end

function ScheduleFree:_group_schema()
  local schema = Optimizer._group_schema(self)
  for name, entry in next, COUNTS do schema[name] = entry end
  return schema
end

-- The share of x in y.
local function share_of(group) return group.momentum or group.betas[1] end

-- Moves the parameters of the groups that are in the other mode towards z.
local function switch(self, training, weight_of)
  recording.refuse(self.__name .. (training and ":train" or ":eval"), "it changes the parameters")
  local state = self.state
  core.no_grad(function()
    for _, group in ipairs(self.param_groups) do
      for _, p in ipairs(group.train_mode ~= training and group.params or {}) do
        local kept = state[p]
        if kept and kept.z then p:lerp_(kept.z, weight_of(share_of(group))) end
      end
      group.train_mode = training
    end
  end)
end

--- Makes the parameters what is to be trained. Call it before the first step, and after `eval`.
function ScheduleFree:train()
  switch(self, true, function(beta) return 1 - beta end)
end

--- Makes the parameters their mean, which is to be evaluated and saved. Call it before an
--- evaluation and before a checkpoint.
function ScheduleFree:eval()
  switch(self, false, function(beta) return 1 - 1 / beta end)
end

local function weight_of(group) return group.k ^ group.r * group.lr_max ^ group.weight_lr_power end

-- Counts a step of a group.
local function advance(group)
  local warm = group.k < group.warmup_steps and (group.k + 1) / group.warmup_steps or 1
  group.k = group.k + 1
  group.scheduled_lr = group.lr * warm
  group.lr_max = math.max(group.scheduled_lr, group.lr_max)
  group.weight_sum = group.weight_sum + weight_of(group)
end

local function advance_all(self)
  for _, group in ipairs(self.param_groups) do advance(group) end
end

-- Returns a function that sets the counts back.
local function counts_of(self)
  local former = {}
  for g, group in ipairs(self.param_groups) do
    former[g] = {}
    for name in next, COUNTS do former[g][name] = group[name] end
  end
  return function()
    for g, group in ipairs(self.param_groups) do
      for name, value in next, former[g] do group[name] = value end
    end
  end
end

function ScheduleFree:_hyper(group, hyper)
  Optimizer._hyper(self, group, hyper)
  hyper.lr = group.scheduled_lr
  hyper.share = group.weight_sum ~= 0 and weight_of(group) / group.weight_sum or 0
end

--- Updates the parameters once. Raises unless `train` was called before.
---@param closure? fun(): any computes the loss anew, with gradients on; its result is returned
---@return any
function ScheduleFree:step(closure)
  if not self.param_groups[1].train_mode then
    fail("%s:step: the optimizer is not in training mode; call optimizer:train() before training, and " ..
      "optimizer:eval() before an evaluation or a checkpoint", self.__name)
  end
  local result = self:_evaluate(closure)
  local back = recording.active and counts_of(self)
  rates.agree(self)
  advance_all(self)
  if back then recording.register(function() advance_all(self) end, back) end
  Optimizer.step(self)
  if closure then return result end
end

function ScheduleFree:_check_saved(entry, p, number, kept)
  local own = { step = 0 }
  for name, value in next, entry do own[name] = value end
  Optimizer._check_saved(self, own, p, number, kept)
end

-- Its authors' implementation keeps the tensors only; the count is ours, and says whether z was
-- begun.
function ScheduleFree:_saved(state)
  local saved = Optimizer._saved(self, state)
  saved.step = nil
  return saved
end

-- Its authors' implementation reads `foreach` of a group that it has loaded.
function ScheduleFree:state_dict()
  local dict = Optimizer.state_dict(self)
  for _, group in ipairs(dict.param_groups) do group.foreach = true end
  return dict
end

function ScheduleFree:_restored(state, entry) state.step = entry.z and 1 or 0 end

return ScheduleFree
