--- Dynamic loss scaling, as torch.amp.GradScaler: small float16 gradients are kept from becoming 0 by a factor on the loss, which
--- falls when gradients overflow and grows again when they have not for a while.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"

local fail = options.fail

local M = {}

---@class accelerate.GradScaler
local methods = {}

local OPTIONS = {
  init_scale = { "number", default = 65536, above = 0 },
  growth_factor = { "number", default = 2, above = 1 },
  backoff_factor = { "number", default = 0.5, above = 0, below = 1 },
  growth_interval = { "integer", default = 2000, min = 1 },
  enabled = { "boolean", default = true },
}

local function params_of(optimizer)
  local list = {}
  for _, group in ipairs(optimizer.param_groups) do
    for _, p in ipairs(group.params) do
      if p.grad then list[#list + 1] = p end
    end
  end
  return list
end

-- What is known of an optimizer since its last step: whether its gradients were unscaled, and whether they overflowed.
local function stage_of(self, optimizer)
  local stage = self._stages[optimizer]
  if not stage then
    stage = {}
    self._stages[optimizer] = stage
  end
  return stage
end

--- The loss times the scale.
---@param loss accelerate.Tensor|accelerate.Tensor[]
---@return accelerate.Tensor|accelerate.Tensor[]
function methods:scale(loss)
  if not self._enabled then return loss end
  if core.is_tensor(loss) then
    self._used = self._scale  -- what is to be taken out again, whatever the scale is by then
    return loss * self._scale
  end
  if type(loss) ~= "table" then fail("GradScaler: scale: expected a tensor or a list of them, got %s", options.show(loss)) end
  local list = {}
  for i, one in ipairs(loss) do list[i] = self:scale(one) end
  return list
end

-- Divides gradients by the scale and says whether one is infinite or NaN.  On a device the answers are put together there, so
-- that the host waits once.
local function divide(params, scale)
  local elsewhere, largest = {}, {}
  for _, p in ipairs(params) do
    if p.device ~= "cpu" then elsewhere[#elsewhere + 1] = p end
  end
  if #elsewhere == 0 then
    core.scale_grads_(params, 1 / scale)
    return not (core.grad_norm(params, math.huge) < math.huge)
  end
  for _, p in ipairs(params) do
    local grad = p.grad:mul_(1 / scale)
    if p:numel() > 0 then largest[#largest + 1] = grad:abs():max():float():reshape(1) end
  end
  return #largest > 0 and not (core.cat(largest):max():item() < math.huge)
end

local function unscale(self, optimizer, stage)
  local params = params_of(optimizer)
  stage.unscaled, stage.overflow = true, false
  if #params > 0 then stage.overflow = core.no_grad(core.scope, divide, params, self._used) end
end

--- Takes the scale out of an optimizer's gradients; once before each of its steps.
---@param optimizer accelerate.optim.Optimizer
function methods:unscale_(optimizer)
  if not self._enabled then return end
  local stage = stage_of(self, optimizer)
  if stage.unscaled then
    fail("GradScaler: unscale_: the gradients of this %s were unscaled already since its last step", optimizer.__name or "optimizer")
  end
  unscale(self, optimizer, stage)
end

--- The same where that has not been done yet.
function methods:unscale_once_(optimizer)
  if self._enabled and not stage_of(self, optimizer).unscaled then unscale(self, optimizer, stage_of(self, optimizer)) end
end

--- optimizer:step(), unless a gradient is infinite or NaN.  Unscales first where that was not done.
---@param optimizer accelerate.optim.Optimizer
---@param closure function? refused: gradients that it computes would not be scaled
---@return any result of the optimizer's step
---@return boolean stepped
function methods:step(optimizer, closure)
  if not self._enabled then return optimizer:step(closure), true end
  if closure ~= nil then fail("GradScaler: step: a closure cannot be used with loss scaling; compute the loss and run backward before") end
  self:unscale_once_(optimizer)
  local stage = stage_of(self, optimizer)
  self._stages[optimizer] = nil
  self._overflows = self._overflows or stage.overflow
  if stage.overflow then return nil, false end
  return optimizer:step(), true
end

--- After the steps: a smaller scale when one was skipped, a larger one after growth_interval updates without that.
---@param new_scale number? instead
function methods:update(new_scale)
  if not self._enabled then return end
  if new_scale ~= nil then
    self._scale = options.value("GradScaler: update", "new_scale", new_scale, { "number", above = 0 })
  elseif self._overflows then
    self._scale, self._growth_tracker = self._scale * self._backoff_factor, 0
  else
    self._growth_tracker = self._growth_tracker + 1
    if self._growth_tracker == self._growth_interval then
      -- a scale that float32 cannot hold would make every loss infinite
      local grown = self._scale * self._growth_factor
      if grown < 3.4e38 then self._scale = grown end
      self._growth_tracker = 0
    end
  end
  self._overflows = false
end

---@return number
function methods:get_scale() return self._enabled and self._scale or 1 end
---@return boolean
function methods:is_enabled() return self._enabled end
for _, name in ipairs { "growth_factor", "backoff_factor", "growth_interval" } do
  local entry = OPTIONS[name]
  --- The factor by which the scale grows or shrinks, or how many clean steps it takes to grow.
  methods["get_" .. name] = function(self) return self["_" .. name] end
  --- Sets it for the steps to come.
  methods["set_" .. name] = function(self, value) self["_" .. name] = options.value("GradScaler: set_" .. name, "value", value, entry) end
end

--- What a checkpoint keeps; empty when scaling is off.
---@return { scale: number, growth_factor: number, backoff_factor: number, growth_interval: integer, _growth_tracker: integer }|table
function methods:state_dict()
  if not self._enabled then return {} end
  return { scale = self._scale, growth_factor = self._growth_factor, backoff_factor = self._backoff_factor,
    growth_interval = self._growth_interval, _growth_tracker = self._growth_tracker }
end

local STATE = {
  scale = { "number", above = 0 }, growth_factor = OPTIONS.growth_factor, backoff_factor = OPTIONS.backoff_factor,
  growth_interval = OPTIONS.growth_interval, _growth_tracker = { "integer", min = 0 },
}

---@param dict table from state_dict
function methods:load_state_dict(dict)
  if not self._enabled then return end
  if type(dict) ~= "table" then fail("GradScaler: load_state_dict: expected a table, got %s", options.show(dict)) end
  if next(dict) == nil then fail("GradScaler: load_state_dict: the state is empty: it was saved with scaling off") end
  local state = options.check("GradScaler: load_state_dict", dict, STATE)
  for name, value in pairs(state) do self[name:sub(1, 1) == "_" and name or "_" .. name] = value end
end

local Class = properties.define("GradScaler", { methods = methods })

---@param given { init_scale: number?, growth_factor: number?, backoff_factor: number?, growth_interval: integer?, enabled: boolean? }?
---  65536, 2, 0.5, 2000, true
---@return accelerate.GradScaler
M.GradScaler = properties.callable("GradScaler", function(given)
  local o = options.check("GradScaler", given, OPTIONS)
  local self = Class.new()
  for name, value in pairs(o) do self["_" .. name] = value end
  self._scale, self._used, self._growth_tracker, self._overflows = o.init_scale, o.init_scale, 0, false
  self._init_scale = nil
  self._stages = setmetatable({}, { __mode = "k" })
  return self
end)

return M
