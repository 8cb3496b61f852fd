local tensor = require "accelerate.tensor"
local sparse = require "accelerate.sparse"

-- a 2 x 3 matrix with three values; positions count from 0
local a = sparse.sparse_coo_tensor({ { 0, 1, 1 }, { 2, 0, 2 } }, { 3, 4, 5 }, { 2, 3 })
local x = tensor.randn(3, 2):requires_grad_()
local y = a:mm(x)                        -- sparse.mm(a, x)
y:sum():backward()
print(a:to_dense(), a:t():coalesce():indices(), sparse.sum(a, 1):values())
