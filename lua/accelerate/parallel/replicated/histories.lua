--- Gradients with a history (`create_graph`) that are averaged over ranks.
---
--- A loss of the averaged gradient g = mean of g_r that all ranks compute alike has the gradient
--- mean of dloss/dg * dg_r. Each rank contributes dloss/dg * dg_r of its own, since its g has the
--- history of its g_r as if it were g_r; the reduction after that pass takes the mean.
local core = require "accelerate.core"

local M = {}

local averaged = core.Function {
  forward = function(_, _, mean) return mean:clone() end,
  backward = function(_, slope) return slope, nil end,
}

--- Returns the gradients that have a history, by parameter.
---@param model accelerate.nn.Module
---@return table<accelerate.Tensor, accelerate.Tensor>
function M.of(model)
  local kept = {}
  for _, p in ipairs(model:parameters()) do
    local grad = p.grad
    if grad and grad.requires_grad then kept[p] = grad end
  end
  return kept
end

--- Gives averaged gradients the history that they had before.
---@param kept table<accelerate.Tensor, accelerate.Tensor> what `of` returned
function M.give_back(kept)
  core.enable_grad(function()
    for p, grad in pairs(kept) do p.grad = averaged(grad, p.grad) end
  end)
end

return M
