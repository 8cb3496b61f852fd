--- Random numbers: reproducible, keyed by seed and draw, with the right distribution.
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local function mean_and_variance(t)
  local m = t:mean():item()
  return m, (t - m):square():mean():item()
end

describe("random numbers", function()
  it("come from generators that may be given a device, as PyTorch's", function()
    local function drawn(...) return tensor.rand(4, { generator = tensor.Generator(...) }):tolist() end
    assert.same(drawn(), drawn("cpu"))
    assert.same(drawn(), drawn({ device = "cpu" }))
    assert.same(drawn(7), drawn({ device = "cpu", seed = 7 }))
    assert.same(drawn(7),
      tensor.rand(4, { generator = tensor.Generator({ device = "cpu" }):manual_seed(7) }):tolist())
    raises('Generator: there is no option "devise"', tensor.Generator, { devise = "cpu" })
    raises("Generator: ", tensor.Generator, "gpu")
  end)

  it("repeat from the same seed and differ from draw to draw", function()
    tensor.manual_seed(5)
    local a, b = tensor.rand(1000):totable(), tensor.rand(1000):totable()
    tensor.manual_seed(5)
    assert.are.same(a, tensor.rand(1000):totable())
    assert.are_not.same(a, b)
    assert.are.same(tensor.randn(10, { generator = tensor.Generator(9) }):totable(),
      tensor.randn(10, { generator = tensor.Generator(9) }):totable())
  end)

  it("do not depend on how many are drawn at once: element i is a function of i", function()
    local long = tensor.rand(1003, { generator = tensor.Generator(2) }):totable()
    local short = tensor.rand(7, { generator = tensor.Generator(2) }):totable()
    for i = 1, 7 do assert.are.equal(long[i], short[i]) end
  end)

  it("have the moments of their distributions", function()
    local n = 200000
    local m, v = mean_and_variance(tensor.rand(n, { generator = tensor.Generator(1), dtype = "float64" }))
    assert.is_true(math.abs(m - 0.5) < 5 * math.sqrt(1 / 12 / n) and math.abs(v - 1 / 12) < 1e-3)
    m, v = mean_and_variance(tensor.randn(n, { generator = tensor.Generator(1), dtype = "float64" }))
    assert.is_true(math.abs(m) < 5 / math.sqrt(n) and math.abs(v - 1) < 0.02)
    local ints = tensor.randint(3, 8, { n }, { generator = tensor.Generator(4) })
    assert.are.equal(3, ints:min():item())
    assert.are.equal(7, ints:max():item())
    m = ints:double():mean():item()
    assert.is_true(math.abs(m - 5) < 0.02)
  end)

  it("randperm is a permutation, whatever its length", function()
    for _, n in ipairs { 0, 1, 2, 3, 10, 1000, 65537 } do
      local seen = {}
      for _, v in ipairs(tensor.randperm(n, { generator = tensor.Generator(n) }):totable()) do
        assert.is_true(v >= 0 and v < n and not seen[v])
        seen[v] = true
      end
    end
  end)

  it("randperm of a seed is the order of its keys, however they are sorted", function()
    assert.are.same({ 0, 6, 10, 5, 11, 8, 2, 3, 9, 1, 7, 4 },
      tensor.randperm(12, { generator = tensor.Generator(3) }):totable())
    local sums = { [10] = 269, [511] = 33421998, [512] = 33614495, [513] = 34036210, [5000] = 2389548618,
      [65537] = 32752467695 }
    for n, sum in pairs(sums) do
      local p = tensor.randperm(n, { generator = tensor.Generator(n) })
      assert.are.equal(sum, (p * tensor.arange(1, n + 1)):remainder(1000003):sum():item())
    end
  end)

  it("randint of a seed is the same numbers in every element type", function()
    for _, dtype in ipairs { "int64", "int32", "float32", "uint8" } do
      local r = tensor.randint(0, 200, { 1001 }, { generator = tensor.Generator(5), dtype = dtype })
      assert.are.equal(49392021, (r:long() * tensor.arange(1001)):sum():item())
    end
  end)

  it("randint draws flags", function()
    local r = tensor.randint(0, 2, { 10000 }, { generator = tensor.Generator(5), dtype = "bool" })
    assert.are.equal("bool", r.dtype)
    assert.is_true(math.abs(r:sum():item() - 5000) < 200)
    assert.are.same({ false, false }, tensor.randint(1, { 2 }, { dtype = "bool" }):totable())
    assert.error_matches(function() tensor.randint(3, { 2 }, { dtype = "bool" }) end,
      "randint: values from 0 to 2 do not fit bool")
  end)

  it("dropout zeroes about p of the elements, scales the rest, and its gradient uses the same mask",
    function()
    local x = tensor.ones({ 100000 }, { requires_grad = true })
    local y = x:dropout { p = 0.3 }
    y:sum():backward()
    local kept = y:gt(0):sum():item()
    assert.is_true(math.abs(kept / 100000 - 0.7) < 0.01)
    assert.is_true(math.abs(y:max():item() - 1 / 0.7) < 1e-6)
    assert.are.equal(0, (x.grad - y):abs():max():item())
    assert.are.equal(x, x:dropout { p = 0.3, training = false })
  end)
end)
