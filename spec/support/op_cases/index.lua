--- Cases of the rows in host/core/ops/index.def.
local tensor = require "accelerate.tensor"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local each, flat, shaped = H.each, H.flat, H.shaped

local PICK = { 2, 0, 2 }
shaped("index_select", function(x) return x:index_select(2, tensor.tensor(PICK, { dtype = "int64" })) end,
  function(x) return each(x, function(r) return { r[3], r[1], r[3] } end) end)
C._index_select_backward = { through = "index_select" }
shaped("masked_select", function(x) return x:masked_select(x.data:gt(0)) end, function(x)
  local out = {}
  for _, v in ipairs(flat(x)) do if v > 0 then out[#out + 1] = v end end
  return out
end)
C._mask_indices = { through = "masked_select" }
