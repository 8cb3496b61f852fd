local tensor = require "accelerate.tensor"
local func = require "accelerate.func"

local x = tensor { 1, 2, 3 }
local J = func.jacobian(function(v) return v * v end, x)               -- (3, 3)
local H = func.hessian(function(v) return (v ^ 3):sum() end, x)        -- (3, 3)
local y, slope = func.jvp(function(v) return v:sin() end, x, tensor { 1, 0, 0 })
local norms = func.vmap(function(row) return row:norm() end)(tensor.randn(4, 3))  -- (4); a loop
