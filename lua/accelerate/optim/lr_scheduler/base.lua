--- The base of schedulers, and functions that their files share.
---
--- A scheduler defines get_lr: the learning rates for self.last_epoch. As in PyTorch, get_lr
--- derives them from the current ones, so a change from outside carries on. The optional
--- `_closed_form_lr` computes them from base_lrs; SequentialLR starts a scheduler with it.

local class = require "accelerate.utils.class"
local first_step = require "accelerate.optim.first_step"
local lists = require "accelerate.utils.lists"
local nested = require "accelerate.utils.nested"
local options = require "accelerate.utils.options"
local recording = require "accelerate.capture.recording"
local live_rates = require "accelerate.optim.rates"

local fail = options.fail

---@class accelerate.optim.LRScheduler
---@field optimizer table
---@field last_epoch integer number of calls of step (-1 before the first one, which the constructor
---  makes)
---@field base_lrs number[] the groups' initial learning rates
local LRScheduler = class("LRScheduler")

local base = { LRScheduler = LRScheduler }

local COMMON = { last_epoch = { "integer", default = -1, min = -1 } }

--- Checks the options of a scheduler, and last_epoch among them.
function base.check(self, opts, schema)
  local all = { last_epoch = COMMON.last_epoch }
  for name, entry in next, schema do all[name] = entry end
  return options.check(self.__name, opts, all)
end

--- Begins to schedule `optimizer`: every group gets initial_lr, and its first learning rate is set.
--- For classes that a script derives, which define get_lr.
---@param optimizer table
---@param opts? { last_epoch: integer } last_epoch: -1 for a fresh start; otherwise groups must have
---  initial_lr already
function LRScheduler:init(optimizer, opts)
  self:_attach(optimizer, base.check(self, opts, {}).last_epoch)
end

--- Returns the optimizer's groups.
function base.groups_of(self, optimizer)
  local groups = type(optimizer) == "table" and optimizer.param_groups
  if type(groups) ~= "table" then
    fail("%s: expected an optimizer, got %s", self.__name, options.show(optimizer))
  end
  return groups
end

--- Returns one value for each group: `value` is a number for all groups, or a list.
function base.for_each_group(self, groups, name, value)
  local list = {}
  if type(value) ~= "table" then
    for i = 1, #groups do list[i] = value end
    return list
  end
  if #value ~= #groups then
    fail("%s: %s: %d values for %d parameter groups", self.__name, name, #value, #groups)
  end
  for i = 1, #groups do
    list[i] = options.value(self.__name, ("%s[%d]"):format(name, i), value[i], { "number" })
  end
  return list
end

--- Returns one function for each group: `given` is a function for all groups, or a list.
function base.function_for_each_group(self, groups, given)
  local list = {}
  if type(given) == "table" and getmetatable(given) == nil then
    if #given ~= #groups then
      fail("%s: %d functions for %d parameter groups", self.__name, #given, #groups)
    end
    for i, fn in ipairs(given) do
      list[i] = options.value(self.__name, ("function %d"):format(i), fn, { "function" })
    end
    return list
  end
  options.value(self.__name, "lr_lambda", given, { "function" })
  for i = 1, #groups do list[i] = given end
  return list
end

--- Returns the factor of function i for this step.
function base.ask(self, i)
  local factor = self.lr_lambdas[i](self.last_epoch)
  if type(factor) ~= "number" then
    fail("%s: function %d returned %s for step %d; it must return a number", self.__name, i,
      options.show(factor), self.last_epoch)
  end
  return factor
end

--- Returns the groups' learning rates now, times `factor`.
function base.scaled(self, factor)
  local rates = {}
  for i, group in ipairs(self.optimizer.param_groups) do rates[i] = group.lr * (factor or 1) end
  return rates
end

--- Returns the groups' initial learning rates, times `factor`.
function base.from_base(self, factor)
  local rates = {}
  for i, rate in ipairs(self.base_lrs) do rates[i] = rate * factor end
  return rates
end

--- Returns how many of the sorted numbers in `list` are at most `value`.
function base.count_up_to(list, value)
  local n = 0
  while n < #list and list[n + 1] <= value do n = n + 1 end
  return n
end

-- base_lrs: replace the groups' initial_lr.
function LRScheduler:_attach(optimizer, last_epoch, base_lrs)
  local groups = base.groups_of(self, optimizer)
  for i, group in ipairs(groups) do
    if last_epoch == -1 then
      if group.initial_lr == nil then group.initial_lr = group.lr end
    elseif group.initial_lr == nil then
      fail("%s: last_epoch = %d resumes a schedule, but parameter group %d has no initial_lr; load the " ..
        "optimizer's state first",
        self.__name, last_epoch, i)
    end
  end
  self.optimizer, self.last_epoch, self.base_lrs = optimizer, last_epoch, base_lrs or {}
  for i, group in ipairs(groups) do self.base_lrs[i] = self.base_lrs[i] or group.initial_lr end
  self:_initial_step()
end

-- Makes the constructor's step.
function LRScheduler:_initial_step()
  self._step_count = 0
  self._is_initial = true
  self:step()
  self._is_initial = false
end

--- Prints the learning rate of a group if is_verbose.
---@param is_verbose boolean
---@param group integer
---@param lr number
---@param epoch integer?
function LRScheduler:print_lr(is_verbose, group, lr, epoch)
  options.value("print_lr", "is_verbose", is_verbose, { "boolean" })
  options.value("print_lr", "group", group, { "integer" })
  options.value("print_lr", "lr", lr, { "number" })
  if is_verbose then
    print(("%sgroup %d: learning rate %.4e"):format(epoch and ("epoch %d, "):format(epoch) or "", group, lr))
  end
end

--- Returns the learning rates for self.last_epoch, one for each group. Every scheduler defines its
--- own.
---@return number[]
function LRScheduler:get_lr()
  fail("%s has no get_lr method: define `function %s:get_lr() ... end`", self.__name, self.__name)
end

--- Begins a step.
function base.begin(self)
  live_rates.agree(self.optimizer)
  if not first_step.seen[self] and not self._is_initial then first_step.scheduler(self) end
end

local function move(self, epoch)
  base.begin(self)
  self._step_count = self._step_count + 1
  self:_update_lr(epoch)
end

local EPOCH = { epoch = { "number", optional = true, min = -1 } }

--- Returns the epoch among the arguments of step, or nil.
function base.epoch(self, ...)
  if select("#", ...) == 0 then return nil end
  return options.read(self.__name .. ":step", { "epoch" }, EPOCH, ...).epoch
end

--- Sets the next learning rates, or those of `epoch`, by the closed form where there is one. Call
--- it after optimizer:step().
---@param epoch? number
function LRScheduler:step(epoch, ...) return recording.schedule(self, move, base.epoch(self, epoch, ...)) end

-- Sets the learning rates of the next step, or of step `epoch`.
function LRScheduler:_update_lr(epoch)
  local groups = self.optimizer.param_groups
  if #groups ~= #self.base_lrs then
    fail("%s: the optimizer has %d parameter groups now and had %d when the scheduler was made; make a " ..
      "new scheduler after " ..
      "add_param_group", self.__name, #groups, #self.base_lrs)
  end
  self.last_epoch = epoch or self.last_epoch + 1
  self:_apply(epoch and self._closed_form_lr and self:_closed_form_lr() or self:get_lr())
end

-- Sets the groups' learning rates.
function LRScheduler:_apply(rates)
  local groups = self.optimizer.param_groups
  if type(rates) ~= "table" or #rates ~= #groups then
    fail("%s: get_lr must return %d learning rate(s), one for each parameter group", self.__name, #groups)
  end
  for i, group in ipairs(groups) do
    if type(rates[i]) ~= "number" then
      fail("%s: the learning rate of group %d must be a number, got %s", self.__name, i,
        options.show(rates[i]))
    end
    group.lr = rates[i]
  end
  live_rates.agree(self.optimizer)
  self._last_lr = base.scaled(self)
end

--- Returns the learning rates that were set last.
---@return number[]
function LRScheduler:get_last_lr()
  local copy = {}
  for i, rate in ipairs(self._last_lr) do copy[i] = rate end
  return copy
end

local NOT_SAVED = { optimizer = true, lr_lambdas = true, _is_initial = true, _schedulers = true }

-- Functions and objects are not saved: the script makes them again.
local function is_saved(name, value)
  if NOT_SAVED[name] or type(value) == "function" then return false end
  return type(value) ~= "table" or nested.is_container(value)
end

--- Returns everything but the optimizer, functions and objects.
---@return table
function LRScheduler:state_dict()
  local dict = {}
  for name, value in next, self do
    if is_saved(name, value) then dict[name] = lists.copied(value) end
  end
  return dict
end

LRScheduler._may_miss = {}    -- keys that a state_dict may lack
LRScheduler._any_length = {}  -- keys of lists that may have another length than here

--- Returns a state_dict with entries of other forms, PyTorch's or older ones, in this class's form.
---@param dict table
---@return table
function LRScheduler:_given(dict) return dict end

--- Loads a state_dict, PyTorch's included. The optimizer's learning rates are in the optimizer's
--- own state.
---@param dict table
function LRScheduler:load_state_dict(dict)
  if type(dict) ~= "table" then
    fail("%s:load_state_dict: expected a table, got %s", self.__name, options.show(dict))
  end
  local own = LRScheduler.state_dict(self)
  dict = self:_given(dict)
  for name, value in next, own do
    local given = dict[name]
    if given == nil then
      if not self._may_miss[name] then fail("%s:load_state_dict: '%s' is missing", self.__name, name) end
    elseif type(given) ~= type(value) then
      fail("%s:load_state_dict: '%s' must be a %s, got %s", self.__name, name, type(value),
        options.show(given))
    elseif type(value) == "table" and #value ~= #given and not self._any_length[name] then
      fail("%s:load_state_dict: '%s' has %d entries, expected %d", self.__name, name, #given, #value)
    end
  end
  for name in next, own do
    local value = dict[name]
    if value ~= nil then self[name] = lists.copied(value) end
  end
end

return base
