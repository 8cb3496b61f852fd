--- Encoded matrices, beside what bitsandbytes and gguf make of the same ones
--- (spec/reference/quantised/generate.py).
local core = require "accelerate.core"
local encodings = require "accelerate.quantisation.encodings"
local messages = require "spec.support.messages"

local file = core.safetensors_open "spec/reference/quantised/reference.safetensors"
local function get(name) return file:get_tensor(name) end

local function assert_same(expected, got)
  assert.are.same(expected.shape, got.shape)
  assert.are.equal(expected.dtype, got.dtype)
  assert.are.equal(0, expected:ne(got):sum():item())
end

local SAMPLES = { "plain", "half", "bfloat", "odd", "zeros", "large" }
local BLOCKS = { "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
  "MXFP4" }

-- The blocks of a format, as a matrix.
local function blocks(name)
  return { name = name, rows = 3, cols = 512, size = 32, codes = get("blocks." .. name .. ".codes") }
end

describe("encoded matrices", function()
  for _, sample in ipairs(SAMPLES) do
    for _, kind in ipairs { "nf4", "fp4" } do
      local key = sample .. "." .. kind .. "."
      it(("%s in %s has bitsandbytes' codes and scales"):format(sample, kind), function()
        local e = encodings.encode(kind, get(sample .. ".x"))
        assert_same(get(key .. "codes"), e.codes)
        assert_same(get(key .. "absmax"), e.scales)
      end)
      it(("%s in %s has bitsandbytes' doubled scales"):format(sample, kind), function()
        local e = encodings.encode(kind, get(sample .. ".x"), 64, true)
        assert_same(get(key .. "absmax8"), e.scales)
        assert_same(get(key .. "more"), e.more)
        assert_same(get(key .. "doubled"), encodings.decode(e, get(sample .. ".x").dtype))
      end)
    end
  end

  it("decodes nf4 and fp4 of rows that are no multiple of a block", function()
    for _, kind in ipairs { "nf4", "fp4" } do
      assert_same(get("odd." .. kind .. ".values"), encodings.decode(encodings.encode(kind, get "odd.x")))
    end
  end)

  it("has bitsandbytes' rows of int8", function()
    local e = encodings.encode("int8", get "int8.x")
    assert_same(get "int8.codes", e.codes)
    assert_same(get "int8.scale", e.scales)
    assert_same(get "int8.values", encodings.decode(e))
  end)

  for _, name in ipairs(BLOCKS) do
    it(("decodes %s to gguf's bits"):format(name), function()
      assert_same(get("blocks." .. name .. ".values"), encodings.decode(blocks(name)))
    end)
  end

  it("decodes affine4, affine8 and fp8 as their formulas say", function()
    local codes = core.tensor({ { 0x21, 0xf0 } }, { dtype = "uint8" })
    local affine = { name = "affine4", rows = 1, cols = 4, size = 32, codes = codes,
      scales = core.tensor { { 0.5 } }, more = core.tensor({ { 8 } }, { dtype = "uint8" }) }
    assert.are.same({ { -3.5, -3, -4, 3.5 } }, encodings.decode(affine):totable())
    local bytes = core.tensor({ { 0x38, 0xb8, 0x01, 0x7e, 0x40 } }, { dtype = "uint8" })
    local fp8 = { name = "fp8", rows = 1, cols = 5, size = 128, codes = bytes,
      scales = core.tensor { { 2 } } }
    assert.are.same({ { 2, -2, 2 ^ -8, 896, 4 } }, encodings.decode(fp8):totable())
    local rows = { name = "fp8_rows", rows = 2, cols = 2, size = 32,
      codes = core.tensor({ { 0x38, 0xb8 }, { 0x38, 0x40 } }, { dtype = "uint8" }),
      scales = core.tensor { 2, 3 } }
    assert.are.same({ { 2, -2 }, { 3, 6 } }, encodings.decode(rows):totable())
    local eight = { name = "affine8", rows = 1, cols = 3, size = 32,
      codes = core.tensor({ { 255, 0, 130 } }, { dtype = "uint8" }), scales = core.tensor { { 0.5 } },
      more = core.tensor({ { 128 } }, { dtype = "uint8" }) }
    assert.are.same({ { 63.5, -64, 1 } }, encodings.decode(eight):totable())
  end)
end)

-- A random matrix in an encoding.
local function matrix(name, rows, cols)
  if core._encodings()[name].block > 2 then
    local e = blocks(name)
    return e
  end
  if name == "affine4" or name == "affine8" then
    local groups, bytes = math.ceil(cols / 32), name == "affine4" and cols / 2 or cols
    return { name = name, rows = rows, cols = cols, size = 32,
      codes = core.randint(0, 256, { rows, bytes }):to "uint8", scales = core.rand(rows, groups),
      more = core.randint(0, 16, { rows, groups }):to "uint8" }
  elseif name == "fp8" or name == "fp8_rows" then
    return { name = name, rows = rows, cols = cols, size = 128,
      codes = core.randint(0, 126, { rows, cols }):to "uint8",
      scales = name == "fp8" and core.rand(math.ceil(rows / 128), math.ceil(cols / 128)) or core.rand(rows) }
  end
  return encodings.encode(name, core.randn(rows, cols))
end

local function product(x, e, bias, threshold)
  return encodings._linear(x, e.codes, e.scales, e.more, bias, encodings.list[e.name].number, e.rows, e.cols,
    e.size,
    threshold)
end

describe("products with encoded matrices", function()
  local names = { "nf4", "fp4", "int8", "affine4", "affine8", "fp8", "fp8_rows" }
  for _, name in ipairs(BLOCKS) do names[#names + 1] = name end

  for _, name in ipairs(names) do
    it(("are those with the decoded one: %s"):format(name), function()
      core.manual_seed(0)
      for _, cols in ipairs { 64, 96, 100, 768 } do
        local e = matrix(name, 20, cols)
        local bias = core.randn(e.rows)
        for _, m in ipairs { 1, 3, 7 } do
          local x = core.randn(m, e.cols)
          local expected = core.linear(x:double(), encodings.decode(e, "float64"), bias:double())
          local error_ = (product(x, e, bias):double() - expected):abs():max() / expected:abs():max()
          assert.is_true(error_:item() < 3e-6, ("%d x %d: %g"):format(m, cols, error_:item()))
        end
      end
    end)
  end

  it("take half types and round once", function()
    core.manual_seed(1)
    local e = matrix("nf4", 16, 64)
    for _, dtype in ipairs { "float16", "bfloat16" } do
      for _, m in ipairs { 2, 9 } do
        local x = core.randn(m, 64):to(dtype)
        local exact = core.linear(x:double(), encodings.decode(e, "float64")):float()
        local off = (product(x, e):float() - exact):abs():max():item()
        assert.is_true(off <= exact:abs():max():item() * (dtype == "float16" and 2 ^ -11 or 2 ^ -8) * 1.01)
      end
    end
  end)

  it("take scales of any number of values, and doubled ones", function()
    core.manual_seed(2)
    for _, name in ipairs { "nf4", "fp4" } do
      for _, size in ipairs { 32, 64, 128, 1024 } do
        for _, cols in ipairs { 64, 128, 192, 768 } do
          local e = encodings.encode(name, core.randn(9, cols), size, cols ~= 192)
          for m = 1, 4 do
            local x = core.randn(m, cols)
            local expected = core.linear(x:double(), encodings.decode(e, "float64"))
            local error_ = (product(x, e):double() - expected):abs():max() / expected:abs():max()
            assert.is_true(error_:item() < 3e-6, ("%s %d: %d x %d"):format(name, size, m, cols))
          end
        end
      end
    end
  end)

  -- The definition, in float64: rows of x and of the matrix in whole numbers.
  local function by_definition(x, e)
    local half = x:half():double()
    local most = half:abs():amax(2, true)
    local whole = (half:float() * (127 / most:float())):round():double()
    local codes = e.codes:double()
    codes = codes - 256 * codes:ge(128):double()
    return whole:mm(codes:t()) * most * e.scales:double():view(1, -1) / (127 * 127)
  end

  it("in int8 add whole numbers without rounding", function()
    core.manual_seed(3)
    for _, cols in ipairs { 7, 16, 64, 100, 768, 5000 } do
      local e = encodings.encode("int8", core.randn(11, cols))
      for m = 1, 6 do
        -- magnitudes whose quotients are exact
        local x = core.randint(-127, 128, { m, cols }):float()
        x:select(2, 1):fill_(127)
        local expected = by_definition(x, e)
        local off = (product(x, e, nil, 0):double() - expected):abs():max():item()
        assert.is_true(off <= 3e-7 * expected:abs():max():item(), ("%d x %d: %g"):format(m, cols, off))
      end
    end
  end)

  it("in int8 pass on what is no number", function()
    local e = encodings.encode("int8", core.randn(5, 64))
    for _, bad in ipairs { 0 / 0, 1 / 0 } do
      local x = core.ones(2, 64)
      x[{ 2, 3 }] = bad
      local y = product(x, e, nil, 0)
      assert.is_true(y:isnan():select(1, 2):all():item())
      assert.is_false(y:isnan():select(1, 1):any():item())
    end
  end)

  it("in int8 are bitsandbytes' with inputs of eight bits", function()
    local e = encodings.encode("int8", get "int8.x")
    local y = product(get "int8.a", e, get "int8.bias", 0)
    assert.is_true((y - get "int8.y0"):abs():max():item() < 1e-3)
  end)

  it("in int8 keep columns with a large element", function()
    local e = encodings.encode("int8", get "int8.x")
    local a = get "int8.a"
    local exact = core.linear(a, encodings.decode(e), get "int8.bias")
    local function off(threshold)
      return (product(a, e, get "int8.bias", threshold) - exact):abs():max():item()
    end
    assert.is_true((product(a, e, get "int8.bias", 3) - get "int8.y3"):abs():max():item() < 0.05)
    assert.is_true(off(3) < 0.5 * off(0))
    assert.is_true(off(1e-6) < 1e-4)
  end)

  it("pass the gradient to the input and the bias", function()
    local e = matrix("nf4", 6, 64)
    local x, bias = core.randn(2, 3, 64), core.randn(6)
    x.requires_grad, bias.requires_grad = true, true
    product(x, e, bias):sum():backward()
    local weight = encodings.decode(e)
    local expected = weight:sum({ dim = 1 }):expand { 2, 3, 64 }
    assert.is_true((x.grad - expected):abs():max():item() < 1e-5)
    assert.are.same({ 6, 6, 6, 6, 6, 6 }, bias.grad:totable())
  end)

  it("pass the gradient to the input in each encoding, without bias and without scales", function()
    local list = { matrix("nf4", 6, 64), matrix("int8", 6, 64) }
    for _, name in ipairs(BLOCKS) do list[#list + 1] = blocks(name) end
    for _, e in ipairs(list) do
      local x = core.randn(4, e.cols)
      x.requires_grad = true
      -- layers in a row: the node of each has memory of others behind it
      product(x * 2, e):sum():backward()
      local expected = 2 * encodings.decode(e):sum({ dim = 1 }):expand { 4, e.cols }
      local most = math.max(1, expected:abs():max():item())
      assert.is_true((x.grad - expected):abs():max():item() < 1e-5 * most, e.name)
    end
  end)

  it("take no rows", function()
    assert.are.same({ 0, 6 }, product(core.zeros(0, 64), matrix("nf4", 6, 64)).shape)
  end)
end)

describe("rows for encoded matrices refuse", function()
  local decode = core._row "_decode"
  local bytes = function(n) return core.zeros({ n }, { dtype = "uint8" }) end
  local list = encodings.list

  it("codes and scales of other sizes", function()
    assert.has_error(function() decode(bytes(17), nil, nil, list.Q4_0.number, 1, 32, 32, "float32") end,
      "_decode: codes of 1 x 32 numbers in Q4_0 must be 18 elements, got [17]")
    assert.has_error(function()
      decode(bytes(32), core.ones(2), nil, list.nf4.number, 1, 64, 64, "float32")
    end,
      "_decode: scales of 1 x 64 numbers in nf4 must be 1 elements, got [2]")
    assert.has_error(function() decode(bytes(32), nil, nil, list.nf4.number, 1, 64, 64, "float32") end,
      "_decode: nf4 needs scales")
    assert.has_error(function()
      decode(bytes(18), core.ones(1), nil, list.Q4_0.number, 1, 32, 32, "float32")
    end,
      "_decode: Q4_0 has no scales")
  end)

  it("rows that are no whole blocks", function()
    assert.has_error(function() decode(bytes(18), nil, nil, list.Q4_0.number, 1, 33, 32, "float32") end,
      "_decode: rows of Q4_0 must be multiples of 32 numbers, got 33")
  end)

  it("an encoding or a size that is not there", function()
    assert.has_error(function() decode(bytes(18), nil, nil, 99, 1, 32, 32, "float32") end)
    assert.has_error(function()
      decode(bytes(32), core.ones(1), nil, list.nf4.number, 1, 64, 48, "float32")
    end,
      "_decode: size must be a power of two, got 48")
  end)

  it("inputs of other widths and thresholds of other encodings", function()
    local e = matrix("nf4", 6, 64)
    assert.has_error(function() product(core.randn(2, 32), e) end)
    assert.has_error(function() product(core.randn(2, 64), e, nil, 6) end)
  end)

  it("what is no linear layer with a plain weight", function()
    local nn, quantisation = require "accelerate.nn", require "accelerate.quantisation"
    local encoded = quantisation.Linear4bit(nn.Linear(64, 64))
    for _, name in ipairs { "Linear4bit", "Linear8bitLt" } do
      for _, layer in ipairs { 3, {}, encoded, nn.Conv2d(3, 3, 3), "" } do
        messages.raises(name .. ": layer: expected an nn.Linear with a plain weight, got ",
          quantisation[name], layer)
      end
    end
  end)
end)
