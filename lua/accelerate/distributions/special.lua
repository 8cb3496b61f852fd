--- Special functions of rows, so that their gradients follow.
local core = require "accelerate.core"

local M = {}

local SHIFT = 8 -- from here on Stirling's series has float64's accuracy
local HALF_LOG_2PI = 0.91893853320467274178
-- B(2k) / (2k (2k - 1)), and B(2k) / (2k), of the Bernoulli numbers B.
local LOG_TERMS = { 1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156 }
local TERMS = { 1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12 }

-- sum of terms[k] / z^(2k), times z^first
local function series(z, terms)
  local inverse = 1 / (z * z)
  local sum = terms[#terms] * inverse
  for k = #terms - 1, 1, -1 do sum = (sum + terms[k]) * inverse end
  return sum
end

-- x where it is at least SHIFT, else x + SHIFT; and x held below SHIFT, with where it is.
local function shifted(x)
  local small = x:lt(SHIFT)
  return core.where(small, x + SHIFT, x), core.where(small, x, core.full_like(x, 1)), small
end

--- The logarithm of the gamma function, above 0.
---@param x accelerate.Tensor floating
---@return accelerate.Tensor
function M.lgamma(x)
  local z, low, small = shifted(x)
  local product = low
  for k = 1, SHIFT - 1 do product = product * (low + k) end
  local stirling = (z - 0.5) * z:log() - z + HALF_LOG_2PI + z * series(z, LOG_TERMS)
  return core.where(small, stirling - product:log(), stirling)
end

--- The derivative of lgamma, above 0.
---@param x accelerate.Tensor floating
---@return accelerate.Tensor
function M.digamma(x)
  local z, low, small = shifted(x)
  local sum = 1 / low
  for k = 1, SHIFT - 1 do sum = sum + 1 / (low + k) end
  local value = z:log() - 0.5 / z - series(z, TERMS)
  return core.where(small, value - sum, value)
end

--- The inverse of erf, between -1 and 1.
---@param x accelerate.Tensor floating
---@return accelerate.Tensor
function M.erfinv(x)
  local a, log = 0.147, (1 - x * x):log()
  local b = 2 / (math.pi * a) + log / 2
  local y = x:sign() * (((b * b - log / a):sqrt() - b):sqrt())
  for _ = 1, 3 do -- Newton's steps
    local step = (y:erf() - x) * (math.sqrt(math.pi) / 2) * (y * y):exp()
    y = y - core.where(step:isfinite(), step, core.zeros_like(step))
  end
  return y
end

return M
