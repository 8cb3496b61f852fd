--- Forms of calls that public PyTorch code has, and what stands in place of those that Lua cannot
--- have.
local accelerate = require "accelerate"
local data = require "accelerate.data"
local nn = require "accelerate.nn"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local D = accelerate.distributions
local weights = tensor { 0.1, 0.2, 0.3 }

describe("distributions", function()
  it("take the options of their methods by name", function()
    for _, d in ipairs { D.Bernoulli { logits = weights }, D.Binomial(1, weights) } do
      assert.same({ 2, 1 }, d:enumerate_support { expand = false }.shape)
      assert.same({ 2, 1 }, d:enumerate_support(false).shape)
      assert.same({ 2, 3 }, d:enumerate_support { expand = true }.shape)
      assert.same({ 2, 3 }, d:enumerate_support().shape)
    end
    local one_hot = D.OneHotCategorical(tensor.ones(2, 3))
    assert.same({ 3, 1, 3 }, one_hot:enumerate_support { expand = false }.shape)
    raises("enumerate_support: unknown option 'expnd'; did you mean 'expand'?", one_hot.enumerate_support,
      one_hot, { expnd = false })

    local d = D.Normal(0, 1)
    assert.same(d:log_prob(0.5):item(), d:log_prob({ value = 0.5 }):item())
    assert.same(d:cdf(0.5):item(), d:cdf({ value = 0.5 }):item())
    assert.same(d:icdf(0.5):item(), d:icdf({ value = 0.5 }):item())
    assert.same({ 2, 3 }, d:expand({ batch_shape = { 2, 3 } }).batch_shape)
    assert.near(-1.0986, D.Categorical(tensor.ones(3)):log_prob({ value = 1 }):item(), 1e-4)
    raises("log_prob: unknown option 'vlue'; did you mean 'value'?", d.log_prob, d, 0.5, { vlue = 1 })
  end)

  it("have the shape of probs and logits", function()
    for _, d in ipairs { D.Categorical { logits = weights }, D.Categorical(weights), D.Bernoulli(weights),
      D.OneHotCategorical { logits = weights }, D.Binomial(2, weights) } do
      assert.same({ 3 }, d.param_shape)
    end
    assert.is_nil(D.Normal(0, 1).param_shape)
  end)

  it("keep one temperature as it was given", function()
    local d = D.RelaxedBernoulli(tensor(0.5), { logits = weights })
    assert.same({}, d.temperature.shape)
    assert.same({}, d:expand({ 2, 3 }).temperature.shape)
    assert.same({ 2, 3 }, d:expand({ 2, 3 }):sample().shape)
    assert.same({ 3 }, D.RelaxedBernoulli(tensor { 0.5, 0.6, 0.7 }, { logits = weights }).temperature.shape)
    -- PyTorch's values
    local expected = { -0.586582, -0.614499, -0.646990 }
    for i, value in ipairs(d:log_prob(0.3):tolist()) do assert.near(expected[i], value, 1e-4) end
  end)
end)

describe("modules", function()
  it("register what is given by name", function()
    local m = nn.Linear(2, 2)
    m:register_buffer { name = "a", tensor = weights:clone() }
    m:register_buffer { name = "b", tensor = weights:clone(), persistent = false }
    m:register_buffer("c", { tensor = weights:clone(), persistent = false })
    m:register_buffer { name = "later" }
    m.later = weights
    m:register_parameter { name = "p", param = nn.Parameter(weights) }
    m:add_module { name = "relu", module = nn.ReLU() }
    local names = {}
    for name in pairs(m:state_dict()) do names[name] = true end
    assert.same({ weight = true, bias = true, a = true, later = true, p = true }, names)
    assert.equal("ReLU()", tostring(m.relu))
    assert.equal(4, #m:buffers())
    raises("add_module: unknown option 'modul'; did you mean 'module'?", m.add_module, m,
      { name = "x", modul = nn.ReLU() })
    raises("a buffer's name must be a string without dots that is not empty, got a list of 1",
      m.register_buffer, m, { {} })
    raises("a parameter's name must be a string", m.register_parameter, m, { weights })
  end)

  it("say what stands for the members of PyTorch's modules", function()
    local m = nn.Linear(2, 2)
    for name, instead in pairs { _modules = "named_children()",
      _parameters = "named_parameters { recurse = false }", _buffers = "named_buffers { recurse = false }",
      __class__ = "module.__name" } do
      raises(("modules have no '%s': "):format(name), function() return m[name] end)
      raises(instead, function() return m[name] end)
    end
    assert.is_nil(m.nothing)
    m._buffers = { 1 } -- a script's own
    assert.same({ 1 }, m._buffers)
  end)

  it("refuse overrides that are never called", function()
    local Own = nn.class("Own")
    function Own:_load_from_state_dict() end
    local m = nn.Sequential(Own())
    raises("Own: _load_from_state_dict is never called; module:register_load_state_dict_pre_hook(hook)",
      m.load_state_dict, m, {})
  end)
end)

describe("layers on the device meta", function()
  it("have no elements until a state dict is assigned", function()
    local on = { device = "meta" }
    for _, layer in ipairs { nn.Linear(2, 3, on), nn.Conv2d(2, 3, 3, on), nn.LSTM(2, 3, on),
      nn.Embedding(5, 3, { padding_idx = 0, device = "meta" }), nn.LayerNorm(3, on), nn.BatchNorm2d(3, on),
      nn.InstanceNorm1d(3, { affine = true, track_running_stats = true, device = "meta" }),
      nn.MultiheadAttention(4, 2, on), nn.TransformerEncoderLayer(4, 2, on), nn.Bilinear(2, 2, 2, on) } do
      for name, t in pairs(layer:state_dict()) do assert.equal("meta", t.device, name) end
    end
    local layer, other = nn.Linear(2, 3, on), nn.Linear(2, 3)
    raises("a tensor of the device meta has no elements", layer, tensor.ones(1, 2))
    layer:load_state_dict(other:state_dict(), { assign = true })
    assert.same(other(tensor.ones(1, 2)):tolist(), layer(tensor.ones(1, 2)):tolist())
  end)
end)

describe("tensors", function()
  it("are drawn through the generator that manual_seed gives", function()
    local generator = tensor.manual_seed(3)
    assert.equal(3, generator:initial_seed())
    local through, after = tensor.rand(2, { generator = generator }):tolist(), tensor.rand(2):tolist()
    tensor.manual_seed(3)
    assert.same(through, tensor.rand(2):tolist())
    assert.same(after, tensor.rand(2):tolist())
  end)

  it("have no backend for Apple's GPUs", function()
    assert.is_false(tensor.backends.mps.is_available())
    assert.is_false(tensor.backends.mps.is_built())
    raises("tensor.backends has no 'mkl'", function() return tensor.backends.mkl end)
  end)
end)

describe("a data set of one column", function()
  it("gives collate_fn the rows themselves", function()
    local set, seen = data.TensorDataset(tensor { 1, 2 }), nil
    local loader = data.DataLoader(set, { batch_size = 2, collate_fn = function(batch)
      seen = batch
      return tensor.stack(batch)
    end })
    for x in loader:iter() do assert.same({ 1, 2 }, x:tolist()) end
    assert.is_true(tensor.is_tensor(seen[1]))
  end)
end)
