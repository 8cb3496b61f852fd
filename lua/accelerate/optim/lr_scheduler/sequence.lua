--- Schedulers that combine schedulers: SequentialLR, ChainedScheduler.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local recording = require "accelerate.capture.recording"
local base = require "accelerate.optim.lr_scheduler.base"

local LRScheduler = base.LRScheduler
local fail = options.fail

-- Raises unless these are schedulers of one optimizer that need no metric. Returns a copy of the
-- list.
local function check_parts(self, schedulers, optimizer)
  local plateau = require("accelerate.optim.lr_scheduler.plateau").ReduceLROnPlateau
  local list = {}
  if #schedulers == 0 then fail("%s: the list of schedulers is empty", self.__name) end
  for i, scheduler in ipairs(schedulers) do
    if not class.is(scheduler, LRScheduler) then
      fail("%s: scheduler %d must be a scheduler, got %s", self.__name, i, options.show(scheduler))
    elseif class.is(scheduler, plateau) then
      fail("%s: scheduler %d is a ReduceLROnPlateau, whose steps need a metric; step it by itself",
        self.__name, i)
    elseif scheduler.optimizer.param_groups ~= optimizer.param_groups then
      fail("%s: scheduler %d (%s) drives another optimizer than %s", self.__name, i, scheduler.__name, i == 1
        and "the one given" or "the first")
    end
    list[i] = scheduler
  end
  return list
end

local function states_of(self)
  local dict = LRScheduler.state_dict(self)
  dict._schedulers = {}
  for i, scheduler in ipairs(self._schedulers) do dict._schedulers[i] = scheduler:state_dict() end
  return dict
end

local function load_states(self, dict)
  local parts = type(dict) == "table" and dict._schedulers
  if type(parts) ~= "table" or #parts ~= #self._schedulers then
    fail("%s:load_state_dict: expected the states of %d schedulers in _schedulers, got %s", self.__name,
      #self._schedulers,
      type(parts) == "table" and #parts or options.show(parts))
  end
  LRScheduler.load_state_dict(self, dict)
  for i, scheduler in ipairs(self._schedulers) do scheduler:load_state_dict(parts[i]) end
end

-- ---- SequentialLR

--- Runs schedulers one after the other: the second takes over at step milestones[1], and so on.
--- `SequentialLR(optimizer, { schedulers = { warmup, cosine }, milestones = { 100 } })`. Each
--- starts from the initial learning rates.
---@class accelerate.optim.SequentialLR : accelerate.optim.LRScheduler
local SequentialLR = class("SequentialLR", LRScheduler)

-- Undoes the step of each scheduler's constructor.
local function undo(scheduler)
  if scheduler._schedulers then
    for _, part in ipairs(scheduler._schedulers) do undo(part) end
  else
    scheduler.last_epoch = scheduler.last_epoch - 1
  end
end

---@param optimizer table
---@param opts { schedulers: table[], milestones: integer[], last_epoch: integer } milestones:
---  ascending, one fewer than schedulers
function SequentialLR:init(optimizer, opts)
  local o = base.check(self, opts, { schedulers = { "list" }, milestones = { "list" } })
  local groups = base.groups_of(self, optimizer)
  self._schedulers, self._milestones = check_parts(self, o.schedulers, optimizer), {}
  if #o.milestones ~= #o.schedulers - 1 then
    fail("SequentialLR: %d scheduler(s) need %d milestone(s), got %d", #o.schedulers, #o.schedulers - 1,
      #o.milestones)
  end
  for i, at in ipairs(o.milestones) do
    self._milestones[i] = options.value("SequentialLR", ("milestones[%d]"):format(i), at,
      { "integer", min = i > 1 and o.milestones[i - 1] or 0 })
  end
  self.optimizer = optimizer
  for _, group in ipairs(groups) do group.lr = group.initial_lr end
  undo(self)
  self:_begin(o.last_epoch + 1)
end

-- Starts the scheduler of step 0.
function SequentialLR:_begin(last_epoch)
  local first = self._schedulers[base.count_up_to(self._milestones, 0) + 1]
  self.last_epoch = last_epoch
  first:_initial_step()
  self._last_lr = first:get_last_lr()
end

function SequentialLR:_initial_step() self:_begin(0) end

-- As part of another SequentialLR it starts from the beginning.
function SequentialLR:_update_lr(epoch)
  if not epoch then return self:step() end
  local at = base.count_up_to(self._milestones, epoch) + 1
  self.last_epoch = epoch
  self._schedulers[at]:_update_lr(epoch - (self._milestones[at - 1] or 0))
  self._last_lr = self._schedulers[at]:get_last_lr()
end

local function move_sequence(self)
  base.begin(self)
  self.last_epoch = self.last_epoch + 1
  local at = base.count_up_to(self._milestones, self.last_epoch) + 1
  local scheduler = self._schedulers[at]
  if self._milestones[at - 1] == self.last_epoch then
    scheduler:_update_lr(0)
  else
    scheduler:step()
  end
  self._last_lr = scheduler:get_last_lr()
end

-- Raises when step is given an argument, as in PyTorch: the parts have epochs of their own.
local function no_epoch(self, given)
  if given ~= nil then fail("%s:step takes no arguments, got %s", self.__name, options.show(given)) end
end

--- Sets the next learning rates. Call it after optimizer:step().
function SequentialLR:step(...)
  no_epoch(self, ...)
  return recording.schedule(self, move_sequence)
end

SequentialLR.state_dict, SequentialLR.load_state_dict = states_of, load_states

-- ---- ChainedScheduler

--- Runs schedulers together; each changes the learning rates that the one before it has set:
--- `ChainedScheduler { warmup, decay }`.
---@class accelerate.optim.ChainedScheduler : accelerate.optim.LRScheduler
local ChainedScheduler = class("ChainedScheduler", LRScheduler)

---@param schedulers table[] of one optimizer
function ChainedScheduler:init(schedulers)
  options.value("ChainedScheduler", "schedulers", schedulers, { "list" })
  local first = schedulers[1]
  self._schedulers = check_parts(self, schedulers, type(first) == "table" and first.optimizer or {})
  self.optimizer = first.optimizer
  self._last_lr = base.scaled(self)
end

local function move_chain(self)
  base.begin(self)
  for _, scheduler in ipairs(self._schedulers) do scheduler:step() end
  self._last_lr = base.scaled(self)
end

--- Steps all schedulers, in order. Call it after optimizer:step().
function ChainedScheduler:step(...)
  no_epoch(self, ...)
  return recording.schedule(self, move_chain)
end

-- For use inside a SequentialLR.
function ChainedScheduler:_initial_step()
  for _, scheduler in ipairs(self._schedulers) do scheduler:_initial_step() end
  self._last_lr = base.scaled(self)
end

function ChainedScheduler:_update_lr(epoch)
  for _, scheduler in ipairs(self._schedulers) do scheduler:_update_lr(epoch) end
  self._last_lr = base.scaled(self)
end

ChainedScheduler.state_dict, ChainedScheduler.load_state_dict = states_of, load_states

return { SequentialLR = SequentialLR, ChainedScheduler = ChainedScheduler }
