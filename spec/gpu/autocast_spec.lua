--- Automatic casting on the device: every row under its policy (lower, float32, widest, or as it
--- is) gives the CPU's types and, within what half types hold, its numbers; gradients come back in
--- the leaves' type.
local device = require "spec.support.device"
local core = require "accelerate.core"
local cases = require "spec.support.op_cases"
local build = require("spec.support.op_inputs").build
local tensor = require "accelerate.tensor"

if not device.name then
  describe("automatic casting on the device",
    function() it("needs one", function() pending(device.reason) end) end)
  return
end

local TOLERANCE = { bfloat16 = 4e-2, float16 = 8e-3 }

local function run(case, lower, on, differentiable)
  local leaves, inputs = build(case, "contiguous")
  for k, leaf in ipairs(leaves) do
    leaves[k] = leaf:float():to(on)
    if differentiable then leaves[k]:requires_grad_() end
  end
  local function call()
    return tensor.autocast({ dtype = lower }, function() return case.call(inputs(unpack(leaves))) end)
  end
  local results = on == "cpu" and { call() } or { device.with(call) }
  local total
  for _, r in ipairs(differentiable and results or {}) do
    if core.is_tensor(r) and r.requires_grad then
      total = total and total + r:float():sum() or r:float():sum()
    end
  end
  if total then total:backward() end
  return results, leaves
end

local function compare(what, got, expected, tolerance)
  assert.are.equal(expected.dtype, got.dtype, what)
  assert.are.same(expected.shape, got.shape, what)
  local a, b = got:detach():to("cpu"):double():reshape(-1), expected:detach():double():reshape(-1)
  if b:numel() == 0 or expected.dtype:find("int", 1, true) or expected.dtype == "bool" then return end
  local other = b:isfinite():logical_and(a:isfinite()):logical_not()
  assert.is_true(tensor.equal(b:isfinite(), a:isfinite()), what)
  local worst = (a - b):abs():masked_fill(other, 0):max():item()
  local scale = math.max(1, b:abs():masked_fill(other, 0):max():item())
  assert.is_true(worst <= tolerance * scale, ("%s: off by %g of %g"):format(what, worst, scale))
end

describe(("automatic casting on %s (%s)"):format(device.name, device.kind), function()
  for _, row in ipairs(core.ops()) do
    local case = cases[row.name]
    if case and case.call then
      it(("%s: %s"):format(row.name, row.autocast or "as its policy says"), function()
        local differentiable = (row.differentiable or row.form == "composite") and not case.exact
        for _, lower in ipairs { "bfloat16", "float16" } do
          local ok, expected, leaves = pcall(run, case, lower, "cpu", differentiable)
          local fine, got, leaves_got = pcall(run, case, lower, device.name, differentiable)
          assert.are.equal(ok, fine, tostring(ok and got or expected))
          for k, r in ipairs(ok and expected or {}) do
            if core.is_tensor(r) then
              compare(("%s, %s, result %d"):format(row.name, lower, k), got[k], r, TOLERANCE[lower])
            end
          end
          for k, leaf in ipairs(ok and leaves or {}) do
            assert.are.equal(leaf.grad == nil, leaves_got[k].grad == nil)
            if leaf.grad then
              compare(("%s, %s, gradient %d"):format(row.name, lower, k), leaves_got[k].grad, leaf.grad,
                TOLERANCE[lower] * 4)
            end
          end
        end
      end)
    end
  end
end)
