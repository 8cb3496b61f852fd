--- Cases of the rows in host/core/ops/loss.def.
local tensor = require "accelerate.tensor"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, columns, each, sum = H.range, H.columns, H.each, H.sum

local function softmax(row)
  local s = sum(each(row, math.exp))
  return each(row, function(v) return math.exp(v) / s end)
end
C.softmax = { inputs = { range(-2, 2) }, call = function(x) return x:softmax(2) end, ref = function(x) return each(x, softmax) end }
C.log_softmax = { inputs = { range(-2, 2) }, call = function(x) return x:log_softmax(1) end,
  ref = function(x) return columns(each(columns(x), function(r) return each(softmax(r), math.log) end)) end }
local TARGET = { 2, 0, -100 }
local function losses(x)
  local out = {}
  for i, row in ipairs(x) do out[i] = TARGET[i] < 0 and 0 or -math.log(softmax(row)[TARGET[i] + 1]) end
  return out
end
C.cross_entropy = { inputs = { range(-2, 2) }, call = function(x)
  local target = tensor.tensor(TARGET, { dtype = "int64" })
  return x:cross_entropy(target), x:cross_entropy(target, { reduction = "none" }), x:cross_entropy(target, { reduction = "sum" })
end, ref = function(x) return sum(losses(x)) / 2, losses(x), sum(losses(x)) end }
C._softmax_backward = { through = "softmax" }
C._log_softmax_backward = { through = "log_softmax" }
C._cross_entropy_backward = { through = "cross_entropy" }
