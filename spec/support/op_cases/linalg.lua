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
C.mm = { inputs = { range(-1, 1, { 3, 5 }), range(-1, 1, { 5, 4 }) },
  call = function(a, b) return core.mm(a, b) end, ref = product }
C.bmm = { inputs = { range(-1, 1, { 2, 3, 5 }), range(-1, 1, { 2, 5, 4 }) },
  call = function(a, b) return core.bmm(a, b) end,
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
C._linear_backward = { through = "linear" }
local function gelu_tanh(x)
  local u = math.sqrt(2 / math.pi) * (x + 0.044715 * x ^ 3)
  return x / (1 + math.exp(-2 * u))
end
-- once alone and once with a layer behind it, whose gradient goes through gelu itself on a GPU
C.linear_gelu = { inputs = { range(-1, 1, { 3, 5 }), range(-1, 1, { 8, 5 }), range(-1, 1, { 8 }),
  range(-1, 1, { 2, 8 }) },
  call = function(x, w, b, w2) return core.linear_gelu(x, w, b), core.linear(core.linear_gelu(x, w), w2) end,
  ref = function(x, w, b, w2)
    local biased, plain = product(x, columns(w)), product(x, columns(w))
    for i, row in ipairs(biased) do
      for j = 1, #row do row[j], plain[i][j] = gelu_tanh(row[j] + b[j]), gelu_tanh(row[j]) end
    end
    return biased, product(plain, columns(w2))
  end }
C._mm_dgelu = { through = "linear_gelu" }
C._batched_matmul = { inputs = { range(-1, 1, { 2, 1, 3, 5 }), range(-1, 1, { 1, 2, 5, 4 }) },
  call = function(a, b) return a:matmul(b) end,
  ref = function(a, b)
    return { { product(a[1][1], b[1][1]), product(a[1][1], b[1][2]) },
      { product(a[2][1], b[1][1]), product(a[2][1], b[1][2]) } }
  end }

-- beta * input + alpha * product, the input one row for all
local function combined(input, p, beta, alpha)
  return each(p, function(row)
    local out = {}
    for j = 1, #row do out[j] = beta * input[j] + alpha * row[j] end
    return out
  end)
end
C.addmm = { inputs = { range(-1, 1, { 4 }), range(-1, 1, { 3, 5 }), range(-1, 1, { 5, 4 }) },
  call = function(x, a, b) return core.addmm(x, a, b), core.addmm(x, a, b, 0.5, -2) end,
  ref = function(x, a, b) return combined(x, product(a, b), 1, 1), combined(x, product(a, b), 0.5, -2) end }
C.baddbmm = { inputs = { range(-1, 1, { 1, 4 }), range(-1, 1, { 2, 3, 5 }), range(-1, 1, { 2, 5, 4 }) },
  call = function(x, a, b) return core.baddbmm(x, a, b, { beta = 2, alpha = 3 }) end,
  ref = function(x, a, b)
    return { combined(x[1], product(a[1], b[1]), 2, 3), combined(x[1], product(a[2], b[2]), 2, 3) }
  end }
local function column(v) return each(v, function(x) return { x } end) end
local function row_of(m) return each(m, function(r) return r[1] end) end
C.addmv = { inputs = { range(-1, 1, { 3 }), range(-1, 1, { 3, 5 }), range(-1, 1, { 5 }) },
  call = function(x, m, v) return core.addmv(x, m, v, 0.5, 2) end,
  ref = function(x, m, v)
    local p, out = row_of(product(m, column(v))), {}
    for i = 1, 3 do out[i] = 0.5 * x[i] + 2 * p[i] end
    return out
  end }
C.mv = { inputs = { range(-1, 1, { 3, 5 }), range(-1, 1, { 5 }) }, call = function(m, v) return m:mv(v) end,
  ref = function(m, v) return row_of(product(m, column(v))) end }
C.dot = { inputs = { range(-1, 1, { 40 }), range(-1, 1, { 40 }) }, call = function(a, b) return a:dot(b) end,
  ref = function(a, b) return product({ a }, column(b))[1][1] end }
C.outer = { inputs = { range(-1, 1, { 3 }), range(-1, 1, { 4 }) },
  call = function(a, b) return a:outer(b) end,
  ref = function(a, b) return product(column(a), { b }) end }
C.trace = { inputs = { range(-1, 1, { 3, 4 }) }, call = function(x) return x:trace() end,
  ref = function(x) return x[1][1] + x[2][2] + x[3][3] end }
C.tensordot = { inputs = { range(-1, 1, { 3, 5 }), range(-1, 1, { 5, 4 }) },
  call = function(a, b) return core.tensordot(a, b, 1) end, ref = product }
