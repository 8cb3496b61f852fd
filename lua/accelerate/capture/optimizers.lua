--- Optimizers' steps in captured ones (accelerate.utils.capture): the device repeats what the
--- kernels do, and this what the host does: it counts, and sends the numbers of the groups as they
--- are at each replay.
local recording = require "accelerate.capture.recording"
local states = require "accelerate.optim.states"

local M = {}

--- Steps a group while a step is recorded, or run to be compared with its replay.
---@param optimizer accelerate.optim.Optimizer
---@param group table
---@param object userdata the core's, of the group
---@param hyper table the numbers of the step
---@param skip accelerate.Tensor? see Optimizer:_step_unless
function M.step(optimizer, group, object, hyper, skip)
  local records, numbers, kind = object:step(hyper, skip, true), {}, optimizer._kind
  local fits = recording.active.fits
  if records[1] and recording.optimizers then recording.optimizers[optimizer] = true end
  for _, record in ipairs(records) do
    recording.tell(function(capture)
      optimizer:_hyper(group, numbers)
      record:again(kind, numbers, capture)
      states.show(optimizer)
    end, function()
      record:undo()
      states.show(optimizer)
    end)
    fits[#fits + 1] = function()
      states.take(optimizer)
      if states.core_of(optimizer, group) ~= object then
        return "the optimizer's parameters or state were given other memory"
      end
      optimizer:_hyper(group, numbers)
      return record:misfit(kind, numbers)
    end
  end
end

return M
