--- nn.Module's API and the containers, beside spec/accelerate/nn_spec.lua.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local accelerate = require "accelerate"
local host = require "spec.support.host"
local message = require("spec.support.messages").message
local names = require("spec.support.nets").names

local Net = nn.class("Net")
function Net:init()
  self.body = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Dropout(0.25))
  self.heads = nn.ModuleDict({ { "a", nn.Linear(3, 4, { bias = false }) }, { "b", nn.Identity() } })
  local blocks = {}
  for i = 1, 3 do blocks[i] = nn.Sequential(nn.Linear(4, 4), nn.Tanh()) end
  self.blocks = nn.ModuleList(blocks):append(nn.Linear(4, 4)):append(nn.Linear(4, 5))
  self.rnn = nn.LSTM(4, 5, { num_layers = 2, batch_first = true, dropout = 0.5, bidirectional = true })
end
function Net:extra_repr() return "one\ntwo" end

describe("print(module)", function()
  for _, case in ipairs(require "spec.reference.torch.module_prints") do
    it(case[1] .. " is as PyTorch's", function()
      local chunk = assert(loadstring("local nn, Net = ... return " .. case[1]))
      assert.equal(case[2], tostring(chunk(nn, Net)))
    end)
  end

  it("shows lists of parameters", function()
    assert.equal("ParameterList(\n    (0): Parameter containing: [float32 of size 2x3]\n    (1): " ..
      "Parameter containing: [float32 of size 4]\n)",
      tostring(nn.ParameterList { core.zeros(2, 3), core.zeros(4) }))
    assert.equal("ParameterDict()", tostring(nn.ParameterDict()))
  end)
end)

describe("Sequential and ModuleList", function()
  it("insert, pop, extend, slice and iterate", function()
    for _, Class in ipairs { nn.Sequential, nn.ModuleList } do
      local a, b, c, d = nn.Linear(1, 1), nn.ReLU(), nn.Tanh(), nn.Sigmoid()
      local list = Class()
      assert.equal(list, list:append(a):append(c))
      list:insert(2, b):extend({ d })
      assert.equal(4, list:len())
      assert.equal(b, list[2])
      assert.equal(d, list[-1])
      local seen = {}
      for i, m in list:iter() do seen[i] = m end
      assert.same({ a, b, c, d }, seen)
      local part = list:slice(2, -2)
      assert.same({ b, c }, part:children())
      assert.equal(b, list:pop(2))
      list:insert(2, b)
      list[2] = nil -- del list[1]
      assert.same({ a, c, d }, list:children())
      assert.equal(d, list:pop())
      assert.same({ "0", "1" }, names(list:named_children()))
      list:extend(part)
      assert.same({ a, c, b, c }, { list[1], list[2], list[3], list[4] })
      list[1] = d
      assert.equal(d, list[1])
      assert.matches("insert: the position must be in 1..5, got 9", message(list.insert, list, 9, a))
      assert.matches("position 7 is out of range", message(list.pop, list, 7))
    end
  end)
end)

describe("ModuleDict", function()
  it("holds modules by name, in order", function()
    local dict = nn.ModuleDict { b = nn.Linear(2, 3), a = nn.ReLU() }
    assert.same({ "a", "b" }, dict:keys())
    dict:update { { "z", nn.Tanh() }, { "c", nn.Sigmoid() } }
    dict.y = nn.Identity()
    assert.same({ "a", "b", "z", "c", "y" }, dict:keys())
    assert.equal(5, dict:len())
    assert.same({ 1, 3 }, dict.b(core.zeros(1, 2)).shape)
    assert.equal(dict.b, dict["b"])
    assert.is_true(dict:contains("z"))
    assert.is_nil(dict:get("nothing"))
    assert.equal("Tanh", dict:pop("z").__name)
    assert.same({ "b.weight", "b.bias" }, names(dict:named_parameters()))
    for name, module in dict:items() do assert.equal(dict[name], module) end
    dict:clear()
    assert.equal(0, dict:len())
    assert.matches("'keys' is the name of a method", message(nn.ModuleDict, { keys = nn.ReLU() }))
    assert.matches("there is no 'bb'", message(dict.pop, dict, "bb"))
    assert.matches("entry 'x' must be a module, got 3$", message(nn.ModuleDict, { x = 3 }))
    assert.matches("ModuleList: entry 1 must be a module, got nil; nn.Identity%(%) holds a place",
      message(function() nn.ModuleList():append(nil) end))
  end)
end)

describe("ParameterList and ParameterDict", function()
  it("register tensors as parameters", function()
    local Mix = nn.class("Mix")
    function Mix:init()
      self.list = nn.ParameterList { core.ones(2), nn.Parameter(core.zeros(3)) }
      self.dict = nn.ParameterDict { w = core.ones(1), v = core.zeros(1) }
    end
    local m = Mix()
    m.list:append(core.zeros(4))
    m.list[1] = core.zeros(5)
    assert.same({ "list.0", "list.1", "list.2", "dict.v", "dict.w" }, names(m:named_parameters()))
    assert.equal(5, m.list[1]:numel())
    assert.equal(4, m.list[-1]:numel())
    assert.is_true(m.list[1].requires_grad)
    assert.equal(3, m.list:len())
    assert.equal(m.dict.w, m.dict:values()[2])
    local n = 0
    for i, p in m.list:iter() do n = n + i * p:numel() end
    assert.equal(5 + 6 + 12, n)
    assert.matches("entry 1 must be a parameter or a tensor, got 3", message(nn.ParameterList, { 3 }))
  end)
end)

describe("parameters()", function()
  it("is listed anew after a registration anywhere below", function()
    local net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4)))
    local first = net:parameters()
    assert.equal(4, #first)
    table.remove(first)
    assert.equal(4, #net:parameters())
    net[2]:append(nn.Linear(4, 5))
    assert.equal(6, #net:parameters())
    net[2][1].bias = nil
    assert.equal(5, #net:parameters())
    net[1].weight = nn.Parameter(core.zeros(3, 2))
    assert.equal(net[1].weight, net:parameters()[1])
    assert.equal(3 * 2 + 3 + 4 * 3 + 5 * 4 + 5, net:num_parameters())
    net[1]:requires_grad_(false)
    assert.equal(4 * 3 + 5 * 4 + 5, net:num_parameters { only_trainable = true })
  end)

  it("does not keep removed modules alive", function()
    local net = nn.Sequential(nn.Linear(2, 3))
    local weak = setmetatable({ net[1].weight }, { __mode = "v" })
    net:parameters()
    net:pop(1)
    for _ = 1, 3 do collectgarbage() end
    assert.is_nil(weak[1])
  end)
end)

describe("a module's own fields", function()
  local function fields(module)
    local list = {}
    for name in next, module do list[#list + 1] = name end
    table.sort(list)
    return table.concat(list, " ")
  end

  it("are four, whatever it holds and whatever happens to it", function()
    local own = "_hooked _registered _values training"
    local net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert.equal(own, fields(net))
    net:register_buffer("seen", tensor.zeros(1))
    net.note, net.seen, net.note = "text", nil, nil
    local handles = { net:register_forward_hook(function() end),
      net:register_forward_pre_hook(function() end),
      net:register_full_backward_hook(function() end), net:register_full_backward_pre_hook(function() end) }
    net:eval()
    net(tensor.ones(1, 2))
    assert.equal(2, #net:parameters())
    assert.equal(own, fields(net))
    assert.is_table(net._hooked)
    for _, handle in ipairs(handles) do handle:remove() end
    assert.is_false(net._hooked)
    assert.equal(own, fields(net))
  end)

  it("leave other names that begin with '_' to scripts", function()
    local Own = nn.class("Own")
    function Own:init()
      self._order, self._kinds, self._children, self._listed = { 3, 1, 2 }, "kinds", 7, true
      self.fc = nn.Linear(2, 2)
    end
    local net = Own()
    assert.same({ 3, 1, 2 }, net._order)
    assert.same({ "kinds", 7, true }, { net._kinds, net._children, net._listed })
    assert.equal(2, #net:parameters())
    assert.same({ net.fc }, net:children())
  end)
end)

describe("paths", function()
  it("lead to parameters, buffers and modules", function()
    local net = Net()
    assert.equal(net.body[1].weight, net:get_parameter("body.0.weight"))
    net.body:register_buffer("count", core.zeros(1))
    assert.equal(1, net:get_buffer("body.count"):numel())
    local tanh = nn.Tanh()
    net:set_submodule("body.1", tanh)
    assert.equal(tanh, net.body[2])
    assert.matches("get_parameter: Linear has no parameter 'wieght'; did you mean 'weight'",
      message(net.get_parameter, net, "body.0.wieght"))
    assert.matches("Sequential has no submodule '7'", message(net.set_submodule, net, "body.7", tanh))
  end)
end)

describe("backward hooks", function()
  it("see the gradients of arguments and results, and may replace them", function()
    local layer = nn.Linear(2, 3)
    local x = core.randn(4, 2):requires_grad_()
    local seen = {}
    local handle = layer:register_full_backward_hook(function(module, grad_input, grad_output)
      seen = { module, grad_input, grad_output }
    end)
    layer(x):sum():backward()
    assert.equal(layer, seen[1])
    assert.same({ 4, 2 }, seen[2][1].shape)
    assert.is_true(tensor.equal(seen[2][1], x.grad))
    assert.is_true(tensor.equal(seen[3][1], core.ones(4, 3)))
    handle:remove()
    x.grad = nil
    local double = layer:register_full_backward_hook(function(_, grad_input) return { grad_input[1] * 2 } end)
    layer(x):sum():backward()
    assert.is_true(tensor.allclose(x.grad, seen[2][1] * 2))
    double:remove()
    x.grad = nil
    layer:register_full_backward_pre_hook(function(_, grad_output) return { grad_output[1] * 3 } end)
    layer(x):sum():backward()
    assert.is_true(tensor.allclose(x.grad, seen[2][1] * 3))
  end)

  it("run for a module whose arguments want no gradient, too", function()
    local layer, count = nn.Linear(2, 3), 0
    layer:register_full_backward_hook(function(_, grad_input, grad_output)
      count = count + 1
      assert.equal(0, grad_input.n)
      assert.equal(1, grad_output.n)
    end)
    layer(core.ones(1, 2)):sum():backward()
    assert.equal(1, count)
    tensor.no_grad(function() layer(core.ones(1, 2)) end)
    assert.equal(1, count)
  end)

  it("do not change the gradients of weights by being there", function()
    local a = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    local x = core.randn(5, 3)
    a(x):square():sum():backward()
    local before = a[1].weight.grad:clone()
    a:zero_grad()
    local order = {}
    for i, m in a:iter() do m:register_full_backward_hook(function() order[#order + 1] = i end) end
    a(x):square():sum():backward()
    assert.is_true(tensor.equal(before, a[1].weight.grad))
    assert.same({ 3, 2, 1 }, order)
  end)
end)

describe("tied weights", function()
  local function tied()
    local Model = nn.class("Model")
    function Model:init()
      self.emb = nn.Linear(4, 4, { bias = false })
      self.mid = nn.Linear(4, 4)
      self.head = nn.Linear(4, 4, { bias = false })
      self.head.weight = self.emb.weight
    end
    function Model:forward(x) return self.head(self.mid(self.emb(x))) end
    return Model()
  end

  it("survive state_dict, to and prepare", function()
    local m = tied()
    assert.equal(3, #m:parameters())
    local dict = m:state_dict()
    assert.is_true(tensor.equal(dict["emb.weight"], dict["head.weight"]))
    local other = tied()
    other:load_state_dict(dict)
    assert.equal(other.emb.weight, other.head.weight)
    assert.is_true(tensor.equal(m.emb.weight, other.head.weight))
    other:double()
    assert.equal(other.emb.weight, other.head.weight)
    other:float()
    local accelerator = accelerate.Accelerator {}
    local optimizer = optim.SGD(other:parameters(), { lr = 0.1 })
    other, optimizer = accelerator:prepare(other, optimizer)
    assert.equal(other.emb.weight, other.head.weight)
    accelerator:backward(other(core.ones(2, 4)):sum())
    optimizer:step()
    assert.equal(other.emb.weight, other.head.weight)
    assert.is_false(tensor.equal(m.emb.weight, other.emb.weight))
  end)

  it("are one tensor in a file, however they come", function()
    host.in_folder(function(folder)
      local m = tied()
      local accelerator = accelerate.Accelerator {}
      accelerator:save(m:state_dict(), folder .. "/a.safetensors", { safe_serialization = true })
      local list = core.safetensors_load(folder .. "/a.safetensors")
      local found = {}
      for _, item in ipairs(list) do found[#found + 1] = item[1] end
      table.sort(found)
      assert.same({ "emb.weight", "mid.bias", "mid.weight" }, found)
      accelerator:save_model(m, folder .. "/model")
      local other = tied()
      accelerate.load_checkpoint_in_model(other, folder .. "/model", { strict = true })
      assert.is_true(tensor.equal(other.head.weight, m.emb.weight))
    end)
  end)

  it("take the values' memory with assign", function()
    local m = tied()
    local dict = tied():double():state_dict()
    m:load_state_dict(dict, { assign = true })
    assert.equal("float64", m.mid.weight.dtype)
    assert.equal(m.emb.weight, m.head.weight)
    assert.is_true(m.mid.weight.requires_grad)
    core.no_grad(function() dict["mid.bias"]:fill_(7) end)
    assert.equal(7, m.mid.bias[1]:item())
  end)
end)

describe("Bilinear and distances", function()
  it("are modules around the functions", function()
    local F = nn.functional
    local b = nn.Bilinear(3, 4, 5)
    local x, y = core.randn(2, 3), core.randn(2, 4)
    assert.is_true(tensor.equal(b(x, y), F.bilinear(x, y, b.weight, b.bias)))
    assert.is_true(b.weight:abs():max():item() <= 1 / math.sqrt(3))
    local z = core.randn(2, 3)
    assert.is_true(tensor.equal(nn.CosineSimilarity { dim = -1 }(x, z),
      F.cosine_similarity(x, z, { dim = -1 })))
    assert.is_true(tensor.equal(nn.PairwiseDistance { p = 1 }(x, z), F.pairwise_distance(x, z, { p = 1 })))
    assert.matches("bilinear: x1 %[2, 4%] and x2 %[2, 4%] do not fit weight %[5, 3, 4%]", message(b, y, y))
  end)

  describe("of all pairs of rows", function()
    local function direct(x, y) return core.norm(x:unsqueeze(-2) - y:unsqueeze(-3), 2, -1) end
    local function far(a, b, near_to)
      local top = b:abs():max():item()
      return (a:double() - b):abs():max():item() > near_to * (top > 0 and top or 1)
    end

    it("are as exact as the rows, also where these are near each other", function()
      core.manual_seed(4)
      local x, y = core.randn(100, 33), core.randn(70, 33)
      for name, pair in pairs { plain = { x, y }, equal = { x, x }, far_off = { x + 1e4, y + 1e4 },
        near = { x, x + core.randn(100, 33) * 1e-5 }, large = { x * 1e15, y * 1e15 },
        cluster = { x * 1e-6 + 1, x * 1e-6 + 1 }, few = { x[{ { 1, 3 } }], y }, rows_of_0 = { x * 0, y * 0 },
        many = { core.randn(400, 17), core.randn(1050, 17) },
        stacks = { core.randn(3, 40, 20), core.randn(3, 50, 20) }, spread = { x, core.randn(2, 70, 33) },
        strided = { core.randn(33, 100):t(), core.randn(70, 66)[{ {}, { 1, 66, 2 } }] } } do
        local a, b = pair[1]:detach():clone():requires_grad_(), pair[2]:detach():clone():requires_grad_()
        local c, d = a:detach():double():requires_grad_(), b:detach():double():requires_grad_()
        local r, expected = tensor.cdist(a, b), direct(c, d)
        local seed = core.randn(r.shape)
        r:backward(seed)
        expected:backward(seed:double())
        assert.equal("float32", r.dtype)
        local worst = ((r:double() - expected):abs() / expected:clamp { min = 1e-30 }):max():item()
        assert.is_true(worst < 1.2e-7, name .. ": " .. worst)
        assert.is_false(far(a.grad, c.grad, 1e-6), name)
        assert.is_false(far(b.grad, d.grad, 1e-6), name)
      end
    end)

    it("have every order, in both types, for stacks that broadcast and for any number of threads", function()
      core.manual_seed(5)
      local threads = tensor.get_num_threads()
      for _, dtype in ipairs { "float32", "float64" } do
        local x, y = core.randn(2, 1, 30, 19):to(dtype), core.randn(3, 25, 19):to(dtype)
        for _, p in ipairs { 0, 0.5, 1, 2, 3, math.huge } do
          local a, b = x:clone():requires_grad_(), y:clone():requires_grad_()
          local c, d = x:double():clone():requires_grad_(), y:double():clone():requires_grad_()
          local r, expected = tensor.cdist(a, b, p), core.norm(c:unsqueeze(-2) - d:unsqueeze(-3), p, -1)
          assert.same({ 2, 3, 30, 25 }, r.shape)
          assert.equal(dtype, r.dtype)
          assert.is_false(far(r, expected, dtype == "float32" and 3e-7 or 1e-14), p)
          local seed = core.randn(r.shape):to(dtype)
          r:backward(seed)
          if p > 0 then
            expected:backward(seed:double())
            assert.is_false(far(a.grad, c.grad, dtype == "float32" and 1e-6 or 1e-13), p)
            assert.is_false(far(b.grad, d.grad, dtype == "float32" and 1e-6 or 1e-13), p)
          else assert.equal(0, a.grad:abs():sum():item()) end
          tensor.set_num_threads(3)
          assert.is_true(tensor.equal(r, tensor.cdist(a, b, p)))
          tensor.set_num_threads(threads)
        end
      end
      local x = core.randn(7, 4)
      assert.same(x:cdist(x)[core.ones(7, 7):triu(1):bool()]:tolist(), nn.functional.pdist(x):tolist())
      assert.same({ 2, 0, 3 }, tensor.cdist(core.ones(2, 0, 4), core.ones(2, 3, 4)).shape)
      assert.matches("cdist: the leading dims of %[2, 3, 4%] and %[3, 3, 4%] do not broadcast",
        message(tensor.cdist, core.ones(2, 3, 4), core.ones(3, 3, 4)))
    end)

    it("have the same bits for few pairs as among many", function()
      core.manual_seed(6)
      for _, dtype in ipairs { "float32", "float64" } do
        for _, k in ipairs { 1, 7, 64, 20000 } do -- of the longest, few rows are computed together
          local x, y = core.randn(2, 13, k):to(dtype), core.randn(2, 35, k):to(dtype)
          for _, p in ipairs { 0, 1, 1.5, 2, math.huge } do
            if p ~= 1.5 or k < 100 then
              local all = tensor.cdist(x, y, p)
              for m = 1, 13 do
                local from, n = 14 - m, m % 4 * 8 + m
                local part = tensor.cdist(x:narrow(2, from, m), y:narrow(2, 36 - n, n), p)
                assert.is_true(tensor.equal(all:narrow(2, from, m):narrow(3, 36 - n, n), part),
                  ("%s, %d rows of %d, p = %g"):format(dtype, m, k, p))
              end
            end
          end
        end
      end
    end)

    it("keep their digits where powers leave float32", function()
      core.manual_seed(3)
      for _, scale in ipairs { 1e-30, 1e-22, 1e-15, 1e12, 1e18, 1e25 } do
        local x, y = core.randn(33, 21) * scale, core.randn(45, 21) * scale
        y[3] = x[5]
        for _, p in ipairs { 0.5, 1, 1.5, 2, 3, math.huge } do
          local a, b = x:clone():requires_grad_(), y:clone():requires_grad_()
          local c, d = x:double():requires_grad_(), y:double():requires_grad_()
          local r, expected = tensor.cdist(a, b, p), core.norm(c:unsqueeze(-2) - d:unsqueeze(-3), p, -1)
          assert.is_false(far(r, expected, 1.2e-7), p)
          local seed = core.randn(33, 45)
          seed[5][3] = 0 -- the rows that are equal
          r:backward(seed)
          expected:backward(seed:double())
          assert.is_false(far(a.grad, c.grad, 2e-6), p)
          assert.is_false(far(b.grad, d.grad, 2e-6), p)
        end
      end
    end)

    it("keep what is not finite, half types, and gradients of gradients", function()
      local x, y = core.randn(60, 40), core.randn(40, 40)
      x[1][2], x[2][3] = math.huge, 0 / 0
      local d = x:cdist(y)
      assert.equal(math.huge, d[1]:amin():item())
      assert.is_true(d[2]:isnan():all():item())
      assert.is_true(d[{ { 3, 60 } }]:isfinite():all():item())
      y[7][2], y[8][5] = math.huge, -math.huge
      local r, expected = x:cdist(y), direct(x:double(), y:double())
      assert.is_true(r[1][7]:isnan():item())
      assert.is_true(r:isnan():equal(expected:isnan()))
      assert.is_true(r:isinf():equal(expected:isinf()))
      assert.is_false(far(r:nan_to_num(0, { posinf = 0 }), expected:nan_to_num(0, { posinf = 0 }), 1.2e-7))
      local half = tensor.cdist(core.randn(60, 40):bfloat16(), y:bfloat16())
      assert.equal("bfloat16", half.dtype)
      local function second(distance, a, b)
        a, b = a:detach():requires_grad_(), b:detach():requires_grad_()
        local g = core.grad(distance(a, b):sin():sum(), a, { create_graph = true })
        return core.grad(g:square():sum(), b)
      end
      local a, b = core.randn(60, 20), core.randn(40, 20)
      assert.is_false(far(second(tensor.cdist, a, b), second(direct, a:double(), b:double()), 1e-6))
    end)
  end)
end)

describe("registration", function()
  it("does not take the place of what has the name", function()
    local m = nn.Linear(2, 2)
    m.act, m.note = nn.ReLU(), "mine"
    m:register_buffer("counts", core.zeros(1))
    for _, case in ipairs {
      { "'weight' is a parameter already, and cannot be a buffer, too; call the buffer something else, " ..
        "or set " ..
        "the attribute to nil first", m.register_buffer, "weight", core.ones(1) },
      { "'counts' is a buffer already, and cannot be a module", m.add_module, "counts", nn.ReLU() },
      { "'act' is a module already, and cannot be a parameter", m.register_parameter, "act",
        nn.Parameter(core.ones(1)) },
      { "'note' is an attribute already, and cannot be a buffer", m.register_buffer, "note", core.ones(1) },
      { "'weight' is a parameter already, and cannot be a buffer", m.register_buffer, "weight", nil },
    } do
      assert.matches("Linear: " .. case[1], message(case[2], m, case[3], case[4]))
    end
    assert.same({ 2, 2 }, m.weight.shape)
    m:register_buffer("counts", core.ones(2))
    m:register_module("act", nn.Tanh())
    assert.same({ 2 }, m.counts.shape)
    m.note = nil
    m:register_buffer("note", core.ones(1))
    assert.equal("float32", m:get_buffer("note").dtype)
  end)

  it("of a buffer that is nil holds for the tensor that is assigned", function()
    local m = nn.Linear(2, 2)
    m:register_buffer("mask", nil, { persistent = false })
    m:register_buffer("scale", nil)
    assert.is_nil(m.mask)
    m = m:clone()
    m.mask, m.scale = core.ones(2), core.ones(3)
    local list = {}
    for name in m:named_buffers() do list[#list + 1] = name end
    table.sort(list)
    assert.same({ "mask", "scale" }, list)
    assert.is_nil(m:state_dict().mask)
    assert.same({ 3 }, m:state_dict().scale.shape)
    assert.equal("float64", m:double().mask.dtype)
    m.mask = nil
    assert.is_nil(m.mask)
    assert.equal(1, #m:buffers())
    m.mask = core.zeros(4)
    assert.equal(2, #m:buffers())
    assert.is_nil(m:state_dict().mask)
  end)

  it("of entries of a ParameterDict makes parameters of tensors", function()
    local dict = nn.ParameterDict()
    dict.a = core.ones(2)
    dict["b"] = nn.Parameter(core.ones(1))
    dict.c = core.ones(1, { dtype = "int64" })
    assert.same({ "a", "b", "c" }, dict:keys())
    assert.is_true(dict.a.requires_grad)
    assert.is_false(dict.c.requires_grad)
    assert.equal(3, #dict:parameters())
  end)
end)

describe("to(tensor)", function()
  it("gives parameters the tensor's type and device", function()
    local m = nn.Linear(2, 2)
    assert.equal(m, m:to(core.ones(1, { dtype = "float64" })))
    assert.equal("float64", m.weight.dtype)
    assert.matches("Linear:to: parameters can only become of a floating or complex type, got 'int64'",
      message(m.to, m, core.ones(1, { dtype = "int64" })))
  end)

  it("takes non_blocking, and says why there is no memory_format", function()
    local m = nn.Linear(2, 2)
    for _, call in ipairs {
      { "cpu", { non_blocking = true } }, { "cpu", true }, { "cpu", "float64", true },
      { { device = "cpu", non_blocking = true } }, { "float64", { device = "cpu" } },
    } do
      m:float()
      assert.equal(m, m:to(unpack(call)))
      local wide = call[1] == "float64" or call[2] == "float64"
      assert.equal(wide and "float64" or "float32", m.weight.dtype)
    end
    assert.matches("Linear:to: give a dtype or a device", message(m.to, m, { non_blocking = true }))
    assert.matches("Linear:to: expected a dtype or a device, got true", message(m.to, m, true))
    assert.matches("Linear:to: memory_format is not there: layers choose how",
      message(m.to, m, { memory_format = "channels_last" }))
    assert.matches("no function channels_last; instead: leave memory_format out: layers choose",
      message(function() return tensor.channels_last end))
  end)
end)

-- The order is PyTorch's.
describe("hooks of all modules", function()
  it("run before each module's own, until they are removed", function()
    local model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    local log = {}
    local function note(what) return function(module) log[#log + 1] = what .. module.__name end end
    local own = model[1]:register_forward_hook(note "own ")
    local handles = {
      nn.register_module_forward_pre_hook(note "pre "), nn.register_module_forward_hook(note ""),
      nn.register_module_full_backward_pre_hook(note "back pre "),
      nn.register_module_full_backward_hook(note "back "),
    }
    model(core.ones(1, 2, { requires_grad = true })):sum():backward()
    assert.same({ "pre Sequential", "pre Linear", "Linear", "own Linear", "pre ReLU", "ReLU", "pre Linear",
      "Linear", "Sequential", "back pre Sequential", "back pre Linear", "back Linear", "back pre ReLU",
      "back ReLU", "back pre Linear", "back Linear", "back Sequential" }, log)
    for _, handle in ipairs(handles) do
      handle:remove()
      handle:remove()
    end
    own:remove()
    log = {}
    model(core.ones(1, 2)):sum():backward()
    assert.same({}, log)
  end)

  it("see layers that are one op otherwise, and may replace results", function()
    local model = nn.Sequential(nn.Linear(2, 2), nn.GELU("tanh"))
    local x, called = core.ones(1, 2), {}
    local plain = model(x)
    local handle = nn.register_module_forward_hook(function(module, _, y)
      called[#called + 1] = module.__name
      if module == model then return y * 2 end
    end, { always_call = true })
    local fine, doubled = pcall(model, x)
    handle:remove()
    assert.is_true(fine)
    assert.same({ "Linear", "GELU", "Sequential" }, called)
    assert.is_true(doubled:allclose(plain * 2))
    assert.matches("register_module_forward_hook: hook must be a function, got 3",
      message(nn.register_module_forward_hook, 3))
  end)
end)
