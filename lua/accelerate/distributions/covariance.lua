--- A covariance given by one of three matrices: by itself, its inverse or its Cholesky factor.
local base = require "accelerate.distributions.base"
local core = require "accelerate.core"
local linalg = require "accelerate.tensor.linalg"
local options = require "accelerate.utils.options"

local M = {}

local FORMS = { "covariance_matrix", "precision_matrix", "scale_tril" }

--- The options of constructors that take one.
M.OPTIONS = { covariance_matrix = { "tensor", optional = true },
  precision_matrix = { "tensor", optional = true }, scale_tril = { "tensor", optional = true },
  validate_args = { "boolean", default = true } }

--- Returns the name of the one of the three matrices that was given, and the matrix.
---@param name string of the distribution
---@param o table options
---@return string form
---@return accelerate.Tensor matrix
function M.given(name, o)
  local found
  for _, form in ipairs(FORMS) do
    if o[form] then
      if found then found = nil break end
      found = form
    end
  end
  if not found then
    options.fail("%s: exactly one of covariance_matrix, precision_matrix and scale_tril must be given", name)
  end
  return found, (base.parameters(name, found, o[found]))
end

--- Raises unless a matrix is what its name says.
function M.check(name, form, matrix)
  local m = matrix:detach()
  if form == "scale_tril" then
    base.expect(name, "parameter scale_tril", matrix, "lower-triangular with a positive diagonal",
      core.logical_and(m:tril():eq(m):all(), m:diagonal({ dim1 = -2, dim2 = -1 }):gt(0):all()))
    return
  end
  local like_transpose = (m - m:transpose(-2, -1)):abs():le(1e-6 * m:abs():amax() + 1e-30):all()
  local words = "symmetric and positive-definite"
  base.expect(name, "parameter " .. form, matrix, words, like_transpose)
  local _, info = linalg.cholesky_ex(m)
  base.expect(name, "parameter " .. form, matrix, words, info:eq(0))
end

--- Returns the covariance's lower Cholesky factor.
---@param form string
---@param matrix accelerate.Tensor
---@return accelerate.Tensor
function M.factor(form, matrix)
  if form == "scale_tril" then return matrix end
  return linalg.cholesky(form == "covariance_matrix" and matrix or linalg.inv(matrix))
end

--- Returns half of the logarithm of the covariance's determinant.
---@param factor accelerate.Tensor
---@return accelerate.Tensor
function M.half_log_det(factor) return factor:diagonal({ dim1 = -2, dim2 = -1 }):log():sum(-1) end

return M
