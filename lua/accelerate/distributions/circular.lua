--- Distributions over angles: VonMises.
local base = require "accelerate.distributions.base"
local core = require "accelerate.core"

local M = {}

-- Coefficients of the modified Bessel functions of order 0 and 1, below 3.75 in (x / 3.75)^2 and
-- above in 3.75 / x, with an error of 2e-7 (Abramowitz and Stegun, 9.8.1 to 9.8.4).
local SMALL = { [0] = { 1, 3.5156229, 3.0899424, 1.2067492, 0.2659732, 0.360768e-1, 0.45813e-2 },
  { 0.5, 0.87890594, 0.51498869, 0.15084934, 0.2658733e-1, 0.301532e-2, 0.32411e-3 } }
local LARGE = { [0] = { 0.39894228, 0.1328592e-1, 0.225319e-2, -0.157565e-2, 0.916281e-2, -0.2057706e-1,
  0.2635537e-1, -0.1647633e-1, 0.392377e-2 },
  { 0.39894228, -0.3988024e-1, -0.362018e-2, 0.163801e-2, -0.1031555e-1, 0.2282967e-1, -0.2895312e-1,
    0.1787654e-1, -0.420059e-2 } }

local function polynomial(x, coefficients)
  local sum = coefficients[#coefficients]
  for i = #coefficients - 1, 1, -1 do sum = sum * x + coefficients[i] end
  return sum
end

-- The logarithm of the modified Bessel function of order 0 or 1.
local function log_bessel(x, order)
  local small = polynomial((x / 3.75) ^ 2, SMALL[order])
  if order == 1 then small = x:abs() * small end
  local large = x - 0.5 * x:log() + polynomial(3.75 / x, LARGE[order]):log()
  return core.where(x:lt(3.75), small:log(), large)
end

--- Von Mises's distribution of angles from -pi to pi; mean and variance are circular ones.
---@class accelerate.VonMises: accelerate.Distribution
---@field loc accelerate.Tensor
---@field concentration accelerate.Tensor
local VonMises = base.class "VonMises"
VonMises.has_rsample, VonMises._parameters = false, { { "loc", "real" }, { "concentration", "positive" } }

---@param loc accelerate.Tensor|number an angle in radians
---@param concentration accelerate.Tensor|number how near to it the draws are, above 0
---@param opts { validate_args: boolean? }?
function VonMises:init(loc, concentration, opts) self:_take(opts, loc, concentration) end

function VonMises:_get_mean() return self.loc end
function VonMises:_get_mode() return self.loc end
function VonMises:_get_variance()
  return 1 - (log_bessel(self.concentration, 1) - log_bessel(self.concentration, 0)):exp()
end
function VonMises:_support(value) base.check(self, "the value", value, "real") end
-- Best and Fisher's rejection from a wrapped Cauchy distribution, in double precision.
function VonMises:_draw(shape)
  local loc, k = self.loc:detach():double(), self.concentration:detach():double():expand(shape)
  local tau = 1 + (1 + 4 * k * k):sqrt()
  local rho = (tau - (2 * tau):sqrt()) / (2 * k)
  local r = core.where(k:lt(1e-5), 1 / k + k, (1 + rho * rho) / (2 * rho))
  -- where k * k is too large for a number, the draw is loc
  local result, open = core.where(k:eq(k), core.zeros_like(k), k), r:eq(r)
  repeat
    local z, u = (base.uniform(shape, k) * math.pi):cos(), base.uniform(shape, k)
    local f = (1 + r * z) / (r + z)
    local c = k * (r - f)
    local taken = core.logical_or((c * (2 - c)):gt(u), ((c / u):log() + 1 - c):ge(0))
    local angle = (base.uniform(shape, k) - 0.5):sign() * f:clamp { min = -1, max = 1 }:acos()
    result = core.where(core.logical_and(open, taken), angle, result)
    open = core.logical_and(open, core.logical_not(taken))
  until not open:any():item()
  return ((result + math.pi + loc):remainder(2 * math.pi) - math.pi):to(self.loc.dtype)
end
function VonMises:log_prob(value)
  local k = self.concentration
  return k * (self:_value(value) - self.loc):cos() - math.log(2 * math.pi) - log_bessel(k, 0)
end

M.VonMises = VonMises

return M
