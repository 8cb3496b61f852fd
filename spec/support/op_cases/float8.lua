--- Cases of the rows in host/core/ops/float8.def.
local C = require("spec.support.op_cases.helpers").C

C._float8_cast = { spec = "spec/core/float8_products_spec.lua" }
C._float8_product = { spec = "spec/core/float8_products_spec.lua" }
