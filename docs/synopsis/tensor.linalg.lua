local tensor = require "accelerate.tensor"
local linalg = tensor.linalg

local a = tensor({ { { 4, 1 }, { 1, 3 } }, { { 2, 0 }, { 0, 5 } } },
  { dtype = "float64", requires_grad = true })
local b = tensor.ones(2, 2, { dtype = "float64" })           -- a vector for each matrix
local x = linalg.solve(a, b)
print(x)
x:sum():backward()
print(a.grad)

local U, S, Vh = linalg.svd(a:detach(), { full_matrices = false })
print(S, linalg.cond(a:detach()), linalg.matrix_rank(a:detach()))
print((U * S:unsqueeze(-2)):matmul(Vh))                      -- a again

local L, V = linalg.eigh(a:detach())
print(L, V.shape[1])

print(pcall(linalg.inv, tensor.zeros(2, 2)))                 -- raises: the matrix is singular
