-- Linear, Sequential and other layers, losses, and how weights are initialised.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local message = require("spec.support.messages").message
local nets = require "spec.support.nets"

local names, near, numbers = nets.names, nets.near, nets.numbers

describe("Linear", function()
  it("computes x W^T + b", function()
    local layer = nn.Linear(2, 2)
    core.no_grad(function()
      layer.weight:copy_(core.tensor { { 1, 2 }, { 3, 4 } })
      layer.bias:copy_(core.tensor { 10, 20 })
    end)
    near({ 15, 31, 12, 24 }, layer(core.tensor { { 1, 2 }, { 0, 1 } }))
  end)

  it("starts as PyTorch's does", function()
    core.manual_seed(3)
    local layer = nn.Linear(100, 400)
    for _, p in ipairs(layer:parameters()) do
      local list, sum, squares = numbers(p), 0, 0
      for _, v in ipairs(list) do
        assert.is_true(math.abs(v) <= 0.1)
        sum, squares = sum + v, squares + v * v
      end
      assert.near(0, sum / #list, 0.01)
      assert.near(0.01 / 3, squares / #list, 0.0004)
    end
    core.manual_seed(3)
    assert.same(numbers(layer.bias), numbers(nn.Linear(100, 400).bias))
  end)

  it("takes a type, and goes without bias", function()
    local layer = nn.Linear(2, 3, { bias = false, dtype = "float64" })
    assert.is_nil(layer.bias)
    assert.same({ "weight" }, names(layer:named_parameters()))
    assert.equal("float64", layer(core.ones(1, 2, { dtype = "float64" })).dtype)
  end)

  it("checks what it is given", function()
    assert.matches("Linear: in_features must be at least 1, got 0", message(nn.Linear, 0, 2))
    assert.matches("Linear: out_features must be an integer, got 2.5", message(nn.Linear, 2, 2.5))
    assert.matches("Linear: out_features is missing", message(nn.Linear, 2))
    assert.matches("Linear: unknown option 'bais'; did you mean 'bias'",
      message(nn.Linear, 2, 2, { bais = false }))
    assert.matches("Linear: option 'bias' must be true or false, got 1", message(nn.Linear, 2, 2, 1))
  end)

  it("names itself and its place when the input does not fit", function()
    local Deep = nn.class("Deep")
    function Deep:init() self.blocks = nn.ModuleList { nn.Sequential(nn.ReLU(), nn.Linear(5, 5)) } end
    function Deep:forward(x) return self.blocks[1](x) end
    local err = message(function() Deep()(core.ones(2, 3)) end)
    assert.matches("^[^\n]*nn_layers_spec%.lua:%d+: linear: ", err)
    assert.matches("3 features", err)
    assert.matches("%(in layer 'blocks%.0%.1' of Deep: Linear%(in_features=5, out_features=5, bias=True%)%)",
      err)
    assert.matches("%(in Linear%(in_features=5", message(function() nn.Linear(5, 5)(core.ones(3)) end))
    assert.matches("in layer '0' of Sequential: Linear",
      message(function() nn.Sequential(nn.Linear(2, 2))("text") end))
  end)
end)

describe("Sequential", function()
  it("is indexed from 1 and named from 0", function()
    local net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert.equal(3, net:len())
    assert.equal("Linear", net[1].__name)
    assert.equal(net[3], net[-1])
    assert.is_nil(net[4])
    assert.same({ "0", "1", "2" }, names(net:named_children()))
    net[2] = nn.Tanh()
    assert.equal("Tanh", net[2].__name)
    net:append(nn.Sigmoid())
    assert.equal("Sigmoid", net[4].__name)
    assert.matches("position 7 is out of range: it has 4 modules", message(function() return net[7] end))
    assert.same({ "0", "1", "2", "3" }, names(net:named_children()))
  end)

  it("gives parts by ranges, as ModuleList does, with the same modules", function()
    local net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))
    local list = nn.ModuleList { net[1], net[2], net[3] }
    assert.same({ "0", "1" }, names(net[{ { 1, -2 } }]:named_children()))
    assert.same({ "1", "2" }, names(net[{ { 2, 3 } }]:named_children())) -- PyTorch keeps the names, too
    assert.same({ "0", "2" }, names(net[{ { 1, -1, 2 } }]:named_children()))
    assert.same({ "0", "1" }, names(list[{ { 2, -1 } }]:named_children()))
    assert.equal(net[2], list[{ { 2, -1 } }][1])
    assert.equal(3, #net[{ {} }])
    assert.equal(0, #net[{ { 1, 0 } }])
    assert.same({ 5, 3 }, net[{ { 1, -2 } }](core.ones(5, 2)).shape)
    for key, text in pairs {
      [{ 1, 2 }] = "expected a position or a range, such as %[1%], %[%-1%] or %[{ { 1, %-1 } }%], got " ..
        "%[a list of 2%]",
      [{ { 1 } }] = "expected a position or a range",
      [{ { 1, 9 } }] = "position 9 is out of range: it has 3 modules",
      [{ { 0, -1 } }] = "position 0 is out of range",
      [{ { 3, 1 } }] = "the range { 3, 1 } ends before it begins",
      [{ { 1, 2, 0 } }] = "the step of a range must be at least 1, got 0",
      [{ { "a", 2 } }] = "a bound of a range must be an integer, got 'a'",
    } do
      assert.matches("Sequential: " .. text, message(function() return net[key] end))
    end
  end)

  it("takes names, and refuses what is no module", function()
    local net = nn.Sequential { { "conv", nn.Linear(2, 2) }, { "act", nn.ReLU() } }
    assert.same({ "conv", "act" }, names(net:named_children()))
    assert.equal(net.act, net[2])
    assert.equal(2, nn.Sequential({ nn.ReLU(), nn.ReLU() }):len())
    assert.matches("Sequential: entry 2 is the class ReLU; make a module of it: nn.ReLU",
      message(nn.Sequential, nn.ReLU(), nn.ReLU))
    assert.matches("Sequential: entry 1 must be a module, got a function", message(nn.Sequential, math.sin))
  end)

  it("uses a module twice when it is there twice", function()
    local double = nn.class("Double")
    function double.forward(_, x) return x * 2 end
    local d = double()
    near({ 4 }, nn.Sequential(d, d)(core.ones(1)))
  end)

  it("lets go of its intermediates, and of nothing else", function()
    local seen = {}
    local Keep = nn.class("Keep")
    function Keep.forward(_, x)
      seen[#seen + 1] = x
      return x
    end
    local hooked = nn.ReLU()
    hooked:register_forward_hook(function(_, args, out)
      seen[#seen + 1] = args[1]
      seen[#seen + 1] = out
    end)
    local net = nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(4, 4), Keep(), nn.ReLU(),
      nn.Linear(4, 4), hooked,
      nn.Linear(4, 4), nn.Dropout(0), nn.Tanh())
    local x = core.ones(2, 4)
    net(x):sum():backward()
    for _, t in ipairs(seen) do assert.is_false(core.is_released(t)) end
    assert.is_false(core.is_released(x))
    assert.is_table(net[3].weight.grad.shape)
  end)

  it("frees the memory of its intermediates at once", function()
    local net = nn.Sequential(nn.Linear(8, 1000), nn.Tanh(), nn.Sigmoid(), nn.Linear(1000, 1))
    local x = core.ones(100, 8)
    core.no_grad(function()
      net(x)
      collectgarbage()
      collectgarbage("stop")
      local before = core.memory_stats().live_bytes
      for _ = 1, 5 do net(x) end
      local after = core.memory_stats().live_bytes
      collectgarbage("restart")
      assert.is_true(after - before < 100 * 1000 * 4, ("%d bytes stayed"):format(after - before))
    end)
  end)

  it("gives the gradients that the layers give one by one", function()
    core.manual_seed(1)
    local net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2),
      nn.Sigmoid())
    local x = core.randn(4, 3)
    net(x):square():sum():backward()
    local fused = {}
    for i, p in ipairs(net:parameters()) do fused[i] = numbers(p.grad) end
    net:zero_grad()
    local y = x
    for i = 1, net:len() do y = net[i](y) end
    y:square():sum():backward()
    for i, p in ipairs(net:parameters()) do assert.same(fused[i], numbers(p.grad)) end
  end)
end)

describe("layers", function()
  it("compute what their names say", function()
    local x = core.tensor { -1, 0, 2 }
    near({ 0, 0, 2 }, nn.ReLU()(x))
    near({ math.tanh(-1), 0, math.tanh(2) }, nn.Tanh()(x))
    near({ 1 / (1 + math.exp(1)), 0.5, 1 / (1 + math.exp(-2)) }, nn.Sigmoid()(x))
    assert.near(1, nn.Softmax(-1)(x):sum():item(), 1e-6)
    assert.near(1, nn.LogSoftmax(1)(x):exp():sum():item(), 1e-6)
    assert.equal(x, nn.Identity(1, 2)(x))
    assert.same({ 2, 12 }, nn.Flatten()(core.zeros(2, 3, 4)).shape)
    assert.same({ 6, 4 }, nn.Flatten(1, 2)(core.zeros(2, 3, 4)).shape)
    assert.same({ 24 }, nn.Flatten({ start_dim = 1 })(core.zeros(2, 3, 4)).shape)
    assert.equal(x, nn.ReLU({ inplace = true })(x))
    assert.same({ 0, 0, 2 }, x:totable())
  end)

  it("check options and dims", function()
    assert.matches("ReLU: unknown option 'inplase'; did you mean 'inplace'",
      message(nn.ReLU, { inplase = true }))
    assert.matches("Softmax: option 'dim' is missing", message(nn.Softmax))
    assert.matches("Tanh: unknown option 'x'", message(nn.Tanh, { x = 1 }))
    assert.matches("Dropout: option 'p' must be at least 0 and at most 1, got 1.5", message(nn.Dropout, 1.5))
    assert.matches("in Softmax%(dim=3%)", message(nn.Softmax(3), core.ones(2, 2)))
  end)

  it("drop out in training only, by the seed", function()
    local layer, x = nn.Dropout(0.25), core.ones(4000)
    core.manual_seed(5)
    local a = numbers(layer(x))
    core.manual_seed(5)
    assert.same(a, numbers(layer(x)))
    local zeros = 0
    for _, v in ipairs(a) do
      if v == 0 then zeros = zeros + 1 else assert.near(4 / 3, v, 1e-6) end
    end
    assert.near(1000, zeros, 120)
    assert.equal(x, layer:eval()(x))
    local g = core.Generator(9)
    local own = nn.Dropout { p = 0.5, generator = g }
    local first = numbers(own(x))
    g:manual_seed(9)
    assert.same(first, numbers(own(x)))
  end)
end)

describe("losses", function()
  local logits = core.tensor { { 1, 2, 3 }, { 1, 0, -1 }, { 0, 0, 0 } }
  local target = core.tensor({ 2, 0, 1 }, { dtype = "int64" })
  local each = { 0.4076059644443804, 0.4076059644443804, math.log(3) }

  it("cross-entropy with its reductions and ignore_index", function()
    near(each, nn.CrossEntropyLoss({ reduction = "none" })(logits, target))
    near({ each[1] + each[2] + each[3] }, nn.CrossEntropyLoss({ reduction = "sum" })(logits, target))
    near({ (each[1] + each[2] + each[3]) / 3 }, nn.CrossEntropyLoss()(logits, target))
    near({ (each[1] + each[3]) / 2 }, nn.CrossEntropyLoss({ ignore_index = 0 })(logits, target))
    near({ (each[1] + each[3]) / 2 }, nn.functional.cross_entropy(logits, target, { ignore_index = 0 }))
  end)

  it("mean squared error", function()
    local a, b = core.tensor { 1, 2, 3 }, core.tensor { 1, 0, 0 }
    near({ 0, 4, 9 }, nn.MSELoss({ reduction = "none" })(a, b))
    near({ 13 }, nn.MSELoss({ reduction = "sum" })(a, b))
    near({ 13 / 3 }, nn.MSELoss()(a, b))
    local p = core.tensor({ 1, 2, 3 }, { requires_grad = true })
    nn.functional.mse_loss(p, b):backward()
    near({ 0, 4 / 3, 2 }, p.grad)
  end)

  it("name wrong input", function()
    assert.matches("CrossEntropyLoss: option 'reduction' must be one of mean, sum, none, got 'men'; did " ..
      "you mean 'mean'",
      message(nn.CrossEntropyLoss, { reduction = "men" }))
    assert.matches("^[^\n]*nn_layers_spec%.lua:%d+: mse_loss: input %[3, 1%] and target %[3%] differ " ..
      "in shape; target:expand_as%(input%) where it is meant " ..
      "%(in MSELoss%(%)%)",
      message(function() nn.MSELoss()(core.zeros(3, 1), core.zeros(3)) end))
    assert.matches("^[^\n]*nn_layers_spec%.lua:%d+: mse_loss: input %[2%] and target %[3%] differ",
      message(function() nn.functional.mse_loss(core.zeros(2), core.zeros(3)) end))
    assert.matches("in CrossEntropyLoss", message(nn.CrossEntropyLoss(), logits, core.zeros(3)))
    assert.matches("in CrossEntropyLoss",
      message(nn.CrossEntropyLoss(), logits, core.full({ 3 }, 7, { dtype = "int64" })))
  end)
end)

describe("nn.init", function()
  it("is found by its own name", function() assert.equal(nn.init, require "accelerate.nn.init") end)

  it("fills tensors without recording", function()
    local p = nn.Parameter(core.zeros(200, 100))
    assert.equal(p, nn.init.uniform_(p, -1, 3))
    assert.is_true(p.is_leaf and p.requires_grad)
    local low, high = p:detach():min():item(), p:detach():max():item()
    assert.is_true(low >= -1 and low < -0.95 and high < 3 and high > 2.95)
    nn.init.normal_(p, 2, 0.5)
    assert.near(2, p:detach():mean():item(), 0.02)
    assert.near(0.25, (p:detach() - 2):square():mean():item(), 0.01)
    assert.equal(20000, nn.init.ones_(p):detach():sum():item())
    assert.equal(0, nn.init.zeros_(p):detach():sum():item())
    assert.equal(2.5, nn.init.constant_(p, 2.5):detach():mean():item())
    assert.same({ 1, 0, 0, 0, 1, 0 }, numbers(nn.init.eye_(core.ones(2, 3))))
  end)

  it("scales by fans as PyTorch does", function()
    local w = core.empty(50, 20, 3)  -- fan in 60, fan out 150
    local function largest(t) return t:abs():max():item() end
    assert.near(math.sqrt(6 / 60), largest(nn.init.kaiming_uniform_(w)), 0.01)
    assert.near(math.sqrt(1 / 60), largest(nn.init.kaiming_uniform_(w, { a = math.sqrt(5) })), 0.005)
    assert.near(math.sqrt(6 / 150),
      largest(nn.init.kaiming_uniform_(w, { mode = "fan_out", nonlinearity = "relu" })), 0.01)
    assert.near(math.sqrt(6 / 210), largest(nn.init.xavier_uniform_(w)), 0.01)
    assert.near(2 / 60, nn.init.kaiming_normal_(w):square():mean():item(), 0.004)
    assert.near(4 * 2 / 210, nn.init.xavier_normal_(w, { gain = 2 }):square():mean():item(), 0.005)
    assert.near(5 / 3, nn.init.calculate_gain("tanh"), 1e-12)
    assert.near(math.sqrt(2 / 1.04), nn.init.calculate_gain("leaky_relu", 0.2), 1e-12)
  end)

  it("draws from a generator", function()
    local a = nn.init.normal_(core.empty(5), 0, 1, { generator = core.Generator(4) })
    core.rand(3)
    assert.same(numbers(a), numbers(nn.init.normal_(core.empty(5), 0, 1, { generator = core.Generator(4) })))
  end)

  it("checks what it is given", function()
    assert.matches("kaiming_uniform_: fan in and fan out need at least 2 dims, got a tensor of shape %[3%]",
      message(nn.init.kaiming_uniform_, core.ones(3)))
    assert.matches("uniform_: expected a tensor, got 3", message(nn.init.uniform_, 3))
    assert.matches("uniform_: a must not be above b", message(nn.init.uniform_, core.ones(3), 1, 0))
    assert.matches("only floating%-point tensors",
      message(nn.init.normal_, core.ones(3, { dtype = "int64" })))
    assert.matches("unknown nonlinearity 'rleu'; did you mean 'relu'",
      message(nn.init.calculate_gain, "rleu"))
  end)
end)
