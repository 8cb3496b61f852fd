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

-- ---- the scale
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

-- ---- marks
-- A mark says what was done to the gradients of an optimizer. Its `state` is
--   "unscaled"  they were divided by the scale;
--   "stepped"   the optimizer stepped with them, and `update` has not been called since;
--   "spent"     it was, and they are still there, without the scale;
--   "dropped"   zero_grad has ended them.
-- Gradients without a mark have the scale of their loss. `found` or `overflow` say whether one of
-- them is infinite or NaN; `counted`: an update has heard of it.
--
-- A mark ends with its gradients. The scaler alone cannot see them end, and all marks end at
-- `update`, as in PyTorch. Of optimizers that it watches, an Accelerator's, it sees zero_grad and
-- the
-- next loss; their marks outlast `update`, because one optimizer's update comes between the
-- clipping and the step of another.

-- Remembers for the next update whether the gradients overflowed.
local function count(self, mark)
  if mark.counted then return end
  mark.counted, self._checked = true, true
  if mark.found then self._found[#self._found + 1] = mark.found end
  self._overflows = self._overflows or mark.overflow
end

local function divide_here(params, divisor)
  core.scale_grads_(params, 1 / (type(divisor) == "number" and divisor or divisor:item()))
end

-- Divides gradients on a device. Returns a float32 on the device that is not 0 if one is infinite
-- or NaN.
local function divide_there(params, divisor, device)
  if type(divisor) == "number" then divisor = core.full({}, divisor, { device = device }) end
  local found = core.keep(core.zeros({ 1 }, { device = device }))
  core.unscale_grads_(params, divisor:to(device), found)
  return found
end

-- Divides gradients; those on the CPU or on several devices (device is nil) by a number.
local function divide(params, divisor, device)
  if device and device ~= "cpu" then return core.no_grad(divide_there, params, divisor, device) end
  core.no_grad(divide_here, params, divisor)
end

-- Gradients that are not there get no mark: those that come later have the scale.
local function unscale(self, optimizer)
  local params = params_of(optimizer)
  local present, device = core.gradients(params)
  if present == 0 then return end
  local mark = { state = "unscaled", overflow = false, found = divide(params, self._used, device) }
  if not mark.found then
    mark.overflow = not (core.no_grad(core.grad_norm, params, math.huge) < math.huge)
  end
  self._marks[optimizer] = mark
end

local function state_of(self, optimizer)
  local mark = self._marks[optimizer]
  return mark and mark.state ~= "dropped" and mark.state or nil
end

-- Ends the marks of watched optimizers before the next loss. Returns what their gradients, those
-- that are still there, lack: "scale", or "move" (they have a scale from before an update).
local function end_marks(self)
  local lacking = {}
  for optimizer in pairs(self._watched) do
    local mark = self._marks[optimizer]
    if mark then count(self, mark) end
    if not mark and self._moved then lacking[optimizer] = "move"
    elseif mark and mark.state ~= "dropped" then lacking[optimizer] = "scale" end
    self._marks[optimizer] = nil
  end
  -- a step that was left out changes the scale, or a scale that is too large would stay
  if self._checked then self:update() end
  return lacking
end

local function ratio(former, used)
  if core.is_tensor(former) and core.is_tensor(used) then former = former:to(used.device) end
  return former / used
end

-- Brings gradients that are there to the scale `used`, so that the next ones can be added to them.
local function bring(lacking, former, used)
  for optimizer, what in pairs(lacking) do
    local params = params_of(optimizer)
    local present, device = core.gradients(params)
    if present > 0 and not (what == "move" and former == used) then
      divide(params, ratio(what == "scale" and 1 or former, used), device)
    end
  end
end

--- Ends marks at the next loss and at `_drop`, and keeps them through `update`.
---@param optimizer accelerate.optim.Optimizer
function methods:_watch(optimizer) self._watched[optimizer] = true end

--- Ends the mark of an optimizer whose gradients were cleared.
---@param optimizer accelerate.optim.Optimizer
function methods:_drop(optimizer)
  local mark = self._marks[optimizer]
  if mark then count(self, mark) end
  self._marks[optimizer] = { state = "dropped", counted = true }
end

-- ---- a step

-- Takes the scale that the next losses get.
local function use(self, device)
  if device == "cpu" then
    to_host(self)
    self._used = self._scale
    return
  end
  to_device(self, device)
  self._used = core.no_grad(copied_scale, self._live)
  if recording.active then expect(self, self._live) end
end

--- Returns the loss times the scale.
---@param loss accelerate.Tensor|accelerate.Tensor[]
---@return accelerate.Tensor|accelerate.Tensor[]
function methods:scale(loss)
  if not self._enabled then return loss end
  if core.is_tensor(loss) then
    local lacking, former = end_marks(self), self._used
    use(self, loss.device)
    core.no_grad(bring, lacking, former, self._used)
    self._moved = false
    return loss * self._used
  end
  if type(loss) ~= "table" then
    fail("GradScaler: scale: expected a tensor or a list of them, got %s", options.show(loss))
  end
  local list = {}
  for i, one in ipairs(loss) do list[i] = self:scale(one) end
  return list
end

--- Divides an optimizer's gradients by the scale. Call it at most once before each of its steps,
--- and not between its step and `update`.
---@param optimizer accelerate.optim.Optimizer
function methods:unscale_(optimizer)
  if not self._enabled then return end
  local state, name = state_of(self, optimizer), optimizer.__name or "optimizer"
  if state == "unscaled" then
    fail("GradScaler: unscale_: the gradients of this %s were unscaled already since the last update", name)
  elseif state == "stepped" then
    fail("GradScaler: unscale_: this %s has stepped with its gradients already; call update first", name)
  elseif not state then
    unscale(self, optimizer)
  end
end

--- Divides an optimizer's gradients by the scale, unless that was done.
function methods:unscale_once_(optimizer)
  if self._enabled and not state_of(self, optimizer) then unscale(self, optimizer) end
end

-- Returns the mark of an optimizer that is to step now.
local function stepping(self, optimizer)
  if state_of(self, optimizer) == "stepped" then
    fail("GradScaler: step: this %s has stepped already since the last update",
      optimizer.__name or "optimizer")
  end
  self:unscale_once_(optimizer)
  local mark = state_of(self, optimizer) and self._marks[optimizer] or { overflow = false }
  mark.state, self._marks[optimizer], self._checked = "stepped", mark, true
  return mark
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
  local mark = stepping(self, optimizer)
  if mark.found and optimizer._skips_on_device and optimizer:_skips_on_device() then
    optimizer:_step_unless(mark.found)
    return nil, mark.found
  end
  -- the host knows now, and can update the scale itself
  if mark.found then mark.overflow, mark.found = mark.found:item() ~= 0, nil end
  if mark.overflow then return nil, false end
  return optimizer:step(), true
end

-- Combines the flags of several optimizers.
local function any_of(list, device)
  if #list == 0 then return core.zeros({ 1 }, { device = device }) end
  return #list == 1 and list[1] or core.cat(list):max():reshape(1)
end

-- Returns whether the device can update the scale without the host.
local function follows(self)
  if not self._live or self._overflows or self._rules then return false end
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

-- DeepSpeed's rules: of `hysteresis` overflows only the last one lowers the scale, never below
-- min_scale. The scale grows after growth_interval clean steps beyond the first, and that, or each
-- clean step with `consecutive`, allows as many overflows again.
local function update_by_rules(self, overflows)
  local rules = self._rules
  if overflows then
    self._growth_tracker = 0
    if self._hysteresis_left > 1 then
      self._hysteresis_left = self._hysteresis_left - 1
    elseif self._scale <= rules.min_scale then
      fail("GradScaler: gradients overflow although the loss scale is at fp16.min_loss_scale = %g",
        rules.min_scale)
    else
      self._scale = math.max(self._scale * self._backoff_factor, rules.min_scale)
    end
    return
  end
  self._growth_tracker = self._growth_tracker + 1
  if rules.consecutive then self._hysteresis_left = rules.hysteresis end
  local beyond = self._growth_tracker - 1
  if beyond > 0 and beyond % self._growth_interval == 0 then
    self._hysteresis_left = rules.hysteresis
    if self._scale * self._growth_factor < 3.4e38 then self._scale = self._scale * self._growth_factor end
  end
end

local function update_here(self)
  local overflows = self._overflows
  for _, found in ipairs(self._found) do overflows = overflows or found:item() ~= 0 end
  to_host(self)
  if self._rules then
    if not self._rules.static then update_by_rules(self, overflows) end
    return
  end
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

-- Hears of all gradients that were unscaled since the last update, those of a step that was left
-- out among them.
local function count_all(self)
  for optimizer, mark in pairs(self._marks) do
    count(self, mark)
    if not self._watched[optimizer] then self._marks[optimizer] = nil
    elseif mark.state == "stepped" then mark.state = "spent" end
  end
end

--- Updates the scale after the steps: shrinks it when gradients overflowed, grows it after
--- growth_interval updates without that. A step that the script leaves out after `unscale_` counts.
--- Call it after `step` or `unscale_`.
---@param new_scale number? sets the scale to this instead
function methods:update(new_scale)
  if not self._enabled then return end
  if new_scale ~= nil then
    new_scale = options.value("GradScaler: update", "new_scale", new_scale, { "number", above = 0 })
  end
  count_all(self)
  if new_scale ~= nil then
    to_host(self)
    self._scale = new_scale
  elseif not self._checked then
    fail("GradScaler: update: no gradients were unscaled and no optimizer stepped since the last update")
  elseif follows(self) then core.no_grad(follow, self)
  else update_here(self) end
  self._overflows, self._found, self._checked, self._moved = false, {}, false, true
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

--- Follows DeepSpeed's rules in place of PyTorch's from now on. The host applies them, and waits
--- for the device at each update.
---@param rules { static: boolean, hysteresis: integer, min_scale: number, consecutive: boolean }
---  static: the scale stays what it is
function methods:_follow(rules)
  self._rules, self._hysteresis_left = rules, rules.hysteresis
end

--- Returns the state for a checkpoint; empty when scaling is off.
---@return { scale: number, growth_factor: number, backoff_factor: number, growth_interval: integer,
---  _growth_tracker: integer }|table
function methods:state_dict()
  if not self._enabled then return {} end
  pull(self)
  return { scale = self._scale, growth_factor = self._growth_factor, backoff_factor = self._backoff_factor,
    growth_interval = self._growth_interval, _growth_tracker = self._growth_tracker,
    _hysteresis_left = self._hysteresis_left }
end

local STATE = {
  scale = { "number", above = 0 }, growth_factor = OPTIONS.growth_factor,
  backoff_factor = OPTIONS.backoff_factor,
  growth_interval = OPTIONS.growth_interval, _growth_tracker = { "integer", min = 0 },
  _hysteresis_left = { "integer", optional = true, min = 1 },
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
  self._live, self._moved = nil, true
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
  self._found = {}  -- overflow flags that the next update hears of
  self._checked = false  -- whether it hears of any gradients
  self._moved = false  -- whether the scale may have changed since the last loss
  self._init_scale = nil
  self._marks, self._watched = setmetatable({}, { __mode = "k" }), setmetatable({}, { __mode = "k" })
  return self
end)

return M
