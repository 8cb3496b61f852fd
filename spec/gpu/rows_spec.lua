--- Every row of the op table on the device against the CPU: values, types, gradients; contiguous,
--- strided and broadcast inputs, all floating types.  Without a GPU this runs over memory that the
--- host cannot touch, which finds host code that would.
local device = require "spec.support.device"
local core = require "accelerate.core"
local cases = require "spec.support.op_cases"
local runs = require "spec.support.op_runs"

if not device.name then
  describe("rows on the device", function() it("need one", function() pending(device.reason) end) end)
  return
end

local TOLERANCE = device.fake and { float64 = 0, float32 = 0, bfloat16 = 0, float16 = 0 } or runs.tolerance

local function compare(what, got, expected, tolerance)
  assert.are.equal(device.name, got.device, what)
  assert.are.same(expected.shape, got.shape, what)
  assert.are.equal(expected.dtype, got.dtype, what)
  local at, x, y = runs.difference(runs.flat(got), runs.flat(expected), tolerance)
  if not at then return end
  error(("%s, flat position %d: got %s, the CPU has %s"):format(what, at, tostring(x), tostring(y)), 0)
end

-- The results and the leaves' gradients, on one device.
local function run(case, layout, dtype, on, differentiable)
  return runs.run(case, layout, dtype, on, differentiable, on ~= "cpu" and device.with or nil)
end

describe(("rows on %s (%s)"):format(device.name, device.kind), function()
  for _, row in ipairs(core.ops()) do
    local case = cases[row.name]
    if case and case.call then
      for _, layout in ipairs(runs.layouts) do
        for _, dtype in ipairs(runs.dtypes) do
          it(("%s, %s, %s"):format(row.name, layout, dtype), function()
            local differentiable = runs.is_differentiable(row, case)
            local ok, expected, grads = pcall(run, case, layout, dtype, "cpu", differentiable)
            if not ok then -- a type that the row does not take: the device must refuse it, too
              assert.is_false((pcall(run, case, layout, dtype, device.name, differentiable)),
                tostring(expected))
              return
            end
            local fine, got, got_grads = pcall(run, case, layout, dtype, device.name, differentiable)
            if not fine then
              local missing = tostring(got):match("([%w_]+): the cuda backend has no kernel for it")
              if missing then return pending("the CUDA backend has no kernel for " .. missing) end
              error(got, 0)
            end
            for k, r in ipairs(expected) do
              if core.is_tensor(r) then
                compare(("%s result %d"):format(row.name, k), got[k], r, TOLERANCE[dtype])
              end
            end
            for k, g in ipairs(grads) do
              if g then
                compare(("%s gradient %d"):format(row.name, k), got_grads[k], g, TOLERANCE[dtype] * 4)
              end
            end
          end)
        end
      end
    end
  end

  it("complex numbers, which the CPU computes, are filled and written over in their own shape", function()
    device.with(function()
      local z = core.empty(2, 3, { dtype = "complex64", device = device.name })
      z:fill_(2)
      assert.are.same({ 2, 2, 2, 2, 2, 2 }, runs.flat(z:real():to("cpu")))
      z:copy_(core.complex(core.arange(3, { dtype = "float32" }), core.ones(3)):to(device.name))
      assert.are.same({ 0, 1, 2, 0, 1, 2 }, runs.flat(z:real():to("cpu")))
      z:zero_()
      assert.are.same({ 0, 0, 0, 0, 0, 0 }, runs.flat(z:imag():to("cpu")))
    end)
  end)
end)
