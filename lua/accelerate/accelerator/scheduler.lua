--- The scheduler that `prepare` returns: it follows the optimizer's real steps.
local first_step = require "accelerate.optim.first_step"
local notice = require "accelerate.messages.notice"
local properties = require "accelerate.utils.properties"
local recording = require "accelerate.capture.recording"
local state = require "accelerate.state"

local M = {}

local gradient_state = state.GradientState()
local announced = false

--- Prints, once, that a prepared schedule moves N times a step, as in Accelerate: it surprises.
local function announce(moves)
  if announced then return end
  announced = true
  notice.main_once("a prepared scheduler moves %d times at each optimizer step, because each of the %d " ..
    "processes takes a whole batch; " ..
    "step_scheduler_with_optimizer = false or split_batches = true changes that", moves, moves)
end

---@class accelerate.AcceleratedScheduler
---@field scheduler table the scheduler that it wraps; every other field and method is that one's
---@field optimizers table[] the prepared optimizers that it follows
---@field by_engine boolean whether it moves with each of their steps, by itself, as DeepSpeed moves
---  its schedules
local Accelerated = {}

local function move(self, ...)
  if self.by_engine then return end
  local inner = self.scheduler
  if not first_step.seen[inner] and gradient_state.sync_gradients then first_step.scheduler(inner, true) end
  if not self.step_with_optimizer then return inner:step(...) end
  if not gradient_state.sync_gradients then return end
  for _, optimizer in ipairs(self.optimizers) do
    local owner = optimizer._owner
    if recording.active and owner and owner._scaler then
      recording.refuse("a prepared scheduler with float16's loss scaler",
        "whether it moves is known only when the host has waited; call it after the step")
    end
    if optimizer.step_was_skipped then return end
  end
  if self.split_batches() then return inner:step(...) end
  local moves = state.PartialState().num_processes
  if moves > 1 then announce(moves) end
  for _ = 1, moves do
    local total = inner.total_steps
    -- A one-cycle schedule must not be moved past its end by the extra moves.
    if total == nil or (inner._step_count or inner.last_epoch + 1) <= total then inner:step(...) end
  end
end

--- Steps the schedule. Does nothing while gradients are accumulated or after a skipped step, and
--- nothing where DeepSpeed's engine moves it.
--- Otherwise it steps once under split_batches and num_processes times without. With
--- step_scheduler_with_optimizer = false it always steps once.
function Accelerated:step(...) return recording.schedule(self, move, ...) end

local Wrapper = properties.wrapper("AcceleratedScheduler", "scheduler", {
  methods = Accelerated,
  forward = { "get_last_lr", "get_lr", "print_lr", "state_dict", "load_state_dict" },
})

--- Wraps a scheduler.
---@param fields { scheduler: table, optimizers: table[], step_with_optimizer: boolean, by_engine:
---  boolean, split_batches: fun(): boolean } optimizers: prepared ones; split_batches: called at
---  each step, because the configuration may change
function M.AcceleratedScheduler(fields)
  first_step.prepared(fields.scheduler)
  return Wrapper.new(fields)
end

M.is_accelerated, M.unwrap = Wrapper.is, Wrapper.unwrap

return M
