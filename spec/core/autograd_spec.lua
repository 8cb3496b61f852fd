-- Gradients as scripts see them: backward, grad, hooks, custom functions, switching recording on
-- and off.
local tensor = require "accelerate.tensor"
local core = require "accelerate.core"
local raises = require("spec.support.messages").raises

local function leaf(list) return tensor(list, { requires_grad = true }) end

describe("backward", function()
  it("adds into leaves", function()
    local x = leaf { 1, 2 }
    for _ = 1, 2 do
      local y = (x * x):sum()
      y:backward()
    end
    assert.same({ 4, 8 }, x.grad:totable())
  end)

  it("of a variance that nothing is left to divide by has PyTorch's infinite slopes", function()
    for _, correction in ipairs { 3, 5 } do
      local x = leaf { 0.25, 1.75, 3.25 }
      x:var({ correction = correction }):backward()
      local slopes = x.grad:totable()
      assert.same({ math.huge, math.huge }, { slopes[1], slopes[3] })
      assert.is_true(slopes[2] ~= slopes[2], "at the mean it is no number")
    end
    local x = leaf { 0.25, 1, 2.5 }
    x:var({ correction = 2 }):backward()
    assert.same({ -2, -0.5, 2.5 }, x.grad:totable()) -- 2 (x - 1.25)
  end)

  it("takes a gradient and options, in any usual form", function()
    local x = leaf { 1, 2 }
    local y = x * x
    y:backward(tensor { 1, 10 }, { retain_graph = true })
    assert.same({ 2, 40 }, x.grad:totable())
    local z = y:sum()
    z:backward({ retain_graph = true })
    z:backward(nil, { retain_graph = true })
    z:backward()
    assert.same({ 8, 52 }, x.grad:totable())
    raises("was released by an earlier backward pass", z.backward, z)
    raises("did you mean \"retain_graph\"", z.backward, z, { retian_graph = true })
    raises("retain_graph: expected a boolean, got number 1", z.backward, z, { retain_graph = 1 })
    raises("backward: argument 2 (gradient): expected a tensor, got number 1", z.backward, z, 1)
    raises("a gradient must be given for a tensor of shape [2]", function() return (x * 2):backward() end)
    raises("does not require a gradient", function() return tensor(1):backward() end)
  end)

  it("backward takes PyTorch's positions, and the inputs that gradients are added to", function()
    local x, w = tensor.ones(3, { requires_grad = true }), tensor.full({ 3 }, 2, { requires_grad = true })
    local y = (x * w):sum()
    y:backward(nil, true)
    y:backward(nil, { retain_graph = true, inputs = x })
    assert.are.same({ 4, 4, 4 }, x.grad:totable())
    assert.are.same({ 1, 1, 1 }, w.grad:totable())
    y:backward(tensor.tensor(3), { inputs = { w } })
    assert.are.same({ 4, 4, 4 }, w.grad:totable())
    x.grad = nil
    local z = x ^ 3
    z:backward(tensor.ones(3), nil, true)
    assert.is_true(x.grad.requires_grad)
    raises("backward: argument 3 (retain_graph): expected a boolean, got number 3",
      function() y:backward(nil, 3) end)
    raises("backward: retain_graph: given by position and as an option",
      function() y:backward(nil, true, { retain_graph = true }) end)
    raises("backward: expected gradient, retain_graph and create_graph, got 4 arguments",
      function() y:backward(nil, true, false, 1) end)
  end)

  it("records itself with create_graph", function()
    local x = leaf { 2 }
    local y = (x ^ 3):sum()
    y:backward({ create_graph = true })
    local g = x.grad
    x.grad = nil
    g:sum():backward()
    assert.same({ 12 }, x.grad:totable())
  end)
end)

describe("grad", function()
  it("gives one value for each input and leaves .grad alone", function()
    local x, w = leaf { 1, 2 }, leaf { 3, 4 }
    local gx, gw = tensor.grad((x * w):sum(), { x, w })
    assert.same({ 3, 4 }, gx:totable())
    assert.same({ 1, 2 }, gw:totable())
    assert.is_nil(x.grad)
    local g = tensor.grad((x * w):sum(), x)
    assert.same({ 3, 4 }, g:totable())
  end)

  it("takes several outputs with their gradients", function()
    local x = leaf { 1, 2 }
    local g = tensor.grad({ x * 2, x * 3 }, x, { grad_outputs = { tensor { 1, 1 }, tensor { 10, 0 } } })
    assert.same({ 32, 2 }, g:totable())
    local h = tensor.grad(x * 2, { x }, { grad_outputs = tensor { 1, 5 } })
    assert.same({ 2, 10 }, h:totable())
  end)

  it("differentiates again", function()
    local x = leaf { 2 }
    local first = tensor.grad((x ^ 3):sum(), x, { create_graph = true })
    local second = tensor.grad(first:sum(), x, { create_graph = true })
    local third = tensor.grad(second:sum(), x)
    assert.same({ { 12 }, { 12 }, { 6 } }, { first:totable(), second:totable(), third:totable() })
  end)

  it("gives nil for an unused input when that is allowed", function()
    local x, w = leaf { 1 }, leaf { 2 }
    local gx, gw = tensor.grad((x * 2):sum(), { x, w }, { allow_unused = true })
    assert.same({ 2 }, gx:totable())
    assert.is_nil(gw)
    raises("does not depend on input 2", tensor.grad, (x * 2):sum(), { x, w })
    raises("grad: input 1 does not require a gradient", tensor.grad, x:sum(), tensor.ones(1))
    raises("expected at least one output and one input", tensor.grad, x:sum(), {})
    raises("grad: argument 2 (inputs): expected a tensor or a list of tensors, got nil", tensor.grad, x:sum())
    raises("did you mean 'allow_unused'?", tensor.grad, x:sum(), x, { allow_unsued = true })
    raises("grad_outputs: 1 given for 2 outputs", tensor.grad, { x, w }, x, { grad_outputs = tensor.ones(1) })
  end)
end)

describe("no_grad and its kin", function()
  it("grad takes its arguments by position and by name, as PyTorch", function()
    local x, w, unused = leaf { 1, 2 }, leaf { 3, 4 }, leaf { 5, 6 }
    local seed = tensor { 1, 10 }
    local function u() return x * x * w end -- gradients 2 x w, x^2
    local function same(...)
      local gx, gw = ...
      assert.same({ { 6, 160 }, { 1, 40 } }, { gx:totable(), gw:totable() })
      return gx
    end
    same(tensor.grad(u(), { x, w }, seed))
    assert.is_true(same(tensor.grad(u(), { x, w }, seed, { create_graph = true })).requires_grad)
    assert.is_true(same(tensor.grad(u(), { x, w }, seed, nil, true)).requires_grad)
    assert.is_false(same(tensor.grad(u(), { x, w }, { seed }, true, false, true, false)).requires_grad)
    same(tensor.autograd.grad { outputs = u(), inputs = { x, w }, grad_outputs = seed })
    same(tensor.grad({ u() }, { x, w }, { grad_outputs = { seed }, only_inputs = true }))
    local kept = u()
    same(tensor.grad(kept, { x, w }, seed, true))
    same(tensor.grad(kept, { x, w }, seed))
    raises("does not depend on input 2", tensor.grad, u(), { x, unused }, seed)
    local gx, none = tensor.grad(u(), { x, unused }, seed, nil, false, true, true)
    assert.same({ 6, 160 }, gx:totable())
    assert.is_nil(none)
    local _, zeros = tensor.grad(u(), { x, unused }, seed, { materialize_grads = true })
    assert.same({ 0, 0 }, zeros:totable())
    assert.is_false(zeros.requires_grad)
    raises("grad: only_inputs must be true", tensor.grad, u(), x, seed, { only_inputs = false })
    raises("grad: is_grads_batched must be false", tensor.grad, u(), x, { is_grads_batched = true })
    raises("grad: with materialize_grads = true allow_unused must be true or left out, got false",
      tensor.grad,
      u(), x, seed, { materialize_grads = true, allow_unused = false })
    raises("grad: grad_outputs is given twice", tensor.grad, u(), x, seed, { grad_outputs = seed })
    raises("grad: 10 arguments given, at most 9 expected", tensor.grad, u(), x, seed, 1, 2, 3, 4, 5, 6, 7)
    raises("grad: option 'retain_graph' must be true or false, got 1", tensor.grad, u(), x, seed, 1)
  end)

  it("switch recording, pass values through, and restore", function()
    local x = leaf { 1 }
    local y, two, none = tensor.no_grad(function(a, b) return x * a, b, nil end, 3, 2)
    assert.is_false(y.requires_grad)
    assert.same({ 2, nil }, { two, none })
    assert.is_true(tensor.is_grad_enabled())
    tensor.no_grad(function()
      assert.is_false(tensor.is_grad_enabled())
      assert.is_true(tensor.enable_grad(function() return (x * 2).requires_grad end))
      assert.is_false(tensor.is_grad_enabled())
    end)
    assert.is_true(tensor.set_grad_enabled(false))
    assert.is_false(tensor.set_grad_enabled(true))
  end)

  it("set_grad_enabled, inference_mode and set_detect_anomaly take a switch and a function", function()
    local autograd = tensor.autograd
    for _, set in ipairs { tensor.set_grad_enabled, autograd.set_grad_enabled,
      function(on, ...) return tensor.inference_mode(not on, ...) end,
      function(on, ...) return autograd.inference_mode(not on, ...) end,
    } do
      for _, on in ipairs { true, false } do
        local inside, sum = set(on, function(a, b) return tensor.is_grad_enabled(), a + b end, 1, 2)
        assert.same({ on, 3 }, { inside, sum })
        assert.is_true(tensor.is_grad_enabled())
        tensor.no_grad(function()
          assert.equal(on, set(on, tensor.is_grad_enabled))
          assert.is_false(tensor.is_grad_enabled())
        end)
      end
      raises("stop", set, false, error, "stop")
      assert.is_true(tensor.is_grad_enabled())
    end
    raises("set_grad_enabled: argument 2 (fn): expected a function, got 3", tensor.set_grad_enabled, true, 3)
    raises("set_grad_enabled: argument 1 (on) must be true or false, got 3", tensor.set_grad_enabled, 3,
      print)
    raises("inference_mode: argument 2 (fn): expected a function, got nil", tensor.inference_mode, true)
    raises("inference_mode: argument 1 (fn): expected a function, got 3", tensor.inference_mode, 3)
    local function bad() (leaf { 0 }:sqrt() * 0):sum():backward() end
    raises("has a NaN", autograd.set_detect_anomaly, true, bad)
    assert.equal(3, autograd.set_detect_anomaly(true, function(a) return a end, 3))
    autograd.detect_anomaly(function() autograd.set_detect_anomaly(false, bad) end)
    bad()
    raises("set_detect_anomaly: argument 2 (fn): expected a function, got 3", autograd.set_detect_anomaly,
      true, 3)
    assert.is_false(autograd.set_detect_anomaly(false))
  end)

  it("have the function that raised at the top of the traceback", function()
    local function inner(x)
      local y = x.field
      return y
    end
    local function body()
      local y = inner(nil)
      return y
    end
    local scope = require "accelerate.utils.scope"
    for name, context in pairs {
      no_grad = core.no_grad, enable_grad = core.enable_grad, scope = core.scope,
      run = function(fn) return scope.run(nil, function() end, fn) end,
    } do
      local _, message = pcall(context, body)
      local first = message:match "stack traceback:\n\t([^\n]*)"
      assert.matches("in function 'inner'", first, name)
    end
  end)

  it("restore when the function raises, and keep the message and one traceback", function()
    local ok, message = pcall(tensor.no_grad, function()
      tensor.no_grad(function() error("oops") end)
    end)
    assert.is_false(ok)
    assert.is_true(tensor.is_grad_enabled())
    assert.truthy(message:find("oops", 1, true))
    local _, count = message:gsub("stack traceback:", "")
    assert.equal(1, count)
    local object = {}
    local _, raised = pcall(tensor.no_grad, error, object)
    assert.is_true(rawequal(object, raised))
    raises("no_grad: argument 1 (fn): expected a function, got nil", tensor.no_grad)
  end)

  it("let coroutines yield", function()
    local co = coroutine.wrap(function()
      return tensor.no_grad(function()
        coroutine.yield(1)
        return 2
      end)
    end)
    assert.equal(1, co())
    assert.equal(2, co())
    assert.is_true(tensor.is_grad_enabled())
  end)
end)

describe("hooks", function()
  it("see the gradient of a leaf, and may replace it", function()
    local x = leaf { 1, 2 }
    local seen
    local handle = x:register_hook(function(g)
      seen = g:totable()
      return g * 10
    end)
    local y = (x * 3):sum()
    y:backward()
    assert.same({ 3, 3 }, seen)
    assert.same({ 30, 30 }, x.grad:totable())
    handle:remove()
    handle:remove()
    x.grad = nil
    y = (x * 3):sum()
    y:backward()
    assert.same({ 3, 3 }, x.grad:totable())
  end)

  it("see the gradient of a result", function()
    local x = leaf { 1 }
    local y = x * 2
    y:register_hook(function(g) return g + 1 end)
    local handle = y:register_hook(function() error("removed") end)
    handle:remove()
    y:sum():backward()
    assert.same({ 4 }, x.grad:totable())
  end)

  it("run after accumulation, with the tensor itself", function()
    local x = leaf { 1 }
    local count = 0
    x:register_post_accumulate_grad_hook(function(p)
      assert.is_true(rawequal(p, x))
      count = count + 1
      p.grad = nil
    end)
    local y = x * 2 + x * 3
    y:sum():backward()
    assert.equal(1, count)
    assert.is_nil(x.grad)
  end)

  it("turn their errors into errors of backward, and leave things in order", function()
    local x = leaf { 1 }
    local object = { "an error object" }
    local handle = x:register_hook(function() error(object) end)
    local y = (x * 2):sum()
    local ok, raised = pcall(y.backward, y)
    assert.is_false(ok)
    assert.is_true(rawequal(object, raised))
    handle:remove()
    x:register_hook(function() return "no tensor" end)
    raises("hook: expected a tensor or nil as result, got string \"no tensor\"",
      function() return (x * 2):sum():backward() end)
    assert.is_true(tensor.is_grad_enabled())
    raises("register_hook: argument 2 (hook): expected a function, got number 1", x.register_hook, x, 1)
    raises("does not require a gradient", function() tensor.ones(1):register_hook(print) end)
    raises("only a leaf accumulates", function() (x * 2):register_post_accumulate_grad_hook(print) end)
  end)

  it("refuse a gradient of another shape", function()
    local x = leaf { 1, 2 }
    x:register_hook(function() return tensor.ones(3) end)
    raises("hook: returned a gradient of shape [3] in place of [2]",
      function() return (x * 2):sum():backward() end)
  end)

  it("live as long as the graph, when the leaf's object is gone", function()
    local count = 0
    local function make()
      local x = leaf { 1 }
      x:register_hook(function() count = count + x:item() end)
      return (x * 2):sum()
    end
    local y = make()
    for _ = 1, 3 do collectgarbage() end
    y:backward()
    assert.equal(1, count)
  end)

  it("that capture their tensor are collected with it", function()
    local weak = setmetatable({}, { __mode = "k" })
    local function make()
      local x = leaf { 1 }
      x:register_hook(function() return x * 1 end)
      weak[x] = true
    end
    for _ = 1, 10 do make() end
    for _ = 1, 3 do collectgarbage() end
    assert.is_nil(next(weak))
  end)

  it("may call backward on another graph", function()
    local x, z = leaf { 1 }, leaf { 5 }
    x:register_hook(function()  -- recording is off inside a backward pass, as in PyTorch
      tensor.enable_grad(function() return (z * z):sum():backward() end)
    end)
    local y = (x * 2):sum()
    y:backward()
    assert.same({ 10 }, z.grad:totable())
    assert.same({ 2 }, x.grad:totable())
  end)
end)

describe("Function", function()
  local square = tensor.Function {
    name = "Square",
    forward = function(ctx, x)
      ctx:save_for_backward(x)
      return x * x
    end,
    backward = function(ctx, g)
      local x = ctx:saved_tensors()
      return 2 * x * g
    end,
  }

  it("gives what was saved as a list, and as several values", function()
    local seen
    local scaled = tensor.Function {
      forward = function(ctx, x, y)
        ctx:save_for_backward(x, nil, y)
        return x * y
      end,
      backward = function(ctx, g)
        local list = ctx.saved_tensors
        local x, none, y = ctx:saved_tensors()
        assert(none == nil and list[2] == nil)
        seen = { list.n, rawequal(list[1], x), rawequal(list[3], y), ctx.no_such_field == nil,
          select("#", ctx:saved_tensors()) }
        return g * list[3], g * x
      end,
    }
    local x = tensor.tensor({ 2, 3 }, { requires_grad = true })
    scaled(x, tensor.tensor { 5, 7 }):sum():backward()
    assert.same({ 3, true, true, true, 3 }, seen)
    assert.same({ 5, 7 }, x.grad:tolist())
    local nothing = tensor.Function {
      forward = function(_, v) return v * 1 end,
      backward = function(ctx, g)
        assert(#ctx.saved_tensors == 0 and select("#", ctx:saved_tensors()) == 0)
        return g
      end,
    }
    nothing(x):sum():backward()
    assert.same({ 6, 8 }, x.grad:tolist())
  end)

  it("refuses a backward that forgets an argument", function()
    local function product(backward)
      return tensor.Function { name = "Product", forward = function(_, x, y) return x * y end,
        backward = backward }
    end
    local x, y = leaf { 1, 3 }, leaf { 2, 4 }
    local one = product(function(_, g) return g end)
    raises("Product: backward: 1 result, but argument 2 of forward requires a gradient; return one for " ..
      "each argument, nil for what has none", function() one(x, y):sum():backward() end)
    raises("Product: backward: 0 results, but argument 1 of forward", function()
      product(function() end)(x, 2):sum():backward()
    end)
    one(x, 2):sum():backward() -- a number needs none
    product(function(_, g) return g, nil end)(x, y):sum():backward() -- it says so
    assert.same({ 2, 2 }, x.grad:totable())
    assert.is_nil(y.grad)
  end)

  it("has the gradient that it says", function()
    local x = leaf { 1, 3 }
    local y = square(x)
    assert.same({ 1, 9 }, y:totable())
    assert.equal("Square", y.grad_fn)
    y:sum():backward()
    assert.same({ 2, 6 }, x.grad:totable())
    assert.same({ 4 }, square.apply(tensor { 2 }):totable())
    assert.same({ 4 }, square:apply(tensor { 2 }):totable())
  end)

  it("is not recorded where nothing needs a gradient", function()
    assert.is_false(square(tensor { 2 }).requires_grad)
    assert.is_false(tensor.no_grad(function() return square(leaf { 2 }) end).requires_grad)
  end)

  it("can be differentiated again, also through saved results", function()
    local x = leaf { 3 }
    local g = tensor.grad(square(x):sum(), x, { create_graph = true })
    assert.same({ 2 }, tensor.grad(g:sum(), x):totable())
    local exp = tensor.Function {
      forward = function(ctx, v)
        local y = v:exp()
        ctx:save_for_backward(y)
        return y
      end,
      backward = function(ctx, d) return d * ctx:saved_tensors() end,
    }
    local z = leaf { 0.5 }
    local first = tensor.grad(exp(z):sum(), z, { create_graph = true })
    local second = tensor.grad(first:sum(), z, { create_graph = true })
    assert.is_true(math.abs(second:item() - math.exp(0.5)) < 1e-5)
  end)

  it("has several inputs and outputs; other values pass through", function()
    local f = tensor.Function {
      forward = function(ctx, a, factor, b)
        assert.same({ true, false, true }, ctx.needs_input_grad)
        ctx.factor = factor
        return a * factor, "text", a + b
      end,
      backward = function(ctx, first, second) return first * ctx.factor + second, nil, second end,
    }
    local a, b = leaf { 1 }, leaf { 2 }
    local p, text, q = f(a, 5, b)
    assert.equal("text", text)
    assert.same({ { 5 }, { 3 } }, { p:totable(), q:totable() })
    q:sum():backward()  -- no gradient came for p: zeros
    assert.same({ { 1 }, { 1 } }, { a.grad:totable(), b.grad:totable() })
    local u, _, v = f(a, 5, b)
    local loss = (u + v):sum()
    a.grad, b.grad = nil, nil
    loss:backward()
    assert.same({ { 6 }, { 1 } }, { a.grad:totable(), b.grad:totable() })
  end)

  it("checks what backward returns", function()
    local function with(backward)
      return tensor.Function { name = "Odd", forward = function(_, x) return x * 1 end,
        backward = backward }(leaf { 1, 2 }):sum()
    end
    raises("Odd: backward: result 1 has shape [3], but argument 1 of forward had shape [2]",
      function() with(function() return tensor.ones(3) end):backward() end)
    raises("Odd: backward: result 1: expected a tensor or nil, got number 1",
      function() with(function() return 1 end):backward() end)
    raises("Odd: backward: 2 results, but forward had 1 arguments", function()
      with(function(_, g) return g, g end):backward()
    end)
    with(function() return nil end):backward()
    with(function(_, g) return g, nil end):backward()
  end)

  it("passes errors of forward and backward on", function()
    local f = tensor.Function { forward = function() error("in forward") end, backward = print }
    raises("in forward", f, leaf { 1 })
    assert.is_true(tensor.is_grad_enabled())
    local g = tensor.Function { forward = function(_, x) return x * 1 end,
      backward = function() error("in backward") end }
    raises("in backward", function() g(leaf { 1 }):sum():backward() end)
    raises("Function: backward: expected a function, got nil", tensor.Function, { forward = print })
    raises("did you mean \"forward\"", tensor.Function, { forwrad = print, backward = print })
  end)

  it("setup_context keeps what backward needs, and forward gets no context", function()
    local seen
    local f = tensor.Function {
      forward = function(x, k) return x * x * k, x + k end,
      setup_context = function(ctx, inputs, output)
        seen = { #inputs, inputs[2], #output }
        ctx:save_for_backward(inputs[1], output[1])
        ctx.k = inputs[2]
      end,
      backward = function(ctx, g, h)
        local x, y = ctx:saved_tensors()
        return g * 2 * x * ctx.k + h + 0 * y
      end,
    }
    local x = leaf { 1, 2 }
    local a, b = f(x, 3)
    assert.same({ { 3, 12 }, { 4, 5 } }, { a:totable(), b:totable() })
    assert.same({ 2, 3, 2 }, seen)
    ;(a + b):sum():backward()
    assert.same({ 7, 13 }, x.grad:totable())
    local one = tensor.Function {
      forward = function(v) return v * 2 end,
      setup_context = function(ctx, _, output) ctx.shape = output.shape end,
      backward = function(ctx, g) return g * 2 * ctx.shape[1] end,
    }
    one.apply(one:apply(x)):sum():backward()
    assert.same({ 7 + 16, 13 + 16 }, x.grad:totable())
    raises("Function: option 'setup_context' must be a function, got 3", tensor.Function,
      { forward = print, backward = print, setup_context = 3 })
  end)

  it("a result marked as not differentiable requires no gradient", function()
    local f = tensor.Function {
      forward = function(ctx, x)
        local high = x:gt(1):float()
        ctx:mark_non_differentiable(high)
        return high, x * 2
      end,
      backward = function(_, g, h)
        assert.same({ 0, 0 }, g:totable())
        return h * 2
      end,
    }
    local x = leaf { 1, 2 }
    local high, twice = f(x)
    assert.is_false(high.requires_grad)
    assert.is_true(twice.requires_grad)
    assert.same({ 0, 1 }, high:totable())
    twice:sum():backward()
    assert.same({ 2, 2 }, x.grad:totable())
    raises("mark_non_differentiable: argument 1: expected a tensor, got 3", tensor.Function {
      forward = function(ctx, v) ctx:mark_non_differentiable(3) return v end, backward = print }, x)
    raises("mark_dirty: a Function cannot write into its argument: return a new tensor", tensor.Function {
      forward = function(ctx, v) ctx:mark_dirty(v) return v:add_(1) end, backward = print }, x * 1)
  end)

  it("notices that a saved tensor was edited", function()
    local x = leaf { 1 }
    local h = x * 1
    local y = square(h)
    tensor.no_grad(function() h:add_(1) end)
    raises("saved tensor 1 was changed in place", function() y:sum():backward() end)
  end)

  it("leaves nothing behind", function()
    local function once()
      local x = leaf { 1, 2 }
      square(square(x)):sum():backward()
      return nil
    end
    once()
    collectgarbage()
    collectgarbage()
    local before = core.memory_stats()
    for _ = 1, 50 do once() end
    for _ = 1, 50 do square(leaf { 1 }) end
    for _ = 1, 3 do
      collectgarbage()
      core.is_released(tensor.ones(1))
    end
    collectgarbage()
    local after = core.memory_stats()
    assert.is_true(after.live_blocks <= before.live_blocks + 2)
    assert.is_true(after.structs <= before.structs + 8)
  end)
end)

describe("detach and requires_grad", function()
  it("cut and start history", function()
    local x = leaf { 1, 2 }
    local y = x * 2
    local d = y:detach()
    assert.is_false(d.requires_grad)
    d:fill_(9)
    assert.same({ 9, 9 }, y:totable())
    local z = tensor { 1 }
    assert.is_true(rawequal(z, z:requires_grad_()))
    assert.is_true(z.requires_grad)
    z:requires_grad_(false)
    assert.is_false(z.requires_grad)
    raises("use detach()", function() y.requires_grad = false end)
    raises("only floating-point tensors", function() tensor.arange(3):requires_grad_() end)
    assert.is_true(y:detach_().is_leaf)
  end)
end)

describe("a collection at any moment", function()
  it("takes nothing that is still in use", function()
    local both = tensor.Function {
      forward = function(ctx, a, b)
        collectgarbage()
        ctx:save_for_backward(a, b)
        return a * b, a + b
      end,
      backward = function(ctx, g, h)
        collectgarbage()
        local a, b = ctx:saved_tensors()
        return b * g + h, a * g + h
      end,
    }
    local function once()
      local x = tensor.ones(4, 3, { requires_grad = true })
      x:register_hook(function(g)
        collectgarbage()
        return g * 1
      end)
      local u, v = both(x, x * 2)
      collectgarbage()
      v:register_hook(function(g)
        collectgarbage()
        return g + 1
      end)
      local y = u + v
      local t = tensor.zeros(4, 3)
      t[2] = u[1]
      local z = y[{ {}, { 1, 2 } }]:sum() + y[y:gt(0)]:sum() + t:sum()
      collectgarbage()
      z:backward()
      local g = x.grad
      collectgarbage()
      assert.is_true(rawequal(g, x.grad))
      return g:totable()
    end
    local first = once()
    for _ = 1, 30 do assert.same(first, once()) end
  end)
end)
