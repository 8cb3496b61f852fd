-- What errors say: the dot for the colon, the nearest name, the op that was called, the script's
-- frames, and contexts' forms.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local ranks = require "spec.support.ranks"
local data, nn, optim, tensor = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor
local utils = accelerate.utils

local function says(text, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok, "no error; expected: " .. text)
  assert.is_truthy(tostring(message):find(text, 1, true),
    ("expected: %s\ngot: %s"):format(text, tostring(message)))
end

describe("a method called with a dot", function()
  local model, x = nn.Sequential(nn.Linear(2, 2)), core.zeros(2, 2)
  local optimizer = optim.SGD(model:parameters(), { lr = 1 })
  local loader = data.DataLoader(data.TensorDataset(core.zeros(2, 1)), { batch_size = 1 })
  local accelerator = accelerate.Accelerator()
  local metric = accelerate.metrics.load "accuracy"

  it("names the call with a colon, with the script's own name for the object", function()
    says("did you mean model:parameters()?", function() model.parameters() end)
    says("did you mean model:train(...)?", function() model.train(false) end)
    says("did you mean model:to(...)?", function() model.to("cuda") end)
    says("did you mean optimizer:step()?", function() optimizer.step() end)
    says("did you mean optimizer:load_state_dict(...)?", function() optimizer.load_state_dict({}) end)
    says("did you mean loader:iter()?", function() loader.iter() end)
    says("did you mean loader.dataset:get(...)?", function() loader.dataset.get(1) end)
    says("did you mean accelerator:backward(...)?", function() accelerator.backward(x) end)
    says("did you mean metric:compute()?", function() metric.compute() end)
    says("got nil; write object:parameters(...), with a colon: did you mean model:parameters()?",
      model.parameters)
  end)

  it("is named for tensors and generators, too", function()
    says("did you mean x:backward()?", function() x.backward() end)
    says("did you mean x:to(...)?", function() x.to("cpu") end)
    says("did you mean x:dim()?", function() x.dim() end)
    says("sum: argument 1 (x) is missing: expected a tensor; did you mean x:sum()?", function() x.sum() end)
    says("did you mean x:sum(...)?", function() x.sum(1) end)
    says("did you mean x:matmul(...)?", function() x.matmul(x) end)
    local g = core.Generator(1)
    says("did you mean g:manual_seed(...)?", function() g.manual_seed(3) end)
  end)

  it("is no mistake on a class, with an object of a derived class first", function()
    local Net = nn.class("Net")
    function Net:train(mode) return nn.Module.train(self, mode) end
    assert.is_false(Net():train(false).training)
  end)
end)

describe("a name that is not there", function()
  it("is an error of every module table that names the nearest one", function()
    for text, read in pairs {
      ["accelerate.nn has no 'Linaer'; did you mean 'Linear'?"] = function() return nn.Linaer end,
      ["accelerate.nn has no 'Conv4d'; did you mean 'Conv3d'?"] = function() return nn.Conv4d end,
      ["accelerate.nn.functional has no 'sofmax'; did you mean 'softmax'?"] = function()
        return nn.functional.sofmax
      end,
      ["accelerate.nn.init has no 'xavier_norml_'; did you mean 'xavier_normal_'?"] = function()
        return nn.init.xavier_norml_
      end,
      ["accelerate.nn.utils has no 'clip_grad_norm'; did you mean 'clip_grad_norm_'?"] = function()
        return nn.utils.clip_grad_norm
      end,
      ["accelerate.optim has no 'AdmaW'; did you mean 'AdamW'?"] = function() return optim.AdmaW end,
      ["accelerate.optim.lr_scheduler has no 'StepLRR'; did you mean 'StepLR'?"] = function()
        return optim.lr_scheduler.StepLRR
      end,
      ["accelerate.data has no 'DataLoadr'; did you mean 'DataLoader'?"] = function()
        return data.DataLoadr
      end,
      ["accelerate.data.transforms has no 'ToTensr'; did you mean 'ToTensor'?"] = function()
        return data.transforms.ToTensr
      end,
      ["accelerate.metrics has no 'acuracy'; did you mean 'accuracy'?"] = function()
        return accelerate.metrics.acuracy
      end,
      ["accelerate.tracking has no 'GenralTracker'; did you mean 'GeneralTracker'?"] = function()
        return accelerate.tracking.GenralTracker
      end,
      ["accelerate.logging has no 'getlogger'; did you mean 'get_logger'?"] = function()
        return accelerate.logging.getlogger
      end,
      ["accelerate.cuda has no 'is_avail'; did you mean 'is_available'?"] = function()
        return accelerate.cuda.is_avail
      end,
      ["accelerate.utils has no 'tqdmm'; did you mean 'tqdm'?"] = function() return utils.tqdmm end,
      ["accelerate has no 'Acelerator'; did you mean 'Accelerator'?"] = function()
        return accelerate.Acelerator
      end,
      ["there is no function zeross; did you mean zeros?"] = function() return tensor.zeross end,
      ["there is no field or method \"sofmax\"; did you mean \"softmax\"?"] = function()
        return core.zeros(1):sofmax()
      end,
      ["Accelerator has no 'prepair'; did you mean 'prepare'?"] = function()
        return accelerate.Accelerator():prepair()
      end,
    } do
      says(text, read)
    end
    for text, read in pairs {
      ["accelerate.nn has no 'Adam'; it is accelerate.optim.Adam"] = function() return nn.Adam end,
      ["accelerate has no 'DataLoader'; it is accelerate.data.DataLoader"] = function()
        return accelerate.DataLoader
      end,
      ["accelerate.nn has no 'relu'; did you mean 'ReLU', or accelerate.nn.functional.relu?"] = function()
        return nn.relu
      end,
      ["there is no function load; it is accelerate.utils.load"] = function() return tensor.load end,
      ["there is no function device; instead: a device is a text"] = function() return tensor.device end,
      ["there is no function detach; instead: x:detach()"] = function() return tensor.detach end,
      ["accelerate.nn.init has no 'normal'; did you mean 'normal_', or accelerate.tensor.normal?"] =
        function()
        return nn.init.normal
      end,
      ["there is no field or method \"numpy\"; instead: x:tolist()"] = function()
        return core.zeros(1):numpy()
      end,
      ["there is no field or method \"values\"; instead: local values, indices = x:max(2): several " ..
        "results are several values"] = function() return core.ones(2, 2):max(2).values end,
      ["there is no field or method \"indices\"; instead: local values, indices = x:topk(3)"] = function()
        return core.ones(2, 2):topk(1).indices
      end,
      ["instead: local U, S, Vh = tensor.linalg.svd(x)"] = function()
        return tensor.linalg.svd(core.ones(2, 2)).S
      end,
    } do
      says(text, read)
    end
    assert.is_nil(rawget(nn, "Conv4d"))
    assert.is_false(utils.hasattr(nn, "Conv4d"))
    assert.is_true(utils.isinstance(nn.Linear(1, 1), nn.Linear))
    assert.is_true(utils.isinstance(nn.Linear(1, 1), { nn.Conv2d, nn.Linear }))
    assert.is_false(utils.isinstance(nn.Linear(1, 1), nn.Conv2d))
    assert.is_false(utils.isinstance(3, nn.Linear))
    says("isinstance: expected a value and a class; write several classes as a list: isinstance(x, { A, B })",
      function() return utils.isinstance(nn.Linear(1, 1), nn.Conv2d, nn.Linear) end)
    says("Class", function() return utils.isinstance(3, "Linear") end)
    says("isinstance: entry 1: expected a class, got 3", function() return utils.isinstance(3, { 3 }) end)
    assert.is_true(utils.hasattr(nn, "Conv2d") and utils.hasattr(optim, "Adamax"))
  end)

  it("and what the library calls without gradients still names the script's line", function()
    local _, message = pcall(tensor.linalg.pinv, tensor.full({ 2, 2 }, 0 / 0))
    assert.matches("^[^\n]*messages_spec.lua:%d+: linalg.pinv: the matrix has elements that are not finite",
      message)
  end)

  it("and PyTorch's names of types are there", function()
    assert.equal("int64", tensor.zeros(1, { dtype = tensor.long }).dtype)
    assert.equal("bfloat16", tensor.ones(1):to(tensor.bfloat16).dtype)
    assert.same({ math.huge, math.pi, true }, { tensor.inf, tensor.pi, tensor.nan ~= tensor.nan })
  end)

  it("and what is there in place of PyTorch's names exists", function()
    local elsewhere, paths = require "accelerate.messages.elsewhere", 0
    for _, map in ipairs { elsewhere.OTHERS, elsewhere.METHODS } do
      for name, text in pairs(map) do
        for path in text:gmatch "accelerate[%w_.]*" do
          local value = accelerate
          for part in path:gmatch "%.([%w_]+)" do value = value[part] end
          assert.is_not_nil(value, name)
          paths = paths + 1
        end
        for method in text:gmatch "x:([%w_]+)" do assert.is_function(core.zeros(1)[method], name) end
      end
    end
    assert.is_true(paths > 5)
  end)

  it("suggests nothing where nothing is near", function()
    for _, read in ipairs { function() return optim.foo end, function() return nn.foo end,
      function() return tensor.foo end,
      function() return core.zeros(1):foo() end } do
      local ok, message = pcall(read)
      assert.is_false(ok)
      assert.is_nil(message:find("did you mean", 1, true), message)
    end
    assert.is_nil(core._nearest("foo", { "to", "floor", "for_each_thing" }))
    assert.are.equal("Conv2d", core._nearest("Conv3d", { "Conv2d", "Conv1d" }))
    assert.are.equal("Conv2d", core._nearest("Conv3d", { "Conv1d", "Conv2d" }))
  end)

  it("of an object's method is named where the error is printed, and inside contexts", function()
    for code, text in pairs {
      ["local m = nn.Linear(1, 1); m:paramters()"] = "Linear has no 'paramters'; did you mean 'parameters'?",
      ["local o = accelerate.optim.SGD({ nn.Parameter(core.zeros(1)) }, { lr = 1 }); return o:stepp()"] =
        "SGD has no 'stepp'; did you mean 'step'?",
      ["local m = nn.Linear(1, 1); core.no_grad(function() return m:quux() end)"] =
        "attempt to call method 'quux' (a nil value); Linear has no 'quux'",
      ["local N = nn.class 'N'; function N:init() self.fc = nn.Linear(1, 1) end; function N:forward(x) " ..
        "return self.fcc(x) end; N()(core.zeros(1))"] =
        "N has no 'fcc'; did you mean 'fc'?",
      ["pritn(1)"] = "attempt to call global 'pritn' (a nil value); did you mean 'print'?",
    } do
      local status, _, err = host.run { "-e",
        "local accelerate = require 'accelerate' local nn, core = accelerate.nn, accelerate.core " .. code }
      assert.are.equal(1, status)
      assert.is_truthy(err:find(text, 1, true), err)
    end
  end)

  it("of a field is named where a script uses it", function()
    host.in_folder(function(folder)
      for code, text in pairs {
        ["local m = nn.Linear(1, 1); print(m.wieght.shape)"] =
          "attempt to index field 'wieght' (a nil value); Linear has no 'wieght'; did you mean 'weight'?",
        ["local args = { learning_rate = 1 }; print(2 * args.learnin_rate)"] =
          "the table has no 'learnin_rate'; did you mean 'learning_rate'?",
        ["local args = { layers = {} }; print(#args.layer)"] =
          "the table has no 'layer'; did you mean 'layers'?",
      } do
        local path = folder .. "/train.lua"
        assert(fs.write(path, "local accelerate = require 'accelerate'\nlocal nn = accelerate.nn\n" .. code))
        local status, _, err = host.run { path }
        assert.are.equal(1, status)
        assert.is_truthy(err:find(text, 1, true), err)
      end
    end)
  end)
end)

describe("a field that is called, and a method that is not,", function()
  it("are told how they are written, and a loop over a tensor, too", function()
    local head = "local nn = require 'accelerate.nn'\nlocal x = require('accelerate.tensor').ones(2, 3)\n" ..
      "local model, F, list = nn.Linear(2, 2), nn.functional, {}\n"
    local read = "'%s' is a field, which is read without a call: %s.%s\n"
    host.in_folder(function(folder)
      for code, text in pairs {
        ["print(x:T())"] = read:format("T", "x", "T"),
        ["print(x:shape()[1])"] = read:format("shape", "x", "shape"),
        ["print(x.shape())"] = read:format("shape", "x", "shape"),
        ["print(model.weight.dtype())"] = read:format("dtype", "model.weight", "dtype"),
        ["list.x = 1 print(list.x())"] = "attempt to call field 'x' (a number value)\n",
        ["print(x:grad())"] = read:format("grad", "x", "grad"),
        ["print(model.weight:grad())"] = read:format("grad", "model.weight", "grad"),
        ["print(x:abs():grad())"] = read:format("grad", "x", "grad"),
        ["print(x.real + 1)"] = "'real' is a function, which is called: x:real(...)\n",
        ["print(model.parameters[1])"] =
          "'parameters' is a function, which is called: model:parameters(...)\n",
        ["print(2 * F.relu)"] = "'relu' is a function, which is called: F.relu(...)\n",
        ["print(list:grad())"] = "attempt to call method 'grad' (a nil value)\n",
        ["for y in x do print(y) end"] =
          "the rows of a tensor are walked by ipairs: for i, row in ipairs(x) do ... end\n",
        ["local y = x:abs()\n(x + 1):sum()"] = "attempt to call a userdata value\n",
      } do
        local path = folder .. "/train.lua"
        assert(fs.write(path, head .. code))
        local status, _, err = host.run { path }
        assert.are.equal(1, status)
        assert.is_truthy(err:find(text, 1, true), err)
      end
    end)
  end)
end)

describe("a method that is written with a dot, and a list taken for its entries,", function()
  it("are told how they are written", function()
    local head = "local nn, tensor = require 'accelerate.nn', require 'accelerate.tensor'\n" ..
      "local F, x, Net = nn.functional, tensor.ones(2, 3), nn.class 'Net'\n"
    local itself = "'x' is the Net itself: a method is written with a colon, function Net:%s(...)\n"
    host.in_folder(function(folder)
      for code, text in pairs {
        ["function Net.forward(x) local y = x * 2 return y end Net()(x)"] = itself:format "forward",
        ["function Net.forward(x) return F.relu(x) end Net()(x)"] = itself:format "forward",
        ["function Net.encode(x) return 2 + x end Net():encode(x)"] = itself:format "encode",
        ["function Net.encode(m, x) return m and x + 1 end Net():encode({})"] =
          "arithmetic on local 'x' (a table value)\n",
        ["function Net:forward(x) return x + 1 end Net()({})"] = "arithmetic on local 'x' (a table value)\n",
        ["local rows, columns = x.shape print(rows * 2)"] =
          "'rows' is a list of 2; its entries are rows[1], ... or local a, b = unpack(rows)\n",
        ["local rows = {} print(rows * 2)"] = "arithmetic on local 'rows' (a table value)\n",
      } do
        local path = folder .. "/train.lua"
        assert(fs.write(path, head .. code))
        local status, _, err = host.run { path }
        assert.are.equal(1, status)
        assert.is_truthy(err:find(text, 1, true), err)
      end
    end)
  end)
end)

describe("messages of tensors", function()
  local x = core.zeros(2, 3)

  it("name the op that was called, not one inside it", function()
    says(": addmv: inner dimensions differ", function() tensor.addmv(core.zeros(2), x, core.zeros(4)) end)
    says(": mv: inner dimensions differ", function() tensor.mv(x, core.zeros(4)) end)
    says(": baddbmm: expected two stacks",
      function() tensor.baddbmm(core.zeros(2), core.zeros(2, 2, 2), core.zeros(4, 2, 3, 3)) end)
    for op, call in pairs { addmv = function() tensor.addmv(core.zeros(2), x, core.zeros(4)) end,
      mv = function() x:mv(core.zeros(4)) end } do
      local _, message = pcall(call)
      assert.is_nil(message:find(op .. ": %l+: "), message)
    end
  end)

  it("list devices and types where neither fits", function()
    says([[to: there is no element type and no device "gpu"; did you mean "cuda"?]],
      function() x:to("gpu") end)
    says([[and the devices "cpu", "cuda" and "cuda:N"]], function() x:to("nothing") end)
    says([[there are the types float32 float64]], function() x:to("nothing") end)
    says([[did you mean "float32"?]], function() x:to("flot32") end)
  end)

  it("name the way to write what Lua's operators do not do", function()
    says("x:item() is the number of a tensor of one element, and x:lt(y), x:gt(y) compare the elements",
      function() return x < x end)
    says("x:le(y), x:ge(y) compare the elements", function() return x <= x end)
    says("tostring(x) is its text, and x:item() is the number", function() return x .. "s" end)
    says("tostring(x) is its text", function() return "s" .. x end)
    for _, code in ipairs { "return x > 0", "return 1 < x", "return ('%.3f'):format(x)", "return math.exp(x)",
      "return math.floor(x)" } do
      local _, _, err = host.run { "-e", "local x = require('accelerate.tensor').zeros(1) " .. code }
      assert.is_truthy(err:find("x:item() is the number", 1, true), err)
    end
    assert.is_false(x == core.zeros(2, 3))
  end)

  it("and of a loop over a tensor, or over an iterator in ipairs, name the loop to write", function()
    for code, text in pairs {
      ["for n, p in pairs(require('accelerate.nn').Linear(1, 1):named_parameters()) do end"] =
        "an iterator stands alone: for name, p in model:named_parameters() do ... end",
      ["for m in require('accelerate.nn').ModuleList() do end"] =
        "or walk it: for i, m in ipairs(list) do ... end",
    } do
      local _, _, err = host.run { "-e", code }
      assert.is_truthy(err:find(text, 1, true), err)
    end
  end)
end)

describe("an error that ends a script", function()
  it("shows what a table holds", function()
    local _, _, err = host.run { "-e", "error({ code = 1, why = { 'a', 2 } })" }
    assert.is_truthy(err:find("(error object is a table value) { code = 1, why = { \"a\", 2 } }", 1, true),
      err)
  end)

  it("shows the script's frames first, those of the library folded, and the line", function()
    local script = [[
local nn, tensor = require "accelerate.nn", require "accelerate.tensor"
local function inner(x)
  local y = nn.Sequential(nn.Linear(3, 4))(x)
  return y
end
tensor.no_grad(function() local y = inner(tensor.zeros(2)) return y end)
]]
    host.in_folder(function(folder)
      local deep = folder .. "/a_folder_with_a_long_name/and_in_it_one_with_a_longer_name"
      assert(fs.make_dirs(deep)) -- a path that Lua's messages shorten
      for _, path in ipairs { folder .. "/s.lua", deep .. "/s.lua" } do
        assert(fs.write(path, script))
        for _, arguments in ipairs { { path }, { "--num_processes", "2", path } } do
          local status, _, err = host.run(arguments)
          assert.are.equal(1, status)
          assert.matches("%(in layer '0' of Sequential: [^\n]*\nstack traceback:\n\t[^\n]*:3: in function " ..
            "'inner'\n\t[^\n]*:6: in function", err)
          assert.is_truthy(err:find(":3 is: local y = nn.Sequential(nn.Linear(3, 4))(x)\n", 1, true), err)
          assert.matches("frames of accel above the first line, innermost at ", err)
          assert.is_nil(err:find("lua/accelerate/nn/module.lua", 1, true), err)
        end
      end
    end)
  end)
end)

describe("a message that is caught", function()
  it("has no stack of what the library runs in contexts of its own", function()
    local func = require "accelerate.func"
    for _, call in ipairs {
      function() core.tensor({ -1, 2 }):multinomial(2) end,
      function() core.zeros(3):bernoulli_(7) end,
      function() core.ones(3):histogram(0) end,
      function() func.grad(function(x) return x end)(core.ones(3)) end,
      function() func.jacobian(function() end, core.ones(3)) end,
    } do
      local ok, message = pcall(call)
      assert.is_false(ok)
      assert.matches("^[^\n]*messages_spec.lua:%d+: [^\n]*$", message)
    end
  end)

  it("has that of the script's own function, also inside such a context", function()
    for _, run in ipairs { core.no_grad, require("accelerate.func").jacobian } do
      local ok, message = pcall(run, function() error("mine") end, core.ones(3))
      assert.is_false(ok)
      assert.matches("messages_spec.lua:%d+: mine\nstack traceback:\n[^\n]*\n[^\n]*messages_spec.lua:%d+: in",
        message)
    end
  end)
end)

describe("running out of memory", function()
  it("is told from a script's own words", function()
    local reduce = utils.should_reduce_batch_size
    local ok, own = pcall(core.zeros, 2 ^ 40)
    assert.is_false(ok)
    assert.is_true(reduce(own), own)
    assert.is_true(reduce(own .. " (in layer 'fc')\nstack traceback:\n\t..."))
    assert.is_false(reduce("train.lua:3: the shop is out of memory cards"))
    assert.is_false(reduce("out of memory"))
    local calls = 0
    local train = utils.find_executable_batch_size({ starting_batch_size = 8 }, function(_)
      calls = calls + 1
      error("out of memory, says the script")
    end)
    assert.is_false((pcall(train)))
    assert.are.equal(1, calls)
  end)
end)

describe("contexts", function()
  local accelerator = accelerate.Accelerator()
  local double = setmetatable({}, { __call = function(_, ...) return select("#", ...), ... end })
  local model, x = nn.Linear(2, 2), core.ones(1, 2)

  it("take whatever can be called, and hand on what follows the function", function()
    local function same(expected, ...) assert.are.same(expected, { ... }) end
    for _, fn in ipairs { double, function(...) return select("#", ...), ... end } do
      same({ 2, "a", 5 }, tensor.no_grad(fn, "a", 5))
      same({ 2, "a", 5 }, tensor.enable_grad(fn, "a", 5))
      same({ 2, "a", 5 }, tensor.scope(fn, "a", 5))
      same({ 2, "a", 5 }, tensor.autocast(fn, "a", 5))
      same({ 2, "a", 5 }, tensor.autocast({ enabled = false }, fn, "a", 5))
      same({ 2, "a", 5 }, accelerator:autocast(fn, "a", 5))
      same({ 2, "a", 5 }, accelerator:autocast({ enabled = false }, fn, "a", 5))
      same({ 2, "a", 5 }, accelerator:accumulate(model, fn, "a", 5))
      same({ 2, "a", 5 }, accelerator:no_sync(model, fn, "a", 5))
      same({ 2, "a", 5 }, accelerator:no_sync(fn, "a", 5))
      same({ 2, "a", 5 }, accelerator:trigger_sync_in_backward(model, fn, "a", 5))
      same({ 2, "a", 5 }, accelerator:join_uneven_inputs(model, fn, "a", 5))
      same({ 2, "a", 5 }, accelerator:join_uneven_inputs(model, { even_batches = false }, fn, "a", 5))
      same({ 2, "a", 5 }, accelerator:main_process_first(fn, "a", 5))
      same({ 2, "a", 5 }, accelerator:local_main_process_first(fn, "a", 5))
      same({ 2, "a", 5 }, accelerator:on_main_process(fn)("a", 5))
      same({ 2, "a", 5 }, accelerator:on_process({ process_index = 3 }, fn)("a", 5))
      same({ 0 }, accelerator:autocast(fn))
      assert.are.same({ 3, "a", 5 },
        { (function(n, _, ...) return n, ... end)(accelerator:profile(fn, "a", 5)) })
      assert.are.same({ 3, { 1 }, "a", 5 }, { accelerator:split_between_processes({ 1 }, fn, "a", 5) })
    end
    assert.is_false(tensor.no_grad(model, x).requires_grad)
    assert.are.same({ 1, 2 }, accelerator:accumulate(model, model, x).shape)
    assert.are.same({ 1, 2 }, accelerator:no_sync(model, model, x).shape)
  end)

  it("of several ranks hand on, too", function()
    ranks.ok(2, [[
      local accelerator, nn = accelerate.Accelerator(), accelerate.nn
      local model = accelerator:prepare(nn.Linear(1, 1))
      local function count(...) return select("#", ...), ... end
      check(select(3, accelerator:no_sync(model, count, "a", 5)) == 5)
      check(select(3, accelerator:accumulate(model, count, "a", 5)) == 5)
      check(select(3, accelerator:join_uneven_inputs(model, { even_batches = false }, count, "a", 5)) == 5)
      check(select(4, accelerator:split_between_processes({ 1, 2 }, count, "a", 5)) == 5)
    ]])
  end)

  it("say what the new form is where an old one is written", function()
    says("options come before the function: write on_process({ process_index = 2 }, fn)",
      accelerator.on_process, accelerator, print,
      { process_index = 2 })
    says("options come before the function: write on_local_process({ local_process_index = 2 }, fn)",
      accelerator.on_local_process,
      accelerator, 2, print)
    says("write log(values, { step = 3 })", accelerator.log, accelerator, { loss = 1 }, 3)
    says("write reduce(data, \"mean\", { scale = 2 })", accelerator.reduce, accelerator, x, "mean", 2)
    says("write reduce(data, \"mean\")", accelerator.reduce, accelerator, x, { reduction = "mean" })
    says("init_trackers: unknown option 'lr'; known: config, init_kwargs; " ..
      "the run's settings are an option: write init_trackers(project_name, { config = { lr = ... } })",
      accelerator.init_trackers, accelerator,
      "run", { lr = 1 })
    local a, b = nn.Linear(1, 1), nn.Linear(1, 1)
    says("accumulate: argument 1 must be a module, got a list of 2; several models follow each other: " ..
      "accumulate(a, b, fn)", accelerator.accumulate, accelerator, { a, b }, print)
    local loader = accelerator:prepare(data.DataLoader(data.TensorDataset(core.zeros(2, 1)),
      { batch_size = 1 }))
    says("the end of a pass is loader:finish()", function() loader["end"](loader) end)
  end)
end)

describe("lines on stderr", function()
  it("of several ranks stay whole", function()
    local _, out = ranks.ok(4, [[
      accelerate.Accelerator()
      local logger = accelerate.logging.get_logger("x", "INFO")
      for i = 1, 300 do
        logger:info("line %d of rank %d ends here", i, rank, { main_process_only = false })
      end
    ]])
    local whole, lines = 0, 0
    for line in out:gmatch("[^\n]+") do
      if line:find("ends here", 1, true) then lines = lines + 1 end
      if line:match("^INFO:x:[^:]*:%d+:%[RANK %d%] line %d+ of rank %d ends here$") then whole = whole + 1 end
    end
    assert.are.equal(1200, whole)
    assert.are.equal(1200, lines)
  end)
end)

describe("pcall", function()
  local function message(fn, ...)
    local ok, err = pcall(fn, ...)
    assert.is_false(ok)
    return err
  end

  it("explains a call of nil as an error that nobody catches is explained", function()
    local model = nn.Sequential(nn.Linear(2, 2))
    assert.matches("spec%.lua:%d+: attempt to call method 'paramters' %(a nil value%); " ..
      "Sequential has no 'paramters'; did you mean 'parameters'%?$",
      message(function() return model:paramters() end))
    assert.matches("did you mean 'forward'%?$", message(function()
      local function inner() local y = model:foward(1) return y end
      return inner()
    end))
    local caught
    coroutine.wrap(function() caught = message(function() return model:paramters() end) end)()
    assert.matches("did you mean 'parameters'%?$", caught)
  end)

  it("finds the table that was written before the name", function()
    local Linear, other, box = nn.Linear, {}, { nn = nn }
    local by_call = "attempt to call %l+ 'new' %(a nil value%); an object of the class is made by a call: "
    assert.matches(by_call .. "Linear%(...%)$", message(function() local l = Linear:new(2) return l end))
    assert.matches(by_call .. "Conv2d%(...%)$",
      message(function() local l = box.nn.Conv2d.new(2) return l end))
    assert.matches("attempt to call field 'new' %(a nil value%)$",
      message(function() local l = other.new(Linear) return l end))
  end)

  it("says how a class is made here", function()
    local Module, Dataset = nn.Module, data.Dataset
    for _, name in ipairs { "extend", "subclass", "new" } do
      assert.matches('; a class of your own is made by nn.class%("Name"%), or nn.class%("Name", Base%)$',
        message(assert(loadstring("local Class = ... local c = Class." .. name .. "('Net') return c")),
        Module))
    end
    assert.matches('; a class of your own is made by data.class%("Name"%)', message(function()
      local c = Dataset:extend("Own")
      return c
    end))
    for _, name in ipairs { "__init", "__init__", "_init" } do
      local Net = nn.class("Net")
      Net[name] = function() end
      assert.matches("Net: " .. name .. " is never called; the constructor of a class is its method 'init'",
        message(Net))
      local Own = nn.class("Own", nn.Linear)
      Own[name] = function() end
      assert.matches("Own: " .. name .. " is never called", message(Own, 2, 2))
    end
  end)

  it("is Lua's in all else", function()
    local value = {}
    assert.equal(value, message(error, value))
    assert.is_nil(message(error))
    assert.equal("text", message(error, "text", 0))
    assert.equal("two", message(function() error("two", 2) end)) -- no line: pcall called it
    assert.matches("^[^;]*attempt to index field 'x' %(a nil value%)$",
      message(function() return value.x.y end))
    assert.equal("attempt to call a nil value", message(nil))
    assert.matches("stack overflow", message(function()
      local function deep() return 1 + deep() end
      return deep()
    end))
    assert.equal(4, select("#", pcall(function(...) return ... end, nil, 2, nil)))
    local step = coroutine.wrap(function() return pcall(coroutine.yield, 1) end)
    assert.equal(1, step())
    assert.same({ true, 2 }, { step(2) })
  end)
end)
