-- Linear algebra, one thread: systems, singular values and eigenvalues of one matrix, and batches
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

local work = {
  solve = function() return linalg.solve(x, b) end,
  solve_backward = function() linalg.solve(leaf, b):sum():backward() end,
  inv = function() return linalg.inv(x) end,
  cholesky = function() return linalg.cholesky(positive) end,
  qr = function() return linalg.qr(x) end,
  svd = function() return linalg.svd(x, { full_matrices = false }) end,
  eigh = function() return linalg.eigh(symmetric) end,
  solve_batch = function() return linalg.solve(small, sides) end,
  det_batch = function() return linalg.det(small) end,
}

common.emit(common.median_of_each(work, REPEATS))
