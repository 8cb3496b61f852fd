--- The normal distribution of vectors.
local base = require "accelerate.distributions.base"
local covariance = require "accelerate.distributions.covariance"
local linalg = require "accelerate.tensor.linalg"
local options = require "accelerate.utils.options"
local tensor = require "accelerate.tensor"

--- The normal distribution of vectors of n elements.
---@class accelerate.MultivariateNormal: accelerate.Distribution
---@field loc accelerate.Tensor [.., n]
---@field covariance_matrix accelerate.Tensor [.., n, n]
---@field precision_matrix accelerate.Tensor [.., n, n] the inverse of the covariance
---@field scale_tril accelerate.Tensor [.., n, n] the covariance's lower Cholesky factor
local MultivariateNormal = base.class "MultivariateNormal"
MultivariateNormal.has_rsample = true

---@param loc accelerate.Tensor [.., n] mean
---@param opts { covariance_matrix: accelerate.Tensor?, precision_matrix: accelerate.Tensor?,
---  scale_tril: accelerate.Tensor?, validate_args: boolean? } exactly one matrix, [.., n, n]
function MultivariateNormal:init(loc, opts)
  local name = "MultivariateNormal"
  local o = options.check(name, opts, covariance.OPTIONS)
  local form, matrix = covariance.given(name, o)
  loc = base.parameters(name, "loc", loc)
  local m = matrix.shape
  local n = loc.shape[#loc.shape]
  if not n or #m < 2 or m[#m] ~= n or m[#m - 1] ~= n then
    options.fail("%s: expected loc (.., n) and %s (.., n, n), got %s and %s", name, form, options.show(loc),
      options.show(matrix))
  end
  local batch = tensor.broadcast_shapes({ unpack(loc.shape, 1, #loc.shape - 1) }, { unpack(m, 1, #m - 2) })
  if o.validate_args then covariance.check(name, form, matrix) end
  self.loc = loc:expand(base.joined(batch, { n }))
  self[form] = matrix:expand(base.joined(batch, { n, n }))
  self:_shapes(batch, { n }, o.validate_args)
  -- one factorisation for each matrix that was given, not for each element of the batch
  self._factor = covariance.factor(form, matrix)
end

local function square(self) return base.joined(self.batch_shape, self.event_shape, self.event_shape) end

function MultivariateNormal:_get_scale_tril() return self._factor:expand(square(self)) end
function MultivariateNormal:_get_covariance_matrix()
  return self._factor:matmul(self._factor:transpose(-2, -1)):expand(square(self))
end
function MultivariateNormal:_get_precision_matrix()
  return linalg.inv(self._factor:matmul(self._factor:transpose(-2, -1))):expand(square(self))
end
function MultivariateNormal:_get_mean() return self.loc end
function MultivariateNormal:_get_mode() return self.loc end
function MultivariateNormal:_get_variance()
  return (self._factor * self._factor):sum(-1):expand(base.joined(self.batch_shape, self.event_shape))
end
function MultivariateNormal:_support(value) base.check(self, "the value", value, "real") end
function MultivariateNormal:_draw(shape)
  local noise = tensor.randn(shape, base.like(self.loc)):unsqueeze(-1)
  return self.loc + self._factor:matmul(noise):squeeze(-1)
end
function MultivariateNormal:_expanded(shape)
  local n = self.event_shape[1]
  return MultivariateNormal(self.loc:expand(base.joined(shape, { n })),
    { scale_tril = self._factor:expand(base.joined(shape, { n, n })), validate_args = false })
end

-- Half of the logarithm of the covariance's determinant.
function MultivariateNormal:_half_log_det() return covariance.half_log_det(self._factor) end

-- (x factor^-T) for rows of vectors x (.., n): x L^-T has the squared length of x by the precision.
local function whitened(factor, x)
  local shape = tensor.broadcast_shapes({ unpack(x.shape, 1, #x.shape - 1) },
    { unpack(factor.shape, 1, #factor.shape - 2) })
  local n = x.shape[#x.shape]
  local wide = factor:expand(base.joined(shape, { n, n }))
  return linalg.solve_triangular(wide, x:expand(base.joined(shape, { n })):unsqueeze(-1), { upper = false })
    :squeeze(-1)
end
MultivariateNormal._whitened = whitened

function MultivariateNormal:log_prob(value)
  local z = whitened(self._factor, self:_value(value) - self.loc)
  local n = self.event_shape[1]
  return -0.5 * (n * math.log(2 * math.pi) + (z * z):sum(-1)) - self:_half_log_det()
end
function MultivariateNormal:entropy()
  local n = self.event_shape[1]
  return (0.5 * n * (1 + math.log(2 * math.pi)) + self:_half_log_det()):expand(self.batch_shape)
end

return MultivariateNormal
