--- Parameters that are cut over ranks, for optimizers whose step reads more of a parameter than the
--- element that it writes.
---
--- accelerate.parallel.pieces replaces `part` when it is loaded; before that no parameter
--- is cut.
local M = {}

---@class accelerate.optim.Part what this rank steps of a parameter
---@field group accelerate.ProcessGroup the ranks that the parameter is cut over
---@field from integer where its elements begin in the flattened parameter, from 0
---@field n integer how many there are; 0: other ranks have all of it
---@field value accelerate.Tensor? these elements, one dim, where they rest; nil where n is 0
---@field grad accelerate.Tensor? likewise of the gradient; nil also where there is no gradient
---@field of fun(rank: integer): integer, integer where the elements of another rank begin, and how
---  many there are; ranks follow one another in the flattened parameter

--- Returns what this rank steps of a parameter that is cut; nil where it steps the whole.
---@param _p accelerate.Tensor
---@return accelerate.optim.Part?
function M.part(_p) return nil end

--- Returns whether an optimizer has parameters that are cut.
---@param optimizer accelerate.optim.Optimizer
---@return boolean
function M.any(optimizer)
  for _, group in ipairs(optimizer.param_groups) do
    for _, p in ipairs(group.params) do
      if M.part(p) then return true end
    end
  end
  return false
end

--- Returns this rank's elements of a state that has one for each element of a parameter: of a whole
--- one a view, one dim; any other state as it is.
---@param p accelerate.Tensor
---@param state accelerate.Tensor
---@return accelerate.Tensor
function M.own(p, state)
  local part = M.part(p)
  if not part or state:numel() ~= p:numel() then return state end
  return state:contiguous():reshape(-1):narrow(1, part.from + 1, part.n)
end

return M
