--- Cases of the rows in host/core/ops/loss.def.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, columns, each, sum = H.range, H.columns, H.each, H.sum

local function softmax(row)
  local s = sum(each(row, math.exp))
  return each(row, function(v) return math.exp(v) / s end)
end
C.softmax = { inputs = { range(-2, 2) }, call = function(x) return x:softmax(2) end,
  ref = function(x) return each(x, softmax) end }
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
  local weight = tensor.tensor({ 0.3, 1.1, 0.7, 2 }, { dtype = "float64" })
  return x:cross_entropy(target), x:cross_entropy(target, { reduction = "none" }),
    x:cross_entropy(target, { reduction = "sum" }),
    x:cross_entropy(target, { weight = weight, label_smoothing = 0.2 }),
    x:cross_entropy(target, { label_smoothing = 0.3, reduction = "none" })
end, ref = function(x)
  local weight = { 0.3, 1.1, 0.7, 2 }
  local function smooth(r, i, w, e) -- (1 - e) w[t] (-log p[t]) + e / C sum(w (-log p))
    if TARGET[i] < 0 then return 0 end
    local p = softmax(r)
    local own, all = -w[TARGET[i] + 1] * math.log(p[TARGET[i] + 1]), 0
    for c, v in ipairs(p) do all = all - w[c] * math.log(v) end
    return (1 - e) * own + e / #r * all
  end
  local weighted, smoothed = 0, {}
  for i, r in ipairs(x) do
    weighted = weighted + smooth(r, i, weight, 0.2)
    smoothed[i] = smooth(r, i, { 1, 1, 1, 1 }, 0.3)
  end
  return sum(losses(x)) / 2, losses(x), sum(losses(x)), weighted / (0.7 + 0.3), smoothed
end }
C._softmax_backward = { through = "softmax" }
C._log_softmax_backward = { through = "log_softmax" }
C._cross_entropy = { through = "cross_entropy" }
C._cross_entropy_backward = { through = "cross_entropy" }

-- class probabilities: -sum(w q log p), q smoothed
C._cross_entropy_soft = { inputs = { range(-2, 2), range(0.1, 0.9) },
  broadcast = { range(-2, 2), range(0.1, 0.9) }, call = function(x, q)
  local weight = tensor.tensor({ 0.3, 1.1, 0.7, 2 }, { dtype = "float64" })
  return x:cross_entropy(q),
    x:cross_entropy(q, { weight = weight, label_smoothing = 0.2, reduction = "none" }),
    x:cross_entropy(q, { reduction = "sum", label_smoothing = 0.1 })
end, ref = function(x, q)
  local function soft(w, e)
    local out = {}
    for i, r in ipairs(x) do
      out[i] = 0
      for c, p in ipairs(softmax(r)) do
        out[i] = out[i] - w[c] * (q[i][c] * (1 - e) + e / #r) * math.log(p)
      end
    end
    return out
  end
  local ones = { 1, 1, 1, 1 }
  return sum(soft(ones, 0)) / #x, soft({ 0.3, 1.1, 0.7, 2 }, 0.2), sum(soft(ones, 0.1))
end }
C._cross_entropy_soft_backward = { through = "_cross_entropy_soft" }
C.nll_loss = { inputs = { range(-2, 2) }, call = function(x)
  local target = tensor.tensor(TARGET, { dtype = "int64" })
  local weight = tensor.tensor({ 0.3, 1.1, 0.7, 2 }, { dtype = "float64" })
  return x:nll_loss(target), x:nll_loss(target, { weight = weight }),
    x:nll_loss(target, { reduction = "none", weight = weight }), x:nll_loss(target, { reduction = "sum" })
end, ref = function(x)
  local a, b = -x[1][3], -x[2][1]
  return (a + b) / 2, (0.7 * a + 0.3 * b) / 1, { 0.7 * a, 0.3 * b, 0 }, a + b
end }
C._nll_loss = { through = "nll_loss" }
C._nll_loss_backward = { through = "nll_loss" }

-- losses of two tensors: each reduction against the same terms
local function pair(name, options, term, lo, hi, tlo, thi)
  local function with(reduction)
    local o = { reduction = reduction }
    -- made where the call runs
    for k, v in pairs(options) do
      o[k] = type(v) == "table" and tensor.tensor(v, { dtype = "float64" }) or v
    end
    return o
  end
  local inputs = { range(lo or -2, hi or 2), range(tlo or -2.1, thi or 1.9) }
  C[name] = { inputs = inputs, broadcast = inputs, call = function(x, t)
    return core[name](x, t, with "mean"), core[name](x, t, with "sum"), core[name](x, t, with "none")
  end, ref = function(x, t)
    local terms, all, n = {}, 0, 0
    for i, r in ipairs(x) do
      terms[i] = {}
      for k, v in ipairs(r) do
        terms[i][k] = term(v, t[i][k], k)
        all, n = all + terms[i][k], n + 1
      end
    end
    return all / n, all, terms
  end }
end
pair("mse_loss", {}, function(x, t) return (x - t) ^ 2 end)
pair("l1_loss", {}, function(x, t) return math.abs(x - t) end)
pair("smooth_l1_loss", { beta = 0.7 }, function(x, t)
  local d = math.abs(x - t)
  return d < 0.7 and d * d / 1.4 or d - 0.35
end)
pair("huber_loss", { delta = 0.7 }, function(x, t)
  local d = math.abs(x - t)
  return d < 0.7 and d * d / 2 or 0.7 * (d - 0.35)
end)
local function bce(p, t) return -(t * math.log(p) + (1 - t) * math.log(1 - p)) end
pair("binary_cross_entropy", {}, bce, 0.1, 0.9, 0.1, 0.8)
pair("binary_cross_entropy_with_logits", { pos_weight = { 0.5, 2, 1, 3 }, weight = { 1, 0.2, 0.4, 3 } },
  function(x, t, k)
  local p, w, weight = 1 / (1 + math.exp(-x)), ({ 0.5, 2, 1, 3 })[k], ({ 1, 0.2, 0.4, 3 })[k]
  return -weight * (w * t * math.log(p) + (1 - t) * math.log(1 - p))
end, -2, 2, 0.1, 0.8)
pair("kl_div", {}, function(x, t) return t * (math.log(t) - x) end, -2, 0, 0.1, 0.8)
C._bce_loss = { through = "binary_cross_entropy" }
C._bce_logits_loss = { inputs = { range(-2, 2), range(0.1, 0.8) },
  broadcast = { range(-2, 2), range(0.1, 0.8) },
  call = function(x, t)
    return core.binary_cross_entropy_with_logits(x, t),
      core.binary_cross_entropy_with_logits(x, t, { reduction = "none" }),
      core.kl_div(x, t, { log_target = true, reduction = "batchmean" })
  end,
  ref = function(x, t)
    local all, each_one, kl = 0, {}, 0
    for i, r in ipairs(x) do
      each_one[i] = {}
      for k, v in ipairs(r) do
        each_one[i][k] = bce(1 / (1 + math.exp(-v)), t[i][k])
        all, kl = all + each_one[i][k], kl + math.exp(t[i][k]) * (t[i][k] - v)
      end
    end
    return all / 12, each_one, kl / 3
  end }
C._pair_loss_backward = { through = "mse_loss" }
