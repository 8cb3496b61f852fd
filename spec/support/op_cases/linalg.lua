--- Cases of the rows in host/core/ops/linalg.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, columns, each = H.range, H.columns, H.each

local function product(a, b)
  local bt = columns(b)
  return each(a, function(row)
    return each(bt, function(col)
      local s = 0
      for k = 1, #row do s = s + row[k] * col[k] end
      return s
    end)
  end)
end
C.mm = { inputs = { range(-1, 1, { 3, 5 }), range(-1, 1, { 5, 4 }) }, call = function(a, b) return core.mm(a, b) end, ref = product }
C.bmm = { inputs = { range(-1, 1, { 2, 3, 5 }), range(-1, 1, { 2, 5, 4 }) }, call = function(a, b) return core.bmm(a, b) end,
  ref = function(a, b) return { product(a[1], b[1]), product(a[2], b[2]) } end }
C.matmul = { inputs = { range(-1, 1, { 2, 3, 5 }), range(-1, 1, { 5, 4 }) },
  call = function(a, b) return a:matmul(b), a[1]:matmul(b:t()[1]), b:t():matmul(a[2][1]) end,
  ref = function(a, b)
    local first = each(b, function(r) return { r[1] } end)
    local vector = each(a[2][1], function(v) return { v } end)
    return { product(a[1], b), product(a[2], b) }, each(product(a[1], first), function(r) return r[1] end),
      each(product(columns(b), vector), function(r) return r[1] end)
  end }
C.linear = { inputs = { range(-1, 1, { 3, 5 }), range(-1, 1, { 4, 5 }), range(-1, 1, { 4 }) },
  call = function(x, w, b) return core.linear(x, w, b) end,
  ref = function(x, w, b)
    local out = product(x, columns(w))
    for _, row in ipairs(out) do for j = 1, #row do row[j] = row[j] + b[j] end end
    return out
  end }
