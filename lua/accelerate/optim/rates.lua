--- Learning rates that were given as tensors of one element. A group's lr is a number; the tensor
--- and the number follow each other: a script that changes the tensor in place changes the rate of
--- the next step, and what a scheduler sets is written into the tensor.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local recording = require "accelerate.capture.recording"

local M = {}

-- group -> { tensor, number = the group's lr, seen = the tensor's element } when they last agreed
local live = setmetatable({}, { __mode = "k" })

--- Returns the number in a tensor of one element.
---@param where string the optimizer's name, for messages
---@param tensor accelerate.Tensor
---@return number
function M.number(where, tensor)
  if tensor:numel() ~= 1 then
    options.fail("%s: lr: expected a number or a tensor of one element, got %s", where, options.show(tensor))
  end
  return tensor:item()
end

--- Makes a tensor the learning rate of a group.
---@param where string
---@param group table
---@param tensor accelerate.Tensor
function M.bind(where, group, tensor)
  local number = M.number(where, tensor)
  group.lr = number
  live[group] = { tensor = tensor, number = number, seen = number }
end

local function agree(group, entry)
  local now = entry.tensor:item()
  if now ~= entry.seen then
    options.value("lr", "the tensor's element", now, { "number", min = 0 })
    group.lr = now
  elseif group.lr ~= entry.number then
    core.no_grad(entry.tensor.fill_, entry.tensor, group.lr)
    now = entry.tensor:item()
  end
  entry.number, entry.seen = group.lr, now
end

--- Lets the tensors of an optimizer's groups and their numbers agree again. While a step is
--- recorded nothing is read.
---@param optimizer accelerate.optim.Optimizer
function M.agree(optimizer)
  if recording.active then return end
  for _, group in ipairs(optimizer.param_groups) do
    if core.is_tensor(group.lr) then M.bind(optimizer.__name or "optimizer", group, group.lr) end
    if live[group] then agree(group, live[group]) end
  end
end

return M
