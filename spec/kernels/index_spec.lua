--- What the cases of the op table do not show of the index and shape families: messages, forms in
--- place, threads, large sizes.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local function int64(v) return core.tensor(v, { dtype = "int64" }) end
describe("an index out of range", function()
  local x = core.randn(3, 4)
  it("is named with its place and the size", function()
    raises("gather: index 4 at position [0, 1] (from 0) is outside 0..3, dim 2 has size 4", x.gather, x, 2,
      int64 { { 0, 4 } })
    raises("scatter: index -1 at position [1, 0]", x.scatter, x, 1, int64 { { 0, 0 }, { -1, 0 } }, 0)
    raises("scatter_add: index 9", x.scatter_add, x, 1, int64 { { 9 } }, core.ones(1, 1))
    raises("index_add: index 3 at position [1] (from 0) is outside 0..2, dim 1 has size 3", x.index_add, x, 1,
      int64 { 0, 3 }, core.ones(2, 4))
    raises("index_copy: index 4", x.index_copy, x, 2, int64 { 4 }, core.ones(3, 1))
    raises("index_fill: index 7", x.index_fill, x, 2, int64 { 7 }, 0)
    raises("index_select: index 3", x.index_select, x, 1, int64 { 3 })
    raises("one_hot: 3 at flat position 1 (from 0) is no class of 0..2", core.one_hot, int64 { 0, 3 }, 3)
  end)

  it("is found in an expanded index, too", function()
    raises("gather: index 3 at position [1, 0]", x.gather, x, 1, int64({ { 0 }, { 3 } }):expand(2, 4))
    raises("gather: index 3 at position [0, 1]", x.gather, x, 1, int64({ { 0, 1 }, { 3, 2 } }):t())
  end)

  it("leaves the tensor of an op in place as it was", function()
    local y = x:clone()
    raises("scatter_: index 9", y.scatter_, y, 1, int64 { { 0, 9 } }, 1)
    raises("index_add_: index 9", y.index_add_, y, 1, int64 { 0, 9 }, core.ones(2, 4))
    assert.is_true(y:eq(x):all():item())
  end)
end)

describe("forms in place", function()
  local function same(a, b) assert.are.same(b:totable(), a:totable()) end
  local index, src = int64 { { 2, 0 }, { 1, 2 } }, core.randn(2, 2)
  local list, rows = int64 { 2, 0 }, core.randn(2, 4)

  for _, case in ipairs {
    { "scatter", 1, index, src }, { "scatter", 1, index, 3 }, { "scatter_add", 2, index, src },
    { "index_add", 1, list, rows, 2 },
    { "index_copy", 1, list, rows }, { "index_fill", 2, list, 5 }, { "tril", 1 }, { "triu", -1 },
  } do
    local name = case[1]
    it(name .. "_ gives the same, also through strides and beside itself", function()
      local x = core.randn(3, 4)
      local expected = x[name](x, unpack(case, 2))
      local y = x:clone()
      assert.are.equal(y, y[name .. "_"](y, unpack(case, 2)))
      same(y, expected)
      local wide = core.zeros(4, 6)
      local view = wide[{ {}, { 1, 6, 2 } }]:t()
      view:copy_(x)
      view[name .. "_"](view, unpack(case, 2))
      same(view, expected)
      assert.are.equal(0, wide[{ {}, { 2, 6, 2 } }]:abs():sum():item())
    end)
  end

  it("may read the tensor that they change", function()
    local x = core.arange(4):float()
    x:scatter_(1, int64 { 1, 2, 3, 0 }, x)
    same(x, core.tensor { 3, 0, 1, 2 })
    local y = core.arange(4):float()
    y:index_add_(1, int64 { 1, 2, 3, 3 }, y)
    same(y, core.tensor { 0, 1, 3, 8 })
  end)

  it("are recorded", function()
    local x, s = core.randn(3, { dtype = "float64", requires_grad = true }), core.randn(2,
      { dtype = "float64", requires_grad = true })
    local y = x * 2
    y:scatter_(1, int64 { 2, 0 }, s);
    (y * core.tensor({ 1, 10, 100 }, { dtype = "float64" })):sum():backward()
    same(x.grad, core.tensor { 0, 20, 0 })
    same(s.grad, core.tensor { 100, 1 })
  end)
end)

describe("threads", function()
  local function alike(name, f)
    it("do not change " .. name, function()
      local former = core.get_num_threads()
      core.set_num_threads(1)
      local one = { f() }
      for n = 2, 3 do
        core.set_num_threads(n)
        for k, t in ipairs { f() } do
          assert.is_true(t:eq(one[k]):logical_or(t:isnan()):all():item(), name .. " with " .. n)
        end
      end
      core.set_num_threads(former)
    end)
  end
  local x = core.randn(70, 900)
  local across, down = core.randint(0, 900, { 70, 900 }), core.randint(0, 70, { 70, 900 })
  alike("gather", function() return x:gather(1, down), x:gather(2, across) end)
  alike("scatter", function() return x:scatter(1, down, x), x:scatter(2, across, x) end)
  alike("scatter_add", function() return x:scatter_add(1, down, x), x:scatter_add(2, across, x) end)
  alike("index_add",
    function() return x:index_add(1, down[1]:narrow(1, 1, 70), x), x:index_add(2, across[1], x) end)
  alike("sort", function() return x:sort(1), x:sort(2, true) end)
  alike("topk", function() return x:topk(5), x:topk(200, 2, false) end)
  alike("pad", function() return x:pad({ 600, 0, 3, 3 }, "reflect"), x:pad { 900, 1 } end)
  alike("tile", function() return x:tile(3, 2), x:tile(1, 5), x:tile(7, 1) end)
  alike("tril", function() return x:tril(100) end)
end)

describe("order", function()
  it("is stable and total over long rows, NaN last, in every type", function()
    for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8",
      "bool" } do
      local n = 3000
      local x = core.randint(0, 40, { n }):to(dtype)
      for _, falling in ipairs { false, true } do
        local v, at = x:sort(1, falling)
        local a, b = v:double():totable(), at:totable()
        for i = 2, n do
          local fine
          if falling then fine = a[i - 1] > a[i] else fine = a[i - 1] < a[i] end
          if a[i] == a[i - 1] then fine = b[i - 1] < b[i] end
          if not fine then
            error(("%s: %g at %d, then %g at %d"):format(dtype, a[i - 1], b[i - 1], a[i], b[i]))
          end
        end
        local top, top_at = x:topk(100, 1, falling)
        assert.are.same(v:narrow(1, 1, 100):double():totable(), top:double():totable())
        assert.are.same(at:narrow(1, 1, 100):totable(), top_at:totable())
      end
    end
  end)

  it("is stable on long lines, and results of it are selected, whatever the bits of the keys", function()
    local n = 9000
    local few, many = core.randint(0, 5, { n }), core.randint(-2 ^ 52, 2 ^ 52, { n })
    local ends = int64 { 2 ^ 53, -2 ^ 53 }
    local floats = core.randn(n):masked_fill(core.rand(n):lt(0.01), 0 / 0)
    for name, x in pairs {
      few = few, many = many, equal = core.ones(n), bytes = few:byte(), halves = core.randn(n):half(),
      crowds = core.cat { few * 2 ^ 40 + core.randint(0, 3, { n }), ends },
      far = core.cat { few, ends }, floats = floats, doubles = floats:double() * 1e200,
    } do
      local key = x:isnan():long() -- NaN is above everything
      for _, falling in ipairs { false, true } do
        local v, at = x:sort(1, falling)
        local count = v:size(1)
        assert.is_true(v:nan_to_num(7):eq(x:gather(1, at):nan_to_num(7)):all():item(), name)
        local a, b = v:narrow(1, 1, count - 1), v:narrow(1, 2, count - 1)
        if falling then a, b = b, a end
        local nan_b, nan_a = key:gather(1, at):narrow(1, falling and 1 or 2, count - 1),
          key:gather(1, at):narrow(1, falling and 2 or 1, count - 1)
        assert.is_true(nan_a:le(nan_b):all():item(), name)
        assert.is_true(a:le(b):logical_or(nan_b:gt(0)):all():item(), name)
        local equal = a:eq(b):logical_or(nan_a:mul(nan_b):gt(0))
        local rising = at:narrow(1, 2, count - 1):gt(at:narrow(1, 1, count - 1))
        assert.is_true(equal:logical_not():logical_or(rising):all():item(), name .. ": not stable")
        for _, k in ipairs { 200, 1500, 6000 } do
          local _, top = x:topk(k, 1, falling)
          assert.is_true(top:eq(at:narrow(1, 1, k)):all():item(), name .. ": topk")
        end
      end
      local _, at = x:sort()
      for _, k in ipairs { 1, 4000, n } do
        local _, place = x:kthvalue(k)
        assert.are.equal(at[k]:item(), place:item(), name)
      end
      local _, middle = x:median(1)
      local numbers = x:size(1) - key:sum():item()
      local rank = numbers < x:size(1) and numbers + 1 or math.floor((numbers + 1) / 2)
      assert.are.equal(at[rank]:item(), middle:item(), name)
    end
  end)

  it("compares exactly", function()
    local x = core.tensor({ 2 ^ 52 + 1, -2 ^ 52, 2 ^ 52, -1 }, { dtype = "int64" })
    assert.are.same({ 1, 3, 2, 0 }, x:argsort():totable())
    local y = core.randn(5000, { dtype = "float64" })
    local v = (y:sort()):totable()
    for i = 2, #v do assert.is_true(v[i - 1] <= v[i]) end
  end)
end)

describe("several results", function()
  it("of split are views, and one node of the tape", function()
    local x = core.randn(4, 6, { requires_grad = true })
    local a, b, c = x:split(2, 2)
    assert.are.equal("split", a.grad_fn)
    assert.are.equal("split", c.grad_fn)
    assert.is_false(b:is_contiguous())
    b:sum():backward()
    assert.are.same({ 0, 0, 1, 1, 0, 0 }, x.grad[1]:totable())
    local y = core.zeros(4)
    local left = y:chunk(2)
    left:fill_(3)
    assert.are.same({ 3, 3, 0, 0 }, y:totable())
  end)

  it("of unbind may be many", function()
    local x = core.randn(700, 2, { dtype = "float64", requires_grad = true })
    local rows = { x:unbind() }
    assert.are.equal(700, #rows)
    local total = rows[1]:sum()
    for i = 2, 700 do total = total + rows[i]:sum() * i end
    total:backward()
    for _, i in ipairs { 1, 255, 256, 700 } do assert.are.equal(i, x.grad[i][2]:item()) end
    local twice = core.grad((x * x):unbind(2), { x }, { grad_outputs = { core.ones(700):double() } })
    assert.are.same({ 2 * x.data[9][1]:item(), 0 }, twice[9]:totable())
  end)

  it("have gradients of gradients", function()
    local x = core.randn(5, { dtype = "float64", requires_grad = true })
    local a, b = x:split({ 2, 3 })
    local g = core.grad(a:pow(3):sum() + b:pow(2):sum(), x, { create_graph = true })
    local h = core.grad(g:sum(), x)
    local v = x.data:totable()
    for i = 1, 5 do assert.is_true(math.abs(h[i]:item() - (i <= 2 and 6 * v[i] or 2)) < 1e-12) end
  end)

  it("raise for what does not fit", function()
    local x = core.ones(4, 3)
    raises("split: the sizes add up to 5, but dim 1 of shape [4, 3] has 4 positions", x.split, x, { 2, 3 })
    raises("split: size 2 is -1", x.split, x, { 5, -1 })
    raises("split: split_size, entry 1: expected an integer", x.split, x, { "a" })
    raises("split: expected parts of at least one position, got 0", x.split, x, 0)
    raises("chunk: expected at least one chunk, got 0", x.chunk, x, 0)
    raises("unbind: a 0-d tensor has no dim", core.unbind, core.ones({}))
    raises("split: dim 3 is out of range", x.split, x, 2, 3)
    raises("meshgrid: tensor 2 has 2 dims", core.meshgrid, core.ones(2), x)
    local y = core.zeros(12)
    local list = {}
    for i = 1, 12 do list[i] = 1 end
    assert.are.equal(12, select("#", y:split(list))) -- more than a tensor has dims
  end)
end)

describe("messages of the shape family", function()
  local x = core.ones(2, 3)
  for text, f in pairs {
    ["flip: dim 1 is listed twice"] = function() x:flip(1, -2) end,
    ["roll: 2 shifts and 1 dims"] = function() x:roll({ 1, 2 }, 1) end,
    ["movedim: source names dim 1 twice"] = function() x:movedim({ 1, 1 }, { 1, 2 }) end,
    ["movedim: 2 dims and 1 places"] = function() x:movedim({ 1, 2 }, 1) end,
    ["tile: a dim cannot be repeated -1 times"] = function() x:tile(-1) end,
    ["repeat_interleave: repeats must have one entry, or 2, got [3]"] = function()
      x:repeat_interleave(int64 { 1, 2, 3 }, 1)
    end,
    ["repeat_interleave: repeats[1] is -2"] = function() x:repeat_interleave(int64 { 1, -2 }, 1) end,
    ["tril: expected matrices, got [3]"] = function() x[1]:tril() end,
    ["diagonal: dim1 and dim2 are both 1"] = function() x:diagonal(0, 1, 1) end,
    ["diag: expected a vector or a matrix, got [1, 2, 3]"] = function() x:view(1, 2, 3):diag() end,
    ["kthvalue: k must be in 1..3"] = function() x:kthvalue(4) end,
    ["topk: k is 4, but dim 2 of shape [2, 3] has 3 elements"] = function() x:topk(4) end,
    ["scatter: x is float32, but what goes into it is float64"] = function()
      x:scatter(1, int64 { { 0 } }, core.ones(1, 1):double())
    end,
    ["gather: index must be int64 or int32, got float32"] = function() x:gather(1, x) end,
    ["gather: index [1] must have as many dims as [2, 3]"] = function() x:gather(1, int64 { 0 }) end,
    ["masked_scatter: the mask has 6 true elements, source only 2"] = function()
      x:masked_scatter(x:gt(0), core.ones(2))
    end,
    ["bincount: x holds the negative number -1"] = function() int64({ -1 }):bincount() end,
    ["searchsorted: sequences [2, 3] and values [3] must agree"] = function() core.searchsorted(x, x[1]) end,
  } do
    it(text, function() raises(text, f) end)
  end
end)

describe("bincount", function()
  it("of more elements than it takes at a time counts them all", function()
    local x = core.randint(0, 200, { 3 * 2 ^ 20 + 17 }):to("uint8")
    local counts = x:bincount()
    assert.are.equal(x:numel(), counts:sum():item())
    for _, v in ipairs { 0, 7, 199 } do assert.are.equal(x:eq(v):sum():item(), counts[v + 1]:item()) end
    assert.are.same({ 0, 0, 0 }, int64({}):bincount({ minlength = 3 }):totable())
  end)

  it("of bytes takes no place of eight bytes for each", function()
    local x = core.full({ 2 ^ 26 }, 3, { dtype = "uint8" })
    core.set_memory_limit(2 ^ 26 + 2 ^ 25)
    local ok, counts = pcall(x.bincount, x)
    core.set_memory_limit(0)
    assert(ok, counts)
    assert.are.same({ 0, 0, 0, 2 ^ 26 }, counts:totable())
  end)
end)

describe("at the edges", function()
  it("remainder has PyTorch's gradients at zero, infinite and NaN divisors and dividends", function()
    local inf, nan = 1 / 0, 0 / 0
    local a = core.tensor({ 5, -3, inf, nan, 2, 2, 0, -7, 5 }, { dtype = "float64", requires_grad = true })
    local b = core.tensor({ 0, 0, 2, 2, inf, nan, 0, -inf, -3 }, { dtype = "float64", requires_grad = true })
    a:remainder(b):sum():backward()
    assert.are.same({ 1, 1, 1, 1, 1, 1, 1, 1, 1 }, a.grad:totable())
    local expected = { -inf, inf, nan, nan, 0, nan, nan, 0, 2 }
    for i, g in ipairs(b.grad:totable()) do
      local e = expected[i]
      assert.is_true(g == e or (g ~= g and e ~= e), ("divisor %d: %g"):format(i, g))
    end
  end)

  it("an int32 that a number of a tensor does not fit is the least one; a number that is given raises",
    function()
    local least = { -2 ^ 31, -2 ^ 31 }
    assert.are.same(least, core.tensor({ 3e9, -3e9 }, { dtype = "float64" }):int():totable())
    local x = core.zeros(2, { dtype = "int32" })
    assert.has_error(function() x:scatter(1, int64 { 0, 1 }, 3e9) end,
      "scatter: the value 3e+09 does not fit a tensor of int32")
    assert.has_error(function() x:index_fill(1, int64 { 0, 1 }, -3e9) end,
      "index_fill: the value -3e+09 does not fit a tensor of int32")
  end)
end)

describe("searches and running sums", function()
  local NAN = 0 / 0
  local function below(a, b) return a < b or (b ~= b and a == a) end

  -- the first place that `v` may take: before all that are equal to it, or behind them
  local function place(sequence, v, right)
    local at = 0
    for _, x in ipairs(sequence) do
      if below(x, v) or (right and not below(v, x)) then at = at + 1 end
    end
    return at
  end

  it("find the places that a search one by one finds, whatever the lengths", function()
    local generator = core.Generator(5)
    for _, n in ipairs { 0, 1, 2, 3, 7, 8, 9, 16, 31, 100 } do
      for _, m in ipairs { 1, 5, 16, 17, 35 } do
        for _, dtype in ipairs { "float32", "float64", "int64", "int32", "uint8" } do
          local sequence = core.randint(0, 40, { 3, n }, { generator = generator }):to(dtype)
          if n > 1 then sequence = sequence:sort(2) end
          local values = core.randint(0, 41, { 3, m }, { generator = generator }):to(dtype)
          if dtype:find "float" and n > 0 then
            sequence:select(2, n):fill_(NAN)
            values[1][1] = NAN
          end
          local rows, wanted = sequence:totable(), values:totable()
          for _, right in ipairs { false, true } do
            local found = core.searchsorted(sequence, values, right):totable()
            for r = 1, 3 do
              for k = 1, m do
                assert.are.equal(place(rows[r] or {}, wanted[r][k], right), found[r][k],
                  ("%s, value %d of row %d, %d in %d"):format(dtype, k, r, m, n))
              end
            end
          end
        end
      end
    end
  end)

  it("add along lines as one by one, however many lines there are", function()
    for _, dtype in ipairs { "float32", "float64", "int64", "float16", "bfloat16" } do
      for _, lines in ipairs { 1, 7, 8, 9, 19 } do
        local x = core.randint(-3, 4, { lines, 23 }, { generator = core.Generator(lines) }):to(dtype)
        local sums, rows = x:cumsum(2):to("float64"):totable(), x:to("float64"):totable()
        for r = 1, lines do
          local sum = 0
          for k = 1, 23 do
            sum = sum + rows[r][k]
            assert.are.equal(sum, sums[r][k], ("%s, row %d of %d, place %d"):format(dtype, r, lines, k))
          end
        end
        if dtype == "float32" then
          local leaf = x:clone():requires_grad_()
          local weights = core.arange(23):to(dtype)
          leaf:cumsum(2):mul(weights):sum():backward()
          for k = 1, 23 do -- the sum of the weights from k on
            assert.are.equal((k - 1 + 22) * (24 - k) / 2, leaf.grad[lines][k]:item())
          end
        end
      end
    end
  end)

  it("multiply along lines as one by one, however many lines there are", function()
    for _, dtype in ipairs { "float32", "float64", "int64", "int32", "uint8", "bool", "float16",
      "bfloat16" } do
      for _, lines in ipairs { 1, 7, 8, 9, 19 } do
        local x = core.randint(0, 3, { lines, 13, 2 }, { generator = core.Generator(lines) }):to(dtype)
        local along, rows = x:cumprod(2):to("float64"):totable(), x:to("float64"):totable()
        local whole = x:prod(2):to("float64"):totable()
        local turned = x:transpose(2, 3):contiguous()
        local lined, ends = turned:cumprod(3):to("float64"):totable(), turned:prod(3):to("float64"):totable()
        for r = 1, lines do
          for c = 1, 2 do
            local product = 1
            for k = 1, 13 do
              product = product * rows[r][k][c]
              assert.are.equal(product, along[r][k][c], dtype)
              assert.are.equal(product, lined[r][c][k], dtype)
            end
            assert.are.equal(product, whole[r][c], dtype)
            assert.are.equal(product, ends[r][c], dtype)
          end
        end
      end
    end
  end)

  it("multiply any number of elements, of strided views and of nothing", function()
    local generator = core.Generator(3)
    for _, n in ipairs { 0, 1, 15, 16, 17, 33, 700 } do
      local x = core.empty(n, 2, { dtype = "float64" }):uniform_(0.9, 1.1, generator)
      local product, list = 1, x:select(2, 2):totable()
      for k = 1, n do product = product * list[k] end
      for _, dtype in ipairs { "float64", "float32" } do
        local y = x:to(dtype)
        for _, found in ipairs { y:prod(1)[2], y:select(2, 2):prod(), y:select(2, 2):contiguous():prod() } do
          assert.is_true(math.abs(found:item() - product) < (dtype == "float64" and 1e-12 or 1e-4) * product)
        end
      end
    end
    local long = core.ones(300000, { dtype = "int64" })
    long:select(1, 1):fill_(3)
    long:select(1, -1):fill_(-7)
    assert.are.equal(-21, long:prod():item())
    assert.is_true(core.tensor({ 2, 0 / 0, 0 }):prod():ne(core.tensor({ 2, 0 / 0, 0 }):prod()):item())
    local leaf = core.tensor({ 2, 3, 4 }):requires_grad_() -- where gradients are recorded, the same value
    assert.are.equal(24, leaf:prod():item())
    assert.are.same({ 2, 6, 24 }, leaf:cumprod(1):totable())
    for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
      local x = core.rand(3, 57, 5):to(dtype) + 0.5
      local recorded = x:detach():requires_grad_()
      for _, dims in ipairs { false, 1, 2, 3 } do
        local y = dims and recorded:prod(dims) or recorded:prod()
        assert.is_true(tensor.equal(dims and x:prod(dims) or x:prod(), y:detach()), dtype)
        y:sum():backward()
        if dims then assert.is_true(tensor.equal(x:cumprod(dims), recorded:cumprod(dims):detach()), dtype) end
      end
    end
  end)

  it("give running products the gradients of their terms, also where elements are 0", function()
    -- of line x and weights g: the sum of g[k] times the product of x[1] .. x[k] without x[i]
    local function slopes(x, g)
      local out = {}
      for i = 1, #x do
        local sum, product = 0, 1
        for k = 1, #x do
          if k ~= i then product = product * x[k] end
          if k >= i then sum = sum + g[k] * product end
        end
        out[i] = sum
      end
      return out
    end
    local bounds = { float32 = 3e-7, float64 = 1e-14, float16 = 2e-3, bfloat16 = 2e-2 }
    for dtype, bound in pairs(bounds) do
      for _, lines in ipairs { 1, 7, 8, 9, 19 } do
        local generator = core.Generator(lines)
        local x = (core.rand(lines, 11, 2, { generator = generator }) + 0.5):to(dtype)
        x[{ {}, 4, 1 }] = 0
        x[{ 1, { 6, 7 }, 2 }] = 0
        local g = core.randn(lines, 2, 11, { generator = generator }):to(dtype):transpose(2, 3)
        local along, lined = x:clone():requires_grad_(), x:transpose(2, 3):contiguous():requires_grad_()
        along:cumprod(2):backward(g)
        lined:cumprod(3):backward(g:transpose(2, 3))
        assert.is_true(tensor.equal(along.grad:transpose(2, 3), lined.grad), dtype)
        local rows, weights = x:transpose(2, 3):double():totable(), g:transpose(2, 3):double():totable()
        local got = lined.grad:double():totable()
        for r = 1, lines do
          for c = 1, 2 do
            for k, expected in ipairs(slopes(rows[r][c], weights[r][c])) do
              assert.near(expected, got[r][c][k], bound * (1 + math.abs(expected)) * 4, dtype)
            end
          end
        end
      end
    end
    local wide = core.randn(5, 300, { dtype = "float64" }) -- more columns than are computed together
    local one, all = wide:narrow(2, 299, 1):clone():requires_grad_(), wide:clone():requires_grad_()
    one:cumprod(1):sum():backward()
    all:cumprod(1):sum():backward()
    assert.is_true(tensor.equal(one.grad, all.grad:narrow(2, 299, 1)))
    for _, shape in ipairs { {}, { 1 }, { 0 }, { 3, 0 }, { 2, 1 } } do
      local leaf = core.ones(shape):requires_grad_()
      leaf:cumprod(-1):sum():backward()
      assert.is_true(tensor.equal(core.ones(shape), leaf.grad))
    end
  end)

  it("differentiate the gradients of running products again", function()
    local autograd = tensor.autograd
    for _, n in ipairs { 1, 2, 3, 4, 7, 9 } do
      local x = core.randn(2, n, 3, { dtype = "float64", generator = core.Generator(n) })
      if n > 2 then x[{ 1, 2, 1 }] = 0 end
      x:requires_grad_()
      local function product(v) return v:cumprod(2) end
      assert.is_true(autograd.gradcheck(product, { x }))
      assert.is_true(autograd.gradgradcheck(product, { x }))
    end
    local x = core.tensor({ 2, 3, 5 }, { dtype = "float64" }):requires_grad_()
    local slope = autograd.grad(x:cumprod(1):sum(), x, { create_graph = true })
    assert.are.same({ 1 + 3 + 15, 2 + 10, 6 }, slope:totable())
    local second = autograd.grad(slope:sum(), x, { create_graph = true })
    assert.are.same({ 1 + 5 + 3, 1 + 5 + 2, 3 + 2 }, second:totable())
    assert.are.same({ 2, 2, 2 }, autograd.grad(second:sum(), x):totable())
  end)

  it("find extremes along lines as one by one, with NaN and equal elements", function()
    local dtypes = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool" }
    for _, dtype in ipairs(dtypes) do
      for _, lines in ipairs { 1, 7, 8, 9, 19 } do
        local x = core.randint(0, 5, { lines, 17, 3 }, { generator = core.Generator(lines) }):to(dtype)
        if dtype:find("float") then x:masked_fill_(core.rand(x.shape):lt(0.05), 0 / 0) end
        for name, sign in pairs { cummax = 1, cummin = -1 } do
          local values, places = x[name](x, 2)
          local turned = x:transpose(2, 3):contiguous()
          local line_values, line_places = turned[name](turned, 3)
          assert.are.equal(dtype, values.dtype)
          local rows, v, p = x:to("float64"):totable(), values:to("float64"):totable(), places:totable()
          local lv, lp = line_values:to("float64"):totable(), line_places:totable()
          for r = 1, lines do
            for c = 1, 3 do
              local best, at = rows[r][1][c], 0
              for k = 1, 17 do
                local e = rows[r][k][c]
                if e ~= e or (e - best) * sign >= 0 then best, at = e, k - 1 end
                assert.are.equal(at, p[r][k][c], name .. " " .. dtype)
                assert.are.equal(at, lp[r][c][k], name .. " " .. dtype)
                assert.is_true(v[r][k][c] == best or best ~= best and v[r][k][c] ~= v[r][k][c])
                assert.is_true(lv[r][c][k] == best or best ~= best and lv[r][c][k] ~= lv[r][c][k])
              end
            end
          end
        end
      end
    end
  end)

  it("choose the first extreme of rows and of columns of any length, NaN before all numbers", function()
    local lows = { uint8 = 0, bool = 0 }
    for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8",
      "bool" } do
      for _, n in ipairs { 1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 130, 255, 1023, 1024, 1025, 2100 } do
        local generator = core.Generator(n)
        local x = core.randint(lows[dtype] or -100, 200, { 3, n }, { generator = generator }):to(dtype)
        if dtype:find "float" then
          x[{ 2, 1 }] = -1 / 0
          x[{ 3, 1 + math.floor(n * 0.6) % n }] = 0 / 0
          x[{ 3, n }] = 0 / 0
        end
        local rows = x:double():totable()
        for name, sign in pairs { max = 1, min = -1 } do
          local values, places = x[name](x, 2)
          local columns, down = x:t():contiguous()[name](x:t():contiguous(), 1)
          assert.is_true(tensor.equal(places, down)
            and tensor.equal(values:nan_to_num(7), columns:nan_to_num(7)))
          for r = 1, 3 do
            local best, at = rows[r][1], 0
            for k = 2, n do
              local e = rows[r][k]
              if best == best and (e ~= e or (e - best) * sign > 0) then best, at = e, k - 1 end
            end
            local what = ("%s of row %d of %d, %s"):format(name, r, n, dtype)
            assert.are.equal(at, places[r]:item(), what)
            assert.are.equal(at, x[r]["arg" .. name](x[r]):item(), what)
            local got = x[r][name](x[r]):double():item()
            assert.is_true(got == best or got ~= got and best ~= best, what)
          end
        end
      end
    end
    local wide = core.randn(70, 1100):bfloat16() -- tiles of columns, more rows than are widened at once
    local values, places = wide:max(1)
    local expected, there = wide:float():max(1)
    assert.is_true(tensor.equal(values:float(), expected) and tensor.equal(places, there))
  end)

  it("find extremes whose gradients go back where they came from", function()
    local x = core.tensor({ { 1, 3, 2, 3 }, { 2, 1, 0, 4 } }):requires_grad_()
    ;((x:cummax(2)) * core.tensor({ 1, 10, 100, 1000 })):sum():backward()
    assert.are.same({ { 1, 110, 0, 1000 }, { 111, 0, 0, 1000 } }, x.grad:totable())
    local wide = core.randn(2, 3, 600):transpose(1, 3) -- tiles of columns, of a strided view
    local values, places = wide:cummin(2)
    assert.is_true(values:eq(wide:gather(2, places)):all():item())
    assert.is_true(values:narrow(2, 3, 1):eq(wide:amin({ 2 }, true)):all():item())
  end)

  it("copy short runs of any size and stride", function()
    for _, dtype in ipairs { "uint8", "float16", "float32", "float64", "complex128" } do
      for _, size in ipairs { 2, 3, 5, 15, 16, 17 } do
        local x = core.randint(0, 100, { 3, 60 }):to(dtype)
        local windows = x:unfold(2, size, 1)
        local copied = windows:contiguous()
        for k = 1, size do
          assert.is_true(copied:select(3, k):eq(x:narrow(2, k, 61 - size)):all():item(), dtype)
        end
        local part = core.randint(0, 100, { 2, 600, 20 }):to(dtype):narrow(3, 3, size)
        local whole = part:clone()
        for _, at in ipairs { 1, 512, 513, 600 } do
          assert.is_true(whole:select(2, at):eq(part:select(2, at)):all():item(), dtype)
        end
      end
    end
  end)
end)
