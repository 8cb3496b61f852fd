--- Sizes at which the device's kernels take their other ways: long rows, odd lengths, sorts of many
--- elements, sums in chunks; and what a kernel finds wrong in its data.  Against the CPU.
local device = require "spec.support.device"
local tensor = require "accelerate.tensor"
local F = require "accelerate.nn.functional"

if not device.name then
  describe("kernels on the device", function() it("need one", function() pending(device.reason) end) end)
  return
end

local D = device.name

local function close(what, got, expected, tolerance)
  assert.are.equal(D, got.device, what)
  assert.are.same(expected.shape, got.shape, what)
  got, expected = got:detach():to("cpu"):double(), expected:detach():double()
  local scale = math.max(1, expected:abs():max():item())
  local worst = (got - expected):abs():max():item()
  assert.is_true(worst <= tolerance * scale, ("%s: differs by %g of %g"):format(what, worst, scale))
end

local function same(what, got, expected)
  assert.are.equal(D, got.device, what)
  assert.are.equal(expected.dtype, got.dtype, what)
  assert.is_true(tensor.equal(got:to("cpu"), expected), what)
end

-- fn of the leaves there and here, and the gradients of them all.
local function against(what, fn, leaves, tolerance)
  local function run(on)
    local at = {}
    for k, leaf in ipairs(leaves) do at[k] = leaf:detach():to(on):clone():requires_grad_() end
    local y = fn(unpack(at))
    local w = (tensor.arange(y:numel()) % 5 + 1):to(y.dtype):to(on):view(y.shape)
    ;(y * w):sum():backward()
    local grads = {}
    for k, leaf in ipairs(at) do grads[k] = leaf.grad end
    return y, grads
  end
  local y, grads = run("cpu")
  local there, there_grads = run(D)
  close(what, there, y, tolerance)
  for k, g in ipairs(grads) do
    close(("%s, gradient %d"):format(what, k), there_grads[k], g, tolerance * 4)
  end
end

describe(("kernels on %s (%s)"):format(D, device.kind), function()
  setup(function() tensor.manual_seed(3) end)

  it("softmax of rows of every length, and of columns", function()
    for _, shape in ipairs { { 3, 1100 }, { 2, 1500 }, { 3, 1501 }, { 5, 1023 }, { 4, 97 }, { 2, 4500 },
      { 2, 7, 9 }, { 6, 64 }, { 5, 520 }, { 5, 1000 }, { 3, 1024 }, { 2, 4096 }, { 1, 8192 }, { 1, 16384 },
      { 1, 16400 } } do
      for _, dtype in ipairs { "float32", "bfloat16" } do
        local x = (tensor.randn(unpack(shape)) * 3):to(dtype)
        against("softmax " .. #shape, function(v) return F.softmax(v, 2) end, { x }, dtype == "float32"
          and 1e-5 or 2e-2)
        against("log_softmax", function(v) return F.log_softmax(v, 2) end, { x }, dtype == "float32" and 1e-5
          or 2e-2)
      end
    end
    for _, n in ipairs { 3, 64, 1024, 2048 } do
      local hidden = tensor.full({ 3, n }, -math.huge)
      hidden[1][2] = 1
      hidden[3]:fill_(-3e38) -- one value, however low: all alike
      local y = F.softmax(hidden:to(D), 2):to("cpu")
      assert.are.equal(1, y[1][2]:item())
      assert.are.equal(1, y[1]:sum():item())
      assert.is_true(y[2]:isnan():all():item())
      assert.is_true(tensor.allclose(y[3], tensor.full({ n }, 1 / n)))
    end
  end)

  it("cross_entropy of many classes, with weights, smoothing and what is ignored", function()
    for _, classes in ipairs { 3, 97, 1500, 1501, 2048 } do
      local x, weight = tensor.randn(6, classes) * 2, tensor.rand(classes) + 0.1
      local target = tensor.randint(0, classes, { 6 })
      target[2] = -100
      for _, options in ipairs { {}, { label_smoothing = 0.1 }, { weight = weight, label_smoothing = 0.2 },
        { weight = weight, reduction = "none" }, { reduction = "sum" } } do
        against("cross_entropy", function(v)
          local o = {}
          for k, value in pairs(options) do
            o[k] = type(value) == "table" and value or type(value) == "userdata" and value:to(v.device)
              or value
          end
          if o.weight then o.weight = weight:to(v.device) end
          return F.cross_entropy(v, target:to(v.device), o)
        end, { x }, 1e-5)
      end
      against("half", function(v) return F.cross_entropy(v, target:to(v.device)) end, { x:bfloat16() }, 1e-2)
      local soft = F.softmax(tensor.randn(6, classes), 2)
      against("soft", function(v) return F.cross_entropy(v, soft:to(v.device), { label_smoothing = 0.1 }) end,
        { x }, 1e-5)
    end
  end)

  it("elements in runs and one by one, whatever strides and starts allow", function()
    for _, dtype in ipairs { "float32", "float64", "bfloat16", "uint8" } do
      local store = dtype == "uint8" and tensor.randint(0, 50, { 4000 }, { dtype = dtype })
        or tensor.randn(4000):to(dtype)
      local there = store:to(D)
      for _, view in ipairs {
        function(t)
          return t:narrow(1, 1, 960):view(10, 96)
        end, function(t) return t:narrow(1, 2, 960):view(10, 96) end,
        function(t)
          return t:narrow(1, 1, 970):view(10, 97)
        end, function(t) return t:narrow(1, 1, 960):view(4, 3, 8, 10):transpose(2, 3) end,
        function(t)
          return t:narrow(1, 1, 1024):view(4, 4, 64):transpose(1, 2)
        end, function(t) return t:narrow(1, 1, 1152):view(12, 96):narrow(2, 9, 80) end,
      } do
        local x, y = view(store), view(there)
        local width = x.shape[x:dim()]
        same("clone", y:contiguous(), x:contiguous())
        same("cast", y:to("float32"), x:to("float32"))
        same("cast to int64", y:to("int64"), x:to("int64"))
        same("fill", y:clone():fill_(3), x:clone():fill_(3))
        same("by row", y + there:narrow(1, 1, width), x + store:narrow(1, 1, width))
        same("by row, odd start", y + there:narrow(1, 4, width), x + store:narrow(1, 4, width))
        same("by column", y + y:narrow(y:dim(), 1, 1), x + x:narrow(x:dim(), 1, 1))
        same("by number", y + 2, x + 2)
        same("compared", y:gt(0), x:gt(0))
        same("chosen", tensor.where(y:gt(0), y, y * 2), tensor.where(x:gt(0), x, x * 2))
        same("chosen by row", tensor.where(there:narrow(1, 1, width):gt(0), y, 7),
          tensor.where(store:narrow(1, 1, width):gt(0), x, 7))
        same("filled by column", y:masked_fill(y:narrow(y:dim(), 1, 1):gt(0), 3),
          x:masked_fill(x:narrow(x:dim(), 1, 1):gt(0), 3))
        local a, b = x:contiguous(), y:contiguous()
        a:narrow(1, 2, 2):fill_(1)
        b:narrow(1, 2, 2):fill_(1)
        same("filled in part", b, a)
      end
    end
  end)

  it("dropout with the CPU's bits, in runs, with a rest, from an odd start", function()
    for _, dtype in ipairs { "float32", "float64", "bfloat16", "float16" } do
      local store = tensor.randn(1100):to(dtype)
      local there = store:to(D)
      for _, n in ipairs { 1, 3, 7, 8, 1024, 1027 } do
        for _, first in ipairs { 1, 2 } do
          local function dropped(t)
            return t:narrow(1, first, n):dropout(0.3, true, tensor.Generator(5))
          end
          local a, b = dropped(there):to("cpu"), dropped(store)
          assert.is_true(tensor.equal(a, b), ("%s, %d from %d"):format(dtype, n, first))
          if n > 1000 then
            local share = b:eq(0):float():mean():item()
            assert.is_true(share > 0.2 and share < 0.4, share)
          end
        end
      end
    end
  end)

  it("reductions of rows and columns, in packs, one by one, whole and in chunks", function()
    for _, dtype in ipairs { "float32", "float64", "bfloat16", "int64", "uint8" } do
      for _, shape in ipairs { { 400, 64 }, { 1200, 6 }, { 3, 40000 }, { 2, 70001 }, { 5, 33 },
        { 300, 6, 8 } } do
        local x = tensor.randint(0, 9, shape):to(dtype)
        local y = x:to(D)
        for dim = 1, #shape do
          same("sum", y:sum(dim), x:sum(dim))
          same("count", y:count_nonzero(dim), x:count_nonzero(dim))
          local values, indices = x:max(dim)
          local values_there, indices_there = y:max(dim)
          same("max", values_there, values)
          same("where", indices_there, indices)
          if dtype:find "float" then
            close("var", y:var(dim), x:var(dim), dtype == "bfloat16" and 1e-2 or 1e-6)
          end
        end
        same("sum of all", y:sum(), x:sum())
        same("argmin of all", y:argmin(), x:argmin())
        same("odd start", y:flatten():narrow(1, 2, y:numel() - 1):sum(),
          x:flatten():narrow(1, 2, x:numel() - 1):sum())
        same("columns from an odd start", y:narrow(2, 2, 5):sum(1), x:narrow(2, 2, 5):sum(1))
        if #shape == 3 then
          same("two dims", y:sum({ 1, 3 }), x:sum({ 1, 3 }))
          -- a view whose last dim is not the one of neighbours
          same("turned", y:transpose(2, 3):sum(3), x:transpose(2, 3):sum(3))
          same("turned, two dims", y:transpose(2, 3):sum({ 1, 3 }), x:transpose(2, 3):sum({ 1, 3 }))
          same("turned, largest", y:transpose(1, 3):max(3), x:transpose(1, 3):max(3))
        else
          same("turned", y:t():sum(1), x:t():sum(1))
          same("turned, first of the largest", y:t():argmax(1), x:t():argmax(1))
        end
      end
    end
  end)

  -- what the device gives for narrow types, beside float64's value of the same elements
  local function beside_float64(name, x, bound, ...)
    local got, exact = x:to(D)[name](x:to(D), ...):to("cpu"):double(), x:double()[name](x:double(), ...)
    local step = ({ float32 = 2 ^ -24, bfloat16 = 2 ^ -8, float16 = 2 ^ -11 })[x.dtype]
    local off = (got - exact):abs() - exact:abs() * step  -- rounding the result
    assert.is_true((off - bound(exact)):max():item() <= 0, ("%s of %s: %s for %s"):format(name, x.dtype,
      got:flatten():totable()[1], exact:flatten():totable()[1]))
  end

  it("var and std of a mean that is large beside the deviation, to 6 units of 2^-24", function()
    local function six(exact) return exact:abs() * (6 * 2 ^ -24) end
    for _, shape in ipairs { { 3, 40000 }, { 2000, 6 }, { 40, 33 } } do
      for _, mean in ipairs { 0, 1000, -3e6 } do
        local x = tensor.randn(shape) + mean
        for dim = 1, 2 do
          beside_float64("var", x, six, dim)
          beside_float64("std", x, six, dim)
          beside_float64("var", x:t():contiguous():t(), six, dim)
        end
      end
      beside_float64("var", (tensor.randn(shape) * 3 + 1):bfloat16(), six, 2)
      beside_float64("var", (tensor.randn(shape) * 3 + 1):half():narrow(2, 2, 5), six, 1)
    end
    local outlier = tensor.randn(20000)
    outlier:narrow(1, 77, 1):fill_(1e12)
    beside_float64("var", outlier, six, 1)
  end)

  it("logsumexp to 10 units of 2^-24, of rising, falling, huge and infinite rows", function()
    local function ten(exact) return exact * 0 + 10 * 2 ^ -24 end
    for _, shape in ipairs { { 3, 40000 }, { 2000, 6 }, { 40, 33 } } do
      for _, scale in ipairs { 1e-6, 1, 30 } do
        local x = (tensor.randn(shape) * scale):sort(2)
        for dim = 1, 2 do
          beside_float64("logsumexp", x, ten, dim)
          beside_float64("logsumexp", x:flip(2), ten, dim)
          beside_float64("logsumexp", x:t():contiguous():t(), ten, dim)
        end
        beside_float64("logsumexp", x:bfloat16(), ten, 2)
        beside_float64("logsumexp", x:half():narrow(2, 2, 5), ten, 1)
      end
    end
    local inf = math.huge
    for _, row in ipairs { { -inf, -inf }, { inf, 1 }, { -inf, inf }, { inf, -inf }, { 3, -inf },
      { 0 / 0, 1 },
      { 1, 0 / 0 }, { inf, 0 / 0 }, { -inf, 0 / 0 }, { 3e38, 3e38 }, { -3e38, -3e38 }, { 1e30, -1e30 },
      {} } do
      local x = tensor(row, { dtype = "float32" })
      local got, expected = x:to(D):logsumexp(1):item(), x:logsumexp(1):item()
      assert.is_true(got == expected or (got ~= got and expected ~= expected),
        ("of %s: %s, the CPU has %s"):format(table.concat(row, ", "), got, expected))
    end
  end)

  it("losses of two tensors, added up in chunks", function()
    local x, t = tensor.randn(40000), tensor.rand(40000)
    for _, name in ipairs { "mse_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits" } do
      against(name, function(v) return F[name](v, t:to(v.device)) end, { x }, 1e-5)
    end
  end)

  it("norms of rows of every length", function()
    -- the last two have more rows than the gradient has chunks
    for _, shape in ipairs { { 40, 12 }, { 37, 768 }, { 5, 1001 }, { 9, 1024 }, { 3, 5000 }, { 2, 20000 },
      { 301, 64 }, { 203, 1040 } } do
      local n = shape[2]
      local x, w, b = tensor.randn(unpack(shape)) + 2, tensor.randn(n), tensor.randn(n)
      against("layer_norm " .. n,
        function(v, u, c) return F.layer_norm(v, { n }, { weight = u, bias = c }) end, { x, w, b }, 2e-5)
      against("rms_norm " .. n, function(v, u) return F.rms_norm(v, { n }, { weight = u }) end, { x, w },
        2e-5)
    end
    for _, shape in ipairs { { 11, 768 }, { 11, 1536 }, { 301, 64 }, { 203, 1040 } } do
      local rows, n = unpack(shape)
      against("bfloat16", function(v, u, c) return F.layer_norm(v, { n }, { weight = u, bias = c }) end,
        { tensor.randn(rows, n):bfloat16(), tensor.randn(n):bfloat16(), tensor.randn(n):bfloat16() }, 3e-2)
    end
    against("group_norm", function(v, u, c) return F.group_norm(v, 2, { weight = u, bias = c }) end,
      { tensor.randn(3, 4, 17, 31), tensor.randn(4), tensor.randn(4) }, 2e-5)
  end)

  it("sorts, stably: networks and the radix sort", function()
    for _, n in ipairs { 1, 2, 33, 1024, 1025, 9000 } do
      for _, dtype in ipairs { "float32", "float64", "int64", "int32", "uint8", "float16", "bfloat16" } do
        local x = (tensor.randn(2, n) * 20):round():abs():to(dtype)
        if dtype == "float32" and n > 2 then x[{ 1, 2 }] = 0 / 0 end
        local there = x:to(D)
        local values, indices = x:sort(2, { descending = n % 2 == 1 })
        local values_there, indices_there = there:sort(2, { descending = n % 2 == 1 })
        same("positions", indices_there, indices)
        if dtype ~= "float32" then same("values", values_there, values) end
        if n >= 33 then same("topk", select(2, there:topk(7, 2)), (select(2, x:topk(7, 2)))) end
      end
    end
    local x = tensor.randn(3, 1500, 2)
    same("a dim in the middle", select(2, x:to(D):sort(2)), (select(2, x:sort(2))))
    same("median", (x:to(D):median(2)), (x:median(2)))
  end)

  it("running sums of long lines and of many short ones", function()
    for _, shape in ipairs { { 3, 5001 }, { 2, 4500, 2 }, { 3, 40, 5000 }, { 1, 300000 } } do
      local x = tensor.randn(unpack(shape))
      against("cumsum", function(v) return v:cumsum(2) end, { x }, 1e-5)
    end
    -- what is in front of an infinity or a NaN is finite, in its chunk too
    for _, odd in ipairs { 1 / 0, -1 / 0, 0 / 0 } do
      for _, n in ipairs { 1900, 5001, 300000 } do
        local x = tensor.randn(n)
        x[n - 900] = odd
        local y = x:to(D):cumsum(1):to("cpu")
        assert.is_true(y:narrow(1, 1, n - 901):isfinite():all():item())
        assert.is_false(y:narrow(1, n - 900, 901):isfinite():any():item())
        against("cumsum", function(v) return v:cumsum(1):narrow(1, 1, n - 901) end, { x }, 1e-5)
      end
    end
    local x = tensor.randint(-9, 9, { 2, 3000 })
    same("integers", x:to(D):cumsum(2), x:cumsum(2))
    -- products of runs leave float64's range; the running product does not, or stays outside
    local line = {}
    for i = 1, 3000 do line[i] = i == 1 and 1e300 or (i - 2) % 32 < 16 and 2 ^ -100 or 2 ^ 100 end
    x = tensor.tensor(line, { dtype = "float64" })
    local ratio = x:to(D):cumprod(1):to("cpu") / x:cumprod(1)
    assert.is_true((ratio - 1):abs():max():item() < 1e-12)
    for name, change in pairs { infinite = { [700] = 2 ^ 1000, [702] = 2 ^ 900 }, zero = { [900] = 0 },
      ["not a number"] = { [650] = 1 / 0, [651] = 0 }, infinity = { [40] = -1 / 0 },
      ["far below"] = { [3] = 1e-300, [4] = 1e-300 } } do
      local y = x:clone()
      for at, value in pairs(change) do y[at] = value end
      local there, here = y:to(D):cumprod(1), y:cumprod(1)
      same("cumprod, " .. name, there:isnan(), here:isnan())
      same("cumprod, " .. name, there:isinf(), here:isinf())
      close("cumprod, " .. name, there:clamp(-1e3, 1e3):nan_to_num(), here:clamp(-1e3, 1e3):nan_to_num(),
        1e-9)
    end
    -- the gradients of running products: one line, lines of a block each, a thread for each line
    for _, case in ipairs { { { 3000 }, 1 }, { { 3, 1500 }, 2 }, { { 3, 1100, 5 }, 2 },
      { { 2, 9, 5000 }, 2 } } do
      local shape, dim = unpack(case)
      local base = tensor.rand(shape, { dtype = "float64" }):add_(0.5)
      base:view(-1):narrow(1, 601, 2):zero_()
      local g = tensor.randn(shape, { dtype = "float64" })
      for dtype, bound in pairs { float32 = 1e-6, float64 = 1e-12, float16 = 4e-3, bfloat16 = 3e-2 } do
        local here = base:to(dtype):double():clone():requires_grad_()
        here:cumprod(dim):backward(g:to(dtype):double())
        local there = base:to(D):to(dtype):requires_grad_()
        local strided = g:to(dtype):to(D)
        there:cumprod(dim):backward(tensor.stack({ strided, strided }, -1):select(-1, 2))
        close("gradient of cumprod, " .. dtype, there.grad, here.grad, bound)
      end
    end
    local mask = tensor.rand(7000):gt(0.7)
    same("nonzero", mask:to(D):nonzero(), mask:nonzero())
    same("masked_select", tensor.arange(7000, { device = D }):masked_select(mask:to(D)),
      tensor.arange(7000):masked_select(mask))
  end)

  it("adds at positions named many times, in their order: the same bits as the CPU", function()
    local index = tensor.randint(0, 50, { 3000 })
    local g = tensor.randn(3000, 8)
    local function grad(on)
      local w = tensor.zeros(50, 8, { device = on }):requires_grad_()
      ;(F.embedding(index:to(on), w) * g:to(on)):sum():backward()
      return w.grad
    end
    same("embedding", grad(D), grad("cpu"))
    same("index_add", tensor.ones(50, 8, { device = D }):index_add(1, index:to(D), g:to(D)),
      tensor.ones(50, 8):index_add(1, index, g))
    for _, dtype in ipairs { "float64", "float16", "int64", "int32", "uint8", "bool" } do
      for _, columns in ipairs { 32, 17 } do -- in runs, and one by one
        local to, from = tensor.randint(0, 9, { 50, columns }):to(dtype), tensor.randint(0, 9,
          { 3000, columns })
        from = from:to(dtype)
        same("index_add, " .. dtype, to:to(D):index_add(1, index:to(D), from:to(D)),
          to:index_add(1, index, from))
      end
    end
    same("index_copy", tensor.ones(50, 8, { device = D }):index_copy(1, index:to(D), g:to(D)),
      tensor.ones(50, 8):index_copy(1, index, g))
    local places, source = tensor.randint(0, 100, { 4000 }), tensor.randn(4000)
    same("scatter_add, sorted", tensor.zeros(100, { device = D }):scatter_add(1, places:to(D), source:to(D)),
      tensor.zeros(100):scatter_add(1, places, source))
    same("scatter, sorted", tensor.zeros(100, { device = D }):scatter(1, places:to(D), source:to(D)),
      tensor.zeros(100):scatter(1, places, source))
    places, source = tensor.randint(0, 9, { 20, 9000 }), tensor.randn(20, 9000)
    same("scatter_add, lines", tensor.zeros(9, 9000, { device = D }):scatter_add(1, places:to(D),
      source:to(D)), tensor.zeros(9, 9000):scatter_add(1, places, source))
  end)

  it("adds at positions named thousands of times, in parts: always the same bits", function()
    tensor.manual_seed(3)
    for _, case in ipairs { { 2, 3000 }, { 1, 256 }, { 1, 257 }, { 3, 512 }, { 1, 1025 }, { 7, 4099 },
      { 40, 5000 } } do
      local rows, picked = unpack(case)
      local what = ("%d of %d"):format(picked, rows)
      local index = tensor.randint(0, rows, { picked })
      if rows == 7 then index = (index:float() / 6 * index):long() end -- some often, some never
      local g, base = tensor.randn(picked, 5), tensor.randn(rows, 5)
      local expected = base:double():index_add(1, index, g:double())
      local function there() return base:to(D):index_add(1, index:to(D), g:to(D)) end
      close(what, there(), expected, 2e-6)
      assert.is_true(tensor.equal(there():to("cpu"), there():to("cpu")), what)
      local turned = tensor.ones(3, rows, 4)
      local source = tensor.randn(3, picked, 4)
      close("dim 2, " .. what, turned:to(D):index_add(2, index:to(D), source:to(D)),
        turned:double():index_add(2, index, source:double()), 2e-6)
      local whole = tensor.randint(-5, 5, { picked, 3 })
      same("integers, " .. what, tensor.zeros(rows, 3, { dtype = "int64", device = D }):index_add(1,
        index:to(D),
        whole:to(D)), tensor.zeros(rows, 3, { dtype = "int64" }):index_add(1, index, whole))
      if not device.fake then -- the CPU rounds at each addition
        local half = tensor.randn(picked, 5):to("bfloat16")
        close("half, " .. what, tensor.zeros(rows, 5):to("bfloat16"):to(D):index_add(1, index:to(D),
          half:to(D)),
          tensor.zeros(rows, 5):double():index_add(1, index, half:double()), 1e-2)
      end
    end
  end)

  it("steps by every optimizer, clips and scales, as the CPU does", function()
    local optim = require "accelerate.optim"
    local cases = {
      { "SGD", { lr = 0.1, momentum = 0.9, nesterov = true, weight_decay = 0.01 } }, { "SGD", { lr = 0.1 } },
      { "Adam", { amsgrad = true, weight_decay = 0.1 } }, { "AdamW", {} },
      { "Adamax", {} }, { "NAdam", {} }, { "RAdam", {} }, { "Lion", { weight_decay = 0.1 } },
      { "Adagrad", { lr_decay = 0.1 } },
      { "RMSprop", { centered = true, momentum = 0.5 } }, { "RMSprop", {} }, { "Adafactor", {} },
      { "Adadelta", { weight_decay = 0.1 } }, { "Rprop", { lr = 0.1 } }, { "ASGD", { lr = 0.1, t0 = 1 } },
      { "SGDScheduleFree", { warmup_steps = 2 } }, { "AdamWScheduleFree", { weight_decay = 0.1 } },
    }
    local function train(on, name, options, dtype)
      tensor.manual_seed(11)
      local params = {}
      for k, shape in ipairs { { 7 }, { 40, 300 }, { 3, 5, 2 }, { 9001 }, { 20, 2 } } do
        params[k] = tensor.randn(unpack(shape)):to(dtype):to(on):requires_grad_()
      end
      local copied = {}
      for k, v in pairs(options) do copied[k] = v end
      local optimizer = optim[name](params, copied)
      if optimizer.train then optimizer:train() end
      local norm
      for step = 1, 3 do
        for k, p in ipairs(params) do
          p.grad = (tensor.randn(unpack(p.shape)) * (k + step)):to(dtype):to(on)
        end
        norm = require("accelerate.core").clip_grad_norm_(params, 5):item()
        if step == 2 then require("accelerate.core").clip_grad_value_(params, 0.01) end
        optimizer:step()
      end
      return params, norm
    end
    for _, case in ipairs(cases) do
      for _, dtype in ipairs { "float32", "float64" } do
        local here, norm = train("cpu", case[1], case[2], dtype)
        local there, norm_there = train(D, case[1], case[2], dtype)
        assert.is_true(math.abs(norm - norm_there) <= 1e-5 * norm)
        for k, p in ipairs(here) do
          close(case[1] .. " " .. dtype, there[k], p, dtype == "float32" and 1e-5 or 1e-9)
        end
      end
    end
  end)

  it("attention: causal, masks, grouped heads, heads of every size, dropout with the CPU's bits", function()
    local cases = {
      { "plain", { 2, 2, 70, 40 }, 2, 70 }, { "causal", { 1, 2, 67, 64 }, 2, 67, { is_causal = true } },
      { "more keys", { 1, 2, 9, 16 }, 2, 80 },
      { "grouped", { 2, 4, 33, 32 }, 2, 33, { enable_gqa = true, is_causal = true } },
      { "large heads", { 1, 1, 18, 200 }, 1, 18 }, { "96", { 1, 2, 20, 96 }, 2, 35 },
      { "dropout", { 2, 2, 40, 16 }, 2, 37, { dropout_p = 0.3 } },
      { "mask", { 2, 2, 20, 16 }, 2, 45, { mask = "bool" } },
      { "added", { 2, 2, 20, 16 }, 2, 45, { mask = "float" } },
    }
    for _, case in ipairs(cases) do
      local what, shape, kv_heads, keys, given = case[1], case[2], case[3], case[4], case[5] or {}
      local b, h, t, d = unpack(shape)
      local q, k, v = tensor.randn(b, h, t, d), tensor.randn(b, kv_heads, keys, d), tensor.randn(b, kv_heads,
        keys, d)
      local mask = given.mask == "bool" and tensor.rand(b, h, t, keys):gt(0.4) or given.mask
        and tensor.randn(b, h, t, keys)
      if given.mask == "bool" then mask[{ 1, 1, 3 }] = false end -- a query that sees nothing
      for _, dtype in ipairs(what == "causal" and { "float32", "float64", "bfloat16" } or { "float32" }) do
        against(("attention, %s, %s"):format(what, dtype), function(x, y, z)
          local options = { is_causal = given.is_causal, enable_gqa = given.enable_gqa,
            dropout_p = given.dropout_p, generator = given.dropout_p and tensor.Generator(4) or nil }
          return F.scaled_dot_product_attention(x, y, z, mask and mask:to(x.device) or nil, options)
        end, { q:to(dtype), k:to(dtype), v:to(dtype) }, dtype == "bfloat16" and 3e-2 or 2e-5)
      end
    end
  end)

  it("convolutions with several tiles, groups and strides, pooling and batch norm", function()
    for _, case in ipairs { { 3, 20, 70, 3, 1, 1, 1, 1 }, { 2, 8, 8, 3, 2, 1, 2, 1 },
      { 2, 12, 18, 1, 1, 0, 1, 3 }, { 9, 3, 5, 5, 2, 2, 1, 1 } } do
      local n, c, o, k, stride, padding, dilation, groups = unpack(case)
      local x, w, b = tensor.randn(n, c, 17, 15), tensor.randn(o, c / groups, k, k) * 0.2, tensor.randn(o)
      against("conv2d",
        function(v, u, e)
          return F.conv2d(v, u, e, { stride = stride, padding = padding, dilation = dilation,
            groups = groups })
        end, { x, w, b }, 2e-5)
    end
    local x = tensor.randn(3, 5, 17, 14)
    against("max_pool2d", function(v) return F.max_pool2d(v, 3, { stride = 2, padding = 1 }) end, { x }, 0)
    -- runs of channels, or not, by type; windows that overlap, are spread, reach over the edge, or
    -- cover all
    for _, c in ipairs { 8, 12 } do
      local y = tensor.randn(2, c, 9, 8)
      for _, dtype in ipairs { "float32", "bfloat16" } do
        local z = y:to(dtype)
        against("max_pool2d", function(v) return F.max_pool2d(v, 3, { stride = 2, padding = 1 }) end,
          { z }, 0)
        against("max_pool2d",
          function(v)
            return F.max_pool2d(v, { 2, 3 }, { stride = { 2, 1 }, dilation = { 1, 2 }, ceil_mode = true })
          end, { z }, 0)
        against("adaptive_max_pool2d", function(v) return F.adaptive_max_pool2d(v, { 4, 3 }) end, { z }, 0)
      end
    end
    against("avg_pool2d",
      function(v) return F.avg_pool2d(v, 3, { stride = 2, padding = 1, ceil_mode = true }) end, { x }, 1e-5)
    against("adaptive_avg_pool2d", function(v) return F.adaptive_avg_pool2d(v, { 5, 3 }) end, { x }, 1e-5)
    -- one tile of channels, several, many chunks of rows
    for _, shape in ipairs { { 3, 5, 17, 14 }, { 4, 64, 9, 30 }, { 2, 300, 13, 9 }, { 40, 3, 20, 21 } } do
      local c = shape[2]
      local mean, var = tensor.zeros(c), tensor.ones(c)
      against("batch_norm", function(v, w, b)
        return F.batch_norm(v, mean:to(v.device):clone(), var:to(v.device):clone(), w, b, { training = true })
      -- many rows times a rounded mean of 30 tell little
      end, { tensor.randn(shape) * 2 + (c == 5 and 30 or 1), tensor.randn(c), tensor.randn(c) }, 2e-5)
    end
  end)

  it("pools with windows in the padding alone have nothing of them, neither way", function()
    local options = { stride = 3, padding = 1, dilation = 2, return_indices = true }
    for _, case in ipairs { { "max_pool1d", { 3, 8, 1 } }, { "max_pool2d", { 3, 8, 1, 9 } },
      { "max_pool2d", { 2, 3, 9, 1 } }, { "max_pool2d", { 2, 8, 4, 5 } },
      { "max_pool3d", { 2, 4, 4, 1, 9 } } } do
      local pool, shape = unpack(case)
      for _, dtype in ipairs { "float32", "bfloat16" } do
        local x = tensor.randn(shape):to(dtype)
        against(pool, function(v)
          local y, at = F[pool](v, 2, options)
          return y:masked_fill(at:lt(0), 7) -- of -inf no difference can be taken
        end, { x }, 0)
        local _, want = F[pool](x, 2, options)
        local _, at = F[pool](x:to(D), 2, options)
        assert.are.same(want:totable(), at:to("cpu"):totable())
      end
    end
    -- the gradient's gradient takes what was chosen, and adds it to where it was
    against("max_pool2d, twice", function(v)
      local y, at = F.max_pool2d(v, 2, options)
      local g = tensor.grad(y:masked_fill(at:lt(0), 0):square():sum(), v, { create_graph = true })
      return (type(g) == "table" and g[1] or g) * 1
    end, { tensor.randn(2, 3, 1, 9) }, 0)
  end)

  it("says what was wrong in a kernel's data when the host next waits, and goes on", function()
    local x = tensor.randn(4, 5, { device = D })
    local function told(pattern, fn)
      local ok, message = pcall(function() return fn():to("cpu") end)
      assert.is_false(ok)
      assert.is_truthy(tostring(message):find(pattern, 1, true), tostring(message))
    end
    if device.fake then return end
    told("index_select: index 4 at flat position 1 (from 0) is outside 0..3",
      function() return x:index_select(1, tensor({ 0, 4 }, { dtype = "int64", device = D })) end)
    told("cross_entropy: target 5 at position 2 is outside 0..4",
      function() return F.cross_entropy(x, tensor({ 0, 1, 5, 2 }, { dtype = "int64", device = D })) end)
    told("scatter: index -1 at",
      function() return x:scatter(1, tensor({ { -1 } }, { dtype = "int64", device = D }), 1) end)
    told("an input lies outside 0..1", function() return F.binary_cross_entropy(x + 3, x) end)
    assert.are.equal(4, tensor.ones(4, { device = D }):sum():item())
  end)
end)
