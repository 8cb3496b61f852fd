-- Hooks of an optimizer's steps. The orders are PyTorch's.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local recording = require "accelerate.capture.recording"
local raises = require("spec.support.messages").raises

local function sgd()
  local p = nn.Parameter(core.ones(1))
  p.grad = core.ones(1)
  return optim.SGD({ p }, { lr = 0.1 }), p
end

describe("hooks of steps", function()
  it("run before and after each", function()
    local optimizer, p = sgd()
    local log = {}
    local function note(...) log[#log + 1] = table.concat({ ... }, " ") end
    local handles = {
      optimizer:register_step_pre_hook(function(self, args)
        assert.equal(optimizer, self)
        note("pre1", args.n, ("%.1f"):format(p:item()))
      end),
      optimizer:register_step_pre_hook(function() note "pre2" end),
      optimizer:register_step_post_hook(function(self, args)
        assert.equal(optimizer, self)
        note("post", args.n, ("%.1f"):format(p:item()))
        return "nothing of it"
      end),
    }
    assert.is_nil(optimizer:step())
    assert.equal("pre1 0 1.0, pre2, post 0 0.9", table.concat(log, ", "))
    log = {}
    assert.equal(7, optimizer:step(function()
      note "closure"
      return 7
    end))
    assert.equal("pre1 1 0.9, pre2, closure, post 1 0.8", table.concat(log, ", "))
    for _, handle in ipairs(handles) do handle:remove() end
    handles[1]:remove()
    log = {}
    optimizer:step()
    assert.same({}, log)
    assert.is_nil(rawget(optimizer, "step"))
  end)

  it("replace arguments, and may remove themselves", function()
    local optimizer, count = sgd(), 0
    local handle
    handle = optimizer:register_step_pre_hook(function()
      handle:remove()
      return function() return "other" end
    end)
    optimizer:register_step_pre_hook(function() count = count + 1 end)
    assert.equal("other", optimizer:step(function() return "mine" end))
    assert.equal("mine", optimizer:step(function() return "mine" end))
    assert.equal(2, count)
  end)

  it("run once for optimizers with a step of their own, and through prepare", function()
    local layer = nn.Linear(2, 1)
    for _, name in ipairs { "LBFGS", "Muon", "SGDScheduleFree" } do
      local optimizer, count = optim[name]({ layer.weight }, { lr = 0.01 }), 0
      if optimizer.train then optimizer:train() end
      optimizer:register_step_post_hook(function() count = count + 1 end)
      optimizer:step(function()
        optimizer:zero_grad()
        local loss = layer(core.ones(1, 2)):sum()
        loss:backward()
        return loss
      end)
      assert.equal(1, count)
    end
    local inner, count = optim.SGD(layer:parameters(), { lr = 0.1 }), 0
    local prepared = accelerate.Accelerator():prepare(inner)
    prepared:register_step_pre_hook(function(self)
      assert.equal(inner, self)
      count = count + 1
    end)
    layer(core.ones(1, 2)):sum():backward()
    prepared:step()
    assert.equal(1, count)
  end)

  it("do not run for a step that a loss scaler skips", function()
    local optimizer, p = sgd()
    local scaler, count = require("accelerate.precision.grad_scaler").GradScaler(), 0
    optimizer:register_step_pre_hook(function() count = count + 1 end)
    for _, grad in ipairs { math.huge, 1 } do
      p.grad = core.full({ 1 }, grad)
      scaler:step(optimizer)
      scaler:update()
    end
    assert.equal(1, count)
  end)

  it("say what is wrong", function()
    local optimizer = sgd()
    raises("SGD: hook must be a function, got 3", optimizer.register_step_pre_hook, optimizer, 3)
    optimizer:register_step_post_hook(function() end)
    raises("step: expected the Optimizer before its arguments, got nil", optimizer.step)
    recording.active = { again = {}, undo = {} }
    local fine, text = pcall(optimizer.step, optimizer)
    recording.active = nil
    assert.is_false(fine)
    assert.matches("a step with hooks cannot be part of a captured step: they would run once", text)
  end)
end)

describe("hooks of states", function()
  it("run around state_dict and load_state_dict, in PyTorch's order", function()
    local optimizer = sgd()
    local log = {}
    local function note(text) return function() log[#log + 1] = text end end
    local handles = {
      optimizer:register_state_dict_pre_hook(note "pre"),
      optimizer:register_state_dict_pre_hook(note "first", true),
      optimizer:register_state_dict_post_hook(note "post"),
      optimizer:register_load_state_dict_pre_hook(note "load pre"),
      optimizer:register_load_state_dict_post_hook(note "load post"),
      optimizer:register_load_state_dict_post_hook(note "load first", { prepend = true }),
    }
    optimizer:load_state_dict(optimizer:state_dict())
    assert.same({ "first", "pre", "post", "load pre", "load first", "load post" }, log)
    for _, handle in ipairs(handles) do handle:remove() end
    assert.is_nil(rawget(optimizer, "state_dict"))
    assert.is_nil(rawget(optimizer, "load_state_dict"))
    optimizer:load_state_dict(optimizer:state_dict())
    assert.equal(6, #log)
  end)

  it("may give other tables", function()
    local optimizer = sgd()
    optimizer:register_state_dict_post_hook(function(self, dict)
      assert.equal(optimizer, self)
      return { wrapped = dict }
    end)
    local dict = optimizer:state_dict()
    assert.equal(0.1, dict.wrapped.param_groups[1].lr)
    dict.wrapped.param_groups[1].lr = 0.5
    optimizer:register_load_state_dict_pre_hook(function(_, given)
      assert.is_nil(given.extra)
      given.extra = true -- in a copy
      return given.wrapped
    end)
    optimizer:load_state_dict(dict)
    assert.equal(0.5, optimizer.param_groups[1].lr)
    assert.is_nil(dict.extra)
  end)

  it("say what is wrong", function()
    local optimizer = sgd()
    raises("SGD: hook is missing (expected a function)", optimizer.register_state_dict_pre_hook, optimizer)
    raises("SGD: unknown option 'prepent'; did you mean 'prepend'?", optimizer.register_state_dict_post_hook,
      optimizer, print, { prepent = true })
  end)
end)
