--- Cases of the rows in host/core/ops/reduce.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, columns, each, sum = H.range, H.columns, H.each, H.sum

local function best(list, better)
  local at = 1
  for i = 2, #list do if better(list[i], list[at]) then at = i end end
  return list[at], at - 1
end
local function greater(a, b) return a > b end
local function less(a, b) return a < b end

C.sum = { inputs = { range(-2, 2) }, call = function(x) return x:sum { dim = 1 }, x:sum() end,
  ref = function(x) return each(columns(x), sum), sum(each(x, sum)) end }
C.mean = { inputs = { range(-2, 2) },
  call = function(x) return x:mean { dim = 2, keepdim = true }, x:mean() end,
  ref = function(x)
    return each(x, function(r) return { sum(r) / #r } end), sum(each(x, sum)) / (#x * #x[1])
  end }
local function extreme(name, better)
  C[name] = { inputs = { range(-2, 2) }, call = function(x)
    local values, indices = core[name](x, { dim = 2 })
    return values, indices, core[name](x)
  end, ref = function(x)
    return each(x, function(r) return (best(r, better)) end),
      each(x, function(r) return (select(2, best(r, better))) end),
      (best(each(x, function(r) return (best(r, better)) end), better))
  end }
  C["arg" .. name] = { inputs = { range(-2, 2) }, exact = true,
    call = function(x) return core["arg" .. name](x, { dim = 1 }) end,
    ref = function(x) return each(columns(x), function(r) return (select(2, best(r, better))) end) end }
end
extreme("max", greater)
extreme("min", less)
local function truth(name, start, join)
  C[name] = { inputs = { range(-2, 2) }, exact = true,
    call = function(x) return core[name](x:gt(-1.2), { dim = 2 }) end, ref = function(x)
    return each(x, function(r)
      local t = start
      for _, v in ipairs(r) do t = join(t, v > -1.2) end
      return t
    end)
  end }
end
truth("any", false, function(a, b) return a or b end)
truth("all", true, function(a, b) return a and b end)

local function product(list)
  local p = 1
  for _, v in ipairs(list) do p = p * v end
  return p
end
local function variance(list, correction)
  local mean, s = sum(list) / #list, 0
  for _, v in ipairs(list) do s = s + (v - mean) ^ 2 end
  return s / (#list - correction)
end
local function size(list, p)
  local s = 0
  for _, v in ipairs(list) do s = p == math.huge and math.max(s, math.abs(v)) or s + math.abs(v) ^ p end
  return p == math.huge and s or s ^ (1 / p)
end
local function lse(list) return math.log(sum(each(list, math.exp))) end
local flat = H.flat

C.prod = { inputs = { range(-2, 2) },
  call = function(x) return x:prod { dim = 1 }, x:prod { dim = -1, keepdim = true }, x:prod() end,
  ref = function(x)
    return each(columns(x), product), each(x, function(r) return { product(r) } end), product(flat(x))
  end }
C.var = { inputs = { range(-2, 2) },
  call = function(x) return x:var { dim = 1 }, x:var { dim = 2, correction = 0, keepdim = true }, x:var() end,
  ref = function(x)
    return each(columns(x), function(r) return variance(r, 1) end),
      each(x, function(r) return { variance(r, 0) } end), variance(flat(x), 1)
  end }
C.std = { inputs = { range(-2, 2) },
  call = function(x) return x:std { dim = { 1 } }, x:std { correction = 2 } end, broadcast = { range(-2, 2) },
  ref = function(x)
    return each(columns(x), function(r) return math.sqrt(variance(r, 1)) end), math.sqrt(variance(flat(x), 2))
  end }
C.norm = { inputs = { range(-2, 2) }, broadcast = { range(-2, 2) },
  call = function(x)
    return x:norm(), x:norm(1, 2), x:norm { p = 3, dim = 1, keepdim = true },
      x:norm { p = math.huge, dim = 2 }, x:norm { p = 0.5 }
  end,
  ref = function(x)
    return size(flat(x), 2), each(x, function(r) return size(r, 1) end),
      { each(columns(x), function(r) return size(r, 3) end) },
      each(x, function(r) return size(r, math.huge) end), size(flat(x), 0.5)
  end }
C.logsumexp = { inputs = { range(-2, 2) },
  call = function(x) return x:logsumexp(2), x:logsumexp { dim = 1, keepdim = true }, x:logsumexp { 1, 2 } end,
  ref = function(x) return each(x, lse), { each(columns(x), lse) }, lse(flat(x)) end }
local function over(name, better)
  C[name] = { inputs = { range(-2, 2) }, broadcast = { range(-2, 2) },
    call = function(x) return core[name](x, { dim = { 2 }, keepdim = true }), core[name](x) end,
    ref = function(x)
      return each(x, function(r) return { (best(r, better)) } end), (best(flat(x), better))
    end }
end
over("amax", greater)
over("amin", less)
C.count_nonzero = { inputs = { range(-2, 2) }, exact = true,
  call = function(x) return x:gt(0):count_nonzero(1), x:clamp { min = 0 }:count_nonzero() end,
  ref = function(x)
    local function positive(r) return sum(each(r, function(v) return v > 0 and 1 or 0 end)) end
    return each(columns(x), positive), positive(flat(x))
  end }
C.nansum = { inputs = { range(-2, 2) }, no_differences = true,
  call = function(x) return x:log():nansum(1), x:nansum() end,
  ref = function(x)
    return each(columns(x),
      function(r) return sum(each(r, function(v) return v > 0 and math.log(v) or 0 end)) end), sum(flat(x))
  end }
local function running(list, join)
  local out, now = {}, nil
  for i, v in ipairs(list) do
    now = now and join(now, v) or v
    out[i] = now
  end
  return out
end
local function plus(a, b) return a + b end
local function times(a, b) return a * b end
C.cumsum = { inputs = { range(-2, 2) }, call = function(x) return x:cumsum(1), x:cumsum(-1) end,
  ref = function(x)
    return columns(each(columns(x), function(r) return running(r, plus) end)),
      each(x, function(r) return running(r, plus) end)
  end }
C.cumprod = { inputs = { range(-2, 2) }, call = function(x) return x:cumprod(1), x:cumprod(-1) end,
  ref = function(x)
    return columns(each(columns(x), function(r) return running(r, times) end)),
      each(x, function(r) return running(r, times) end)
  end }
C._cumsum_backward = { through = "cumsum" }
C._prod = { through = "prod" }
C._cumprod, C._cumprod_backward = { through = "cumprod" }, { through = "cumprod" }
local function extremes(name, better)
  local function pick(a, b) return better(a, b) and a or b end -- equal: the later one
  local function both(r)
    local values, at, where = running(r, pick), 1, {}
    for i, v in ipairs(r) do
      if not better(r[at], v) then at = i end
      where[i] = at - 1
    end
    return values, where
  end
  local function second(r) return (select(2, both(r))) end
  C[name] = { inputs = { range(-2, 2) },
    call = function(x)
      local values, at = x[name](x, 1)
      local across, along = x[name](x, -1)
      return values, at, across, along
    end,
    ref = function(x)
      local turned = columns(x)
      return columns(each(turned, function(r) return (both(r)) end)), columns(each(turned, second)),
        each(x, function(r) return (both(r)) end), each(x, second)
    end }
end
extremes("cummax", greater)
extremes("cummin", less)
