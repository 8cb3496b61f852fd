-- Ranks with different numbers of batches: accelerator:join_uneven_inputs.
local ranks = require "spec.support.ranks"

local SCRIPT = [[
  local nn, optim, data = accelerate.nn, accelerate.optim, accelerate.data
  local accelerator = accelerate.Accelerator(options)
  local function xs(n) return core.arange(n * 3, { dtype = "float32" }):view(n, 3) * 0.01 - 0.1 end
  local function ys(n) return core.arange(n, { dtype = "float32" }):view(n, 1) * 0.1 end
  local function make(kind)
    core.manual_seed(1)
    local model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return model, optim[kind or "SGD"](model:parameters(), { lr = 0.1 })
  end
  local function weights(model)
    local list = {}
    for _, p in ipairs(model:parameters()) do
      for _, v in ipairs(p:reshape(-1):totable()) do list[#list + 1] = v end
    end
    return list
  end
  local function close(a, b)
    local worst = 0
    for i = 1, #a do worst = math.max(worst, math.abs(a[i] - b[i])) end
    return worst
  end
  local function same_everywhere(model)
    local all = accelerate.utils.gather_object { table.concat(weights(model), " ") }
    for r = 2, ranks do check(all[r] == all[1], "the ranks' models differ") end
  end
]]

local function script(body, options)
  return (options and "local options = " .. options or "local options") .. "\n" .. SCRIPT .. body
end

describe("join_uneven_inputs", function()
  it("takes ranks without batches along in the others' reductions", function()
    for n = 2, 4 do
      ranks.ok(n, script [[
        -- 2 * ranks + 1 batches of 2: rank 0 has one more than the others
        local items = 2 * (2 * ranks + 1)
        local model, optimizer = make()
        local loader = data.DataLoader(data.TensorDataset(xs(items), ys(items)), { batch_size = 2 })
        model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
        local count = 0
        local a, b = accelerator:join_uneven_inputs({ model }, { even_batches = false }, function()
          check(loader.batch_sampler.even_batches == false and accelerator.even_batches == true)
          for x, y in loader:iter() do
            count = count + 1
            accelerator:backward(nn.functional.mse_loss(model(x), y))
            optimizer:step()
            optimizer:zero_grad()
          end
          return "a", nil
        end)
        check(a == "a" and b == nil)
        check(count == (rank == 0 and 3 or 2) and loader.batch_sampler.even_batches == true)
        same_everywhere(model)
        -- the same by hand: means over all ranks, those without a batch counting as zeros
        local own, plain = make()
        for round = 0, 2 do
          local total
          for r = 0, ranks - 1 do
            local at = (round * ranks + r) * 2
            if at < items then
              local part = nn.functional.mse_loss(own(xs(items):narrow(1, at + 1, 2)),
                ys(items):narrow(1, at + 1, 2)) / ranks
              total = total and total + part or part
            end
          end
          total:backward()
          plain:step()
          plain:zero_grad()
        end
        check(close(weights(model), weights(own)) < 1e-6, "differs from one rank: " ..
          close(weights(model), weights(own)))
      ]])
    end
  end)

  it("gives the numbers that PyTorch's Join gives", function()
    -- torch 2.15, two gloo processes: Linear(3, 1) with weight 0.1 and bias 0.2 in
    -- DistributedDataParallel, SGD(lr=0.1), inside Join([model]); rank 0 makes three steps and rank
    -- 1 two, on x = arange(6).view(2, 3) * 0.1 + rank + step and the loss model(x).pow(2).mean()
    ranks.ok(2, script [[
      local model = nn.Linear(3, 1)
      core.no_grad(function()
        model.weight:fill_(0.1)
        model.bias:fill_(0.2)
      end)
      local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
      model, optimizer = accelerator:prepare(model, optimizer)
      accelerator:join_uneven_inputs({ model }, { even_batches = false }, function()
        for step = 0, rank == 0 and 2 or 1 do
          accelerator:backward(model(core.arange(6, { dtype = "float32" }):view(2,
            3) * 0.1 + rank + step):pow(2):mean())
          optimizer:step()
          optimizer:zero_grad()
        end
      end)
      check(close(weights(model), { 0.025333, 0.01581, 0.006287, 0.104771 }) < 1e-6,
        table.concat(weights(model), " "))
    ]])
  end)

  it("leaves optimizers and schedulers alike on all ranks", function()
    ranks.ok(3, script([[
      local model, optimizer = make("AdamW")
      local loader = data.DataLoader(data.TensorDataset(xs(14), ys(14)), { batch_size = 2 })
      local scheduler = optim.lr_scheduler.ExponentialLR(optimizer, { gamma = 0.9 })
      model, optimizer, loader, scheduler = accelerator:prepare(model, optimizer, loader, scheduler)
      for _ = 1, 3 do
        accelerator:join_uneven_inputs(model, function()  -- the accelerator's own even_batches = false
          for x, y in loader:iter() do
            accelerator:accumulate(model, function()
              accelerator:backward(nn.functional.mse_loss(model(x), y))
              optimizer:step()
              scheduler:step()
              optimizer:zero_grad()
            end)
          end
        end)
        same_everywhere(model)
      end
      local states = accelerate.utils.gather_object {
        accelerate.utils.operations.serialize(optimizer:state_dict()),
        accelerate.utils.operations.serialize(scheduler:state_dict()) }
      for r = 1, ranks - 1 do check(states[2 * r + 1] == states[1] and states[2 * r + 2] == states[2]) end
      check(scheduler:state_dict().last_epoch == 3 * 3 * ranks, scheduler:state_dict().last_epoch)
    ]], "{ even_batches = false, gradient_accumulation_steps = 1 }"))
  end)

  it("works with accumulation, weights, buffers, and bfloat16", function()
    for _, options in ipairs { "{ gradient_accumulation_steps = 2 }", "{ mixed_precision = 'bf16' }" } do
      ranks.ok(2, script([[
        core.manual_seed(3)
        local model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        local optimizer = optim.AdamW(model:parameters(), { lr = 0.01 })
        local loader = data.DataLoader(data.TensorDataset(xs(22), ys(22)), { batch_size = 2 })
        model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
        for pass = 1, 2 do
          accelerator:join_uneven_inputs({ model }, { even_batches = false }, function()
            for x, y in loader:iter() do
              accelerator:accumulate(model, function()
                local loss = nn.functional.mse_loss(model(x), y, { reduction = "sum" })
                accelerator:backward(loss, pass == 2 and { weight = 2 } or nil)
                optimizer:step()
                optimizer:zero_grad()
              end)
            end
          end)
          same_everywhere(model)
          local buffers = {}
          for _, b in ipairs(model:buffers()) do buffers[#buffers + 1] = text(b:reshape(-1)) end
          local all = accelerate.utils.gather_object { table.concat(buffers, ";") }
          check(all[1] == all[2], "buffers differ")
        end
        model:eval()
        local out = core.no_grad(function() return model(xs(4)) end)
        local all = accelerate.utils.gather_object { text(out:reshape(-1)) }
        check(all[1] == all[2], "working copies differ")
      ]], options))
    end
  end)

  it("gives the same update for any split with weights", function()
    ranks.ok(2, script [[
      local model, optimizer = make()
      model, optimizer = accelerator:prepare(model, optimizer)
      local x, y = xs(6), ys(6)
      local sizes = rank == 0 and { 2, 3 } or { 1 }  -- rank 0: items 1-2, then 4-6; rank 1: item 3
      local from = rank == 0 and { 1, 4 } or { 3 }
      accelerator:join_uneven_inputs({ model }, { even_batches = false }, function()
        for i, size in ipairs(sizes) do
          local loss = nn.functional.mse_loss(model(x:narrow(1, from[i], size)), y:narrow(1, from[i], size),
            { reduction = "sum" })
          accelerator:backward(loss, { weight = size })
          optimizer:step()
          optimizer:zero_grad()
        end
      end)
      local own, plain = make()
      for _, part in ipairs { { 1, 3 }, { 4, 3 } } do
        (nn.functional.mse_loss(own(x:narrow(1, part[1], part[2])), y:narrow(1, part[1], part[2]))):backward()
        plain:step()
        plain:zero_grad()
      end
      check(close(weights(model), weights(own)) < 1e-6, close(weights(model), weights(own)))
      same_everywhere(model)
    ]])
  end)

  it("keeps gradients that a rank has not used yet, and takes several models", function()
    ranks.ok(2, script [[
      local one, first = make()
      local two, second = make()
      one, two, first, second = accelerator:prepare(one, two, first, second)
      accelerator:join_uneven_inputs({ one, two }, { even_batches = false }, function()
        for i = 1, rank == 0 and 3 or 1 do
          local model, optimizer = i % 2 == 1 and one or two, i % 2 == 1 and first or second
          accelerator:backward(model(xs(2)):sum())
          if not (rank == 1) then optimizer:step() optimizer:zero_grad() end
        end
      end)
      check((one:parameters()[1].grad ~= nil) == (rank == 1))
      check(two:parameters()[1].grad == nil)
    ]])
  end)

  it("is off when even_batches is true, and undoes what it overrode after an error", function()
    ranks.ok(2, script [[
      local model, optimizer = make()
      local loader = data.DataLoader(data.TensorDataset(xs(6), ys(6)), { batch_size = 2 })
      model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
      check(accelerator:join_uneven_inputs({ model }, { even_batches = true }, function()
        check(loader.batch_sampler.even_batches)
        return loader:len()
      end) == 2)
      check(accelerator:join_uneven_inputs({ model }, function() return 7 end) == 7)
      local ok, message = pcall(accelerator.join_uneven_inputs, accelerator, { model },
        { even_batches = false }, function() error "mine" end)
      check(not ok and message:find("mine", 1, true) and loader.batch_sampler.even_batches)
      -- and the next one works
      accelerator:join_uneven_inputs({ model }, { even_batches = false }, function() end)
    ]])
  end)

  it("warns of dispatched loaders, once, on the main process", function()
    local _, err = ranks.ok(2, script [[
      local model = accelerator:prepare((make()))
      accelerator:prepare(data.DataLoader({ iter = function() return function() end end },
        { batch_size = 1 }))
      accelerator:prepare(data.DataLoader(data.TensorDataset(xs(6)), { batch_size = 2 }))
      accelerator:join_uneven_inputs({ model }, { even_batches = false }, function() end)
    ]])
    local _, count = err:gsub("1 of the prepared ones is dispatched and left as it is", "")
    assert.are.equal(1, count, err)
  end)

  it("says what is wrong", function()
    ranks.ok(2, script [[
      local model, optimizer = make()
      local other = (make())
      local function fails(pattern, ...)
        local ok, message = pcall(accelerator.join_uneven_inputs, accelerator, ...)
        check(not ok and message:find(pattern, 1, true), message)
      end
      fails("entry 1 of the joinables must be a prepared model, got one that is not prepared", { model },
        function() end)
      fails("expected a list of prepared models, got 3", 3, function() end)
      fails("expected a function as the last argument, got nil", { model })
      fails("did you mean 'even_batches'", { model }, { even_batch = false }, function() end)
      model, other, optimizer = accelerator:prepare(model, other, optimizer)
      fails("not among the joinables", { model }, { even_batches = false },
        function() accelerator:backward(other(xs(1)):sum()) end)
      fails("inside another join_uneven_inputs", { model }, { even_batches = false }, function()
        accelerator:join_uneven_inputs({ model }, { even_batches = false }, function() end)
      end)
    ]])
  end)

  it("is an error, and no hang, with other collectives inside that not all ranks reach", function()
    for _, case in ipairs { { "accelerator:gather(core.ones(1))", "all_gather" },
      { "accelerator:wait_for_everyone()", "barrier" },
      { "accelerate.utils.gather_object({ 1 })", "gathers objects while this rank is done", "damaged" } } do
      local status, _, err = ranks.run(2, script([[
        local model = accelerator:prepare((make()))
        accelerator:join_uneven_inputs({ model }, { even_batches = false }, function()
          if rank == 0 then ]] .. case[1] .. [[ end
        end)
      ]]), { seconds = 20 })
      assert.are.equal(1, status, err)
      -- whichever rank is first to say so
      assert.truthy(err:find(case[2], 1, true) or case[3] and err:find(case[3], 1, true), err)
    end
  end)

  it("does nothing on one process", function()
    ranks.ok(1, script [[
      local model, optimizer = make()
      model, optimizer = accelerator:prepare(model, optimizer)
      check(select("#", accelerator:join_uneven_inputs({ model }, { even_batches = false },
        function() return 1, nil end)) == 2)
    ]])
  end)
end)
