-- Constructors, fields, conversion, views and operators, as scripts see them.
local tensor = require "accelerate.tensor"
local core = require "accelerate.core"
local ffi = require "ffi"
local raises = require("spec.support.messages").raises

local DTYPES = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool" }

describe("tensor(value)", function()
  it("takes nested lists as float32", function()
    local x = tensor({ { 1, 2, 3 }, { 4, 5, 6 } })
    assert.same({ 2, 3 }, x.shape)
    assert.equal("float32", x.dtype)
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, x:totable())
  end)

  it("takes booleans as bool, and both kinds as what it is told", function()
    assert.equal("bool", tensor({ true, false }).dtype)
    assert.same({ 1, 0, 3 }, tensor({ true, false, 3 }, { dtype = "int64" }):totable())
    assert.same({ true, false, true }, tensor({ 2, 0, true }, { dtype = "bool" }):totable())
  end)

  it("takes a number or a boolean as a 0-d tensor", function()
    assert.same({}, tensor(3).shape)
    assert.equal(3, tensor(3):item())
    assert.equal(true, tensor(true):item())
  end)

  it("makes an empty table a tensor of shape {0}, and nested empty ones their shape", function()
    assert.same({ 0 }, tensor({}).shape)
    assert.same({ 2, 0 }, tensor({ {}, {} }).shape)
  end)

  it("copies a tensor, without its history", function()
    local x = tensor({ 1, 2 }, { requires_grad = true })
    local y = tensor(x * 2)
    y:fill_(0)
    assert.is_false(y.requires_grad)
    assert.same({ 1, 2 }, x:totable())
    assert.equal("int64", tensor(x, { dtype = "int64" }).dtype)
  end)

  it("goes through every element type and back", function()
    for _, dtype in ipairs(DTYPES) do
      local x = tensor({ 0, 1, 1 }, { dtype = dtype })
      assert.equal(dtype, x.dtype)
      assert.same(dtype == "bool" and { false, true, true } or { 0, 1, 1 }, x:totable())
    end
  end)

  it("names the entry that makes a table ragged", function()
    raises("tensor: ragged table: entry {2} has 1 entries, expected 2", tensor, { { 1, 2 }, { 3 } })
    raises("entry {2}: expected a list of 2, got number 3", tensor, { { 1, 2 }, 3 })
    raises("entry {1, 2} is a list", tensor, { { 1, { 2 } } })
    raises("entry {2, 1}: expected a number, got string \"a\"", tensor, { { 1 }, { "a" } })
    raises("entry {2}: expected a boolean, like the first entry, got number 1", tensor, { true, 1 })
    raises("entry {3}: expected a number, got nil", tensor, { 1, 2, nil, 4 })
  end)

  it("refuses lists with named entries or holes, which would be cut", function()
    local x = tensor({ { 1, 2 }, { 3, 4 } })
    local options = "give options in a table of their own"
    raises("tensor: data: a list must not hold named entries (\"dtype\"); " .. options, tensor,
      { 1, 2, dtype = "int64" })
    raises("tensor: {2}: a list must not hold named entries (\"n\")", tensor, { { 1, 2 }, { 3, 4, n = 2 } })
    raises("tensor: data: the list has holes: entry 2 is nil", tensor, { 1, [3] = 3 })
    raises("cat: tensors: a list must not hold named entries (\"dim\"); " .. options, core.cat,
      { x, x, dim = 2 })
    raises("stack: tensors: the list has holes: entry 2 is nil", core.stack, { x, [3] = x })
    raises("index: key: the list has holes: entry 2 is nil", function() return x[{ 1, [3] = 2 }] end)
    raises("index: key: a list must not hold named entries (\"step\")",
      function() return x[{ 1, step = 2 }] end)
    raises("a list must not hold named entries (\"a\")", function() x[1] = { 1, 2, a = 3 } end)
    raises("cat: tensors: expected a list, got a table with the key", core.cat, { x, [{}] = x })
    raises("tensor: data: expected a list, got a table with the key number 0; entries count from 1", tensor,
      { [0] = 1, 2, 3 })
    raises("index: key: expected a list, got a table with the key number 0",
      function() return x[{ [0] = 1, 2 }] end)
    local backwards = {}
    for i = 50, 1, -1 do backwards[i] = i end -- kept as keys, and a list all the same
    assert.are.equal(1275, tensor(backwards):sum():item())
    assert.are.same({ 4, 2 }, core.cat({ [2] = x, [1] = x }).shape)
  end)

  it("takes 0-d tensors among the numbers, of the type that holds them all", function()
    local loss, count = (tensor { 1, 2 } * 0.25):requires_grad_():sum(), tensor({ 3, 4 },
      { dtype = "int64" }):sum()
    assert.same({ 0.75, 7, 2 }, tensor({ loss, count, 2 }):totable())
    assert.is_false(tensor({ loss, count }).requires_grad)
    assert.equal("int64", tensor({ count, count + 1 }).dtype)
    assert.equal(2 ^ 53, (tensor({ count * 0 + 2 ^ 53 + 1 }) - 1)[1]:item())
    assert.equal("float32", tensor({ { count, 1 }, { 2.5, loss } }).dtype)
    assert.same({ { 7, 1 }, { 2.5, 0.75 } }, tensor({ { count, 1 }, { 2.5, loss } }):totable())
    assert.equal("float64", tensor({ loss:double(), 1 }).dtype)
    assert.same({ true, false }, tensor({ tensor(true), tensor(false) }):totable())
    assert.same({ 0, 7 }, tensor({ loss, count }, { dtype = "int32" }):totable())
    local x = tensor({ 0, 0, 0 })
    x[{ { 1, 2 } }] = { loss, count }
    assert.same({ 0.75, 7, 0 }, x:totable())
    raises("entry {2} is a tensor with dims; join tensors with tensor.stack or tensor.cat", tensor,
      { loss, x })
    raises("entry {2}: expected a boolean, like the first entry, got", tensor, { true, count })
    raises("complex64 does not fit", tensor, { 1, core.complex(loss:detach(), loss:detach()) })
    local gone
    tensor.scope(function() gone = x:sum() end)
    raises("entry {2}: expected a number, got a tensor that was released", tensor, { 1, gone })
  end)

  it("refuses numbers that the element type cannot hold", function()
    raises("entry {2}: 1.5 does not fit int64", tensor, { 1, 1.5 }, { dtype = "int64" })
    raises("entry {1}: 256 does not fit uint8", tensor, { 256 }, { dtype = "uint8" })
    raises("entry {1}: -1 does not fit uint8", tensor, { -1 }, { dtype = "uint8" })
    raises("does not fit int32", tensor, { 2 ^ 31 }, { dtype = "int32" })
    raises("does not fit int64", tensor, { 0 / 0 }, { dtype = "int64" })
    raises("does not fit int64", tensor, { math.huge }, { dtype = "int64" })
  end)

  it("refuses what is no data", function()
    raises("tensor: argument 1 (value): expected a list, a number, a boolean or a tensor, got string \"a\"",
      tensor, "a")
    raises("got nil", tensor, nil)
    raises("expected lists, got a table with the key string \"x\"", tensor, { x = 1 })
    raises("there is no option \"dytpe\"; did you mean \"dtype\"?", tensor, { 1 }, { dytpe = "int64" })
    raises("there is no element type \"flaot32\"; did you mean \"float32\"?", tensor, { 1 },
      { dtype = "flaot32" })
    for theirs, ours in pairs { float = "float32", double = "float64", half = "float16", long = "int64",
      int = "int32", ["torch.float"] = "float32", ["torch.int64"] = "int64" } do
      local message = ("there is no element type \"%s\"; did you mean \"%s\"?"):format(theirs, ours)
      raises(message, tensor, { 1 }, { dtype = theirs })
    end
    raises("only floating-point tensors can require a gradient", tensor, { 1 },
      { dtype = "int64", requires_grad = true })
    local deep = 1
    for _ = 1, 9 do deep = { deep } end
    raises("nested more than 8 deep", tensor, deep)
    local loop = {}
    loop[1] = loop
    raises("nested more than 8 deep", tensor, loop)
    raises("tensor.stack", tensor, { tensor { 1 }, tensor { 2 } })
  end)
end)

describe("a constructor", function()
  it("takes sizes as numbers or as a list", function()
    assert.same({ 2, 3 }, tensor.zeros(2, 3).shape)
    assert.same({ 2, 3 }, tensor.ones({ 2, 3 }).shape)
    assert.same({}, tensor.zeros({}).shape)
    assert.same({ 0, 4 }, tensor.empty(0, 4).shape)
    assert.same({ 2, 3 }, tensor.zeros(tensor.ones(2, 3).shape, { dtype = "int64" }).shape)
  end)

  it("takes type, device and requires_grad", function()
    local x = tensor.ones(2, { dtype = "float64", device = "cpu", requires_grad = true })
    assert.equal("float64", x.dtype)
    assert.equal("cpu", x.device)
    assert.is_true(x.requires_grad)
  end)

  it("refuses bad sizes", function()
    raises("zeros: size 2 is negative: -1", tensor.zeros, 2, -1)
    raises("zeros: argument 1 (shape): expected an integer", tensor.zeros, 1.5)
    raises("zeros: argument 1 (shape): expected sizes", tensor.zeros)
    raises("9 sizes given, but tensors have at most 8 dims", tensor.zeros, 1, 1, 1, 1, 1, 1, 1, 1, 1)
    raises("zeros: ", tensor.zeros, 2 ^ 40, 2 ^ 40)
    raises("zeros: ", tensor.zeros, 0 / 0)
    raises("zeros: ", tensor.zeros, math.huge)
    raises("a list must not hold named entries", tensor.zeros, { 2, 3, dtype = "int64" })
    raises("the list has holes", tensor.zeros, { 2, [4] = 3 })
    raises("there is no option", tensor.zeros, 2, { typo = 1 })
    raises("out of memory", tensor.empty, 2 ^ 45)
  end)

  it("makes sequences", function()
    assert.same({ 0, 1, 2 }, tensor.arange(3):totable())
    assert.equal("int64", tensor.arange(3).dtype)
    assert.same({ 1, 3 }, tensor.arange(1, 5, 2):totable())
    assert.equal("float32", tensor.arange(0, 1, 0.25).dtype)
    assert.same({ 0, 0.25, 0.5, 0.75 }, tensor.arange(0, 1, 0.25):totable())
    assert.same({ 3, 2, 1 }, tensor.arange(3, 0, -1):totable())
    assert.same({ 0, 0.25, 0.5, 0.75, 1 }, tensor.linspace(0, 1, 5):totable())
    for _, n in ipairs { 15, 16, 17, 33, 1000 } do -- both halves begin with runs of eight
      local line, wide = tensor.linspace(-3, 7, n), tensor.linspace(-3, 7, n, { dtype = "float64" })
      assert.is_true(tensor.equal(wide:float(), line))
    end
    local function whole(a, b, n, dtype) return tensor.linspace(a, b, n, { dtype = dtype }):totable() end
    assert.same({ 0, 3, 6, 10 }, whole(0, 10, 4, "int64")) -- PyTorch's values
    assert.same({ 10, 7, 5, 2, 0, -2 }, whole(10, -2, 6, "int32"))
    assert.same({ 2, 3, 5, 7, 9 }, whole(2.7, 9.3, 5, "int64"))
    assert.same({ 0, 31, 63, 95, 127, 159, 191, 223, 255 }, whole(0, 255, 9, "uint8"))
    assert.same({ 1, 2, 6, 15, 39, 100 }, tensor.logspace(0, 2.5, 6, { dtype = "int64" }):totable())
    raises("linspace: values from 0 to 256 do not fit uint8", whole, 0, 256, 3, "uint8")
    raises("linspace: expected an element type of numbers, got bool", whole, 0, 1, 2, "bool")
    for _, dtype in ipairs { "complex64", "complex128" } do
      local line = tensor.linspace(-1, 2, 4, { dtype = dtype })
      assert.equal(dtype, line.dtype)
      assert.same({ { -1, 0 }, { 0, 0 }, { 1, 0 }, { 2, 0 } }, line:view_as_real():totable())
    end
    assert.same({ { 1, 0 }, { 0, 1 } }, tensor.eye(2):totable())
    assert.same({ { 1, 0, 0 }, { 0, 1, 0 } }, tensor.eye(2, 3, { dtype = "int64" }):totable())
    raises("step must not be 0", tensor.arange, 0, 1, 0)
    raises("give it the other sign", tensor.arange, 3, 0)
    raises("does not fit uint8", tensor.arange, 300, { dtype = "uint8" })
    raises("finite", tensor.arange, math.huge)
  end)

  it("fills", function()
    assert.same({ 2.5, 2.5 }, tensor.full({ 2 }, 2.5):totable())
    assert.equal("bool", tensor.full({ 2 }, true).dtype)
    assert.same({ 7 }, tensor.full(1, 7, { dtype = "int64" }):totable())
    raises("0.5 does not fit int64", tensor.full, { 2 }, 0.5, { dtype = "int64" })
    raises("expected a number or a boolean, got string", tensor.full, { 2 }, "x")
  end)

  it("takes shape and type from another tensor", function()
    local x = tensor.ones(2, 3, { dtype = "float64" })
    for _, name in ipairs { "zeros_like", "ones_like", "empty_like", "rand_like", "randn_like" } do
      local y = tensor[name](x)
      assert.same({ 2, 3 }, y.shape)
      assert.equal("float64", y.dtype)
    end
    assert.same({ { 4, 4, 4 }, { 4, 4, 4 } }, tensor.full_like(x, 4):totable())
    assert.equal("int64", tensor.zeros_like(x, { dtype = "int64" }).dtype)
  end)

  it("draws random numbers in their range", function()
    tensor.manual_seed(1)
    local u = tensor.rand(1000)
    assert.is_true(u:ge(0):all():item() and u:lt(1):all():item())
    local r = tensor.randint(-3, 4, { 1000 })
    assert.equal("int64", r.dtype)
    assert.is_true(r:ge(-3):all():item() and r:le(3):all():item())
    assert.is_true(tensor.randint(5, { 10 }):lt(5):all():item())
    local p = tensor.randperm(10):totable()
    table.sort(p)
    assert.same({ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 }, p)
    raises("low (3) must be below high (3)", tensor.randint, 3, 3, { 1 })
    raises("do not fit uint8", tensor.randint, 0, 1000, { 1 }, { dtype = "uint8" })
    raises("expected a floating-point or complex element type, got int64", tensor.rand, 2,
      { dtype = "int64" })
    raises("expected a Generator, got number 3", tensor.rand, 2, { generator = 3 })
  end)
end)

describe("a generator", function()
  it("draws the same again from the same seed", function()
    local a, b = tensor.Generator(5), tensor.Generator(5)
    assert.same(tensor.rand(4, { generator = a }):totable(), tensor.rand(4, { generator = b }):totable())
    local state = a:get_state()
    assert.equal(16, #state)
    local x = tensor.randn(4, { generator = a }):totable()
    a:set_state(state)
    assert.same(x, tensor.randn(4, { generator = a }):totable())
    assert.equal(5, a:initial_seed())
    assert.equal(9, a:manual_seed(9):initial_seed())
    raises("expected a state of 16 bytes, got 3", a.set_state, a, "abc")
    raises("seed", tensor.manual_seed, 1.5)
  end)
end)

describe("fields", function()
  it("tell shape, type, device and history", function()
    local x = tensor.ones(2, 3, { requires_grad = true })
    local y = x * 2
    assert.equal(2, x.ndim)
    assert.is_true(x.is_leaf)
    assert.is_nil(x.grad_fn)
    assert.is_false(y.is_leaf)
    assert.equal("mul", y.grad_fn)
    assert.equal(6, x:numel())
    assert.equal(2, x:dim())
    assert.same({ 2, 3 }, x:size())
    assert.equal(3, x:size(2))
    assert.equal(3, x:size(-1))
    assert.same({ 3, 1 }, x:stride())
    assert.equal(1, x:stride(2))
    assert.equal(4, x:element_size())
    assert.equal(24, x:nbytes())
    assert.equal(2, #x)
    assert.is_true(x:is_contiguous())
    assert.is_false(x:t():is_contiguous())
    assert.equal(3, x:narrow(1, 2, 1):storage_offset())
  end)

  it("give a fresh table as shape", function()
    local x = tensor.ones(2)
    x.shape[1] = 5
    assert.same({ 2 }, x.shape)
  end)

  it("refuse unknown names, and name the nearest", function()
    local x = tensor.ones(2)
    raises("did you mean \"requires_grad\"", function() return x.requires_gard end)
    raises("did you mean \"reshape\"", function() return x:reshpae(2) end)
    raises("cannot be set", function() x.shape = { 1 } end)
    raises("did you mean \"grad\"", function() x.grda = 1 end)
  end)

  it("keep grad the same object until it is replaced", function()
    local x = tensor.ones(2, { requires_grad = true })
    local y = x * 2
    y:sum():backward()
    local g = x.grad
    assert.is_true(rawequal(g, x.grad))
    collectgarbage()
    assert.is_true(rawequal(g, x.grad))
    x.grad = nil
    assert.is_nil(x.grad)
    local h = tensor.ones(2)
    x.grad = h
    assert.is_true(rawequal(h, x.grad))
    raises("grad: expected a tensor of float32 [2]", function() x.grad = tensor.ones(3) end)
    raises("grad: argument 3 (value): expected a tensor, got number 1", function() x.grad = 1 end)
  end)

  it("let data move to other elements", function()
    local x = tensor.ones(2, { requires_grad = true })
    x.data = tensor({ 5, 6, 7 })
    assert.same({ 5, 6, 7 }, x:totable())
    assert.is_true(x.requires_grad)
    assert.is_false(x.data.requires_grad)
    x.data:fill_(1)
    assert.same({ 1, 1, 1 }, x:totable())
  end)
end)

describe("conversion", function()
  it("casts by method, by name and by options", function()
    local x = tensor({ 1.7, -2 })
    for name, dtype in pairs { float = "float32", double = "float64", half = "float16", bfloat16 = "bfloat16",
      long = "int64",
      int = "int32", bool = "bool" } do
      assert.equal(dtype, x[name](x).dtype)
      assert.equal(dtype, x:to(dtype).dtype)
      assert.equal(dtype, x:to({ dtype = dtype }).dtype)
    end
    assert.same({ 1, -2 }, x:long():totable())
    assert.equal("float64", x:to(tensor.ones(1):double()).dtype)
  end)

  it("gives the same object when nothing changes, and a copy when asked", function()
    local x = tensor.ones(2)
    assert.is_true(rawequal(x, x:to("float32")))
    assert.is_true(rawequal(x, x:float()))
    assert.is_true(rawequal(x, x:to("cpu")))
    assert.is_true(rawequal(x, x:contiguous()))
    local y = x:to({ copy = true })
    y:fill_(0)
    assert.same({ 1, 1 }, x:totable())
  end)

  it("refuses unknown types and devices", function()
    local x = tensor.ones(1)
    raises("did you mean \"float32\"", x.to, x, "flot32")
    raises("to: ", x.to, x, "cuda:x")
    raises("to: expected", x.to, x)
    raises("to: argument 2: expected", x.to, x, 3)
  end)

  it("item wants one element and exact integers", function()
    assert.equal(2.5, tensor({ { 2.5 } }):item())
    raises("item: expected a tensor of one element, got one of shape [2]",
      function() return tensor({ 1, 2 }):item() end)
    local big = tensor({ 0 }, { dtype = "int64" })
    big:data_ptr()[0] = 9007199254740993LL
    raises("9007199254740993 lies beyond 2^53", big.item, big)
    raises("beyond 2^53", big.totable, big)
    assert.equal(2 ^ 53, tensor({ 2 ^ 53 }, { dtype = "int64" }):item())
  end)

  it("totable follows strides", function()
    assert.same({ { 1, 3 }, { 2, 4 } }, tensor({ { 1, 2 }, { 3, 4 } }):t():totable())
    assert.same({ {}, {} }, tensor.zeros(2, 0):totable())
    assert.equal(3, tensor(3):totable())
    assert.same({ 1, 2 }, tensor({ 1, 2 }):tolist())
  end)
end)

describe("data_ptr", function()
  it("is a typed pointer to the elements", function()
    local x = tensor.arange(4):double()
    local p = x:data_ptr()
    assert.equal("ctype<double *>", tostring(ffi.typeof(p)))
    assert.equal(3, p[3])
    p[0] = 42
    assert.equal(42, x[1]:item())
    for _, dtype in ipairs(DTYPES) do
      assert.equal("cdata", type(tensor.zeros(1, { dtype = dtype }):data_ptr()))
    end
  end)

  it("counts as an edit", function()
    local x = tensor.ones(2)
    local before = x:_version()
    x:data_ptr()
    assert.equal(before + 1, x:_version())
  end)

  it("wants contiguous elements", function()
    raises("not contiguous", function() return tensor.ones(2, 3):t():data_ptr() end)
  end)

  it("starts at a view's own first element", function()
    assert.equal(2, tensor.arange(6):view(3, 2)[2]:data_ptr()[0])
  end)
end)

describe("operators", function()
  it("take tensors and numbers on either side", function()
    local x = tensor({ 1, 2 })
    assert.same({ 2, 3 }, (x + 1):totable())
    assert.same({ 2, 3 }, (1 + x):totable())
    assert.same({ 0, -1 }, (1 - x):totable())
    assert.same({ 2, 4 }, (x * 2):totable())
    assert.same({ 0.5, 1 }, (x / 2):totable())
    assert.same({ 1, 4 }, (x ^ 2):totable())
    assert.same({ 1, 0 }, (x % 2):totable())
    assert.same({ -1, -2 }, (-x):totable())
    assert.same({ 2, 4 }, (x + x):totable())
  end)

  it("keep an integer type with integral numbers", function()
    local x = tensor({ 1, 2 }, { dtype = "int64" })
    assert.equal("int64", (x + 1).dtype)
    assert.equal("float32", (x + 1.5).dtype)
    assert.equal("float32", (x / 2).dtype)
  end)

  it("compare by identity", function()
    local x = tensor({ 1 })
    assert.is_true(x == x)
    assert.is_false(x == tensor({ 1 }))
    assert.is_true(x:eq(1):item())
  end)

  it("refuse other values", function()
    local x = tensor({ 1 })
    raises("add: argument 2 (b): expected a tensor or a number, got nil", function() return x + nil end)
    raises("add: argument 1 (a): expected a tensor or a number, got string \"1\"",
      function() return "1" + x end)
    raises("add: argument 2 (b): expected a tensor or a number, got an empty table",
      function() return x + {} end)
    raises("add: shapes", function() return tensor.ones(2) + tensor.ones(3) end)
  end)
end)

describe("in-place forms", function()
  it("write into the tensor and return it", function()
    local x = tensor({ 1, 2 })
    assert.is_true(rawequal(x, x:add_(1)))
    assert.same({ 2, 3 }, x:totable())
    assert.same({ 4, 6 }, x:mul_(2):totable())
    assert.same({ 5, 5 }, x:fill_(5):totable())
    assert.same({ 0, 0 }, x:zero_():totable())
    assert.same({ 7, 7 }, x:copy_(tensor({ 7 })):totable())
    assert.same({ 3, 3 }, x:copy_(3):totable())
    assert.same({ 2, 2 }, x:clamp_({ max = 2 }):totable())
  end)

  it("refuse what does not fit", function()
    local x = tensor({ 1, 2 }, { dtype = "int64" })
    raises("fill_: 1.5 does not fit a tensor of int64", x.fill_, x, 1.5)
    raises("add_: ", x.add_, x, 1.5)
    raises("copy_: ", x.copy_, x, tensor.ones(3))
    raises("expected a tensor or a number, got nothing", x.copy_, x)
    raises("add_: argument 1 (a): expected a tensor, got number 1", x.add_, 1, x)
  end)
end)

describe("a released tensor", function()
  it("is refused by name wherever it is used", function()
    local x = tensor.ones(2)
    core.release(x)
    assert.is_true(core.is_released(x))
    core.release(x)
    for _, use in ipairs {
      function()
        return x + 1
      end, function() return x:sum() end, function() return x.shape end, function() return x[1] end,
      function()
        x[1] = 1
      end, function() return #x end, function() return x:backward() end,
      function() return tensor.cat({ x }) end,
      function() return tensor(x) end, function() return x:item() end, function() return x:data_ptr() end,
      function()
        x.grad = nil
      end, function() return tensor.ones(2):to(x) end, function() return tensor.ones(2)[x] end,
    } do
      raises("this tensor was released", use)
    end
    assert.is_true(core.is_tensor(x))
  end)
end)

describe("allclose and equal", function()
  it("compare elements", function()
    local a = tensor({ 1, 2, 3 })
    assert.is_true(tensor.equal(a, tensor({ 1, 2, 3 })))
    assert.is_false(tensor.equal(a, tensor({ 1, 2 })))
    assert.is_false(tensor.equal(a, tensor({ 1, 2, 4 })))
    assert.is_true(tensor.allclose(a, a + 1e-6))
    assert.is_false(tensor.allclose(a, a + 1e-3))
    assert.is_true(tensor.allclose(a, a + 1e-3, { atol = 1e-2 }))
    local odd = tensor({ 1 / 0, 0 / 0 })
    assert.is_false(tensor.allclose(odd, odd))
    assert.is_true(tensor.allclose(odd, odd, { equal_nan = true }))
    assert.is_false(tensor.allclose(tensor({ 1 }), tensor({ 1 / 0 })))
    raises("did you mean", tensor.allclose, a, a, { atool = 1 })
    raises("allclose: argument 2 (b): expected a tensor, got number 1", tensor.allclose, a, 1)
  end)
end)

describe("scope", function()
  it("empties what was made inside, but not what is returned or kept", function()
    local dropped, kept, made
    local y, nested = tensor.scope(function(x)
      dropped = x * 2
      kept = tensor.keep(x * 3)
      made = tensor.zeros(2)
      return x + 1, { inner = { x + 2 } }
    end, tensor.ones(2))
    assert.is_true(tensor.is_released(dropped))
    assert.same({ 3, 3 }, kept:totable())
    assert.same({ 0, 0 }, made:totable())
    assert.same({ 2, 2 }, y:totable())
    assert.same({ 3, 3 }, nested.inner[1]:totable())
  end)

  it("leaves what is kept inside an inner one, too, and what backward needs", function()
    local kept, returned
    local double = tensor.Function {
      forward = function(ctx, x)
        ctx:save_for_backward(x * 2)
        return x * x
      end,
      backward = function(ctx, g) return ctx:saved_tensors() * g end,
    }
    local x = tensor.ones(2):requires_grad_()
    local y = tensor.scope(function()
      local early = x * 5
      local function inner()
        kept = tensor.keep(x * 3)
        tensor.keep(early)
        return double(x), x * 4
      end
      local found
      found, returned = tensor.scope(inner)
      kept = { kept, early }
      return found
    end)
    assert.is_true(tensor.is_released(returned))
    assert.same({ 3, 3 }, kept[1]:totable())
    assert.same({ 5, 5 }, kept[2]:totable())
    y:sum():backward()
    assert.same({ 2, 2 }, x.grad:totable())
  end)

  it("nests, and restores when the function raises", function()
    local inner, outer
    pcall(tensor.scope, function()
      outer = tensor.ones(1) + 1
      inner = tensor.scope(function() return tensor.ones(1) + 2 end)
      pcall(tensor.scope, function() error("x") end)
      assert.is_false(tensor.is_released(inner))
      error("out")
    end)
    assert.is_true(tensor.is_released(inner))
    assert.is_true(tensor.is_released(outer))
    local after = tensor.ones(1) + 1
    assert.is_false(tensor.is_released(after))
  end)
end)
