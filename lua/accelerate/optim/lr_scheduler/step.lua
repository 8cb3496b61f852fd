--- Learning rates that fall by a factor: StepLR, MultiStepLR, ExponentialLR.

local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local python = require "accelerate.utils.python"
local base = require "accelerate.optim.lr_scheduler.base"

local LRScheduler = base.LRScheduler

--- lr is multiplied by gamma every step_size steps.
---@class accelerate.optim.StepLR : accelerate.optim.LRScheduler
local StepLR = class("StepLR", LRScheduler)

---@param optimizer table
---@param opts { step_size: integer, gamma: number, last_epoch: integer } gamma: default 0.1
function StepLR:init(optimizer, opts)
  local o = base.check(self, opts,
    { step_size = { "integer", min = 1 }, gamma = { "number", default = 0.1 } })
  self.step_size, self.gamma = o.step_size, o.gamma
  self:_attach(optimizer, o.last_epoch)
end

function StepLR:get_lr()
  if self.last_epoch == 0 or self.last_epoch % self.step_size ~= 0 then return base.scaled(self) end
  return base.scaled(self, self.gamma)
end

function StepLR:_closed_form_lr()
  return base.from_base(self, self.gamma ^ math.floor(self.last_epoch / self.step_size))
end

--- lr is multiplied by gamma at each of the milestones: `MultiStepLR(optimizer, { milestones = {
--- 30, 80 }, gamma = 0.1 })`.
---@class accelerate.optim.MultiStepLR : accelerate.optim.LRScheduler
---@field milestones integer[] ascending; a repeated milestone counts twice
local MultiStepLR = class("MultiStepLR", LRScheduler)

---@param optimizer table
---@param opts { milestones: integer[], gamma: number, last_epoch: integer } gamma: default 0.1
function MultiStepLR:init(optimizer, opts)
  local o = base.check(self, opts, { milestones = { "list" }, gamma = { "number", default = 0.1 } })
  self.milestones, self.gamma = {}, o.gamma
  for i, at in ipairs(o.milestones) do
    self.milestones[i] = options.value("MultiStepLR", ("milestones[%d]"):format(i), at, { "integer" })
  end
  table.sort(self.milestones)
  self:_attach(optimizer, o.last_epoch)
end

function MultiStepLR:get_lr()
  local now = base.count_up_to(self.milestones, self.last_epoch) - base.count_up_to(self.milestones,
    self.last_epoch - 1)
  return base.scaled(self, self.gamma ^ now)
end

function MultiStepLR:_closed_form_lr()
  return base.from_base(self, self.gamma ^ base.count_up_to(self.milestones, self.last_epoch))
end

--- Returns everything but the optimizer; in PyTorch's files the milestones are a Counter, as there.
---@return table
function MultiStepLR:state_dict()
  local dict = LRScheduler.state_dict(self)
  python.counter(dict.milestones)
  return dict
end

-- The list that a table of counts by milestone stands for: PyTorch's Counter, or one in JSON, whose
-- keys are text.
local function counted(counts)
  local list = {}
  for key, count in ordered.pairs(counts) do
    local at = options.value("MultiStepLR:load_state_dict", "a milestone", tonumber(key) or key,
      { "integer" })
    options.value("MultiStepLR:load_state_dict", ("the count of milestone %d"):format(at), count,
      { "integer", min = 0, max = 1e6 })
    for _ = 1, count do list[#list + 1] = at end
  end
  table.sort(list)
  return list
end

MultiStepLR._any_length = { milestones = true }

function MultiStepLR:_given(dict)
  local milestones = dict.milestones
  if type(milestones) ~= "table" or not ordered.is_ordered(milestones) and ordered.is_list(milestones) then
    return dict
  end
  local given = {}
  for name, value in next, dict do given[name] = value end
  given.milestones = counted(milestones)
  return given
end

--- lr is multiplied by gamma at every step.
---@class accelerate.optim.ExponentialLR : accelerate.optim.LRScheduler
local ExponentialLR = class("ExponentialLR", LRScheduler)

---@param optimizer table
---@param opts { gamma: number, last_epoch: integer }
function ExponentialLR:init(optimizer, opts)
  local o = base.check(self, opts, { gamma = { "number" } })
  self.gamma = o.gamma
  self:_attach(optimizer, o.last_epoch)
end

function ExponentialLR:get_lr() return base.scaled(self, not self._is_initial and self.gamma or nil) end

function ExponentialLR:_closed_form_lr() return base.from_base(self, self.gamma ^ self.last_epoch) end

return { StepLR = StepLR, MultiStepLR = MultiStepLR, ExponentialLR = ExponentialLR }
