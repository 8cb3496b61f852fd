local tensor = require "accelerate.tensor"

-- x * sigmoid(x).  ctx is a table of the call: tensors for backward go through save_for_backward,
-- which notices when they are changed in place; numbers and the like are fields of it.
local Swish = tensor.Function {
  name = "Swish",
  forward = function(ctx, x, scale)
    local s = (x * scale):sigmoid()
    ctx:save_for_backward(x, s)
    ctx.scale = scale
    return x * s
  end,
  -- One gradient for each result comes in, and one for each argument goes out: nil for a number.
  backward = function(ctx, grad)
    local x, s = ctx:saved_tensors()       -- or unpack(ctx.saved_tensors)
    if not ctx.needs_input_grad[1] then return nil, nil end
    return grad * (s + ctx.scale * x * s * (1 - s)), nil
  end,
}

local x = tensor.randn(4, { dtype = "float64", requires_grad = true })
Swish(x, 2):sum():backward()               -- or Swish.apply(x, 2)
print(x.grad)
assert(tensor.autograd.gradcheck(function(v) return Swish(v, 2) end, x))
