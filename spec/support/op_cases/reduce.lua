--- Cases of the rows in host/core/ops/reduce.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, exact, columns, each, sum = H.range, H.exact, H.columns, H.each, H.sum

local function best(list, better)
  local at = 1
  for i = 2, #list do if better(list[i], list[at]) then at = i end end
  return list[at], at - 1
end
local function greater(a, b) return a > b end
local function less(a, b) return a < b end

C.sum = { inputs = { range(-2, 2) }, call = function(x) return x:sum { dim = 1 }, x:sum() end,
  ref = function(x) return each(columns(x), sum), sum(each(x, sum)) end }
C.mean = { inputs = { range(-2, 2) }, call = function(x) return x:mean { dim = 2, keepdim = true }, x:mean() end,
  ref = function(x) return each(x, function(r) return { sum(r) / #r } end), sum(each(x, sum)) / (#x * #x[1]) end }
local function extreme(name, better)
  C[name] = { inputs = { range(-2, 2) }, call = function(x)
    local values, indices = core[name](x, { dim = 2 })
    return values, indices, core[name](x)
  end, ref = function(x)
    return each(x, function(r) return (best(r, better)) end), each(x, function(r) return (select(2, best(r, better))) end),
      (best(each(x, function(r) return (best(r, better)) end), better))
  end }
  C["arg" .. name] = { inputs = { range(-2, 2) }, exact = true, call = function(x) return core["arg" .. name](x, { dim = 1 }) end,
    ref = function(x) return each(columns(x), function(r) return (select(2, best(r, better))) end) end }
end
extreme("max", greater)
extreme("min", less)
local function truth(name, start, join)
  C[name] = { inputs = { range(-2, 2) }, exact = true, call = function(x) return core[name](x:gt(-1.2), { dim = 2 }) end, ref = function(x)
    return each(x, function(r)
      local t = start
      for _, v in ipairs(r) do t = join(t, v > -1.2) end
      return t
    end)
  end }
end
truth("any", false, function(a, b) return a or b end)
truth("all", true, function(a, b) return a and b end)
