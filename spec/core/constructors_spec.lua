--- Constructors: the same parameters by place and by name.
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

--- Equal types, shapes and elements.
local function same(want, got)
  assert.are.equal(want.dtype, got.dtype)
  assert.are.same(want.shape, got.shape)
  assert.are.same(want:totable(), got:totable())
end

--- What two calls draw from generators of one seed is the same.
local function draws_the_same(name, by_place, by_name)
  by_place[#by_place + 1] = { generator = tensor.Generator(7) }
  local last = by_name[#by_name]
  last.generator = tensor.Generator(7)
  same(tensor[name](unpack(by_place)), tensor[name](unpack(by_name)))
end

describe("a constructor's parameters by name", function()
  it("are those by place", function()
    same(tensor.zeros(2, 3), tensor.zeros { size = { 2, 3 } })
    same(tensor.ones({ 4 }, { dtype = "int64" }), tensor.ones { size = 4, dtype = "int64" })
    assert.are.same({ 2, 0 }, tensor.empty { size = { 2, 0 } }.shape)
    same(tensor.full({ 2 }, 7), tensor.full { size = { 2 }, fill_value = 7 })
    same(tensor.full({ 2 }, true), tensor.full({ 2 }, { fill_value = true }))
    local x = tensor.zeros(2, 2, { dtype = "float64" })
    same(tensor.full_like(x, 3), tensor.full_like(x, { fill_value = 3 }))
    same(tensor.linspace(0, 1, 5), tensor.linspace(0, 1, { steps = 5 }))
    same(tensor.linspace(0, 1, 5, { dtype = "float64" }),
      tensor.linspace { start = 0, stop = 1, steps = 5, dtype = "float64" })
    same(tensor.arange(0, 10, 3), tensor.arange(0, 10, { step = 3 }))
    same(tensor.arange(3), tensor.arange { stop = 3 })
    same(tensor.arange(0, 6, 2), tensor.arange { stop = 6, step = 2 })
    same(tensor.arange(1, 6), tensor.arange(1, { stop = 6 }))
    same(tensor.eye(2, 3), tensor.eye { n = 2, m = 3 })
    same(tensor.eye(2), tensor.eye { n = 2 })
  end)

  it("draw the same numbers", function()
    draws_the_same("rand", { 5 }, { { size = 5 } })
    draws_the_same("randn", { 2, 3 }, { { size = { 2, 3 } } })
    draws_the_same("randperm", { 9 }, { { n = 9 } })
    draws_the_same("randint", { 3, 9, { 6 } }, { { low = 3, high = 9, size = { 6 } } })
    draws_the_same("randint", { 3, 9, { 6 } }, { 3, { high = 9, size = 6 } })
    draws_the_same("randint", { 3, 9, { 6 } }, { 3, 9, { size = { 6 } } })
    draws_the_same("randint", { 9, { 6 } }, { 9, { size = { 6 } } })
    draws_the_same("randint", { 9, { 6 } }, { { high = 9, size = { 6 } } })
  end)

  it("raise when they are given twice, left out or unknown", function()
    raises("zeros: size is given twice: as argument 1 and by name", tensor.zeros, 2, { size = { 3 } })
    raises("full: fill_value is given, but size before it is not", tensor.full, { fill_value = 7 })
    raises("linspace: steps is given, but stop before it is not", tensor.linspace, 0, { steps = 5 })
    raises("arange: step is given, but stop before it is not", tensor.arange, 5, { step = 2 })
    raises("randint: size is given, but high before it is not", tensor.randint, { low = 1, size = { 2 } })
    raises('zeros: there is no option "sizes"; did you mean "size"?', tensor.zeros, { sizes = { 2 } })
    raises("full_like: argument 2 (fill_value): expected a number or a boolean",
      tensor.full_like, tensor.zeros(2), "a")
    raises("zeros: argument 1 (shape): expected an integer, or one list of integers",
      tensor.zeros, { size = "a" })
  end)
end)
