--- Result types are PyTorch's: for every pair of types, with tensors, 0-d tensors and numbers on
--- the right.
local core = require "accelerate.core"
local reference = require "spec.support.promotion_reference"

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
