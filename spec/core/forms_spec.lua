--- Forms of ops (what stands after `+` in a row): what is refused, and where they differ from the
--- row. Their values are compared with PyTorch's in spec/reference/torch/forms.py.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local F = require "accelerate.nn.functional"
local raises = require("spec.support.messages").raises

local function longs(list) return tensor(list, { dtype = "int64" }) end

describe("forms of ops", function()
  it("are those that PyTorch's calls have", function()
    local x = tensor.arange(6, { dtype = "float64" }):view(2, 3)
    local rows, columns = tensor.where(x:gt(3))                     -- torch.where(condition)
    assert.same({ { 1, 1 }, { 1, 2 } }, { rows:tolist(), columns:tolist() })
    assert.same({ { 0, 0, 0 }, { 0, 4, 5 } }, x:where(x:gt(3), 0):tolist()) -- x.where(condition, other)
    assert.same({ { 0, 0, 0 }, { 0, 4, 5 } }, x:gt(3):where(x, 0):tolist())
    local place = longs { { 2 }, { 0 } }
    assert.same({ { 0, 0, 7 }, { 7, 0, 0 } }, core.zeros(2, 3):scatter(2, place, { value = 7 }):tolist())
    assert.same({ { 1, 1, 3 }, { 3, 1, 1 } },
      core.ones(2, 3):scatter_({ dim = 2, index = place, value = 3, reduce = "multiply" }):tolist())
    local truths = tensor({ true, false, true }, { dtype = "bool" })
    assert.same({ false, false, true },
      truths:scatter_reduce(1, longs { 0, 1, 1 }, tensor({ false, true, true }, { dtype = "bool" }), "amin")
        :tolist())
    local w = core.ones(3):requires_grad_();
    (w * 2):backward { gradient = tensor { 1, 2, 3 } }
    assert.same({ 2, 4, 6 }, w.grad:tolist())
    local draws = core.zeros(1000):random_(4)                       -- x.random_(to)
    assert.same({ 0, 3 }, { draws:amin():item(), draws:amax():item() })
    assert.is_true(core.zeros(100):random_({ from = 5 }):amin():item() >= 5)
    assert.same({ 1.5, 1.5, 1.5 }, (x:std_mean({ dim = 1, unbiased = false })):tolist())
  end)

  it("of several tensors take them one by one, or as a list", function()
    local a, b = core.ones(1, 2), core.ones(2, 1)
    assert.same({ { 1, 1, 0 }, { 0, 0, 1 }, { 0, 0, 1 } }, tensor.block_diag(a, b):tolist())
    assert.same(tensor.block_diag({ a, b }):tolist(), tensor.block_diag(a, b):tolist())
    assert.same({ { 1, 3 }, { 1, 4 }, { 2, 3 }, { 2, 4 } },
      tensor.cartesian_prod(tensor { 1, 2 }, tensor { 3, 4 }):tolist())
    assert.same({ 2, 2 }, tensor.chain_matmul(b, a).shape)
    assert.same({ 2, 2 }, (tensor.broadcast_tensors(a, b)).shape)
    raises("block_diag: argument 1 (tensors, entry 2): expected a tensor, got number 3", tensor.block_diag,
      a, 3)
  end)

  it("written into their tensor are recorded", function()
    local x = tensor { 1, 2, 3 }
    assert.same({ 0, 1, 1 }, x:clone():gt_(1.5):tolist())
    assert.same({ true, false }, x:gt(0):narrow(1, 1, 2):logical_and_(x:lt(2):narrow(1, 1, 2)):tolist())
    x:requires_grad_();
    (x * 1):cumsum_(1):sum():backward()
    assert.same({ 3, 2, 1 }, x.grad:tolist())
    raises("cumsum_: argument 1 (x): expected a tensor, got nil", x.cumsum_)
  end)

  it("do not guess which flag of var and std a boolean is", function()
    local x = core.randn(3, 4)
    for _, name in ipairs { "var", "std", "var_mean", "std_mean" } do
      raises(name .. ": argument 3: false by position may mean keepdim or unbiased; write " ..
        "{ keepdim = false } or { unbiased = false }", x[name], x, 1, false)
    end
  end)

  it("put one number into a bucket", function()
    local boundaries = tensor.tensor { 1, 3, 5 }
    assert.equal(1, tensor.bucketize(3, boundaries):item())
    assert.equal(2, tensor.bucketize(3, boundaries, { right = true }):item())
    assert.equal("int32", tensor.bucketize(3, boundaries, { out_int32 = true }).dtype)
    assert.equal(2, tensor.bucketize(4.5, boundaries:long()):item())
    raises("boundaries must have one dim, got [1, 3]", tensor.bucketize, 3, boundaries:unsqueeze(1))
  end)

  it("refuse what has no meaning", function()
    local x, i = core.randn(3, 4), tensor.arange(12):view(3, 4)
    raises("add: alpha: expected an integer for tensors of integers, got 0.5", i.add, i, i, { alpha = 0.5 })
    raises('div: rounding_mode: expected "floor" or "trunc", got "flor"; did you mean "floor"?', x.div, x, 2,
      { rounding_mode = "flor" })
    raises("round: decimals: expected 0 for a tensor of int64, got 2", i.round, i, { decimals = 2 })
    raises("max: expected a dim or another tensor, got both", x.max, x, 1, { other = x })
    raises("max: argument 2: expected a dim or a tensor", x.max, x, { other = "a" })
    raises("masked_fill: argument 3 (value) is missing", x.masked_fill, x, x:gt(0))
    raises("masked_fill: a value of float32 does not fit a tensor of int64", i.masked_fill, i, i:gt(0),
      core.ones(1):sum())
    raises("index_fill: argument 4 (value): expected a number, got tensor float32 [2]; " ..
      "a tensor must have 0 dims",
      x.index_fill, x, 1, longs { 0 }, core.ones(2))
    raises('contradict each other', tensor.searchsorted, core.ones(2), 1, true, { side = "left" })
    raises("sorter: expected int64 of the sequence's shape", tensor.searchsorted, core.ones(2), 1,
      { sorter = longs { 0 } })
    raises("repeat_interleave: output_size is 5, but the repeats come to 6", x.repeat_interleave, x, 2,
      { dim = 1, output_size = 5 })
    raises('scatter: reduce: expected "add" or "multiply", got "sum"', x.scatter, x, 1, longs { { 0 } }, x,
      { reduce = "sum" })
    raises("mse_loss: weight: expected the shape of input", F.mse_loss, x, x, { weight = core.ones(4) })
    raises('sum: dtype: expected', x.sum, x, { dtype = 3 })
    raises('scatter_reduce: reduce: expected "sum", "prod", "mean", "amax" or "amin", got "max"',
      x.scatter_reduce, x,
      1, longs { { 0 } }, x, "max")
    raises("scatter: there is no option \"value\"", x.scatter, x, 1, longs { { 0 } }, { value = 1, src = 2 })
    raises("backward: gradient: given by position and as an option", x.backward, x, x, { gradient = x })
    raises("index_reduce: source [2, 4] does not fit dim 1 of [3, 4] and index [1]", x.index_reduce, x, 1,
      longs { 0 },
      core.ones(2, 4), "prod")
  end)

  it("alpha multiplies in the type of the sum, as in PyTorch", function()
    local bytes, halves = tensor.tensor({ 1, 200 }, { dtype = "uint8" }), tensor.tensor({ 0.5, 1 },
      { dtype = "float16" })
    local z = halves:sub(bytes, { alpha = -1 })
    assert.equal("float16", z.dtype)
    assert.same({ 1.5, 201 }, z:tolist())
    z = halves:add(bytes, { alpha = 0.5 })
    assert.equal("float16", z.dtype)
    assert.same({ 1, 101 }, z:tolist())
    z = bytes:int():sub(bytes, { alpha = 2 })
    assert.equal("int32", z.dtype)
    assert.same({ -1, -200 }, z:tolist())
    local i = longs { 1, 2 }
    assert.equal("float32", i:add(2.5, { alpha = 2 }).dtype)
    assert.same({ 6, 7 }, i:add(2.5, { alpha = 2 }):tolist())
    assert.same({ 2.25, 3.25 }, i:add(2.5, { alpha = 0.5 }):tolist())
    assert.same({ 3, 4 }, i:add(true, { alpha = 2 }):tolist())
    raises("add_: ", i.add_, i, 2.5, { alpha = 2 })
    raises("sub: alpha: expected an integer for tensors of integers, got 0.5", i.sub, i, 2, { alpha = 0.5 })
  end)

  it("a quotient that is rounded has the gradient 0, also by zero", function()
    for _, mode in ipairs { "trunc", "floor" } do
      local a = tensor.tensor({ 1, -2, 0, 5 }, { requires_grad = true })
      local b = tensor.tensor({ 0, 0, 0, 2 }, { requires_grad = true })
      local q = a:div(b, { rounding_mode = mode })
      assert.same({ math.huge, -math.huge, 2 }, { q[1]:item(), q[2]:item(), q[4]:item() })
      q:sum():backward()
      assert.same({ 0, 0, 0, 0 }, a.grad:tolist())
      assert.same({ 0, 0, 0, 0 }, b.grad:tolist())
    end
  end)

  it("functions of one dim take a list of one integer", function()
    local x, w = core.randn(1, 2, 6), core.randn(2, 2, 2)
    assert.same({ 1, 2, 3 }, F.conv1d(x, w, { stride = { 2 }, padding = { 1 }, dilation = { 2 } }).shape)
    assert.same({ 1, 2, 4 }, F.max_pool1d(x, { 2 }, { stride = { 2 }, padding = { 1 } }).shape)
    assert.same({ 1, 2, 2 }, F.adaptive_avg_pool1d(x, { 2 }).shape)
    raises("conv1d: stride: expected an integer, got a list of 2", F.conv1d, x, w, { stride = { 2, 2 } })
    raises("topk: argument 2 (k): expected an integer, got a list of 1", x.topk, x, { 2 })
  end)

  it("finfo is that of float32, or of a complex number's parts", function()
    assert.equal(tensor.finfo("float32").max, tensor.finfo().max)
    assert.equal(tensor.finfo("float64").eps, tensor.finfo("complex128").eps)
    assert.equal(tensor.finfo("float32").tiny, tensor.finfo("complex64").smallest_normal)
    raises("allclose: atol: expected at least 0, got -1", tensor.allclose, core.ones(1), core.ones(1),
      { atol = -1 })
    raises("new_tensor: argument 2 (value): expected a list", function() core.ones(1):new_tensor() end)
    raises("isclose: rtol: expected at least 0", tensor.isclose, core.ones(1), core.ones(1), 0 / 0)
  end)

  it("a limit of NaN makes all elements NaN", function()
    for _, x in ipairs { core.ones(2):clamp(0 / 0, 1), core.ones(2):clamp { max = 0 / 0 },
      core.ones(2):clamp_min(0 / 0), core.ones(2):clamp_(0 / 0) } do
      assert.is_true(x:isnan():all():item())
    end
    raises("clamp: min: NaN does not fit a tensor of int64", tensor.clamp, longs { 1 }, 0 / 0)
  end)

  it("norm takes PyTorch's words for its order, and a type", function()
    local x = tensor.tensor({ { 3, 0 }, { 0, 4 } }, { requires_grad = true })
    assert.equal(5, x:norm("fro"):item())
    assert.same({ 3, 4 }, x:norm("fro", 2):tolist())
    assert.equal("float64", x:norm { p = "fro", dtype = "float64" }.dtype)
    assert.equal(5, tensor.norm(longs { 3, 4 }, { dtype = "float32" }):item())
    local nuclear = x:norm("nuc")
    assert.is_true(math.abs(nuclear:item() - 7) < 1e-5)
    nuclear:backward()
    assert.is_true(tensor.allclose(x.grad, tensor.eye(2), { atol = 1e-6 }))
    assert.same({ 2, 1, 1 }, core.ones(2, 3, 3):norm("nuc", { 2, 3 }, true).shape)
    raises('norm: argument 2 (p): expected a number, "fro" or "nuc", got \'inf\'', x.norm, x, "inf")
    raises('norm: p = "nuc": expected a matrix or two dims, got shape [2]', tensor.norm, core.ones(2), "nuc")
    raises('norm: p = "fro": expected at most two dims, got 3', tensor.norm, core.ones(1, 1, 1), "fro",
      { 1, 2, 3 })
  end)

  it("one_hot needs numbers from 0 on", function()
    raises("one_hot: x must hold numbers from 0 on, got -1", tensor.one_hot, longs { -1 })
  end)

  it("copysign has the type of a sum", function()
    local halves, singles = core.ones({ 2 }, { dtype = "bfloat16" }), tensor.tensor({ -1, 2 })
    assert.equal("float32", halves:copysign(singles).dtype)
    assert.equal("float64", tensor.copysign(longs { 1, -2 }, singles:double()).dtype)
    assert.equal("float32", tensor.copysign(longs { 1, -2 }, longs { -1, 1 }).dtype)
    assert.same({ 1, 2 }, tensor.copysign(tensor.tensor { -1, 2 }, true):tolist())
    local x = tensor.tensor({ 0, 2, -3 }, { requires_grad = true })
    x:copysign(-1):sum():backward()
    assert.same({ 0, -1, 1 }, x.grad:tolist())
  end)

  it("tensordot checks its lists", function()
    local a, b = core.randn(2, 3, 4), core.randn(4, 3)
    raises("tensordot: dims: expected a number or two lists", tensor.tensordot, a, b, { { 1 } })
    raises("tensordot: dims of a: 4 is out of range; expected 1..3 or -3..-1", tensor.tensordot, a, b,
      { { 4 }, { 1 } })
    raises("tensordot: dims of b: dim 1 is listed twice", tensor.tensordot, a, b, { { 3, 1 }, { 1, -2 } })
    raises("tensordot: dims: 1 of a and 2 of b do not go together", tensor.tensordot, a, b,
      { { 3 }, { 1, 2 } })
    raises("have sizes 2 and 4", tensor.tensordot, a, b, { { 1 }, { 1 } })
  end)

  it("write in place, into the tensor itself and through its type", function()
    local x = tensor { 1, 2, 3 }
    assert.equal(x, x:add_(x, { alpha = 2 }))
    assert.same({ 3, 6, 9 }, x:totable())
    assert.equal(x, x:div_(2, { rounding_mode = "floor" }))
    assert.same({ 1, 3, 4 }, x:totable())
    local i = longs { 7, -7 }
    assert.same({ 3, -3 }, i:div_(2, { rounding_mode = "trunc" }):totable())
    assert.same({ 2, 2 }, i:masked_fill_(i:ne(0), longs(2)):totable())
    local h = tensor({ 1.25, 2.5 }, { dtype = "bfloat16" })
    assert.equal("bfloat16", h:sum({ dtype = "bfloat16" }).dtype)
    assert.equal("float32", h:softmax(1, { dtype = "float32" }).dtype)
  end)

  it("steps have gradients of zero", function()
    local x = tensor({ 5, -5 }, { requires_grad = true })
    for _, mode in ipairs { "floor", "trunc" } do
      local y = x:div(2, { rounding_mode = mode })
      assert.same(mode == "floor" and { 2, -3 } or { 2, -2 }, y:totable())
      assert.same({ 0, 0 }, tensor.grad(y:sum(), x):totable())
    end
  end)

  it("take empty tensors and strides", function()
    local x = core.zeros(0, 3)
    assert.same({ 0, 3 }, x:add(x, { alpha = 2 }).shape)
    assert.same({ 3 }, x:sum({ dim = 1, dtype = "float64" }).shape)
    assert.same({ 0, 3 }, x:scatter_reduce(1, core.zeros({ 0, 3 }, { dtype = "int64" }), x, "amax").shape)
    local values, inverse, counts = x:unique { dim = 1, return_inverse = true, return_counts = true }
    assert.same({ { 0, 3 }, { 0 }, { 0 } }, { values.shape, inverse.shape, counts.shape })
    local y = tensor.arange(12):view(3, 4):t()
    assert.same({ { 0, 4, 8 }, { 1, 5, 9 }, { 2, 6, 10 }, { 3, 7, 11 } }, y:max(y):totable())
    local s = y:scatter_reduce(2, longs { { 0, 0, 2 } }, y[{ { 1, 1 } }] * 10, "amax")
    assert.same({ 40, 4, 80 }, s[1]:totable())
  end)

  it("of a dim that is not there raise by their names", function()
    for _, name in ipairs { "unique", "unique_consecutive" } do
      local ok, err = pcall(function() return tensor(5)[name](tensor(5), { dim = 1 }) end)
      assert.is_false(ok)
      assert.truthy(err:find(name .. ": dim is 1, and x has no dims", 1, true), err)
    end
  end)

  it("view in another type shares the bytes, and has no history", function()
    local x = tensor.arange(1, 9):float():view(2, 4) -- the numbers here are PyTorch's
    assert.same({ { 4611686019492741120 }, { 4665729215040061440 } },
      x:narrow(2, 1, 2):view("int64"):double():tolist())
    assert.same({ { 1065353216, 1084227584 }, { 1073741824, 1086324736 }, { 1077936128, 1088421888 },
      { 1082130432, 1090519040 } }, x:t():view("int32"):tolist())
    assert.same({ { 0, 1, 0, 2, 0, 3, 0, 4 }, { 0, 5, 0, 6, 0, 7, 0, 8 } }, x:view("bfloat16"):tolist())
    local right = x:narrow(2, 3, 2):view { dtype = "float64" }
    assert.same({ { 2, 1 }, { 2, 1 } }, { right.shape, right:stride() })
    assert.equal(512.0001225471497, tensor.view(x, "float64")[1][2]:item())
    assert.same(x:tolist(), x:view("complex64"):view("uint8"):view("float32"):tolist())
    assert.same({ 2, 0 }, x:narrow(2, 1, 0):view("float64").shape)
    x:view("int32"):fill_(0)
    assert.equal(0, x:abs():sum():item())

    local w = core.ones(3):requires_grad_()
    assert.is_false(w:view("float32").requires_grad)
    local y = (w * w):sum()
    tensor.no_grad(function() w:view("int32"):fill_(0) end)
    raises("was changed in place after the forward pass", function() y:backward() end)
  end)

  it("view in another type raises where the bytes do not make its elements", function()
    local x = core.zeros(4, 3)
    raises("view: the bytes of float32 need not be 0 or 1, as those of bool are",
      function() x:view("bool") end)
    raises("a 0-d tensor has no dim for it", function() tensor(1):view("float64") end)
    raises("needs elements side by side in the last dim, got strides [1, 3]",
      function() x:t():view("uint8") end)
    raises("2 float32 make one float64, which the last dim of shape [4, 3]", function() x:view("float64") end)
    raises("or its place (1) is no multiple of", function() x:narrow(2, 2, 2):view("float64") end)
    raises("which the strides [3, 1] are no multiples of", function() x:narrow(2, 1, 2):view("float64") end)
    raises('there is no option "shape"', function() x:view { dtype = "int32", shape = { 12 } } end)
    raises('got string "int32"', function() x:view("int32", 12) end)
  end)

  it("repeats alone give the positions", function()
    local repeats = tensor({ 2, 0, 3 }, { dtype = "int32" })
    local positions = tensor.repeat_interleave(repeats)
    assert.same({ "int32", { 0, 0, 2, 2, 2 } }, { positions.dtype, positions:tolist() })
    assert.equal("int64", tensor.repeat_interleave(longs { 1 }).dtype)
    assert.same({ 0, 0, 2, 2, 2 }, tensor.repeat_interleave(repeats, { output_size = 5 }):tolist())
    assert.same({ 0 }, tensor.repeat_interleave(core.zeros({ 0 }, { dtype = "int64" })).shape)
    assert.same({ 1, 1, 2, 2 }, tensor.repeat_interleave(tensor { 1, 2 }, { repeats = 2 }):tolist())
    raises("repeats alone must be a 1-d tensor of int64 or int32, got [2] of float32",
      function() tensor.repeat_interleave(tensor { 1, 2 }) end)
    raises("got [1, 1] of int64", function() tensor.repeat_interleave(longs { { 1 } }) end)
    raises('did you mean "output_size"?',
      function() tensor.repeat_interleave(repeats, { output_sizes = 5 }) end)
    raises("argument 1 (repeats): expected a tensor, got number 3",
      function() tensor.repeat_interleave(3) end)
  end)

  it("-1 keeps a size in adaptive pools", function()
    local nn = require "accelerate.nn"
    local x = core.randn(1, 2, 5, 7)
    assert.same(F.adaptive_avg_pool2d(x, { 5, 3 }):tolist(), F.adaptive_avg_pool2d(x, { -1, 3 }):tolist())
    assert.same(F.adaptive_max_pool1d(x[1], 7):tolist(), F.adaptive_max_pool1d(x[1], -1):tolist())
    assert.same({ 1, 2, 2, 7 }, nn.AdaptiveMaxPool2d({ 2, -1 })(x).shape)
    assert.same({ 1, 2, 3, 2, 5 }, nn.AdaptiveAvgPool3d({ -1, 2, -1 })(core.randn(1, 2, 3, 4, 5)).shape)
    assert.same({ 1, 2, 2, 4, 5 }, F.adaptive_max_pool3d(core.randn(1, 2, 3, 4, 5), { 2, -1, -1 }).shape)
    raises("output_size must be at least 1, got -2", function() F.adaptive_avg_pool2d(x, { -2, 3 }) end)
    raises("expected sizes from 1 on, or -1, got 0", function() nn.AdaptiveAvgPool2d { 0, 3 } end)
  end)
end)
