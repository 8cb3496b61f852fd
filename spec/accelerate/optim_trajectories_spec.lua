-- Optimizers follow PyTorch's trajectories (spec/reference/optim_reference.lua), with parameters on
-- their own and in flat buffers; their states, and what is saved of them.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local message = require("spec.support.messages").message
local reference = dofile("spec/reference/optim_reference.lua").optim
local trajectories = require "spec.support.trajectories"

local Net, params_of = trajectories.Net, trajectories.params_of
local digest, lay_out = trajectories.digest, trajectories.lay_out

local function slice(list, first, last, step)
  local part = {}
  for i = first, last, step or 1 do part[#part + 1] = list[i] end
  return part
end

local MAKERS = {
  sgd = { "SGD", { lr = 0.1 } },
  momentum = { "SGD", { lr = 0.1, momentum = 0.9 } },
  nesterov = { "SGD", { lr = 0.1, momentum = 0.8, nesterov = true, weight_decay = 0.05 } },
  dampening = { "SGD", { lr = 0.1, momentum = 0.9, dampening = 0.3, weight_decay = 0.02 } },
  sgd_maximize = { "SGD", { lr = 0.01, momentum = 0.5, maximize = true, weight_decay = 0.1 } },
  adamw = { "AdamW", { lr = 0.02 } },
  adamw_betas = { "AdamW", { lr = 0.05, betas = { 0.8, 0.95 }, eps = 1e-6, weight_decay = 0.3 } },
  adamw_maximize = { "AdamW", { lr = 0.01, maximize = true, weight_decay = 0 } },
  adam = { "Adam", { lr = 0.02, weight_decay = 0.1 } },
  adam_amsgrad = { "Adam", { lr = 0.02, betas = { 0.5, 0.6 }, amsgrad = true } },
  adam_decoupled = { "Adam", { lr = 0.02, weight_decay = 0.2, decoupled_weight_decay = true } },
  adam_maximize = { "Adam", { lr = 0.01, maximize = true, weight_decay = 0.1 } },
  adamw_amsgrad = { "AdamW", { lr = 0.03, betas = { 0.6, 0.7 }, amsgrad = true } },
  adamax = { "Adamax", { lr = 0.02, betas = { 0.8, 0.9 }, weight_decay = 0.1 } },
  adamax_maximize = { "Adamax", { lr = 0.01, maximize = true } },
  nadam = { "NAdam", { lr = 0.02, weight_decay = 0.1 } },
  nadam_decoupled = { "NAdam", { lr = 0.02, betas = { 0.8, 0.9 }, momentum_decay = 0.2, weight_decay = 0.3,
    decoupled_weight_decay = true } },
  nadam_maximize = { "NAdam", { lr = 0.01, maximize = true } },
  radam = { "RAdam", { lr = 0.02, betas = { 0.8, 0.9 }, weight_decay = 0.1 } },
  radam_decoupled = { "RAdam", { lr = 0.02, weight_decay = 0.3, decoupled_weight_decay = true } },
  radam_maximize = { "RAdam", { lr = 0.01, maximize = true } },
  adagrad = { "Adagrad", { lr = 0.1 } },
  adagrad_decay = { "Adagrad", { lr = 0.1, lr_decay = 0.2, initial_accumulator_value = 0.3,
    weight_decay = 0.1, eps = 1e-3 } },
  adagrad_maximize = { "Adagrad", { lr = 0.02, maximize = true } },
  rmsprop = { "RMSprop", { lr = 0.02, weight_decay = 0.1 } },
  rmsprop_centered = { "RMSprop", { lr = 0.02, alpha = 0.7, centered = true, eps = 1e-2 } },
  rmsprop_momentum = { "RMSprop", { lr = 0.02, alpha = 0.8, momentum = 0.9 } },
  rmsprop_both = { "RMSprop", { lr = 0.02, alpha = 0.9, momentum = 0.5, centered = true, eps = 1e-2,
    weight_decay = 0.1 } },
  rmsprop_maximize = { "RMSprop", { lr = 0.01, maximize = true } },
  adafactor = { "Adafactor", { lr = 0.05 } },
  adafactor_options = { "Adafactor", { lr = 0.6, beta2_decay = -0.5, eps = { 0.1, 0.2 }, d = 1.5,
    weight_decay = 0.1 } },
  adafactor_maximize = { "Adafactor", { lr = 0.02, maximize = true } },
  lion = { "Lion", { lr = 0.02 } },
  lion_options = { "Lion", { lr = 0.01, betas = { 0.6, 0.8 }, weight_decay = 0.3 } },
  lion_maximize = { "Lion", { lr = 0.01, maximize = true } },
}
local MAKER_NAMES = require("accelerate.utils.ordered").sorted_keys(MAKERS)

-- Each returns nets, optimizers, loss(t) and, if it needs them, before(t), set_to_none, scheduler.
local SCENARIOS = {}

function SCENARIOS.plain(make, dtype)
  local net = Net(dtype)
  return { net }, { make(net:parameters()) }, net
end

local function missing(set_to_none)
  return function(make, dtype)
    local net = Net(dtype)
    local function loss(t) return net(t, (t % 3 == 0 or t == 1) and 0 or 1) end
    return { net }, { make(net:parameters()) }, loss, nil, set_to_none
  end
end
SCENARIOS.missing, SCENARIOS.missing_zeroed = missing(true), missing(false)

function SCENARIOS.tied(make, dtype)
  local net = Net(dtype)
  net.again = net.p3  -- a second name for the same weight
  return { net }, { make(net:parameters()) }, function(t) return net(t, 2) end
end

function SCENARIOS.two_groups(make, dtype)
  local net = Net(dtype)
  local p = net:parameters()
  local groups = { { params = slice(p, 1, 6, 2), lr = 0.04, weight_decay = 0.2 },
    { params = slice(p, 2, 6, 2), weight_decay = 0 } }
  return { net }, { make(groups) }, net
end

function SCENARIOS.frozen(make, dtype)
  local net = Net(dtype)
  local function before(t)
    net.p1.requires_grad = t > 3
    net.p2.requires_grad = t > 3
  end
  return { net }, { make(net:parameters()) }, net, before
end

function SCENARIOS.add_group(make, dtype)
  local net = Net(dtype)
  local p = net:parameters()
  local optimizer = make(slice(p, 1, 4))
  local function before(t)
    if t ~= 4 then return end
    optimizer:add_param_group { params = slice(p, 5, 6), lr = 0.03 }
    net.p5.grad = nil
    net.p6.grad = nil
  end
  return { net }, { optimizer }, net, before
end

function SCENARIOS.edit(make, dtype)
  local net = Net(dtype)
  local function before(t)
    if t ~= 4 then return end
    core.no_grad(function()
      net.p3:mul_(0.5)
      net.p2:fill_(0.25)
    end)
  end
  return { net }, { make(net:parameters()) }, net, before
end

function SCENARIOS.halves(make, dtype)
  local net = Net(dtype)
  local p = net:parameters()
  return { net }, { make(slice(p, 1, 3)), optim.AdamW(slice(p, 4, 6), { lr = 0.01 }) }, net
end

function SCENARIOS.two_models(make, dtype)
  local a, b = Net(dtype), Net(dtype, 4)
  local function loss(t)
    if t % 2 == 0 then return b(t) + a(t) end
    return b(t)
  end
  return { a, b }, { make(params_of { a, b }) }, loss
end

function SCENARIOS.cosine(make, dtype)
  local net = Net(dtype)
  local optimizer = make(net:parameters())
  return { net }, { optimizer }, net, nil, true,
    optim.lr_scheduler.CosineAnnealingLR(optimizer, { T_max = 5, eta_min = 0.001 })
end

local ORDER = { "plain", "missing", "missing_zeroed", "tied", "two_groups", "frozen", "add_group", "edit",
  "halves", "two_models", "cosine" }

-- flat_at: the step before which every net is laid out flat; relayout: whether the optimizers
-- are notified.
local function train(maker, scenario, dtype, flat_at, relayout)
  local Class, opts = optim[MAKERS[maker][1]], MAKERS[maker][2]
  local nets, optimizers, loss, before, set_to_none, scheduler =
    SCENARIOS[scenario](function(p) return Class(p, opts) end, dtype)
  local digests = {}
  for t = 1, 7 do
    if before then before(t) end
    if t == flat_at then
      for _, net in ipairs(nets) do lay_out(net:parameters()) end
      for _, o in ipairs(relayout and optimizers or {}) do o:_relayout() end
    end
    loss(t):backward()
    for _, o in ipairs(optimizers) do o:step() end
    if scheduler then scheduler:step() end
    for _, o in ipairs(optimizers) do o:zero_grad(set_to_none) end
    digests[t] = digest(nets)
  end
  return digests, optimizers
end

local function assert_follows(maker, scenario, digests, tolerance)
  for t, expected in ipairs(reference[maker][scenario]) do
    if not (math.abs(digests[t] - expected) <= tolerance) then
      error(("%s, %s: step %d gives %.12g, PyTorch %.12g"):format(maker, scenario, t, digests[t],
        expected), 2)
    end
  end
end

describe("trajectories equal PyTorch's:", function()
  for _, maker in ipairs(MAKER_NAMES) do
    for _, scenario in ipairs(ORDER) do
      local function follows()
        for _, dtype in ipairs { "float64", "float32" } do
          local tolerance = dtype == "float64" and 1e-12 or 1e-4
          assert_follows(maker, scenario, train(maker, scenario, dtype), tolerance)
          assert_follows(maker, scenario, train(maker, scenario, dtype, 1), tolerance)
          assert_follows(maker, scenario, train(maker, scenario, dtype, 3, true), tolerance)
          assert_follows(maker, scenario, train(maker, scenario, dtype, 3, false), tolerance)
        end
      end
      if reference[maker][scenario] then it(("%s, %s"):format(maker, scenario), follows) end
    end
  end

  for _, maker in ipairs { "adafactor", "adafactor_options" } do
    it(maker .. ", parameters of many shapes", function()
      for _, dtype in ipairs { "float64", "float32" } do
        local params = {}
        for k, shape in ipairs { { 3, 2, 4, 5 }, {}, { 7 }, { 700, 90 }, { 2, 20, 1000 }, { 40000 } } do
          params[k] = nn.Parameter(trajectories.pattern(shape, 4 + k, k - 1, dtype))
        end
        local o = optim.Adafactor(params, MAKERS[maker][2])
        for t = 1, 3 do
          for k, p in ipairs(params) do
            p.grad = trajectories.pattern(p.shape, 2 + k, 2 * t, dtype) * (t + 1)
          end
          o:step()
          local got = digest { { parameters = function() return params end } }
          local expected = reference[maker].shapes[t]
          assert.near(expected, got, dtype == "float64" and 1e-10 or 1e-3)  -- a sum of 140 thousand
        end
      end
    end)
  end

  it("flat buffers change no bit", function()
    for _, scenario in ipairs(ORDER) do
      for _, maker in ipairs { "nesterov", "adamw", "adam_amsgrad", "nadam", "radam", "adamax",
        "rmsprop_both", "adagrad", "lion", "adafactor" } do
        local apart = train(maker, scenario, "float32")
        assert.same(apart, (train(maker, scenario, "float32", 1)))
        assert.same(apart, (train(maker, scenario, "float32", 4, true)))
      end
    end
  end)
end)

describe("state", function()
  it("lies as flat parameters lie", function()
    local _, optimizers = train("adamw", "plain", "float32", 1)
    local params, state = optimizers[1].param_groups[1].params, optimizers[1].state
    for i = 1, #params - 1 do
      local gap = params[i]:storage_offset() - params[i + 1]:storage_offset()
      assert.equal(gap,
        state[params[i]].exp_avg:storage_offset() - state[params[i + 1]].exp_avg:storage_offset())
      assert.equal(gap,
        state[params[i]].exp_avg_sq:storage_offset() - state[params[i + 1]].exp_avg_sq:storage_offset())
    end
  end)

  it("is laid out anew by _relayout, with its values", function()
    local _, optimizers = train("momentum", "plain", "float32")
    local o = optimizers[1]
    local params = o.param_groups[1].params
    local before = o.state[params[3]].momentum_buffer:totable()
    lay_out(params)
    o:_relayout()
    local first, third = o.state[params[1]].momentum_buffer, o.state[params[3]].momentum_buffer
    assert.same(before, third:totable())
    assert.equal(params[1]:storage_offset() - params[3]:storage_offset(),
      first:storage_offset() - third:storage_offset())
  end)

  it("is made when a parameter has a gradient for the first time", function()
    local p, q = core.ones(3, { requires_grad = true }), core.ones(2, { requires_grad = true })
    local o = optim.AdamW { p, q }
    assert.is_nil(o.state[p])
    p:sum():backward()
    o:step()
    assert.equal(1, o.state[p].step)
    assert.is_nil(o.state[q])
    assert.same({ 1, 1 }, q:totable())
  end)

  it("serves momentum that is switched on later", function()
    local p = core.ones(1, { dtype = "float64", requires_grad = true })
    local o = optim.SGD({ p }, { lr = 0.1 })
    local function step()
      o:zero_grad()
      p:sum():backward()
      o:step()
    end
    step()
    o.param_groups[1].momentum = 0.5
    step()  -- the buffer begins as the gradient: 1
    step()  -- 1.5
    assert.near(1 - 0.1 - 0.1 - 0.15, p:item(), 1e-12)
  end)

  it("serves parameters of two types in one group", function()
    local p = core.ones(2, { requires_grad = true })
    local q = core.ones(2, { dtype = "float64", requires_grad = true })
    local o = optim.SGD({ p, q }, { lr = 0.5, momentum = 0.9 })
    core.add(p:sum():double(), q:sum()):backward()
    o:step()
    assert.same({ 0.5, 0.5 }, p:totable())
    assert.same({ 0.5, 0.5 }, q:totable())
    assert.equal("float64", o.state[q].momentum_buffer.dtype)
  end)
end)

describe("step", function()
  it("runs a closure with gradients on and returns what it returns", function()
    local p = core.ones(1, { requires_grad = true })
    local o = optim.SGD({ p }, { lr = 0.25 })
    local loss = core.no_grad(function()
      return o:step(function()
        o:zero_grad()
        local loss = (p * 2):sum()
        loss:backward()
        return loss
      end)
    end)
    assert.equal(2, loss:item())
    assert.equal(0.5, p:item())
    assert.matches("closure must be a function, got 3", message(o.step, o, 3))
  end)

  it("counts as an edit of the parameters", function()
    local p = core.ones(2, { requires_grad = true })
    local o = optim.SGD({ p }, { lr = 0.1 })
    local y = (p * p):sum()
    p.grad = core.ones(2)
    o:step()
    assert.is_string(message(y.backward, y))
  end)

  it("takes empty parameters and those of no dim", function()
    for _, name in ipairs { "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "RMSprop",
      "Adafactor", "Lion", "Adadelta", "Rprop", "ASGD", "SGDScheduleFree", "AdamWScheduleFree" } do
      local empty, flat, number = core.zeros(3,
        0):requires_grad_(), core.zeros(0):requires_grad_(), core.tensor(2):requires_grad_()
      local o = optim[name]({ empty, flat, number }, { lr = 0.5 })
      if o.train then o:train() end
      for _ = 1, 2 do
        empty.grad, flat.grad, number.grad = core.zeros(3, 0), core.zeros(0), core.tensor(1)
        o:step()
      end
      assert.is_true(number:item() < 2)
      o:load_state_dict(o:state_dict())
    end
  end)

  it("refuses types that cannot be optimized", function()
    local p = core.ones(2, { dtype = "float16", requires_grad = true })
    local o = optim.SGD { p }
    p.grad = core.ones(2, { dtype = "float16" })
    assert.matches("must be float32 or float64, got float16", message(o.step, o))
  end)
end)

describe("state_dict", function()
  local function trained(maker, steps)
    local Class, opts = optim[MAKERS[maker][1]], MAKERS[maker][2]
    local net = Net("float64")
    local p = net:parameters()
    local o = Class({ { params = slice(p, 1, 4) }, { params = slice(p, 5, 6), lr = 0.03 } }, opts)
    for t = 1, steps do
      net(t):backward()
      o:step()
      o:zero_grad()
    end
    return net, o
  end

  it("has PyTorch's structure", function()
    local net, o = trained("adamw", 2)
    local dict = o:state_dict()
    assert.same({ 0, 1, 2, 3 }, dict.param_groups[1].params)
    assert.same({ 4, 5 }, dict.param_groups[2].params)
    assert.equal(0.03, dict.param_groups[2].lr)
    assert.same({ 0.9, 0.999 }, dict.param_groups[1].betas)
    assert.equal(2, dict.state[0].step)
    assert.same(net.p6.shape, dict.state[5].exp_avg.shape)
    assert.is_nil(dict.state[6])
    assert.same({ "momentum_buffer" },
      require("accelerate.utils.ordered").keys(select(2, trained("momentum", 1)):state_dict().state[3]))
    assert.same({}, select(2, trained("sgd", 1)):state_dict().state)
  end)

  for _, maker in ipairs(MAKER_NAMES) do
    it("carries " .. maker .. " over to another optimizer, bit for bit", function()
      local net, o = trained(maker, 6)
      local expected = digest { net }
      local half, saver = trained(maker, 3)
      local other = Net("float64")
      other:load_state_dict(half:state_dict())
      local p = other:parameters()
      lay_out(p)
      local loader = optim[MAKERS[maker][1]]({ { params = slice(p, 1, 4) }, { params = slice(p, 5, 6) } },
        { lr = 7 })
      local dict = saver:state_dict()
      loader:load_state_dict(dict)
      assert.equal(0.03, loader.param_groups[2].lr)
      for t = 4, 6 do
        other(t):backward()
        loader:step()
        loader:zero_grad()
      end
      assert.equal(expected, digest { other })
      assert.same(o:state_dict().param_groups, loader:state_dict().param_groups)
    end)
  end

  it("takes PyTorch's own keys and tensor step counts", function()
    local p = core.zeros(2, { requires_grad = true })
    local o = optim.AdamW { p }
    o:load_state_dict {
      state = { [0] = { step = core.tensor(3), exp_avg = core.ones(2),
        exp_avg_sq = core.ones(2, { dtype = "float64" }) } },
      param_groups = { {
        lr = 0.5, betas = { 0.9, 0.99 }, eps = 1e-8, weight_decay = 0.1, maximize = false, amsgrad = false,
        foreach = true,
        decoupled_weight_decay = true, initial_lr = 0.5, params = { 0 },
      } },
    }
    assert.equal(3, o.state[p].step)
    assert.equal("float32", o.state[p].exp_avg_sq.dtype)
    assert.equal(0.5, o.param_groups[1].initial_lr)
    assert.is_nil(o.param_groups[1].foreach)
  end)

  it("refuses what does not fit, and changes nothing", function()
    local p = core.zeros(2, { requires_grad = true })
    local o = optim.AdamW({ p }, { lr = 0.5 })
    local function load(state, group, second)
      return message(o.load_state_dict, o, { state = state, param_groups = { group, second } })
    end
    local group = { params = { 0 }, lr = 1 }
    assert.matches("expected a table with state and param_groups, got 3", message(o.load_state_dict, o, 3))
    assert.matches("got a table without state$", message(o.load_state_dict, o, {}))
    assert.matches("without state; its entry 'opt' has both: pass checkpoint.opt$",
      message(o.load_state_dict, o, { epoch = 3, opt = o:state_dict(), net = {} }))
    assert.matches("got a table without state$", message(o.load_state_dict, o, { [core.ones(1)] = {} }))
    assert.matches("got a table without param_groups$", message(o.load_state_dict, o, { state = {} }))
    assert.matches("has 2 parameter group%(s%), the optimizer has 1", load({}, group, group))
    assert.matches("group 1 of the state dict has 2 parameter%(s%), the optimizer's has 1",
      load({}, { params = { 0, 1 } }))
    assert.matches("exp_avg of parameter 0 has shape %[3%], the parameter has %[2%]",
      load({ [0] = { step = 1, exp_avg = core.ones(3), exp_avg_sq = core.ones(2) } }, group))
    assert.matches("parameter 0 has no exp_avg_sq",
      load({ [0] = { step = 1, exp_avg = core.ones(2) } }, group))
    assert.matches("parameter 0 has the state 'momentum_buffer', which AdamW does not keep",
      load({ [0] = { momentum_buffer = core.ones(2) } }, group))
    assert.matches("was saved with nesterov = true, which AdamW does not have",
      load({}, { params = { 0 }, nesterov = true }))
    assert.matches("parameter 0 has no max_exp_avg_sq",
      load({ [0] = { step = 1, exp_avg = core.ones(2), exp_avg_sq = core.ones(2) } },
      { params = { 0 }, amsgrad = true }))
    assert.equal(0.5, o.param_groups[1].lr)
    assert.is_nil(o.state[p])
  end)
end)
