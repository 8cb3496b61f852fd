--- What special functions share: they compute in float64 whatever the type of their argument, and
--- integers give float32.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local M = {}

--- The type of a result.
---@param x accelerate.Tensor
---@return string
function M.type_of(x)
  return core._is_float(x) and x.dtype or core.get_default_dtype()
end

--- I0, the modified Bessel function, of a number: its power series, whose terms are all positive.
---@param x number
---@return number
function M.i0(x)
  local sum, term, k, quarter = 1, 1, 1, x * x / 4
  while term > sum * 2 ^ -54 do
    term = term * quarter / (k * k)
    sum, k = sum + term, k + 1
  end
  return sum
end

--- A tensor like x, filled with a number.
---@param x accelerate.Tensor
---@param value number
---@return accelerate.Tensor
function M.full(x, value) return core.full_like(x, value) end

--- A function of one tensor: value(x) of a float64 tensor, derivative(x) of tensors with gradients.
---@param name string
---@param value function
---@param derivative function
---@return function
function M.analytic(name, value, derivative)
  return core.Function {
    name = name,
    forward = function(ctx, x)
      ctx:save_for_backward(x)
      return value(x:double()):to(M.type_of(x))
    end,
    backward = function(ctx, g) return g * derivative((ctx:saved_tensors())) end,
  }
end

--- Two tensors or numbers as tensors of one shape, and the type of a result.
---@param where string
---@param a accelerate.Tensor|number
---@param b accelerate.Tensor|number
---@return accelerate.Tensor[] pair with the field dtype
function M.operands(where, a, b)
  local like = core.is_tensor(a) and a or b
  if not core.is_tensor(like) then
    options.fail("%s: expected a tensor, got %s and %s", where, options.show(a), options.show(b))
  end
  local function tensor(v)
    if core.is_tensor(v) then return v end
    return core.full({}, v, { dtype = M.type_of(like), device = like.device })
  end
  local x, y = tensor(a), tensor(b)
  for i, v in ipairs { x, y } do
    if v.dtype:find("complex", 1, true) then
      options.fail("%s: argument %d: not defined for %s", where, i, v.dtype)
    end
  end
  local sum = x:detach() + y:detach()
  return { x:expand(sum.shape), y:expand(sum.shape), dtype = M.type_of(sum) }
end

return M
