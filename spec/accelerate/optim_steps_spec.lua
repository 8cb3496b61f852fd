-- Optimizers beyond those of optim_trajectories_spec.lua: 20 steps equal PyTorch's and
-- schedulefree's (spec/reference/optim_steps_reference.lua), resumed in the middle to the same
-- bits.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local message = require("spec.support.messages").message
local reference = dofile("spec/reference/optim_steps_reference.lua")
local ordered = require "accelerate.utils.ordered"
local trajectories = require "spec.support.trajectories"

local Net = trajectories.Net
local STEPS = 20

local function digest(net) return trajectories.digest { net } end

local MAKERS = {
  adadelta = { "Adadelta", {} },
  adadelta_options = { "Adadelta", { lr = 0.5, rho = 0.7, eps = 1e-4, weight_decay = 0.1 } },
  adadelta_maximize = { "Adadelta", { maximize = true } },
  rprop = { "Rprop", {} },
  rprop_options = { "Rprop", { lr = 0.02, etas = { 0.3, 1.5 }, step_sizes = { 1e-3, 0.05 } } },
  rprop_maximize = { "Rprop", { lr = 1e-3, maximize = true } },
  asgd = { "ASGD", {} },
  asgd_options = { "ASGD", { lr = 0.1, lambd = 0.05, alpha = 0.6, t0 = 5, weight_decay = 0.1 } },
  asgd_maximize = { "ASGD", { lr = 0.02, t0 = 0, maximize = true } },
  lbfgs = { "LBFGS", { lr = 0.3, max_iter = 3 } },
  lbfgs_wolfe = { "LBFGS", { max_iter = 3, line_search_fn = "strong_wolfe" } },
  lbfgs_short = { "LBFGS", { lr = 0.1, max_iter = 4, max_eval = 3, history_size = 2 } },
  lbfgs_bounds = { "LBFGS", { lr = 2, max_iter = 6, history_size = 3, tolerance_grad = 1e-3,
    tolerance_change = 1e-4, line_search_fn = "strong_wolfe" } },
  lbfgs_maximize = { "LBFGS", { lr = 0.01, max_iter = 2, maximize = true } },
  sgd_free = { "SGDScheduleFree", { lr = 0.2 } },
  sgd_free_options = { "SGDScheduleFree", { lr = 0.3, momentum = 0.7, weight_decay = 0.05, warmup_steps = 4,
    r = 0.5, weight_lr_power = 1.5 } },
  adamw_free = { "AdamWScheduleFree", { lr = 0.02 } },
  adamw_free_options = { "AdamWScheduleFree", { lr = 0.05, betas = { 0.8, 0.95 }, eps = 1e-4,
    weight_decay = 0.1, warmup_steps = 6, r = 1, weight_lr_power = 1 } },
  muon = { "Muon", { lr = 0.02 } },
  muon_options = { "Muon", { lr = 0.05, weight_decay = 0.3, momentum = 0.8, nesterov = false, ns_steps = 3,
    adjust_lr_fn = "match_rms_adamw" } },
  muon_spectral = { "Muon", { lr = 0.02, adjust_lr_fn = "spectral_unclamped" } },
}

local function params_of(net, maker)
  if MAKERS[maker][1] ~= "Muon" then return net:parameters() end
  return { net.p1, net.p3, net.p5 }
end

local function make(maker, net) return optim[MAKERS[maker][1]](params_of(net, maker), MAKERS[maker][2]) end

-- Parameters and gradients in flat buffers, as accelerator:prepare lays them out.
local function lay_out(net)
  local params, reversed = net:parameters(), {}
  for i = #params, 1, -1 do reversed[#reversed + 1] = params[i] end
  net.layout = { core.flat(reversed) }
  net.layout[1]:give_grads()
end

-- What one step of each kind is: function(net, optimizer, t, out).
local STEP = {}

local function gradients(net, t)
  net(t, t % 3 == 0 and 0 or 1):backward()
end

function STEP.trained(net, optimizer, t, out)
  gradients(net, t)
  optimizer:step()
  net:zero_grad()
  out[#out + 1] = digest(net)
end
STEP.plain, STEP.muon = STEP.trained, STEP.trained

function STEP.minimized(net, optimizer, _, out)
  optimizer:step(function()
    optimizer:zero_grad()
    local loss = net(1)
    loss:backward()
    return loss
  end)
  out[#out + 1] = digest(net)
end

function STEP.free(net, optimizer, t, out)
  optimizer:train()
  STEP.trained(net, optimizer, t, out)
  if t % 10 == 0 then
    optimizer:eval()
    out[#out + 1] = digest(net)
  end
end

-- Steps `from` to `last`.  flat_at: the step before which the network is laid out.
local function run(kind, maker, dtype, opts)
  local net = Net(dtype)
  local optimizer = make(maker, net)
  local schedule = kind == "trained"
    and optim.lr_scheduler.CosineAnnealingLR(optimizer, { T_max = 9, eta_min = 0.001 })
  local out = {}
  for t = 1, STEPS do
    if t == opts.flat_at then
      lay_out(net)
      optimizer:_relayout()
    end
    if t == opts.resume_at then
      local again = Net(dtype)
      again:load_state_dict(net:state_dict())
      local resumed = make(maker, again)
      resumed:load_state_dict(optimizer:state_dict())
      if schedule then
        local state = schedule:state_dict()
        schedule = optim.lr_scheduler.CosineAnnealingLR(resumed, { T_max = 9, eta_min = 0.001 })
        schedule:load_state_dict(state)
        resumed:load_state_dict(optimizer:state_dict())
      end
      net, optimizer = again, resumed
    end
    STEP[kind](net, optimizer, t, out)
    if schedule then schedule:step() end
  end
  return out, optimizer, net
end

-- tolerance: a number, or function(step)
local function assert_follows(expected, got, tolerance, name)
  assert.equal(#expected, #got)
  for t = 1, #expected do
    local most = type(tolerance) == "number" and tolerance or tolerance(t)
    if not (math.abs(got[t] - expected[t]) <= most) then
      error(("%s: number %d is %.12g, PyTorch's %.12g"):format(name, t, got[t], expected[t]), 2)
    end
  end
end

-- In float32 a step's direction may differ where a gradient is nearly 0; L-BFGS divides by small
-- differences.
local FLOAT32 = { trained = 1e-3, plain = 1e-3, free = 1e-3 }

-- Muon's iteration is in bfloat16: sums in another order round differently, and small singular
-- values grow.
local function bfloat16(t) return t <= 10 and 0.006 or 0.04 end

for _, kind in ipairs { "trained", "plain", "free", "minimized", "muon" } do
  describe("20 steps, " .. kind .. ":", function()
    for _, maker in ipairs(ordered.sorted_keys(reference[kind])) do
      it(maker, function()
        local expected = reference[kind][maker]
        local tolerance = kind == "muon" and bfloat16 or kind == "minimized" and 1e-6 or 1e-11
        local got, optimizer, net = run(kind, maker, "float64", {})
        assert_follows(expected.digests or expected, got, tolerance, maker)
        if expected.counts then
          local state = optimizer.state[net.p1]
          assert.same(expected.counts, { state.n_iter, state.func_evals })
        end
        local flat = run(kind, maker, "float64", { flat_at = 4 })
        assert_follows(expected.digests or expected, flat, tolerance, maker)
        if FLOAT32[kind] then
          assert_follows(expected, (run(kind, maker, "float32", { flat_at = 1 })), FLOAT32[kind], maker)
        end
      end)

      it(maker .. ", resumed in the middle, to the same bits", function()
        for _, dtype in ipairs { "float64", "float32" } do
          assert.same((run(kind, maker, dtype, {})), (run(kind, maker, dtype, { resume_at = 8 })))
        end
      end)
    end
  end)
end

local function vector() return nn.Parameter(core.ones(3)) end

describe("a step without a closure", function()
  it("gives nothing, not nil", function()
    for _, name in ipairs { "SGD", "AdamW", "Muon", "LOMO", "AdaLOMO", "SGDScheduleFree" } do
      local layer = nn.Linear(2, 2, { bias = false })
      local optimizer = optim[name](layer:parameters(), { lr = 0.1 })
      if optimizer.train then optimizer:train() end
      local loss = layer(core.ones(1, 2)):sum()
      loss:backward()
      assert.equal(0, select("#", optimizer:step()), name)
    end
  end)
end)

describe("LBFGS", function()
  it("finds the minimum of Rosenbrock's function", function()
    local p = nn.Parameter(core.tensor({ -1.5, 2 }, { dtype = "float64" }))
    local o = optim.LBFGS({ p }, { max_iter = 60, line_search_fn = "strong_wolfe" })
    local loss
    o:step(function()
      o:zero_grad()
      loss = (1 - p[1]):square() + 100 * (p[2] - p[1]:square()):square()
      loss:backward()
      return loss
    end)
    assert.near(1, p[1]:item(), 1e-5)
    assert.near(1, p[2]:item(), 1e-5)
  end)

  it("returns the loss before the step", function()
    local p = vector()
    local o = optim.LBFGS({ p }, { lr = 0.1 })
    local loss = o:step(function()
      o:zero_grad()
      local loss = p:square():sum()
      loss:backward()
      return loss
    end)
    assert.equal(3, loss:item())
    assert.is_true(p[1]:item() < 1)
  end)

  it("refuses to step without a closure that returns the loss", function()
    local o = optim.LBFGS { vector() }
    assert.matches("LBFGS:step: expected a closure .* got nil", message(o.step, o))
    assert.matches("the closure must return the loss, .* got nil", message(o.step, o, function() end))
  end)

  it("takes one group", function()
    local o = optim.LBFGS { vector() }
    assert.matches("groups are not supported", message(o.add_param_group, o, { params = { vector() } }))
    assert.matches("groups are not supported",
      message(optim.LBFGS, { { params = { vector() } }, { params = { vector() } } }))
  end)

  it("refuses a state that does not fit", function()
    local p = vector()
    local o = optim.LBFGS { p }
    local dict = o:state_dict()
    dict.state[0] = { func_evals = 1, n_iter = 1, d = core.ones(4) }
    assert.matches("d of parameter 0 must be vector of 3 elements", message(o.load_state_dict, o, dict))
    dict.state[0] = { n_iter = 1 }
    assert.matches("parameter 0 has no func_evals", message(o.load_state_dict, o, dict))
  end)
end)

describe("schedule-free optimizers", function()
  it("step in training mode alone", function()
    for _, name in ipairs { "SGDScheduleFree", "AdamWScheduleFree" } do
      local p = vector()
      local o = optim[name] { p }
      assert.matches(name .. ":step: the optimizer is not in training mode; call optimizer:train%(%)",
        message(o.step, o))
      o:train()
      p:sum():backward()
      o:step()
      assert.equal(1, o.param_groups[1].k)
      o:eval()
      assert.matches("not in training mode", message(o.step, o))
    end
  end)

  it("switch there and back", function()
    local p = vector()
    local o = optim.SGDScheduleFree({ p }, { lr = 0.1 })
    o:train()
    for _ = 1, 3 do
      o:zero_grad()
      p:square():sum():backward()
      o:step()
    end
    local before = p:detach():clone()
    o:eval()
    o:eval()
    assert.is_true((p - before):abs():max():item() > 1e-3)
    o:train()
    assert.is_true((p - before):abs():max():item() < 1e-6)
  end)

  it("save what schedulefree saves", function()
    local p = vector()
    local o = optim.AdamWScheduleFree { p }
    o:train()
    p:sum():backward()
    o:step()
    local dict = o:state_dict()
    assert.same({ "exp_avg_sq", "z" }, ordered.sorted_keys(dict.state[0]))
    assert.equal(1, dict.param_groups[1].k)
    assert.is_true(dict.param_groups[1].train_mode)
  end)

  it("refuse momenta that leave no mean", function()
    assert.matches("momentum", message(optim.SGDScheduleFree, { vector() }, { momentum = 1 }))
    assert.matches("momentum", message(optim.SGDScheduleFree, { vector() }, { momentum = 0 }))
    assert.matches("betas%[1%] must be above 0", message(optim.AdamWScheduleFree, { vector() },
      { betas = { 0, 0.9 } }))
  end)
end)

describe("Muon", function()
  it("takes matrices alone", function()
    assert.matches("Muon: parameter 2 of group 1 has the shape %[3%]; only matrices",
      message(optim.Muon, { nn.Parameter(core.ones(3, 2)), vector() }))
  end)

  it("brings the singular values near to 1", function()
    local p = nn.Parameter(core.zeros(6, 4))
    local o = optim.Muon({ p }, { lr = 1, adjust_lr_fn = "match_rms_adamw", weight_decay = 0 })
    core.manual_seed(3)
    p.grad = core.randn(6, 4)
    o:step()
    local s = require("accelerate.tensor").linalg.svdvals(p:detach() / (0.2 * math.sqrt(6)))
    assert.is_true(s:min():item() > 0.5 and s:max():item() < 1.5)
  end)
end)

describe("options", function()
  it("of Rprop", function()
    assert.matches("etas must be one number between 0 and 1 and one above 1, got 1.5 and 1.2",
      message(optim.Rprop, { vector() }, { etas = { 1.5, 1.2 } }))
    assert.matches("step_sizes must be two numbers, got 1",
      message(optim.Rprop, { vector() }, { step_sizes = { 1 } }))
  end)

  it("of Adadelta and Muon", function()
    assert.matches("rho", message(optim.Adadelta, { vector() }, { rho = 1.1 }))
    assert.matches("ns_coefficients must be three numbers, got 1",
      message(optim.Muon, { nn.Parameter(core.ones(2, 2)) }, { ns_coefficients = { 1 } }))
  end)

  it("fused and foreach change nothing", function()
    for _, name in ipairs { "Adadelta", "Rprop", "ASGD", "SGDScheduleFree", "AdamWScheduleFree" } do
      assert.is_table(optim[name]({ vector() }, { foreach = false, fused = false }))
    end
  end)
end)

describe("a prepared model", function()
  local accelerate = require "accelerate"

  local function trained(maker, accelerator, folder)
    local net = Net "float32"
    local model, optimizer = accelerator:prepare(net, make(maker, net))
    local function steps(first, last)
      for t = first, last do
        if optimizer.train then optimizer:train() end
        if MAKERS[maker][1] == "LBFGS" then
          optimizer:step(function()
            optimizer:zero_grad()
            local loss = model(1)
            accelerator:backward(loss)
            return loss
          end)
        else
          accelerator:backward(model(t))
          accelerator:clip_grad_norm_(model:parameters(), 1)
          optimizer:step()
          optimizer:zero_grad()
        end
      end
      return digest(net)
    end
    steps(1, 3)
    accelerator:save_state(folder)
    return steps, steps(4, 6)
  end

  for _, maker in ipairs { "adadelta", "rprop", "asgd_options", "lbfgs", "lbfgs_wolfe", "sgd_free_options",
    "adamw_free_options", "muon" } do
    it("is saved and loaded with " .. maker .. ", and goes on to the same bits", function()
      local accelerator = accelerate.Accelerator { cpu = true }
      local folder = os.tmpname()
      os.remove(folder)
      local steps, expected = trained(maker, accelerator, folder)
      accelerator:load_state(folder)
      assert.equal(expected, steps(4, 6))
      os.execute(("rm -rf '%s'"):format(folder))
    end)
  end
end)

describe("state of ASGD", function()
  it("has PyTorch's eta, mu and ax", function()
    local p = vector()
    local o = optim.ASGD({ p }, { lr = 0.1, lambd = 0.5, t0 = 1 })
    for _ = 1, 3 do
      o:zero_grad()
      p:sum():backward()
      o:step()
    end
    local saved = o:state_dict().state[0]
    assert.near(0.1 / (1 + 0.5 * 0.1 * 3) ^ 0.75, saved.eta, 1e-12)
    assert.equal(0.5, saved.mu)
    assert.equal(3, saved.step)
    local again = optim.ASGD({ vector() }, { lr = 0.1, lambd = 0.5, t0 = 1 })
    again:load_state_dict(o:state_dict())
    assert.same(saved.ax:totable(), again:state_dict().state[0].ax:totable())
  end)
end)
