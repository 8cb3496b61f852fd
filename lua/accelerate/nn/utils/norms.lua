--- What weight_norm and spectral_norm compute, in their older form (normed.lua) and as
--- parametrizations.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local M = {}

--- Returns the dim that weight_norm takes norms for: as dim_of, but -1 is false, as in PyTorch.
---@param where string
---@param dim integer|false
---@param tensor accelerate.Tensor
---@return integer|false
function M.weight_dim(where, dim, tensor) return M.dim_of(where, dim ~= -1 and dim, tensor) end

--- Returns the dim that a norm is taken for, as a number from 1 to the tensor's dims; false for the
--- norm of the whole tensor.
---@param where string
---@param dim integer|false
---@param tensor accelerate.Tensor
---@return integer|false
function M.dim_of(where, dim, tensor)
  if dim == false then return false end
  local n = tensor.ndim
  if dim < 0 then dim = dim + n + 1 end
  if dim < 1 or dim > math.max(n, 1) then
    options.fail("%s: dim is out of range; expected 1..%d or -%d..-1, or false for the norm of all elements",
      where, n, n)
  end
  return dim
end

--- Returns the 2-norms of the slices of a dim, in a shape that broadcasts; false: of all elements.
---@param v accelerate.Tensor
---@param dim integer|false
---@return accelerate.Tensor
function M.norm_except(v, dim)
  if dim == false then return core.norm(v) end
  local others = {}
  for d = 1, v.ndim do if d ~= dim then others[#others + 1] = d end end
  if #others == 0 then return v:abs() end
  return core.norm(v, 2, others, true)
end

--- Returns v scaled to norms g.
---@param v accelerate.Tensor
---@param g accelerate.Tensor
---@param dim integer|false
---@return accelerate.Tensor
function M.weighted(v, g, dim) return v * (g / M.norm_except(v, dim)) end

--- Returns a weight as a matrix whose rows belong to the positions of dim.
---@param weight accelerate.Tensor
---@param dim integer
---@return accelerate.Tensor
function M.matrix(weight, dim)
  if dim ~= 1 then weight = weight:movedim(dim, 1) end
  return weight:reshape(weight.shape[1], -1)
end

local function unit(x, eps) return x / core.norm(x):clamp { min = eps } end

--- Brings u and v nearer to the singular vectors of the largest singular value, in place.
---@param matrix accelerate.Tensor (rows, columns)
---@param u accelerate.Tensor (rows)
---@param v accelerate.Tensor (columns)
---@param steps integer
---@param eps number
---@param v_first? boolean v comes of the old u and then u of the new v; default: u of the old v
function M.iterate(matrix, u, v, steps, eps, v_first)
  core.no_grad(function()
    for _ = 1, steps do
      if v_first then v:copy_(unit(matrix:t():matmul(u), eps)) end
      u:copy_(unit(matrix:matmul(v), eps))
      if not v_first then v:copy_(unit(matrix:t():matmul(u), eps)) end
    end
  end)
end

--- Returns random vectors of norm 1 for both sides of a matrix.
---@param matrix accelerate.Tensor
---@param eps number
---@return accelerate.Tensor u
---@return accelerate.Tensor v
function M.start(matrix, eps)
  local place = { dtype = matrix.dtype, device = matrix.device }
  return unit(core.randn({ matrix.shape[1] }, place), eps), unit(core.randn({ matrix.shape[2] }, place), eps)
end

--- Returns weight / (u matrix v), an estimate of the largest singular value.
---@return accelerate.Tensor
function M.over_sigma(weight, matrix, u, v) return weight / (u * matrix:matmul(v)):sum() end

return M
