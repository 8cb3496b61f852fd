-- Loss scaling: the scaler by itself, and fp16 training on a device.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local optim = require "accelerate.optim"
local ranks = require "spec.support.ranks"

local GradScaler = accelerate.utils.GradScaler

describe("GradScaler", function()
  it("scales, skips and adapts as torch.amp.GradScaler", function()
    local scaler = GradScaler { init_scale = 8, growth_interval = 2 }
    local p = core.ones(1, { requires_grad = true })
    local optimizer = optim.SGD({ p }, { lr = 0.125 })
    local seen = {}
    for i, overflows in ipairs { false, false, true, false, false, false, false, true, true, false, false } do
      local loss = (p * (overflows and math.huge or 1)):sum()
      local scale = scaler:get_scale()
      scaler:scale(loss):backward()
      if not overflows then assert.are.equal(scale, p.grad:item()) end
      local _, stepped = scaler:step(optimizer)
      assert.are.equal(not overflows, stepped)
      scaler:update()
      optimizer:zero_grad()
      seen[i] = scaler:get_scale() .. " " .. p:item()
    end
    -- what PyTorch prints for the same script
    assert.are.same({ "8 0.875", "16 0.75", "8 0.75", "8 0.625", "16 0.5", "16 0.375", "32 0.25", "16 0.25",
      "8 0.25", "8 0.125", "16 0" }, seen)
    assert.are.same({ scale = 16, growth_factor = 2, backoff_factor = 0.5, growth_interval = 2,
      _growth_tracker = 0 }, scaler:state_dict())
    local other = GradScaler()
    assert.are.equal(65536, other:get_scale())
    other:load_state_dict(scaler:state_dict())
    assert.are.same(scaler:state_dict(), other:state_dict())
  end)

  it("unscales once for each step, and counts several optimizers", function()
    local scaler = GradScaler { init_scale = 4 }
    local a, b = core.ones(1, { requires_grad = true }), core.ones(1, { requires_grad = true })
    local first, second = optim.SGD({ a }, { lr = 1 }), optim.SGD({ b }, { lr = 1 })
    scaler:scale((a * 3 + b * math.huge):sum()):backward()
    scaler:unscale_(first)
    assert.are.equal(3, a.grad:item())
    assert.error_matches(function() scaler:unscale_(first) end, "unscaled already")
    scaler:step(first)
    scaler:step(second)
    assert.are.same({ -2, 1 }, { a:item(), b:item() })
    scaler:update()
    assert.are.equal(2, scaler:get_scale())
    scaler:unscale_(first)
  end)

  it("does nothing when it is off, and says what is wrong", function()
    local off = GradScaler { enabled = false }
    local p = core.ones(1, { requires_grad = true })
    local optimizer = optim.SGD({ p }, { lr = 1 })
    local loss = (p * math.huge):sum()
    assert.are.equal(loss, off:scale(loss))
    assert.are.equal(1, off:get_scale())
    assert.are.same({}, off:state_dict())
    loss:backward()
    off:step(optimizer)
    off:update()
    assert.are.equal(-math.huge, p:item())
    assert.error_matches(function() GradScaler { growth_factor = 1 } end, "above 1")
    assert.error_matches(function() GradScaler { init_scal = 1 } end, "did you mean 'init_scale'")
    assert.error_matches(function() GradScaler():scale(3) end, "expected a tensor or a list of them, got 3")
    assert.error_matches(function() GradScaler():step(optimizer, function() end) end,
      "closure cannot be used")
    assert.error_matches(function() GradScaler():load_state_dict {} end, "saved with scaling off")
    assert.error_matches(function() GradScaler():load_state_dict(4) end, "expected a table, got 4")
  end)
end)

describe("programs around a GradScaler", function()
  for number, program in ipairs(require "spec.reference.scaler_reference") do
    it(("do as PyTorch, number %d"):format(number), function()
      require("spec.support.scaler_programs").check(program)
    end)
  end

  it("may leave out a step after unscale_, and update counts what was found", function()
    local scaler, p = GradScaler { init_scale = 4 }, core.ones(1, { requires_grad = true })
    local optimizer = optim.SGD({ p }, { lr = 0.5 })
    scaler:scale((p * math.huge):sum()):backward()
    scaler:unscale_(optimizer)
    scaler:update()
    assert.are.equal(2, scaler:get_scale())
    optimizer:zero_grad()
    scaler:scale(p:sum()):backward()
    scaler:unscale_(optimizer)
    scaler:step(optimizer)
    assert.are.equal(0.5, p:item())
  end)

  it("that call it out of order are refused by name", function()
    local scaler, p = GradScaler { init_scale = 4 }, core.ones(1, { requires_grad = true })
    local optimizer = optim.SGD({ p }, { lr = 1 })
    assert.error_matches(function() scaler:update() end,
      "update: no gradients were unscaled and no optimizer")
    scaler:scale(p:sum()):backward()
    scaler:step(optimizer)
    assert.error_matches(function() scaler:step(optimizer) end, "this SGD has stepped already since")
    assert.error_matches(function() scaler:unscale_(optimizer) end, "has stepped with its gradients already")
  end)
end)

-- The CPU has no scaler of its own, so that one is put in place by hand.
describe("an Accelerator's gradients under a loss scale", function()
  local nn = require "accelerate.nn"
  after_each(function() accelerate.state.AcceleratorState._reset_state(true) end)

  local function prepared(scale, weights, make)
    local accelerator = accelerate.Accelerator()
    accelerator._scaler = scale and GradScaler { init_scale = scale, growth_interval = 3 } or nil
    local models, optimizers = {}, {}
    for i, weight in ipairs(weights) do
      models[i] = nn.Linear(1, 1)
      core.no_grad(function()
        models[i].weight:fill_(weight)
        models[i].bias:fill_(0)
      end)
      optimizers[i] = (make or optim.SGD)(models[i]:parameters(), { lr = 0.1 })
      models[i], optimizers[i] = accelerator:prepare(models[i], optimizers[i])
    end
    return accelerator, models, optimizers
  end

  local function adversaries(scale)
    local accelerator, models, optimizers = prepared(scale, { 1, 2 })
    local D, G, norms = models[1], models[2], {}
    for step = 1, 3 do
      local fake = G(core.ones(1, 1))
      optimizers[1]:zero_grad()
      accelerator:backward(D(fake:detach()):square():mean())
      accelerator:clip_grad_norm_(D:parameters(), 1)
      optimizers[1]:step()
      optimizers[2]:zero_grad()
      accelerator:backward(D(fake):square():mean() * 0.1)
      norms[step] = ("%.3f"):format(accelerator:clip_grad_norm_(G:parameters(), 1):item())
      optimizers[2]:step()
    end
    return norms, ("%.4f %.4f"):format(G.weight:item(), G.bias:item())
  end

  it("are unscaled for each optimizer, clipped in turn", function()
    for _, scale in ipairs { false, 1024 } do
      local norms, values = adversaries(scale)
      assert.are.same({ "0.458", "0.349", "0.258" }, norms) -- PyTorch, with its scaler and without
      assert.are.equal("1.9247 -0.0753", values)
    end
  end)

  -- Five passes; the second has a gradient of factor, and steps of a norm above 10 are left out.
  local function guarded(factor, clear)
    local accelerator, models, optimizers = prepared(1024, { 1 })
    local norms = {}
    for i = 1, 5 do
      clear(optimizers[1], models[1])
      accelerator:backward(models[1](core.ones(1, 1) * (i == 2 and factor or 1)):sum())
      norms[i] = accelerator:clip_grad_norm_(models[1]:parameters(), 1e9):item()
      if norms[i] < 10 then optimizers[1]:step() end
    end
    return norms, models[1].weight:item(), accelerator
  end

  it("are unscaled anew after a step that was left out, however they were cleared", function()
    for _, clear in ipairs {
      function(optimizer) optimizer:zero_grad() end,
      function(optimizer) optimizer:zero_grad(false) end,
      function(_, model) model:zero_grad() end,
      function(optimizer) optimizer.optimizer:zero_grad() end,
    } do
      local norms, weight = guarded(50, clear)
      for i, wanted in ipairs { 2 ^ 0.5, 2501 ^ 0.5, 2 ^ 0.5, 2 ^ 0.5, 2 ^ 0.5 } do
        assert.near(wanted, norms[i], 1e-4)
      end
      assert.near(0.6, weight, 1e-6)
    end
  end)

  it("shrink the scale when they overflow, also where the step is left out", function()
    local _, weight, accelerator = guarded(math.huge, function(optimizer) optimizer:zero_grad() end)
    assert.near(0.6, weight, 1e-6)
    assert.are.equal(1024, accelerator.scaler:get_scale()) -- halved in the 2nd pass; 3 clean steps double it
  end)

  it("have one scale when a step between two losses has changed it", function()
    local accelerator, models, optimizers = prepared(1024, { 1, 1 })
    accelerator:backward(models[2](core.ones(1, 1)):sum())
    accelerator:backward(models[1](core.ones(1, 1)):sum() * math.huge)
    optimizers[1]:step()
    assert.are.equal(512, accelerator.scaler:get_scale())
    accelerator:backward(models[2](core.ones(1, 1)):sum())
    assert.near(8 ^ 0.5, accelerator:clip_grad_norm_(models[2]:parameters(), 100):item(), 1e-5)
  end)

  it("can be applied twice", function()
    local accelerator, models, optimizers = prepared(1024, { 1 })
    accelerator:backward(models[1](core.ones(1, 1)):sum())
    optimizers[1]:step()
    accelerator:unscale_gradients() -- they are unscaled: nothing to do
    optimizers[1]:step()
    assert.near(0.8, models[1].weight:item(), 1e-6)
  end)

  -- One of a loop's calls, drawn by `pick`; the same calls with and without a scaler.
  local function act(accelerator, models, optimizers, pick)
    local i = 1 + pick(#models)
    local kind = pick(12)
    if kind < 5 then
      local loss = models[i](core.full({ 1, 1 }, 1 + pick(3))):square():sum()
      if pick(2) == 0 then loss = loss + models[1](models[#models](core.ones(1, 1))):sum() end
      accelerator:backward(loss)
    elseif kind < 7 then accelerator:clip_grad_norm_(models[i]:parameters(), 0.5 + pick(4))
    elseif kind < 8 then accelerator:clip_grad_value_(models[i]:parameters(), 0.5)
    elseif kind < 10 then optimizers[i]:step()
    elseif kind < 11 then optimizers[i]:zero_grad(pick(2) == 0)
    else models[i]:zero_grad() end
  end

  local function train(scale, seed)
    local accelerator, models, optimizers = prepared(scale, { 0.5, -0.25, 0.75 }, optim.Adam)
    local function pick(n) -- numbers below n, the same for each seed
      seed = (seed * 1103515245 + 12345) % 2 ^ 31
      return math.floor(seed / 2 ^ 16) % n
    end
    for _ = 1, 60 do act(accelerator, models, optimizers, pick) end
    local values = {}
    for i, model in ipairs(models) do
      values[2 * i - 1], values[2 * i] = model.weight:item(), model.bias:item()
    end
    return values
  end

  it("give what they give without one, in any order of calls", function()
    for seed = 1, 60 do
      local plain, scaled = train(nil, seed), train(2 ^ 12, seed)
      for k, value in ipairs(plain) do assert.near(value, scaled[k], 1e-4, "seed " .. seed) end
    end
  end)
end)

describe("fp16", function()
  -- The CPU's kernels behind a device's memory: what a GPU does, slowly.
  it("on a device scales the loss, skips steps that overflow, and lets the schedule wait for them", function()
    local fake = host.path:match("^(.*)/") .. "/libax_fake_device.so"
    if not fs.exists(fake) then return pending("needs " .. fake) end
    local status, _, err = host.run({ "-" }, {
      env = { ACCEL_CUDA_PLUGIN = fake, ACCELERATE_TORCH_DEVICE = "cuda" }, stdin = [[
      local accelerate, core = require "accelerate", require "accelerate.core"
      local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
      local handler = accelerate.GradScalerKwargs { init_scale = 2 ^ 20, growth_interval = 6 }
      local accelerator = accelerate.Accelerator { mixed_precision = "fp16", kwargs_handlers = { handler } }
      assert(accelerator.native_amp and accelerator.device == "cuda:0"
        and accelerator.scaler:get_scale() == 2 ^ 20)
      core.manual_seed(3)
      local model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
      local plain = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
      plain:load_state_dict(model:state_dict())
      local optimizer, by_hand = optim.SGD(model:parameters(), { lr = 0.1 }), optim.SGD(plain:parameters(),
        { lr = 0.1 })
      function optimizer:step()  -- in ops, which every backend has
        core.no_grad(function()
          for _, p in ipairs(self.param_groups[1].params) do p:add_(p.grad * -self.param_groups[1].lr) end
        end)
      end
      local scheduler = optim.lr_scheduler.ExponentialLR(optimizer, { gamma = 0.9 })
      local x, y = core.randn(8, 6) * 4, core.randint(0, 4, { 8 })
      local loader = data.DataLoader(data.TensorDataset(x, y), { batch_size = 8 })
      model, optimizer, loader, scheduler = accelerator:prepare(model, optimizer, loader, scheduler)
      local moves, skips, inner = 0, 0, nil
      for epoch = 1, 30 do
        for input, target in loader:iter() do
          local output = model(input)
          assert(output.dtype == "float32" and output.device == "cuda:0")
          inner = accelerator:autocast(function() return model[1].weight:matmul(input:t()) end).dtype
          accelerator:backward(nn.functional.cross_entropy(output, target))
          local scaled = model[1].weight.grad:abs():max():item()
          accelerator:unscale_gradients()
          local finite = scaled < math.huge
          if finite then
            local unscaled = model[1].weight.grad:abs():max():item()
            assert(math.abs(scaled / unscaled / accelerator.scaler:get_scale() - 1) < 1e-3)
            assert(not pcall(accelerator.unscale_gradients, accelerator, optimizer), "once for each step")
          end
          local before, scale = model[1].weight:detach():clone(), accelerator.scaler:get_scale()
          optimizer:step()
          local moved = (model[1].weight - before):abs():max():item() > 0
          assert(accelerator.optimizer_step_was_skipped == not moved
            and optimizer.step_was_skipped == not moved)
          assert(moved == finite)
          if moved then moves = moves + 1 else
            skips = skips + 1
            assert(accelerator.scaler:get_scale() == scale / 2)
          end
          scheduler:step()
          assert(scheduler.last_epoch == moves)
          optimizer:zero_grad()
          if moved then
            for _, group in ipairs(by_hand.param_groups) do group.lr = 0.1 * 0.9 ^ (moves - 1) end
            nn.functional.cross_entropy(plain(x), y):backward()
            by_hand:step()
            by_hand:zero_grad()
          end
        end
      end
      assert(inner == "float16" and skips >= 1 and moves >= 20, ("%s %d %d"):format(inner, skips, moves))
      for i, p in ipairs(plain:parameters()) do
        local worst = (p - model:parameters()[i]:to "cpu"):abs():max():item()
        assert(worst < 5e-3, worst)
      end
      assert(not pcall(accelerator.prepare, accelerator, optim.LOMO(nn.Linear(2, 2))), "LOMO cannot skip")
      print "done"
    ]] })
    assert.are.equal(0, status, err)
  end)

  it("skips a step on all ranks when one of them has overflown, and keeps what it says between real steps",
    function()
    ranks.ok(2, [[
      local nn, optim = require "accelerate.nn", require "accelerate.optim"
      local accelerator = accelerate.Accelerator { gradient_accumulation_steps = 2 }
      accelerator._scaler = accelerate.utils.GradScaler { init_scale = 16 }  -- the CPU has none of its own
      local model = nn.Linear(2, 1, { bias = false })
      local optimizer, scheduler = optim.SGD(model:parameters(), { lr = 1 })
      model, optimizer,
        scheduler = accelerator:prepare(model, optimizer,
        optim.lr_scheduler.LambdaLR(optimizer, function() return 1 end))
      local second = accelerator:prepare(optim.SGD({ core.ones(1, { requires_grad = true }) }, { lr = 1 }))
      local function step(factor)
        accelerator:accumulate(model, function()
          accelerator:backward(model(core.ones(1, 2)):sum() * factor)
          optimizer:step()
          scheduler:step()
          optimizer:zero_grad()
        end)
      end
      core.no_grad(function() model.weight:fill_(10) end)
      step(1) step(1)
      check(model.weight:totable()[1][1] == 9 and not accelerator.optimizer_step_was_skipped
        and scheduler.last_epoch == 2)
      step(1) step(rank == 1 and math.huge or 1)
      check(model.weight:totable()[1][1] == 9 and accelerator.optimizer_step_was_skipped
        and optimizer.step_was_skipped)
      check(scheduler.last_epoch == 2 and accelerator.scaler:get_scale() == 8)
      step(1)
      check(accelerator.optimizer_step_was_skipped, "between real steps it stays")
      second:zero_grad()
      check(accelerator.optimizer_step_was_skipped, "any optimizer counts")
      step(1)
      check(not accelerator.optimizer_step_was_skipped and model.weight:totable()[1][1] == 8
        and scheduler.last_epoch == 4)
      -- unscaled by hand, for one optimizer or for all
      accelerator.sync_gradients = true
      accelerator:backward(model(core.ones(1, 2)):sum() * 2)
      check(model.weight.grad:totable()[1][1] == 8)
      accelerator:unscale_gradients(optimizer)
      check(model.weight.grad:totable()[1][1] == 1)
      check(not pcall(accelerator.unscale_gradients, accelerator))
      check(accelerator:clip_grad_norm_(model:parameters(), 0.5):item() - 2 ^ 0.5 < 1e-6)
      accelerator:clip_grad_value_(model:parameters(), 0.25)
      optimizer:step()
      check(model.weight:totable()[1][1] == 7.75)
      for _, wrong in ipairs { 3, {}, { 3 }, "x" } do
        local ok, message = pcall(accelerator.unscale_gradients, accelerator, wrong)
        check(not ok and message:find("unscale_gradients", 1, true), tostring(message))
      end
    ]])
  end)
end)
