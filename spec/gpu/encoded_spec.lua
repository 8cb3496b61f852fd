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

  -- Rows that begin anywhere: what a warp decodes begins and ends within 16 bytes.
  for _, name in ipairs { "nf4", "fp4", "int8", "affine4", "affine8", "fp8", "fp8_rows" } do
    it(name .. " with rows of any length", function()
      core.manual_seed(2)
      for _, cols in ipairs { 1, 7, 33, 63, 100, 1055 } do
        if name == "affine4" then cols = cols + cols % 2 end -- a row begins with a byte
        local e = encoded.matrix(name, cols, 37)
        local d = moved(e)
        for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16" } do
          local expected, got = encodings.decode(e, dtype), encodings.decode(d, dtype):to "cpu"
          assert.are.equal(0, expected:ne(got):sum():item(), cols .. " numbers of " .. dtype)
        end
        local x = core.randn(3, cols)
        device.agree(product(there(x), d), product(x, e), 1e-5, cols .. " numbers")
      end
    end)
  end

  it("codes and inputs that are views", function()
    core.manual_seed(5)
    for _, name in ipairs { "Q4_K", "Q8_0", "nf4", "int8" } do
      local e = encoded.matrix(name, 512)
      local d, n = moved(e), e.codes:numel()
      local all = core.cat { core.zeros(3, { dtype = "uint8" }), e.codes:flatten() }:to(device.name)
      d.codes = all:narrow(1, 4, n):view(unpack(e.codes.shape))
      local got = encodings.decode(d, "bfloat16"):to "cpu"
      assert.are.equal(0, encodings.decode(e, "bfloat16"):ne(got):sum():item(), name)
      local x = core.randn(512, 4)
      device.agree(product(there(x):t(), d), product(x:t(), e), 1e-5, name)
    end
  end)

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
