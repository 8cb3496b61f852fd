-- Runs the case of every row, at this process's processor level, and prints
--   VALUES row/layout/dtype/result numbers...   results 1, 2, ... and gradients g1, g2, ...
-- Used by spec/kernels/levels_spec.lua.
package.path = "./?.lua;" .. package.path
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local cases = require "spec.support.op_cases"
local runs = require "spec.support.op_runs"

local function show(name, t)
  if not core.is_tensor(t) then return end
  if t:is_complex() then t = tensor.view_as_real(t) end
  local words = {}
  for i, v in ipairs(runs.flat(t)) do
    words[i] = type(v) == "number" and ("%.17g"):format(v) or tostring(v)
  end
  print("VALUES", name, table.concat(words, " "))
end

for _, row in ipairs(core.ops()) do
  local case = cases[row.name]
  if case and case.call then
    for _, layout in ipairs(runs.layouts) do
      for _, dtype in ipairs(runs.dtypes) do
        local differentiable = runs.is_differentiable(row, case)
        local ok, results, grads = pcall(runs.run, case, layout, dtype, "cpu", differentiable)
        local name = ("%s/%s/%s/"):format(row.name, layout, dtype)
        for k, r in ipairs(ok and results or {}) do show(name .. k, r) end
        for k, g in ipairs(ok and grads or {}) do if g then show(name .. "g" .. k, g) end end
      end
    end
  end
end
