--- Encoded matrices on the device: decoded numbers have the CPU's bits, and products are close.
local device = require "spec.support.device"
local core = require "accelerate.core"
local encoded = require "spec.support.encoded"
local encodings = require "accelerate.quantisation.encodings"

if not device.name then
  describe("encoded matrices on the device",
    function() it("need one", function() pending(device.reason) end) end)
  return
end

local product = encoded.product
local function there(t) return t and t:to(device.name) end
local function moved(e) return encoded.moved(e, device.name) end

describe(("encoded matrices on %s"):format(device.name), function()
  for _, name in ipairs(encoded.names()) do
    it(name, function()
      core.manual_seed(0)
      local e = encoded.matrix(name, 512)
      local d = moved(e)
      for _, dtype in ipairs { "float32", "float16", "bfloat16" } do
        local expected, got = encodings.decode(e, dtype), encodings.decode(d, dtype):to "cpu"
        assert.are.equal(0, expected:ne(got):sum():item())
      end
      local bias = core.randn(6)
      for _, m in ipairs { 1, 3, 7 } do
        local x = core.randn(m, 512)
        local expected = product(x, e, bias)
        local off = (product(there(x), d, there(bias)):to "cpu" - expected):abs():max():item()
        assert.is_true(off <= 1e-5 * expected:abs():max():item(), ("%d rows: %g"):format(m, off))
      end
    end)
  end

  it("int8 with inputs of eight bits", function()
    core.manual_seed(1)
    local e = encodings.encode("int8", core.randn(10, 96))
    for _, m in ipairs { 2, 9 } do
      local x = core.randn(m, 96) * 2
      for _, threshold in ipairs { 0, 4 } do
        local expected = product(x, e, nil, threshold)
        local off = (product(there(x), moved(e), nil, threshold):to "cpu" - expected):abs():max():item()
        assert.is_true(off <= 1e-5 * expected:abs():max():item())
      end
    end
  end)
end)
