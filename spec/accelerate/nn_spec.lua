local core = require "accelerate.core"
local nn = require "accelerate.nn"
local ordered = require "accelerate.utils.ordered"

local function message(fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  return err
end

local function names(iterator)
  local list = {}
  for name in iterator do list[#list + 1] = name end
  return list
end

local function numbers(t) return t:detach():flatten():totable() end

local function near(expected, t, tolerance)
  local list = numbers(t)
  assert.equal(#expected, #list)
  for i, v in ipairs(expected) do assert.near(v, list[i], tolerance or 1e-6) end
end

local Net = nn.class("Net")

function Net:init(width)
  self.width = width
  self.fc2 = nn.Linear(width, 3)
  self.fc1 = nn.Linear(2, width)
  self.scale = nn.Parameter(core.ones(1))
  self:register_buffer("count", core.zeros(1, { dtype = "int64" }))
end

function Net:forward(x) return self.fc2(self.fc1(x):relu()) * self.scale end

describe("registration", function()
  it("keeps the order of assignment, own parameters before children's", function()
    local net = Net(4)
    assert.same({ "scale", "fc2.weight", "fc2.bias", "fc1.weight", "fc1.bias" },
      names(net:named_parameters()))
    assert.same({ "fc2", "fc1" }, names(net:named_children()))
    assert.same({ "", "fc2", "fc1" }, names(net:named_modules()))
    assert.same({ "count" }, names(net:named_buffers()))
    assert.equal(5, #net:parameters())
    assert.equal(net.fc1.weight, net:parameters()[4])
    assert.equal(4, net.width)
  end)

  it("keeps a name's place when it is assigned again, and drops it with nil", function()
    local net = Net(4)
    net.fc2 = nn.Linear(4, 5)
    assert.same({ "fc2", "fc1" }, names(net:named_children()))
    assert.equal(5, net.fc2.out_features)
    net.fc2 = nil
    assert.is_nil(net.fc2)
    assert.same({ "fc1" }, names(net:named_children()))
    net.fc2 = nn.Linear(4, 6)
    assert.same({ "fc1", "fc2" }, names(net:named_children()))
  end)

  it("turns an attribute into a module and tells kinds apart", function()
    local net = Net(4)
    net.extra = 5
    net.extra = nn.ReLU()
    assert.same({ "fc2", "fc1", "extra" }, names(net:named_children()))
    assert.matches("Net: 'fc1' is a module and can be set to a module or nil, got 3",
      message(function() net.fc1 = 3 end))
    assert.matches("'scale' is a parameter and can be set to an nn.Parameter or nil, got a float32 " ..
      "tensor of shape %[2%]",
      message(function() net.scale = core.zeros(2) end))
    net.count = core.ones(1, { dtype = "int64" })
    assert.equal(1, net:buffers()[1]:item())
  end)

  it("leaves other values as they are", function()
    local net = Net(4)
    local list = { nn.ReLU() }
    net.list = list
    net.plain = core.ones(2, { requires_grad = true })
    net.flag = false
    assert.equal(list, net.list)
    assert.is_false(net.flag)
    assert.equal(5, #net:parameters())
    assert.equal(2, #net:children())
  end)

  it("refuses names that are taken or have dots", function()
    local net = Net(4)
    assert.matches("'forward' is a name of nn.Module's own", message(function() net.forward = nn.ReLU() end))
    assert.matches("'training' is a name of nn.Module's own",
      message(function() net:register_buffer("training", core.ones(1)) end))
    assert.matches("must be a string without dots", message(function() net["a.b"] = nn.ReLU() end))
    assert.matches("must be a string without dots .* got 1", message(function() net[1] = nn.ReLU() end))
    assert.matches("add_module%('x'%) takes a module, got 3", message(net.add_module, net, "x", 3))
    assert.matches("takes an nn.Parameter, got a float32 tensor",
      message(net.register_parameter, net, "x", core.ones(1)))
    assert.matches("takes a tensor, got 3", message(net.register_buffer, net, "x", 3))
  end)

  it("counts tied weights once", function()
    local net = Net(4)
    net.head = nn.Linear(2, 4)
    net.head.weight = net.fc1.weight
    assert.equal(6, #net:parameters())
    assert.equal(7, #names(net:named_parameters { remove_duplicate = false }))
    net.again = net.fc1
    assert.equal(3, #net:children())
    assert.equal(6, #net:parameters())
    assert.equal(1, #net:parameters { recurse = false })
  end)
end)

describe("classes", function()
  it("inherit", function()
    local Wide = nn.class("Wide", Net)
    function Wide:init() Net.init(self, 8) end
    local net = Wide()
    assert.equal(8, net.width)
    assert.same({ 5, 3 }, net(core.zeros(5, 2)).shape)
    assert.matches("^Wide%(\n", tostring(net))
    assert.is_true(nn.is_module(net))
    assert.is_false(nn.is_module(Wide))
  end)

  it("tell what is missing", function()
    local Empty = nn.class("Empty")
    assert.matches("Empty has no forward method: define `function Empty:forward%(x%)", message(Empty()))
    assert.matches("Empty: got 1 argument, but the class has no init method", message(Empty, 5))
    assert.matches("expected a name, got nil", message(nn.class))
    assert.matches("the base of 'X' must be a module class, got 3", message(nn.class, "X", 3))
    assert.matches("the base of 'X' must be a module class, got a Net", message(nn.class, "X", Net(2)))
  end)

  it("pass several arguments and results through", function()
    local Two = nn.class("Two")
    function Two.forward(_, a, b) return b, nil, a end
    assert.same({ n = 3, 2, nil, 1 }, { n = select("#", Two()(1, 2)), Two()(1, 2) })
  end)
end)

describe("hooks", function()
  it("see and replace arguments and results, until they are removed", function()
    local layer = nn.Linear(2, 2)
    local log = {}
    local pre = layer:register_forward_pre_hook(function(module, args)
      log[#log + 1] = "pre " .. args.n .. " " .. tostring(module == layer)
      return args[1] * 0
    end)
    local post = layer:register_forward_hook(function(_, args, out)
      log[#log + 1] = "post " .. args[1]:sum():item()
      return out + 1
    end)
    layer:register_forward_hook(function(_, _, out) log[#log + 1] = "last " .. #out.shape end)
    local x = core.ones(1, 2)
    near({ layer.bias[1]:item() + 1, layer.bias[2]:item() + 1 }, layer(x))
    assert.same({ "pre 1 true", "post 0", "last 2" }, log)
    pre:remove()
    post:remove()
    post:remove()
    log = {}
    near(numbers(core.linear(x, layer.weight, layer.bias)), layer(x))
    assert.same({ "last 2" }, log)
  end)

  it("may remove themselves while they run", function()
    local layer, count, handle = nn.ReLU(), 0, nil
    handle = layer:register_forward_hook(function()
      count = count + 1
      handle:remove()
    end)
    layer:register_forward_hook(function() count = count + 10 end)
    layer(core.ones(1))
    layer(core.ones(1))
    assert.equal(21, count)
    assert.matches("hook must be a function, got 3", message(layer.register_forward_hook, layer, 3))
  end)
end)

describe("state_dict", function()
  it("names everything, in order, and shares memory", function()
    local net = Net(4)
    local dict = net:state_dict()
    assert.same({ "scale", "count", "fc2.weight", "fc2.bias", "fc1.weight", "fc1.bias" }, ordered.keys(dict))
    assert.is_false(dict["scale"].requires_grad)
    core.no_grad(function() net.scale:fill_(7) end)
    assert.equal(7, dict["scale"]:item())
    assert.equal("p.scale", ordered.keys(net:state_dict { prefix = "p." })[1])
    assert.equal(net.scale, net:state_dict({ keep_vars = true }).scale)
  end)

  it("leaves out buffers that are not persistent", function()
    local net = nn.Module()
    net:register_buffer("cache", core.ones(1), { persistent = false })
    net:register_buffer("mean", core.ones(1))
    assert.same({ "mean" }, ordered.keys(net:state_dict()))
    assert.equal(2, #net:buffers())
  end)

  it("loads, casts, and keeps the tensors", function()
    local a, b = Net(4), Net(4):double()
    local weight = b.fc1.weight
    local result = b:load_state_dict(a:state_dict())
    assert.same({ missing_keys = {}, unexpected_keys = {} }, result)
    assert.equal(weight, b.fc1.weight)
    assert.equal("float64", weight.dtype)
    assert.same(numbers(a.fc1.weight), numbers(weight))
    assert.is_true(weight.requires_grad)
  end)

  it("tells all faults in one message and changes nothing", function()
    local net = Net(4)
    local before = numbers(net.scale)
    local dict = Net(4):state_dict()
    dict["scale"] = core.full({ 1 }, 9)
    dict["fc1.bias"] = nil
    dict["fc1.wieght"] = core.ones(1)
    dict["fc2.weight"] = core.ones(3, 5)
    dict["fc2.bias"] = "text"
    local err = message(net.load_state_dict, net, dict)
    assert.matches("does not fit Net", err)
    assert.matches("missing keys: fc1.bias", err)
    assert.matches("unexpected keys: fc1.wieght", err)
    assert.matches("size mismatch for 'fc2.weight': the state dict has %[3, 5%], the module has %[3, 4%]",
      err)
    assert.matches("'fc2.bias' must be a tensor, got 'text'", err)
    assert.same(before, numbers(net.scale))
    assert.matches("expected a table of tensors by name, got 3", message(net.load_state_dict, net, 3))
    assert.matches("expected a table of tensors by name, got a Net",
      message(net.load_state_dict, net, Net(4)))
  end)

  it("loads what fits without strict", function()
    local net = Net(4)
    local result = net:load_state_dict({ scale = core.full({ 1 }, 3), other = core.ones(1) },
      { strict = false })
    assert.equal(3, net.scale:item())
    assert.same({ "other" }, result.unexpected_keys)
    assert.equal(5, #result.missing_keys)
    assert.matches("size mismatch for 'scale'", message(net.load_state_dict, net, { scale = core.ones(2) },
      { strict = false }))
  end)

  it("holds tied weights under each name, and is content with one of them", function()
    local net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[2].weight = net[1].weight
    local dict = net:state_dict()
    assert.same({ "0.weight", "0.bias", "1.weight", "1.bias" }, ordered.keys(dict))
    dict["0.weight"] = nil
    net:load_state_dict(dict)
  end)

  it("names a module that contains itself", function()
    local net = Net(4)
    net.fc1.parent = net
    assert.matches("contains itself", message(net.state_dict, net))
  end)
end)

describe("modes and placement", function()
  it("a Linear and the tanh GELU behind it are one op in a Sequential, unless somebody looks", function()
    local net = nn.Sequential(nn.Linear(4, 6), nn.GELU("tanh"), nn.Linear(6, 2), nn.GELU())
    local x = core.randn(3, 4)
    local function apart()
      local y = x
      for i = 1, 4 do y = net[i](y) end
      return y
    end
    local y, expected, made = net(x), apart(), {}
    assert.is_true(y:eq(expected):all():item())
    y:sum():backward()
    local grads = {}
    for i, p in ipairs(net:parameters()) do grads[i], p.grad = p.grad, nil end
    expected:sum():backward()
    for i, p in ipairs(net:parameters()) do assert.is_true(p.grad:eq(grads[i]):all():item()) end
    assert.equal("linear_gelu", nn.Sequential(net[1], net[2])(x).grad_fn)
    assert.equal("gelu", nn.Sequential(net[3], net[4])(net[1](x)).grad_fn)
    local handle = net[1]:register_forward_hook(function(_, _, result) made[#made + 1] = result.grad_fn end)
    assert.is_true(net(x):eq(expected):all():item())
    assert.same({ "linear" }, made)
    handle:remove()
    net[2]:register_forward_hook(function(_, _, result) made[#made + 1] = result.grad_fn end)
    net(x)
    assert.same({ "linear", "gelu" }, made)
  end)

  it("train and eval reach everything below", function()
    local net = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    assert.equal(net, net:eval())
    assert.is_false(net[2][1].training)
    local x = core.ones(4)
    assert.equal(x, net(x))
    net:train()
    assert.is_true(net[2][1].training)
  end)

  it("apply calls children first", function()
    local seen = {}
    local net = Net(4)
    assert.equal(net, net:apply(function(m) seen[#seen + 1] = m.__name end))
    assert.same({ "Linear", "Linear", "Net" }, seen)
  end)

  it("to() keeps tensors, ties, gradients, and leaves integers", function()
    local net = Net(4)
    net.head = nn.Linear(2, 4)
    net.head.weight = net.fc1.weight
    local weight = net.fc1.weight
    net(core.ones(1, 2)):sum():backward()
    local grad = numbers(weight.grad)
    assert.equal(net, net:to("float64"))
    assert.equal(weight, net.head.weight)
    assert.equal("float64", weight.dtype)
    assert.equal("float64", weight.grad.dtype)
    near(grad, weight.grad)
    assert.equal("int64", net.count.dtype)
    net:zero_grad()
    net(core.ones(1, 2, { dtype = "float64" })):sum():backward()
    near(grad, weight.grad)
    net:to { dtype = "bfloat16", device = "cpu" }
    assert.equal("bfloat16", net.scale.dtype)
    assert.equal("float32", net:float().scale.dtype)
  end)

  it("to() refuses what is no destination", function()
    local net = Net(4)
    assert.matches("can only become float32, float64, float16 or bfloat16, got 'int64'",
      message(net.to, net, "int64"))
    assert.matches("'floot32' is neither a dtype nor a device; did you mean 'float32'",
      message(net.to, net, "floot32"))
    assert.matches("give a dtype or a device", message(net.to, net))
    assert.matches("unknown option 'dtpye'; did you mean 'dtype'",
      message(net.to, net, { dtpye = "float32" }))
  end)

  it("requires_grad_ and zero_grad reach all parameters", function()
    local net = Net(4)
    net:requires_grad_(false)
    for _, p in ipairs(net:parameters()) do assert.is_false(p.requires_grad) end
    net:requires_grad_()
    net(core.ones(1, 2)):sum():backward()
    net:zero_grad { set_to_none = false }
    assert.equal(0, net.scale.grad:item())
    net:zero_grad()
    assert.is_nil(net.scale.grad)
  end)

  it("get_submodule walks a path", function()
    local net = nn.Sequential(nn.Sequential(nn.ReLU()))
    assert.equal(net[1][1], net:get_submodule("0.0"))
    assert.equal(net, net:get_submodule(""))
    assert.matches("'0' has no submodule '1'; known: 0", message(net.get_submodule, net, "0.1"))
  end)

  it("prints as PyTorch does", function()
    local net = nn.Sequential(nn.Linear(20, 10), nn.Sequential(nn.ReLU(), nn.Dropout(0.25)),
      nn.Linear(10, 2, { bias = false }))
    assert.equal(table.concat({
      "Sequential(",
      "  (0): Linear(in_features=20, out_features=10, bias=True)",
      "  (1): Sequential(",
      "    (0): ReLU()",
      "    (1): Dropout(p=0.25, inplace=False)",
      "  )",
      "  (2): Linear(in_features=10, out_features=2, bias=False)",
      ")",
    }, "\n"), tostring(net))
  end)
end)

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
    assert.matches("Linear: options must be a table, got false", message(nn.Linear, 2, 2, false))
  end)

  it("names itself and its place when the input does not fit", function()
    local Deep = nn.class("Deep")
    function Deep:init() self.blocks = nn.ModuleList { nn.Sequential(nn.ReLU(), nn.Linear(5, 5)) } end
    function Deep:forward(x) return self.blocks[1](x) end
    local err = message(function() Deep()(core.ones(2, 3)) end)
    assert.matches("^[^\n]*nn_spec%.lua:%d+: linear: ", err)
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
        "%[a table%]",
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
    assert.matches("^[^\n]*nn_spec%.lua:%d+: mse_loss: input %[3, 1%] and target %[3%] differ in shape " ..
      "%(in MSELoss%(%)%)",
      message(function() nn.MSELoss()(core.zeros(3, 1), core.zeros(3)) end))
    assert.matches("^[^\n]*nn_spec%.lua:%d+: mse_loss: input %[2%] and target %[3%] differ",
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
    assert.matches("only floating%-point tensors can require gradients, got int64",
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
