-- Flat parameter buffers, and the reduction of gradients.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local parallel = require "accelerate.parallel"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"

describe("flat parameters", function()
  local accelerator
  before_each(function()
    state.reset()
    accelerator = accelerate.Accelerator()
  end)
  after_each(function() state.reset() end)

  it("lie in one buffer in reverse order of registration, in slots of 256 bytes", function()
    local model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    local before, objects = {}, model:parameters()
    for i, p in ipairs(objects) do before[i] = p:totable() end
    assert.are.equal(model, accelerator:prepare(model))
    local chunks = parallel.record_of(model).flats
    assert.are.equal(1, #chunks)
    assert.are.same({ 0, 64, 128, 192 }, chunks[1].offsets)
    assert.are.equal(256, chunks[1].values:numel())
    for i, p in ipairs(model:parameters()) do
      assert.are.equal(objects[i], p)
      assert.are.equal(p, chunks[1].params[5 - i])
      assert.are.same(before[i], p:totable())
    end
    assert.are.equal(objects[4]:totable()[2], chunks[1].values:totable()[2])
  end)

  it("take gradients in place, again and again", function()
    local model = nn.Linear(3, 2)
    accelerator:prepare(model)
    local chunk = parallel.record_of(model).flats[1]
    model(core.ones(1, 3)):sum():backward()
    assert.are.same({ 1, 1 }, chunk.grads:narrow(1, 1, 2):totable())
    local grad = model.bias.grad
    model(core.ones(1, 3)):sum():backward()
    assert.are.equal(grad, model.bias.grad)
    assert.are.same({ 2, 2 }, chunk.grads:narrow(1, 1, 2):totable())
    model:zero_grad()
    assert.is_nil(model.bias.grad)
    model(core.ones(1, 3)):sum():backward()
    assert.are.same({ 1, 1 }, model.bias.grad:totable())
  end)

  it("give tied weights one slot", function()
    local a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    b.weight = a.weight
    local model = nn.Sequential(a, b)
    accelerator:prepare(model)
    assert.are.equal(3, #parallel.record_of(model).flats[1].params)
    model(core.ones(1, 4)):sum():backward()
    assert.are.equal(a.weight.grad, b.weight.grad)
  end)

  it("keep element types apart, and frozen from trained", function()
    local model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2):double(), nn.Linear(2, 2))
    model[1].weight.requires_grad = false
    accelerator:prepare(model)
    local found = {}
    for _, chunk in ipairs(parallel.record_of(model).flats) do
      found[#found + 1] = ("%s %d %s"):format(chunk.dtype, #chunk.params, tostring(chunk.trainable))
    end
    assert.are.same({ "float32 3 true", "float64 2 true", "float32 1 false" }, found)
  end)

  it("take in what was added to the model later, through add_param_group or another prepare", function()
    local Net = nn.class("Net")
    function Net:init() self.fc = nn.Linear(2, 2) end
    local net = Net()
    local optimizer = optim.SGD(net:parameters(), { lr = 1 })
    net, optimizer = accelerator:prepare(net, optimizer)
    net.later = nn.Linear(2, 2)
    optimizer:add_param_group { params = net.later:parameters() }
    assert.are.equal(2, #parallel.record_of(net).flats)
    net.last = nn.Linear(2, 2)
    accelerator:prepare(net)
    assert.are.equal(3, #parallel.record_of(net).flats)
    assert.are.equal(net, accelerator:prepare(net))
    assert.are.equal(3, #parallel.record_of(net).flats)
  end)

  it("let their model go", function()
    local weak = setmetatable({}, { __mode = "v" })
    do
      local model = nn.Linear(2, 2)
      weak[1] = accelerator:prepare(model)
      weak[2] = parallel.record_of(model)
    end
    accelerator:free_memory()
    collectgarbage()
    collectgarbage()
    assert.is_nil(weak[1])
    assert.is_nil(weak[2])
  end)
end)

describe("gradients on ranks", function()
  local SCRIPT = [[
    local nn, optim = require "accelerate.nn", require "accelerate.optim"
    local accelerator = accelerate.Accelerator()
    -- p.grad of a linear model without bias is the sum of its inputs: a different one on each rank
    local function ones(n) return core.full({ 1, n }, rank + 1) end
    local mean = (ranks + 1) / 2
    local function grad(p) return p.grad and p.grad:totable()[1] end
    local function first(p) local g = grad(p) return type(g) == "table" and g[1] or g end
    local function same(p)
      local all = accelerator:gather(p:detach():reshape(1, -1))
      return (all - all:narrow(1, 1, 1)):abs():max():item() == 0
    end
  ]]

  it("are the mean over ranks after a backward pass", function()
    for n = 2, 4 do
      ranks.ok(n, SCRIPT .. [[
        local model = accelerator:prepare(nn.Linear(2, 2, { bias = false }))
        accelerator:backward(model(ones(2)):sum())
        check(math.abs(first(model.weight) - mean) < 1e-6, tostring(first(model.weight)))
        local x = model.weight.grad
        accelerator:backward(model(ones(2)):sum())
        check(math.abs(first(model.weight) - 2 * mean) < 1e-6 and x == model.weight.grad)
      ]])
    end
  end)

  it("start from rank 0's parameters and buffers", function()
    ranks.ok(3, SCRIPT .. [[
      core.manual_seed(rank)
      local model = nn.Linear(5, 3)
      model:register_buffer("count", core.full({ 2 }, rank, { dtype = "int64" }))
      model = accelerator:prepare(model)
      check(same(model.weight) and same(model.bias) and model.count:totable()[1] == 0)
      model.count:add_(rank)
      accelerator:backward(model(core.ones(1, 5)):sum())
      check(model.count:totable()[1] == 0, "rank 0's buffers after the reduction")
    ]])
  end)

  it("refuse complex parameters, whose gradients are not reduced", function()
    local status, _, err = ranks.run(2, SCRIPT ..
      [[accelerator:prepare(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3, { dtype = "complex64" })))]])
    assert.are.equal(1, status)
    assert.matches("prepare: parameter '1%.weight' is complex64, " ..
      "and gradients of complex numbers are not reduced",
      err)
  end)

  it("name the entry in which models differ", function()
    local status, _, err = ranks.run(2, SCRIPT ..
      [[accelerator:prepare(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3 + rank)))]])
    assert.are.equal(1, status)
    assert.matches("prepare: the model differs between ranks: entry 3 is '1%.weight float32 %[4, 2%]' " ..
      "here and '1%.weight float32 %[3, 2%]' on rank 0", err)
  end)

  it("stay on the rank under no_sync, and the next reduction takes them along", function()
    ranks.ok(2, SCRIPT .. [[
      local model = accelerator:prepare(nn.Linear(2, 2, { bias = false }))
      check(accelerator:no_sync(model, function()
        accelerator:backward(model(ones(2)):sum())
        return "result"
      end) == "result")
      check(first(model.weight) == rank + 1)
      accelerator:no_sync(model, function()
        accelerator:trigger_sync_in_backward(model, function() accelerator:backward(model(ones(2)):sum()) end)
      end)
      check(first(model.weight) == 2 * mean)
      local ok = pcall(accelerator.no_sync, accelerator, model, function() error("inside") end)
      check(not ok)
      accelerator:backward(model(ones(2)):sum())
      check(first(model.weight) == 3 * mean, "the state is restored when the function raises")
    ]])
  end)

  it("of parameters that only some ranks used count as zeros on the others", function()
    ranks.ok(3, SCRIPT .. [[
      local Net = nn.class("Net")
      function Net:init()
        self.a, self.b, self.never = nn.Linear(2, 2, { bias = false }), nn.Linear(2, 2, { bias = false }),
          nn.Linear(2, 2)
      end
      function Net:forward(x) return rank == 1 and self.b(x) or self.a(x) end
      local model = accelerator:prepare(Net())
      local optimizer = accelerator:prepare(optim.AdamW(model:parameters(), { lr = 0.1 }))
      for step = 1, 3 do
        accelerator:backward(model(core.ones(1, 2)):sum())
        check(math.abs(first(model.a.weight) - 2 / 3) < 1e-6, "a")
        check(math.abs(first(model.b.weight) - 1 / 3) < 1e-6, "b")
        check(model.never.weight.grad == nil, "a parameter that no rank used keeps no gradient")
        optimizer:step()
        optimizer:zero_grad()
        check(model.a.weight.grad == nil)
        check(same(model.a.weight) and same(model.b.weight))
      end
    ]])
  end)

  it("are reduced before a step when the script called loss:backward() itself", function()
    ranks.ok(2, SCRIPT .. [[
      local model, optimizer = nn.Linear(2, 2, { bias = false })
      model, optimizer = accelerator:prepare(model, optim.SGD(model:parameters(), { lr = 1 }))
      local before = model.weight:totable()[1][1]
      model(ones(2)):sum():backward()
      optimizer:step()
      check(math.abs(before - model.weight:totable()[1][1] - mean) < 1e-6)
      optimizer:zero_grad()
      model(ones(2)):sum():backward()
      local norm = accelerator:clip_grad_norm_(model:parameters(), 1e9):item()
      check(math.abs(norm - 2 * mean) < 1e-5, "clip sees reduced gradients")
    ]])
  end)

  it("of two models are reduced by the backward passes that reach them", function()
    ranks.ok(2, SCRIPT .. [[
      local a, b = accelerator:prepare(nn.Linear(2, 2, { bias = false }), nn.Linear(2, 2, { bias = false }))
      accelerator:backward(a(ones(2)):sum())
      check(first(a.weight) == mean and b.weight.grad == nil)
      accelerator:backward(b(a(ones(2)):detach()):sum())
      check(first(a.weight) == mean)
      check(b.weight.grad ~= nil and same(b.weight.grad))
      -- one set on each side of an accumulate: only the named model waits
      accelerator.gradient_accumulation_steps = 2
      a:zero_grad() b:zero_grad()
      accelerator:accumulate(a, function() accelerator:backward(a(ones(2)):sum()) end)
      check(first(a.weight) == (rank + 1) / 2)
      accelerator:accumulate(a, function() accelerator:backward(a(ones(2)):sum()) end)
      check(first(a.weight) == mean)
    ]])
  end)

  it("of a model that only some ranks' losses reach are never mixed with another model's", function()
    local status, _, err = ranks.run(2, SCRIPT .. [[
      local a, b = accelerator:prepare(nn.Linear(2, 2), nn.Linear(2, 2))
      for _ = 1, 2 do
        local loss = a(ones(2)):sum()
        if rank == 0 then loss = loss + b(ones(2)):sum() end
        accelerator:backward(loss)
      end
    ]])
    assert.are.equal(1, status)
    assert.matches("ranks disagree in collective #%d+: rank 0 calls all_reduce%(float32, %d+ elements, " ..
      "mean, model 2%)", err)
    assert.matches("rank 1 calls all_reduce%(float32, %d+ elements, mean, model 1%)", err)
  end)

  it("of frozen parameters are reduced once they are unfrozen", function()
    ranks.ok(2, SCRIPT .. [[
      local model = nn.Sequential(nn.Linear(2, 2, { bias = false }), nn.Linear(2, 2, { bias = false }))
      model[1].weight.requires_grad = false
      core.no_grad(function() model[2].weight:fill_(1) end)
      accelerator:prepare(model)
      accelerator:backward(model(ones(2)):sum())
      check(model[1].weight.grad == nil and same(model[2].weight.grad))
      model:zero_grad()
      model[1].weight.requires_grad = true
      for _ = 1, 2 do
        accelerator:backward(model(ones(2)):sum())
        check(first(model[1].weight) == 2 * mean, tostring(first(model[1].weight)))
        model:zero_grad()
      end
      model[2].weight.requires_grad = false
      accelerator:backward(model(ones(2)):sum())
      check(first(model[1].weight) == 2 * mean and model[2].weight.grad == nil)
    ]])
  end)

  it("that the script set, or that carry a graph, are reduced, too", function()
    ranks.ok(2, SCRIPT .. [[
      local model = accelerator:prepare(nn.Linear(2, 2, { bias = false }))
      model.weight.grad = core.full({ 2, 2 }, 10)
      accelerator:backward(model(ones(2)):sum())
      check(first(model.weight) == 10 + mean)
      model:zero_grad()
      accelerator:backward((model(ones(2)) ^ 2):sum(), { create_graph = true })
      check(same(model.weight.grad))
      model:zero_grad()
      accelerator:backward(model(ones(2)):sum())
      check(first(model.weight) == mean)
    ]])
  end)

  it("keep a history, so that a penalty on them trains as on one rank", function()
    for _, stage in ipairs { "ZeRO-0", "ZeRO-1" } do
      ranks.ok(3, SCRIPT .. ([[
        local plan = require("accelerate.parallel.plan").new("%s", { shard = 3 }, 3)
        accelerator._plan = plan
        local net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
        core.manual_seed(3)
        nn.init.normal_(net[1].weight)
        nn.init.normal_(net[3].weight)
        local alone = net:clone()
        local model, optimizer = accelerator:prepare(net, optim.SGD(net:parameters(), { lr = 0.1 }))
        local x = core.randn(12, 3)
        local function penalty(params)
          local sum = 0
          for _, p in ipairs(params) do sum = sum + p.grad:square():sum() end
          return sum
        end
        for _ = 1, 3 do
          accelerator:backward(model(x:narrow(1, 1 + 4 * rank, 4)):pow(3):mean(), { create_graph = true })
          local loss = penalty(model:parameters())
          optimizer:zero_grad()
          accelerator:backward(loss)
          accelerator:clip_grad_norm_(model:parameters(), 0.5)
          optimizer:step()
          optimizer:zero_grad()
          alone(x):pow(3):mean():backward { create_graph = true }
          loss = penalty(alone:parameters())
          alone:zero_grad()
          loss:backward()
          nn.utils.clip_grad_norm_(alone:parameters(), 0.5)
          core.no_grad(function()
            for _, p in ipairs(alone:parameters()) do p:sub_(p.grad * 0.1) end
          end)
          alone:zero_grad()
        end
        for i, p in ipairs(alone:parameters()) do
          local worst = (p - model:parameters()[i]):abs():max():item()
          check(worst < 1e-5, worst)
        end
      ]]):format(stage))
    end
  end)

  it("keep a history through windows, until they are set to others", function()
    ranks.ok(2, SCRIPT .. [[
      local model = accelerator:prepare(nn.Linear(2, 2, { bias = false }))
      accelerator:no_sync(model, function()
        accelerator:backward((model(ones(2)) ^ 2):sum(), { create_graph = true })
      end)
      local grad = model.weight.grad
      check(grad.requires_grad)
      accelerator:backward(model(ones(2)):sum())
      check(model.weight.grad.requires_grad and same(model.weight.grad))
      model.weight.grad = grad
      check(model.weight.grad.requires_grad)
      model.weight.grad = grad:detach()
      check(not model.weight.grad.requires_grad)
      check(not pcall(accelerator.backward, accelerator, model(ones(2)):sum(),
        { create_graph = true, weight = 2 }))
    ]])
  end)

  it("with weights are the sum over the sum of weights, however items are split", function()
    ranks.ok(3, SCRIPT .. [[
      core.manual_seed(1)
      local x, y = core.randn(12, 4), core.randint(0, 3, { 12 })
      local loss_fn = nn.CrossEntropyLoss { reduction = "sum" }
      local reference = nn.Linear(4, 3)
      local model = nn.Linear(4, 3)
      model:load_state_dict(reference:state_dict())
      local optimizer
      model, optimizer = accelerator:prepare(model, optim.SGD(model:parameters(), { lr = 0.1 }))
      local whole = loss_fn(reference(x), y) / 12
      whole:backward()
      local function part(from, count)
        return loss_fn(model(x:narrow(1, from, count)), y:narrow(1, from, count))
      end
      local function close() return (model.weight.grad - reference.weight.grad):abs():max():item() < 1e-6 end
      local from, count = ({ [0] = 1, 3, 8 })[rank], ({ [0] = 2, 5, 5 })[rank]
      for round = 1, 2 do
        accelerator:backward(part(from, count), { weight = count })
        check(close(), "one pass")
        check(not pcall(accelerator.backward, accelerator, part(from, count)),
          "mixed with an unweighted call")
        optimizer:zero_grad()
        -- the same in two passes, the first without a reduction, then with one each
        for _, quiet in ipairs { true, false } do
          local function one() accelerator:backward(part(from, 1), { weight = 1 }) end
          if quiet then accelerator:no_sync(model, one) else one() end
          accelerator:backward(part(from + 1, count - 1), { weight = count - 1 })
          check(close(), "two passes, quiet = " .. tostring(quiet))
          optimizer:zero_grad()
        end
      end
      check(not pcall(function() accelerator:backward(part(from, count) * 0, { weight = 0 }) end),
        "no weight at all")
    ]])
  end)

  it("of a model that was converted after prepare find a new place", function()
    ranks.ok(2, SCRIPT .. [[
      local model = accelerator:prepare(nn.Linear(2, 2, { bias = false }))
      model:double()
      accelerator:backward(model(ones(2):double()):sum())
      check(model.weight.grad.dtype == "float64" and first(model.weight) == mean)
    ]])
  end)
end)

describe("prepared training", function()
  -- Every rank has the same data, so that the mean over two ranks is the gradient itself and no bit
  -- may differ from plain training (which optim_trajectories_spec compares with PyTorch).
  local SCRIPT = [[
    local nn, optim = require "accelerate.nn", require "accelerate.optim"
    local accelerator = accelerate.Accelerator()
    local Net = nn.class("Net")
    function Net:init(tied)
      self.a, self.b, self.c, self.unused = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(2, 2)
      if tied then self.d = nn.Linear(4, 4); self.d.weight = self.b.weight end
    end
    function Net:forward(x, skip)
      local h = self.a(x):tanh()
      if not skip then h = self.b(h):tanh() end
      if self.d then h = self.d(h):tanh() end
      return self.c(h)
    end
    local function adamw(p, opts) return optim.AdamW(p, opts or { lr = 0.05 }) end
    local function momentum(p, opts)
      return optim.SGD(p, opts or { lr = 0.1, momentum = 0.9, nesterov = true, weight_decay = 0.01 })
    end

    -- scenario(prepare, make) -> models to compare; prepare(...) gives its arguments back
    local scenarios = {}
    local function steps(model, optimizers, backward, each)
      for t = 1, 7 do
        if each then each(t) end
        core.manual_seed(100 + t)
        local x = core.randn(5, 3)
        backward((model(x, t % 3 == 0) - x:narrow(2, 1, 2)):square():mean())
        for _, o in ipairs(optimizers) do o:step() o:zero_grad() end
      end
      return { model }
    end
    function scenarios.missing_gradients(prepare, make, backward)
      local net = Net()
      local net, o = prepare(net, make(net:parameters()))
      return steps(net, { o }, backward)
    end
    function scenarios.tied(prepare, make, backward)
      local net = Net(true)
      local net, o = prepare(net, make(net:parameters()))
      return steps(net, { o }, backward)
    end
    function scenarios.two_groups(prepare, make, backward)
      local net = Net()
      local o = make({ unpack(net.a:parameters()) })
      o:add_param_group { params = net.b:parameters(), lr = 0.01 }
      local net, o = prepare(net, o)
      return steps(net, { o }, backward)
    end
    function scenarios.frozen_then_unfrozen(prepare, make, backward)
      local net = Net()
      net.b:requires_grad_(false)
      local net, o = prepare(net, make(net:parameters()))
      return steps(net, { o }, backward, function(t)
        if t == 3 then net.b:requires_grad_(true) end
        if t == 5 then net.a:requires_grad_(false) end
      end)
    end
    function scenarios.add_param_group(prepare, make, backward)
      local net = Net()
      local net, o = prepare(net, make(net.a:parameters()))
      return steps(net, { o }, backward, function(t)
        if t == 3 then o:add_param_group { params = net.c:parameters() } end
        if t == 5 then net.d = nn.Linear(4, 4); o:add_param_group { params = net.d:parameters() } end
      end)
    end
    function scenarios.edit_in_place(prepare, make, backward)
      local net = Net()
      local net, o = prepare(net, make(net:parameters()))
      return steps(net, { o }, backward, function(t)
        if t == 4 then core.no_grad(function() net.b.weight:mul_(0.5) net.c.bias:fill_(0.25) end) end
      end)
    end
    function scenarios.two_optimizers(prepare, make, backward)
      local net = Net()
      local net, o, p = prepare(net, make(net.a:parameters()),
        make({ net.b.weight, net.c.weight }, { lr = 0.02 }))
      return steps(net, { o, p }, backward)
    end
    function scenarios.two_models(prepare, make, backward)
      local one, two = Net(), Net()
      local all = one:parameters()
      for _, p in ipairs(two:parameters()) do all[#all + 1] = p end
      local one, two, o = prepare(one, two, make(all))
      for t = 1, 7 do
        core.manual_seed(200 + t)
        local x = core.randn(5, 3)
        backward((one(x) - x:narrow(2, 1, 2)):square():mean())
        if t % 2 == 0 then backward((two(x) - one(x)):square():mean()) end
        o:step() o:zero_grad()
      end
      return { one, two }
    end

    for _, name in ipairs(require("accelerate.utils.ordered").sorted_keys(scenarios)) do
      for _, make in ipairs { adamw, momentum } do
        core.manual_seed(4)
        local plain = scenarios[name](function(...) return ... end, make, function(loss) loss:backward() end)
        core.manual_seed(4)
        local prepared = scenarios[name](function(...) return accelerator:prepare(...) end, make,
          function(loss) accelerator:backward(loss) end)
        for m, model in ipairs(plain) do
          local others = prepared[m]:parameters()
          for i, p in ipairs(model:parameters()) do
            check((p - others[i]):abs():max():item() == 0,
              ("%s: parameter %d of model %d differs"):format(name, i, m))
          end
        end
        accelerator:free_memory()
      end
    end
  ]]

  it("on one rank changes no bit", function() ranks.ok(1, SCRIPT) end)
  it("on two ranks with the same data changes no bit", function() ranks.ok(2, SCRIPT) end)
end)
