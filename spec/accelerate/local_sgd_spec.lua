-- Local SGD: ranks that train by themselves and average now and then.
local accelerate = require "accelerate"
local nn = require "accelerate.nn"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"

describe("LocalSGD", function()
  before_each(function() state.reset() end)
  after_each(function() state.reset() end)

  it("only calls on one process, and checks its arguments", function()
    local LocalSGD = accelerate.utils.LocalSGD
    assert.are.equal(LocalSGD, accelerate.local_sgd.LocalSGD)
    local accelerator = accelerate.Accelerator()
    local model = accelerator:prepare(nn.Linear(2, 2))
    local a, b = LocalSGD(accelerator, model, 4, function(local_sgd)
      assert.is_false(local_sgd.enabled)
      local_sgd:step()
      return local_sgd.num_steps, "b"
    end)
    assert.are.same({ 1, "b" }, { a, b })
    assert.are.equal(3, LocalSGD(accelerator, model, 4, { enabled = false }):run(function() return 3 end))
    assert.error_matches(function() LocalSGD(nil, model, 4) end,
      "argument 1 %(accelerator%) must be an Accelerator, got nil")
    assert.error_matches(function() LocalSGD(accelerator, 3, 4) end,
      "argument 2 %(model%) must be a module, got 3")
    assert.error_matches(function() LocalSGD(accelerator, model) end, "local_sgd_steps")
    assert.error_matches(function() LocalSGD(accelerator, model, 0) end, "local_sgd_steps must be at least 1")
    assert.error_matches(function() LocalSGD(accelerator, model, 2, { enable = true }) end,
      "did you mean 'enabled'")
    assert.error_matches(function() LocalSGD(accelerator, model, 2, {}, 5) end,
      "expected a function as the last argument, got 5")
  end)

  -- Each rank's steps are also done by hand, for all ranks, on every rank.
  it("averages the parameters after every so many steps and at the end, and nothing in between", function()
    for n = 2, 4 do
      for _, mode in ipairs { "no", "bf16" } do
        ranks.ok(n, ("local mode = %q\n"):format(mode) .. [[
          local nn, optim = require "accelerate.nn", require "accelerate.optim"
          local accelerator = accelerate.Accelerator { mixed_precision = mode }
          local function network()
            core.manual_seed(6)
            return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
          end
          local function batch(r, step) core.manual_seed(100 * r + step) return core.randn(4, 3) end
          local function of(r)
            local model = network()
            local context = mode == "bf16" and require("accelerate.precision.autocast").autocast
            if context then
              require("spec.support.layouts").give_slots(model:parameters())
            end
            return { model = model, optimizer = optim.SGD(model:parameters(), { lr = 0.2, momentum = 0.9 }),
              step = function(self, step)
              local function forward() return self.model(batch(r, step)) end
              local out = context and context({ dtype = "bfloat16" }, forward):float() or forward()
              out:square():mean():backward()
              self.optimizer:step()
              self.optimizer:zero_grad()
            end }
          end
          local all = {}
          for r = 0, ranks - 1 do all[r + 1] = of(r) end
          local function average()
            core.no_grad(function()
              for i = 1, #all[1].model:parameters() do
                local sum
                for r = 1, ranks do
                  local p = all[r].model:parameters()[i]
                  sum = sum and sum + p or p:clone()
                end
                for r = 1, ranks do all[r].model:parameters()[i]:copy_(sum / ranks) end
              end
            end)
          end
          local model = network()
          local optimizer
          model, optimizer = accelerator:prepare(model,
            optim.SGD(model:parameters(), { lr = 0.2, momentum = 0.9 }))
          local function same(what)
            for i, p in ipairs(model:parameters()) do
              local w = (p - all[rank + 1].model:parameters()[i]):abs():max():item()
              check(w < 1e-6, what .. ": parameter " .. i .. " differs by " .. w)
            end
          end
          local result = accelerate.LocalSGD(accelerator, model, 3, function(local_sgd)
            check(local_sgd.enabled)
            for step = 1, 8 do
              for r = 1, ranks do all[r]:step(step) end
              if step % 3 == 0 then average() end
              accelerator:backward(model(batch(rank, step)):square():mean())
              -- sees this rank's gradients, and leaves them so
              accelerator:clip_grad_norm_(model:parameters(), 1e9)
              optimizer:step()
              optimizer:zero_grad()
              local_sgd:step()
              same("step " .. step)
            end
            return local_sgd.num_steps
          end)
          check(result == 8)
          average()
          same("at the end")
          -- gradients are reduced again outside
          accelerator:backward(model(batch(rank, 50)):square():mean())
          local grads = accelerator:gather(model[1].weight.grad:reshape(1, -1))
          check((grads - grads:narrow(1, 1, 1)):abs():max():item() == 0)
          optimizer:zero_grad()
          -- off: as if it were not there
          accelerate.LocalSGD(accelerator, model, 3, { enabled = false }, function(local_sgd)
            accelerator:backward(model(batch(rank, 51)):square():mean())
            local grads = accelerator:gather(model[1].weight.grad:reshape(1, -1))
            check((grads - grads:narrow(1, 1, 1)):abs():max():item() == 0)
            optimizer:zero_grad()
            local_sgd:step()
          end)
          -- weighted losses are divided by this rank's weights
          accelerate.LocalSGD(accelerator, model, 3, function()
            accelerator:backward(model(batch(rank, 52)):square():sum(), { weight = 8 })
            local weighted = model[1].weight.grad:clone()
            optimizer:zero_grad()
            accelerator._window = nil
            accelerator:backward(model(batch(rank, 52)):square():mean())
            check((weighted - model[1].weight.grad):abs():max():item() < (mode == "no" and 1e-6 or 5e-3))
            optimizer:zero_grad()
          end)
          local ok, message = pcall(accelerate.LocalSGD, accelerator, model, 3, function() error "inside" end)
          check(not ok and message:find("inside", 1, true))
          accelerator:backward(model(batch(rank, 54)):square():mean())
          grads = accelerator:gather(model[1].weight.grad:reshape(1, -1))
          check((grads - grads:narrow(1, 1, 1)):abs():max():item() == 0,
            "the scope is left when the function raises")
          check(not pcall(accelerate.LocalSGD, accelerator, nn.Linear(2, 2), 3), "not prepared")
        ]])
      end
    end
  end)
end)
