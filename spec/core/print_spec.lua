-- Tensors as text, against what PyTorch prints for the same values.
local tensor = require "accelerate.tensor"
local reference = require "spec.reference.print_reference"

local environment = setmetatable({
  tensor = tensor,
  T = function(value, options) return tensor(value, options) end,
  A = function(n) return tensor.arange(n) end,
}, { __index = _G })

describe("tostring", function()
  for _, case in ipairs(reference) do
    local expression, expected = case[1], case[2]
    it("prints " .. expression:sub(1, 60) .. " as PyTorch does", function()
      local x = setfenv(assert(loadstring("return " .. expression)), environment)()
      assert.equal(expected, tostring(x))
    end)
  end

  it("names the op that made a tensor", function()
    local x = tensor({ 1, 2 }, { requires_grad = true })
    assert.equal("tensor([2., 3.], grad_fn=<add>)", tostring(x + 1))
  end)

  it("prints a view that is not contiguous in its own order", function()
    assert.equal("tensor([[0, 3],\n        [1, 4],\n        [2, 5]])",
      tostring(tensor.arange(6):view(2, 3):t()))
  end)

  it("rounds halves to even", function()
    assert.equal("tensor([ 0.2812,  0.2188, -0.2812,  0.4688])",
      tostring(tensor.tensor { 0.28125, 0.21875, -0.28125, 0.46875 }))
    tensor.set_printoptions { precision = 1, sci_mode = true }
    local text = tostring(tensor.tensor { 1.25, 1.75, -2.25 })
    tensor.set_printoptions { precision = 0, sci_mode = false }
    local whole = tostring(tensor.tensor { 0.5, 1.5, 2.5 })
    tensor.set_printoptions { profile = "default" }
    assert.equal("tensor([ 1.2e+00,  1.8e+00, -2.2e+00])", text)
    assert.equal("tensor([0, 2, 2])", whole)
  end)

  it("prints integers beyond 2^53 exactly", function()
    local x = tensor({ 0 }, { dtype = "int64" })
    x:data_ptr()[0] = 9007199254740993LL
    assert.equal("tensor([9007199254740993])", tostring(x))
  end)

  it("records nothing and changes nothing", function()
    local x = tensor({ 1, 2 }, { requires_grad = true })
    local _ = tostring(x)
    assert.is_true(x.is_leaf)
    assert.equal(0, x:_version())
  end)

  it("says so when a tensor was released", function()
    local x = tensor.ones(2)
    tensor.release(x)
    assert.equal("tensor(released)", tostring(x))
  end)

  it("takes its settings by position", function()
    tensor.set_printoptions(2, 10, 2, 60, nil, false)
    local options = tensor.get_printoptions()
    local text = tostring(tensor.arange(20))
    tensor.set_printoptions { profile = "default" }
    assert.same({ precision = 2, threshold = 10, edgeitems = 2, linewidth = 60, sci_mode = false }, options)
    assert.equal("tensor([ 0,  1,  ..., 18, 19])", text)
  end)
end)
