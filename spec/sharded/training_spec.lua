-- Models whose values, gradients and optimizer states are cut over ranks train as whole ones do:
-- host/core/params/home.c, host/core/optim, lua/accelerate/parallel/sharded.
local programs = require "spec.support.sharded_programs"
local ranks = require "spec.support.ranks"

local worst, train = programs.worst, programs.numbers
local CPU, GATHERING = programs.CPU, programs.GATHERING

describe("sharded training", function()
  local STRATEGIES = { "ZeRO-1", "ZeRO-2", "ZeRO-3" }

  for _, model in ipairs { "gpt", "odd" } do
    for _, strategy in ipairs(STRATEGIES) do
      it(("gives a %s under %s on 2, 3 and 4 ranks the losses, norms and parameters of one rank")
        :format(model, strategy), function()
        local one = train(1, ("%q, 'DDP'"):format(model))
        for n = 2, 4 do
          local there = train(n, ("%q, %q"):format(model, strategy))
          assert.is_true(worst(one, there) <= 1e-5, ("%d ranks: %g"):format(n, worst(one, there)))
          if strategy == "ZeRO-3" then
            assert.are.equal(0, worst(there, train(n, ("%q, %q"):format(model, strategy), GATHERING)))
          end
        end
      end)
    end
  end

  it("gives the bits of replicas, but for the order in which a norm is summed up", function()
    for _, strategy in ipairs(STRATEGIES) do
      for _, model in ipairs { "gpt", "odd", "net" } do
        local plain = train(2,
          ("%q, 'DDP', { clip = false, optimizer = 'AdamW', options = {} }"):format(model))
        local there = train(2, ("%q, %q, { clip = false, optimizer = 'AdamW', options = {} }"):format(model,
          strategy))
        assert.are.equal(0, worst(plain, there), strategy .. " " .. model)
      end
    end
  end)

  it("accumulates into the parts, or keeps whole gradients until the window ends", function()
    local plain = train(2, "'gpt', 'DDP', { accumulate = 3 }")
    for _, opts in ipairs { "{ accumulate = 3 }", "{ accumulate = 3, whole_in_no_sync = true }" } do
      for _, strategy in ipairs { "ZeRO-2", "ZeRO-3" } do
        local there = train(2, ("'gpt', %q, %s"):format(strategy, opts))
        assert.is_true(worst(plain, there) <= 1e-5, ("%s %s: %g"):format(strategy, opts, worst(plain, there)))
      end
    end
  end)

  it("cuts over some ranks and has copies of the parts on others", function()
    local plain = train(4, "'gpt', 'DDP', { accumulate = 2 }")
    for _, strategy in ipairs { "HYBRID_SHARD", "HYBRID_SHARD_ZERO2" } do
      local there = train(4, ("'gpt', %q, { accumulate = 2, replicate = 2 }"):format(strategy))
      assert.is_true(worst(plain, there) <= 1e-5, ("%s: %g"):format(strategy, worst(plain, there)))
    end
  end)

  it("clips by value, steps with other optimizers, keeps values after forward, and does without units",
    function()
    for _, opts in ipairs { "{ value = 0.01 }", "{ optimizer = 'Adagrad', options = { lr = 0.01 } }",
      "{ optimizer = 'Lion', options = { lr = 0.001 } }", "{ reshard = false }", "{ units = false }" } do
      local plain = train(2, ("'odd', 'DDP', %s"):format(opts))
      local there = train(2, ("'odd', 'ZeRO-3', %s"):format(opts))
      assert.is_true(worst(plain, there) <= 1e-5, ("%s: %g"):format(opts, worst(plain, there)))
    end
  end)

  it("trains in bfloat16 as replicas do", function()
    local plain = train(2, "'gpt', 'DDP', { precision = 'bf16' }")
    local there = train(2, "'gpt', 'ZeRO-3', { precision = 'bf16' }")
    assert.is_true(worst(plain, there) <= 1e-2, ("%g"):format(worst(plain, there)))
  end)

  it("gives the same bits twice", function()
    local call = "'gpt', 'ZeRO-3', { accumulate = 2 }"
    assert.are.equal(0, worst(train(3, call), train(3, call)))
  end)

  -- Edits and freezing between steps; no difference from replicas.
  local EDITED = [[
    local function run(plan)
      state.reset()
      local accelerator = accelerate.Accelerator { cpu = true }
      accelerator._plan = plan_of(plan, {})
      core.manual_seed(7)
      local model = nn.Sequential(nn.Linear(10, 21), nn.Tanh(), nn.Linear(21, 21), nn.Linear(21, 5))
      for _, p in ipairs(model[3]:parameters()) do p.requires_grad = false end
      local optimizer = optim.AdamW(model:parameters(), { lr = 0.01 })
      model, optimizer = accelerator:prepare(model, optimizer)
      core.manual_seed(5)
      local x = core.randn(12, 10):narrow(1, rank * 12 / ranks + 1, 12 / ranks)
      local function step()
        accelerator:backward(model(x):square():mean())
        optimizer:step()
        optimizer:zero_grad(false)
      end
      step()
      core.no_grad(function()
        model[1].weight:mul_(0.5)
        model[1].weight:add_(core.ones(21, 10), { alpha = 0.1 })
        model[4].bias:fill_(0.25)
        model[4].weight:copy_(core.ones(5, 21))
        model[1].bias:uniform_(-1, 1)
        model[4].weight:clamp_(0.2, 0.9)
      end)
      step()
      for _, p in ipairs(model[3]:parameters()) do p.requires_grad = true end
      step() step()
      accelerate.utils.summon_full_params(model, function()
        core.no_grad(function() for _, p in ipairs(model:parameters()) do p:narrow(1, 1, 2):mul_(2) end end)
      end)
      if plan ~= "DDP" then
        accelerate.utils.summon_full_params(model, { writeback = false }, function()
          core.no_grad(function() for _, p in ipairs(model:parameters()) do p:mul_(100) end end)
        end)
      end
      step()
      local all = {}
      accelerate.utils.summon_full_params(model, function()
        for _, p in ipairs(model:parameters()) do
          for _, v in ipairs(p:detach():reshape(-1):totable()) do all[#all + 1] = v end
        end
      end)
      return all, model
    end
    local a, b, model = run "DDP", run "ZeRO-3"
    for i = 1, #a do check(a[i] == b[i], ("element %d: %g beside %g"):format(i, a[i], b[i])) end
    if rank == 0 then print "edited" end
  ]]

  it("takes elementwise edits, draws and copies into its parts, and edits of a whole copy", function()
    for n = 2, 3 do
      for _, opts in ipairs { CPU, GATHERING } do
        assert.matches("edited", ranks.ok(n, programs.TRAIN .. EDITED, opts))
      end
    end
  end)

  it("refuses edits that parts cannot take, by name", function()
    local out = ranks.ok(2, programs.TRAIN .. [[
      local _, model = train("gpt", "ZeRO-3", { steps = 1 })
      local ok, err = pcall(core.no_grad, function() model.h[1].up.weight:narrow(1, 1, 2):mul_(2) end)
      assert(not ok and tostring(err):find("h.0.up.weight", 1, true)
        and tostring(err):find("summon_full_params", 1, true), err)
      ok, err = pcall(core.no_grad, function() model.h[1].up.weight:add_(core.ones(16)) end)
      assert(not ok and tostring(err):find("[32, 16]", 1, true), err)
      if rank == 0 then print "refused" end
    ]], CPU)
    assert.matches("refused", out)
  end)

  it("lets ranks of one machine run different numbers of forward passes, over one copy", function()
    local out = ranks.ok(3, programs.TRAIN .. [[
      local _, model, optimizer, accelerator = train("gpt", "ZeRO-3", { steps = 2, cpu = true })
      local x = core.randint(0, 19, { 2, 6 })
      for round = 1, 3 do
        for _ = 1, rank * 3 do core.no_grad(function() model(x) end) end -- evaluation
        accelerator:backward(F.cross_entropy(model(x):reshape(-1, 19), x:reshape(-1)))
        if rank == 1 then core.no_grad(function() model(x) end) end
        optimizer:step()
        optimizer:zero_grad()
      end
      local sums = accelerate.utils.gather(model.h[1].up.weight:detach():double():sum())
      check(sums:eq(sums[1]):all():item(), tostring(sums))
      if rank == 0 then print "apart" end
    ]], CPU)
    assert.matches("apart", out)
  end)

  it("refuses to train inside summon_full_params", function()
    local out = ranks.ok(2, programs.TRAIN .. [[
      local _, model, optimizer, accelerator = train("gpt", "ZeRO-3", { steps = 1 })
      local x = core.randint(0, 19, { 2, 6 })
      accelerate.utils.summon_full_params(model, function()
        local loss = F.cross_entropy(model(x):reshape(-1, 19), x:reshape(-1))
        for what, fn in pairs { backward = function() accelerator:backward(loss) end,
          step = function() optimizer:step() end } do
          local ok, err = pcall(fn)
          assert(not ok and tostring(err):find(what .. ": the model's values are a copy", 1, true), err)
        end
      end)
      if rank == 0 then print "refused" end
    ]], CPU)
    assert.matches("refused", out)
  end)

  it("refuses what needs whole models on each rank, by name", function()
    local out = ranks.ok(2, programs.TRAIN .. [[
      local _, model, optimizer, accelerator = train("gpt", "ZeRO-3", { steps = 1 })
      local function refused(what, fn, ...)
        local ok, err = pcall(fn, ...)
        assert(not ok and tostring(err):find("ZeRO-3", 1, true), what .. ": " .. tostring(err))
      end
      refused("LocalSGD", accelerate.utils.LocalSGD, accelerator, model, 2)
      local uneven = { even_batches = false }
      refused("uneven inputs", accelerator.join_uneven_inputs, accelerator, { model }, uneven,
        print)
      refused("LOMO", accelerator.prepare, accelerator, optim.LOMO(model, { lr = 0.1 }))
      refused("LBFGS", accelerator.prepare, accelerator, optim.LBFGS(model:parameters()))
      local loss = model(core.randint(0, 19, { 2, 6 })):sum()
      refused("create_graph", accelerator.backward, accelerator, loss, { create_graph = true })
      for name, value in pairs { comm_hook = "fp16", static_graph = true } do
        state.reset()
        local other = accelerate.Accelerator { cpu = true,
          kwargs_handlers = { accelerate.DistributedDataParallelKwargs { [name] = value } } }
        other._plan = plan_of("ZeRO-3", {})
        refused(name, other.prepare, other, (models.gpt()))
      end
      if rank == 0 then print "refused" end
    ]], CPU)
    assert.matches("refused", out)
  end)

  it("names a parameter that is read where it is not whole", function()
    local out = ranks.ok(2, programs.TRAIN .. [[
      local _, model = train("gpt", "ZeRO-3", { steps = 1 })
      local ok, err = pcall(function() return model.h[2].up.weight:sum() end)
      local what = "h.1.up.weight of unit h.1 (Block) is cut over 2 ranks"
      assert(not ok and tostring(err):find(what, 1, true), err)
      assert(model.h[2].up.weight.shape[1] == 32 and model.tokens.weight.shape[1] == 19)
      if rank == 0 then print "named" end
    ]], GATHERING)
    assert.matches("named", out)
  end)

  it("keeps 1/n of what is cut on each rank", function()
    local out = ranks.ok(4, programs.TRAIN .. [[
      local wide = nn.class "Wide"
      function wide:init()
        self.h = nn.ModuleList {}
        for _ = 1, 8 do self.h:append(nn.Linear(256, 256)) end
      end
      function wide:forward(x) for _, l in ipairs(self.h) do x = F.relu(l(x)) end return x end
      function models.wide()
        return wide(), core.randn(BATCH, 256), function(m, x) return m(x):square():mean() end
      end
      train("wide", "ZeRO-3", { steps = 2 })
      collectgarbage() collectgarbage()
      local psi = 8 * (256 * 256 + 256) * 4
      local live = core.memory_stats().live_bytes
      -- values, gradients and two states
      assert(live < 4 * psi / 4 * 1.1 + 300000, ("%d bytes for %d"):format(live, psi))
      if rank == 0 then print "kept" end
    ]], CPU)
    assert.matches("kept", out)
  end)

  it("exchanges in one order on all ranks, whenever each of them collects garbage", function()
    local out = ranks.ok(2, programs.TRAIN .. [[
      local _, model, optimizer, accelerator = train("gpt", "ZeRO-3", { steps = 1 })
      local x = core.randint(0, 19, { 4, 6 })
      for step = 1, 4 do
        local kept = model(x):sum():item() -- a graph that no backward pass goes through
        if rank == step % 2 then collectgarbage() end
        accelerator:backward(model(x):square():mean())
        optimizer:step()
        optimizer:zero_grad()
      end
      if rank == 0 then print "together" end
    ]], GATHERING)
    assert.are.equal("together\n", out)
  end)

  it("gives a hook the whole gradient where a part that is computed again uses the parameter, too", function()
    local out = ranks.ok(2, programs.TRAIN .. [[
      local function seen()
        core.manual_seed(1)
        local layer, x, sums = nn.Linear(4, 4), core.ones(2, 4), {}
        layer.weight:register_hook(function(g) sums[#sums + 1] = g:sum():item() end)
        nn.utils.checkpoint(layer, layer(layer(x))):sum():backward()
        return #sums .. ": " .. table.concat(sums, " ")
      end
      local before = seen()
      train("gpt", "ZeRO-3", { steps = 1 })
      if rank == 0 then print(before == seen(), (before:match "^%d")) end
    ]], GATHERING)
    assert.are.equal("true\t2\n", out)
  end)

  it("gathers the units that find no memory for all ranks", function()
    local out = ranks.ok(2, programs.TRAIN .. [[
      local ffi = require "ffi"
      ffi.cdef "typedef struct { unsigned long soft, hard; } limits; int setrlimit(int, const limits *);"
      local Uneven = nn.class "Uneven"
      function Uneven:init()
        self.h = nn.ModuleList { nn.Linear(16, 4), nn.Linear(4, 100), nn.Linear(100, 100) }
      end
      function Uneven:forward(x) for _, layer in ipairs(self.h) do x = layer(x) end return x end
      function models.uneven()
        return Uneven(), core.randn(BATCH, 16), function(m, x) return m(x):square():mean() end
      end
      local function trained() return table.concat((train("uneven", "ZeRO-3", { steps = 2 })), " ") end
      local there = trained()
      assert(ffi.C.setrlimit(1, ffi.new("limits", 20000, 1e9)) == 0)  -- bytes of a file
      assert(trained() == there)
      if rank == 0 then print "gathered" end
    ]], CPU)
    assert.matches("gathered", out)
  end)

  it("takes states from before prepare, the optimizer's own state dict and whole ones", function()
    ranks.ok(3, [[
      local nn, optim = accelerate.nn, accelerate.optim
      local plans = require "accelerate.parallel.plan"
      local parallel = require "accelerate.parallel"
      local function copied(dict)
        for _, kept in pairs(dict.state) do
          for name, v in pairs(kept) do kept[name] = core.is_tensor(v) and v:clone() or v end
        end
        return dict
      end
      local function run(how, plan, anew)
        accelerate.state.reset()
        core.manual_seed(3)
        local accelerator = accelerate.Accelerator { cpu = true }
        accelerator._plan = plan and plans.new(plan, { shard = ranks }, ranks) or nil
        local model = nn.Sequential(nn.Linear(7, 13, { bias = false }), nn.Linear(13, 5, { bias = false }))
        local optimizer, x = optim[how](model:parameters(), { lr = 0.01 }), core.randn(6, 7)
        for _ = 1, 2 do
          model(x):square():mean():backward()
          optimizer:step()
          optimizer:zero_grad()
        end
        local whole = copied(optimizer:state_dict())
        if anew then optimizer = optim[how](model:parameters(), { lr = 0.01 }) end
        model, optimizer = accelerator:prepare(model, optimizer)
        if anew then optimizer:load_state_dict(whole) end
        for step = 1, 3 do
          accelerator:backward(model(x):square():mean())
          optimizer:step()
          optimizer:zero_grad()
          if step == 2 then optimizer:load_state_dict(copied(optimizer:state_dict())) end
        end
        return parallel.summon(model, false, nil, function()
          local list = {}
          for i, p in ipairs(model:parameters()) do list[i] = p:detach():clone() end
          return list
        end)
      end
      for _, how in ipairs { "AdamW", "ASGD", "Muon", "Adafactor" } do
        local plain = run(how)
        for _, plan in ipairs { "ZeRO-1", "ZeRO-3" } do
          for _, anew in ipairs { false, true } do
            for i, p in ipairs(run(how, plan, anew)) do
              check((p - plain[i]):abs():max():item() <= 1e-6, ("%s, %s, parameter %d"):format(how, plan, i))
            end
          end
        end
      end
    ]], CPU)
  end)

  it("refuses a state dict of another division, and says what it expected", function()
    local status, _, err = ranks.run(2, [[
      local nn, optim = accelerate.nn, accelerate.optim
      local plans = require "accelerate.parallel.plan"
      local accelerator = accelerate.Accelerator { cpu = true }
      accelerator._plan = plans.new("ZeRO-3", { shard = ranks }, ranks)
      local model = nn.Linear(64, 2, { bias = false })
      local optimizer = optim.AdamW(model:parameters())
      model, optimizer = accelerator:prepare(model, optimizer)
      accelerator:backward(model(core.ones(1, 64)):sum())
      optimizer:step()
      local dict = optimizer:state_dict()
      dict.state[0].exp_avg = core.zeros(21)
      optimizer:load_state_dict(dict)
    ]], CPU)
    assert.are.equal(1, status)
    assert.is_truthy(err:find("exp_avg of parameter 0 has shape [21], the parameter has [2, 64], and " ..
      "this rank " ..
      "64 elements of it", 1, true), err)
  end)
end)
