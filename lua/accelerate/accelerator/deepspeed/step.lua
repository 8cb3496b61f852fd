--- What DeepSpeed's engine does in a step: clipping, overflow, schedules.
local core = require "accelerate.core"
local first_step = require "accelerate.optim.first_step"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local recording = require "accelerate.capture.recording"
local state = require "accelerate.state"

local fail = options.fail
local gradient_state = state.GradientState()

local M = {}

local function params_of(optimizer)
  local list = {}
  for _, group in ipairs(optimizer.param_groups) do
    for _, p in ipairs(group.params) do list[#list + 1] = p end
  end
  return list
end

--- Returns whether a schedule moves with the optimizer's steps, and not by its own step.
---@param self accelerate.Accelerator
---@param schedule accelerate.optim.LRScheduler
---@return boolean
function M.moves(self, schedule)
  return self._engine_schedules[schedule] or schedule._by_engine == true
end

-- The norm that gradients are clipped to; 0: none. 'auto' is 1, as Accelerate fills it.
local function clipping(plugin)
  local norm = plugin:get_value("gradient_clipping", 0)
  if norm == "auto" then return 1 end
  return options.value("step", "gradient_clipping of the DeepSpeed configuration", norm,
    { "number", min = 0 })
end

--- Returns the joint norm of all prepared optimizers' gradients; while they are accumulated, that
--- of the last step.
---@param self accelerate.Accelerator
---@param max_norm number? what the script wants to clip to
---@param ready fun(self: accelerate.Accelerator) unscales gradients
---@return accelerate.Tensor? norm 0-d; nil before the first step
function M.clip(self, max_norm, ready)
  local most = clipping(self._state.deepspeed_plugin)
  if type(max_norm) == "number" and max_norm ~= most then
    notice.main_once("clip_grad_norm_: max_norm = %g has no effect under DeepSpeed: gradient_clipping = " ..
      "%s (%s) " ..
      "clips in the optimizer's step", max_norm, tostring(most),
      self._state.deepspeed_plugin:_origin "gradient_clipping")
  end
  if not gradient_state.sync_gradients then return self._gradient_norm end
  ready(self)
  local list = {}
  for _, optimizer in ipairs(self._optimizers) do
    for _, p in ipairs(params_of(optimizer.optimizer)) do list[#list + 1] = p end
  end
  if #list == 0 then return nil end
  return require("accelerate.nn").utils.clip_grad_norm_(list, math.huge)
end

--- Clips the gradients of an optimizer before its step, as the configuration says. Returns false
--- where the step is to be left out: a gradient is infinite or NaN, and bf16.check_grad_overflow is
--- true.
---@param self accelerate.Accelerator
---@param optimizer accelerate.optim.Optimizer
---@param closure function? refused where gradients are clipped: they are its own
---@param ready fun(self: accelerate.Accelerator) unscales gradients
---@return boolean
function M.before_step(self, optimizer, closure, ready)
  local plugin = self._state.deepspeed_plugin
  local most = clipping(plugin)
  local clips = most > 0
  local checks = plugin:get_value "bf16.check_grad_overflow" == true and self.mixed_precision == "bf16"
  if not (clips or checks) then return true end
  if optimizer.fuses_backward then
    if clips then
      fail("step: gradient_clipping = %g (%s): %s moves parameters inside backward, before the norm is known",
        most, plugin:_origin "gradient_clipping", optimizer.__name)
    end
    return true
  end
  if closure then
    fail("step: a closure computes its gradients inside the step, where DeepSpeed's gradient_clipping " ..
      "(%s) cannot clip them", plugin:_origin "gradient_clipping")
  end
  ready(self)
  local norm = require("accelerate.nn").utils.clip_grad_norm_(params_of(optimizer), clips and most
    or math.huge)
  self._gradient_norm = core.keep(norm)
  if not checks then return true end
  recording.refuse("a step with bf16.check_grad_overflow",
    "whether it is made is known only when the host has waited")
  local value = norm:item()
  return value == value and value < math.huge
end

--- Moves the schedules that follow an optimizer, after a step that was made.
---@param self accelerate.Accelerator
---@param optimizer accelerate.AcceleratedOptimizer
function M.after_step(self, optimizer)
  local moving = {}
  for _, schedule in ipairs(self._schedulers) do
    if schedule.by_engine then
      for _, one in ipairs(schedule.optimizers) do
        if one == optimizer then moving[#moving + 1] = schedule.scheduler end
      end
    end
  end
  if #moving == 0 then return end
  if recording.active and self._scaler then
    recording.refuse("a DeepSpeed schedule with float16's loss scaler",
      "whether it moves is known only when the host has waited")
  end
  if optimizer.step_was_skipped then return end
  for _, schedule in ipairs(moving) do
    if not first_step.seen[schedule] then first_step.scheduler(schedule, true) end
    schedule:step()
  end
end

return M
