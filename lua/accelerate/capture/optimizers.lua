--- Optimizer steps in captured steps (accelerate.utils.capture). The device repeats the kernels;
--- this file repeats the host's part: at each replay it counts the step and sends the groups'
--- current numbers.
local recording = require "accelerate.capture.recording"
local states = require "accelerate.optim.states"

local M = {}

--- Steps a group while a step is captured, or run to be compared with its replay.
---@param optimizer accelerate.optim.Optimizer
---@param group table
---@param object userdata the core's object of the group
---@param hyper table numbers of the step
---@param skip accelerate.Tensor? see Optimizer:_step_unless
function M.step(optimizer, group, object, hyper, skip)
  local records, numbers, kind = object:step(hyper, skip, true), {}, optimizer._kind
  local fits = recording.active.fits
  if records[1] and recording.optimizers then recording.optimizers[optimizer] = true end
  for _, record in ipairs(records) do
    recording.register(function(capture)
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
