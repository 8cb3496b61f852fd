--- Runs the cases of the op table: results and gradients, on a device or at a processor level.
local core = require "accelerate.core"
local build = require("spec.support.op_inputs").build

local M = { layouts = { "contiguous", "strided", "broadcast" },
  dtypes = { "float64", "float32", "bfloat16", "float16" } }

--- |a - b| against the largest |b|, where another device or level may sum in another order and has
--- its own exp.
M.tolerance = { float64 = 1e-11, float32 = 2e-5, bfloat16 = 2e-2, float16 = 4e-3 }

--- The elements of a tensor of any device, as a list.
function M.flat(t)
  t = t:detach():to("cpu")
  if t.dtype == "float16" or t.dtype == "bfloat16" then t = t:float() end
  return t:reshape(-1):totable()
end

--- Returns where list a is farther from b than `tolerance` of b's largest element: the position and
--- both elements; nil where nowhere.
function M.difference(a, b, tolerance)
  local scale = 1
  for i = 1, #b do
    if type(b[i]) == "number" and b[i] == b[i] and math.abs(b[i]) < math.huge then
      scale = math.max(scale, math.abs(b[i]))
    end
  end
  for i = 1, #b do
    local x, y = a[i], b[i]
    local same = x == y or (x ~= x and y ~= y)
      or (type(y) == "number" and math.abs(x - y) <= tolerance * scale)
    if not same then return i, x, y end
  end
end

local function total_of(results)
  local total
  for _, r in ipairs(results) do
    if core.is_tensor(r) and r.requires_grad then
      local w = (core.arange(r:numel(), { device = r.device }) % 7):to(r.dtype) / 8 + 0.5
      local part = (r * w:view(r.shape)):sum()
      total = total and total + part or part
    end
  end
  return total
end

--- Whether a row's case has gradients.
function M.is_differentiable(row, case)
  return (row.differentiable or row.form == "composite") and not case.exact
end

--- Returns the results and the leaves' gradients (false: none).  within(call): calls it where its
--- functions make tensors on that device; nil: as it is.
function M.run(case, layout, dtype, on, differentiable, within)
  local leaves, inputs = build(case, layout)
  for k, leaf in ipairs(leaves) do
    leaves[k] = leaf:to(dtype):to(on)
    if differentiable then leaves[k]:requires_grad_() end
  end
  local function call() return case.call(inputs(unpack(leaves))) end
  local results = within and { within(call) } or { call() }
  local grads = {}
  local total = differentiable and total_of(results)
  if total then
    total:backward()
    for k, leaf in ipairs(leaves) do grads[k] = leaf.grad or false end
  end
  return results, grads
end

return M
