--- accelerate.func on parameters by name: gradients of each sample, ensembles, and derivatives in
--- the form of their arguments. Each is compared with the same work done one by one.
local accelerate = require "accelerate"
local nn = require "accelerate.nn"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises
local func, F = accelerate.func, nn.functional

local function close(expected, got) assert(tensor.allclose(expected, got, 1e-5, 1e-6), tostring(got)) end

local function net() return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) end
local function by_name(model)
  local values = {}
  for name, p in model:named_parameters() do values[name] = p:detach() end
  return values
end

describe("func with parameters by name", function()
  local model, x, y = net(), tensor.randn(5, 3), tensor.randn(5, 2)
  local params = by_name(model)
  local function loss(p, sample, target)
    return F.mse_loss(func.functional_call(model, p, sample:unsqueeze(1)), target:unsqueeze(1))
  end
  local function expected(sample, target)
    model:zero_grad()
    F.mse_loss(model(sample:unsqueeze(1)), target:unsqueeze(1)):backward()
    local grads = {}
    for name, p in model:named_parameters() do grads[name] = p.grad:clone() end
    return grads
  end

  it("gives gradients by name, and those of each sample with vmap", function()
    local one = func.grad(loss)(params, x[1], y[1])
    for name, g in pairs(expected(x[1], y[1])) do close(g, one[name]) end
    local each, values = func.vmap(func.grad_and_value(loss), { in_dims = { false, 1, 1 } })(params, x, y)
    assert.same({ 5 }, values.shape)
    for k = 1, 5 do
      for name, g in pairs(expected(x[k], y[k])) do close(g, each[name][k]) end
    end
  end)

  it("functional_call takes the arguments one by one, or in one list", function()
    local two = nn.Bilinear(3, 3, 2)
    local p, a, b = by_name(two), tensor.randn(5, 3), tensor.randn(5, 3)
    close(two(a, b), func.functional_call(two, p, a, b))
    close(two(a, b), func.functional_call(two, p, { a, b }))
    close(model(x), func.functional_call(model, params, { x }))
    local Sum = nn.class("Sum")
    function Sum.forward(_, list) return list[1] + list[2] end
    close(a + b, func.functional_call(Sum(), {}, { { a, b } }))
  end)

  it("vmap draws the same numbers at each position with randomness = \"same\"", function()
    local function noisy(v) return v + tensor.rand(2) end
    for _, randomness in ipairs { "same", "different" } do
      tensor.manual_seed(3)
      local out = func.vmap(noisy, { randomness = randomness })(tensor.zeros(3))
      local after = tensor.rand(1)
      tensor.manual_seed(3)
      local first, second = tensor.rand(2), tensor.rand(2)
      close(first, out[1])
      close(randomness == "same" and first or second, out[2])
      -- as after one run of the function
      if randomness == "same" then close(second[{ { 1, 1 } }], after) end
    end
    raises("vmap: option 'randomness' must be one of error, different, same, got 'other'", func.vmap, noisy,
      { randomness = "other" })
  end)

  it("hessian takes functions that give several numbers, and more arguments", function()
    local function f(v, k) return tensor.stack { v[1] ^ 2 * v[2], v[2] ^ 3 } * (k or 1) end
    local at = tensor.tensor { 1, 2 }
    close(tensor.tensor { { { 4, 2 }, { 2, 0 } }, { { 0, 0 }, { 0, 12 } } }, func.hessian(f)(at)) -- PyTorch's
    close(func.hessian(f)(at) * 3, func.hessian(f)(at, 3))
    assert.same({ 1, 1, 2, 2 },
      func.hessian(function(v) return (v ^ 3)[{ { 1, 1 } }]:view(1, 1) end)(at).shape)
    raises("hessian: expected the function to return one number", func.hessian, f, at)
  end)

  it("runs an ensemble with stack_module_state", function()
    local models = { net(), net(), net() }
    local stacked, buffers = func.stack_module_state(models)
    local first = models[1]:named_parameters()()
    assert.same({ 3, 4, 3 }, stacked[first].shape)
    assert.is_true(stacked[first].is_leaf and stacked[first].requires_grad)
    assert.same({}, buffers)
    local function call(p, input) return func.functional_call(models[1], p, input) end
    local out = func.vmap(call, { in_dims = { 1, false } })(stacked, x)
    for k, m in ipairs(models) do close(m(x), out[k]) end
    out:square():sum():backward()
    models[2]:zero_grad()
    models[2](x):square():sum():backward()
    close(models[2]:parameters()[1].grad, stacked[first].grad[2])
    local norms = { nn.BatchNorm1d(3), nn.BatchNorm1d(3) }
    assert.same({ 2, 3 }, select(2, func.stack_module_state(norms)).running_mean.shape)
  end)

  it("gives Jacobians, Hessians and products with them in the form of the argument", function()
    local function call(p) return func.functional_call(model, p, x[1]:unsqueeze(1)):view(-1) end
    local J = func.jacrev(call)(params)
    for k = 1, 2 do
      local row = func.grad(function(p) return call(p)[k] end)(params)
      for name in pairs(params) do close(row[name], J[name][k]) end
    end
    local out, back = func.vjp(call, params)
    local g, v = back(tensor.tensor { 1, -2 }), {}
    for name, p in pairs(params) do
      close(J[name][1] - 2 * J[name][2], g[name])
      v[name] = tensor.randn(p.shape)
    end
    local value, along = func.jvp(call, { params }, { v })
    close(out, value)
    local sum = tensor.zeros(2)
    for name in pairs(params) do sum = sum + (J[name] * v[name]:unsqueeze(1)):flatten(2):sum(2) end
    close(sum, along)

    local a, b = tensor.tensor { 0.3, -1 }, tensor.tensor { 0.7 }
    local H = func.hessian(function(p) return (p.a:prod() * p.b * p.b):sum() end)({ a = a, b = b })
    close(tensor.tensor { { 0, 0.49 }, { 0.49, 0 } }, H.a.a)
    close(tensor.tensor { { -1 * 1.4 }, { 0.3 * 1.4 } }, H.a.b)
    close(tensor.tensor { { -0.6 } }, H.b.b)
    local several = func.jacrev(function(p) return { twice = p.a * 2, square = p.a:square() } end)({ a = a })
    close(tensor.eye(2) * 2, several.twice.a)
    close((a * 2):diag(), several.square.a)
  end)

  it("maps over nested arguments with dims by key, and stacks nested results", function()
    local out = func.vmap(function(p, z) return { sum = p.a + p.b[1], z = { z } } end,
      { in_dims = { { a = 2, b = false }, 1 }, out_dims = 1 })({ a = tensor.arange(6):view(2, 3),
      b = { tensor.ones(2) } }, tensor.arange(3))
    assert.same({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, out.sum:tolist())
    assert.same({ 0, 1, 2 }, out.z[1]:tolist())
  end)

  it("names what does not fit", function()
    raises("grad: input 1 at a: expected a tensor of a floating type, got 1",
      function() func.grad(function() end)({ a = 1 }) end)
    raises("vmap: in_dims: dim 0 of argument 1, which has shape [2]; dims count from 1",
      func.vmap(function(v) return v end, { in_dims = 0 }), tensor.ones(2))
    raises("vmap: in_dims: dim 3 of argument 1 at a, which has shape [2]",
      function() func.vmap(function(p) return p.a end, { in_dims = 3 })({ a = tensor.ones(2) }) end)
    raises("vmap: argument 1 at b has 3 positions to map over, those before it 2",
      function() func.vmap(function(p) return p.a end)({ a = tensor.ones(2), b = tensor.ones(3) }) end)
    raises("jvp: tangent 1.a: expected a tensor of shape [2]", function()
      func.jvp(function(p) return p.a:sum() end, { { a = tensor.ones(2) } }, { { a = tensor.ones(3) } })
    end)
    raises("jacrev: the function's result: expected a tensor, or a table of them, got a number",
      function() func.jacrev(function() return 3 end)(tensor.ones(2)) end)
    raises("stack_module_state: weight of module 2 is a float32 tensor of shape [2, 2]",
      function() func.stack_module_state { nn.Linear(1, 2), nn.Linear(2, 2) } end)
    raises("stack_module_state: module 2 is in evaluation mode, module 1 is not",
      function() func.stack_module_state { nn.Linear(1, 2), nn.Linear(1, 2):eval() } end)
    raises("stack_module_state: entry 1: expected a module, got 3",
      function() func.stack_module_state { 3 } end)
  end)
end)
