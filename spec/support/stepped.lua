--- Modules and tensors of float64 numbers that PyTorch can be given too.
local core = require "accelerate.core"

local M = {}

-- ((i * factor + start) % modulus - less) / by for i = 0, 1, ..
local function steps(shape, factor, start, modulus, less, by)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  local list = {}
  for i = 0, count - 1 do list[i + 1] = ((i * factor + start) % modulus - less) / by end
  return core.tensor(list, { dtype = "float64" }):reshape(shape)
end

--- Returns a tensor of a shape: ((i * 5) % 13 - 6) / 7.
function M.tensor(...) return steps({ ... }, 5, 0, 13, 6, 7) end

--- Fills the k-th parameter of a module (from 0) with ((i * 7 + k) % 11 - 5) / 10.
function M.fill(module)
  module:double()
  core.no_grad(function()
    for k, p in ipairs(module:parameters()) do p:copy_(steps(p.shape, 7, k - 1, 11, 5, 10)) end
  end)
  return module
end

--- Returns a bool tensor of rows of numbers: all but 0 are true.
function M.mask(rows) return core.tensor(rows):bool() end

return M
