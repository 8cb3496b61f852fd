-- Optimizers and schedulers that scripts write, parameters with names, and groups' own entries.
local accelerate = require "accelerate"
local autograd = require "accelerate.autograd"
local core = require "accelerate.core"
local func = require "accelerate.func"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local raises = require("spec.support.messages").raises

-- Lion, as a script writes it.
local Signs = optim.class("Signs")
function Signs:init(params, lr)
  optim.Optimizer.init(self, params, { lr = lr, betas = { 0.9, 0.99 }, weight_decay = 0.1 })
end

function Signs:step(closure)
  local loss = closure and core.enable_grad(closure)
  core.no_grad(function()
    for _, group in ipairs(self.param_groups) do
      for _, p in ipairs(group.params) do
        if p.grad then
          local state = self.state[p]
          if next(state) == nil then state.step, state.m = 0, core.zeros_like(p) end
          state.step = state.step + 1
          p:mul_(1 - group.lr * group.weight_decay)
          p:sub_((state.m * group.betas[1] + p.grad * (1 - group.betas[1])):sign() * group.lr)
          state.m:mul_(group.betas[2]):add_(p.grad * (1 - group.betas[2]))
        end
      end
    end
  end)
  return loss
end

local LRScheduler = optim.lr_scheduler.LRScheduler
local Warmup = optim.class("Warmup", LRScheduler)
function Warmup:init(optimizer, steps, last_epoch)
  self.steps = steps
  LRScheduler.init(self, optimizer, last_epoch)
end

function Warmup:get_lr()
  local rates = {}
  for i, rate in ipairs(self.base_lrs) do
    rates[i] = rate * math.min(1, (self.last_epoch + 1) / self.steps)
  end
  return rates
end

local function layer()
  local made = nn.Linear(3, 2, { dtype = "float64" })
  core.no_grad(function()
    for i, p in ipairs(made:parameters()) do
      p:copy_((core.arange(p:numel()) * i + 1):sin():view(unpack(p.shape)))
    end
  end)
  return made
end

-- Six steps; the optimizer and the scheduler are made anew from what they saved after some of them.
local function trained(make, restored)
  local model, x = layer(), core.ones(2, 3, { dtype = "float64" })
  local optimizer = make(model)
  local scheduler = Warmup(optimizer, 5)
  local rates = {}
  for step = 1, 6 do
    optimizer:zero_grad()
    model(x):pow(2):sum():backward()
    optimizer:step()
    scheduler:step()
    rates[step] = scheduler:get_last_lr()[1]
    if step == restored then
      local path = os.tmpname()
      accelerate.utils.save({ optimizer:state_dict(), scheduler:state_dict() }, path)
      local saved = accelerate.utils.load(path)
      os.remove(path)
      optimizer = make(model)
      scheduler = Warmup(optimizer, 5)
      optimizer:load_state_dict(saved[1])
      scheduler:load_state_dict(saved[2])
    end
  end
  return model.weight:detach():flatten():tolist(), rates
end

describe("an optimizer of a script's own", function()
  it("steps, schedules, saves and loads", function()
    local expected, rates = trained(function(model)
      return optim.Lion(model:parameters(), { lr = 0.1, betas = { 0.9, 0.99 }, weight_decay = 0.1 })
    end)
    for i, rate in ipairs { 0.04, 0.06, 0.08, 0.1, 0.1, 0.1 } do assert.is_near(rate, rates[i], 1e-12) end
    for _, restored in ipairs { 0, 3 } do
      local weight = trained(function(model) return Signs(model:parameters(), 0.1) end, restored)
      for i = 1, #expected do assert.is_near(expected[i], weight[i], 1e-12) end
    end
    assert.same(expected, trained(function(model) return Signs(model:named_parameters(), 0.1) end, 2))
  end)

  it("keeps what its class puts into state, and only that", function()
    local model = layer()
    local optimizer = Signs({ { params = model.weight, lr = 1 }, { params = { model.bias }, tag = "b" } },
      0.1)
    assert.same({}, optimizer.state[model.weight])
    assert.same({}, optimizer:state_dict().state)
    assert.equal(0.1, optimizer.param_groups[2].lr)
    model.bias.grad = core.ones(2, { dtype = "float64" })
    assert.equal(5, optimizer:step(function() return 5 end))
    local saved = optimizer:state_dict()
    assert.is_nil(saved.state[0])
    assert.equal(1, saved.state[1].step)
    assert.equal("b", saved.param_groups[2].tag)
    optimizer:zero_grad()
    assert.is_nil(model.bias.grad)
    local other = Signs({ { params = { model.weight } }, { params = { model.bias } } }, 0.3)
    other:load_state_dict(saved)
    assert.is_near(0.02, other.state[model.bias].m:sum():item(), 1e-15)
    assert.equal(1, other.param_groups[1].lr)
    assert.is_nil(next(other.state[model.weight]))
    assert.matches("^Signs%(\n  group 1: 1 parameters", tostring(other))
  end)

  it("is prepared as others are", function()
    local accelerator = accelerate.Accelerator()
    local model = layer()
    local optimizer
    model, optimizer = accelerator:prepare(model, Signs(model:parameters(), 0.1))
    local before = model.bias:tolist()
    accelerator:backward(model(core.ones(1, 3, { dtype = "float64" })):sum())
    optimizer:step()
    for i, value in ipairs(before) do assert.is_near(value * 0.99 - 0.1, model.bias[i]:item(), 1e-12) end
    optimizer:zero_grad()
  end)

  it("may be derived from one of the library's", function()
    local Slow = optim.class("Slow", optim.SGD)
    function Slow:step(closure)
      for _, group in ipairs(self.param_groups) do group.lr = group.lr / 2 end
      return optim.SGD.step(self, closure)
    end
    local p = nn.Parameter(core.ones(1))
    p.grad = core.ones(1)
    Slow({ p }, { lr = 1 }):step()
    assert.equal(0.5, p:item())
  end)

  it("says what is wrong", function()
    local p = nn.Parameter(core.ones(1))
    raises('Optimizer is the base of optimizers; use one of them, optim.AdamW for instance, ' ..
      'or derive one: optim.class("Name")', optim.Optimizer, { p })
    raises("optim.class: expected a name, got nil", optim.class)
    raises("optim.class: the base of 'X' must be a class of optimizers or of schedulers, got class Linear",
      optim.class, "X", nn.Linear)
    raises("nn.class: the base of 'X' must be a module class, got class Optimizer; optim.class and " ..
      "data.class " ..
      "make other classes", nn.class, "X", optim.Optimizer)
    local Idle = optim.class("Idle")
    function Idle:init(params, defaults) optim.Optimizer.init(self, params, defaults) end
    raises("Idle: the class has no method step, which updates the parameters", function()
      Idle({ p }, {}):step()
    end)
    raises("Idle: option 'lr' must be a number, got 'high'", Idle, { p }, { lr = "high" })
    raises("Idle: the list of parameters is empty: there is nothing to optimize", Idle, {}, {})
  end)
end)

describe("parameters with names", function()
  local function state_of(optimizer, model)
    for _ = 1, 3 do
      optimizer:zero_grad()
      model(core.ones(2, 3, { dtype = "float64" })):pow(2):sum():backward()
      optimizer:step()
    end
    return model.weight:detach():flatten():tolist()
  end

  it("are taken as those without", function()
    local plain = layer()
    local expected = state_of(optim.Adam(plain:parameters(), 0.1), plain)
    local named = layer()
    local optimizer = optim.Adam(named:named_parameters(), 0.1)
    assert.same({ "weight", "bias" }, optimizer.param_groups[1].param_names)
    assert.same(expected, state_of(optimizer, named))
    assert.same({ "weight", "bias" }, optimizer:state_dict().param_groups[1].param_names)
    assert.is_nil(tostring(optimizer):find("param_names", 1, true))

    local other = optim.Adam(plain:parameters(), 1) -- without names: it takes those of the file
    other:load_state_dict(optimizer:state_dict())
    assert.same({ "weight", "bias" }, other.param_groups[1].param_names)
    assert.equal(0.1, other.param_groups[1].lr)
  end)

  it("make groups", function()
    local model = layer()
    local optimizer = optim.AdamW({ { params = { { "w", model.weight } } },
      { params = { { "b", model.bias } }, weight_decay = 0 } }, 0.1)
    assert.same({ "b" }, optimizer.param_groups[2].param_names)
    assert.equal(model.bias, optimizer.param_groups[2].params[1])
    assert.equal(0, optimizer.param_groups[2].weight_decay)
  end)

  it("have names all or none", function()
    local model = layer()
    raises("SGD: the parameters of group 2 have no names, those of group 1 have some: " ..
      "give all of them with names, or none", optim.SGD,
      { { params = { { "w", model.weight } } }, { params = { model.bias } } })
    raises("SGD: entry 2 of the list of parameters must be { name, parameter } as the first one is, got a " ..
      "float64 tensor of shape [2]", optim.SGD, { { "w", model.weight }, model.bias })
  end)
end)

describe("entries of groups that are no options", function()
  it("are kept, saved and loaded", function()
    local model = layer()
    local groups = { { params = { model.weight }, lr_scale = 0.5, group_name = "matrices" },
      { params = { model.bias }, lr_scale = 0.25 } }
    local optimizer = optim.AdamW(groups, { lr = 1 })
    for _, group in ipairs(optimizer.param_groups) do group.lr = group.lr * group.lr_scale end
    optimizer.param_groups[2].note = { 1, 2 }
    local other = optim.AdamW({ { params = { model.weight } }, { params = { model.bias } } }, { lr = 1 })
    other:load_state_dict(optimizer:state_dict())
    local first, second = unpack(other.param_groups)
    assert.same({ 0.5, 0.5, "matrices" }, { first.lr, first.lr_scale, first.group_name })
    assert.same({ 0.25, 0.25, { 1, 2 } }, { second.lr, second.lr_scale, second.note })
  end)

  it("are not what looks like an option", function()
    local p = nn.Parameter(core.ones(1))
    raises("AdamW: unknown option 'weigth_decay'; did you mean 'weight_decay'?", optim.AdamW,
      { { params = { p }, weigth_decay = 0 } })
    raises("AdamW: unknown option 'learning_rate'; did you mean 'lr'?", optim.AdamW,
      { { params = { p }, learning_rate = 1 } })
    local fine, text = pcall(optim.AdamW, { { params = { p }, momentum = 0.9 } })
    assert.is_false(fine)
    assert.matches("AdamW: unknown option 'momentum'", text)
    raises("AdamW: unknown option 'rho'", optim.AdamW, { p }, { rho = 0 })
    raises("options are given by name, got a value at position 1", optim.AdamW, { { params = { p }, 0.5 } })
  end)

  it("may have any name in the groups of an optimizer that stands on another", function()
    local SAM = optim.class "SAM"
    function SAM:init(params) optim.Optimizer.init(self, params, { rho = 0.05, alpha = 2 }) end
    local function sam(model)
      local outer = SAM({ { params = { model.weight }, rho = 0.05 }, { params = { model.bias }, rho = 0.1 } })
      return optim.SGD(outer.param_groups, { lr = 1 })
    end
    local optimizer, other = sam(layer()), sam(layer())
    assert.same({ 0.05, 2, 0.1, 1 }, { optimizer.param_groups[1].rho, optimizer.param_groups[1].alpha,
      optimizer.param_groups[2].rho, optimizer.param_groups[1].lr })
    optimizer.param_groups[1].rho = 0.5
    other:load_state_dict(optimizer:state_dict())
    assert.equal(0.5, other.param_groups[1].rho)
    local model = layer()
    local plain = optim.SGD({ { params = { model.weight } }, { params = { model.bias } } }, { lr = 1 })
    raises("SGD:load_state_dict: group 1 was saved with alpha = 2, which SGD does not have; an entry of " ..
      "its own with that name in the optimizer's group keeps it", plain.load_state_dict, plain,
      optimizer:state_dict())
  end)
end)

describe("groups", function()
  local function stepped(groups)
    local o = optim.AdamW(groups, { lr = 0.5 })
    for _, group in ipairs(o.param_groups) do
      for _, p in ipairs(group.params) do p.grad = core.ones_like(p) end
    end
    o:step()
    o:load_state_dict(o:state_dict())
    o:zero_grad()
    return o
  end

  it("may be empty, but not all of what is optimized", function()
    local model = layer()
    local o = stepped { { params = {} }, { params = model:parameters(), weight_decay = 0 },
      { params = nn.ParameterList() } }
    assert.same({ 0, 2, 0 }, { #o.param_groups[1].params, #o.param_groups[2].params,
      #o.param_groups[3].params })
    assert.equal(0, #optim.SGD({ { params = {} } }).param_groups[1].params)
    local names = optim.AdamW { { params = {} }, { params = model:named_parameters() }, { params = {} } }
    assert.same({ "weight", "bias" }, names.param_groups[2].param_names)
    raises("SGD: the list of parameters is empty: there is nothing to optimize", optim.SGD, {})
    raises("SGD: the list of parameters is empty: there is nothing to optimize", optim.SGD,
      nn.ParameterList())
    local a, b = core.ones(2, { requires_grad = true }), core.ones(3, { requires_grad = true })
    raises("SGD: the list of parameters must be a list of tensors, but it has the key 'lr'; options are a " ..
      "table of their own behind it", optim.SGD, { a, b, lr = 0.5 })
    raises("SGD: the list of parameters must be a list of tensors, but it has the key 'lr'; options are",
      optim.SGD, { { params = { a } }, { params = { b } }, lr = 0.5 })
    raises("SGD: the list of parameters must be a list of tensors, but it has no entry 2", optim.SGD,
      { a, nil, b })
    raises("SGD: the params of group 1 must be a list of tensors, but it has no entry 2", optim.SGD,
      { { params = { a, nil, b } } })
    raises("SGD: the params of group 1 must be a list of tensors, got a table", optim.SGD,
      { { params = { weight = model.weight } } })
    raises("SGD: the list of parameters must be a list of tensors, got a table", optim.SGD,
      { weight = model.weight })
    raises("LBFGS: the group has no parameters: there is nothing to optimize", optim.LBFGS,
      { { params = {} } })
  end)

  it("hold what a ParameterList or a function gives", function()
    local list = nn.ParameterList { core.ones(2), core.ones(3) }
    assert.same(list:values(), optim.SGD(list).param_groups[1].params)
    assert.same(list:values(), stepped { { params = list } }.param_groups[1].params)
    local each = coroutine.wrap(function()
      for _, p in ipairs(list) do coroutine.yield(p) end
    end)
    assert.same(list:values(), optim.SGD({ { params = each } }).param_groups[1].params)
    raises("SGD: the list of parameters must be a list of tensors, got a ModuleList; give model:parameters()",
      optim.SGD, nn.ModuleList { nn.Linear(1, 1) })
  end)
end)

describe("a ParameterList", function()
  it("is a list of tensors to functions over gradients", function()
    local list = nn.ParameterList { core.ones(2), core.ones(1) }
    local function loss() return (list[1] * core.tensor { 3, 4 }):sum() + list[2]:sum() * 12 end
    local a, b = autograd.grad(loss(), list)
    assert.same({ { 3, 4 }, { 12 } }, { a:totable(), b:totable() })
    a, b = autograd.grad(loss(), list, { materialize_grads = true })
    assert.same({ { 3, 4 }, { 12 } }, { a:totable(), b:totable() })
    autograd.backward(loss(), nil, { inputs = list })
    assert.near(13, nn.utils.clip_grad_norm_(list, 1):item(), 1e-5)
    assert.near(1, nn.utils.grad_norm(list), 1e-5)
    nn.utils.clip_grad_value_(list, 0.5)
    assert.near(0.5, list[2].grad:item(), 1e-6)
    assert.same({ 1, 1, 1 }, nn.utils.parameters_to_vector(list):totable())
    nn.utils.vector_to_parameters(core.tensor { 1, 2, 3 }, list)
    assert.same({ 3 }, list[2]:totable())
    local _, second = func.jacobian(function(x, y) return x:sum() * y:sum() end, list)
    assert.same({ 3 }, second:totable())
    raises("clip_grad_norm_: expected a list of tensors (model:parameters()), got a ModuleList",
      nn.utils.clip_grad_norm_, nn.ModuleList { nn.Linear(1, 1) }, 1)
  end)
end)
