-- Arguments of ops: positional and named, conversion of dims, messages.
local tensor = require "accelerate.tensor"
local core = require "accelerate.core"
local raises = require("spec.support.messages").raises

local x = tensor.arange(6):float():view(2, 3)

describe("arguments", function()
  it("come by position, by name, or both", function()
    assert.same({ 3, 5, 7 }, x:sum(1):totable())
    assert.same({ { 3, 5, 7 } }, x:sum(1, true):totable())
    assert.same({ { 3, 5, 7 } }, x:sum(1, { keepdim = true }):totable())
    assert.same({ { 3, 5, 7 } }, x:sum({ dim = 1, keepdim = true }):totable())
    assert.same({ { 15 } }, x:sum({ 1, 2 }, true):totable())
    assert.same({ { 15 } }, x:sum({ dim = { 1, 2 }, keepdim = true }):totable())
    assert.same({ { 15 } }, x:sum(nil, true):totable())
    assert.equal(15, x:sum():item())
    assert.equal(15, x:sum({}):item())
    assert.equal(15, core.sum(x):item())
    assert.same({ 3, 12 }, core.sum(x, -1):totable())
  end)

  it("have PyTorch's names, too", function()
    local y = tensor({ { 1, 0 }, { 0, 2 }, { 1, 1 } })
    local at = tensor({ { 0, 2 } }, { dtype = "int64" })
    assert.same({ 3, 5, 7 }, tensor.sum({ input = x, dim = 1 }):totable())
    assert.same({ { 2, 0 }, { 0, 4 }, { 2, 2 } }, tensor.add({ input = y, other = y }):totable())
    assert.same({ { 1, 0 }, { 0, 4 }, { 1, 1 } }, y:pow({ exponent = tensor { 1, 2 } }):totable())
    assert.same(x:mm(y):totable(), tensor.mm({ input = x, mat2 = y }):totable())
    assert.same({ 5 }, tensor { 1, 2 }:dot({ tensor = tensor { 1, 2 } }):view(1):totable())
    assert.same({ { 0, 2 } }, tensor.gather({ input = x, dim = 2, index = at }):totable())
    assert.same({ { 0, 2 }, { 3, 5 } }, tensor.take_along_dim({ input = x, indices = at, dim = 2 }):totable())
    assert.same({ 2, 6 }, tensor.tile({ input = x, dims = { 1, 2 } }).shape)
    assert.same({ 4, 2, 3 }, x:expand({ size = { 4, 2, 3 } }).shape)
    assert.same({ 2, 2 }, (tensor.split({ tensor = x, split_size_or_sections = 2, dim = 2 })).shape)
    assert.same({ 0.5, 1.5 },
      tensor.lerp({ input = tensor { 0, 1 }, ["end"] = tensor { 1, 2 }, weight = 0.5 })
      :totable())
    assert.same({ 1, 2 },
      tensor.searchsorted({ sorted_sequence = tensor { 1, 2 }, input = tensor { 1.5, 3 } }):totable())
    assert.same({ 0, 0, 1, 1 }, tensor.repeat_interleave({ input = tensor { 0, 1 }, repeats = 2 }):totable())
    assert.same({ 1, 2, 3 }, tensor.arange({ start = 1, ["end"] = 4 }):totable())
    assert.same({ 0, 1 }, tensor.arange({ ["end"] = 2 }):totable())
    assert.same({ 0, 0.5, 1 }, tensor.linspace({ start = 0, ["end"] = 1, steps = 3 }):totable())
    assert.same({ 1, 10 }, tensor.logspace({ start = 0, ["end"] = 1, steps = 2 }):totable())
    assert.same({ 1, 5, 2 },
      tensor.slice_scatter(tensor { 1, 1, 2 }, tensor { 5 }, { start = 2, ["end"] = 2 })
      :totable())
    local linalg, two = tensor.linalg, tensor { { 2, 0 }, { 0, 4 } }
    assert.same({ { 1 }, { 2 } }, linalg.solve({ A = two, B = tensor { { 2 }, { 8 } } }):totable())
    assert.equal(8, linalg.det({ A = two }):item())
    assert.equal(11, linalg.vecdot({ x = tensor { 1, 2 }, y = tensor { 3, 4 } }):item())
    raises('linalg.solve: a is given twice, as "a" and as "A"', linalg.solve, { a = two, A = two, B = two })
    raises('abs: there is no option "A"', tensor.abs, { A = two })
    assert.equal(3, x:size({ dim = -1 }))
    raises('size: there is no option "dims"', x.size, x, { dims = 1 })
    local given = { input = x, dim = 1 }
    tensor.sum(given)
    assert.same({ input = x, dim = 1 }, given)
    raises("sum: x is given twice, by position and by name", x.sum, x, { input = x })
    raises('sum: x is given twice, as "x" and as "input"', tensor.sum, { input = x, x = x })
    raises('arange: stop is given twice, as "stop" and as "end"', tensor.arange, { stop = 1, ["end"] = 2 })
    raises('sum: there is no option "inputs"; there are x, dim', tensor.sum, { inputs = x })
    raises('sum: there is no option "mat2"; there are x, dim', tensor.sum, { input = x, mat2 = x })
  end)

  it("are shown by their class, and a method that was not called as one", function()
    local nn = require "accelerate.nn"
    raises("matmul: argument 2 (b): expected a tensor, got a Linear", tensor.matmul, x, nn.Linear(2, 2))
    raises("got an Embedding", tensor.cat, { x, nn.Embedding(2, 2) })
    raises("abs: argument 1 (x): expected a tensor, got function; a method is called, as in x:abs()",
      tensor.abs,
      x.real)
    raises("got function; a method is called, as in x:abs()", tensor.add, x, x.real)
  end)

  it("take sizes and dims as several numbers or one list", function()
    assert.same({ 3, 2 }, x:view(3, 2).shape)
    assert.same({ 3, 2 }, x:view({ 3, 2 }).shape)
    assert.same({ 6 }, x:view(-1).shape)
    assert.same({ 3, 2 }, x:permute(2, 1).shape)
    assert.same({ 3, 2 }, x:permute({ -1, 1 }).shape)
    assert.same({}, x:sum():view({}).shape)
    assert.same({ 2, 3 }, x:reshape({ shape = { 2, 3 } }).shape)
  end)

  it("say how a type or a device is given", function()
    raises("argument 3 (shape): expected an integer, or one list of integers, got string \"int64\"; " ..
      "it is an option: { dtype = \"int64\" }", core.zeros, 2, 3, "int64")
    raises("argument 2: expected a table of options behind the list of sizes, got string \"bool\"; " ..
      "it is an option: { dtype = \"bool\" }", core.ones, { 2, 3 }, "bool")
    raises("it is an option: { device = \"cuda:1\" }", tensor.tensor, { 1, 2 }, "cuda:1")
    raises('got string "int32"; x:to("int32") converts', x.reshape, x, "int32")
    raises('got string "cuda"; x:to("cuda") moves', x.expand, x, "cuda")
    raises("behind the list of sizes, got number 4", core.zeros, { 2, 3 }, 4)
    raises("index must be int64 or int32, got float32 (write x:long() for x)", core.gather, x, 1, x)
  end)

  it("take lists of tensors", function()
    assert.same({ 4, 3 }, tensor.cat({ x, x }).shape)
    assert.same({ 2, 6 }, tensor.cat({ x, x }, 2).shape)
    assert.same({ 2, 6 }, tensor.cat({ x, x }, { dim = -1 }).shape)
    assert.same({ 2, 3, 2 }, tensor.stack({ x, x }, 3).shape)
    assert.same({ 2, 3, 2 }, tensor.stack({ x, x }, -1).shape)
    raises("cat: argument 1 (tensors) is missing: expected a list of tensors", tensor.cat)
    raises("cat: tensors: expected at least one tensor, got an empty list", tensor.cat, {})
    raises("tensors, entry 2", tensor.cat, { x, 3 })
    raises("expected a list of tensors, got tensor float32 [2, 3]", tensor.cat, x)
  end)

  it("give several results as several values", function()
    local values, indices = x:max({ dim = 1 })
    assert.same({ 3, 4, 5 }, values:totable())
    assert.same({ 1, 1, 1 }, indices:totable())
    assert.equal(1, select("#", x:max()))
    assert.equal(1, select("#", tensor.cross_entropy(x, tensor({ 0, 1 }, { dtype = "int64" }))))
  end)

  it("leave optional tensors and numbers out", function()
    local w = tensor.ones(4, 3)
    assert.same({ 2, 4 }, tensor.linear(x, w).shape)
    assert.same({ 2, 4 }, tensor.linear(x, w, nil).shape)
    assert.same({ 2, 4 }, tensor.linear(x, w, { bias = tensor.ones(4) }).shape)
    assert.same({ { 1, 1, 2 }, { 3, 4, 5 } }, x:clamp(1):totable())
    assert.same({ { 0, 1, 2 }, { 2, 2, 2 } }, x:clamp(nil, 2):totable())
    assert.same({ { 0, 1, 2 }, { 2, 2, 2 } }, x:clamp({ max = 2 }):totable())
    raises("clamp", x.clamp, x)
  end)

  it("count dims from 1, or from -1 backward", function()
    assert.same({ 3, 2 }, x:transpose(1, -1).shape)
    assert.same({ 1, 2, 3 }, x:unsqueeze(1).shape)
    assert.same({ 2, 3, 1 }, x:unsqueeze(3).shape)
    assert.same({ 2, 3, 1 }, x:unsqueeze(-1).shape)
    assert.same({ 2, 3 }, x:unsqueeze(1):squeeze(1).shape)
    assert.same({ 6 }, x:flatten().shape)
    assert.same({ 2, 3 }, x:flatten(2).shape)
    raises("sum: dim 3 is out of range; expected 1..2 or -2..-1 for a tensor of 2 dims", x.sum, x, 3)
    raises("sum: dim -3 is out of range", x.sum, x, -3)
    raises("sum: dim: dims count from 1 (and from -1 backward); got 0", x.sum, x, 0)
    raises("unsqueeze: dim 4 is out of range; expected 1..3", x.unsqueeze, x, 4)
    raises("flatten: start_dim 3 is out of range", x.flatten, x, 3)
    assert.equal(5, tensor(5):sum(1):item())
    assert.equal(5, tensor(5):sum(-1):item())
  end)

  it("count positions from 1, or from -1 backward", function()
    assert.same({ 3, 4, 5 }, x:select(1, 2):totable())
    assert.same({ 2, 5 }, x:select(2, -1):totable())
    assert.same({ { 1, 2 }, { 4, 5 } }, x:narrow(2, 2, 2):totable())
    assert.same({ 2, 0 }, x:narrow(2, 4, 0).shape)
    raises("select: index 3 is out of range for dim 1 of size 2", x.select, x, 1, 3)
    raises("select: index: positions count from 1", x.select, x, 1, 0)
    raises("narrow", x.narrow, x, 2, 2, 3)
    raises("narrow: start 5 is out of range for dim 2 of size 3", x.narrow, x, 2, 5, 0)
    raises("narrow", x.narrow, x, 2, 1, -1)
    raises("a 0-d tensor has no positions", x.select, tensor(1), 1, 1)
  end)
end)

describe("messages", function()
  it("say which argument, what was expected and what was given", function()
    raises("sum: argument 2 (dim): expected an integer or a list of integers, got string \"a\"", x.sum, x,
      "a")
    raises("sum: argument 3 (keepdim): expected a boolean, got number 1", x.sum, x, 1, 1)
    raises("sum: keepdim: expected a boolean, got number 1", x.sum, x, { keepdim = 1 })
    raises("sum: argument 2 (dim, entry 2): expected an integer, got string \"b\"", x.sum, x, { 1, "b" })
    raises("softmax: argument 2 (dim) is missing: expected an integer", x.softmax, x)
    raises("softmax: argument 2 (dim): expected an integer, got number 1.5", x.softmax, x, 1.5)
    raises("softmax: argument 2 (dim): expected an integer, got number inf", x.softmax, x, math.huge)
    raises("relu: argument 1 (x): expected a tensor, got number 3", core.relu, 3)
    raises("relu: argument 1 (x) is missing: expected a tensor", core.relu)
    raises("relu: 2 arguments given, at most 1 expected", core.relu, x, 3)
    raises("where: argument 1 (condition): expected a tensor, got boolean true", core.where, true, x, x)
    raises("add: expected at least one tensor, got numbers only", core.add, 1, 2)
    raises("masked_fill: argument 3 (value): expected a number, got tensor float32 [2, 3]", x.masked_fill, x,
      x:gt(1), x)
    raises("view: shape: 9 numbers, but tensors have at most 8 dims",
      function() return x:view(1, 1, 1, 1, 1, 1, 1, 1, 6) end)
    raises("a list of 9, but tensors have at most 8 dims",
      function() return x:view({ 1, 1, 1, 1, 1, 1, 1, 1, 6 }) end)
    raises("generator: expected a Generator, got number 1", x.dropout, x, { generator = 1 })
  end)

  it("name the nearest option and word", function()
    raises("sum: there is no option \"dmi\"; did you mean \"dim\"?", x.sum, x, { dmi = 1 })
    raises("sum: there is no option \"keep_dim\"; did you mean \"keepdim\"?", x.sum, x, { keep_dim = true })
    raises("sum: there is no option \"zzz\"; there are x, dim, keepdim", x.sum, x, { zzz = 1 })
    raises("cross_entropy: reduction: expected \"mean\", \"sum\" or \"none\", " ..
      "got \"maen\"; did you mean \"mean\"?", tensor.cross_entropy, x,
      tensor({ 0, 1 }, { dtype = "int64" }), { reduction = "maen" })
    raises("did you mean zeros?", function() return tensor.zeroes(2) end)
  end)

  it("refuse what is given twice or mixed up", function()
    raises("sum: dim is given twice, by position and by name", x.sum, x, 1, { dim = 1 })
    raises("dim: a list must not hold named entries (\"keepdim\")", x.sum, x, { 1, 2, keepdim = true })
    raises("expected a boolean, got a list of 1", x.sum, x, 1, { keepdim = true, [1] = 2 })
    raises("options: expected names as keys, got number 7", x.sum, x, 1, { keepdim = true, [7] = 2 })
    raises("expected a boolean, got", x.sum, x, 1, setmetatable({}, { __index = {} }))
  end)

  it("carry the script's line", function()
    local ok, message = pcall(function() return x:sum("a") end)
    assert.is_false(ok)
    assert.truthy(message:match("args_spec%.lua:%d+: sum: "))
  end)
end)

describe("core.ops()", function()
  it("lists every row, and each visible one is a function and a method", function()
    local seen = {}
    for _, row in ipairs(core.ops()) do
      seen[row.name] = row
      assert.equal("string", type(row.signature))
      assert.equal("string", type(row.summary))
      if row.hidden then
        assert.is_nil(core[row.name])
      else
        assert.equal("function", type(core[row.name]))
        assert.equal("function", type(x[row.name]))
        assert.is_true(rawequal(core[row.name], tensor[row.name]))
        if row.inplace then assert.equal("function", type(x[row.name .. "_"])) end
      end
    end
    assert.is_true(seen.add.inplace and seen.add.differentiable)
    assert.equal("pointwise", seen.add.form)
    assert.equal("lower", seen.linear.autocast)
    assert.is_false(seen.eq.differentiable)
    assert.is_true(seen._cast.hidden)
  end)
end)

describe("arguments that are too many", function()
  it("raise for methods that are no ops", function()
    local y = tensor.ones(2, 3)
    for name, arguments in pairs { numel = { 3 }, detach = { 5 }, double = { 1 }, fill_ = { 1, 2 },
      zero_ = { 1 },
      dim = { 4 }, is_contiguous = { 4 }, requires_grad_ = { false, 4 }, element_size = { 1 },
      size = { 1, 2 },
      stride = { 1, 2 }, tolist = { 1 } } do
      local shown = name == "tolist" and "totable" or name
      raises(("%s: %d arguments given, at most %d expected"):format(shown, #arguments + 1, #arguments),
        function() y[name](y, unpack(arguments)) end)
    end
    raises("copy_: 4 arguments given, at most 3 expected", function() y:copy_(y, true, 2) end)
    raises("copy_: argument 3 (non_blocking)", function() y:copy_(y, "later") end)
    raises("manual_seed: 2 arguments given", function() tensor.manual_seed(1, 2) end)
    raises('to: a second element type is given, "float64"', function() y:to("float32", "float64") end)
    assert.equal("float64", y:to("cpu", "float64", true, true).dtype)
    assert.equal(6, y:numel(nil)) -- a wrapper passes on what it did not get
  end)

  it("are no nil among the sizes of a shape", function()
    raises("view: argument 3 (shape): expected an integer, got nil; the last size of x is x:size(-1)",
      function() x:view(-1, x.shape[-1]) end)
    raises("reshape: argument 3 (shape): expected an integer, got nil", function() x:reshape(-1, nil) end)
    raises("permute: argument 4 (dims): expected an integer, got nil", function() x:permute(2, 1, nil) end)
    assert.same({ 3, 2 }, x:view({ 3, 2 }, nil).shape)
  end)
end)
