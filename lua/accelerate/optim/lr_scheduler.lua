--- optim.lr_scheduler: learning rates as functions of the number of steps. The formulas are PyTorch's recursive ones, so
--- that a learning rate changed from outside is carried on from where it is.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"

local fail = options.fail

---@class accelerate.optim.LRScheduler
---@field optimizer table
---@field last_epoch integer how many times step was called (from -1 before the first, which the constructor makes)
---@field base_lrs number[] the groups' initial learning rates
local LRScheduler = class("LRScheduler")

local COMMON = { last_epoch = { "integer", default = -1, min = -1 } }

-- Options of a scheduler, with last_epoch among them.
local function check(self, opts, schema)
  local all = { last_epoch = COMMON.last_epoch }
  for name, entry in next, schema do all[name] = entry end
  return options.check(self.__name, opts, all)
end

--- Begins to drive `optimizer`: every group gets initial_lr, and its first learning rate is set. For classes of one's
--- own, which define get_lr.
---@param optimizer table
---@param opts? { last_epoch: integer } last_epoch: -1 for a fresh start; otherwise groups must have initial_lr already
function LRScheduler:init(optimizer, opts)
  self:_attach(optimizer, check(self, opts, {}).last_epoch)
end

function LRScheduler:_attach(optimizer, last_epoch)
  local groups = type(optimizer) == "table" and optimizer.param_groups
  if type(groups) ~= "table" then fail("%s: expected an optimizer, got %s", self.__name, options.show(optimizer)) end
  for i, group in ipairs(groups) do
    if last_epoch == -1 then
      if group.initial_lr == nil then group.initial_lr = group.lr end
    elseif group.initial_lr == nil then
      fail("%s: last_epoch = %d resumes a schedule, but parameter group %d has no initial_lr; load the optimizer's state first",
        self.__name, last_epoch, i)
    end
  end
  self.optimizer, self.last_epoch, self.base_lrs = optimizer, last_epoch, {}
  for i, group in ipairs(groups) do self.base_lrs[i] = group.initial_lr end
  self._step_count = 0
  self._is_initial = true
  self:step()
  self._is_initial = false
end

--- The learning rates for self.last_epoch, one for each group. Every scheduler defines its own.
---@return number[]
function LRScheduler:get_lr()
  fail("%s has no get_lr method: define `function %s:get_lr() ... end`", self.__name, self.__name)
end

--- Sets the next learning rates. Call it after optimizer:step().
function LRScheduler:step()
  local groups = self.optimizer.param_groups
  if #groups ~= #self.base_lrs then
    fail("%s: the optimizer has %d parameter groups now and had %d when the scheduler was made; make a new scheduler after "
      .. "add_param_group", self.__name, #groups, #self.base_lrs)
  end
  self._step_count = self._step_count + 1
  self.last_epoch = self.last_epoch + 1
  local rates = self:get_lr()
  if type(rates) ~= "table" or #rates ~= #groups then
    fail("%s: get_lr must return %d learning rate(s), one for each parameter group", self.__name, #groups)
  end
  self._last_lr = {}
  for i, group in ipairs(groups) do
    if type(rates[i]) ~= "number" then
      fail("%s: the learning rate of group %d must be a number, got %s", self.__name, i, options.show(rates[i]))
    end
    group.lr = rates[i]
    self._last_lr[i] = rates[i]
  end
end

--- The learning rates that were set last.
---@return number[]
function LRScheduler:get_last_lr()
  local copy = {}
  for i, rate in ipairs(self._last_lr) do copy[i] = rate end
  return copy
end

local function current(self)
  local rates = {}
  for i, group in ipairs(self.optimizer.param_groups) do rates[i] = group.lr end
  return rates
end

local NOT_SAVED = { optimizer = true, lr_lambdas = true, _is_initial = true }

--- Everything but the optimizer and functions.
---@return table
function LRScheduler:state_dict()
  local dict = {}
  for name, value in next, self do
    if not NOT_SAVED[name] then
      if type(value) == "table" then
        local copy = {}
        for i = 1, #value do copy[i] = value[i] end
        value = copy
      end
      dict[name] = value
    end
  end
  return dict
end

--- Takes over a state_dict. The optimizer's learning rates come with the optimizer's own state.
---@param dict table
function LRScheduler:load_state_dict(dict)
  if type(dict) ~= "table" then fail("%s:load_state_dict: expected a table, got %s", self.__name, options.show(dict)) end
  local own = self:state_dict()
  for name, value in next, own do
    if dict[name] == nil then fail("%s:load_state_dict: '%s' is missing", self.__name, name) end
    if type(dict[name]) ~= type(value) then
      fail("%s:load_state_dict: '%s' must be a %s, got %s", self.__name, name, type(value), options.show(dict[name]))
    end
    if type(value) == "table" and #value ~= #dict[name] then
      fail("%s:load_state_dict: '%s' has %d entries, expected %d", self.__name, name, #dict[name], #value)
    end
  end
  for name in next, own do
    local value = dict[name]
    if type(value) == "table" then
      local copy = {}
      for i = 1, #value do copy[i] = value[i] end
      value = copy
    end
    self[name] = value
  end
end

-- ---- LambdaLR --------------------------------------------------------------------------------------------------

--- lr = initial_lr * fn(number of steps): `LambdaLR(optimizer, function(step) return math.min(1, (step + 1) / 100) end)`.
---@class accelerate.optim.LambdaLR : accelerate.optim.LRScheduler
local LambdaLR = class("LambdaLR", LRScheduler)

---@param optimizer table
---@param lr_lambda (fun(step: integer): number)|(fun(step: integer): number)[] one for all groups, or a list with one for each
---@param opts? { last_epoch: integer }
function LambdaLR:init(optimizer, lr_lambda, opts)
  local o = check(self, opts, {})
  local groups = type(optimizer) == "table" and optimizer.param_groups
  local n = type(groups) == "table" and #groups or 0
  self.lr_lambdas = {}
  if type(lr_lambda) == "table" and getmetatable(lr_lambda) == nil then
    if n > 0 and #lr_lambda ~= n then fail("LambdaLR: %d functions for %d parameter groups", #lr_lambda, n) end
    for i, fn in ipairs(lr_lambda) do
      self.lr_lambdas[i] = options.value("LambdaLR", ("function %d"):format(i), fn, { "function" })
    end
  else
    options.value("LambdaLR", "lr_lambda", lr_lambda, { "function" })
    for i = 1, n do self.lr_lambdas[i] = lr_lambda end
  end
  self:_attach(optimizer, o.last_epoch)
end

function LambdaLR:get_lr()
  local rates = {}
  for i, base in ipairs(self.base_lrs) do
    local factor = self.lr_lambdas[i](self.last_epoch)
    if type(factor) ~= "number" then
      fail("LambdaLR: function %d returned %s for step %d; it must return a number", i, options.show(factor), self.last_epoch)
    end
    rates[i] = base * factor
  end
  return rates
end

-- ---- StepLR ----------------------------------------------------------------------------------------------------

--- lr is multiplied by gamma every step_size steps.
---@class accelerate.optim.StepLR : accelerate.optim.LRScheduler
local StepLR = class("StepLR", LRScheduler)

---@param optimizer table
---@param opts { step_size: integer, gamma: number, last_epoch: integer } gamma: default 0.1
function StepLR:init(optimizer, opts)
  local o = check(self, opts, { step_size = { "integer", min = 1 }, gamma = { "number", default = 0.1 } })
  self.step_size, self.gamma = o.step_size, o.gamma
  self:_attach(optimizer, o.last_epoch)
end

function StepLR:get_lr()
  local rates = current(self)
  if self._is_initial or self.last_epoch % self.step_size ~= 0 then return rates end
  for i = 1, #rates do rates[i] = rates[i] * self.gamma end
  return rates
end

-- ---- CosineAnnealingLR -----------------------------------------------------------------------------------------

--- lr falls from initial_lr to eta_min along half a cosine in T_max steps, and rises again after that.
---@class accelerate.optim.CosineAnnealingLR : accelerate.optim.LRScheduler
local CosineAnnealingLR = class("CosineAnnealingLR", LRScheduler)

---@param optimizer table
---@param opts { T_max: integer, eta_min: number, last_epoch: integer } eta_min: default 0
function CosineAnnealingLR:init(optimizer, opts)
  local o = check(self, opts, { T_max = { "integer", min = 1 }, eta_min = { "number", default = 0 } })
  self.T_max, self.eta_min = o.T_max, o.eta_min
  self:_attach(optimizer, o.last_epoch)
end

function CosineAnnealingLR:get_lr()
  local rates = current(self)
  if self._is_initial then return rates end
  local t, T_max, eta_min = self.last_epoch, self.T_max, self.eta_min
  for i, base in ipairs(self.base_lrs) do
    if self._step_count == 1 and t > 0 then
      rates[i] = eta_min + (base - eta_min) * (1 + math.cos(t * math.pi / T_max)) / 2
    elseif (t - 1 - T_max) % (2 * T_max) == 0 then  -- the factor below would be 0 / 0
      rates[i] = rates[i] + (base - eta_min) * (1 - math.cos(math.pi / T_max)) / 2
    else
      rates[i] = (1 + math.cos(math.pi * t / T_max)) / (1 + math.cos(math.pi * (t - 1) / T_max)) * (rates[i] - eta_min) + eta_min
    end
  end
  return rates
end

return { LRScheduler = LRScheduler, LambdaLR = LambdaLR, StepLR = StepLR, CosineAnnealingLR = CosineAnnealingLR }
