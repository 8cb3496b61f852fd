--- What the CPU kernels promise beyond the values of ops_spec: the same bits for any number of
--- threads, the same random bits on every processor level, accuracy of our own functions, the
--- corners of integers and NaN.
local core = require "accelerate.core"
local optim = require "accelerate.optim"
local tensor = require "accelerate.tensor"
local host = require "spec.support.host"
local numbers = require "spec.support.numbers"
local raises = require("spec.support.messages").raises

local nan, inf = 0 / 0, math.huge

local function at_level(level, code) return host.at_level(level, { "-e", code }) end

describe("threads", function()
  local before = core.get_num_threads()
  after_each(function() core.set_num_threads(before) end)

  local function same_for_any_number(f)
    core.set_num_threads(1)
    local one = f():totable()
    for _, n in ipairs { 2, 3, 4 } do
      core.set_num_threads(n)
      assert.are.same(one, f():totable())
    end
  end
  local function random(...) return tensor.randn({ ... }, { generator = tensor.Generator(3) }) end

  it("do not change sums", function()
    local long, wide = random(300001), random(700, 301)
    same_for_any_number(function() return long:sum() end)
    same_for_any_number(function() return wide:sum(1) end)
    same_for_any_number(function() return wide:mean(2) end)
    same_for_any_number(function() return wide:t():sum(1) end)
  end)

  it("do not change functions, softmax and random numbers", function()
    local x = random(300, 401)
    same_for_any_number(function() return x:tanh() end)
    same_for_any_number(function() return x:sin() end)
    same_for_any_number(function() return x:softmax(1) end)
    for _, shape in ipairs { { 700, 1301 }, { 21, 2000 }, { 9, 70 } } do -- columns in tiles of each width
      for _, dtype in ipairs { "float32", "float64" } do
        local y, g = random(unpack(shape)):to(dtype), random(unpack(shape)):to(dtype)
        for _, name in ipairs { "softmax", "log_softmax" } do
          same_for_any_number(function()
            local leaf = y:clone():requires_grad_()
            local result = leaf[name](leaf, 1)
            result:backward(g)
            return tensor.cat { result:detach(), leaf.grad }
          end)
        end
      end
    end
    same_for_any_number(function() return random(50001) end)
    same_for_any_number(function() return tensor.randperm(50001, { generator = tensor.Generator(4) }) end)
  end)

  it("do not change products, not even a small result of many rows, where oneDNN would divide the sum",
    function()
    local x, g = random(5000, 20), random(5000, 12)
    same_for_any_number(function() return core.mm(g:t(), x) end)
    same_for_any_number(function() return core.mm(random(65, 300), random(300, 70)) end)
    same_for_any_number(function() return core.mm(random(65, 300):double(), random(300, 70):double()) end)
  end)

  it("do not change products that are cut, read in place or packed, at odd places", function()
    for _, size in ipairs { { 513, 255, 33 }, { 1000, 1001, 65 }, { 1537, 769, 40 }, { 770, 2049, 300 } } do
      local m, n, k = unpack(size)
      local x, w = random(m, k), random(n, k)
      same_for_any_number(function() return core.linear(x, w, random(n)) end)
      same_for_any_number(function() return core.mm(random(k, m):t(), random(k, n)) end)
    end
    same_for_any_number(function() return core.bmm(random(7, 300, 40), random(7, 40, 301)) end)
    same_for_any_number(function()
      return core.bmm(random(7, 100, 40), random(1, 40, 901):expand(7, 40, 901))
    end)
  end)

  it("do not change an optimizer's steps, nor the norm of gradients", function()
    for name, opts in pairs {
      SGD = { momentum = 0.9 }, Adam = { amsgrad = true, weight_decay = 0.1 }, AdamW = {}, Adamax = {},
      NAdam = {}, RAdam = {}, Adagrad = {},
      RMSprop = { centered = true, momentum = 0.5 }, Adafactor = {}, Lion = {},
      Adadelta = {}, Rprop = {}, ASGD = { t0 = 0 }, SGDScheduleFree = {}, AdamWScheduleFree = {},
    } do
      same_for_any_number(function()
        local params = { random(50001), random(3, 200, 120), random(700, 3, 3) }
        local o = optim[name](params, opts)
        if o.train then o:train() end
        for _ = 1, 2 do
          for _, p in ipairs(params) do p.grad = p:detach() * 3 + 1 end
          o:step()
        end
        return core.cat { params[1], params[2]:flatten(), params[3]:flatten() }
      end)
    end
    local p = random(300001)
    p.grad = random(300001)
    same_for_any_number(function() return core.total_norm({ p }, 2):view(1) end)
  end)
end)

describe("processor levels", function()
  it("draw the same random bits", function()
    local code = [[
      local t = require "accelerate.tensor"
      local function show(x) for _, v in ipairs(x:totable()) do io.write(("%.17g "):format(v)) end end
      for _, d in ipairs { "float32", "float64", "float16", "bfloat16" } do
        show(t.rand(1003, { dtype = d, generator = t.Generator(1) }))
        show(t.randn(1003, { dtype = d, generator = t.Generator(2) }))
      end
      show(t.randperm(1003, { generator = t.Generator(3) }))
      show(t.randint(-5, 1000, { 1003 }, { generator = t.Generator(4) }))]]
    local v2 = at_level("v2", code)
    for _, level in ipairs { "v3", "v4" } do
      local other = at_level(level, code)
      if other then assert.are.equal(v2, other) end
    end
  end)

  it("compute values that agree", function()
    local code = [[
      local t = require "accelerate.tensor"
      local x = t.randn(130, 70, { generator = t.Generator(1) })
      for _, f in ipairs { "exp", "tanh", "sigmoid", "erf", "sin", "expm1", "abs", "relu" } do
        print(x[f](x):double():sum():item())
      end
      print(x:mm(x:t()):double():sum():item())
      print(x:log_softmax(2):double():sum():item())
      print(x:argmax():item())
      print(x:max():item())]]
    local function values(text)
      local list = {}
      for word in text:gmatch("%S+") do list[#list + 1] = tonumber(word) end
      return list
    end
    local v2 = values(at_level("v2", code))
    for _, level in ipairs { "v3", "v4" } do
      local other = at_level(level, code)
      for i, v in ipairs(other and values(other) or {}) do
        assert.is_true(math.abs(v - v2[i]) <= 1e-6 * math.abs(v2[i]),
          ("%s: number %d is %.17g, on v2 %.17g"):format(level, i, v, v2[i]))
      end
    end
  end)
end)

describe("float32 functions", function()
  local ranges = {
    exp = { -87, 88, 1.5 }, expm1 = { -20, 88, 2 }, log = { 1e-30, 1e30, 1.5 }, log1p = { -0.99, 1e3, 2 },
    tanh = { -12, 12, 2.5 },
    sigmoid = { -80, 80, 3 }, erf = { -5, 5, 1.5 }, sin = { -3, 3, 2 }, cos = { -1.5, 1.5, 2 },
    sqrt = { 0, 1e9, 0.51 },
    exp2 = { -125, 127, 1.5 }, log2 = { 1e-3, 1e3, 2 }, log10 = { 1e-3, 1e3, 2 }, tan = { -1.5, 1.5, 3 },
    asin = { -1, 1, 2.5 }, acos = { -1, 1, 2 },
    atan = { -50, 50, 2 }, sinh = { -88, 88, 3 }, cosh = { -88, 88, 3 }, asinh = { -1e3, 1e3, 2.5 },
    atanh = { -0.999, 0.999, 3 }, erfc = { -3, 9, 6 },
    softplus = { -20, 20, 2.5 }, logsigmoid = { -80, 80, 2.5 }, elu = { -20, 20, 2 },
  }
  for name, range in pairs(ranges) do
    it(name .. " is within " .. range[3] .. " units in the last place", function()
      local x = tensor.rand(20000, { generator = tensor.Generator(1) }) * (range[2] - range[1]) + range[1]
      local small = tensor.randn(20000, { generator = tensor.Generator(2) }):abs() * 0.01
      for _, sample in ipairs { x, small } do
        local got, want = sample[name](sample):totable(), sample:double()[name](sample:double()):totable()
        for i = 1, #got do
          local off = math.abs(got[i] - want[i]) / numbers.unit(want[i], 24, -125)
          if off > range[3] then error(("%s: %.2f units off at element %d"):format(name, off, i)) end
        end
      end
    end)
  end

  it("keep infinities, NaN and the sign of zero", function()
    local x = tensor.tensor { inf, -inf, nan, 0, -0.0 }
    local function is(name, expected)
      local got = x[name](x):totable()
      for i, e in ipairs(expected) do
        assert.is_true(got[i] == e and 1 / got[i] == 1 / e or (got[i] ~= got[i] and e ~= e),
          ("%s of element %d: %g"):format(name, i, got[i]))
      end
    end
    is("exp", { inf, 0, nan, 1, 1 })
    is("expm1", { inf, -1, nan, 0, -0.0 })
    is("log", { inf, nan, nan, -inf, -inf })
    is("log1p", { inf, nan, nan, 0, -0.0 })
    is("tanh", { 1, -1, nan, 0, -0.0 })
    is("sigmoid", { 1, 0, nan, 0.5, 0.5 })
    is("erf", { 1, -1, nan, 0, -0.0 })
    is("sin", { nan, nan, nan, 0, -0.0 })
  end)

  it("of large angles are libm's, whatever stands beside them", function()
    local x = tensor.tensor { 1e6, 0.5, -3e8, 1e30 }
    assert.is_true(math.abs(x:sin()[1]:item() - math.sin(1e6)) < 1e-7)
    assert.are.equal(x:sin()[2]:item(), tensor.tensor { 0.5 }:sin():item())
  end)
end)

describe("cross-entropy of long rows", function()
  -- the largest element first, later, infinite, or so large that its product with a constant is off
  -- by more than an exponent
  local function check(first, rest)
    local x = tensor.randn(1, 300, { generator = tensor.Generator(5) }) + rest
    x[{ {}, { 1, 32 } }]:copy_(x[{ {}, { 1, 32 } }] - rest + first)
    local target = tensor.tensor({ 200 }, { dtype = "int64" })
    local got, want = x:cross_entropy(target):item(), x:double():cross_entropy(target):item()
    local sum = x:softmax(2):sum():item()
    assert.is_true(math.abs(sum - 1) < 1e-5 or sum ~= sum and want ~= want or math.abs(first) == inf,
      ("softmax adds up to %g"):format(sum))
    assert.is_true(got == want or got ~= got and want ~= want
      or math.abs(got - want) <= 2e-6 * math.max(1, math.abs(want), math.abs(first), math.abs(rest)),
      ("%g, expected %g"):format(got, want))
  end
  it("is right wherever the largest element stands", function()
    for _, v in ipairs { { 0, 0 }, { 0, 20 }, { 0, 200 }, { 200, 0 }, { -1000, 1000 }, { -inf, 0 },
      { 1e30, 0 }, { inf, 0 }, { nan, 0 } } do
      check(v[1], v[2])
    end
  end)

  it("takes blocks of -infinity for nothing, a row of them or a NaN for NaN", function()
    local x = tensor.randn(6, 3000) - 300
    x[{ 1, { 1, 1024 } }]:fill_(-inf)
    x[{ 2, { 1025, 3000 } }]:fill_(-inf)
    x[{ 3, { 1, 2999 } }]:fill_(-inf)
    x[4]:fill_(-inf)
    x[{ 5, { 1, 2048 } }]:fill_(-inf)
    x[{ 5, { 7, 7 } }]:fill_(nan)
    x[{ 6, { 2500, 2500 } }]:fill_(1e9)
    local label = tensor.tensor({ 2000, 3, 2999, 5, 2500, 2499 }, { dtype = "int64" })
    local got = tensor.cross_entropy(x, label, { reduction = "none" })
    local want = tensor.cross_entropy(x:double(), label, { reduction = "none" })
    local soft, exact = x:softmax(2), x:double():softmax(2)
    for r = 1, 6 do
      local a, b = got[r]:item(), want[r]:item()
      assert.is_true((a ~= a and b ~= b) or math.abs(a - b) <= 1e-7 * math.max(300, math.abs(b)),
        ("row %d: %g, expected %g"):format(r, a, b))
      assert.are.equal(r == 4 or r == 5, a ~= a)
      local off = (soft[r]:double() - exact[r]):abs():max():item()
      assert.is_true(r == 4 or r == 5 or off <= 1e-6, ("row %d: softmax is off by %g"):format(r, off))
    end
    assert.are.equal(0, soft[{ 1, { 1, 1024 } }]:max():item())
    -- the same numbers as columns, also where they fill no whole vector
    local logs, columns = x:double():log_softmax(2), x:t():contiguous()
    for _, pair in ipairs { { columns:softmax(1), exact, 1e-6 }, { columns:log_softmax(1), logs, 1e-6 },
      { columns:repeat_interleave(9, 2):softmax(1):reshape(-1, 6, 9):select(3, 9), exact, 1e-6 } } do
      for _, r in ipairs { 1, 2, 3, 6 } do
        local a, b = pair[1]:select(2, r):double(), pair[2][r]
        local finite = b:isfinite()
        assert.is_true(a:isfinite():equal(finite), r)
        local off = ((a - b) / (b:abs() + 1)):masked_fill(finite:logical_not(), 0):abs():max():item()
        assert.is_true(off <= pair[3], ("row %d as a column is off by %g"):format(r, off))
      end
      assert.is_true(pair[1]:select(2, 4):isnan():all():item() and pair[1]:select(2, 5):isnan():all():item())
    end
  end)
end)

describe("integers", function()
  local function ints(values, dtype) return tensor.tensor(values, { dtype = dtype or "int64" }) end

  it("refuse a division by zero and a negative power before anything is written", function()
    local x = ints { 7, 8, 9 }
    raises("division of an integer by zero", function() x:remainder_(ints { 2, 0, 2 }) end)
    assert.are.same({ 7, 8, 9 }, x:totable())
    raises("negative", function() return x ^ -1 end)
  end)

  it("take the divisor's sign, and survive the least integer by -1", function()
    assert.are.same({ 1, -1, 2, -2 }, (ints { 7, -7, -7, 7 } % ints { 3, -3, 3, -3 }):totable())
    local least = ints({ -2 ^ 31 }, "int32")
    assert.are.same({ 0 }, (least % ints({ -1 }, "int32")):totable())
    assert.are.same({ 1 }, ((ints { -2 ^ 62 } * 2) % ints { -1 }):eq(0):to("int64"):totable())
  end)

  it("wrap around", function()
    assert.are.same({ 4 }, (ints({ 250 }, "uint8") + ints({ 10 }, "uint8")):totable())
    assert.are.same({ -2 ^ 31 }, (ints({ 2 ^ 31 - 1 }, "int32") + 1):totable())
  end)

  it("come from floats as on x86: towards zero, the least value where there is none", function()
    local x = tensor.tensor { 2.9, -2.9, nan, inf, 3e9 }
    assert.are.same({ 2, -2, -2 ^ 31, -2 ^ 31, -2 ^ 31 }, x:to("int32"):totable())
    assert.are.same({ 2, -2 }, x[{ { 1, 2 } }]:to("int64"):totable())
    assert.are.same({ true, true, true }, x[{ { 3, 5 } }]:to("bool"):totable())
  end)
end)

describe("extremes", function()
  it("give the first of equals and let NaN win, in long rows and in columns", function()
    local x = tensor.zeros(300, 130)
    x[17][5], x[200][5] = 3, 3
    local values, positions = x:max({ dim = 1 })
    assert.are.equal(3, values[5]:item())
    assert.are.equal(16, positions[5]:item())
    assert.are.equal(0, positions[6]:item())
    assert.are.equal(16 * 130 + 4, x:argmax():item())
    x[40][5] = nan
    values, positions = x:max({ dim = 1 })
    assert.is_true(values[5]:item() ~= values[5]:item())
    assert.are.equal(39, positions[5]:item())
    assert.are.equal(39 * 130 + 4, x:argmin():item())
    local long = tensor.zeros(5000)
    long[4001] = nan
    long[4500] = inf
    assert.are.equal(4000, long:argmax():item())
  end)
end)

describe("logical ops", function()
  it("ask whether an element is 0, in every type and in pairs of types", function()
    local values = { 0, -0.0, 1, -3, nan, inf, 1e-44, 0.5 }
    local x = tensor.tensor(values, { dtype = "float64" })
    for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8",
      "bool" } do
      local a = x:nan_to_num(5, 7, 7):to(dtype)
      if dtype:find "float" then a = x:to(dtype) end
      local b = a:flip { 1 }
      local truth, other = a:ne(0):totable(), b:ne(0):totable()
      local neither, both = a:logical_not():totable(), a:logical_and(b):totable()
      local one, mixed = a:logical_xor(b):totable(), a:logical_or(b:ne(0)):totable()
      for i, t in ipairs(truth) do
        assert.are.equal(not t, neither[i])
        assert.are.equal(t and other[i], both[i])
        assert.are.equal(t ~= other[i], one[i])
        assert.are.equal(t or other[i], mixed[i])
      end
    end
  end)
end)

describe("sums and means of few rows", function()
  it("are those of float64, rounded once, in every type", function()
    for _, dtype in ipairs { "float32", "float16", "bfloat16" } do
      for _, rows in ipairs { 1, 2, 5 } do
        local x = tensor.randn(rows, 1300):to(dtype)
        local sum = x:double():sum(1)
        local function same(got, want)
          assert.are.equal(dtype, got.dtype)
          local near = tensor.allclose(got:double(), want,
            { rtol = dtype == "float32" and 1e-6 or 5e-3, atol = 1e-6 })
          assert.is_true(near)
        end
        same(x:sum(1), sum)
        same(x:mean(1), sum / rows)
        local wide = tensor.zeros(1300, rows + 1):to(dtype):t()
        wide:narrow(1, 1, rows):copy_(x)
        assert.are.same(x:sum(1):totable(), wide:narrow(1, 1, rows):sum(1):totable())
        assert.are.same(x:float():mean(1):to(dtype):totable(), x:mean(1):totable())
      end
    end
  end)
end)

describe("sums of bfloat16", function()
  it("have the bits of the sums of the same numbers as float32, in rows of any length and layout", function()
    for _, n in ipairs { 1, 31, 33, 511, 513, 1300 } do
      local x = tensor.randn(5, n):to("bfloat16")
      local want = x:float():sum(2):totable()
      assert.are.same(want, x:sum { dim = 2, dtype = "float32" }:totable())
      assert.are.same(x:float():sum(2):to("bfloat16"):totable(), x:sum(2):totable())
      assert.are.same(x:float():sum(2):to("bfloat16"):totable(), x:t():contiguous():t():sum(2):totable())
    end
  end)
end)

describe("bfloat16", function()
  -- Contiguous operands have loops of their own, others go through float32 a block at a time.
  it("gives the same bits contiguous, strided, and beside a number", function()
    local special = { 0, -0.0, 1 / 0, -1 / 0, 0 / 0, 3.3895e38, -1e-40, 1.00390625 }
    local x = tensor.randn(37, 51):to("bfloat16")
    for i, v in ipairs(special) do x[i]:fill_(v) end
    local y = tensor.randn(37, 51):to("bfloat16")
    y[{ {}, 1 }]:fill_(0 / 0)
    local xt, yt = x:t():contiguous():t(), y:t():contiguous():t()
    local function same(what, a, b)
      assert.are.equal("bfloat16", a.dtype)
      local equal = a:eq(b):logical_or(a:ne(a):logical_and(b:ne(b)))
      assert.is_true(equal:all():item(), what)
    end
    for _, name in ipairs { "add", "sub", "mul", "div", "maximum", "minimum" } do
      local float = x:float()[name](x:float(), y:float()):to("bfloat16")
      same(name, x[name](x, y), float)
      same(name .. ", strided", x[name](xt, y), float)
      same(name .. ", broadcast", x[name](x, y[3]), x:float()[name](x:float(), y[3]:float()):to("bfloat16"))
      if name ~= "maximum" and name ~= "minimum" then
        same(name .. " of a number", x[name](x, 1.7), x:float()[name](x:float(), 1.7):to("bfloat16"))
      end
    end
    for _, name in ipairs { "neg", "sign", "square", "relu", "gelu" } do
      local float = x:float()[name](x:float()):to("bfloat16")
      same(name, x[name](x), float)
      same(name .. ", strided", x[name](xt), float)
    end
    local half, float = x:gelu("tanh"), x:float():gelu("tanh")
    same("gelu by tanh", half, float:to("bfloat16"))
    same("gelu by tanh, strided", xt:gelu("tanh"), half)
    same("gelu by tanh, short", x[5][{ { 3, 6 } }]:gelu("tanh"), half[5][{ { 3, 6 } }])
    -- of `special` in bfloat16, as PyTorch has it
    for i, want in ipairs { 0, 0, inf, nan, nan, 3.3895e38, 0, 0.841192 } do
      local got = float[{ i, 1 }]:item()
      assert.is_true((got ~= got and want ~= want) or got == want
        or math.abs(got - want) <= 1e-3 * math.abs(want) + 1e-30, ("gelu of %g: %g"):format(special[i], got))
    end
    same("add_", x:clone():add_(yt), x:clone():add_(y))
  end)
end)

describe("results of 16 MB and more, which go past the caches,", function()
  it("have the bits of smaller ones", function()
    local rows, n = 4096, 1024
    local x, g, w = tensor.randn(rows, n), tensor.randn(rows, n), tensor.rand(n)
    local label = tensor.randint(0, n, { rows })
    local function results(from, count)
      local out = {}
      local function op(fn, seed)
        local leaf = x:narrow(1, from, count):detach():requires_grad_()
        local y = fn(leaf)
        y:backward(seed or g:narrow(1, from, count))
        out[#out + 1], out[#out + 2] = y:detach(), leaf.grad
      end
      op(function(v) return v:softmax(2) end)
      op(function(v) return v:log_softmax(2) end)
      op(function(v) return tensor.layer_norm(v, { n }, w, w) end)
      op(function(v) return tensor.gelu(v, "tanh") end)
      op(function(v) return tensor.cross_entropy(v, label:narrow(1, from, count), { reduction = "none" }) end,
        g:narrow(1, from, count):select(2, 1):contiguous())
      return out
    end
    local whole = results(1, rows)
    for half = 0, 1 do
      for k, part in ipairs(results(1 + half * rows / 2, rows / 2)) do
        local same = whole[k]:narrow(1, 1 + half * rows / 2, rows / 2)
        assert.is_true(same:eq(part):all():item(), ("result %d of half %d"):format(k, half))
      end
    end
  end)
end)
