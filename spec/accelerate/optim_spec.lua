-- Optimizers: states as a script sees them, working copies, groups, options.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local disk = require "spec.support.disk"
local layouts = require "spec.support.layouts"
local message = require("spec.support.messages").message
local saved = require "spec.reference.saving_reference"
local utils = require "accelerate.utils"

describe("state as a script sees it", function()
  local function stepped(p, o)
    p.grad = core.ones(2)
    o:step()
  end

  it("is one table for each parameter, and stays up to date", function()
    local p = core.zeros(2, { requires_grad = true })
    local o = optim.AdamW { p }
    stepped(p, o)
    local kept = o.state[p]
    local mean = kept.exp_avg
    assert.equal(1, kept.step)
    stepped(p, o)
    assert.equal(2, kept.step)
    assert.equal(kept, o.state[p])
    assert.equal(mean, o.state[p].exp_avg)
    local names = {}
    for name in pairs(o.state[p]) do names[name] = true end
    assert.same({ step = true, exp_avg = true, exp_avg_sq = true }, names)
  end)

  it("takes counts, tensors and fields of the script's own", function()
    local p, q = core.zeros(2, { requires_grad = true }), core.zeros(2, { requires_grad = true })
    local o, other = optim.Adam { p }, optim.Adam { q }
    for _ = 1, 3 do stepped(q, other) end
    stepped(p, o)
    local mean = other.state[q].exp_avg:clone()
    core.no_grad(function() p:copy_(q) end)
    o.state[p].step = 3
    o.state[p].exp_avg = mean
    o.state[p].exp_avg_sq:copy_(other.state[q].exp_avg_sq)
    o.state[p].note = "kept"
    stepped(p, o)
    stepped(q, other)
    assert.same(q:totable(), p:totable())
    assert.equal(mean, o.state[p].exp_avg)
    assert.same(mean:totable(), other.state[q].exp_avg:totable())
    assert.equal("kept", o.state[p].note)
    assert.equal("kept", o:state_dict().state[0].note)
    assert.equal(4, o:state_dict().state[0].step)
  end)

  it("begins anew where the script takes it away", function()
    local p, q = core.zeros(2, { requires_grad = true }), core.zeros(2, { requires_grad = true })
    local o, other = optim.SGD({ p }, { momentum = 0.5 }), optim.SGD({ q }, { momentum = 0.5 })
    for turn = 1, 3 do
      stepped(p, o)
      stepped(p, o)
      if turn == 1 then
        o.state[p] = nil
      elseif turn == 2 then
        o.state = {}
      else
        o.state[p].momentum_buffer = nil
      end
      core.no_grad(function() p:fill_(0) q:fill_(0) end)
      other.state = {}
      stepped(p, o)
      stepped(q, other)
      assert.same(q:totable(), p:totable())
    end
  end)

  it("refuses what a step cannot use", function()
    local p = core.zeros(2, { requires_grad = true })
    local o = optim.AdamW { p }
    stepped(p, o)
    local before = p:totable()
    local function refused(name, value)
      local former = o.state[p][name]
      rawset(o.state[p], name, value)
      local err = message(stepped, p, o)
      rawget(o, "_view")[p][name] = former
      assert.same(before, p:totable())
      return err
    end
    assert.matches("AdamW:step: states: entry 1: step: expected an integer of at least 0, got number %-1",
      refused("step", -1))
    assert.matches("entry 1: exp_avg: expected a tensor, got number 3", refused("exp_avg", 3))
    assert.matches("exp_avg must be contiguous, with 2 elements, " ..
      "on its parameter's device and of its type, float32",
      refused("exp_avg", core.zeros(3)))
    assert.matches("exp_avg_sq must be contiguous",
      refused("exp_avg_sq", core.zeros(2, { dtype = "float64" })))
    assert.matches("state must be a table by parameter, got 3", message(function() o.state = 3 end))
    stepped(p, o)
  end)

  it("does not fit a parameter that was given memory of another size or type", function()
    local p = core.zeros(2, { requires_grad = true })
    local o = optim.AdamW { p }
    stepped(p, o)
    for _, data in ipairs { core.zeros(200), core.zeros(1), core.zeros(2, { dtype = "float64" }) } do
      p.grad = nil
      p.data = data
      p.grad = core.zeros_like(data)
      assert.matches("exp_avg must be contiguous, with " .. data:numel(), message(o.step, o))
    end
  end)

  it("goes along when parameters join the group's list", function()
    local p, q = core.zeros(2, { requires_grad = true }), core.zeros(2, { requires_grad = true })
    local o = optim.AdamW { p }
    stepped(p, o)
    local params = o.param_groups[1].params
    params[2] = q
    q.grad = core.ones(2)
    stepped(p, o)
    assert.equal(2, o.state[p].step)
    assert.equal(1, o.state[q].step)
  end)
end)

describe("working copies", function()
  local function bits_follow(p, work)
    local rounded = p:detach():to(work.dtype):float():totable()
    assert.same(rounded, work:float():totable())
  end

  for _, name in ipairs { "SGD", "AdamW", "Adam", "Adamax", "NAdam", "RAdam", "Adagrad", "RMSprop",
    "Adafactor", "Lion", "Adadelta", "Rprop", "ASGD", "SGDScheduleFree", "AdamWScheduleFree" } do
    it(("are written by %s, apart and in flat buffers"):format(name), function()
      for turn, dtype in ipairs { "float32", "float64", "float32" } do
        local p = core.randn(5003, { dtype = dtype, requires_grad = true })
        local q = core.randn(70, 3, { dtype = dtype, requires_grad = true })
        local r = core.randn(9, { dtype = dtype, requires_grad = true })
        -- neighbours in one layout, where a step takes the padding along, or layouts of their own
        local together = dtype == "float64"
        local works, behind = {}, {}
        for _, list in ipairs(together and { { p, q, r } } or { { p }, { q } }) do
          local layout, offsets = layouts.of(list,
            { grads = together, work = turn == 3 and "float16" or "bfloat16" })
          local buffer = layout:work():fill_(together and 0 or 7)
          for k, t in ipairs(list) do
            works[t] = buffer:narrow(1, offsets[k] + 1, t:numel())
            behind[t] = buffer[offsets[k] + t:numel() + 1]
          end
        end
        local o = optim[name]({ p, q, r }, { lr = 0.1 })
        if o.train then o:train() end
        for _ = 1, 3 do
          p.grad, q.grad, r.grad = core.randn(5003, { dtype = dtype }), core.randn(70, 3, { dtype = dtype }),
            core.ones(9, { dtype = dtype })
          o:step()
          bits_follow(p:flatten(), works[p])
          bits_follow(q:flatten(), works[q])
          assert.is_true((select(2, core.work_of(p))))
          assert.equal(together and 0 or 7, behind[p]:item())
          assert.equal(together and 0 or 7, behind[q]:item())
        end
      end
    end)
  end
end)

describe("zero_grad", function()
  it("drops gradients, or zeroes them", function()
    local p = core.ones(2, { requires_grad = true })
    local o = optim.SGD { p }
    p:sum():backward()
    o:zero_grad { set_to_none = false }
    assert.same({ 0, 0 }, p.grad:totable())
    o:zero_grad()
    assert.is_nil(p.grad)
    assert.matches("unknown option 'set_to_nil'; did you mean 'set_to_none'",
      message(o.zero_grad, o, { set_to_nil = true }))
  end)
end)

describe("groups", function()
  local function leaf() return core.zeros(2, { requires_grad = true }) end

  it("take their own options and the defaults", function()
    local o = optim.AdamW({ { params = { leaf() }, lr = 0.5, name = "a" }, { params = leaf() } },
      { lr = 0.1, betas = { 0.5, 0.6 } })
    assert.equal(0.5, o.param_groups[1].lr)
    assert.equal("a", o.param_groups[1].name)
    assert.equal(0.1, o.param_groups[2].lr)
    assert.same({ 0.5, 0.6 }, o.param_groups[2].betas)
    assert.not_equal(o.param_groups[1].betas, o.param_groups[2].betas)
    assert.equal(0.01, o.param_groups[1].weight_decay)
  end)

  it("refuse what cannot be optimized", function()
    local p = leaf()
    assert.matches("SGD: the list of parameters is empty", message(optim.SGD, {}))
    assert.matches("got one tensor; write { tensor }", message(optim.SGD, p))
    assert.matches("got a Linear; give model:parameters%(%)", message(optim.SGD, nn.Linear(2, 2)))
    assert.matches("parameter 2 of group 1 must be a tensor, got 3", message(optim.SGD, { p, 3 }))
    assert.matches("parameter 1 of group 1 is the result of 'mul' and not a leaf",
      message(optim.SGD, { p * 2 }))
    assert.matches("parameter 3 of group 1 is the same tensor as parameter 1",
      message(optim.SGD, { p, leaf(), p }))
    assert.matches("a parameter group must be a table with params = list", message(optim.SGD, { { lr = 1 } }))
  end)

  it("hold a parameter once, and refuse a group whole", function()
    local p, q = leaf(), leaf()
    local o = optim.SGD { p }
    assert.matches("parameter 2 of group 2 is already in parameter group 1",
      message(o.add_param_group, o, { params = { q, p } }))
    assert.equal(1, #o.param_groups)
    o:add_param_group { params = { q } }
    assert.equal(2, #o.param_groups)
  end)

  it("check options", function()
    local p = leaf()
    assert.matches("SGD: unknown option 'momentun'; did you mean 'momentum'%?",
      message(optim.SGD, { p }, { momentun = 0.9 }))
    assert.matches("SGD: option 'lr' must be at least 0, got %-1", message(optim.SGD, { p }, { lr = -1 }))
    assert.matches("nesterov needs a momentum above 0 and no dampening",
      message(optim.SGD, { p }, { nesterov = true }))
    assert.matches("AdamW: betas%[2%] must be at least 0 and below 1, got 1",
      message(optim.AdamW, { p }, { betas = { 0.9, 1 } }))
    assert.matches("AdamW: betas must be two numbers, got 1",
      message(optim.AdamW, { p }, { betas = { 0.9 } }))
    assert.matches("AdamW: unknown option 'decoupled_weight_decay'",
      message(optim.AdamW, { p }, { decoupled_weight_decay = true }))
    local err = message(function() optim.SGD({ p }, { Lr = 1 }) end)
    assert.matches("^[^\n]*optim_spec%.lua:%d+: SGD: unknown option 'Lr'; did you mean 'lr'", err)
  end)

  it("allow frozen parameters", function()
    local p = core.zeros(2)
    local o = optim.SGD { p }
    o:step()
    assert.same({ 0, 0 }, p:totable())
  end)
end)

describe("options that PyTorch's scripts carry along", function()
  local function weight() return nn.Parameter(core.ones(2)) end

  it("change nothing, and say so once", function()
    local host = require "spec.support.host"
    local _, _, stderr = host.run { "-e", [[
      local nn, optim = require "accelerate.nn", require "accelerate.optim"
      local tensor = require "accelerate.tensor"
      for _ = 1, 2 do
        optim.Adam({ nn.Parameter(tensor.ones(2)) }, { fused = true, foreach = false, capturable = false })
      end
    ]] }
    assert.equal("accelerate: Adam: the option fused changes nothing: each step is fused, " ..
      "and can be captured\n",
      stderr)
    local a, b = weight(), weight()
    local plain = optim.SGD({ a }, { lr = 0.5 })
    local other = optim.SGD({ { params = { b }, foreach = false } }, { lr = 0.5, differentiable = false })
    for p, o in pairs { [a] = plain, [b] = other } do
      p.grad = core.ones(2)
      o:step()
    end
    assert.same(a:totable(), b:totable())
    assert.is_nil(other.param_groups[1].foreach)
    assert.is_nil(other.defaults.differentiable)
  end)

  it("are refused where they would change something or are no booleans", function()
    assert.matches("AdamW: differentiable = true is not there: steps are not recorded",
      message(optim.AdamW, { weight() }, { differentiable = true }))
    assert.matches("Adam: fused must be true or false, got 1",
      message(optim.Adam, { weight() }, { fused = 1 }))
    assert.matches("unknown option 'fusd'", message(optim.Adam, { weight() }, { fusd = true }))
  end)

  it("a tensor as lr is its number", function()
    local o = optim.Adam({ { params = { weight() }, lr = core.tensor(0.25) } }, { lr = core.tensor { 0.5 } })
    assert.equal(0.5, o.defaults.lr)
    assert.equal(0.25, o.param_groups[1].lr)
    assert.matches("Adam: lr: expected a number or a tensor of one element, " ..
      "got a float32 tensor of shape %[2%]",
      message(optim.Adam, { weight() }, { lr = core.ones(2) }))
  end)

  it("a tensor as lr is followed, and follows", function()
    local lr, p = core.tensor(0.5), core.zeros({ 1 }, { requires_grad = true })
    local o = optim.SGD({ p }, { lr = lr })
    local function step()
      p.grad = core.ones(1)
      o:step()
      return p[1]:item()
    end
    assert.equal(-0.5, step())
    lr:mul_(0.5)
    assert.equal(-0.75, step())
    assert.equal(0.25, o.param_groups[1].lr)
    o.param_groups[1].lr = 1
    assert.equal(-1.75, step())
    assert.equal(1, lr:item())
    local scheduler = optim.lr_scheduler.ExponentialLR(o, 0.5)
    scheduler:step()
    assert.equal(0.5, lr:item())
    lr:fill_(0.125)
    scheduler:step() -- goes on from the tensor
    assert.equal(0.0625, lr:item())
    lr:fill_(2)
    assert.equal(2, o:state_dict().param_groups[1].lr)
    local other = core.tensor { 4 }
    o.param_groups[1].lr = other
    assert.equal(-5.75, step())
    other:fill_(1)
    assert.equal(-6.75, step())
    local muon = optim.Muon({ core.ones({ 2, 2 }, { requires_grad = true }) }, { lr = lr })
    lr:fill_(0.25)
    muon:step()
    assert.equal(0.25, muon.param_groups[1].lr)
    o.param_groups[1].lr = core.ones(2)
    assert.matches("SGD: lr: expected a number or a tensor of one element", message(o.step, o))
  end)
end)

describe("a file of PyTorch's", function()
  local path = os.tmpname()
  teardown(function() os.remove(path) end)

  it("holds Adafactor's eps, whose first number is None by default, as false", function()
    disk.write(path, disk.from_hex(saved.adafactor))
    local state = utils.load(path)
    assert.same({ false, 1e-3 }, state.param_groups[1].eps)
    local o = optim.Adafactor({ core.zeros({ 2, 2 }, { requires_grad = true }) }, { eps = { 0.5, 0.5 } })
    o:load_state_dict(state)
    assert.same({ false, 1e-3 }, o.param_groups[1].eps)
  end)

  it("gets None where PyTorch's optimizers expect it", function()
    local python = require "accelerate.utils.python"
    local params = { core.zeros({ 2, 2 }, { requires_grad = true }) }
    local eps = optim.Adafactor(params):state_dict().param_groups[1].eps
    assert.same({ [1] = true }, python.of(eps).nones)
    local group = optim.LBFGS(params):state_dict().param_groups[1]
    assert.is_true(python.of(group).nones.line_search_fn)
    group = optim.LBFGS(params, { line_search_fn = "strong_wolfe" }):state_dict().param_groups[1]
    assert.is_nil((python.of(group) or { nones = {} }).nones.line_search_fn)
  end)
end)
