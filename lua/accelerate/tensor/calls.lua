--- PyTorch's second ways to call functions that are written in C, which reads only one.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

-- ---- full_like with a number in a tensor

--- A tensor of x's shape and type that holds one value everywhere, a number or a tensor of 0 dims.
---@param x accelerate.Tensor
---@param value number|boolean|accelerate.Tensor
---@param ... any { dtype, device, requires_grad }
---@return accelerate.Tensor
function M.full_like(x, value, ...)
  if not core.is_tensor(value) then return core.full_like(x, value, ...) end
  if value.ndim > 0 or value.requires_grad then
    fail("full_like: argument 2 (value): expected a number or a tensor of 0 dims without gradient, got %s%s",
      options.show(value), value.requires_grad and " that requires a gradient" or "")
  end
  local y = core.full_like(x, 0, ...)
  if value:is_complex() and not y:is_complex() then
    fail("full_like: a value of %s does not fit a tensor of %s", value.dtype, y.dtype)
  end
  return core.no_grad(y.fill_, y, value)
end

-- ---- randperm of any type of numbers

-- How many integers from 0 on a type holds.
local MOST = { uint8 = 2 ^ 8, int32 = 2 ^ 31, int64 = math.huge, float64 = 2 ^ 53 + 1, float32 = 2 ^ 24 + 1,
  float16 = 2 ^ 11 + 1, bfloat16 = 2 ^ 8 + 1 }

--- The integers 0 .. n - 1 in random order.
---@param n integer
---@param ... any { dtype, device, requires_grad, generator }
---@return accelerate.Tensor
function M.randperm(n, ...)
  local o, by_name = (...), false
  if type(n) == "table" then o, by_name = n, true end
  local dtype = type(o) == "table" and getmetatable(o) == nil and o.dtype
  if dtype == "bool" or dtype == "complex64" or dtype == "complex128" then
    fail("randperm: dtype: expected a type of integers or of floating numbers, got %s", dtype)
  end
  if not MOST[dtype] or dtype == "int64" then return core.randperm(n, ...) end
  local given = {}
  for name, value in next, o do given[name] = value end
  given.dtype, given.requires_grad = nil, nil
  local drawn
  if by_name then drawn = core.randperm(given) else drawn = core.randperm(n, given) end
  if drawn:numel() > MOST[dtype] then
    fail("randperm: %s holds the integers below %d, got n = %d", dtype, MOST[dtype], drawn:numel())
  end
  drawn = drawn:to(dtype)
  if o.requires_grad == nil then return drawn end
  return drawn:requires_grad_(o.requires_grad)
end

-- ---- the default device

--- Returns the default device of constructors.
---@return string
function M.get_default_device() return core.empty(0).device end

-- ---- manual_seed

--- Seeds the draws of this rank and math.random.
---@param seed integer
---@return userdata generator the default one, whose draws are those of functions that are given
---  none
function M.manual_seed(seed, ...)
  core.manual_seed(seed, ...)
  return core.default_generator()
end

return M
