--- Complex parameters: modules, optimizers, clipping. PyTorch steps them by their parts.
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local function complex(pairs) return tensor.view_as_complex(tensor(pairs, { dtype = "float64" })) end
local function parts(z) return z:detach():view_as_real():reshape(-1):tolist() end
local function near(expected, got, allowed)
  assert.equal(#expected, #got)
  for i, value in ipairs(expected) do assert.near(value, got[i], allowed or 1e-12) end
end

local X = { { 0.5, -1 }, { 2, 0.5 } }
local function start() return nn.Parameter(complex { { 1, 2 }, { -0.5, 0.25 } }) end

local function closure(optimizer, w)
  return function()
    optimizer:zero_grad()
    local loss = (w * complex(X)):abs():square():sum() + w:real():sum()
    loss:backward()
    return loss
  end
end

describe("a complex parameter", function()
  -- Three steps of PyTorch 2.15.
  local AFTER = {
    Adam = { { lr = 0.1, weight_decay = 0.01, amsgrad = true },
      { 0.7009915444060575, 1.700623391890895, -0.20807191774152412, -0.030208329572887452 } },
    SGD = { { lr = 0.1, momentum = 0.9 },
      { -0.565375, -0.23625, 0.2320625, -0.22865625 } },
    LBFGS = { { lr = 0.5, max_iter = 3 },
      { -0.35845872157392444, 0.0593446834658222, -0.12262698328656903, 0.0032561044566044002 } },
  }
  for name, case in pairs(AFTER) do
    it("is stepped as by PyTorch: " .. name, function()
      local w = start()
      local optimizer = optim[name]({ w }, case[1])
      for _ = 1, 3 do optimizer:step(closure(optimizer, w)) end
      near(case[2], parts(w), 1e-9)
    end)
  end

  for _, name in ipairs { "AdamW", "Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop",
    "Rprop", "Lion" } do
    it("is stepped as its parts are: " .. name, function()
      local w, r = start(), nn.Parameter(tensor({ { 1, 2 }, { -0.5, 0.25 } }, { dtype = "float64" }))
      local first, second = optim[name]({ w }, { lr = 0.01 }), optim[name]({ r }, { lr = 0.01 })
      for _ = 1, 3 do
        first:step(closure(first, w))
        second:zero_grad()
        local z = tensor.view_as_complex(r)
        local loss = (z * complex(X)):abs():square():sum() + z:real():sum()
        loss:backward()
        second:step()
      end
      near(r:reshape(-1):tolist(), parts(w))
    end)
  end

  it("stands beside real ones in a group, and goes on from a state dict", function()
    local function made()
      local w, b = start(), nn.Parameter(tensor({ 0.5 }, { dtype = "float64" }))
      return w, b, optim.Adam({ b, w }, { lr = 0.1 })
    end
    local function step(w, b, optimizer, options)
      optimizer:zero_grad(options)
      local loss = (w * complex(X) + b):abs():square():sum()
      loss:backward()
      optimizer:step()
    end
    local w, b, optimizer = made()
    step(w, b, optimizer)
    step(w, b, optimizer, { set_to_none = false })
    local dict = optimizer:state_dict()
    assert.equal("complex128", dict.state[1].exp_avg.dtype)
    assert.equal("float64", dict.state[0].exp_avg.dtype)
    assert.same({ 2 }, dict.state[1].exp_avg_sq.shape)
    near(parts(dict.state[1].exp_avg), optimizer.state[w].exp_avg:reshape(-1):tolist())
    local w2, b2, other = made()
    tensor.no_grad(function()
      w2:copy_(w)
      b2:copy_(b)
    end)
    other:load_state_dict(dict)
    step(w, b, optimizer)
    step(w2, b2, other)
    near(parts(w), parts(w2))
    near(b:tolist(), b2:tolist())
    optimizer:zero_grad()
    assert.is_nil(w.grad)
  end)

  it("may have its gradient dropped between forward and backward", function()
    local w = start()
    local optimizer = optim.Adam({ w }, { lr = 0.1 })
    for _ = 1, 2 do
      local loss = (w * w):abs():square():sum() -- w is needed for the gradient
      optimizer:zero_grad() -- which does not count as an edit
      loss:backward()
      nn.utils.clip_grad_norm_({ w }, 1)
      optimizer:step()
    end
    assert.equal(2, optimizer.state[w].step)
  end)

  it("is stepped on with its state when it was converted", function()
    local layer = nn.Linear(2, 1, { dtype = "complex64" })
    local optimizer = optim.SGD(layer:parameters(), { lr = 0.5, momentum = 0.5 })
    local function step()
      optimizer:zero_grad()
      layer(tensor.ones({ 1, 2 }, { dtype = layer.weight.dtype })):real():sum():backward()
      optimizer:step()
    end
    local before = parts(layer.weight)
    step()
    layer:to("complex128")
    step() -- 0.5 (1 + 1.5) less in the real parts
    near({ before[1] - 1.25, before[2], before[3] - 1.25, before[4] }, parts(layer.weight), 1e-6)
    assert.equal("float64", optimizer.state[layer.weight].momentum_buffer.dtype)
  end)

  it("takes part in the norm of gradients, which are clipped", function()
    local w, r = start(), nn.Parameter(tensor({ 1 }, { dtype = "float64" }))
    w.grad, r.grad = complex { { 3, 4 }, { 1, -2 } }, tensor({ 2 }, { dtype = "float64" })
    assert.near(34 ^ 0.5, nn.utils.grad_norm { w, r }, 1e-9)
    assert.near(34 ^ 0.5, nn.utils.get_total_norm({ w.grad, r.grad }):item(), 1e-9)
    assert.near(34 ^ 0.5, nn.utils.clip_grad_norm_({ w, r }, 1):item(), 1e-9)
    near({ 0.51449566, 0.68599421, 0.17149855, -0.34299711 }, parts(w.grad), 1e-6)
    near({ 0.34299711 }, r.grad:tolist(), 1e-6)
    nn.utils.clip_grads_with_norm_({ w }, 0.5, 1)
    near({ 0.25724757, 0.34299676, 0.08574919, -0.17149838 }, parts(w.grad), 1e-6)
  end)

  it("is refused where PyTorch refuses it", function()
    for _, name in ipairs { "Adafactor", "Muon", "SparseAdam" } do
      raises(name .. ": parameter 1 of group 1 is complex128; complex parameters are not supported",
        optim[name], { nn.Parameter(tensor.complex(tensor.ones(2, 2):double(), tensor.ones(2, 2):double())) })
    end
    raises("only floating-point and complex tensors can require gradients, got int64", nn.Parameter,
      tensor.arange(2))
  end)

  it("is in modules: drawn, converted, called", function()
    local layer = nn.Linear(300, 200, { dtype = tensor.cfloat })
    local w = layer.weight:detach()
    for _, part in ipairs { w:real(), w:imag() } do
      assert.near(0.0333, part:std():item(), 0.001)
      assert.is_true(part:abs():max():item() <= 300 ^ -0.5)
    end
    assert.equal("complex64", layer:double().weight.dtype)
    assert.equal("complex128", layer:to("complex128").weight.dtype)
    assert.equal("complex64", nn.Linear(2, 2):to(tensor.cfloat).weight.dtype)
    raises("can only become of a floating or complex type, got 'int64'", layer.to, layer, "int64")
    local z = nn.init.normal_(tensor.zeros({ 300, 300 }, { dtype = "complex64" }), 0, 2)
    assert.near(2 ^ 0.5, z:real():std():item(), 0.02)
    assert.near(2 ^ 0.5, z:imag():std():item(), 0.02)
    assert.equal("complex128", tensor.zeros(2, { dtype = tensor.cdouble }).dtype)
  end)
end)
