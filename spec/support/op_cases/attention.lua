--- Cases of the rows in host/core/ops/attention.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, each, sum = H.range, H.each, H.sum

--- One head in plain Lua.  sees(i, k): may query i look at key k?
local function attention(q, k, v, scale, sees)
  return each({ 1, 2, 3, 4, 5 }, function(i)
    if not q[i] then return nil end
    local w = {}
    for j = 1, #k do
      local s = 0
      for c = 1, #q[i] do s = s + q[i][c] * k[j][c] end
      w[j] = sees(i, j) and math.exp(s * scale) or 0
    end
    local total, out = sum(w), {}
    for c = 1, #v[1] do
      out[c] = 0
      for j = 1, #k do out[c] = out[c] + w[j] / total * v[j][c] end
    end
    return out
  end)
end

local function heads(f, q, ...)
  local rest = { ... }
  return each({ 1, 2 }, function(b)
    return each({ 1, 2 },
      function(h) return f(q[b][h], unpack(each(rest, function(t) return t[b][h] end))) end)
  end)
end

C.scaled_dot_product_attention = {
  inputs = { range(-2, 2, { 2, 2, 3, 4 }), range(-2, 2, { 2, 2, 5, 4 }), range(-2, 2, { 2, 2, 5, 3 }) },
  call = function(q, k, v)
    local mask = core.tensor { { true, true, false, true, false } }
    return core.scaled_dot_product_attention(q, k, v),
      core.scaled_dot_product_attention(q, k, v, { is_causal = true, scale = 0.7 }),
      core.scaled_dot_product_attention(q, k, v, mask)
  end,
  ref = function(q, k, v)
    local function run(scale, sees)
      return heads(function(a, b, c) return attention(a, b, c, scale, sees) end, q, k, v)
    end
    return run(0.5, function() return true end), run(0.7, function(i, j) return j <= i end),
      run(0.5, function(_, j) return j ~= 3 and j ~= 5 end)
  end,
}
C._attention = { through = "scaled_dot_product_attention" }
C._attention_backward = { through = "scaled_dot_product_attention" }
C.split_heads = { inputs = { range(-2, 2, { 2, 3, 6 }) }, call = function(x) return x:split_heads(2) end,
  ref = function(x)
    local function third(n)
      return each(x, function(rows)
        return each({ 0, 1 },
          function(h) return each(rows, function(row) return { row[n * 2 + h + 1] } end) end)
      end)
    end
    return third(0), third(1), third(2)
  end }
