--- Cases of the rows in host/core/ops/shape.def and view.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, columns, each, flat, shaped = H.range, H.columns, H.each, H.flat, H.shaped

shaped("view", function(x) return x:contiguous():view(2, -1) end, function(x)
  local f = flat(x)
  return { { unpack(f, 1, 6) }, { unpack(f, 7, 12) } }
end)
shaped("reshape", function(x) return x:reshape(-1) end, flat)
shaped("flatten", function(x) return x:unsqueeze(1):flatten { start_dim = 2 } end, function(x) return { flat(x) } end)
shaped("contiguous", function(x) return x:t():contiguous() end, columns)
shaped("t", function(x) return x:t() end, columns)
shaped("permute", function(x) return x:permute(2, 1) end, columns)
shaped("transpose", function(x) return x:transpose(1, -1) end, columns)
shaped("expand", function(x) return x:unsqueeze(1):expand(2, -1, 4) end, function(x) return { x, x } end)
shaped("squeeze", function(x) return x:unsqueeze(2):squeeze(2) end, function(x) return x end)
shaped("unsqueeze", function(x) return x:unsqueeze(-1) end, function(x) return each(x, function(r) return each(r, function(v) return { v } end) end) end)
shaped("select", function(x) return x:select(2, -1) end, function(x) return each(x, function(r) return r[#r] end) end)
shaped("narrow", function(x) return x:narrow(2, 2, 2) end, function(x) return each(x, function(r) return { r[2], r[3] } end) end)
shaped("_slice", function(x) return x[{ {}, { 1, 4, 2 } }] end, function(x) return each(x, function(r) return { r[1], r[3] } end) end)
shaped("diagonal", function(x) return x:diagonal() end, function(x) return { x[1][1], x[2][2], x[3][3] } end)
C._slice_backward = { through = "narrow" }
C._diagonal_backward = { through = "diagonal" }
C.cat = { inputs = { range(-2, 2), range(-2, 2, { 3, 2 }) }, call = function(a, b) return core.cat({ a, b }, 2) end,
  ref = function(a, b)
    local out = {}
    for i = 1, 3 do out[i] = { a[i][1], a[i][2], a[i][3], a[i][4], b[i][1], b[i][2] } end
    return out
  end }
C.stack = { inputs = { range(-2, 2), range(-2, 2) }, call = function(a, b) return core.stack { a, b } end, ref = function(a, b) return { a, b } end }
