--- Options of ops and constructors as public PyTorch code gives them.
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local x = tensor.arange(6):float():reshape(2, 3)

local function same(a, b) assert.same(a:tolist(), b:tolist()) end

describe("options", function()
  it("have NumPy's names of dim and keepdim, in ops and in functions written in Lua", function()
    for _, name in ipairs { "sum", "mean", "argmax", "logsumexp", "cumsum", "softmax", "std", "norm", "diff",
      "nanmean", "amax" } do
      same(x[name](x, { dim = 1 }), x[name](x, { axis = 1 }))
      same(x[name](x, { dim = 1 }), tensor[name] { input = x, axis = 1 })
    end
    same(x:max({ dim = 1 }), (x:max { axis = 1 }))
    same(tensor.cat({ x, x }, 2), tensor.cat({ x, x }, { axis = 2 }))
    same(tensor.stack({ x, x }, 3), tensor.stack({ x, x }, { axis = -1 }))
    same(tensor.linalg.norm(x, { dim = 1 }), tensor.linalg.norm(x, { axis = 1 }))
    assert.same({ 1, 3 }, x:sum({ axis = 1, keepdims = true }).shape)
    assert.same({ 2, 1 }, x:mean(2, { keepdims = true }).shape)
    raises('sum: dim is given twice, as "dim" and as "axis"', x.sum, x, { dim = 1, axis = 1 })
    raises("sum: dim is given twice, by position and by name", x.sum, x, 1, { axis = 1 })
    raises('relu: there is no option "axis"', x.relu, x, { axis = 1 })
  end)

  it("are named where something else takes their place", function()
    local OUT = "a result is written into a tensor y by y:copy_(f(x))"
    raises('add: there is no option "out"; ' .. OUT, x.add, x, x, { out = x })
    raises('arange: there is no option "out"; ' .. OUT, tensor.arange, 3, { out = x })
    raises('clone: there is no option "memory_format"; leave memory_format out', x.clone, x,
      { memory_format = 1 })
    raises('to: there is no option "memory_format"; leave memory_format out', x.to, x, { memory_format = 1 })
    raises('zeros: there is no option "pin_memory"; x:pin_memory()', tensor.zeros, 2, { pin_memory = true })
    raises('zeros: there is no option "layout"; tensors are dense', tensor.zeros, 2, { layout = 1 })
  end)
end)

describe("first arguments by name", function()
  it("are taken by constructors", function()
    for _, name in ipairs { "zeros", "ones", "empty", "rand", "randn" } do
      local like = tensor[name .. "_like"]
      assert.same({ 2, 3 }, like({ input = x }).shape)
      assert.same({ { 2, 3 }, "float64" }, { like({ x = x, dtype = "float64" }).shape,
        like({ x = x, dtype = "float64" }).dtype })
    end
    same(tensor.full({ 2, 3 }, 3), tensor.full_like { input = x, fill_value = 3 })
    raises('zeros_like: x is given twice, as "x" and as "input"', tensor.zeros_like, { x = x, input = x })
    raises("zeros_like: x is given twice: as argument 1 and by name", tensor.zeros_like, x, { x = x })
    raises("zeros_like: argument 1 (x): expected a tensor, got a table", tensor.zeros_like,
      { dtype = "int64" })
    raises("zeros_like: argument 1 (x): expected a tensor, got number 3", tensor.zeros_like, { x = 3 })
    local y = tensor.tensor { data = { 1, 2 }, dtype = "int64" }
    assert.same({ { 1, 2 }, "int64" }, { y:tolist(), y.dtype })
    same(x, tensor.tensor { data = x })
    raises('tensor: there is no option "data"', tensor.tensor, x, { data = x })
  end)

  it("are taken by methods in place", function()
    same(x, tensor.zeros(2, 3):copy_(x, { non_blocking = true }))
    same(x, tensor.zeros(2, 3):copy_ { src = x })
    same(x, tensor.zeros(2, 3):copy_(x, true))
    same(tensor.full({ 2 }, 3), tensor.zeros(2):fill_ { value = 3 })
    assert.is_false(tensor.zeros(2):requires_grad_({ requires_grad = false }).requires_grad)
    assert.is_true(tensor.zeros(2):requires_grad_({ requires_grad = true }).requires_grad)
    raises("copy_: src is given twice, by position and by name", x.copy_, tensor.zeros(2), 1, { src = 1 })
    raises('copy_: there is no option "nonblocking"; did you mean "non_blocking"?', x.copy_,
      tensor.zeros(2), 1, { nonblocking = true })
    raises("copy_: argument 2 (source): expected a tensor or a number, got a list of 2", x.copy_,
      tensor.zeros(2), { 1, 2 })
    raises('requires_grad_: there is no option "requires_gra"', x.requires_grad_, tensor.zeros(2),
      { requires_gra = true })
  end)
end)

describe("where of two numbers", function()
  it("is of the default type", function()
    local v = tensor { -1, 1, 2 }
    local c = v:gt(0)
    -- PyTorch's types
    assert.equal("float32", tensor.where(c, 1, 0).dtype)
    assert.equal("float32", tensor.where(c, 1, false).dtype)
    assert.equal("bool", tensor.where(c, true, false).dtype)
    assert.equal("int64", tensor.where(c, tensor.arange(3), 0).dtype)
    assert.equal("int64", tensor.where(c, 0, { b = tensor.arange(3) }).dtype)
    assert.equal("float32", tensor.where(c, 1.5, tensor.arange(3)).dtype)
    assert.equal("float32", tensor.where { condition = c, input = 1, other = 0 }.dtype)
    assert.equal("float32", c:where(1, 0).dtype)
    assert.same({ 0, 1, 1 }, tensor.where(c, 1, 0):tolist())
    assert.near(2 / 3, tensor.where(c, 1, 0):mean():item(), 1e-6)
    assert.same({ 1, 2 }, tensor.where(c):tolist())
    assert.same({ 0, 1, 2 }, c:where(v, 0):tolist())
  end)
end)
