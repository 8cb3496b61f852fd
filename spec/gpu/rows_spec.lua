--- Every row of the op table on the device against the CPU: values, types, gradients; contiguous,
--- strided and broadcast inputs, all floating types.  Without a GPU this runs over memory that the
--- host cannot touch, which finds host code that would.
local device = require "spec.support.device"
local core = require "accelerate.core"
local cases = require "spec.support.op_cases"
local build = require("spec.support.op_inputs").build

if not device.name then
  describe("rows on the device", function() it("need one", function() pending(device.reason) end) end)
  return
end

-- |a - b| against the largest |b|: the device may sum in another order and has its own exp.
local TOLERANCE = device.fake and { float64 = 0, float32 = 0, bfloat16 = 0, float16 = 0 }
  or { float64 = 1e-11, float32 = 2e-5, bfloat16 = 2e-2, float16 = 4e-3 }

local function flat(t)
  t = t:detach():to("cpu")
  if t.dtype == "float16" or t.dtype == "bfloat16" then t = t:float() end
  return t:reshape(-1):totable()
end

local function compare(what, got, expected, tolerance)
  assert.are.equal(device.name, got.device, what)
  assert.are.same(expected.shape, got.shape, what)
  assert.are.equal(expected.dtype, got.dtype, what)
  local a, b = flat(got), flat(expected)
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
    if not same then
      error(("%s, flat position %d: got %s, the CPU has %s"):format(what, i, tostring(x), tostring(y)), 0)
    end
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

-- The results and the leaves' gradients, on one device.
local function run(case, layout, dtype, on, differentiable)
  local leaves, inputs = build(case, layout)
  for k, leaf in ipairs(leaves) do
    leaves[k] = leaf:to(dtype):to(on)
    if differentiable then leaves[k]:requires_grad_() end
  end
  local function call() return case.call(inputs(unpack(leaves))) end
  local results = on == "cpu" and { call() } or { device.with(call) }
  local grads = {}
  local total = differentiable and total_of(results)
  if total then
    total:backward()
    for k, leaf in ipairs(leaves) do grads[k] = leaf.grad or false end
  end
  return results, grads
end

describe(("rows on %s (%s)"):format(device.name, device.kind), function()
  for _, row in ipairs(core.ops()) do
    local case = cases[row.name]
    if case and case.call then
      for _, layout in ipairs { "contiguous", "strided", "broadcast" } do
        for _, dtype in ipairs { "float64", "float32", "bfloat16", "float16" } do
          it(("%s, %s, %s"):format(row.name, layout, dtype), function()
            local differentiable = (row.differentiable or row.form == "composite") and not case.exact
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
      assert.are.same({ 2, 2, 2, 2, 2, 2 }, flat(z:real():to("cpu")))
      z:copy_(core.complex(core.arange(3, { dtype = "float32" }), core.ones(3)):to(device.name))
      assert.are.same({ 0, 1, 2, 0, 1, 2 }, flat(z:real():to("cpu")))
      z:zero_()
      assert.are.same({ 0, 0, 0, 0, 0, 0 }, flat(z:imag():to("cpu")))
    end)
  end)
end)
