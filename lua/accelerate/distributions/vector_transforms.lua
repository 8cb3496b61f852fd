--- Transforms of vectors and of matrices: to the simplex, to factors of covariances and of
--- correlations.
local core = require "accelerate.core"
local linalg = require "accelerate.tensor.linalg"
local options = require "accelerate.utils.options"
local tensor = require "accelerate.tensor"
local transforms = require "accelerate.distributions.transforms"

local M = {}

local function like(x) return { dtype = x.dtype, device = x.device } end
local function limits(x)
  if x.dtype == "float64" then return 2 ^ -52, 2 ^ -1022 end
  return 2 ^ -23, 2 ^ -126
end

local function define(name, before, after)
  local Class = transforms.class(name)
  Class.domain_event_dim, Class.codomain_event_dim = before, after
  M[name] = Class
  return Class
end

-- The shape with its last size changed by n.
local function longer(shape, n)
  local out = { unpack(shape) }
  out[#out] = out[#out] + n
  return out
end

-- ---- vectors

--- y = exp(x) / the sum of exp(x), of each row. It has no inverse; log goes back to one of the x.
---@class accelerate.SoftmaxTransform: accelerate.Transform
local Softmax = define("SoftmaxTransform", 1, 1)
Softmax.bijective = false
function Softmax:_call(x) return x:softmax(-1) end
function Softmax:_inverse(y) return y:log() end

--- Rows of n numbers to points of the simplex of n + 1: the sigmoid of each is the part that it
--- breaks off what is left of a stick.
---@class accelerate.StickBreakingTransform: accelerate.Transform
local StickBreaking = define("StickBreakingTransform", 1, 1)
-- The logarithms of n, n - 1, .., 1: where x is 0 all parts are alike.
local function offsets(x, n) return tensor.arange(n, 0, -1, like(x)):log() end
function StickBreaking:_call(x)
  local eps, tiny = limits(x)
  local z = (x - offsets(x, x:size(-1))):sigmoid():clamp { min = tiny, max = 1 - eps }
  local ones = core.ones_like(z:narrow(-1, 1, 1))
  return core.cat({ z, ones }, -1) * core.cat({ ones, (1 - z):cumprod(-1) }, -1)
end
function StickBreaking:_inverse(y)
  local _, tiny = limits(y)
  local n = y:size(-1) - 1
  local part = y:narrow(-1, 1, n)
  return part:log() - (1 - part:cumsum(-1)):clamp({ min = tiny }):log() + offsets(y, n)
end
function StickBreaking:_jacobian(x, y)
  local n = x:size(-1)
  x = x - offsets(x, n)
  return (x:logsigmoid() - x + y:narrow(-1, 1, n):log()):sum(-1)
end
function StickBreaking:_forward_shape(shape) return longer(shape, 1) end
function StickBreaking:_inverse_shape(shape) return longer(shape, -1) end

-- ---- matrices

local function diagonal(x) return x:diagonal({ dim1 = -2, dim2 = -1 }) end

--- Matrices to lower-triangular ones with a positive diagonal, which is exp of x's.
---@class accelerate.LowerCholeskyTransform: accelerate.Transform
local LowerCholesky = define("LowerCholeskyTransform", 2, 2)
LowerCholesky.bijective = false
local function to_factor(x) return x:tril(-1) + diagonal(x):exp():diag_embed() end
local function from_factor(y) return y:tril(-1) + diagonal(y):log():diag_embed() end
function LowerCholesky:_call(x) return to_factor(x) end
function LowerCholesky:_inverse(y) return from_factor(y) end

--- Matrices to positive-definite ones: y = L L^T of the factor L that LowerCholeskyTransform makes.
---@class accelerate.PositiveDefiniteTransform: accelerate.Transform
local PositiveDefinite = define("PositiveDefiniteTransform", 2, 2)
PositiveDefinite.bijective = false
function PositiveDefinite:_call(x)
  local factor = to_factor(x)
  return factor:matmul(factor:transpose(-2, -1))
end
function PositiveDefinite:_inverse(y) return from_factor(linalg.cholesky(y)) end

-- ---- correlations

local function take(x, positions)
  return x:index_select(-1, tensor.tensor(positions, { dtype = "int64" }):to(x.device))
end

-- The elements of n rows that are at or below a diagonal, row by row.
local function to_vector(x, below)
  local n, positions = x:size(-1), {}
  for i = 0, n - 1 do
    for j = 0, i + below do positions[#positions + 1] = i * n + j end
  end
  local shape = { unpack(x.shape, 1, x:dim() - 2) }
  shape[#shape + 1] = n * n
  return take(x:reshape(shape), positions)
end

-- Matrices of n rows with the vector's elements below the diagonal, row by row, and zeros.
local function to_matrix(x, n)
  local positions, zero, k = {}, x:size(-1), 0
  for i = 0, n - 1 do
    for j = 0, n - 1 do
      positions[#positions + 1] = j < i and k or zero
      if j < i then k = k + 1 end
    end
  end
  local shape = { unpack(x.shape, 1, x:dim() - 1) }
  shape[#shape + 1], shape[#shape + 2] = n, n
  return take(core.cat({ x, core.zeros_like(x:narrow(-1, 1, 1)) }, -1), positions):reshape(shape)
end

-- x moved one to the right in the rows, after ones.
local function moved(x)
  return core.cat({ core.ones_like(x:narrow(-1, 1, 1)), x:narrow(-1, 1, x:size(-1) - 1) }, -1)
end

--- Rows of n (n - 1) / 2 numbers to the Cholesky factors of correlation matrices of n rows: tanh of
--- each is the part of what is left of a row's length, which is 1.
---@class accelerate.CorrCholeskyTransform: accelerate.Transform
local CorrCholesky = define("CorrCholeskyTransform", 1, 2)
function CorrCholesky:_forward_shape(shape)
  local count = shape[#shape]
  local n = math.floor((0.25 + 2 * count) ^ 0.5 + 1)
  if n * (n - 1) / 2 ~= count then
    options.fail("CorrCholeskyTransform: expected n (n - 1) / 2 elements in the last dimension, got %d",
      count)
  end
  local out = { unpack(shape, 1, #shape - 1) }
  out[#out + 1], out[#out + 2] = n, n
  return out
end
function CorrCholesky:_inverse_shape(shape)
  local n = shape[#shape]
  if shape[#shape - 1] ~= n then
    options.fail("CorrCholeskyTransform: expected square matrices, got %d rows of %d", shape[#shape - 1], n)
  end
  local out = { unpack(shape, 1, #shape - 2) }
  out[#out + 1] = n * (n - 1) / 2
  return out
end
function CorrCholesky:_call(x)
  local shape, eps = self:_forward_shape(x.shape), limits(x)
  local n = shape[#shape]
  local r = to_matrix(x:tanh():clamp { min = eps - 1, max = 1 - eps }, n)
  local left = (1 - r * r):sqrt():cumprod(-1)
  return (r + tensor.eye(n, like(r))) * moved(left)
end
function CorrCholesky:_inverse(y)
  local left = moved(1 - (y * y):cumsum(-1))
  local t = to_vector(y, -1) / to_vector(left, -1):sqrt()
  return (t:log1p() - (-t):log1p()) / 2
end
-- Of x and of y's elements below the diagonal.
function CorrCholesky:_jacobian(x, y)
  local from_tanh = -2 * (x + core.softplus(-2 * x) - math.log(2)):sum(-1)
  if y:size(-1) < 3 then return from_tanh end
  return 0.5 * to_vector(1 - (y * y):cumsum(-1), -2):log():sum(-1) + from_tanh
end

return M
