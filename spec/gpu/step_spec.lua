--- Steps on the device: the loss scaler, clipping, optimizers that skip, against the CPU's; and
--- that nobody waits for them.
local device = require "spec.support.device"
local accelerate = require "accelerate"
local core = require "accelerate.core"
local ffi = require "ffi"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local layouts = require "spec.support.layouts"
local tensor = require "accelerate.tensor"

if not device.name then
  describe("steps on the device", function() it("need one", function() pending(device.reason) end) end)
  return
end

local D, GradScaler = device.name, accelerate.utils.GradScaler
local SHAPES = { { 7 }, { 40, 30 }, { 3, 5, 2 }, { 2100 }, { 20, 2 } }

local function close(what, there, here, tolerance)
  local a, b = there:detach():to("cpu"):double():reshape(-1), here:detach():double():reshape(-1)
  if a:numel() == 0 then return end
  local worst = ((a - b):abs() / (b:abs() + 1e-3)):max():item()
  assert.is_true(worst <= tolerance, ("%s: off by %g"):format(what, worst))
end

-- Trains some parameters with a loss scaler; a factor of `overflows` makes gradients infinite at
-- some steps.  Returns what can be compared.
local function train(on, make, how)
  tensor.manual_seed(5)
  local params, targets, log = {}, {}, {}
  for k, shape in ipairs(SHAPES) do
    params[k] = tensor.randn(unpack(shape)):to(on):requires_grad_()
    targets[k] = tensor.randn(unpack(shape)):to(on)
  end
  local optimizers = make(params)
  local scaler = GradScaler { init_scale = 1024, growth_interval = 5 }
  for step = 1, how.steps or 16 do
    local bad = step == 1 or step == 4 or step == 5 or step == 13
    for micro = 1, how.accumulate or 1 do
      local loss
      for k, p in ipairs(params) do
        local sometimes = how.sometimes and k == 2 and step % 3 ~= 0
        local part = ((p - targets[k]) ^ 2):sum() * (bad and micro == 1 and (k == 4 or not how.apart)
          and math.huge or 1)
        if not sometimes then loss = loss and loss + part or part end
      end
      scaler:scale(loss):backward()
    end
    for _, optimizer in ipairs(optimizers) do
      if how.clip then
        scaler:unscale_(optimizer)
        nn.utils.clip_grad_norm_(optimizer.param_groups[1].params, how.clip)
      end
    end
    for _, optimizer in ipairs(optimizers) do
      local _, stepped = scaler:step(optimizer)
      if type(stepped) ~= "boolean" then stepped = stepped:item() == 0 end
      log[#log + 1] = stepped and "step" or "skip"
      if how.each then scaler:update() end
    end
    if not how.each then scaler:update() end
    for _, optimizer in ipairs(optimizers) do optimizer:zero_grad() end
    log[#log + 1] = scaler:get_scale()
    if how.look and step == 9 then
      log[#log + 1] = (optimizers[1]:state_dict().state[0] or {}).step or "none"
    end
    if how.plain and step == 10 then  -- one without the scaler in between
      ((params[1] - targets[1]) ^ 2):sum():backward()
      optimizers[1]:step()
      optimizers[1]:zero_grad()
    end
  end
  return params, log, optimizers, scaler
end

local function same(what, make, how, tolerance)
  local here, log, optimizers, scaler = train("cpu", make, how)
  local there, log_there, optimizers_there, scaler_there = train(D, make, how)
  assert.are.same(log, log_there, what)
  assert.are.same(scaler:state_dict(), scaler_there:state_dict())
  for k, p in ipairs(here) do close(what, there[k], p, tolerance or 5e-5) end
  for i, optimizer in ipairs(optimizers) do
    local a, b = optimizer:state_dict(), optimizers_there[i]:state_dict()
    assert.are.same(a.param_groups, b.param_groups)
    for number = 0, #SHAPES do
      local x, y = a.state[number], b.state[number]
      assert.are.equal(x == nil, y == nil, ("%s: the state of parameter %d"):format(what, number))
      for name, value in pairs(x or {}) do
        if core.is_tensor(value) then close(what .. ": " .. name, y[name], value, (tolerance or 5e-5) * 10)
        else assert.are.equal(value, y[name], what .. ": " .. name) end
      end
    end
    for j, p in ipairs(optimizer.param_groups[1].params) do
      local x, y = optimizer.state[p],
        optimizers_there[i].state[optimizers_there[i].param_groups[1].params[j]]
      assert.are.equal(x and x.step, y and y.step, what .. ": step")
    end
  end
end

local function one(name, options)
  return function(params)
    local given = {}
    for k, v in pairs(options) do given[k] = v end
    return { optim[name](params, given) }
  end
end

describe("the loss scaler on the device", function()
  for _, case in ipairs {
    { "SGD", { lr = 0.01 } }, { "SGD", { lr = 0.01, momentum = 0.9, nesterov = true } },
    { "Adam", { lr = 0.01, weight_decay = 0.1 } },
    { "AdamW", { lr = 0.01, amsgrad = true } }, { "NAdam", { lr = 0.01 } }, { "RAdam", { lr = 0.01 } },
    { "Adamax", { lr = 0.01 } },
    { "Adagrad", { lr = 0.01, lr_decay = 0.1 } },
    { "RMSprop", { lr = 0.01, centered = true, momentum = 0.5 } }, { "Lion", { lr = 0.001 } },
    { "Adafactor", { lr = 0.01 } },
  } do
    -- the stand-in for a device has the CPU's kernels: two show what is the host's
    local wanted = not device.fake or case[1] == "AdamW" or case[1] == "NAdam"
    if wanted then
      it("skips, scales and steps as on the CPU: " .. case[1] ..
      (case[2].amsgrad and ", amsgrad" or case[2].momentum and ", momentum" or ""), function()
      same(case[1], one(case[1], case[2]), { look = true })
    end) end
  end

  it("with clipping after unscaling, and gradients that add up", function()
    same("clipped", one("AdamW", { lr = 0.01 }), { clip = 3, accumulate = 3 })
  end)

  it("with parameters that have a gradient now and then", function()
    same("sometimes", one("Adam", { lr = 0.01 }), { sometimes = true })
    same("sometimes, momentum", one("SGD", { lr = 0.01, momentum = 0.9 }), { sometimes = true, clip = 2 })
  end)

  it("with steps without it in between",
    function() same("plain", one("Adam", { lr = 0.01 }), { plain = true, look = true }) end)

  it("with several optimizers, updated once or after each", function()
    local function two(params)
      return { optim.AdamW({ params[1], params[2], params[3] }, { lr = 0.01 }),
        optim.SGD({ params[4], params[5] }, { lr = 0.01, momentum = 0.5 }) }
    end
    same("two", two, { apart = true })
    same("two, each updating", two, { apart = true, each = true, clip = 2 })
  end)

  it("with groups, element types and parameters of their own step counts", function()
    same("groups", function(params)
      params[5] = params[5]:detach():double():requires_grad_()
      return { optim.Adam({ { params = { params[1], params[2], params[5] } },
        { params = { params[3], params[4] }, lr = 0.02 } }, { lr = 0.01 }) }
    end, {})
  end)

  it("waits where an optimizer steps in its own way", function()
    same("own", function(params)
      local optimizer = optim.SGD(params, { lr = 0.01 })
      function optimizer:step()
        core.no_grad(function()
          for _, p in ipairs(self.param_groups[1].params) do p:add_(p.grad * -0.01) end
        end)
      end
      return { optimizer }
    end, {})
  end)

  it("keeps gradients' scale when it changed since the loss was scaled", function()
    for _, on in ipairs { "cpu", D } do
      local scaler, p = GradScaler { init_scale = 8, growth_interval = 1 }, tensor.ones(3,
        { device = on }):requires_grad_()
      local optimizer = optim.SGD({ p }, { lr = 1 })
      local loss = scaler:scale((p * 2):sum())
      scaler:update(16)
      assert.are.equal(16, scaler:get_scale())
      loss:backward()
      scaler:unscale_(optimizer)
      assert.are.equal(2, p.grad:max():item())
      scaler:update(4)
      assert.are.equal(4, scaler:get_scale())
      scaler:load_state_dict(GradScaler { init_scale = 32 }:state_dict())
      assert.are.equal(32, scaler:get_scale())
      assert.are.equal(32, scaler:scale(tensor.ones({}, { device = on })):item())
    end
  end)

  it("refuses to skip what the host reckons on, and numbers of the wrong kind", function()
    local p = tensor.ones(3, { device = D }):requires_grad_()
    p.grad = tensor.ones(3, { device = D })
    local skip = tensor.zeros(1, { device = D })
    local hyper = { lr = 1, weight_decay = 0, maximize = false, betas = { 0.9, 0.99 }, eps = 1e-8,
      momentum_decay = 1, decoupled_weight_decay = false }
    local state = { step = 0, exp_avg = tensor.zeros(3, { device = D }),
      exp_avg_sq = tensor.zeros(3, { device = D }), mu_product = 1 }
    local nadam, plain = core.optim_group("nadam", { p }), core.optim_group("sgd", { p })
    nadam:take { [p] = state }
    assert.error_matches(function() nadam:step(hyper, { skip = skip }) end, "nadam keeps mu_product")
    assert.error_matches(function() nadam:step(hyper, skip) end, "nadam keeps mu_product")
    local sgd = { lr = 1, weight_decay = 0, maximize = false, momentum = 0, dampening = 0, nesterov = false }
    assert.error_matches(function() plain:step(sgd, { skip = skip:double() }) end,
      "skip must be 1 elements of float32")
    assert.error_matches(function() plain:step(sgd, { skip = skip:to("cpu") }) end, "skip lies on cpu")
    assert.error_matches(function() plain:step(sgd, skip:double()) end, "skip must be 1 elements of float32")
    assert.error_matches(function() plain:step(sgd, skip:to("cpu")) end, "skip lies on cpu")
    assert.error_matches(function() core.unscale_grads_({ p }, tensor.ones({}), skip) end,
      "scale lies on cpu")
  end)
end)

describe("steps that read the device", function()
  it("take options and counts from there", function()
    local names = { "lr", "weight_decay", "maximize", "betas", "eps", "amsgrad", "decoupled_weight_decay" }
    local function params_on(on)
      tensor.manual_seed(1)
      local params, states = {}, {}
      for k = 1, 3 do
        params[k] = tensor.randn(50 * k):to(on):requires_grad_()
        params[k].grad = tensor.randn(50 * k):to(on)
        states[k] = { step = k == 3 and 4 or 0, exp_avg = tensor.zeros(50 * k, { device = on }),
          exp_avg_sq = tensor.ones(50 * k, { device = on }) }
      end
      return params, states
    end
    local given = { lr = 0.1, weight_decay = 0.01, maximize = false, betas = { 0.9, 0.99 }, eps = 1e-8,
      amsgrad = false, decoupled_weight_decay = true }
    local wrong = {}
    for _, name in ipairs(names) do wrong[name] = given[name] end
    wrong.lr, wrong.betas = 7, { 0.5, 0.5 }
    local here, states = params_on("cpu")
    for k = 1, 3 do states[k].step = states[k].step + 6 end
    local function group_of(params, kept)
      local group, view = core.optim_group("adam", params), {}
      for k = 1, 3 do view[params[k]] = kept[k] end
      group:take(view)
      return group
    end
    group_of(here, states):step(given)
    local there, states_there = params_on(D)
    local group = group_of(there, states_there)
    local ran, skipped = tensor.full({ 1 }, 8, { dtype = "int64" }):to(D), tensor.full({ 1 }, 2,
      { dtype = "int64" }):to(D)
    group:step(wrong, { hyper = core.optim_hyper("adam", given):to(D), ran = ran, skipped = skipped })
    for k = 1, 3 do close("adam", there[k], here[k], 1e-5) end
    assert.are.equal(2, skipped:item())
    group:step(wrong, { skipped = skipped, skip = tensor.ones(1, { device = D }) })
    assert.are.equal(3, skipped:item())
    for k = 1, 3 do close("skipped", there[k], here[k], 1e-5) end
  end)

  it("write working copies in either half type, and leave stale ones alone where the step may be skipped",
    function()
    for _, lower in ipairs { "bfloat16", "float16" } do
      for _, name in ipairs { "SGD", "AdamW", "Adafactor" } do
        for _, stale in ipairs { false, true } do
          local p, q = tensor.randn(40, 20):to(D):requires_grad_(), tensor.randn(300):to(D):requires_grad_()
          local works = layouts.of({ p, q }, { work = lower }):work():fill_(7)
          if not stale then
            tensor.autocast({ dtype = lower }, function() return tensor.randn(3, 40):to(D):matmul(p) end)
          end
          local optimizer = optim[name]({ p, q }, { lr = 0.1 })
          for step = 1, 2 do
            p.grad, q.grad = tensor.randn(40, 20):to(D), tensor.randn(300):to(D)
            if stale then optimizer:_step_unless(tensor.full({ 1 }, step - 1):to(D)) else optimizer:step() end
          end
          local work, current = core.work_of(p)
          assert.are.equal(not stale, current, name)
          if not stale then assert.is_true(tensor.equal(p:detach():to(lower), work)) end
          local cast = tensor.autocast({ dtype = lower },
            function() return tensor.eye(40):to(D):matmul(p) end)
          assert.is_true(tensor.equal(p:detach():to(lower), cast))
          assert.are.equal(7, works[820]:item())
        end
      end
    end
  end)

  it("never use the table of parameters that are gone", function()
    for round = 1, 12 do
      local n = 300 + round % 3
      local function run(on)
        tensor.manual_seed(round)
        local params = {}
        for k = 1, 3 do params[k] = tensor.randn(n):to(on):requires_grad_() end
        local optimizer = optim.Adam(params, { lr = 0.1 })
        for _ = 1, 2 do
          for k = 1, 3 do params[k].grad = tensor.randn(n):to(on) end
          nn.utils.clip_grad_norm_(params, 1)
          optimizer:step()
        end
        return params
      end
      local here, there = run("cpu"), run(D)
      for k = 1, 3 do close("round " .. round, there[k], here[k], 5e-5) end
      collectgarbage()
    end
  end)
end)

describe("norms on the device", function()
  local function gradients(on, special)
    tensor.manual_seed(2)
    local list = {}
    for k, shape in ipairs { { 3000 }, { 5, 7 }, { 1 }, { 0 }, { 2049 } } do
      list[k] = tensor.zeros(unpack(shape)):to(on):requires_grad_()
      list[k].grad = tensor.randn(unpack(shape)):to(on)
    end
    list[6] = tensor.zeros(4, 4, { dtype = "float64", device = on }):requires_grad_()
    list[6].grad = tensor.randn(4, 4):double():to(on)
    list[7] = tensor.zeros(6, { dtype = "bfloat16", device = on }):requires_grad_()
    list[7].grad = tensor.randn(6):to("bfloat16"):to(on)
    list[8] = tensor.zeros(8, 3, { device = on }):requires_grad_()
    list[8].grad = tensor.randn(3, 8):to(on):t()
    if special then list[2].grad[2] = special end
    return list
  end

  it("stay there, and are the CPU's, whatever lies in the list", function()
    for _, p in ipairs { 2, 1, 3, 0.5, math.huge, -math.huge } do
      for _, max_norm in ipairs { 0.7, 1e6 } do
        local here, there = gradients("cpu"), gradients(D)
        local norm, norm_there = nn.utils.clip_grad_norm_(here, max_norm,
          { norm_type = p }), nn.utils.clip_grad_norm_(there, max_norm, { norm_type = p })
        assert.are.equal(D, norm_there.device)
        assert.are.equal("float64", norm_there.dtype)
        assert.are.same({}, norm_there.shape)
        close("norm " .. p, norm_there, norm, 1e-5)
        for k, t in ipairs(here) do
          close(("norm %g, gradient %d"):format(p, k), there[k].grad, t.grad, k == 7 and 1e-2 or 1e-5)
        end
      end
    end
    local list = gradients(D)
    assert.are.equal("float32", nn.utils.clip_grad_norm_({ list[1], list[2] }, 1).dtype)
    assert.are.equal(0, nn.utils.clip_grad_norm_({ tensor.zeros(3, { device = D }) }, 1):item())
  end)

  it("spread NaN, tell infinity, and are looked at when they are to be finite", function()
    for _, special in ipairs { math.huge, 0 / 0 } do
      local here, there = gradients("cpu", special), gradients(D, special)
      local norm, norm_there = nn.utils.clip_grad_norm_(here, 1):item(), nn.utils.clip_grad_norm_(there,
        1):item()
      assert.are.equal(tostring(norm):gsub("-", ""), (tostring(norm_there):gsub("-", "")))
      for k, t in ipairs(here) do
        assert.are.equal(t.grad:isnan():sum():item(), there[k].grad:isnan():sum():item())
      end
      there = gradients(D, special)
      local before = there[1].grad:clone()
      assert.error_matches(function() nn.utils.clip_grad_norm_(there, 1, { error_if_nonfinite = true }) end,
        "cannot be clipped")
      close("untouched", there[1].grad, before:to("cpu"), 0)
    end
  end)

  it("are those of get_total_norm and of clipping by value", function()
    local here, there = gradients("cpu"), gradients(D)
    for _, list in ipairs { here, there } do nn.utils.clip_grad_value_(list, 0.3) end
    for k, t in ipairs(here) do close("value " .. k, there[k].grad, t.grad, 1e-6) end
    local a, b = core.total_norm(here, 2), core.total_norm(there, 2)
    assert.are.equal(D, b.device)
    close("total", b, a, 1e-5)
  end)
end)

describe("a step", function()
  ffi.cdef "int unsetenv(const char *name);"
  local function accelerator_of(precision)
    ffi.C.setenv("ACCELERATE_TORCH_DEVICE", "cuda", 1)
    accelerate.state.reset()
    local made = accelerate.Accelerator { mixed_precision = precision,
      kwargs_handlers = { accelerate.GradScalerKwargs { init_scale = 64 } } }
    ffi.C.unsetenv "ACCELERATE_TORCH_DEVICE"
    assert.are.equal(D, made.device)
    return made
  end
  after_each(function() accelerate.state.reset() end)

  local function counts()
    local s = core.memory_stats(D)
    return s.waits, s.uploads
  end

  -- What a steady step waits for and sends up, by the stats and, emulated, by the calls of the
  -- runtime.
  local function trained(precision, scheduled, each)
    local accelerator = accelerator_of(precision)
    tensor.manual_seed(3)
    local model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4))
    local optimizer = optim.AdamW(model:parameters(), { lr = 0.01 })
    local scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, { T_max = 20 })
    model, optimizer, scheduler = accelerator:prepare(model, optimizer, scheduler)
    local x, y = tensor.randn(8, 6):to(D), tensor.randint(0, 4, { 8 }):to(D)
    local waits, uploads
    for step = 1, 8 do
      if step == 4 then waits, uploads = counts() end
      accelerator:accumulate(model, function()
        accelerator:backward(nn.functional.cross_entropy(model(x), y))
        if accelerator.sync_gradients then accelerator:clip_grad_norm_(model:parameters(), 0.1) end
        optimizer:step()
        if scheduled then scheduler:step() end
        if each then each(accelerator, optimizer) end
        optimizer:zero_grad()
      end)
    end
    local w, u = counts()
    return (w - waits) / 5, (u - uploads) / 5, optimizer, scheduler
  end

  it("in bfloat16 with clipping and a scheduler never waits and sends nothing", function()
    local waits, uploads, _, scheduler = trained("bf16", true,
      function(a) assert.is_false(a.optimizer_step_was_skipped) end)
    assert.are.same({ 0, 0 }, { waits, uploads })
    assert.are.equal(8, scheduler.last_epoch)
  end)

  it("in float16 never waits either, unless somebody asks whether it was skipped", function()
    local waits, uploads, optimizer = trained("fp16", false)
    assert.are.same({ 0, 0 }, { waits, uploads })
    assert.is_false(optimizer.step_was_skipped)
    assert.are.equal(8, optimizer.state[optimizer.param_groups[1].params[1]].step)
    local once, none, _, scheduler = trained("fp16", true)
    assert.are.same({ 1, 0 }, { once, none })
    assert.are.equal(8, scheduler.last_epoch)
    assert.are.equal(2,
      (trained("fp16", false, function(a, o) return a.optimizer_step_was_skipped, o.step_was_skipped end)))
  end)

  it("skips in float16, and a prepared scheduler waits for it", function()
    local steps, skips = 0, 0
    local function each(accelerator, optimizer)
      steps = steps + 1
      if optimizer.step_was_skipped then skips = skips + 1 end
      if steps == 2 or steps == 5 then
        core.no_grad(function() optimizer.param_groups[1].params[1]:fill_(3e38) end)
      end
      if steps == 3 or steps == 6 then
        core.no_grad(function() optimizer.param_groups[1].params[1]:fill_(0.1) end)
      end
    end
    local _, _, optimizer, scheduler = trained("fp16", true, each)
    assert.are.same({ 8, 2, 6 }, { steps, skips, scheduler.last_epoch })
    assert.are.equal(6, optimizer.state[optimizer.param_groups[1].params[1]].step)
  end)

  it("lays states out as the parameters lie, so that a model is one run", function()
    local _, _, optimizer = trained("bf16", true)
    local params = optimizer.param_groups[1].params
    for i = 2, #params do
      local a, b = optimizer.state[params[i]], optimizer.state[params[i - 1]]
      for _, name in ipairs { "exp_avg", "exp_avg_sq" } do
        assert.are.equal(params[i]:_address() - params[i - 1]:_address(),
          a[name]:_address() - b[name]:_address())
      end
    end
  end)
end)
