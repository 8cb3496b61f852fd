--- Encoded matrices on the device: decoded numbers have the CPU's bits, and products are close.
local device = require "spec.support.device"
local core = require "accelerate.core"
local encodings = require "accelerate.quantisation.encodings"

if not device.name then
  describe("encoded matrices on the device",
    function() it("need one", function() pending(device.reason) end) end)
  return
end

local function there(t) return t and t:to(device.name) end

local function moved(e)
  local copy = {}
  for key, value in pairs(e) do copy[key] = core.is_tensor(value) and there(value) or value end
  return copy
end

local function product(x, e, bias, threshold)
  return encodings._linear(x, e.codes, e.scales, e.more, bias, encodings.list[e.name].number, e.rows, e.cols,
    e.size,
    threshold)
end

-- A random matrix of 6 x 512 numbers, or of `cols`.
local function matrix(name, cols)
  local info = encodings.list[name]
  if info.block > 2 then
    local codes = core.randint(0, 50, { 6, cols / info.block * info.bytes }):to "uint8"
    return { name = name, rows = 6, cols = cols, size = 32, codes = codes }
  elseif name == "affine4" or name == "affine8" then
    return { name = name, rows = 6, cols = cols, size = 32,
      codes = core.randint(0, 256, { 6, cols / info.block }):to "uint8",
      scales = core.rand(6, cols / 32), more = core.randint(0, 16, { 6, cols / 32 }):to "uint8" }
  elseif name == "fp8" or name == "fp8_rows" then
    return { name = name, rows = 6, cols = cols, size = 128,
      codes = core.randint(0, 120, { 6, cols }):to "uint8",
      scales = name == "fp8" and core.rand(1, math.ceil(cols / 128)) or core.rand(6) }
  end
  return encodings.encode(name, core.randn(6, cols), 64, name == "nf4")
end

describe(("encoded matrices on %s"):format(device.name), function()
  for name in pairs(encodings.list) do
    if name ~= "dynamic8" then
      it(name, function()
        core.manual_seed(0)
        local e = matrix(name, 512)
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
