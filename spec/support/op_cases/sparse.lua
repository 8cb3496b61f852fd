--- Cases of the rows in host/core/ops/sparse.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C

-- The 3 x 4 matrix with entries (row, column, value) (0, 1, 0), (2, 0, 1), (2, 3, 3), (2, 3, 2):
-- row 1 is empty, and one place occurs twice.
local ENTRIES = { { 1, 2, 1 }, { 3, 1, 2 }, { 3, 4, 4 }, { 3, 4, 3 } }
local BY_ROWS = { 0, 1, 1, 4, 1, 0, 3, 3, 0, 1, 3, 2 }
local BY_COLUMNS = { 0, 1, 2, 2, 4, 2, 0, 2, 2, 1, 0, 2, 3 }

local function plans(like)
  local function plan(list) return core.tensor(list, { dtype = "int64", device = like.device }) end
  return plan(BY_ROWS), plan(BY_COLUMNS)
end

local function row(name, like, ...)
  local rows, columns = plans(like)
  local last = select("#", ...)
  local given = { ... }
  return core._row(name)(given[1], given[2], rows, columns, given[last])
end

C._sparse_product = { inputs = { H.range(-2, 2, { 4 }), H.range(-2, 2, { 4, 3 }) },
  call = function(values, dense) return row("_sparse_product", values, values, dense, 3) end,
  ref = function(values, dense)
    local out = { { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 } }
    for _, e in ipairs(ENTRIES) do
      for c = 1, 3 do out[e[1]][c] = out[e[1]][c] + values[e[3]] * dense[e[2]][c] end
    end
    return out
  end }
C._sparse_dots = { inputs = { H.range(-2, 2, { 3, 2 }), H.range(-2, 2, { 4, 2 }) },
  call = function(a, b) return row("_sparse_dots", a, a, b, 4) end,
  ref = function(a, b)
    local out = {}
    for _, e in ipairs(ENTRIES) do out[e[3]] = a[e[1]][1] * b[e[2]][1] + a[e[1]][2] * b[e[2]][2] end
    return out
  end }
