-- model:clone() and utils.deepcopy of modules.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local ordered = require "accelerate.utils.ordered"
local state = require "accelerate.state"
local tensor = require "accelerate.tensor"

local function equal(a, b)
  assert.same(ordered.keys(a), ordered.keys(b))
  for name, t in ordered.pairs(a) do
    assert.same(t:totable(), b[name]:totable(), name)
    assert.not_equal(t:_address(), b[name]:_address(), name)
  end
end

describe("a model's clone", function()
  it("has the original's values in memory of its own, for every built-in layer", function()
    tensor.manual_seed(1)
    local models = {
      nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(12, 2)),
      nn.LSTM(3, 4, { num_layers = 2, bidirectional = true }), nn.GRU(3, 4), nn.Embedding(5, 3),
      nn.MultiheadAttention(4, 2), nn.TransformerEncoderLayer(4, 2), nn.LayerNorm(4),
      nn.ModuleList { nn.Linear(2, 2) },
      nn.ModuleDict { a = nn.Linear(2, 2) }, nn.ParameterList { nn.Parameter(core.ones(2)) },
    }
    for _, model in ipairs(models) do
      local copy = model:clone()
      equal(model:state_dict(), copy:state_dict())
      assert.equal(tostring(model), tostring(copy))
      assert.equal(#model:parameters(), #copy:parameters())
    end
    local x = core.rand(2, 2, 4, 4)
    local copy = models[1]:clone():eval()
    models[1]:eval()
    assert.same(models[1](x):totable(), copy(x):totable())
    copy[1].weight.data:zero_()
    assert.is_true(models[1][1].weight:abs():sum():item() > 0)
    local out = models[2]:clone()(core.ones(2, 1, 3))
    assert.same(models[2](core.ones(2, 1, 3)):totable(), out:totable())
  end)

  it("keeps ties, modes, requires_grad, buffers, hooks and plain attributes", function()
    local Net = nn.class("Net")
    function Net:init()
      self.first = nn.Linear(3, 3)
      self.second = nn.Linear(3, 3)
      self.second.weight = self.first.weight
      self.same = self.first
      self.sizes = { 1, { 2 } }
      self.name = "net"
      self:register_buffer("mask", core.ones(3))
      self:register_buffer("scratch", core.ones(3), { persistent = false })
      self.list = { self.first.weight }
    end
    function Net:forward(x) return self.second(self.first(x)) * self.mask end
    local net = Net()
    net.first.bias.requires_grad = false
    net.second:eval()
    local calls = {}
    net:register_forward_hook(function(module) calls[#calls + 1] = module end)
    net(core.ones(1, 3)):sum():backward()

    local copy = net:clone()
    assert.equal("Net", copy.__name)
    assert.equal(copy.first.weight, copy.second.weight)
    assert.equal(copy.first, copy.same)
    assert.equal(copy.first.weight, copy.list[1])
    assert.not_equal(net.first.weight, copy.first.weight)
    assert.is_nil(copy.first.weight.grad)
    assert.is_true(copy.first.weight.requires_grad)
    assert.is_false(copy.first.bias.requires_grad)
    assert.is_true(copy.training)
    assert.is_false(copy.second.training)
    assert.same({ 1, { 2 } }, copy.sizes)
    assert.not_equal(net.sizes, copy.sizes)
    assert.equal("net", copy.name)
    assert.same(ordered.keys(net:state_dict()), ordered.keys(copy:state_dict()))
    assert.equal(2, #copy:buffers())
    copy(core.ones(1, 3))
    assert.same({ net, copy }, calls)
    -- the copy trains by itself
    local optimizer = optim.SGD(copy:parameters(), { lr = 1 })
    local before = net.first.weight:totable()
    copy(core.ones(1, 3)):sum():backward()
    optimizer:step()
    assert.same(before, net.first.weight:totable())
    -- and is tied to what is copied with it
    local both = accelerate.utils.deepcopy { weight = net.first.weight, net = net }
    assert.equal(both.weight, both.net.first.weight)
    assert.equal(#net:parameters(), #both.net:parameters())
  end)

  it("of a parameter is a parameter", function()
    local copy = accelerate.utils.deepcopy { nn.Parameter(core.ones(2), { requires_grad = false }) }[1]
    local net = nn.Module()
    net.weight = copy
    assert.equal(1, #net:parameters())
    assert.is_false(copy.requires_grad)
  end)

  it("of a prepared model is not prepared", function()
    state.reset()
    local accelerator = accelerate.Accelerator { mixed_precision = "bf16" }
    local model = accelerator:prepare(nn.Linear(4, 4))
    local copy = model:clone()
    copy.weight.data:zero_()
    copy.bias.data:zero_()
    assert.equal(0, copy(core.ones(1, 4)):abs():sum():item())
    assert.is_true(model(core.ones(1, 4)):abs():sum():item() > 0)
    model = nn.Linear(2, 2)
    function model.forward() return "own" end
    model = accelerator:prepare(model)
    assert.equal("own", model:clone()())
    state.reset()
  end)

  it("refuses an attribute whose class does not say how it is copied", function()
    local model = nn.Linear(2, 2)
    model.helper = optim.SGD(model:parameters(), { lr = 0.1 })
    assert.error_matches(function() model:clone() end, "cannot copy a SGD: its class has no __deepcopy")
  end)
end)
