-- Linear algebra: systems, singular values and eigenvalues of one matrix, and batches
-- of small ones; one line of JSON.  The same work as peer/linalg.py.
--
--   accel-run --num_cpu_threads_per_process 1 bench/linalg.lua
local tensor = require "accelerate.tensor"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local linalg = tensor.linalg
local N, SMALL, BATCH, REPEATS = 512, 16, 2000, 7
tensor.manual_seed(1)
local x, b = tensor.randn(N, N) + tensor.eye(N) * 8, tensor.randn(N, 8)
local small, sides = tensor.randn(BATCH, SMALL, SMALL) + tensor.eye(SMALL) * 8, tensor.randn(BATCH, SMALL, 1)
local symmetric, leaf = x + x:t(), x:clone():requires_grad_()
local positive = x:mm(x:t())
local large, sides_8 = tensor.randn(1024, 1024) + tensor.eye(1024) * 8, tensor.randn(1024, 8)
local few, few_sides = tensor.randn(128, 8, 8) + tensor.eye(8) * 8, tensor.randn(128, 8, 8)
local quarter = x:narrow(1, 1, 256):narrow(2, 1, 256):contiguous()

local work = {
  solve = function() return linalg.solve(x, b) end,
  solve_backward = function() linalg.solve(leaf, b):sum():backward() end,
  inv = function() return linalg.inv(x) end,
  cholesky = function() return linalg.cholesky(positive) end,
  qr = function() return linalg.qr(x) end,
  svd = function() return linalg.svd(x, { full_matrices = false }) end,
  eigh = function() return linalg.eigh(symmetric) end,
  det = function() return linalg.det(large) end,
  eig = function() return linalg.eig(quarter) end,
  solve_large = function() return linalg.solve(large, sides_8) end,
  solve_few = function() return linalg.solve(few, few_sides) end,
  inv_few = function() return linalg.inv(few) end,
  solve_batch = function() return linalg.solve(small, sides) end,
  det_batch = function() return linalg.det(small) end,
}

common.emit(common.median_of_each(work, REPEATS))
