--- An op without a gradient raises when one is wanted of it; it never gives zeros or leaves a
--- result that looks like a constant.
---
--- Rows with a rule are compared with finite differences by ops_spec, so a rule that gave zeros for
--- something that is not flat would fail there. This spec walks the others: a result may go without
--- history only if it is not floating.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local cases = require "spec.support.op_cases"

local function leaf(spec, salt)
  local n = 1
  for _, s in ipairs(spec.shape) do n = n * s end
  local x = tensor.rand(n, { generator = tensor.Generator(salt) }):double() * (spec.hi - spec.lo) + spec.lo
  return x:view(spec.shape):detach():requires_grad_()
end

local function floating(t) return core.is_tensor(t) and t.dtype:find("float", 1, true) ~= nil end

describe("rows without a gradient", function()
  local walked = 0
  for _, row in ipairs(core.ops()) do
    local case = cases[row.name]
    local alone = row.form ~= "composite" and row.form ~= "view"
    if alone and not row.differentiable and case and case.inputs then
      walked = walked + 1
      it(row.name .. " raises, or its result is not floating", function()
        local inputs = {}
        for k, spec in ipairs(case.inputs) do inputs[k] = leaf(spec, k) end
        local results = { pcall(case.call, unpack(inputs)) }
        if not results[1] then
          assert.matches("has no gradient; call it inside tensor.no_grad", tostring(results[2]), 1, true)
          tensor.no_grad(function() case.call(unpack(inputs)) end)  -- and works there
          return
        end
        for k = 2, #results do
          local r = results[k]
          if floating(r) then
            assert.is_true(r.requires_grad, ("result %d is %s and has no history"):format(k - 1, r.dtype))
          end
        end
      end)
    end
  end

  it("are walked", function() assert.is_true(walked > 20) end)

  it("raise in place too", function()
    local x = tensor.ones(3, { requires_grad = true }) * 2
    local ok, err = pcall(function() return x:floor_divide_(2) end)
    assert.is_false(ok)
    assert.matches("floor_divide_: has no gradient", tostring(err), 1, true)
  end)

  it("work on what needs no gradient", function()
    assert.are.same({ 2, -3 }, tensor.floor_divide(tensor.tensor { 5, -5 }, 2):totable())
  end)
end)

describe("rows whose gradient is zero", function()
  it("are flat: finite differences away from their steps agree", function()
    for _, name in ipairs { "sign", "floor", "ceil", "round", "trunc" } do
      local x = tensor.tensor({ 0.3, -1.7, 2.2 }, { requires_grad = true })
      core[name](x):sum():backward()
      assert.are.same({ 0, 0, 0 }, x.grad:totable())
    end
  end)
end)
