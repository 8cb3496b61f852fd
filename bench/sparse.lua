-- Sparse matrices, one thread: products with dense ones, alone and with the gradients of both
-- operands, as graph networks need them; one line of JSON.  The same work as peer/sparse.py.
--
--   accel-run --num_cpu_threads_per_process 1 bench/sparse.lua
local tensor = require "accelerate.tensor"
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local NODES, EDGES, WIDTH, REPEATS = 20000, 200000, 64, 9
tensor.manual_seed(1)
local places = tensor.randint(0, NODES, { 2, EDGES })
local adjacency = tensor.sparse_coo_tensor(places, tensor.rand(EDGES), { NODES, NODES }):coalesce()
local x = tensor.randn(NODES, WIDTH)
local leaf = x:clone():requires_grad_()
local weighted = tensor.sparse_coo_tensor(adjacency:indices(), adjacency:values():clone(), { NODES, NODES },
  { requires_grad = true, is_coalesced = true })

local work = {
  sparse_mm = function() return adjacency:mm(x) end,
  sparse_mm_backward = function() adjacency:mm(leaf):sum():backward() end,
  sparse_mm_both = function() weighted:mm(leaf):sum():backward() end,
}

common.emit(common.median_of_each(work, REPEATS))
