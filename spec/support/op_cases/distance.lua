--- Cases of the rows in host/core/ops/distance.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, each = H.range, H.each

local function distance(a, b, p)
  local sum = 0
  for i, v in ipairs(a) do
    local size = math.abs(v - b[i])
    if p == math.huge then sum = math.max(sum, size)
    elseif p == 0 then sum = sum + (size ~= 0 and 1 or 0)
    else sum = sum + size ^ p end
  end
  return (p == 0 or p == math.huge) and sum or sum ^ (1 / p)
end

local ORDERS = { 2, 1, 3, 1.5, math.huge }

-- Rows of 5 numbers: a vector of them and some more.
C._distance_cdist = { inputs = { range(-2, 2, { 2, 3, 5 }), range(-1.3, 2.4, { 2, 4, 5 }) },
  call = function(x, y) return unpack(each(ORDERS, function(p) return core._distance.cdist(x, y, p) end)) end,
  ref = function(x, y)
    return unpack(each(ORDERS, function(p)
      local out = {}
      for b in ipairs(x) do
        out[b] = each(x[b],
          function(row) return each(y[b], function(other) return distance(row, other, p) end) end)
      end
      return out
    end))
  end }
C._distance_cdist_backward = { through = "_distance_cdist" }
