--- Functions that run in vector code: their errors beside libm's, in every position of a tensor.
local core = require "accelerate.core"
local numbers = require "spec.support.numbers"
local tensor = require "accelerate.tensor"

local ffi = require "ffi"
ffi.cdef [[double expm1(double); double log1p(double); double erf(double); double exp2(double);
  double asinh(double); double acosh(double); double atanh(double); double log2(double);
  double log10(double); double erfc(double);]]

local inf, nan = math.huge, 0 / 0

local function holds(limit, digits, least, name, got, want, at)
  if numbers.alike(got, want) then return end
  local off = math.abs(got - want) / numbers.unit(want, digits, least)
  assert.is_true(off <= limit, ("%s of %.17g: got %.17g, expected %.17g"):format(name, at, got, want))
end

local function random(n, seed)
  return tensor.rand(n, { dtype = "float64", generator = tensor.Generator(seed) })
end

describe("float64 functions", function()
  local ends = { 0, -0.0, inf, -inf, nan, 1, -1, 5e-324, -5e-324, 2.3e-308, 1.7e308, -1.7e308, 709.7, 709.9,
    -708.5, -744.9, -745.2, 1e-300, 0.5, 22.1, 1000, 26.6, 27.2, 27.3 }
  local exact = {
    exp = math.exp, log = math.log, sin = math.sin, cos = math.cos, tanh = math.tanh,
    tan = math.tan, sinh = math.sinh, cosh = math.cosh,
    asin = math.asin, acos = math.acos, atan = math.atan,
    sigmoid = function(x) return 1 / (1 + math.exp(-x)) end,
  }
  for _, name in ipairs { "expm1", "log1p", "erf", "exp2", "asinh", "acosh", "atanh", "log2", "log10",
    "erfc" } do
    exact[name] = function(x) return ffi.C[name](x) end
  end
  local limits = { exp = 1.5, log = 1.5, sin = 1.5, cos = 1.5, tan = 3, sinh = 4, cosh = 3, tanh = 4,
    expm1 = 3, log1p = 3, erf = 3, exp2 = 2, asin = 3, acos = 3, atan = 3, asinh = 3, acosh = 3, atanh = 3,
    sigmoid = 3, log2 = 1.5, log10 = 2.5, erfc = 2.5 }
  for name, fn in pairs(exact) do
    it(name .. " is close to libm's, at the ends of the range too", function()
      local samples = { tensor.tensor(ends, { dtype = "float64" }), random(1201, 1) * 2 - 1,
        random(1201, 2) * 1400 - 700, (random(1201, 3) * 60 - 30):exp2(), 1 + random(1001, 4) * 1e-6,
        (random(1001, 5) * 1e9):round() * math.pi / 2, random(1001, 15) * 28 }
      for _, x in ipairs(samples) do
        local got, strided, from = x[name](x):totable(), numbers.spaced(x)[name](
          numbers.spaced(x)):totable(), x:totable()
        for i, v in ipairs(got) do
          assert.is_true(numbers.alike(v, strided[i]), name .. " differs with the layout")
          holds(limits[name], 53, -1021, name, v, fn(from[i]), from[i])
        end
      end
    end)
  end

  it("atan2 is close to libm's in every quadrant, at the ends of the range too", function()
    local a = core.cat { tensor.tensor(ends, { dtype = "float64" }), random(30, 12) * 8 - 4 }
    local b = core.cat { tensor.tensor(ends, { dtype = "float64" }), random(30, 13) * 8 - 4 }
    local got = core.atan2(a:unsqueeze(2), b:unsqueeze(1)):totable()
    for i, y in ipairs(a:totable()) do
      for j, x in ipairs(b:totable()) do holds(3, 53, -1021, "atan2", got[i][j], math.atan2(y, x), y) end
    end
  end)

  it("give an element one value in every position", function()
    local x = random(19, 6) * 8 - 2
    for name in pairs(exact) do
      local whole = x[name](x)
      for i = 1, 19 do assert.is_true(numbers.alike(whole[i]:item(), x[i][name](x[i]):item()), name) end
    end
  end)
end)

describe("float64 pow", function()
  it("has the results of pow for exponents that are products and roots", function()
    local x = core.cat { tensor.tensor({ 0, -0.0, inf, -inf, nan, 1, -1, 0.5, -3, 1e-100, 1e100 },
      { dtype = "float64" }),
      random(301, 14) * 20 - 10 }
    for _, power in ipairs { 2, 3, 1, 0.5, -1, -2, 2.5, -3 } do
      local got, strided, from = x:pow(power):totable(), numbers.spaced(x):pow(power):totable(), x:totable()
      local each = x:pow(core.full_like(x, power)):totable()
      for i, v in ipairs(got) do
        holds(2, 53, -1021, "pow " .. power, v, from[i] ^ power, from[i])
        holds(2, 53, -1021, "pow " .. power, each[i], from[i] ^ power, from[i])
        assert.is_true(numbers.alike(v, strided[i]))
      end
    end
  end)

  it("has the results of pow for any two numbers", function()
    local special = { 0, -0.0, inf, -inf, nan, 1, -1, 0.5, -0.5, 2, -3, 1e-310, -5e-324, 1e300, 0.9999999,
      2 ^ 53,
      -2 ^ 53 - 2, 2 ^ 52 + 1 }
    local ends = tensor.tensor(special, { dtype = "float64" })
    local got = ends:unsqueeze(2):pow(ends):totable()
    for i, a in ipairs(special) do
      for j, b in ipairs(special) do holds(1, 53, -1021, "pow " .. b, got[i][j], a ^ b, a) end
    end
    local samples = {
      { (random(2001, 16) * 1400 - 700):exp(), random(2001, 17) * 2.2 - 1.1 },
      { 1 + (random(2001, 18) - 0.5) * 1e-3, random(2001, 19) * 1e6 - 5e5 },
      { (random(2001, 20) * -100):exp(), 7.2 + random(2001, 21) * 0.3 },
    }
    for _, sample in ipairs(samples) do
      local x, y = sample[1]:totable(), sample[2]:totable()
      for i, v in ipairs(sample[1]:pow(sample[2]):totable()) do
        holds(1.5, 53, -1021, "pow " .. y[i], v, x[i] ^ y[i], x[i])
      end
    end
  end)
end)

describe("acosh", function()
  it("is NaN everywhere below 1", function()
    for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64" } do
      local x = tensor.tensor({ 0.5, 0, -1, -2, -300, -6e4, -inf, nan }, { dtype = dtype })
      if dtype == "float64" then
        x = tensor.cat({ x, tensor.tensor({ -1e8, -3e9, -1e17, -1e300 }, { dtype = dtype }) }, 1)
      end
      assert.is_true(x:acosh():isnan():all():item(), dtype)
      assert.same({ 0, inf }, tensor.tensor({ 1, inf }, { dtype = dtype }):acosh():totable())
    end
  end)
end)

describe("norms of any power", function()
  it("of float32 are those of its float64 sums", function()
    local x = tensor.tensor { 0, -0.0, 1, -3, 1e-20, 2.5, 1e12 }
    for _, p in ipairs { 3, 2.5, 0.5, 7 } do
      local sum = 0
      for _, v in ipairs(x:totable()) do sum = sum + math.abs(v) ^ p end
      local want = sum ^ (1 / p)
      assert.is_true(math.abs(x:norm(p):item() / want - 1) < 1e-7)
    end
    assert.are.equal(inf, tensor.tensor({ 1, -inf }):norm(3):item())
    assert.is_true(tensor.tensor({ 1, nan }):norm(3):item() ~= tensor.tensor({ 1, nan }):norm(3):item())
  end)
end)

describe("float32 pow", function()
  it("is rounded once, whatever the signs", function()
    local base = { 0, -0.0, 1, -1, 2, -2, 0.5, -1.5, 3, inf, -inf, nan, 1e-40, -1e-40, 1e38, 16777216 }
    local power = { 0, -0.0, 1.5, -1.5, 2.5, -1, 3, -3, 7, inf, -inf, nan, 16777216, -33554431, 1e38, 1 / 3 }
    base, power = tensor.tensor(base), tensor.tensor(power)
    local got = base:unsqueeze(2):pow(power):reshape(-1):totable()
    local a, b = base:totable(), power:totable()
    for i, v in ipairs(got) do
      local x, y = a[math.floor((i - 1) / 16) + 1], b[(i - 1) % 16 + 1]
      holds(0.51, 24, -125, "pow " .. y, v, tensor.tensor { x ^ y }:item(), x)
    end
  end)

  it("is within 0.51 units in the last place", function()
    local a, b = (random(6001, 7) * 30 - 15):exp2():float(), (random(6001, 8) * 8 - 4):float()
    local got, x, y = a:pow(b):totable(), a:totable(), b:totable()
    for i, v in ipairs(got) do holds(0.51, 24, -125, "pow " .. y[i], v, x[i] ^ y[i], x[i]) end
    local one = a:pow(2.3):totable()
    local p = tensor.tensor({ 2.3 }):item()
    for i, v in ipairs(one) do holds(0.51, 24, -125, "pow", v, x[i] ^ p, x[i]) end
  end)
end)

describe("float32 remainders", function()
  -- in float64 the remainder of two floats is exact
  local function check(a, b)
    local names = { fmod = math.fmod, remainder = function(x, y)
      local r = math.fmod(x, y)
      return r ~= 0 and (r < 0) ~= (y < 0) and tensor.tensor({ r + y }):item() or r
    end }
    local x, y = a:totable(), b:totable()
    for name, fn in pairs(names) do
      local got, strided = a[name](a, b):totable(), numbers.spaced(a)[name](numbers.spaced(a), b):totable()
      for i, v in ipairs(got) do
        assert.is_true(numbers.alike(v, fn(x[i], y[i])) and numbers.alike(v, strided[i]),
          ("%s(%.9g, %.9g) gave %.9g"):format(name, x[i], y[i], v))
      end
    end
  end

  it("are exact for moderate quotients, and where they are whole", function()
    local b = (random(1201, 9) * 40 - 20):exp2():float()
    local a = ((random(1201, 10) * 2 - 1) * (random(1201, 11) * 26):exp2()):float() * b
    check(a, b)
    check((random(1201, 12) * 2000 - 1000):round():float() * b, b)
    check(a, -b)
  end)

  it("are exact for large quotients, denormals and infinities among others", function()
    local a, b = {}, {}
    for i, x in ipairs { 0, -0.0, 1, -1, 3e38, -3e38, 1e-40, 7.5, -7.5, inf, nan } do
      for j, y in ipairs { 1, -1, 0.7, 1e-45, 3e-39, 1e38, inf, -inf, 0, nan, 2.5 } do
        a[(i - 1) * 11 + j], b[(i - 1) * 11 + j] = x, y
      end
    end
    check(tensor.tensor(a), tensor.tensor(b))
    local x = (random(2500, 13) * 10):float()
    x[2000] = 3e38
    check(x, tensor.tensor({ 0.7 }):expand(2500))
  end)
end)
