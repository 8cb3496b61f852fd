--- Cases of the rows in host/core/ops/copy.def.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, unary = H.range, H.unary

unary("clone", -2, 2, function(x) return x end)
C._cast = { inputs = { range(-2, 2) }, pointwise = true,
  call = function(x)
    return x:to("float32"):to("float64")
  end, tolerance = 1e-6, no_differences = true, ref = function(x) return x end }
C._copy = { inputs = { range(-2, 2) }, pointwise = true,
  call = function(x)
    return tensor.zeros(x.shape, { dtype = "float64" }):copy_(x)
  end, ref = function(x) return x end }
C._to_device = { spec = "spec/gpu/device_spec.lua" }
C._lower = { inputs = { range(-2, 2) }, call = core._row "_lower", ref = function(x) return x end }
