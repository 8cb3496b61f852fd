-- LOMO and AdaLOMO: optimizers that update inside the backward pass.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local near = require("spec.support.numbers").lists_near
local optim = require "accelerate.optim"
local ranks = require "spec.support.ranks"
local reference = require "spec.reference.lomo_reference"
local state = require "accelerate.state"

local function wave(shape, start)
  local t = core.empty(shape)
  local at, n = t:data_ptr(), t:numel()
  for i = 0, n - 1 do at[i] = 0.5 * math.sin(start + 0.7 * i) end
  return t
end

-- The network of gen_lomo_reference.py.
local function network()
  local model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
  core.no_grad(function()
    for i, p in ipairs(model:parameters()) do p:copy_(wave(p.shape, i)) end
  end)
  return model
end

local function loss_at(model, t)
  return (model(wave({ 4, 3 }, 10 + t)) - wave({ 4, 2 }, 20 + t)):square():mean()
end

local CASES = {
  lomo = { "LOMO", {}, 0.05 },
  lomo_decay = { "LOMO", { weight_decay = 0.1 }, 0.05 },
  lomo_value = { "LOMO", { clip_grad_value = 0.02 }, 0.5 },
  lomo_norm = { "LOMO", { clip_grad_norm = 0.1 }, 0.5 },
  adalomo = { "AdaLOMO", {}, 0.05 },
  adalomo_all = { "AdaLOMO", { weight_decay = 0.1, clip_threshold = 0.5, decay_rate = -0.6,
    eps = { 1e-8, 1e-2 }, clip_grad_value = 0.05 }, 0.1 },
  adalomo_norm = { "AdaLOMO", { clip_grad_norm = 0.1 }, 0.1 },
}

local function values_of(model)
  local values = {}
  for _, p in ipairs(model:parameters()) do
    for _, v in ipairs(p:detach():reshape(-1):totable()) do values[#values + 1] = v end
  end
  return values
end

describe("LOMO and AdaLOMO", function()
  before_each(function() state.reset() end)
  after_each(function() state.reset() end)

  it("follow their authors' trajectories", function()
    for name, case in pairs(CASES) do
      local model = network()
      local optimizer = optim[case[1]](model, case[2])
      local losses = {}
      for t = 0, 5 do
        local loss = loss_at(model, t)
        losses[t + 1] = loss:item()
        optimizer:fused_backward(loss, case[3])
        optimizer:step()
        for _, p in ipairs(model:parameters()) do assert.is_nil(p.grad) end
      end
      near(reference[name].losses, losses, 2e-6, name)
      near(reference[name].values, values_of(model), 2e-6, name)
    end
  end)

  it("update in accelerator:backward and in lomo_backward, and step does nothing more", function()
    for _, way in ipairs { "backward", "lomo_backward", "own rate" } do
      state.reset()
      local accelerator = accelerate.Accelerator()
      assert.is_false(accelerator.has_lomo_optimizer)
      local model = network()
      local optimizer
      model, optimizer = accelerator:prepare(model, optim.AdaLOMO(model, { lr = 0.05 }))
      assert.is_true(accelerator.has_lomo_optimizer)
      for t = 0, 5 do
        if way == "backward" then accelerator:backward(loss_at(model, t), { learning_rate = 0.05 })
        elseif way == "lomo_backward" then accelerator:lomo_backward(loss_at(model, t), 0.05)
        else accelerator:backward(loss_at(model, t)) end
        local before = values_of(model)
        optimizer:step()
        optimizer:zero_grad()
        near(before, values_of(model), 0, way)
      end
      near(reference.adalomo.values, values_of(model), 2e-6, way)
    end
  end)

  it("apply in step what a plain backward left", function()
    local model = network()
    local optimizer = optim.LOMO(model:parameters(), { lr = 0.05 })
    for t = 0, 5 do
      loss_at(model, t):backward()
      optimizer:step()
    end
    near(reference.lomo.values, values_of(model), 2e-6, "step")
  end)

  it("never hold all gradients at once", function()
    for _, name in ipairs { "LOMO", "AdaLOMO" } do
      for _, prepared in ipairs { false, true } do
        state.reset()
        local model, width = nn.Sequential(), 256
        for i = 1, 12 do model:append(nn.Linear(width, width, { bias = false })) end
        local optimizer = optim[name](model, { lr = 1e-4 })
        if prepared then model, optimizer = accelerate.Accelerator():prepare(model, optimizer) end
        local x, weight = core.randn(2, width), width * width * 4
        local function growth(run)
          run()
          collectgarbage() collectgarbage()
          local before = core.memory_stats().live_bytes
          core.reset_peak_memory_stats()
          run()
          return core.memory_stats().peak_bytes - before
        end
        -- AdaLOMO works with the gradient, its square and the update of one parameter at a time.
        local fused = growth(function() optimizer:fused_backward(model(x):square():mean()) end)
        assert.is_true(fused < (name == "LOMO" and 3 or 6) * weight,
          ("%s: %d bytes for gradients of %d each"):format(name, fused, weight))
        if not prepared then
          local plain = growth(function()
            model(x):square():mean():backward()
            model:zero_grad()
          end)
          assert.is_true(plain > 12 * weight, tostring(plain))
        end
      end
    end
  end)

  it("keep their state in a state dict", function()
    local model = network()
    local optimizer = optim.AdaLOMO(model, {})
    for t = 0, 2 do optimizer:fused_backward(loss_at(model, t), 0.05) end
    local saved = optimizer:state_dict()
    assert.are.same({ 5, 1 }, saved.state[0].exp_avg_sq_row.shape)
    assert.are.same({ 1, 3 }, saved.state[0].exp_avg_sq_col.shape)
    assert.are.same({ 5 }, saved.state[1].exp_avg_sq.shape)
    assert.are.equal(3, saved.state[3].step)
    local other = network()
    other:load_state_dict(model:state_dict())
    local second = optim.AdaLOMO(other, {})
    second:load_state_dict(saved)
    for t = 3, 5 do second:fused_backward(loss_at(other, t), 0.05) end
    near(reference.adalomo.values, values_of(other), 2e-6, "after loading")
    local plain = optim.LOMO(other, { weight_decay = 0.5 })
    plain:load_state_dict(optim.LOMO(other, { weight_decay = 0.25 }):state_dict())
    assert.are.equal(0.25, plain.param_groups[1].weight_decay)
  end)

  it("serve parameters that are tied, frozen for a while, or used twice, and bfloat16 forwards", function()
    for _, name in ipairs { "LOMO", "AdaLOMO" } do
      for _, mode in ipairs { "no", "bf16" } do
        state.reset()
        local accelerator = accelerate.Accelerator { mixed_precision = mode }
        local function tied()
          core.manual_seed(2)
          local a, b = nn.Linear(4, 4), nn.Linear(4, 4)
          b.weight = a.weight
          return nn.Sequential(a, nn.Tanh(), b, nn.Tanh(), nn.Linear(4, 4))
        end
        local model, plain = tied(), tied()
        local optimizer, by_hand = optim[name](model, { lr = 0.1 }), optim[name](plain, { lr = 0.1 })
        model[5].weight.requires_grad, plain[5].weight.requires_grad = false, false
        model, optimizer = accelerator:prepare(model, optimizer)
        for step = 1, 6 do
          if step == 3 then model[5].weight.requires_grad, plain[5].weight.requires_grad = true, true end
          core.manual_seed(step)
          local x = core.randn(3, 4)
          local before = model[5].weight:detach():clone()
          accelerator:backward(model(x):square():mean(), { learning_rate = 0.1 })
          optimizer:step()
          assert.are.equal(step < 3, (model[5].weight - before):abs():max():item() == 0)
          plain(x):square():mean():backward()
          by_hand:step()
          for _, p in ipairs(model:parameters()) do assert.is_nil(p.grad) end
          by_hand:zero_grad()
        end
        near(values_of(plain), values_of(model), mode == "no" and 1e-6 or 2e-2, name .. " " .. mode)
      end
    end
  end)

  it("say what is wrong", function()
    local accelerator = accelerate.Accelerator()
    local model = network()
    local loss = loss_at(model, 0)
    assert.error_matches(function() accelerator:backward(loss, { learning_rate = 0.1 }) end,
      "no LOMO or AdaLOMO optimizer was prepared")
    assert.error_matches(function() accelerator:lomo_backward(loss, 0.1) end,
      "no LOMO or AdaLOMO optimizer was given to prepare")
    accelerator:prepare(model, optim.LOMO(model))
    assert.error_matches(function() accelerator:lomo_backward(loss) end, "learning_rate is missing")
    assert.error_matches(function() accelerator:lomo_backward(loss, "1") end,
      "learning_rate must be a number")
    assert.error_matches(function() accelerator:lomo_backward(3, 1) end,
      "expected the loss as a tensor, got 3")
    assert.error_matches(function() accelerator:backward(loss, { weight = 3 }) end,
      "weight is for updates after backward")
    assert.error_matches(function() accelerator:backward(loss, { create_graph = true }) end, "create_graph")
    assert.error_matches(function() optim.LOMO(model, { clip_grad_norm = 0 }) end, "above 0")
    assert.error_matches(function() optim.LOMO(model, { clip = 0 }) end, "LOMO")
    assert.error_matches(function() optim.LOMO(3) end, "LOMO")
  end)

  it("give ranks what one rank has on the whole batch, whichever parameters their losses reach", function()
    for n = 2, 4 do
      ranks.ok(n, [[
        local nn, optim = require "accelerate.nn", require "accelerate.optim"
        local accelerator = accelerate.Accelerator()
        local Net = nn.class("Net")
        function Net:init()
          core.manual_seed(4)
          self.a, self.b, self.c, self.never, self.norm = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2),
            nn.Linear(6, 6), nn.BatchNorm1d(6)
        end
        -- rows of odd number take b, so that a rank may not reach it; same sizes, so that a mix-up
        -- would go unnoticed by sizes
        function Net:forward(x, first, last)
          local h = self.a(x):tanh()
          local sum
          for i = first, last do
            local row = h:narrow(1, i, 1)
            local out = self.c(i % 2 == 1 and self.b(row):tanh() or row):square():sum()
            sum = sum and sum + out or out
          end
          return sum / (last - first + 1)
        end
        core.manual_seed(1)
        local x = core.randn(ranks, 6)
        for _, name in ipairs { "LOMO", "AdaLOMO" } do
          for _, opts in ipairs { {}, { clip_grad_norm = 0.05 },
            { clip_grad_value = 0.01, weight_decay = 0.1 } } do
            local whole = Net()
            local alone = optim[name](whole, opts)
            local model, optimizer = Net()
            local mixed = optim[name](model, opts)
            model, optimizer = accelerator:prepare(model, mixed)
            for step = 1, 4 do
              alone:fused_backward(whole(x, 1, ranks), 0.05)
              accelerator:backward(model(x, rank + 1, rank + 1), { learning_rate = 0.05 })
              optimizer:step()
              model.norm(core.randn(3, 6) + rank)
            end
            local before, after = whole:parameters(), model:parameters()
            for i, p in ipairs(before) do
              local worst = (p - after[i]):abs():max():item()
              check(worst < 1e-6, name .. ": parameter " .. i .. " differs by " .. worst)
            end
            -- a plain backward and step does the same
            whole(x, 1, ranks):backward()
            alone:step()
            model(x, rank + 1, rank + 1):backward()
            optimizer:step()
            for i, p in ipairs(before) do
              check((p - after[i]):abs():max():item() < 1e-6, name .. ": plain " .. i)
            end
            accelerator:backward(model(x, rank + 1, rank + 1))
            local mean = accelerator:gather(model.norm.running_mean:reshape(1, -1))
            check((mean - mean:narrow(1, 1, 1)):abs():max():item() == 0, "rank 0's buffers")
            accelerator:free_memory()
          end
        end
      ]])
    end
  end)

  it("leave the parameters of other optimizers alone", function()
    ranks.ok(2, [[
      local nn, optim = require "accelerate.nn", require "accelerate.optim"
      local accelerator = accelerate.Accelerator()
      local model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
      local lomo, adam = optim.LOMO(model[1]:parameters()), optim.AdamW(model[2]:parameters(), { lr = 0.1 })
      model, lomo, adam = accelerator:prepare(model, lomo, adam)
      for step = 1, 3 do
        local before, later = model[1].weight:detach():clone(), model[2].weight:detach():clone()
        accelerator:backward(model(core.full({ 1, 4 }, rank + 1)):square():sum(), { learning_rate = 0.01 })
        check((model[1].weight - before):abs():max():item() > 0 and model[1].weight.grad == nil)
        check((model[2].weight - later):abs():max():item() == 0 and model[2].weight.grad ~= nil)
        local grads = accelerator:gather(model[2].weight.grad:reshape(1, -1))
        check((grads - grads:narrow(1, 1, 1)):abs():max():item() == 0, "reduced")
        adam:step() adam:zero_grad() lomo:step()
        check((model[2].weight - later):abs():max():item() > 0)
      end
      for _, p in ipairs(model:parameters()) do
        local all = accelerator:gather(p:detach():reshape(1, -1))
        check((all - all:narrow(1, 1, 1)):abs():max():item() == 0)
      end
    ]])
  end)
end)
