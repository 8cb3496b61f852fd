--- Arguments of the methods of modules: by position in PyTorch's order, or by name.
local nn = require "accelerate.nn"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local function model()
  local net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
  local outer = nn.Module()
  outer.scale = nn.Parameter(tensor.ones(1))
  outer.net = net
  outer.again = net[1]
  return outer
end

local function names(walk)
  local list = {}
  for name in walk do list[#list + 1] = name end
  return table.concat(list, " ")
end

describe("arguments of methods of modules", function()
  it("name parameters", function()
    local m = model()
    local all = "n.scale n.net.0.weight n.net.0.bias n.net.1.weight n.net.1.bias"
    assert.equal(all, names(m:named_parameters("n")))
    assert.equal(all, names(m:named_parameters { prefix = "n" }))
    assert.equal("n.scale", names(m:named_parameters("n", false)))
    assert.equal("scale", names(m:named_parameters(nil, false)))
    assert.equal(all .. " n.again.weight n.again.bias", names(m:named_parameters("n", true, false)))
    assert.same({ 1, 1, 5, 5, 5 }, { #m:parameters(false), #m:parameters { recurse = false },
      #m:parameters(true), #m:parameters(), #m:parameters(nil) })
    raises("named_parameters: option 'prefix' must be a string, got false", m.named_parameters, m, false)
    raises("named_parameters: an argument too many: 5", m.named_parameters, m, "n", true, true, 5)
    raises("named_parameters: recurse is given twice, by position and by name", m.named_parameters, m, "n",
      true, { recurse = true })
    raises("parameters: option 'recurse' must be true or false, got 'net'", m.parameters, m, "net")
    raises("parameters: an argument too many: 1", m.parameters, m, nil, 1)
  end)

  it("name buffers, which may be transient", function()
    local m = nn.Module()
    m.inner = nn.Module()
    m:register_buffer("a", tensor.ones(1), false)
    m:register_buffer("b", tensor.ones(1), true)
    m:register_buffer("c", tensor.ones(1), { persistent = false })
    m.inner:register_buffer("d", tensor.ones(1))
    assert.equal("a b c inner.d", names(m:named_buffers()))
    assert.equal("x.a x.b x.c", names(m:named_buffers("x", false)))
    assert.same({ 3, 4 }, { #m:buffers(false), #m:buffers() })
    local dict = m:state_dict()
    assert.same({ true, true }, { dict.b ~= nil, dict["inner.d"] ~= nil })
    assert.same({}, { dict.a, dict.c })
    raises("register_buffer: option 'persistent' must be true or false, got 'no'", m.register_buffer, m, "e",
      tensor.ones(1), "no")
    raises("register_buffer: an argument too many: 1", m.register_buffer, m, "e", tensor.ones(1), true, 1)
    raises("named_buffers: an argument too many: 4", m.named_buffers, m, "", true, true, 4)
    raises("buffers: an argument too many: 4", m.buffers, m, true, 4)
  end)

  it("name modules", function()
    local m = model()
    assert.equal(" net net.0 net.1", names(m:named_modules()))
    assert.equal("x x.net x.net.0 x.net.1", names(m:named_modules(nil, "x")))
    assert.equal(" net net.0 net.1 again", names(m:named_modules(nil, nil, false)))
    local memo = { [m.net] = true }
    assert.equal("x x.again", names(m:named_modules { memo = memo, prefix = "x" }))
    assert.is_true(memo[m.again])
    raises("named_modules: option 'memo' must be a table, got 'x'", m.named_modules, m, "x")
    raises("named_modules: an argument too many: 4", m.named_modules, m, nil, "", true, 4)
  end)

  it("say how a state is given and taken", function()
    local m = nn.Linear(2, 1)
    local dict = { weight = tensor.ones(1, 2) }
    raises("missing keys: bias", m.load_state_dict, m, dict)
    assert.same({ missing_keys = { "bias" }, unexpected_keys = {} }, m:load_state_dict(dict, false))
    assert.same({ 1, 1 }, m.weight:flatten():tolist())
    assert.same({ "bias" }, m:load_state_dict(dict, { strict = false }).missing_keys)
    local doubles = { weight = tensor.zeros(1, 2, { dtype = "float64" }), bias = tensor.zeros(1) }
    m:load_state_dict(doubles, true, true)
    assert.equal("float64", m.weight.dtype)
    raises("load_state_dict: option 'assign' must be true or false, got 'junk'", m.load_state_dict, m, dict,
      {}, "junk")
    raises("load_state_dict: an argument too many: 'junk'", m.load_state_dict, m, dict, true, false, "junk")

    local into = { other = 1 }
    assert.equal(into, m:state_dict(into, "m."))
    assert.same({ 1, true, true }, { into.other, into["m.weight"] ~= nil, into["m.bias"] ~= nil })
    assert.is_true(m:state_dict(nil, "", true).weight.requires_grad)
    assert.is_false(m:state_dict(nil, "", false).weight.requires_grad)
    raises("state_dict: option 'destination' must be a table, got 'm.'", m.state_dict, m, "m.")
    raises("state_dict: an argument too many: 1", m.state_dict, m, nil, "", true, 1)
  end)

  it("set modes and clear gradients", function()
    local m = nn.Linear(2, 1)
    assert.is_false(m:train(false).training)
    assert.is_true(m:train { mode = true }.training)
    assert.is_false(m:train { mode = false }.training)
    raises("train: an argument too many: 1", m.train, m, true, 1)
    raises("Linear: train's mode must be true or false, got 1", m.train, m, 1)
    raises("train: unknown option 'moed'; did you mean 'mode'?", m.train, m, { moed = true })
    m(tensor.ones(1, 2)):sum():backward()
    m:zero_grad(false)
    assert.same({ 0, 0 }, m.weight.grad:flatten():tolist())
    raises("zero_grad: an argument too many: 1", m.zero_grad, m, true, 1)
    raises("zero_grad: option 'set_to_none' must be true or false, got 1", m.zero_grad, m, 1)
  end)
end)
