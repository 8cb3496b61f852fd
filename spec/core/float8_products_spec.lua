--- Matrices of eight bits: the cast with its scale and transpose, and products beside float64.
local core = require "accelerate.core"

local cast, product = core._row "_float8_cast", core._row "_float8_product"
local E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
local MOST = { [E4M3] = 448, [E5M2] = 57344 }
local NAN = 0 / 0

local function same(expected, got)
  assert.are.same(expected.shape, got.shape)
  assert.are.equal(0, expected:view("uint8"):ne(got:contiguous():view("uint8")):sum():item())
end

describe("the cast to eight bits", function()
  before_each(function() core.manual_seed(1) end)

  for _, dtype in ipairs { E4M3, E5M2 } do
    for _, from in ipairs { "float32", "bfloat16", "float16", "float64" } do
      it(("of %s to %s scales the largest size to the type's"):format(from, dtype), function()
        for _, shape in ipairs { { 48, 32 }, { 5, 7 }, { 1, 16 }, { 130, 80 } } do
          local x = (core.randn(unpack(shape)) * 3):to(from)
          local amax = x:float():abs():max():item()
          local values, turned, scales = cast(x, nil, dtype, true)
          local scale = core.tensor(MOST[dtype], { dtype = "float32" }) / amax
          same((x:float() * scale):to(dtype), values)
          assert.are.equal(MOST[dtype], values:float():abs():max():item())
          assert.are.equal(amax, scales[2]:item())
          assert.is_true(math.abs(scales[1]:item() * scale:item() - 1) < 1e-6)
          assert.are.same({ shape[2], math.ceil(shape[1] / 16) * 16 }, turned.shape)
          same(values:t():contiguous(), turned:narrow(2, 1, shape[1]):contiguous())
          local rest = turned:size(2) - shape[1]
          if rest > 0 then
            assert.are.equal(0, turned:narrow(2, shape[1] + 1, rest):float():abs():sum():item())
          end
          -- the same numbers with other strides
          local apart = core.stack({ x, x }, 3):select(3, 1)
          same(values, (cast(apart, nil, dtype, false)))
        end
      end)
    end
  end

  it("makes no transpose that is not asked for", function()
    local _, turned = cast(core.ones { 16, 16 }, nil, E4M3, false)
    assert.are.equal(0, turned:numel())
  end)

  it("takes a scale, and what is too large then is the type's largest number", function()
    local x = core.tensor { { 1, -100, 0.01, 3 } }
    local values, _, scales = cast(x, core.tensor { 8 }, E4M3, false)
    assert.are.same({ { 8, -448, 0.078125, 24 } }, values:float():totable())
    assert.are.same({ 0.125, 100 }, scales:totable())
  end)

  it("shows infinities and NaN, and takes the others as they are", function()
    local values, _, scales = cast(core.tensor { { 1, math.huge, NAN, -math.huge } }, nil, E4M3, false)
    values = values:float():totable()[1]
    assert.are.equal(1, values[1])
    for i = 2, 4 do assert.is_true(values[i] ~= values[i]) end
    assert.are.equal(1, scales[1]:item())
    assert.is_false(scales[2]:item() < math.huge)
  end)

  it("has scale 1 where all is 0 or nothing is there, and a finite one for the smallest numbers", function()
    local values, turned, scales = cast(core.zeros { 3, 16 }, nil, E5M2, true)
    assert.are.equal(0, values:float():abs():sum():item() + turned:float():abs():sum():item())
    assert.are.same({ 1, 0 }, scales:totable())
    values, turned, scales = cast(core.zeros { 0, 16 }, nil, E5M2, true)
    assert.are.same({ 0, 16 }, values.shape)
    assert.are.same({ 16, 0 }, turned.shape)
    assert.are.same({ 1, 0 }, scales:totable())
    local smallest = select(3, cast(core.tensor { { 2 ^ -149, 2 ^ -140 } }, nil, E5M2, true))
    assert.is_true(smallest[1]:item() > 0)
  end)

  it("refuses what does not fit, by name", function()
    local x = core.ones { 4, 4 }
    for message, call in pairs {
      ["float8_cast: x must be a matrix"] = function() cast(x:flatten(), nil, E4M3, false) end,
      ["float8_cast: dtype must be float8_e4m3fn or float8_e5m2, got bfloat16"] = function()
        cast(x, nil, "bfloat16", false)
      end,
      ["float8_cast: scale must be float32, got float64"] = function()
        cast(x, core.ones(1, { dtype = "float64" }), E4M3, false)
      end,
      ["float8_cast: scale has no element"] = function() cast(x, core.zeros(0), E4M3, false) end,
      ["expected a floating-point tensor, got int64"] = function() cast(x:long(), nil, E4M3, false) end,
      ["not defined for float8_e4m3fn"] = function() cast(x:to(E4M3), nil, E4M3, false) end,
    } do
      local ok, err = pcall(call)
      assert.is_false(ok, message)
      assert.truthy(err:find(message, 1, true), err)
    end
  end)
end)

describe("products of eight bits", function()
  before_each(function() core.manual_seed(2) end)

  local function matrices(m, n, k, a_type, b_type)
    local a, b = core.randn(m, k), core.randn(n, k) * 0.02
    local a8, _, as = cast(a, nil, a_type, false)
    local b8, _, bs = cast(b, nil, b_type, false)
    return a:double(), b:double(), a8, b8, as, bs
  end

  for _, types in ipairs { { E4M3, E4M3 }, { E5M2, E4M3 }, { E4M3, E5M2 } } do
    it(("of %s and %s are those of the rounded numbers, within their error of float64"):format(
      unpack(types)), function()
      for _, size in ipairs { { 32, 48, 64 }, { 1, 16, 16 }, { 7, 16, 128 }, { 100, 32, 1024 } } do
        local a, b, a8, b8, as, bs = matrices(size[1], size[2], size[3], unpack(types))
        local y = product(a8, b8, as, bs, nil, "float32", false):double()
        local rounded = a8:double():matmul(b8:double():t()) * (as[1]:item() * bs[1]:item())
        local sizes = a:abs():matmul(b:abs():t())
        assert.is_true(((y - rounded):abs() / sizes):max():item() < 1e-6)
        -- half a last place of each factor, and what lies below the smallest numbers
        local e = (types[1] == E4M3 and 2 ^ -4 or 2 ^ -3) + (types[2] == E4M3 and 2 ^ -4 or 2 ^ -3)
        local off = ((y - a:matmul(b:t())):abs() / sizes):max():item()
        assert.is_true(off < e + 2 ^ -6, ("off by %g"):format(off))
      end
    end)
  end

  it("have a bias, and are rounded once to half types", function()
    local _, _, a8, b8, as, bs = matrices(33, 32, 64, E4M3, E4M3)
    local bias = core.randn(32)
    local wide = product(a8, b8, as, bs, bias, "float32", true)
    assert.is_true((wide - product(a8, b8, as, bs, nil, "float32", true) - bias):abs():max():item() < 1e-6)
    for _, dtype in ipairs { "bfloat16", "float16" } do
      local y = product(a8, b8, as, bs, bias:to(dtype), dtype, false)
      local expected = product(a8, b8, as, bs, bias:to(dtype):float(), "float32", false)
      assert.are.equal(dtype, y.dtype)
      same(expected:to(dtype), y)
    end
  end)

  it("without rows are empty", function()
    local a8, b8 = core.zeros({ 0, 16 }, { dtype = E4M3 }), core.zeros({ 32, 16 }, { dtype = E4M3 })
    local one = core.ones(2)
    assert.are.same({ 0, 32 }, product(a8, b8, one, one, nil, "bfloat16", false).shape)
    local none = core.zeros({ 3, 0 }, { dtype = E4M3 })
    local y = product(none, core.zeros({ 16, 0 }, { dtype = E4M3 }), one, one, core.ones(16), "float32",
      false)
    assert.are.equal(48, y:sum():item())
  end)

  it("refuse sizes and types that no GPU takes", function()
    local one = core.ones(2)
    local function of(m, k, dtype) return core.zeros({ m, k }, { dtype = dtype or E4M3 }) end
    for message, call in pairs {
      ["one of them float8_e4m3fn; got float8_e5m2 and float8_e5m2"] = function()
        product(of(16, 16, E5M2), of(16, 16, E5M2), one, one, nil, "float32", false)
      end,
      ["with k and n multiples of 16, got [4, 8] and [16, 8]"] = function()
        product(of(4, 8), of(16, 8), one, one, nil, "float32", false)
      end,
      ["got [4, 16] and [8, 16]"] = function()
        product(of(4, 16), of(8, 16), one, one, nil, "float32", false)
      end,
      ["got [4, 16] and [16, 32]"] = function()
        product(of(4, 16), of(16, 32), one, one, nil, "float32", false)
      end,
      ["dtype must be float32, float16 or bfloat16, got float64"] = function()
        product(of(4, 16), of(16, 16), one, one, nil, "float64", false)
      end,
      ["bias must be bfloat16, got float32"] = function()
        product(of(4, 16), of(16, 16), one, one, core.ones(16), "bfloat16", false)
      end,
      ["bias must be [16], got [8]"] = function()
        product(of(4, 16), of(16, 16), one, one, core.ones(8), "float32", false)
      end,
      ["scales_a must be float32"] = function()
        product(of(4, 16), of(16, 16), one:double(), one, nil, "float32", false)
      end,
    } do
      local ok, err = pcall(call)
      assert.is_false(ok, message)
      assert.truthy(err:find("float8_product: ", 1, true), err)
      assert.truthy(err:find(message, 1, true), err)
    end
  end)
end)
