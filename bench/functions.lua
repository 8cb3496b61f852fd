-- Functions of one call each, one thread: images at given positions, windows, sums by index, draws,
-- orders; one line of JSON.  The same work as peer/functions.py.
--
--   accel-run --num_cpu_threads_per_process 1 bench/functions.lua
local tensor = require "accelerate.tensor"
local F = require("accelerate.nn").functional
local common = dofile((arg[0]:match("^.*/") or "./") .. "common.lua")

local REPEATS = 15
tensor.manual_seed(1)
local images, grid = tensor.randn(4, 16, 64, 64), tensor.rand(4, 64, 64, 2) * 2 - 1
local leaf = images:clone():requires_grad_()
local columns, wide = tensor.randn(8, 32 * 9, 56 * 56), tensor.randn(8, 32, 56, 56)
local rows, index = tensor.randn(256, 1024), tensor.randint(0, 256, { 256, 1024 })
local weights, sums = tensor.rand(256, 1024), tensor.zeros(256, 1024)
local double = tensor.randn({ 512, 512 }, { dtype = "float64" })

local work = {
  grid_sample = function() return F.grid_sample(images, grid, { align_corners = false }) end,
  grid_sample_backward = function()
    F.grid_sample(leaf, grid, { align_corners = false }):sum():backward()
  end,
  unfold = function() return F.unfold(wide, { 3, 3 }, { padding = 1 }) end,
  fold = function() return F.fold(columns, { 56, 56 }, { 3, 3 }, { padding = 1 }) end,
  scatter_reduce = function() return sums:scatter_reduce(1, index, rows, "sum") end,
  multinomial = function() return weights:multinomial(8) end,
  sort = function() return rows:sort() end,
  topk = function() return rows:topk(10) end,
  mm_double = function() return double:mm(double) end,
}

common.emit(common.median_of_each(work, REPEATS))
