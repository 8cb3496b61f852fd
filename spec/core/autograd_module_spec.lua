--- accelerate.autograd and accelerate.func, retain_grad, set_printoptions, utils.time. PyTorch's
--- values were taken from torch.func at these points.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local nn = require "accelerate.nn"
local raises = require("spec.support.messages").raises
local autograd, func = tensor.autograd, accelerate.func

local function double(values, grad)
  return tensor(values, { dtype = "float64", requires_grad = grad ~= false })
end
local function near(expected, got)
  assert(tensor.allclose(double(expected, false), got:detach():double(), 1e-9, 1e-9), tostring(got))
end

describe("autograd", function()
  it("gradcheck accepts right gradients and names wrong ones", function()
    assert.is_true(autograd.gradcheck(function(x, y) return (x * y):sin(), x:sum() end, {
      double { 0.5, -1 }, double { 2, 0.25 } }))
    local wrong = tensor.Function {
      forward = function(ctx, x) ctx:save_for_backward(x) return x * x end,
      backward = function(_, g) return g * 3 end,
    }
    local ok, message = autograd.gradcheck(function(x) return wrong(x) end, double { 0.5, -1 },
      { raise_exception = false })
    assert.is_false(ok)
    assert.matches("the gradient of result 1 %(element 1%) in input 1 %(element 1%) is 3, finite " ..
      "differences give 1",
      message)
    raises("gradcheck: the gradient of result 1", autograd.gradcheck, function(x) return wrong(x) end,
      double { 0.5 })
    raises("no input requires a gradient", autograd.gradcheck, function(x) return x end, double({ 1 }, false))
    raises("gradcheck: fn must be a function, got 3", autograd.gradcheck, 3, double { 1 })
    raises("gradcheck: inputs, entry 1: expected a tensor, got 1", autograd.gradcheck, tensor.sin, { 1 })
    assert.is_true(autograd.gradgradcheck(function(x) return x:exp() * x end, double { 0.5, -1 }))
  end)

  it("gradcheck takes complex numbers, along 1 and along i", function()
    local function complex(re, im)
      return tensor.complex(double(re, false), double(im, false)):detach():requires_grad_()
    end
    local z, x = complex({ 1, -0.5 }, { 2, 0.3 }), double { 0.5, 2 }
    for _, fn in ipairs { function(a) return a * a:conj() + a:exp() end, function(a) return a:abs() end,
      function(a) return tensor.real(a) * 2 end,
      function(a, b) return a * b, tensor.complex(b, b * b) end } do
      assert.is_true(autograd.gradcheck(fn, { z, x }))
    end
    assert.is_true(autograd.gradgradcheck(function(a, b) return a:exp() * b end, { z, x }))
    local function wrong(factor)
      return tensor.Function {
        forward = function(ctx, a) ctx:save_for_backward(a) return a * a end,
        backward = function(ctx, g) return g * 2 * factor(ctx:saved_tensors()) end,
      }
    end
    assert.is_true(autograd.gradcheck(wrong(tensor.conj), z))
    -- d im(a^2) / d re(a) = 2 im(a), and the sign is turned
    raises("the gradient of result 1 (element 1, imaginary part) in input 1 (element 1, real part) is " ..
      "-4, finite " ..
      "differences give 4", autograd.gradcheck, wrong(function(a) return a end), z)
  end)

  it("gradcheck takes leaves of any strides but those whose elements are one", function()
    local x = double({ { 1, 2, 3 }, { 4, 5, 6 } }, false):t():requires_grad_()
    assert.is_false(x:is_contiguous())
    assert.is_true(autograd.gradcheck(function(a) return a:sin() * tensor.arange(6):double():view(3, 2) end,
      x))
    near({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, x)
    local ok, text = autograd.gradcheck(function(a) return (a * a:detach()):sum() end, x,
      { raise_exception = false })
    assert.is_false(ok)
    assert.matches("in input 1 %(element 1%) is 1, finite differences give 2", text)
    assert.is_true(autograd.gradcheck(function(a) return a * a end, double(3)))
    raises("gradcheck: input 1: expected elements of their own, but those along dim 1", autograd.gradcheck,
      tensor.sin, double({ 2 }, false):expand(3):requires_grad_())
    raises("gradcheck: input 1: expected a leaf, got a float64 tensor of shape [3, 2], the result of mul",
      autograd.gradcheck, tensor.sin, x * 2)
  end)

  it("detect_anomaly names the op whose gradient has a NaN", function()
    local x = double { 0, 1 }
    raises("backward: the gradient of sqrt in its argument 1 has a NaN, float64 [2]", autograd.detect_anomaly,
      function() (x:sqrt() * 0):sum():backward() end)
    assert.equal(3, autograd.detect_anomaly(function(a) return a end, 3))
    ;(x:sqrt() * 0):sum():backward() -- the watch is over
    assert.is_false(autograd.set_detect_anomaly(true))
    assert.is_true(autograd.set_detect_anomaly(false))
    raises("detect_anomaly: fn must be a function, got 3", autograd.detect_anomaly, 3)
  end)

  it("modules of functions refuse names that they lack", function()
    for name, module in pairs { ["accelerate.autograd"] = autograd, ["accelerate.func"] = func,
      ["accelerate.autograd.functional"] = autograd.functional, ["accelerate.tensor.linalg"] = tensor.linalg,
      ["accelerate.tensor.fft"] = tensor.fft, ["accelerate.tensor.special"] = tensor.special } do
      raises(name .. " has no 'nothing_of_it'", function() return module.nothing_of_it end)
    end
    raises("has no 'Variable'; instead: a tensor itself, with requires_grad = true", function()
      return autograd.Variable
    end)
    raises("has no 'svdval'; did you mean 'svdvals'?", function() return tensor.linalg.svdval end)
    raises("has no 'hesian'; did you mean 'hessian'?", function() return func.hesian end)
    raises("tensor: there is no function svdvals; it is accelerate.tensor.linalg.svdvals", function()
      return tensor.svdvals
    end)
    raises("has no 'vmap'; it is accelerate.func.vmap", function() return autograd.functional.vmap end)
  end)

  it("backward takes several tensors", function()
    local x = double { 1, 2 }
    autograd.backward({ x * 2, x:sum() }, { double({ 1, 10 }, false) })
    near({ 3, 21 }, x.grad)
    raises("tensor 1 has 2 elements: give its gradient in grad_tensors", autograd.backward, x * 2)
  end)

  it("backward takes its arguments by position and by name, and adds to the inputs that are named", function()
    local x, w, unused = double { 1, 2 }, double { 3, 4 }, double { 5, 6 }
    local function loss() return (x * w):sum() end
    autograd.backward(loss(), nil, { inputs = x })
    near({ 3, 4 }, x.grad)
    assert.is_nil(w.grad)
    autograd.backward { tensors = loss(), inputs = { x, unused, x } }
    near({ 6, 8 }, x.grad)
    assert.is_nil(unused.grad)
    local h = x * 2
    autograd.backward((h * w):sum(), nil, { inputs = { h } })
    near({ 3, 4 }, h.grad)
    near({ 6, 8 }, x.grad)
    local sum = (x + w):sum()
    autograd.backward(sum, nil, { inputs = { unused, w, x }, retain_graph = true })
    near({ 7, 9 }, x.grad)
    near({ 1, 1 }, w.grad)
    autograd.backward(sum, nil, true)
    autograd.backward(sum, { double(1, false) }, false)
    near({ 9, 11 }, x.grad)
    near({ 3, 3 }, w.grad)
    local y = double { 2 }
    autograd.backward(y * y * y, double({ 1 }, false), { create_graph = true, inputs = y })
    assert.is_true(y.grad.requires_grad)
    near({ 12 }, (autograd.grad(y.grad, y)))
    raises("backward: inputs, entry 1: expected a tensor that requires a gradient", autograd.backward, loss(),
      nil,
      { inputs = { double({ 1 }, false) } })
    raises("backward: inputs: expected a tensor or a list of tensors, got a table", autograd.backward, loss(),
      nil,
      { inputs = {} })
    raises("backward: unknown option 'retain'", autograd.backward, loss(), nil, { retain = true })
    raises("backward: option 'retain_graph' must be true or false, got 1", autograd.backward, loss(), nil, 1)
  end)

  it("backward takes complex gradients", function()
    local x, y = double { 1, 2 }, double { 3 }
    autograd.backward({ tensor.complex(x, x * 3), y * 2 }, { tensor.complex(double({ 1, 2 }, false),
      double({ 1, -1 }, false)), double({ 5 }, false) })
    near({ 1 + 3, 2 - 3 }, x.grad)
    near({ 10 }, y.grad)
    local z = tensor.complex(double { 1 }, double { 2 }):detach():requires_grad_()
    autograd.backward(z * 1, tensor.complex(double({ 4 }, false), double({ -7 }, false)))
    near({ 4 }, tensor.real(z.grad))
    near({ -7 }, tensor.imag(z.grad))
  end)

  it("backward wants gradients of the tensors' shapes", function()
    local x = double { 1, 2 }
    raises("backward: grad_tensors, entry 1: expected shape [2], as its tensor's, got [1]", autograd.backward,
      x * 2, double({ 1 }, false))
  end)

  it("functional.vjp, vhp and hvp multiply by a vector", function()
    local x, y, v = double { 1, 2 }, double { 3 }, double({ 1, -1 }, false)
    local out, g = autograd.functional.vjp(function(a) return a ^ 3 end, x, v)
    near({ 1, 8 }, out)
    near({ 3, -12 }, g)
    for _, name in ipairs { "vhp", "hvp" } do
      local value, along = autograd.functional[name](function(a) return (a ^ 3):sum() end, x, v)
      assert.equal(9, value:item())
      near({ 6, -12 }, along)
    end
    local _, list = autograd.functional.hvp(function(a, b) return (a * a):sum() * b:sum() end, { x, y },
      { v, double({ 2 }, false) })
    near({ 6 + 4, -6 + 8 }, list[1])
    near({ 2 - 4 }, list[2])
    near({ { 2, 0 }, { 0, 4 } }, autograd.functional.jacobian(function(a) return a * a end, x,
      { vectorize = true }))
    raises("hvp: v, entry 1: expected shape [2], got [1]", autograd.functional.hvp,
      function(a) return a:sum() end, x, y)
    raises("vhp: expected the function to return one number", autograd.functional.vhp,
      function(a) return a end, x, v)
  end)

  it("retain_grad keeps the gradient of a result", function()
    local x = double { 1, 2 }
    local y = x * 3
    y:retain_grad()
    local loss = (y * y):sum()
    loss:backward { retain_graph = true }
    near({ 6, 12 }, y.grad)
    loss:backward()
    near({ 12, 24 }, y.grad)
    near({ 36, 72 }, x.grad)
    y = x * 3
    assert.is_false(y.retains_grad)
    y:retain_grad()
    y:retain_grad() -- a second time changes nothing
    assert.is_true(y.retains_grad)
    local five = y * 5
    five:sum():backward()
    near({ 5, 5 }, y.grad)
    x:retain_grad()
    assert.is_false(x.retains_grad)
    raises("retain_grad: the tensor does not require a gradient", function() tensor.ones(2):retain_grad() end)
    local weak = setmetatable({}, { __mode = "v" })
    do
      local z = x * 2
      z:retain_grad()
      weak[1] = z
    end
    for _ = 1, 4 do collectgarbage() end
    assert.is_nil(weak[1])
  end)
end)

describe("func", function()
  it("hessian is a function without an input, and takes several; grad returns other results", function()
    local x, y = double { 1, 2, 3 }, double { 4, 5, 6 }
    near({ { 6, 0, 0 }, { 0, 12, 0 }, { 0, 0, 18 } }, func.hessian(function(v) return (v ^ 3):sum() end)(x))
    local rows = func.hessian(function(a, b) return (a * a * b):sum() end, { x, y })
    near({ { 8, 0, 0 }, { 0, 10, 0 }, { 0, 0, 12 } }, rows[1][1])
    near({ { 2, 0, 0 }, { 0, 4, 0 }, { 0, 0, 6 } }, rows[1][2])
    near({ { 2, 0, 0 }, { 0, 4, 0 }, { 0, 0, 6 } }, rows[2][1])
    near({ { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 } }, rows[2][2])
    local slope, other = func.grad(function(v) return (v * v):sum(), v * 7 end, { has_aux = true })(x)
    near({ 2, 4, 6 }, slope)
    near({ 7, 14, 21 }, other)
    raises("grad: unknown option 'aux'", func.grad, print, { aux = true })
  end)

  it("jacobian and hessian have the dims of result and input", function()
    local x = double { 1, 2, 3 }
    near({ { 2, 0, 0 }, { 0, 4, 0 }, { 0, 0, 6 } }, func.jacobian(function(v) return v * v end, x))
    local a, b = func.jacobian(function(u, v) return u:sum() * v end, { x, double { 4, 5 } })
    near({ { 4, 4, 4 }, { 5, 5, 5 } }, a)
    near({ { 6, 0 }, { 0, 6 } }, b)
    near({ { 6, 0, 0 }, { 0, 12, 0 }, { 0, 0, 18 } }, func.hessian(function(v) return (v ^ 3):sum() end, x))
    near({ { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 } }, func.hessian(function(v) return v:sum() end, x))
    assert.same({ 2, 2, 3, 2 }, autograd.functional.jacobian(function(v) return v[{ { 1, 2 } }] end,
      tensor.ones(3, 2)).shape)
    near({ { 4, 0 }, { 0, 10 } }, func.jacrev(function(u, v) return u * u * v end)(double { 1, 1 },
      double { 2, 5 }))
    near({ { 1, 0 }, { 0, 9 } }, func.jacfwd(function(u, v) return u * u * v end, 2)(double { 1, 3 },
      double { 2, 5 }))
    local j = func.jacobian(function(v) return v * v end, x, { create_graph = true })
    near({ 2, 2, 2 }, tensor.grad(j:sum(), x))
    assert.is_nil(x.grad)
    raises("jacobian: expected the function to return a tensor, got 3", func.jacobian,
      function() return 3 end, x)
    raises("hessian: expected the function to return one number", func.hessian, function(v) return v end, x)
    raises("jacobian: input 1: expected a tensor of a floating type", func.jacobian, tensor.abs,
      tensor.arange(3))
  end)

  it("jvp, vjp and grad", function()
    local x = double { 1, 2, 3 }
    local out, along = func.jvp(function(v) return v * v:sum() end, x, double({ 1, 0, -1 }, false))
    near({ 6, 12, 18 }, out)
    near({ 6, 0, -6 }, along)
    local value, back = func.vjp(function(v) return v * v end, x)
    near({ 1, 4, 9 }, value)
    near({ 2, 0, 6 }, back(double({ 1, 0, 1 }, false)))
    near({ 3, 12, 27 }, func.grad(function(v) return (v ^ 3):sum() end)(x))
    near({ 6, 12, 18 },
      func.grad(function(v) return func.grad(function(u) return (u ^ 3):sum() end)(v):sum() end)(x))
    local g, v = func.grad_and_value(function(a, b) return (a * b):sum() end, 2)(x, double { 1, 1, 1 })
    near({ 1, 2, 3 }, g)
    assert.equal(6, v:item())
    raises("jvp: 1 inputs, but 2 tangents", func.jvp, tensor.sin, x, { x, x })
  end)

  it("vmap loops over a dim and stacks", function()
    local a, b = double({ { 1, 2 }, { 3, 4 }, { 5, 6 } }, false), double({ 1, 10 }, false)
    near({ 21, 43, 65 }, func.vmap(function(r, w) return r:dot(w) end, { in_dims = { 1, false } })(a, b))
    near({ 9, 12 }, func.vmap(function(c) return c:sum() end, { in_dims = 2 })(a))
    local sums, rows = func.vmap(function(r) return r:sum(), r end, { out_dims = { 1, 2 } })(a)
    near({ 3, 7, 11 }, sums)
    assert.same({ 2, 3 }, rows.shape)
    raises("vmap: argument 2 has 2 positions to map over, those before it 3", func.vmap(tensor.add), a, b)
    raises("vmap: no argument is a tensor", func.vmap(tensor.add), 1, 2)
  end)

  it("functional_call uses other parameters and puts its own back", function()
    local net = nn.Sequential(nn.Linear(2, 1), nn.Tanh())
    local w = tensor({ { 2, 3 } }, { requires_grad = true })
    local own = net[1].weight
    local y = func.functional_call(net, { ["0.weight"] = w * 1, ["0.bias"] = tensor { 0 } },
      tensor { { 0.1, 0.2 } })
    assert(math.abs(y:item() - math.tanh(0.8)) < 1e-6)
    y:sum():backward()
    assert(w.grad)
    assert.equal(own, net[1].weight)
    assert.is_nil(own.grad)
    raises("has no parameter or buffer 0.wait", func.functional_call, net, { ["0.wait"] = w },
      tensor.ones(1, 2))
    assert.equal(own, net[1].weight)
    raises("functional_call: module: expected a module, got 3", func.functional_call, 3, {})
  end)

  it("jacobian gives a value for each result, grad and jacrev one for each number of a list", function()
    local x, y = double { 1, 2 }, double { 3, 4 }
    local first, second = func.jacobian(function(v) return v:sum(), v * 2 end, x)
    near({ 1, 1 }, first)
    near({ { 2, 0 }, { 0, 2 } }, second)
    first, second = func.jacobian(function(v, w) return v:sum() * w, v * 1 end, { x, y })
    near({ { 3, 3 }, { 4, 4 } }, first[1])
    near({ { 3, 0 }, { 0, 3 } }, first[2])
    near({ { 1, 0 }, { 0, 1 } }, second[1])
    near({ { 0, 0 }, { 0, 0 } }, second[2])
    raises("jacobian: strict: result 1 of the function does not depend on input 2", func.jacobian,
      function(v, _) return v * 1 end, { x, y }, { strict = true })
    raises("hessian: expected the function to return one tensor, got 2 results", func.hessian,
      function(v) return v:sum(), v end, x)
    local function product(v, w) return (v * w * w):sum() end
    local list = func.grad(product, { 1, 2 })(x, y)
    near({ 9, 16 }, list[1])
    near({ 6, 16 }, list[2])
    near({ 6, 16 }, func.grad(product, { argnums = { 2 } })(x, y)[1])
    local grads, value = func.grad_and_value(product, { 2, 1 })(x, y)
    near({ 9, 16 }, grads[2])
    assert.equal(41, value:item())
    local a, b = func.jacrev(function(v, w) return v * w end, { 1, 2 })(x, y)
    near({ { 3, 0 }, { 0, 4 } }, a)
    near({ { 1, 0 }, { 0, 2 } }, b)
    raises("grad: an entry of argnum must be at least 1, got 0", func.grad, product, { 1, 0 })
    raises("jvp: tangent 1: expected a tensor of shape [2], as its input, got a float64 tensor of shape [1]",
      func.jvp, tensor.sin, x, double { 1 })
  end)

  it("vmap takes PyTorch's other options, and names the argument that has no such dim", function()
    local a = double { { 1, 2 }, { 3, 4 } }
    near({ 3, 7 }, func.vmap(tensor.sum, { chunk_size = 1, randomness = "different" })(a))
    raises("vmap: in_dims: dim 3 of argument 1, which has shape [2, 2]",
      func.vmap(tensor.sum, { in_dims = 3 }), a)
  end)

  it("functional_call takes lists of tables, and replaces tied tensors under all their names", function()
    local net = nn.Sequential(nn.Linear(2, 2, { bias = false }), nn.Linear(2, 2, { bias = false }))
    net[2].weight = net[1].weight
    local x = tensor { 1, 1 }
    local doubled = tensor { { 2, 0 }, { 0, 2 } }
    assert.same({ 4, 4 }, func.functional_call(net, { ["0.weight"] = doubled }, x):tolist())
    local own = net(x):tolist()
    local one, other = tensor.eye(2), tensor.eye(2) * 3
    assert.same({ 3, 3 }, func.functional_call(net, { { ["0.weight"] = one }, { ["1.weight"] = other } },
      x):tolist())
    assert.same(own, net(x):tolist())
    local norm = nn.BatchNorm1d(2)
    norm:eval()
    local old, new = norm.weight, norm.bias -- two that change places
    assert.same({ { 1, 1 } }, func.functional_call(norm, { weight = new, bias = old },
      tensor { { 5, 6 } }):tolist())
    assert.equal(old, norm.weight)
  end)
end)

describe("set_printoptions", function()
  it("changes how tensors are shown, and profile = \"default\" restores it", function()
    local x = tensor { 0.123456, 10 }
    local before = tostring(x)
    tensor.set_printoptions { precision = 2 }
    assert.equal("tensor([ 0.12, 10.00])", tostring(x))
    tensor.set_printoptions { sci_mode = true }
    assert.equal("tensor([1.23e-01, 1.00e+01])", tostring(x))
    tensor.set_printoptions { threshold = 3, edgeitems = 1, precision = 4 }
    assert.equal("tensor([0,  ..., 5])", tostring(tensor.arange(6)))
    assert.equal(1, tensor.get_printoptions().edgeitems)
    tensor.set_printoptions { profile = "default" }
    assert.equal(before, tostring(x))
    raises("unknown option 'precison'; did you mean 'precision'", tensor.set_printoptions, { precison = 3 })
    raises("profile", tensor.set_printoptions, { profile = "long" })
  end)
end)

describe("utils.time", function()
  it("is the wall clock with fractions", function()
    local before, now = os.time(), accelerate.utils.time()
    assert(now >= before and now < os.time() + 1)
    local later = accelerate.utils.time()
    for _ = 1, 1000 do if later > now then break end later = accelerate.utils.time() end
    assert(later > now)
  end)
end)

describe("the backward of a tensor.Function", function()
  local message = require("spec.support.messages").message

  local function leaf() return core.tensor({ 1, 2 }, { dtype = "float64", requires_grad = true }) end

  it("gets nil for a result without a gradient after set_materialize_grads(false)", function()
    for _, on in ipairs { true, false } do
      local seen
      local f = tensor.Function {
        forward = function(x) return x * 2, x + 1 end,
        setup_context = function(ctx) ctx:set_materialize_grads(on) end,
        backward = function(_, first, second)
          seen = { first, second }
          return first * 2
        end,
      }
      local x = leaf()
      local y = f(x)
      y:sum():backward()
      assert.equal(on, seen[2] ~= nil)
      if on then assert.same({ 0, 0 }, seen[2]:tolist()) end
      assert.same({ 2, 2 }, x.grad:tolist())
    end
    local f = tensor.Function {
      forward = function(ctx, x)
        ctx:set_materialize_grads("no")
        return x
      end,
      backward = function(_, g) return g end,
    }
    assert.matches("set_materialize_grads: value must be true or false, got 'no'", message(f, leaf()))
  end)

  it("returns one gradient for each argument that requires one", function()
    local f = tensor.Function { name = "Product", forward = function(_, x, y) return x * y end,
      backward = function(_, g) return g end }
    local y = f(leaf(), leaf()):sum()
    assert.matches("Product: backward: 1 result, but argument 2 of forward requires a gradient; return " ..
      "one for " ..
      "each argument, nil for what has none", message(y.backward, y))
    local x = leaf()
    f(x, core.ones(2, { dtype = "float64" })):sum():backward() -- nothing is lost
    f(x, 3):sum():backward()
    assert.same({ 2, 2 }, x.grad:tolist())
  end)

  it("that is once_differentiable is not differentiated itself", function()
    local f = tensor.Function { name = "Square",
      forward = function(ctx, x)
        ctx:save_for_backward(x)
        return x * x
      end,
      backward = tensor.autograd.once_differentiable(function(ctx, g)
        assert.is_false(core.is_grad_enabled())
        return 2 * ctx:saved_tensors() * g
      end) }
    local x = leaf()
    f(x):sum():backward()
    assert.same({ 2, 4 }, x.grad:tolist())
    local g = tensor.grad(f(x):sum(), x, { create_graph = true })
    assert.same({ 2, 4 }, g:tolist())
    assert.is_true(g.requires_grad)
    local second = g:sum()
    assert.matches("once_differentiable: this gradient cannot be differentiated again",
      message(second.backward, second))
    assert.matches("once_differentiable: backward must be a function, got 3",
      message(tensor.autograd.once_differentiable, 3))
  end)
end)
