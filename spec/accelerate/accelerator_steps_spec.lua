-- A prepared run: preparing, windows of accumulation, schedules, clipping, gathered metrics.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local data = require "accelerate.data"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local ranks = require "spec.support.ranks"
local reference = require "spec.reference.sharding_reference"
local state = require "accelerate.state"

local function parts(n)
  local model = nn.Linear(4, 3)
  local optimizer = optim.SGD(model:parameters(), { lr = 0.5 })
  local loader = data.DataLoader(data.TensorDataset(core.ones(n or 6, 4),
    core.zeros(n or 6, { dtype = "int64" })), { batch_size = 1 })
  local scheduler = optim.lr_scheduler.LambdaLR(optimizer, function(step) return 1 / (1 + step) end)
  return model, optimizer, loader, scheduler
end

describe("prepare", function()
  local accelerator
  before_each(function()
    state.reset()
    accelerator = accelerate.Accelerator()
  end)
  after_each(function() state.reset() end)

  it("returns objects in the order given, whatever that is", function()
    local model, optimizer, loader, scheduler = parts()
    local s, l, thing, o, m = accelerator:prepare(scheduler, loader, "thing", optimizer, model)
    assert.are.equal(model, m)
    assert.are.equal(optimizer, o.optimizer)
    assert.are.equal(loader, l.base_dataloader)
    assert.are.equal(scheduler, s.scheduler)
    assert.are.same({ o }, s.optimizers)
    assert.are.equal("thing", thing)
    assert.are.same({ m }, accelerator._models)
  end)

  it("gives the same object for one that was prepared, also by its first form", function()
    local model, optimizer, loader, scheduler = parts()
    local m, o, l, s = accelerator:prepare(model, optimizer, loader, scheduler)
    local s2, m2, o2, l2 = accelerator:prepare(s, m, o, l)
    assert.is_true(m == m2 and o == o2 and l == l2 and s == s2)
    local m3, o3, l3, s3 = accelerator:prepare(model, optimizer, loader, scheduler)
    assert.is_true(m == m3 and o == o3 and l == l3 and s == s3)
    assert.are.equal(1, #accelerator._models)
    assert.are.equal(1, #accelerator._optimizers)
    assert.are.equal(1, #accelerator._dataloaders)
    assert.are.equal(1, #accelerator._schedulers)
    local other = accelerate.Accelerator()
    assert.are.equal(m, other:prepare(m))
    assert.are.equal(1, #other._models)
  end)

  it("passes objects of other kinds through untouched", function()
    local table_, fn = {}, function() end
    local a, b, c, d, e = accelerator:prepare(table_, fn, 3, nil, "x")
    assert.is_true(a == table_ and b == fn and c == 3 and d == nil and e == "x")
  end)

  it("takes one placement for each object", function()
    local model, optimizer = parts()
    local m, o = accelerator:prepare(model, optimizer, { device_placement = { false, true } })
    assert.is_true(m == model and o.optimizer == optimizer)
    assert.error_matches(function()
      accelerator:prepare(model, optimizer, { device_placement = { true } })
    end, "1 entries for 2 objects")
  end)

  it("refuses the wrong kind in its single forms", function()
    local model, optimizer, loader, scheduler = parts()
    assert.error_matches(function() accelerator:prepare_model(optimizer) end,
      "prepare_model: expected a module, got a SGD")
    assert.error_matches(function() accelerator:prepare_optimizer(model) end, "expected an optimizer")
    assert.error_matches(function() accelerator:prepare_scheduler(loader) end, "expected a scheduler")
    assert.are.equal(scheduler, accelerator:prepare_scheduler(scheduler).scheduler)
    assert.are.equal(model, accelerator:prepare_model(model, { evaluation_mode = true }))
    assert.are.equal(0, #accelerator._models)
    assert.are.equal(model, accelerator:unwrap_model(model))
  end)

  it("keeps an optimizer's state", function()
    local model = nn.Linear(2, 2)
    local optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
    model(core.ones(1, 2)):sum():backward()
    optimizer:step()
    local buffer = optimizer.state[model.weight].momentum_buffer:totable()
    accelerator:prepare(model, optimizer)
    assert.are.same(buffer, optimizer.state[model.weight].momentum_buffer:totable())
    assert.are.same({ { 1, 1 }, { 1, 1 } }, model.weight.grad:totable())
  end)

  it("an accelerated optimizer passes everything else through", function()
    local model, optimizer = parts()
    local o = accelerator:prepare(optimizer)
    assert.are.equal(optimizer.param_groups, o.param_groups)
    o.param_groups[1].lr = 7
    assert.are.equal(7, optimizer.param_groups[1].lr)
    assert.are.equal(7, o:state_dict().param_groups[1].lr)
    o:load_state_dict(optimizer:state_dict())
    o:add_param_group { params = { nn.Parameter(core.ones(2)) } }
    assert.are.equal(2, #optimizer.param_groups)
    assert.is_false(o.step_was_skipped)
    o:train()
    o:eval()
    model(core.ones(1, 4)):sum():backward()
    o:zero_grad()
    assert.is_nil(model.weight.grad)
  end)

  it("free_memory forgets, and gives a nil for each argument", function()
    local model, optimizer = accelerator:prepare(parts())
    accelerator:accumulate(model, function() end)
    local n = select("#", accelerator:free_memory(model, optimizer))
    assert.are.equal(2, n)
    assert.are.equal(0, #accelerator._models + #accelerator._optimizers + #accelerator._dataloaders)
    assert.are.equal(0, accelerator.step)
  end)
end)

describe("accumulate", function()
  local accelerator
  before_each(function() state.reset() end)
  after_each(function() state.reset() end)

  local function record(n, steps, opts)
    opts = opts or {}
    opts.gradient_accumulation_steps = not opts.gradient_accumulation_plugin and steps or nil
    accelerator = accelerate.Accelerator(opts)
    local model, optimizer, loader, scheduler = accelerator:prepare(parts(n))
    local seen = {}
    for pass = 1, 2 do
      for x, y in loader:iter() do
        local result = accelerator:accumulate(model, function()
          accelerator:backward(nn.functional.cross_entropy(model(x), y))
          optimizer:step()
          scheduler:step()
          optimizer:zero_grad()
          seen[#seen + 1] = (accelerator.sync_gradients and "s" or ".") .. accelerator.step ..
            (model.weight.grad and "g" or "")
          return 11, 12
        end)
        assert.are.equal(11, result)
      end
    end
    return table.concat(seen, " "), scheduler
  end

  it("syncs on every n-th batch and on the last, and starts again in the next pass", function()
    local seen, scheduler = record(5, 2)
    assert.are.equal(".1g s2 .3g s4 s0 .1g s2 .3g s4 s0", seen)
    assert.are.equal(6, scheduler.last_epoch)
  end)

  it("with sync_with_dataloader = false counts on over passes", function()
    assert.are.equal(".1g s2 .3g s4 .5g s6 .7g s8 .9g s10", (record(5, 2, {
      gradient_accumulation_plugin = accelerate.GradientAccumulationPlugin { num_steps = 2,
        sync_with_dataloader = false },
    })))
  end)

  it("divides the loss by the number of steps, also in a short window", function()
    accelerator = accelerate.Accelerator { gradient_accumulation_steps = 4 }
    local model = accelerator:prepare(nn.Linear(2, 1, { bias = false }))
    accelerator:backward(model(core.ones(1, 2)):sum())
    assert.are.same({ { 0.25, 0.25 } }, model.weight.grad:totable())
  end)

  it("puts the state back when the function raises, with the script's line", function()
    accelerator = accelerate.Accelerator { gradient_accumulation_steps = 2 }
    local model = accelerator:prepare(nn.Linear(2, 1))
    local ok, message = pcall(accelerator.accumulate, accelerator, model, function() error("inside") end)
    assert.is_false(ok)
    assert.matches("accelerator_steps_spec%.lua:%d+: inside", message)
    assert.error_matches(function() accelerator:accumulate(model) end,
      "expected a function as the last argument, got a Linear")
    assert.error_matches(function() accelerator:accumulate(3, print) end,
      "argument 1 must be a module, got 3")
  end)

  it("refuses a loss that is no tensor, and options that it does not know", function()
    accelerator = accelerate.Accelerator()
    assert.error_matches(function() accelerator:backward(3) end, "expected the loss as a tensor, got 3")
    local loss = (core.ones(1, { requires_grad = true }) * 2):sum()
    assert.error_matches(function() accelerator:backward(loss, { wieght = 2 }) end, "did you mean 'weight'")
    assert.error_matches(function() accelerator:backward(loss, { learning_rate = 2 }) end, "LOMO")
    assert.error_matches(function() accelerator:backward(loss, { weight = -1 }) end, "at least 0")
  end)
end)

describe("an accelerated scheduler", function()
  it("moves as Accelerate's does", function()
    for n = 1, 3 do
      local cases = {}
      for _, case in ipairs(reference.cases("schedule")) do
        local count, split, steps, follows = unpack(case.arguments)
        if count == n then
          cases[#cases + 1] = ("{ %s, %d, %s, %q }"):format(tostring(split == 1), steps,
            tostring(follows == 1), case.fields[1])
        end
      end
      local _, err = ranks.ok(n, "local cases = {" .. table.concat(cases, ",") .. "}\n" .. [[
        local optim = require "accelerate.optim"
        for _, case in ipairs(cases) do
          local accelerator = accelerate.Accelerator { split_batches = case[1],
            step_scheduler_with_optimizer = case[3] }
          local p = core.ones(1, { requires_grad = true })
          local optimizer = optim.SGD({ p }, { lr = 1 })
          local scheduler
          optimizer, scheduler = accelerator:prepare(optimizer,
            optim.lr_scheduler.LambdaLR(optimizer, function() return 1 end))
          local seen = {}
          for batch = 1, 7 do
            accelerator.sync_gradients = batch % case[2] == 0 or batch == 7
            scheduler:step()
            seen[batch] = scheduler.last_epoch
          end
          check(table.concat(seen, " ") == case[4], table.concat(seen, " ") .. " instead of " .. case[4])
        end
      ]])
      local _, told = err:gsub("moves %d times at each optimizer step", "")
      assert.are.equal(n > 1 and 1 or 0, told)
    end
  end)

  it("does not move a one-cycle schedule past its end", function()
    ranks.ok(2, [[
      local optim = require "accelerate.optim"
      local accelerator = accelerate.Accelerator()
      local optimizer = accelerator:prepare(optim.SGD({ core.ones(1, { requires_grad = true }) }, { lr = 1 }))
      local inner = optim.lr_scheduler.LambdaLR(optimizer, function() return 1 end)
      inner.total_steps = 3
      local scheduler = accelerator:prepare(inner)
      for _ = 1, 4 do scheduler:step() end
      check(inner.last_epoch == 3, tostring(inner.last_epoch))
    ]])
  end)
end)

describe("clipping", function()
  after_each(function() state.reset() end)

  it("returns the norm before clipping, and limits values", function()
    state.reset()
    local accelerator = accelerate.Accelerator()
    local model = accelerator:prepare(nn.Linear(4, 1, { bias = false }))
    accelerator:backward(model(core.full({ 1, 4 }, 3)):sum())
    local norm = accelerator:clip_grad_norm_(model:parameters(), 1.0)
    assert.are.equal(0, norm:dim())
    assert.are.equal(6, norm:item())
    assert.is_true(math.abs(model.weight.grad:totable()[1][1] - 0.5) < 1e-5)
    accelerator:clip_grad_value_(model:parameters(), 0.25)
    assert.are.same({ { 0.25, 0.25, 0.25, 0.25 } }, model.weight.grad:totable())
    assert.are.equal(0.25,
      accelerator:clip_grad_norm_(model:parameters(), 10, { norm_type = math.huge }):item())
  end)
end)

describe("gather_for_metrics", function()
  after_each(function() state.reset() end)

  it("cuts nothing outside of a loader or before its last batch", function()
    state.reset()
    local accelerator = accelerate.Accelerator()
    local x = core.arange(4)
    assert.are.equal(x, accelerator:gather_for_metrics(x))
    local sizes = {}
    local loader = accelerator:prepare(data.DataLoader(data.TensorDataset(core.arange(5)),
      { batch_size = 2 }))
    for _ in loader:iter() do
      local got = accelerator:gather_for_metrics { core.arange(9), deep = { x } }
      sizes[#sizes + 1] = got[1]:numel() .. "/" .. got.deep[1]:numel()
    end
    assert.are.same({ "9/4", "9/4", "1/1" }, sizes)
    assert.are.same({ "a" }, accelerator:gather_for_metrics({ "a" }))
  end)
end)
