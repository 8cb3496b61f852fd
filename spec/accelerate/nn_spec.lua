-- Modules: registration, classes, hooks, state_dict, modes and placement.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local ordered = require "accelerate.utils.ordered"
local messages = require "spec.support.messages"
local nets = require "spec.support.nets"

local message, raises = messages.message, messages.raises

local Net, names, near, numbers = nets.Net, nets.names, nets.near, nets.numbers

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

  -- The orders are PyTorch's.
  it("run first with prepend, and after errors with always_call", function()
    local Net2 = nn.class("Net2")
    function Net2.forward(_, x)
      if x:sum():item() < 0 then error("negative", 0) end
      return x * 2
    end
    local log, net = {}, Net2()
    local function hook(name)
      return function(_, _, out) log[#log + 1] = name .. (out == nil and "" or " has") end
    end
    local function pre(name) return function() log[#log + 1] = name end end
    local function logged()
      local text = table.concat(log, ", ")
      log = {}
      return text
    end
    net:register_forward_hook(hook "a")
    net:register_forward_hook(hook "b", { always_call = true })
    net:register_forward_hook(hook "c", { prepend = true })
    net:register_forward_pre_hook(pre "p1")
    net:register_forward_pre_hook(pre "p2", { prepend = true })
    net:register_full_backward_hook(pre "g1")
    net:register_full_backward_hook(pre "g2", { prepend = true })
    net:register_full_backward_pre_hook(pre "h1")
    net:register_full_backward_pre_hook(pre "h2", { prepend = true })
    net(core.ones(2, { requires_grad = true })):sum():backward()
    assert.equal("p2, p1, c has, a has, b has, h2, h1, g2, g1", logged())
    assert.equal("negative", message(net, -core.ones(2)))
    assert.equal("p2, p1, b", logged())
    assert.equal("negative", message(net:clone(), -core.ones(2)))
    assert.equal("p2, p1, b", logged())

    net:register_forward_hook(function()
      log[#log + 1] = "bad"
      error("x", 0)
    end)
    net:register_forward_hook(hook "late", { always_call = true })
    assert.equal("x", message(net, core.ones(2)))
    assert.equal("p2, p1, c has, a has, b has, bad, late has", logged())
  end)

  it("with always_call do not hide an error by their own", function()
    local notice, said = require "accelerate.messages.notice", nil
    local here = notice.here
    notice.here = function(text, ...) said = text:format(...) end
    local layer = nn.Linear(2, 2)
    layer:register_forward_hook(function() error("second", 0) end, { always_call = true })
    local text = message(layer, core.ones(3))
    notice.here = here
    assert.matches("linear", text)
    assert.matches("Linear: a forward hook with always_call = true failed after forward had, .*second", said)
    assert.equal("second", message(layer, core.ones(2)))
  end)

  it("refuse options that they do not have", function()
    local layer, hook = nn.ReLU(), function() end
    assert.matches("register_forward_hook: with_kwargs: calls have no keyword arguments in Lua",
      message(layer.register_forward_hook, layer, hook, { with_kwargs = true }))
    assert.matches("register_forward_pre_hook: with_kwargs: calls have no keyword",
      message(layer.register_forward_pre_hook, layer, hook, { with_kwargs = true }))
    layer:register_forward_hook(hook, { with_kwargs = false }):remove()
    assert.matches("register_forward_pre_hook: unknown option 'always_call'",
      message(layer.register_forward_pre_hook, layer, hook, { always_call = true }))
    assert.matches("register_full_backward_hook: unknown option 'first'",
      message(layer.register_full_backward_hook, layer, hook, { first = true }))
    assert.matches("'prepend' must be true or false, got 1",
      message(layer.register_full_backward_pre_hook, layer, hook, { prepend = 1 }))
    assert.is_false(layer._hooked)
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

  it("tells where a checkpoint holds the names that are missing", function()
    local net, dict = Net(4), Net(4):state_dict()
    raises("unexpected keys: epoch, net\n  'net' holds a state dict with these names: pass checkpoint.net",
      net.load_state_dict, net, { epoch = 3, net = dict })
    local wrapped = ordered.new()
    for name, value in ordered.pairs(dict) do wrapped["module." .. name] = value end
    wrapped.epoch = 3
    raises("the names begin with 'module.': nn.utils.consume_prefix_in_state_dict_if_present(state_dict, " ..
      "'module.') takes it off", net.load_state_dict, net, wrapped)
    nn.utils.consume_prefix_in_state_dict_if_present(wrapped, "module.")
    assert.same({ unexpected_keys = { "epoch" }, missing_keys = {} },
      net:load_state_dict(wrapped, { strict = false }))
    assert.same(numbers(dict["fc1.weight"]), numbers(net.fc1.weight))
    wrapped.epoch = nil
    assert.same(ordered.keys(dict), ordered.keys(wrapped))
    net:register_load_state_dict_post_hook(function(_, keys) keys.unexpected_keys[1] = 7 end)
    raises("unexpected keys: 7", net.load_state_dict, net, {})
    raises("prefix: expected a string such as 'module.', got nil",
      nn.utils.consume_prefix_in_state_dict_if_present, dict)
    raises("expected a table of tensors by name, got a Net",
      nn.utils.consume_prefix_in_state_dict_if_present, net, "module.")
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
    assert.matches("can only become of a floating or complex type, got 'int64'",
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

  it("has the name of its class", function()
    local Own = nn.class("Own")
    assert.same({ "Own", "Own", "Conv2d" },
      { Own():_get_name(), Own().__name, nn.Conv2d(1, 1, 1):_get_name() })
    function Own:_get_name() return "Named" end
    assert.equal("Named()", tostring(Own()))
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
