--- In-place ops on views while gradients are recorded.  (Values and gradients against PyTorch's:
--- spec/reference/torch/inplace.py.)
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local gradcheck = require "spec.support.gradcheck"
local raises = require("spec.support.messages").raises

local function leaf(v) return tensor.tensor(v, { dtype = "float64", requires_grad = true }) end
local function double(v) return tensor.tensor(v, { dtype = "float64" }) end
local function both(what, f, ...)
  gradcheck.first(what, f, { ... })
  gradcheck.second(what, f, { ... })
end

describe("a recorded in-place op on a view", function()
  it("has first and second derivatives that finite differences confirm", function()
    local x, y = leaf { { 0.3, -0.7, 1.1 }, { 0.5, 0.2, -0.4 } }, leaf { 0.9, -1.3, 0.6 }
    both("row, assigned", function(a, b)
      local t = a * a
      t[2] = (b * b):sin()
      return t * t
    end, x, y)
    both("column, multiplied", function(a, b)
      local t = a:exp() * 2
      t:select(2, 2):mul_(b:narrow(1, 1, 2))
      return t * b
    end, x, y)
    both("view of a view, transposed", function(a, b)
      local t = a * 1
      local u = t:transpose(1, 2):narrow(1, 2, 2)
      u:mul_(u:clone()):add_(b[1] * b[2])
      return t:tanh(), u * 2
    end, x, y)
    both("zeros filled row by row", function(a, b)
      local t = tensor.zeros({ 3, 3 }, { dtype = "float64" })
      local h = b
      for i = 1, 3 do
        t[i] = h
        h = (h * a[1] + a[2]):tanh()
      end
      return t:cumsum(1)
    end, x, y)
    both("the whole, then an older view", function(a, b)
      local t = a * 1
      local first, last = t[1], t[2]
      t:mul_(b)
      last:add_(first)
      return t * t, first
    end, x, y)
    both("parts of a split", function(a, b)
      local t = a * 1
      local p, q = t:split(1, 2)
      local u, v, w = t:unbind(2)
      q:mul_(b[1])
      u:copy_((w + v):sin())
      return p * q, t, v
    end, x, y)
    both("a column and a window, older than a change of the whole", function(a, b)
      local t = a * 1
      local windows, wide = t:unfold(2, 2, 1), t[1]:expand(4, 3)
      t:mul_(b)
      return windows * windows, wide:narrow(1, 1, 2) * a
    end, x, y)
    both("of memory with gaps", function(a, b)
      local t = tensor.zeros({ 4, 3 }, { dtype = "float64" }):narrow(2, 1, 2):detach()
      t[2]:copy_(a[1]:narrow(1, 1, 2))
      t:narrow(1, 3, 1):add_(b[3])
      return t * t
    end, x, y)
    both("a whole view, and numbers", function(a, b)
      local t = a * b
      t:view(-1):mul_(2):add_(b[1])
      t[1][2] = 0
      t[{ 2, { 1, 2 } }] = b:narrow(1, 2, 2)
      return t * a
    end, x, y)
    both("masks and lists of rows of a view", function(a, b)
      local t = a * 1
      local u = t:narrow(2, 1, 2)
      u[double({ { 1, 0 }, { 0, 1 } }):gt(0)] = b:narrow(1, 1, 2)
      u[tensor.tensor({ 1 }, { dtype = "int64" })] = (b * b):narrow(1, 1, 2):view(1, 2)
      return t * t
    end, x, y)
  end)

  it("casts what it takes, and its gradient back", function()
    local x = leaf { 1, 2 }
    local h = tensor.zeros({ 2, 2 }, { dtype = "float16" })
    h[1] = x
    h:float():sum():backward()
    assert.are.equal("float64", x.grad.dtype)
    assert.are.same({ 1, 1 }, x.grad:totable())
  end)

  it("makes every view of the base require a gradient", function()
    local x, base = leaf { 1, 2 }, tensor.zeros({ 2, 2 }, { dtype = "float64" })
    local other, inner = base[2], base:view(4):narrow(1, 3, 1)
    assert.is_true(other.is_leaf)
    base[2] = x
    assert.are.equal("copy_slices", base.grad_fn)
    assert.is_true(other.requires_grad)
    assert.is_false(other.is_leaf)
    assert.are.equal("as_strided", other.grad_fn)
    assert.are.same({ 5, 0 }, core.grad({ (inner * 5):sum() }, { x }, { retain_graph = true }):totable())
    local got = {}
    other:register_hook(function(g) got[#got + 1] = g:totable() end)
    other:sum():backward()
    assert.are.same({ { 1, 1 } }, got)
    assert.are.same({ 1, 1 }, x.grad:totable())
  end)

  it("counts as an edit of all that shows the memory", function()
    local x, w = leaf { { 1, 2 }, { 3, 4 } }, leaf { 2, 2 }
    local y = x * 1
    local z = y[1] * w -- keeps y[1]
    y[2]:add_(1)
    raises("was changed in place after the forward pass", function() z:sum():backward() end)
    local a, b = y[1], y[2]
    assert.are.equal(y:_version(), a:_version())
    tensor.no_grad(function() b:add_(1) end)
    assert.are.equal(y:_version(), a:_version())
  end)

  it("is refused for a leaf, a view of a leaf, and views that cannot pass it on", function()
    local x, w = leaf { { 1, 2 }, { 3, 4 } }, leaf { 2, 2 }
    raises("mul_: a leaf that requires a gradient cannot be changed in place", function() x:mul_(2) end)
    for name, write in pairs {
      zero_ = function() x:zero_() end, fill_ = function() x:fill_(1) end, copy_ = function() x:copy_(1) end,
    } do
      raises(": " .. name .. ": a leaf that requires a gradient cannot be changed in place", write)
    end
    raises("mul_: a view of a leaf that requires a gradient cannot be changed in place",
      function() x[1]:mul_(2) end)
    raises("a view of a leaf that requires a gradient", function() x:view(4):narrow(1, 1, 2):zero_() end)
    raises("a view of a leaf that requires a gradient", function() x[1] = w end)
    tensor.no_grad(function() x[1]:mul_(2) end)
    assert.are.same({ { 2, 4 }, { 3, 4 } }, x:totable())

    local y = x * 1
    local silent = tensor.no_grad(function() return y[1] end)
    raises("mul_: the view was made inside no_grad", function() silent:mul_(w) end)
    raises("the view was made inside no_grad", function() silent:narrow(1, 1, 1):copy_(w[1]) end)
    silent:mul_(2) -- nothing of it is recorded
    assert.are.same({ { 4, 8 }, { 3, 4 } }, y:totable())

    local wide = double({ { 1 }, { 2 } }):expand(2, 2):detach()
    raises("expanded", function() wide[1]:mul_(w) end)

    local same = tensor.Function { forward = function(_, v) return v:view(4) end,
      backward = function(_, g) return g:view(2, 2) end }
    raises("a custom function returned this as a view of one of its arguments",
      function() same(y):mul_(2) end)
    local fresh = tensor.Function { forward = function(_, v) return (v * 1):view(4) end,
      backward = function(_, g) return g:view(2, 2) end }
    fresh(y):mul_(2)
  end)

  it("does not reach the history of what was detached, nor of a view that was made a leaf", function()
    local x = leaf { 1, 2 }
    local y = x * 1
    local d = y:detach()
    d:mul_(x)
    assert.are.same({ 1, 1 }, core.grad({ y:sum() }, { x }, { retain_graph = true }):totable())
    local base = tensor.zeros({ 2, 2 }, { dtype = "float64" })
    local row = base[1]:requires_grad_()
    base[2] = x
    assert.is_true(row.is_leaf)
    raises("a leaf that requires a gradient", function() row:add_(1) end)
  end)

  it("is an op on the view alone once its base has other memory", function()
    local base, x = tensor.zeros({ 2, 2 }, { dtype = "float64" }), leaf { 1, 2 }
    local view, other = base[1], base[1]
    base.data = tensor.ones({ 2 }, { dtype = "float64" })
    view:copy_(x)
    assert.is_true(base.is_leaf)
    assert.are.same({ 3, 3 }, core.grad({ (view * 3):sum() }, { x }):totable())
    base:mul_(x)
    assert.is_true(other.is_leaf)
  end)

  it("leaves nothing behind, with and without a backward pass", function()
    local x = leaf { 1, 2, 3 }
    local function program(backward)
      local t = x * 2
      local view = t:narrow(1, 2, 2)
      for i = 1, 3 do t[i] = view:sum() * i end
      view:mul_(x[1])
      if backward then t:sum():backward() end
    end
    local function live()
      for _ = 1, 3 do
        collectgarbage()
        core.is_released(core.zeros(0)) -- a call into the binding drops what finalisers let go of
      end
      return core.memory_stats().structs
    end
    program(true)
    x.grad = nil
    local before = live()
    for _ = 1, 20 do program(false) end
    assert.are.equal(before, live())
    for _ = 1, 20 do program(true) end
    x.grad = nil
    assert.are.equal(before, live())
  end)

  it("writes nothing when memory for the history is out", function()
    local x = leaf { 1, 2 }
    local n = 0
    repeat
      n = n + 1
      local base = tensor.zeros({ 2, 2 }, { dtype = "float64" })
      local view = base[1]
      core.debug_fail_alloc(n)
      local ok = pcall(view.add_, view, x)
      core.debug_fail_alloc(0)
      if not ok then
        assert.is_true(base.is_leaf)
        assert.are.same({ { 0, 0 }, { 0, 0 } }, base:totable())
      end
    until ok
    assert.is_true(n > 3)
  end)
end)

describe("x:view on a result whose channels lie innermost", function()
  local nn = require "accelerate.nn"
  local function image() return (tensor.arange(2 * 3 * 6 * 6) / 7):sin():view(2, 3, 6, 6) end

  it("is a view all the same: the result is laid out anew", function()
    local conv, norm, pool = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.MaxPool2d(2)
    local cases = { { "conv", nn.Identity() }, { "norm", norm }, { "pool", pool }, { "relu", nn.ReLU() } }
    for _, case in ipairs(cases) do
      local name, layer = unpack(case)
      local y = layer(conv(image()))
      local expected = y:reshape(2, -1)
      assert.is_false(y:is_contiguous(), name)
      local flat = layer(conv(image()))
      local v = flat:view(2, -1)
      if name ~= "norm" then assert.are.same(expected:totable(), v:totable(), name) end
      assert.is_true(flat:is_contiguous())
      v[{ 2, { 1, 2 } }] = 5
      assert.are.equal(5, flat[{ 2, 1, 1, 1 }]:item())
      flat:mul_(2)
      assert.are.equal(10, v[2][2]:item())
    end
  end)

  it("keeps the history and what the graph saved", function()
    local x, w = image():double():requires_grad_(), (tensor.arange(5 * 3 * 3 * 3) / 5):cos():view(5, 3, 3,
      3):double():requires_grad_()
    gradcheck.first("conv, relu, view, in place", function(a, b)
      local y = core.conv2d(a, b):relu() -- saves its result
      local v = y:view(2, -1)
      return v * v
    end, { x, w })
    gradcheck.first("conv, view, in place", function(a, b)
      local y = core.conv2d(a, b)
      local v = y:view(2, -1)
      v:narrow(2, 2, 3):mul_(a[1][1][1][1])
      return y * y, v
    end, { x, w })
    local y = core.conv2d(x, w):sigmoid()
    local v = y:view(-1)
    v:mul_(2) -- sigmoid's gradient needs what it saved, and that lies elsewhere now
    v:sum():backward()
  end)

  it("raises where another tensor shows the memory", function()
    local y = core.conv2d(image(), tensor.ones(5, 3, 3, 3))
    local d = y:detach()
    raises("cannot be seen as [2, -1] without a copy; use reshape", function() y:view(2, -1) end)
    raises("use reshape", function() d:view(2, -1) end)
    raises("use reshape",
      function() core.conv2d(image(), tensor.ones(5, 3, 3, 3)):narrow(1, 1, 1):view(-1) end)
    raises("use reshape", function() tensor.ones(2, 3):t():view(-1) end)
  end)

  it("names the op where an option gives it another form", function()
    local x = tensor.zeros(3, 1):expand(3, 2)
    for name, call in pairs {
      div_ = function() x:div_(x, { rounding_mode = "floor" }) end,
      round_ = function() x:round_ { decimals = 1 } end,
    } do raises(name .. ": dim 2 of the tensor being changed is expanded", call) end
  end)
end)

describe("another shape in place", function()
  local changes = {
    { "squeeze", {}, {} }, { "squeeze", { 2 }, { 2 } }, { "unsqueeze", { 1 }, { 1 } },
    { "unsqueeze", { -1 }, { -1 } }, { "transpose", { 1, 3 }, { 1, 3 } },
    { "swapaxes", { 1, -1 }, { 1, -1 } },
    { "swapdims", { 2, 3 }, { 2, 3 } },
  }
  it("is that of the view, of the same object and the same memory", function()
    for _, change in ipairs(changes) do
      local name, arguments = change[1], change[2]
      local x = double { { { 1, 2, 3 } }, { { 4, 5, 6 } } }
      local before, view = x:detach(), x[name](x, unpack(arguments))
      local same = x[name .. "_"](x, unpack(arguments))
      assert(rawequal(same, x), name)
      assert.are.same(view:tolist(), x:tolist(), name)
      assert.are.same(view.shape, x.shape, name)
      x:mul_(2)
      assert.are.equal(42, before:sum():item(), name)
    end
    local m = double { { 1, 2, 3 }, { 4, 5, 6 } }
    assert.are.same({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, m:t_():tolist())
  end)

  it("is recorded, and later changes in place reach the base and its other views", function()
    local x, y = leaf { 0.3, -0.7, 1.1, 0.5, 0.2, -0.4 }, leaf { { 0.9, -1.3 }, { 0.6, 1 }, { 2, 0.1 } }
    both("transposed, multiplied", function(a, b)
      local t = (a * a):view(2, 3)
      local row = t:narrow(1, 1, 1)
      t:transpose_(1, 2):mul_(b)
      return t:unsqueeze_(1) * 2, row
    end, x, y)
  end)

  it("keeps what retain_grad was called on: the gradient has the new shape", function() -- as PyTorch's
    local x = leaf { 1, 2, 3 } * 2
    x:retain_grad()
    x:unsqueeze_(1)
    assert.is_true(x.retains_grad)
    ;(x * 3):sum():backward()
    assert.are.same({ { 3, 3, 3 } }, x.grad:tolist())
  end)

  it("raises for a leaf that requires a gradient, and for a dim that is not there", function()
    local x = leaf { 1, 2 }
    raises("unsqueeze_: a leaf that requires a gradient keeps its shape", function() x:unsqueeze_(1) end)
    tensor.no_grad(function()
      raises("t_: a leaf that requires a gradient keeps its shape", function() x:t_() end)
    end)
    assert.are.same({ 2 }, x.shape)
    raises("dim 4 is out of range", function() tensor.ones(2):unsqueeze_(4) end)
    raises("transpose_", function() tensor.ones(2, 2):transpose_(1, 3) end)
    raises("unsqueeze_", function() tensor.ones(2):unsqueeze_("first") end)
  end)
end)

describe("an op in place", function()
  it("may follow a batch normalisation, whose gradient needs no result", function()
    local b = require("accelerate.nn").BatchNorm2d(3)
    core.no_grad(function()
      b.running_mean:copy_(core.tensor { 0.1, -0.2, 0.3 })
      b.running_var:copy_(core.tensor { 0.5, 1.5, 2 })
      b.weight:copy_(core.tensor { 1, -2, 0.5 })
    end)
    for _, training in ipairs { false, true } do
      b:train(training)
      for _, residual in ipairs { false, core.randn(2, 3, 4, 4) } do
        local function gradients(change)
          local x = core.linspace(-2, 2, 96):view(2, 3, 4, 4):requires_grad_()
          b:zero_grad()
          change(b(x, residual or nil)):square():sum():backward()
          return { x.grad:tolist(), b.weight.grad:tolist(), b.bias.grad:tolist() }
        end
        local expected = gradients(function(y) return y:relu() + 1 end)
        assert.same(expected, gradients(function(y) return y:relu_() + 1 end))
      end
    end
  end)
end)
