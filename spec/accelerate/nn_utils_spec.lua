-- nn.Parameter and nn.utils.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local message = require("spec.support.messages").message
local nets = require "spec.support.nets"

local Net, near, numbers = nets.Net, nets.near, nets.numbers

describe("nn.Parameter", function()
  it("shares its tensor's elements and is a leaf", function()
    local t = core.ones(2)
    local p = nn.Parameter(t)
    assert.is_true(p.requires_grad and p.is_leaf and nn.is_parameter(p))
    assert.is_false(nn.is_parameter(t))
    t:fill_(3)
    assert.same({ 3, 3 }, numbers(p))
    assert.is_false(nn.Parameter(t, { requires_grad = false }).requires_grad)
    assert.is_true(nn.Parameter(core.ones(2, { requires_grad = true }) * 2).is_leaf)
  end)

  it("refuses what cannot be trained", function()
    assert.matches("Parameter: expected a tensor, got 3", message(nn.Parameter, 3))
    assert.matches("only floating%-point and complex tensors can require gradients, got int64",
      message(nn.Parameter, core.ones(2, { dtype = "int64" })))
    assert.is_false(nn.Parameter(core.ones(2, { dtype = "int64" }), { requires_grad = false }).requires_grad)
  end)

  it("outlives collections as a parameter", function()
    local net = Net(3)
    net(core.ones(1, 2)):sum():backward()
    collectgarbage()
    collectgarbage()
    for _, p in ipairs(net:parameters()) do assert.is_true(nn.is_parameter(p)) end
  end)
end)

describe("nn.utils", function()
  local function with_grads()
    local a, b, c = core.zeros(2, { requires_grad = true }), core.zeros(1,
      { requires_grad = true }), core.zeros(1, { requires_grad = true })
    a.grad = core.tensor { 3, 0 }
    b.grad = core.tensor { 4 }
    return a, b, c
  end

  it("clip_grad_norm_ returns the norm before clipping and scales", function()
    local a, b, c = with_grads()
    local norm = nn.utils.clip_grad_norm_({ a, b, c }, 1)
    assert.equal(5, norm:item())
    assert.equal(0, norm:dim())
    near({ 0.6, 0 }, a.grad)
    near({ 0.8 }, b.grad)
    assert.is_nil(c.grad)
    nn.utils.clip_grad_norm_({ a, b, c }, 10)
    near({ 0.6, 0 }, a.grad)
    assert.near(0.8, nn.utils.clip_grad_norm_({ a, b }, 10, { norm_type = math.huge }):item(), 1e-6)
    assert.near(1.4, nn.utils.grad_norm({ a, b }, { norm_type = 1 }), 1e-6)
  end)

  it("clip_grad_value_ limits each element", function()
    local a, b, c = with_grads()
    nn.utils.clip_grad_value_({ a, b, c }, 3.5)
    near({ 3, 0 }, a.grad)
    near({ 3.5 }, b.grad)
    nn.utils.clip_grad_value_(a, 1)
    near({ 1, 0 }, a.grad)
  end)

  it("get_total_norm knows every norm", function()
    local list = { core.tensor { 3, -0.5 }, core.tensor { { 4, 1 }, { 2, -7 } }, core.tensor(0.25) }
    for p, expected in pairs {  -- PyTorch's
      [0.5] = 99.98245001393481, [3] = 7.623958471015903, [-1] = 0.1215629522431259,
      [-2] = 0.21594686597950252, [1] = 17.75,
      [2] = 8.905756565278438, [math.huge] = 7, [-math.huge] = 0.25,
    } do
      local norm = nn.utils.get_total_norm(list, { norm_type = p })
      assert.near(expected, norm:item(), 1e-6 * expected)
      assert.equal("float32", norm.dtype)
    end
    for _, scale in ipairs { 1e-22, 1e-8, 1, 1e18, 1e30 } do  -- the squares of some are none of float32's
      local p = core.zeros(3000)
      p.grad = core.full({ 3000 }, 3 * scale)
      assert.near(3 * math.sqrt(3000), nn.utils.grad_norm(p) / scale, 1e-3)
    end
    assert.equal(0, nn.utils.get_total_norm({}):item())
    assert.equal(0, nn.utils.get_total_norm({ core.zeros(0) }, { norm_type = -math.huge }):item())
    assert.matches("norm_type must be a number other than 0",
      message(nn.utils.get_total_norm, list, { norm_type = 0 }))
    assert.matches("norm: tensor 2 is int64", message(nn.utils.get_total_norm, { list[1], core.arange(3) }))
    list[2][{ 1, 1 }] = 0 / 0
    for _, p in ipairs { 1, 2, 3, math.huge, -math.huge } do
      local norm = nn.utils.get_total_norm(list, { norm_type = p }):item()
      assert.is_true(norm ~= norm)
    end
    assert.matches("get_total_norm: the norm is",
      message(nn.utils.get_total_norm, list, { error_if_nonfinite = true }))
  end)

  it("norms and clips gradients of several types and layouts together", function()
    local function params(grads)
      local list = {}
      for i, grad in ipairs(grads) do
        list[i] = core.zeros(grad.shape, { dtype = grad.dtype, requires_grad = true })
        list[i].grad = grad
      end
      return list
    end
    local function mixed()
      return params {
        core.tensor { 3, 0 }, core.tensor({ 4 }, { dtype = "float64" }),
        core.tensor({ 12 }, { dtype = "bfloat16" }),
        core.tensor { { 84, 0 }, { 0, 0 } }:t(),
      }
    end
    local list = mixed()
    local norm = nn.utils.clip_grad_norm_(list, 17)
    assert.near(85, norm:item(), 1e-9)
    assert.equal("float64", norm.dtype)
    near({ 0.6, 0 }, list[1].grad)
    near({ 0.8 }, list[2].grad)
    assert.near(2.4, list[3].grad:item(), 0.01)
    assert.near(16.8, list[4].grad[{ 1, 1 }]:item(), 1e-5)
    list = mixed()
    nn.utils.clip_grads_with_norm_(list, 17, norm)
    near({ 0.6, 0 }, list[1].grad)
    list = mixed()
    list[1].grad = core.tensor { 0 / 0, -9 }
    nn.utils.clip_grad_value_(list, 3.5)
    local clipped = list[1].grad:totable()
    assert.is_true(clipped[1] ~= clipped[1])
    assert.equal(-3.5, clipped[2])
    assert.equal(3.5, list[2].grad:item())
    assert.equal(3.5, list[3].grad:item())
    near({ 3.5, 0, 0, 0 }, list[4].grad:flatten())
  end)

  it("parameters_to_vector and vector_to_parameters", function()
    local a, b = core.tensor { { 1, 2 }, { 3, 4 } }:requires_grad_(), core.tensor { 5 }:requires_grad_()
    local vector = nn.utils.parameters_to_vector { a, b }
    assert.same({ 1, 2, 3, 4, 5 }, vector:totable())
    core.mul(vector, core.tensor { 1, 2, 3, 4, 5 }):sum():backward()
    assert.same({ { 1, 2 }, { 3, 4 } }, a.grad:totable())
    nn.utils.vector_to_parameters(vector:detach() * 2, { a, b })
    assert.same({ { 2, 4 }, { 6, 8 } }, a:totable())
    assert.same({ 10 }, b:totable())
    assert.matches("the parameters have 5 elements, the vector has shape %[4%]",
      message(nn.utils.vector_to_parameters, core.zeros(4), { a, b }))
  end)

  it("checks what it is given", function()
    local a = with_grads()
    assert.matches("clip_grad_norm_: max_norm must be at least 0, got %-1",
      message(nn.utils.clip_grad_norm_, { a }, -1))
    assert.matches("clip_grad_norm_: max_norm is missing", message(nn.utils.clip_grad_norm_, { a }))
    assert.matches("clip_grad_norm_: expected a list of tensors %(model:parameters%(%)%), got a Net",
      message(nn.utils.clip_grad_norm_, Net(2), 1))
    assert.matches("entry 1 must be a tensor, got 3", message(nn.utils.clip_grad_norm_, { 3 }, 1))
    a.grad = core.tensor { 1 / 0, 0 }
    assert.is_string(message(nn.utils.clip_grad_norm_, { a }, 1, { error_if_nonfinite = true }))
  end)
end)
