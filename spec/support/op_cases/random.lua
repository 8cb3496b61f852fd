--- Cases of the rows in host/core/ops/random.def.
local tensor = require "accelerate.tensor"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range = H.range

C.dropout = { inputs = { range(-2, 2) },
  call = function(x) return x:dropout { p = 0.4, generator = tensor.Generator(3) } end,
  ref = false } -- statistics are checked in random_spec
C._dropout_apply = { through = "dropout" }
for name, through in pairs { _uniform = "rand", _normal = "randn", _randint = "randint",
  _randperm = "randperm", _arange = "arange" } do
  C[name] = { creator = through }
end
