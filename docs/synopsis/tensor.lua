local tensor = require "accelerate.tensor"

local x = tensor({ { 1, 2 }, { 3, 4 } }, { requires_grad = true })
local y = (x * x):sum()
y:backward()
print(x.grad)                                  -- 2 x

local a, b = tensor.rand(2, 3), tensor.ones({ 3 }, { dtype = "float64" })
print((a + b).dtype, (a:matmul(a:t())).shape[1])
local values, indices = a:max({ dim = 2 })     -- several results are several values
print(values.shape[1], indices.dtype)
