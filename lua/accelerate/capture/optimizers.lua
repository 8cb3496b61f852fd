--- Optimizers' steps in captured ones (accelerate.utils.capture): the device repeats what the
--- kernels do, and this what the host does: it counts, and sends the numbers of the groups as they
--- are at each replay.
local core = require "accelerate.core"
local recording = require "accelerate.capture.recording"

local M = {}

--- Before core.optim_step: what it will count.
---@param batch { params: accelerate.Tensor[], states: table[] }
---@return table[] counted
function M.before(batch)
  local counted = {}
  for k, p in ipairs(batch.params) do
    if p.grad ~= nil then
      local state = batch.states[k]
      counted[#counted + 1] = { state = state, step = state.step, tensors = {} }
      for name, value in next, state do
        if core.is_tensor(value) then counted[#counted].tensors[name] = value
        elseif name ~= "step" then counted[#counted][name] = value end
      end
    end
  end
  return counted
end

-- Why this part of a recording does not fit the optimizer any more; nil: it does.
local function misfit(counted, moved)
  local ran = counted[1] and counted[1].state.step - counted[1].step
  for _, c in ipairs(counted) do
    for name, t in next, c.tensors do
      if c.state[name] ~= t then return "the optimizer's state was given other memory" end
    end
    if c.state.step - c.step ~= ran then
      return "the parameters' counts of steps were given other memory: they no longer go together"
    end
  end
  return moved()
end

--- After it: tells the recording under way.
---@param optimizer accelerate.optim.Optimizer
---@param group table
---@param plan table the one that was stepped; another one in its place does not fit
---@param counted table[] from before()
---@param number integer? the place of its numbers in the recording; nil: the step is only to be
---  undone
---@param unsettle function? for steps that the device may skip: says that the counts are not sure
function M.after(optimizer, group, plan, counted, number, unsettle)
  local active = recording.active
  if recording.optimizers then recording.optimizers[optimizer] = true end
  local needs, hyper = plan.needs, {}
  local function again(capture)
    optimizer:_hyper(group, hyper)
    core.capture_set_optim(capture, number, optimizer._kind, hyper, counted[1].state.step - counted[1].step)
    for i = 1, #counted do
      local state = counted[i].state
      state.step = state.step + 1
    end
    if unsettle then unsettle() end
  end
  recording.tell(again, function()
    for _, c in ipairs(counted) do
      c.state.step = c.step
      for name, value in next, c do
        if name ~= "state" and name ~= "step" and name ~= "tensors" then c.state[name] = value end
      end
    end
  end)
  active.fits[#active.fits + 1] = function()
    return misfit(counted, function()
      optimizer:_hyper(group, hyper)
      if optimizer:_needs(hyper) ~= needs then return "an option of the optimizer asks for other states" end
      if plan.count ~= #group.params or optimizer._plans[group] ~= plan then
        return "the optimizer's parameters or state were given other memory"
      end
    end)
  end
end

return M
