--- Draws at the ends of what parameters may be.
local tensor = require "accelerate.tensor"
local message = require("spec.support.messages").message

describe("draws", function()
  it("of an interval are below its end in every type", function()
    tensor.manual_seed(1)
    for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64" } do
      local x = tensor.empty(200000, { dtype = dtype }):uniform_(-3, 5)
      assert.is_true(x:double():max():item() < 5, dtype)
      assert.is_true(x:double():min():item() >= -3, dtype)
    end
    assert.same({ 2, 2 }, tensor.empty(2):uniform_(2, 2):totable())
    assert.matches("uniform_: to %- from must be finite, got from %-inf to inf",
      message(function() tensor.empty(2):uniform_(-math.huge, math.huge) end))
  end)

  it("of trials that hardly ever succeed take long", function()
    tensor.manual_seed(1)
    local n, p = 20000, 1e-17
    local mean = tensor.empty(n, { dtype = "float64" }):geometric_(p):mean():item()
    assert.is_true(math.abs(mean * p - 1) < 5 / math.sqrt(n))
  end)

  it("of tiny probabilities are as rare as they should be", function()
    tensor.manual_seed(1)
    local n, p = 4000000, 2 ^ -26 -- float32 draws are multiples of 2^-24
    assert.is_true(tensor.empty(n):bernoulli_(p):sum():item() <= 3)
    assert.is_true(tensor.full({ n }, p):bernoulli():sum():item() <= 3)
    local share = tensor.empty(1000000):bernoulli_(1e-3):mean():item()
    assert.is_true(math.abs(share - 1e-3) < 5 * math.sqrt(1e-3 / 1e6))
  end)

  it("refuse what is no probability, no deviation and no number of the type", function()
    local x = tensor.empty(2)
    for _, p in ipairs { 1.5, -0.1, 0 / 0 } do
      assert.matches("bernoulli_: expected probabilities in %[0, 1%]",
        message(x.bernoulli_, x, tensor.full({ 2 }, p)))
    end
    assert.matches("normal: std must be at least 0 everywhere",
      message(tensor.normal, tensor.zeros(2), tensor.tensor { 1, -1 }))
    local byte = tensor.empty(2, { dtype = "uint8" })
    assert.matches("random_: uint8 holds numbers from 0 to 255, got from = 0 and to = 300",
      message(byte.random_, byte, 0, 300))
    assert.matches("random_: uint8 holds numbers", message(byte.random_, byte, -4, 4))
    local half = tensor.empty(2, { dtype = "float16" })
    assert.matches("random_: float16 holds numbers", message(half.random_, half, 0, 100000))
    assert.is_true(tensor.empty(1000, { dtype = "uint8" }):random_(250, 256):min():item() >= 250)
  end)
end)
