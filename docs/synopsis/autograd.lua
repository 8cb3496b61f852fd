local tensor = require "accelerate.tensor"
local autograd = require "accelerate.autograd"  -- also tensor.autograd

local x = tensor({ 0.5, 2 }, { dtype = "float64", requires_grad = true })
assert(autograd.gradcheck(function(v) return v:sin() * v end, x))
autograd.detect_anomaly(function() x:sqrt():sum():backward() end)  -- a NaN raises, and names the op
