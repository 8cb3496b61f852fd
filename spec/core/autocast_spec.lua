-- Automatic casting: what each policy does to inputs and results, what is kept, and where gradients
-- end up.
local core = require "accelerate.core"
local layouts = require "spec.support.layouts"
local tensor = require "accelerate.tensor"

local function leaf(...)
  local t = tensor.randn(...)
  t.requires_grad = true
  return t
end

--- How many products ran whose name begins so, in fn.
local function products(prefix, fn, ...)
  core.kernel_stats { reset = true }
  fn(...)
  local n = 0
  for name, calls in pairs(core.kernel_stats()) do
    if name:sub(1, #prefix) == prefix then n = n + calls end
  end
  return n
end

--- Whether products of bfloat16 stay in it here; elsewhere they go through float32, with memory for
--- that.
local function native()
  local one = tensor.ones(4, 4, { dtype = "bfloat16" })
  core.kernel_stats { reset = true }
  one:mm(one)
  return core.kernel_stats()["mm bfloat16 -> bfloat16, through float32"] == nil
end

local function rounded(t) return t:detach():to("bfloat16"):float() end

describe("autocast", function()
  before_each(function() tensor.manual_seed(7) end)

  it("takes PyTorch's type of device first", function()
    local function state(a, b) return tensor.is_autocast_enabled(), tensor.get_autocast_dtype(), a, b end
    local gpu = core.device_count "cuda" > 0
    assert.same({ true, "bfloat16", 1, 2 }, { tensor.autocast("cpu", state, 1, 2) })
    assert.same({ true, "float16", 1 }, { tensor.autocast("cpu", { dtype = "float16" }, state, 1) })
    assert.same({ true, "float16" }, { tensor.autocast("cpu", tensor.float16, state) })
    assert.same({ false, "bfloat16" }, { tensor.autocast("cpu", nil, false, state) })
    assert.same({ true, "bfloat16" }, { tensor.autocast({ device_type = "cpu" }, state) })
    assert.same({ gpu, "float16" }, { tensor.autocast("cuda", state) })
    assert.same({ gpu, "bfloat16" }, { tensor.autocast("cuda", { dtype = "bfloat16" }, state) })
    assert.same({ gpu, "float16" }, { tensor.autocast({ device_type = "cuda" }, state) })
    assert.same({ false, "float16" }, { tensor.autocast({ device_type = "cuda", enabled = false }, state) })
    for name, holder in pairs { ["tensor: there is no function amp"] = tensor,
      ["accelerate.cuda has no 'amp'"] = tensor.cuda } do
      local fine, err = pcall(function() return holder.amp end)
      assert.is_false(fine)
      assert.is_truthy(err:find(name, 1, true), err)
      assert.is_truthy(err:find('instead: accelerate.Accelerator { mixed_precision = "fp16" }', 1, true), err)
    end
  end)

  it("casts the inputs of lower rows, and leaves float64, integers and in-place ops alone", function()
    local x, w = tensor.randn(3, 4), tensor.randn(4, 5)
    tensor.autocast(function()
      assert.are.equal("bfloat16", x:mm(w).dtype)
      assert.are.equal("bfloat16", x:matmul(w).dtype)
      assert.are.equal("bfloat16", tensor.matmul(tensor.randn(2, 3, 4), w:to("bfloat16")).dtype)
      assert.are.equal("bfloat16", tensor.linear(x, w:t():contiguous(), tensor.randn(5)).dtype)
      assert.are.equal("float64", x:double():mm(w:double()).dtype)
      assert.are.equal("int64", tensor.arange(4):reshape(2, 2):mm(tensor.arange(4):reshape(2, 2)).dtype)
      assert.error_matches(function() x:double():mm(w) end, "element types differ: float64")
      assert.are.equal("float32", (x * 2):add_(1).dtype)
    end)
    assert.are.equal("float32", x:mm(w).dtype)
  end)

  it("has float16 as another lower type", function()
    tensor.autocast({ dtype = "float16" }, function()
      assert.are.equal("float16", tensor.randn(2, 2):mm(tensor.randn(2, 2)).dtype)
      assert.are.equal("float16", tensor.get_autocast_dtype())
    end)
    assert.are.equal("bfloat16", tensor.get_autocast_dtype())
  end)

  it("runs float rows in float32, without rounding in between", function()
    local half = tensor.randn(8, 9):to("bfloat16")
    local wide = half:float()
    local target = tensor.randint(0, 9, 8)
    for name, f in pairs {
      exp = function(x)
        return x:exp()
      end, log = function(x) return (x * x):log() end, sum = function(x) return x:sum() end,
      mean = function(x) return x:mean(1) end, softmax = function(x) return x:softmax(-1) end,
      cross_entropy = function(x) return tensor.cross_entropy(x, target) end,
    } do
      local got = tensor.autocast(function() return f(half) end)
      assert.are.equal("float32", got.dtype, name)
      if name ~= "log" then
        assert.is_true(tensor.allclose(got, f(wide), { rtol = 1e-6, atol = 1e-7 }), name)
      end
    end
    assert.are.equal("bfloat16", half:exp().dtype)
  end)

  it("gives what joins tensors the widest type, and other rows what promotion gives", function()
    local half, wide = tensor.randn(2, 3):to("bfloat16"), tensor.randn(2, 3)
    tensor.autocast(function()
      assert.are.equal("float32", tensor.cat({ half, wide }).dtype)
      assert.are.equal("float32", tensor.stack({ half, wide }).dtype)
      assert.are.equal("float32", (half + wide).dtype)
      assert.are.equal("bfloat16", (half + half).dtype)
      assert.are.equal("bfloat16", half:relu().dtype)
      assert.are.equal("bfloat16", half:reshape(6).dtype)
    end)
  end)

  it("mixes half and float32 operands of pointwise rows exactly", function()
    local half, wide = tensor.randn(37, 19):to("bfloat16"), tensor.randn(37, 19)
    assert.is_true(tensor.equal(half + wide, half:float() + wide))
    assert.is_true(tensor.equal(wide:t() * half:t(), wide:t() * half:float():t()))
    assert.is_true(tensor.equal(wide:lt(half), wide:lt(half:float())))
    assert.is_true(tensor.equal(tensor.where(wide:gt(0), half, wide),
      tensor.where(wide:gt(0), half:float(), wide)))
    assert.is_true(tensor.equal(wide:clone():add_(half), wide + half:float()))
  end)

  it("nests, is overridden inside, and ends when the function raises", function()
    local x = tensor.randn(2, 2)
    assert.is_false(tensor.is_autocast_enabled())
    local a, b, c = tensor.autocast({ enabled = true }, function(p)
      assert.is_true(tensor.is_autocast_enabled())
      local inner = tensor.autocast({ enabled = false }, function() return x:mm(x).dtype end)
      return inner, x:mm(x).dtype, p
    end, 42)
    assert.are.same({ "float32", "bfloat16", 42 }, { a, b, c })
    assert.error_matches(function() tensor.autocast(function() error("boom") end) end, "boom")
    assert.is_false(tensor.is_autocast_enabled())
  end)

  it("refuses options and types that it does not know", function()
    assert.error_matches(function() tensor.autocast({ enable = true }, print) end, "'enable'.*enabled")
    assert.error_matches(function() tensor.autocast({ dtype = "float32" }, print) end, "float32")
    assert.error_matches(function() tensor.autocast("mps", print) end,
      "autocast: option 'device_type' must be one of cpu, cuda, got 'mps'")
    assert.error_matches(function() tensor.autocast("cuda", { device_type = "cpu" }, print) end,
      "autocast: device_type is given twice")
    assert.error_matches(function() tensor.autocast("cpu", { enable = true }, print) end, "'enable'.*enabled")
    assert.error_matches(function() tensor.autocast("cpu") end, "expected a function as the last argument")
    assert.error_matches(function() tensor.autocast("cpu", "float32", print) end,
      "option 'dtype' must be one of bfloat16, float16, got 'float32'")
    assert.error_matches(function() tensor.autocast({ dtype = "bfloat16" }) end, "expected a function")
  end)

  it("brings gradients back in the type of the leaf", function()
    local x, w, b = leaf(6, 4), leaf(5, 4), leaf(5)
    local y = tensor.autocast(function() return tensor.linear(x, w, b) end)
    y:backward(tensor.ones(6, 5, { dtype = "bfloat16" }))
    for _, t in ipairs { x, w, b } do assert.are.equal("float32", t.grad.dtype) end
    local want = rounded(x):sum(1):unsqueeze(1):expand(5, 4)
    assert.is_true(tensor.allclose(w.grad, want, { rtol = 2 ^ -8 }))
    assert.is_true(tensor.equal(b.grad, tensor.full({ 5 }, 6)))
  end)

  it("computes gradients outside its rules, also when backward is called inside", function()
    local x, w = leaf(6, 4), leaf(4, 3)
    tensor.autocast(function()
      local y = (x:double():mm(w:double())):float()
      local loss = (y:mm(y:t())):float():sum()
      loss:backward()
      assert.is_true(tensor.is_autocast_enabled())
    end)
    assert.are.equal("float32", x.grad.dtype)
  end)

  it("casts a leaf once in a region, and again when it was written", function()
    local x, w = tensor.randn(3, 4), leaf(5, 4)
    local function name_of(y) return y.dtype end
    tensor.autocast(function()
      local one, two = tensor.linear(x, w), tensor.linear(x, w)
      local before = core.memory_stats().allocations
      local three = tensor.linear(x, w)  -- x is cast, w is not, y is made
      local made = core.memory_stats().allocations
      if native() then assert.are.equal(before + 2, made) end
      assert.is_true(tensor.equal(one:float(), two:float()) and tensor.equal(one:float(), three:float()))
      core.no_grad(function() w:mul_(2) end)
      assert.is_true(tensor.equal(tensor.linear(x, w):float(), one:float() * 2))
      assert.are.equal("bfloat16", name_of(one))
    end)
    tensor.autocast({ cache_enabled = false }, function()
      tensor.linear(x, w)
      local before = core.memory_stats().allocations
      tensor.linear(x, w)
      local made = core.memory_stats().allocations
      if native() then assert.are.equal(before + 3, made) end
    end)
  end)

  it("gives a leaf its gradient where it was first cast inside no_grad, " ..
    "and after a backward pass inside the region", function()
    local x, w = tensor.randn(3, 4), leaf(5, 4)
    tensor.autocast(function()
      core.no_grad(function() tensor.linear(x, w) end)
      tensor.linear(x, w):float():sum():backward()
      local first = w.grad:clone()
      tensor.linear(x, w):float():sum():backward()
      assert.is_true(tensor.equal(w.grad, first * 2))
    end)
  end)

  it("lets several losses of one region go backward one after the other", function()
    local x, w = tensor.randn(3, 4), leaf(5, 4)
    local one, two = tensor.autocast(function() return tensor.linear(x, w):float():sum(),
      tensor.linear(x * 2, w):float():sum() end)
    one:backward()
    local first = w.grad:clone()
    two:backward()
    assert.is_true(tensor.allclose(w.grad, first * 3, { rtol = 2e-2, atol = 1e-2 }))
  end)

  it("frees what it kept", function()
    local w = leaf(64, 64)
    collectgarbage() collectgarbage()
    local before, structs = core.memory_stats().live_bytes, core.memory_stats().structs
    tensor.autocast(function()
      tensor.scope(function() tensor.linear(tensor.randn(2, 64), w) end)
      collectgarbage() collectgarbage()
      assert.is_true(core.memory_stats().live_bytes >= before + 2 * 64 * 64)
    end)
    collectgarbage() collectgarbage()
    assert.are.equal(before, core.memory_stats().live_bytes)
    assert.are.equal(structs, core.memory_stats().structs)
  end)

  it("differentiates twice through casts", function()
    local x = tensor.tensor({ { 0.5, 2 } }, { requires_grad = true })
    local w = tensor.tensor({ { 2 }, { 4 } }, { requires_grad = true })
    local y = tensor.autocast(function() return x:mm(w) end)
    local g = tensor.grad(y:float():square():sum(), x, { create_graph = true })
    assert.are.equal("float32", g.dtype)
    local gg = tensor.grad(g:sum(), w)
    assert.are.equal("float32", gg.dtype)
    assert.are.same({ { 2 * 9 + 2 * 6 * 0.5 }, { 2 * 9 + 2 * 6 * 2 } }, gg:totable())
  end)
end)

describe("a gradient slot behind a cast", function()
  local function flat_leaf(n, k)
    local w = leaf(n, k)
    return w, layouts.of({ w }, { grads = true }):grads():narrow(1, 1, n * k)
  end

  it("gets the product of bfloat16 matrices in float32, added up over passes", function()
    for _, size in ipairs { { 3, 4, 5 }, { 64, 96, 80 }, { 2500, 33, 17 } } do
      local m, k, n = unpack(size)
      local x, g = tensor.randn(m, k), tensor.randn(m, n):to("bfloat16")
      local w, flat = flat_leaf(n, k)
      local wide = products("mm bfloat16 -> float32", function()
        for _ = 1, 2 do tensor.autocast(function() return tensor.linear(x, w) end):backward(g) end
      end)
      assert.is_true(wide >= 2)
      local want = g:double():t():mm(rounded(x):double()) * 2
      assert.is_true(tensor.allclose(w.grad, want, { rtol = 1e-5, atol = 1e-4 }))
      assert.is_true(tensor.equal(w.grad:reshape(n * k), flat))
    end
  end)

  it("is not by-passed where a hook is to see the gradient", function()
    local x, w = tensor.randn(3, 4), (flat_leaf(5, 4))
    local seen
    w:register_hook(function(g) seen = g.dtype end)
    tensor.autocast(function() return tensor.linear(x, w) end):float():sum():backward()
    assert.are.equal("float32", seen)
  end)

  it("runs post-accumulate hooks once a pass, after both ways in", function()
    local x, w = tensor.randn(3, 4), (flat_leaf(4, 4))
    local runs = 0
    w:register_post_accumulate_grad_hook(function() runs = runs + 1 end)
    local function pass()
      tensor.autocast(function()
        local y = tensor.linear(tensor.linear(x, w), w) + (x * w:sum()).data
        return y:float():sum() + w:sum()
      end):backward()
    end
    pass()
    assert.are.equal(1, runs)
    local first = w.grad:clone()
    pass()
    assert.are.equal(2, runs)
    assert.is_true(tensor.allclose(w.grad, first * 2, { rtol = 1e-5, atol = 1e-5 }))
  end)
end)

describe("a working copy", function()
  local function with_work(n, k)
    local w = leaf(n, k)
    return w, layouts.of({ w }, { work = "bfloat16" }):work():narrow(1, 1, n * k)
  end

  it("is written when it is first used, and anew after each edit of the leaf", function()
    local w, flat = with_work(5, 4)
    local x = tensor.randn(3, 4)
    assert.is_false((select(2, core.work_of(w))))
    local function check()
      local y = tensor.autocast(function() return tensor.linear(x, w) end)
      assert.is_true((select(2, core.work_of(w))))
      assert.is_true(tensor.equal(flat:reshape(5, 4), w:detach():to("bfloat16")))
      assert.is_true(tensor.equal(y, tensor.linear(x:to("bfloat16"), w:detach():to("bfloat16"))))
    end
    check()
    core.no_grad(function() w:add_(1) end)
    assert.is_false((select(2, core.work_of(w))))
    check()
    w.data:fill_(3)
    check()
    w:data_ptr()[0] = 7
    check()
  end)

  it("is used in place of a cast: nothing is allocated for the weight", function()
    local w = with_work(64, 32)
    local x = tensor.randn(2, 32):to("bfloat16")
    tensor.autocast(function() tensor.linear(x, w) end)
    local before = core.memory_stats().allocations
    tensor.autocast(function() tensor.linear(x, w) end)
    local made = core.memory_stats().allocations
    if native() then assert.are.equal(before + 1, made) end
  end)

  it("goes when the leaf gets other data, and serves only its own type", function()
    local w = with_work(5, 4)
    tensor.autocast({ dtype = "float16" }, function()
      assert.are.equal("float16", tensor.linear(tensor.randn(2, 4), w).dtype)
    end)
    assert.is_false((select(2, core.work_of(w))))
    w.data = tensor.randn(2, 4)
    assert.is_nil(core.work_of(w))
    assert.are.same({ 3, 2 },
      tensor.autocast(function() return tensor.linear(tensor.randn(3, 4), w) end).shape)
  end)

  it("that was written since the forward pass is caught by backward", function()
    local w = with_work(5, 4)
    local x = leaf(3, 4)
    local y = tensor.autocast(function() return tensor.linear(x, w) end)
    core.no_grad(function() w:add_(1) end)
    tensor.autocast(function() return tensor.linear(x, w) end)
    assert.error_matches(function() y:float():sum():backward() end, "argument 2 of linear.*changed in place")
  end)

  it("is of a half type", function()
    assert.error_matches(function() layouts.of({ leaf(5, 4) }, { work = "float32" }) end,
      "expected a half type, got float32")
  end)

  it("and the place of a gradient go when the layout ends: the leaf stays, and trains on", function()
    local w, x = leaf(5, 4), tensor.randn(3, 4)
    local layout = core.flat { w }
    layout:give_grads()
    layout:give_work("bfloat16")
    local function pass()
      tensor.autocast(function() return tensor.linear(x, w) end):float():sum():backward()
    end
    pass()
    local former = w.grad:clone()
    layout:dissolve()
    assert.is_nil(core.work_of(w))
    w.grad = nil
    pass()
    -- the product, which went straight into its place, is rounded to bfloat16 now
    assert.is_true(tensor.allclose(former, w.grad, { rtol = 1e-2, atol = 1e-2 }))
    assert.is_false(layout:grads():_address() == w.grad:_address())
  end)
end)

describe("products of half types", function()
  it("agree with float64 products of the same numbers, rounded once", function()
    for _, dtype in ipairs { "bfloat16", "float16" } do
      for _, size in ipairs { { 1, 7, 3 }, { 16, 784, 10 }, { 65, 33, 129 }, { 5, 2100, 4 } } do
        local m, k, n = unpack(size)
        local x, w, b = tensor.randn(m, k):to(dtype), tensor.randn(n, k):to(dtype), tensor.randn(n)
        local want = x:double():mm(w:double():t()) + b:double()
        local rtol = dtype == "bfloat16" and 2 ^ -8 or 2 ^ -10
        assert.is_true(tensor.allclose(tensor.linear(x, w, b), want, { rtol = rtol, atol = 1e-3 }),
          ("%s bias float32 %d"):format(dtype, m))
        local half_bias = tensor.linear(x, w, b:to(dtype))
        assert.are.equal(dtype, half_bias.dtype)
        assert.is_true(tensor.allclose(half_bias, want, { rtol = rtol, atol = 2e-2 }))
        assert.is_true(tensor.allclose(tensor.linear(x, w), want - b:double(), { rtol = rtol, atol = 1e-3 }))
      end
    end
  end)

  it("give the same bits for any number of threads", function()
    local before = core.get_num_threads()
    local bits = {}
    for _, threads in ipairs { 1, 2, 3 } do
      core.set_num_threads(threads)
      tensor.manual_seed(1)
      local got = {}
      for i, size in ipairs { { 2, 4096, 3 }, { 64, 784, 96 }, { 300, 2100, 33 }, { 2500, 64, 128 } } do
        local m, k, n = unpack(size)
        local x, w, b = tensor.randn(m, k), leaf(n, k), tensor.randn(n)
        layouts.give_slots { w }
        local y = tensor.autocast(function() return tensor.linear(x, w, b) end)
        y:backward(y:detach())
        got[i] = { y:detach(), w.grad }
      end
      bits[threads] = got
    end
    core.set_num_threads(before)
    for threads = 2, 3 do
      for i, pair in ipairs(bits[threads]) do
        for k, t in ipairs(pair) do
          assert.is_true(tensor.equal(t, bits[1][i][k]), ("%d threads, size %d"):format(threads, i))
        end
      end
    end
  end)
end)
