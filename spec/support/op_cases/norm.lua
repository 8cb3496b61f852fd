--- Cases of the rows in host/core/ops/norm.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, each, sum = H.range, H.each, H.sum

local function normal(row, weight, bias, centred, eps)
  local mean = centred and sum(row) / #row or 0
  local var = sum(each(row, function(v) return (v - mean) ^ 2 end)) / #row
  local out = {}
  for i, v in ipairs(row) do
    out[i] = (v - mean) / math.sqrt(var + eps) * (weight and weight[i] or 1) + (bias and bias[i] or 0)
  end
  return out
end

C.layer_norm = { inputs = { range(-2, 2, { 3, 5 }), range(-1, 2, { 5 }), range(-1, 1, { 5 }) },
  call = function(x, w, b)
    return core.layer_norm(x, { 5 }, w, b), core.layer_norm(x, { 3, 5 }, { eps = 0.5 })
  end,
  ref = function(x, w, b)
    local all = normal(H.flat(x), nil, nil, true, 0.5)
    return each(x, function(row) return normal(row, w, b, true, 1e-5) end),
      each({ 0, 5, 10 }, function(at) return { unpack(all, at + 1, at + 5) } end)
  end }
C.rms_norm = { inputs = { range(-2, 2, { 3, 5 }), range(-1, 2, { 5 }) },
  call = function(x, w) return core.rms_norm(x, { 5 }, w, 1e-3), core.rms_norm(x, { 5 }) end,
  ref = function(x, w)
    return each(x, function(row) return normal(row, w, nil, false, 1e-3) end),
      each(x, function(row) return normal(row, nil, nil, false, 2 ^ -52) end)
  end }
C.group_norm = { inputs = { range(-2, 2, { 2, 4 }), range(-1, 2, { 4 }), range(-1, 1, { 4 }) },
  call = function(x, w, b) return core.group_norm(x, 2, w, b, 0.1) end,
  ref = function(x, w, b)
    return each(x, function(row)
      local first = normal({ row[1], row[2] }, w, b, true, 0.1)
      local second = normal({ row[3], row[4] }, { w[3], w[4] }, { b[3], b[4] }, true, 0.1)
      return { first[1], first[2], second[1], second[2] }
    end)
  end }
for _, name in ipairs { "layer_norm", "rms_norm", "group_norm" } do
  C["_" .. name .. "_backward"] = { through = name }
end
