--- Dynamic loss scaling, as torch.amp.GradScaler. A factor on the loss keeps small float16
--- gradients from becoming 0. It falls when gradients overflow, and grows after a number of steps
--- without overflow.
---
--- For a loss on a device, the scale and the overflow flags are on the device: the optimizer's
--- kernels read the flag, the scale follows it, and the host waits only when it reads one of them.
--- On the CPU, and when the device cannot do it (an optimizer with a `step` of its own, gradients
--- on several devices), the host applies these rules.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local recording = require "accelerate.capture.recording"

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
  local groups = optimizer.param_groups
  if #groups == 1 then return groups[1].params end
  local list = {}
  for _, group in ipairs(groups) do
    for _, p in ipairs(group.params) do list[#list + 1] = p end
  end
  return list
end

-- ---- the scale ----------------------------------------------------------------------------------
-- Either on the host (_scale, _growth_tracker), or on a device (_live: { scale, clean steps },
-- float64).

-- Copies the numbers to the host; the device keeps its own.
local function pull(self)
  if self._live then self._scale, self._growth_tracker = unpack(self._live:to("cpu"):totable()) end
end

local function to_host(self)
  pull(self)
  self._live = nil
end

local function to_device(self, device)
  if self._live and self._live.device == device then return end
  to_host(self)
  self._live = core.keep(core.tensor({ self._scale, self._growth_tracker },
    { dtype = "float64", device = device }))
end

-- Copies the scale: gradients must be divided by the scale that their loss had, even if it changes.
local function copied_scale(live) return core.keep(live:narrow(1, 1, 1):reshape({}):to("float32")) end

-- A captured step reads the scale at its present address.
local function expect(self, live)
  local fits = recording.active.fits
  fits[#fits + 1] = function()
    if self._live ~= live then return "the loss scale was given other memory" end
  end
end

-- Returns what happened to an optimizer since its last step: whether its gradients were unscaled,
-- and whether they overflowed.
local function stage_of(self, optimizer)
  local stage = self._stages[optimizer]
  if not stage then
    stage = {}
    self._stages[optimizer] = stage
  end
  return stage
end

--- Returns the loss times the scale.
---@param loss accelerate.Tensor|accelerate.Tensor[]
---@return accelerate.Tensor|accelerate.Tensor[]
function methods:scale(loss)
  if not self._enabled then return loss end
  if core.is_tensor(loss) then
    if loss.device == "cpu" then
      to_host(self)
      self._used = self._scale
    else
      to_device(self, loss.device)
      self._used = core.no_grad(copied_scale, self._live)
      if recording.active then expect(self, self._live) end
    end
    return loss * self._used
  end
  if type(loss) ~= "table" then
    fail("GradScaler: scale: expected a tensor or a list of them, got %s", options.show(loss))
  end
  local list = {}
  for i, one in ipairs(loss) do list[i] = self:scale(one) end
  return list
end

-- Divides gradients by the scale and returns whether one is infinite or NaN. Used for gradients on
-- the CPU or on several devices.
local function divide(params, scale)
  core.scale_grads_(params, 1 / scale)
  return not (core.grad_norm(params, math.huge) < math.huge)
end

-- Divides gradients on a device by the scale. Returns a float32 on the device that is not 0 if one
-- is infinite or NaN.
local function divide_there(params, scale, device)
  if type(scale) == "number" then scale = core.full({}, scale, { device = device }) end
  local found = core.keep(core.zeros({ 1 }, { device = device }))
  core.unscale_grads_(params, scale:to(device), found)
  return found
end

local function unscale(self, optimizer, stage)
  local params = params_of(optimizer)
  local present, device = core.gradients(params)
  stage.unscaled, stage.overflow, stage.found = true, false, nil
  if present == 0 then return end
  if device and device ~= "cpu" then
    stage.found = core.no_grad(divide_there, params, self._used, device)
  else
    local scale = self._used
    stage.overflow = core.no_grad(divide, params, type(scale) == "number" and scale or scale:item())
  end
end

--- Divides an optimizer's gradients by the scale. Call it at most once before each of its steps.
---@param optimizer accelerate.optim.Optimizer
function methods:unscale_(optimizer)
  if not self._enabled then return end
  local stage = stage_of(self, optimizer)
  if stage.unscaled then
    fail("GradScaler: unscale_: the gradients of this %s were unscaled already since its last step",
      optimizer.__name or "optimizer")
  end
  unscale(self, optimizer, stage)
end

--- Divides an optimizer's gradients by the scale, unless that was done since its last step.
function methods:unscale_once_(optimizer)
  if self._enabled and not stage_of(self, optimizer).unscaled then
    unscale(self, optimizer, stage_of(self, optimizer))
  end
end

--- Calls optimizer:step(), unless a gradient is infinite or NaN. Unscales the gradients first if
--- that was not done. On a device the optimizer's kernels skip the step without a wait. For an
--- optimizer with a `step` of its own (and NAdam, whose momenta the host multiplies) the host waits
--- and decides.
---@param optimizer accelerate.optim.Optimizer
---@param closure function? refused: gradients that it computes would not be scaled
---@return any result of the optimizer's step
---@return boolean|accelerate.Tensor stepped true or false when the host knows; else a float32 on
---  the device that is not 0 if the step is skipped
function methods:step(optimizer, closure)
  if not self._enabled then return optimizer:step(closure), true end
  if closure ~= nil then
    fail("GradScaler: step: a closure cannot be used with loss scaling; compute the loss and run " ..
      "backward before")
  end
  self:unscale_once_(optimizer)
  local stage = stage_of(self, optimizer)
  self._stages[optimizer] = nil
  local found, overflow = stage.found, stage.overflow
  if found and optimizer._skips_on_device and optimizer:_skips_on_device() then
    self._found[#self._found + 1] = found
    optimizer:_step_unless(found)
    return nil, found
  end
  if found then overflow = found:item() ~= 0 end
  self._overflows = self._overflows or overflow
  if overflow then return nil, false end
  return optimizer:step(), true
end

-- Combines the flags of several optimizers.
local function any_of(list, device)
  if #list == 0 then return core.zeros({ 1 }, { device = device }) end
  return #list == 1 and list[1] or core.cat(list):max():reshape(1)
end

-- Returns whether the device can update the scale without the host.
local function follows(self)
  if not self._live or self._overflows then return false end
  local device = self._live.device
  for _, found in ipairs(self._found) do
    if found.device ~= device then return false end
  end
  return true
end

local function follow(self)
  core.scale_update_(self._live, any_of(self._found, self._live.device), self._growth_factor,
    self._backoff_factor, self._growth_interval)
end

local function update_here(self)
  local overflows = self._overflows
  for _, found in ipairs(self._found) do overflows = overflows or found:item() ~= 0 end
  to_host(self)
  if overflows then
    self._scale, self._growth_tracker = self._scale * self._backoff_factor, 0
    return
  end
  self._growth_tracker = self._growth_tracker + 1
  if self._growth_tracker == self._growth_interval then
    -- a scale above float32's range would make every loss infinite
    local grown = self._scale * self._growth_factor
    if grown < 3.4e38 then self._scale = grown end
    self._growth_tracker = 0
  end
end

--- Updates the scale after the steps: shrinks it when a step was skipped, grows it after
--- growth_interval updates without a skip.
---@param new_scale number? sets the scale to this instead
function methods:update(new_scale)
  if not self._enabled then return end
  if new_scale ~= nil then
    new_scale = options.value("GradScaler: update", "new_scale", new_scale, { "number", above = 0 })
    to_host(self)
    self._scale = new_scale
  elseif follows(self) then core.no_grad(follow, self)
  else update_here(self) end
  self._overflows, self._found = false, {}
end

--- Returns the scale. Waits for the device when the scale is there.
---@return number
function methods:get_scale()
  if not self._enabled then return 1 end
  pull(self)
  return self._scale
end
---@return boolean
function methods:is_enabled() return self._enabled end
for _, name in ipairs { "growth_factor", "backoff_factor", "growth_interval" } do
  local entry = OPTIONS[name]
  --- Returns the factor by which the scale grows or shrinks, or the number of clean steps before it
  --- grows.
  methods["get_" .. name] = function(self) return self["_" .. name] end
  --- Sets the value for later steps.
  methods["set_" .. name] = function(self, value)
    self["_" .. name] = options.value("GradScaler: set_" .. name, "value", value, entry)
  end
end

--- Returns the state for a checkpoint; empty when scaling is off.
---@return { scale: number, growth_factor: number, backoff_factor: number, growth_interval: integer,
---  _growth_tracker: integer }|table
function methods:state_dict()
  if not self._enabled then return {} end
  pull(self)
  return { scale = self._scale, growth_factor = self._growth_factor, backoff_factor = self._backoff_factor,
    growth_interval = self._growth_interval, _growth_tracker = self._growth_tracker }
end

local STATE = {
  scale = { "number", above = 0 }, growth_factor = OPTIONS.growth_factor,
    backoff_factor = OPTIONS.backoff_factor,
  growth_interval = OPTIONS.growth_interval, _growth_tracker = { "integer", min = 0 },
}

---@param dict table from state_dict
function methods:load_state_dict(dict)
  if not self._enabled then return end
  if type(dict) ~= "table" then
    fail("GradScaler: load_state_dict: expected a table, got %s", options.show(dict))
  end
  if next(dict) == nil then
    fail("GradScaler: load_state_dict: the state is empty: it was saved with scaling off")
  end
  local state = options.check("GradScaler: load_state_dict", dict, STATE)
  self._live = nil
  for name, value in pairs(state) do self[name:sub(1, 1) == "_" and name or "_" .. name] = value end
end

local Class = properties.define("GradScaler", { methods = methods })

---@param opts { init_scale: number?, growth_factor: number?, backoff_factor: number?,
---  growth_interval: integer?, enabled: boolean? }? 65536, 2, 0.5, 2000, true
---@return accelerate.GradScaler
M.GradScaler = properties.callable("GradScaler", function(opts)
  local o = options.check("GradScaler", opts, OPTIONS)
  local self = Class.new()
  for name, value in pairs(o) do self["_" .. name] = value end
  self._scale, self._used, self._growth_tracker, self._overflows = o.init_scale, o.init_scale, 0, false
  self._found = {}  -- overflow flags of the optimizers stepped since the last update
  self._init_scale = nil
  self._stages = setmetatable({}, { __mode = "k" })
  return self
end)

return M
