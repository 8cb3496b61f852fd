--- Result types are PyTorch's: for every pair of types, with tensors, 0-d tensors and numbers on
--- the right.
local core = require "accelerate.core"
local reference = require "spec.reference.promotion_reference"

local NUMBERS = { integral = 2, fractional = 2.5 }

local function dtype_of(f, ...)
  local ok, result = pcall(f, ...)
  return ok and result.dtype or "error"
end

describe("result types", function()
  for _, row in ipairs(reference) do
    it(("of %s on %s are PyTorch's"):format(row.op, row.a), function()
      local x = core.ones({ 2 }, { dtype = row.a })
      if row.result then
        assert.are.equal(row.result, dtype_of(core[row.op], x))
        return
      end
      for key, expected in pairs(row) do
        local b, kind = key:match("^(%w+)_(%w+)$")
        local other = NUMBERS[key]
        if b then other = core.ones(kind == "dims" and { 2 } or {}, { dtype = b }) end
        if other then assert.are.equal(expected, dtype_of(core[row.op], x, other), key) end
      end
    end)
  end
end)

describe("limits of integers", function()
  it("stay within the type, and a value must fit it", function()
    local bytes = core.tensor({ 200, 3 }, { dtype = "uint8" })
    assert.same({ 1, 1 }, core.hardtanh(bytes):totable()) -- PyTorch's values
    assert.same({ 200, 3 }, core.hardtanh(bytes, 0, 1000):totable())
    assert.same({ 200, 9 }, core.threshold(bytes, 100, 9.9):totable())
    assert.error_matches(function() core.threshold(bytes, 100, 256) end,
      "^threshold: value 256 does not fit a tensor of uint8")
    assert.error_matches(function() core.threshold(bytes, 100, 0 / 0) end, "does not fit a tensor of uint8")
    assert.same({ 1, 3 }, core.tensor({ 0, 3 }, { dtype = "int64" }):hardtanh_(1, 4):totable())
    assert.equal("float32", core.relu6(core.ones({ 2 }, { dtype = "bool" })).dtype)
  end)

  it("of bool give int64, and with tensors of bool a bool", function()
    local x = core.tensor { true, false }
    assert.equal("float32", x:clamp(0, 0.5).dtype)
    assert.equal("int64", x:clamp(0, 1).dtype)
    assert.same({ true, true }, x:clamp { min = core.tensor { false, true } }:totable())
    assert.error_matches(function() x:clamp_(0, 1) end, "does not fit the tensor being changed, bool")
    assert.error_matches(function() x:square_() end, "does not fit the tensor being changed, bool")
  end)
end)
