--- Cases of the rows in host/core/ops/norm_batch.def.
local core = require "accelerate.core"
local H = require "spec.support.op_cases.helpers"
local C = H.C
local range, each, sum = H.range, H.each, H.sum

--- x [n][c][l] by the mean and variance of each channel, or those given; then z added and negative
--- values cut off.
local function normal(x, w, b, eps, mean, var, z)
  local out = {}
  for n = 1, #x do out[n] = {} end
  for c = 1, #x[1] do
    local all = {}
    for n = 1, #x do for _, v in ipairs(x[n][c]) do all[#all + 1] = v end end
    local m = mean and mean[c] or sum(all) / #all
    local s = var and var[c] or sum(each(all, function(v) return (v - m) ^ 2 end)) / #all
    for n = 1, #x do
      out[n][c] = {}
      for l, v in ipairs(x[n][c]) do
        local y = (v - m) / math.sqrt(s + eps) * (w and w[c] or 1) + (b and b[c] or 0)
        out[n][c][l] = z and math.max(y + z[n][c][l], 0) or y
      end
    end
  end
  return out
end

C.batch_norm = {
  inputs = { range(-2, 2, { 3, 2, 4 }), range(-1, 2, { 2 }), range(-1, 1, { 2 }), range(-1, 1, { 3, 2, 4 }) },
  call = function(x, w, b, z)
    local mean, var = core.tensor({ 0.25, -0.5 }, { dtype = "float64" }), core.tensor({ 0.75, 1.5 },
      { dtype = "float64" })
    return core.batch_norm(x, nil, nil, w, b, { training = true }),
      core.batch_norm(x, { training = true, eps = 0.1, residual = z, activation = "relu" }),
      core.batch_norm(x, mean, var, w, b, { residual = z, activation = "relu" })
  end,
  ref = function(x, w, b, z)
    return normal(x, w, b, 1e-5), normal(x, nil, nil, 0.1, nil, nil, z),
      normal(x, w, b, 1e-5, { 0.25, -0.5 }, { 0.75, 1.5 }, z)
  end }
for _, name in ipairs { "_batch_norm", "_batch_norm_residual", "_batch_norm_backward", "_scale_shift" } do
  C[name] = { through = "batch_norm" }
end
