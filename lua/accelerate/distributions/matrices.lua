--- Distributions of matrices: LKJCholesky, Wishart.
local base = require "accelerate.distributions.base"
local core = require "accelerate.core"
local covariance = require "accelerate.distributions.covariance"
local gamma = require "accelerate.distributions.gamma"
local linalg = require "accelerate.tensor.linalg"
local options = require "accelerate.utils.options"
local tensor = require "accelerate.tensor"

local M = {}

local function diagonal(x) return x:diagonal({ dim1 = -2, dim2 = -1 }) end

-- ---- LKJCholesky

--- Lewandowski, Kurowicka and Joe's distribution of Cholesky factors of correlation matrices: the
--- density of a matrix is its determinant to the power of concentration - 1, but for a factor.
---@class accelerate.LKJCholesky: accelerate.Distribution
---@field dim integer
---@field concentration accelerate.Tensor
local LKJCholesky = base.class "LKJCholesky"
LKJCholesky.has_rsample = false

---@param dim integer rows of a matrix, at least 2
---@param concentration accelerate.Tensor|number|nil above 0, default 1
---@param opts { validate_args: boolean? }?
function LKJCholesky:init(dim, concentration, opts)
  local name = "LKJCholesky"
  local validate = base.validates(name, opts)
  options.value(name, "dim", dim, { "integer", min = 2 })
  self.dim, self.concentration = dim, base.parameters(name, "concentration", concentration or 1)
  self:_shapes(self.concentration.shape, { dim, dim }, validate)
  base.check(self, "parameter concentration", self.concentration, "positive")
end

function LKJCholesky:_dtype() return self.concentration.dtype end
function LKJCholesky:_support(value)
  if not self._validate then return end
  local eps = value.dtype == "float64" and 2 ^ -52 or 2 ^ -23
  local rows = ((value * value):sum(-1):sqrt() - 1):abs():le(eps * self.dim * 10):all(-1)
  local lower = core.logical_and(value:tril():eq(value):all(-1):all(-1), diagonal(value):gt(0):all(-1))
  base.expect("LKJCholesky", "the value", value,
    "lower-triangular with a positive diagonal and rows of length 1", core.logical_and(rows, lower))
end
-- The onion method: each row is a direction, drawn on a sphere, whose squared length is a beta
-- variable; the diagonal makes the row's length 1.
function LKJCholesky:_draw(shape)
  local like, n = base.like(self.concentration), self.dim
  local tiny = like.dtype == "float64" and 2 ^ -1022 or 2 ^ -126
  local halves = ((tensor.arange(n, like) - 1) / 2):clamp { min = 0 }
  local rest = (self.concentration:detach() + 0.5 * (n - 2)):unsqueeze(-1) - halves
  local flat = { unpack(shape, 1, #shape - 1) }
  local x, y = gamma.standard_gamma(flat, halves + 0.5), gamma.standard_gamma(flat, rest)
  local direction = tensor.randn(shape, like):tril(-1)
  local length = (direction * direction):sum({ -1 }, true):sqrt():clamp { min = tiny }
  local below = (x / (x + y)):sqrt():unsqueeze(-1) * (direction / length)
  return below + (1 - (below * below):sum(-1)):clamp({ min = tiny }):sqrt():diag_embed()
end
function LKJCholesky:_expanded(shape)
  return LKJCholesky(self.dim, self.concentration:expand(shape), { validate_args = self._validate })
end
function LKJCholesky:log_prob(value)
  local concentration, n = self.concentration, self.dim - 1
  local logs = diagonal(self:_value(value)):narrow(-1, 2, n):log()
  local order = 2 * (concentration - 1):unsqueeze(-1) + (n + 1)
    - tensor.arange(2, n + 2, base.like(concentration))
  local alpha = concentration + 0.5 * n
  local scale = 0.5 * n * math.log(math.pi) + tensor.mvlgamma(alpha - 0.5, n) - n * core.lgamma(alpha)
  return (order * logs):sum(-1) - scale
end

-- ---- Wishart

--- The distribution of the sum of squares x x^T of df normal vectors x.
---@class accelerate.Wishart: accelerate.Distribution
---@field df accelerate.Tensor
---@field covariance_matrix accelerate.Tensor [.., n, n] of the vectors
---@field precision_matrix accelerate.Tensor [.., n, n] the inverse of the covariance
---@field scale_tril accelerate.Tensor [.., n, n] the covariance's lower Cholesky factor
local Wishart = base.class "Wishart"
Wishart.has_rsample = true

---@param df accelerate.Tensor|number degrees of freedom, above n - 1
---@param opts { covariance_matrix: accelerate.Tensor?, precision_matrix: accelerate.Tensor?,
---  scale_tril: accelerate.Tensor?, validate_args: boolean? } exactly one matrix, [.., n, n]
function Wishart:init(df, opts)
  local o = options.check("Wishart", opts, covariance.OPTIONS)
  local form, matrix = covariance.given("Wishart", o)
  df = base.parameters("Wishart", "df", base.probability(df, matrix))
  local m = matrix.shape
  local n = m[#m]
  if #m < 2 or m[#m - 1] ~= n then
    options.fail("Wishart: expected %s (.., n, n), got %s", form, options.show(matrix))
  end
  local batch = tensor.broadcast_shapes(df.shape, { unpack(m, 1, #m - 2) })
  self.df, self[form] = df:expand(batch), matrix:expand(base.joined(batch, { n, n }))
  self:_shapes(batch, { n, n }, o.validate_args)
  base.expect("Wishart", "parameter df", df, ("above %d, the rows less 1"):format(n - 1),
    df:detach():gt(n - 1))
  if o.validate_args then covariance.check("Wishart", form, matrix) end
  self._factor = covariance.factor(form, matrix)
end

local function square(self, x) return x:expand(base.joined(self.batch_shape, self.event_shape)) end
local function by_df(x) return x:unsqueeze(-1):unsqueeze(-1) end

-- The inverse of the factor.
local function inverse(self)
  local unit = tensor.eye(self.event_shape[1], base.like(self._factor))
  return linalg.solve_triangular(self._factor, unit:expand(self._factor.shape), { upper = false })
end
local function precision(self)
  local l = inverse(self)
  return l:transpose(-2, -1):matmul(l)
end

function Wishart:_get_scale_tril() return square(self, self._factor) end
function Wishart:_get_covariance_matrix()
  return square(self, self._factor:matmul(self._factor:transpose(-2, -1)))
end
function Wishart:_get_precision_matrix() return square(self, precision(self)) end
function Wishart:_get_mean() return by_df(self.df) * self.covariance_matrix end
function Wishart:_get_mode()
  local over = self.df - self.event_shape[1] - 1
  return by_df(core.where(over:gt(0), over, core.full_like(over, 0 / 0))) * self.covariance_matrix
end
function Wishart:_get_variance()
  local v = self.covariance_matrix
  local d = diagonal(v)
  return by_df(self.df) * (v * v + d:unsqueeze(-1) * d:unsqueeze(-2))
end
function Wishart:_support(value)
  if self._validate then covariance.check("Wishart", "covariance_matrix", value) end
end
-- Bartlett's decomposition: the factor of a draw is a triangle of normal variables with roots of
-- chi-squared ones on its diagonal.
local function drawn(self, shape)
  local like, n = base.like(self._factor), self.event_shape[1]
  local halves = (self.df:unsqueeze(-1) - tensor.arange(n, like)) / 2
  local squares = gamma.standard_gamma({ unpack(shape, 1, #shape - 1) }, halves) * 2
  local least = like.dtype == "float64" and 2 ^ -52 or 2 ^ -23
  local noise = squares:sqrt():clamp({ min = least }):diag_embed() + tensor.randn(shape, like):tril(-1)
  local factor = self._factor:matmul(noise)
  return factor:matmul(factor:transpose(-2, -1))
end
-- Draws that came out singular are drawn again, ten times at most.
function Wishart:_draw(shape)
  local draw = drawn(self, shape)
  for _ = 1, 10 do
    local _, info = linalg.cholesky_ex(draw:detach())
    local singular = info:ne(0)
    if not singular:any():item() then break end
    draw = core.where(by_df(singular), drawn(self, shape), draw)
  end
  return draw
end
function Wishart:_expanded(shape)
  return Wishart(self.df:expand(shape), { validate_args = self._validate,
    scale_tril = self._factor:expand(base.joined(shape, self.event_shape)) })
end
local function mvdigamma(x, n)
  return core.digamma(x:unsqueeze(-1) - tensor.arange(n, base.like(x)) / 2):sum(-1)
end
-- The logarithm of the determinant of twice the covariance, halved.
local function half_log_det(self)
  return 0.5 * self.event_shape[1] * math.log(2) + covariance.half_log_det(self._factor)
end
function Wishart:log_prob(value)
  value = self:_value(value)
  local df, n = self.df, self.event_shape[1]
  local _, log_det = linalg.slogdet(value)
  local trace = (precision(self) * value):sum(-1):sum(-1)
  return -df * half_log_det(self) - tensor.mvlgamma(df / 2, n) + (df - n - 1) / 2 * log_det - trace / 2
end
function Wishart:entropy()
  local df, n = self.df, self.event_shape[1]
  return (n + 1) * half_log_det(self) + tensor.mvlgamma(df / 2, n) - (df - n - 1) / 2 * mvdigamma(df / 2, n)
    + df * n / 2
end

--- Returns the divergence of a Wishart distribution q from another, p.
---@param p accelerate.Wishart
---@param q accelerate.Wishart
---@return accelerate.Tensor
function M.wishart_divergence(p, q)
  local n = p.event_shape[1]
  if n ~= q.event_shape[1] then
    options.fail("kl_divergence: Wishart of %d and of %d rows", n, q.event_shape[1])
  end
  local a, b = p.df, q.df
  local ratio = inverse(q):matmul(p._factor)
  local trace = (ratio * ratio):sum(-1):sum(-1)
  return b * (covariance.half_log_det(q._factor) - covariance.half_log_det(p._factor)) + a / 2 * (trace - n)
    + tensor.mvlgamma(b / 2, n) - tensor.mvlgamma(a / 2, n) + (a - b) / 2 * mvdigamma(a / 2, n)
end

M.LKJCholesky, M.Wishart = LKJCholesky, Wishart

return M
