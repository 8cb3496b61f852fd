-- No order of calls crashes or hangs, on one rank or on several: it works, or raises where the
-- script stands.
local host = require "spec.support.host"
local processes = require "spec.support.processes"
local ranks = require "spec.support.ranks"

-- In the ranks: a model, an optimizer, a scheduler, a loader of seven samples; `fails(pattern, fn,
-- ...)`.
local PRELUDE = [[
local data, nn, optim, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.utils
local accelerator = accelerate.Accelerator()
core.manual_seed(3)
local model = nn.Linear(3, 1)
local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
local scheduler = optim.lr_scheduler.StepLR(optimizer, { step_size = 1 })
local loader = data.DataLoader(data.TensorDataset(core.ones(7, 3)), { batch_size = 2 })
local function loss() return model(core.full({ 2, 3 }, rank + 1)):mean() end
local function weights() return text(model.weight:reshape(-1)) end
local function agree()
  return #utils.gather_object { weights() } == ranks and utils.gather_object({ weights() })[1] == weights()
end
local function fails(pattern, fn, ...)
  local ok, message = pcall(fn, ...)
  check(not ok and tostring(message):find(pattern),
    ("expected '%s', got: %s"):format(pattern, tostring(message)))
  check(type(message) == "string" and message:find("script.lua:%d+: "), "no line: " .. tostring(message))
end
]]

local function on_one_and_two(body)
  for n = 1, 2 do ranks.ok(n, PRELUDE .. body, { seconds = 30 }) end
end

--- Status and stderr of two ranks that cannot both be right, and that neither waits longer than a
--- moment.
local function at_odds(body)
  local elapsed = processes.stopwatch()
  local status, _, err = ranks.run(2, PRELUDE .. body, { seconds = 30 })
  local seconds = elapsed()
  assert.are.equal(1, status, err)
  assert.is_true(seconds < 5, ("%g s"):format(seconds))
  return err
end

describe("orders of calls", function()
  it("backward before forward, twice, and of what has no history", function()
    on_one_and_two [[
      fails("backward: expected the loss as a tensor, got nil", accelerator.backward, accelerator, nil)
      fails("does not require a gradient and has no history", accelerator.backward, accelerator,
        core.tensor(1))
      model, optimizer = accelerator:prepare(model, optimizer)
      local value = loss()
      accelerator:backward(value)
      fails("released by an earlier backward pass", accelerator.backward, accelerator, value)
      optimizer:step()
      check(agree(), "the failed calls left ranks apart")
    ]]
  end)

  it("step and scheduler before any backward, and without prepare", function()
    on_one_and_two [[
      local before = weights()
      optimizer:step()
      scheduler:step()
      optimizer:zero_grad()
      check(weights() == before)
      model, optimizer, scheduler = accelerator:prepare(model, optimizer, scheduler)
      optimizer:step()
      optimizer:zero_grad()
      scheduler:step()
      check(weights() == before and agree())
      local other = nn.Linear(3, 1)  -- never prepared
      accelerator:backward(other(core.ones(1, 3)):sum())
      optim.SGD(other:parameters(), { lr = 0.1 }):step()
      check(accelerator:accumulate(other, function() return 5 end) == 5)
    ]]
  end)

  it("prepare twice, in parts, and schedulers before optimizers", function()
    on_one_and_two [[
      local s, l, m, o = accelerator:prepare(scheduler, loader, model, optimizer)
      local s2, l2, m2, o2 = accelerator:prepare(s, l, m, o)
      check(s == s2 and l == l2 and m == m2 and o == o2)
      check(accelerator:prepare(optimizer) == o and accelerator:prepare(loader) == l
        and accelerator:prepare(scheduler) == s)
      local before = o.param_groups[1].lr
      accelerator:backward(loss())
      o:step()
      s:step()
      check(agree() and o.param_groups[1].lr < before)
      local count = 0
      for _ in l2:iter() do count = count + 1 end
      check(count == l:len())
    ]]
  end)

  it("free_memory in the middle of a pass and a window", function()
    on_one_and_two [[
      accelerator.gradient_accumulation_steps = 2
      model, optimizer, loader, scheduler = accelerator:prepare(model, optimizer, loader, scheduler)
      for x in loader:iter() do
        accelerator:accumulate(model, function()
          accelerator:backward(model(x):mean())
          accelerator:free_memory()
          optimizer:step()
          scheduler:step()
          optimizer:zero_grad()
        end)
      end
      check(accelerator.step == 0)
      model, optimizer, loader, scheduler = accelerator:prepare(model, optimizer, loader, scheduler)
      for x in loader:iter() do
        accelerator:accumulate(model, function()
          accelerator:backward(model(x):mean())
          optimizer:step()
          optimizer:zero_grad()
        end)
      end
      model, optimizer, loader, scheduler = accelerator:free_memory(model, optimizer, loader, scheduler)
      check(model == nil and scheduler == nil)
      accelerator:wait_for_everyone()
    ]]
  end)

  it("a loader left by break, started again inside itself, and read on afterwards", function()
    on_one_and_two [[
      loader = accelerator:prepare(loader)
      local whole = loader:len()
      for x in loader:iter() do
        accelerator:gather_for_metrics(x)
        break
      end
      check(accelerator:gather_for_metrics(core.ones(2)):size(1) == 2 * ranks,
        "nothing is cut: it is not the last batch")
      local nexts, count = loader:iter(), 0
      nexts()
      for _ in loader:iter() do count = count + 1 end
      check(count == whole)
      for _ = 1, 2 * whole do nexts() end  -- the earlier pass: whatever it gives, it ends
      check(nexts() == nil)
      count = 0
      for _ in loader:iter() do count = count + 1 end
      check(count == whole)
    ]]
  end)

  it("gather and reduce in nested no_sync and accumulate", function()
    on_one_and_two [[
      accelerator.gradient_accumulation_steps = 4
      model, optimizer = accelerator:prepare(model, optimizer)
      accelerator:no_sync(model, function()
        accelerator:no_sync(model, function()
          local value = loss()
          check(accelerator:gather(value):numel() == ranks or ranks == 1)
          accelerator:backward(value)
          accelerator:reduce(value)
        end)
        accelerator:accumulate(model, function() accelerator:gather(loss()) end)
        check(accelerator:gather_for_metrics({ "x" })[ranks] == "x")
      end)
      accelerator.sync_gradients = true
      accelerator:backward(loss())  -- takes along what stayed local
      optimizer:step()
      check(agree())
    ]]
  end)

  it("errors inside every scope leave it closed", function()
    on_one_and_two [[
      model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
      local function stop() error("stopped") end
      fails("stopped", accelerator.accumulate, accelerator, model, stop)
      fails("stopped", accelerator.no_sync, accelerator, model, stop)
      fails("stopped", accelerator.trigger_sync_in_backward, accelerator, model, stop)
      fails("stopped", accelerator.autocast, accelerator, stop)
      fails("stopped", accelerator.split_between_processes, accelerator, { 1, 2 }, stop)
      fails("stopped", accelerator.main_process_first, accelerator, function() error("stopped") end)
      fails("stopped", function() for _ in loader:iter() do stop() end end)
      check(accelerator.sync_gradients)
      for _ in loader:iter() do
        accelerator:accumulate(model, function()
          accelerator:backward(loss())
          optimizer:step()
          optimizer:zero_grad()
        end)
      end
      check(agree())
    ]]
  end)

  it("clipping, flags and states before there is anything", function()
    on_one_and_two [[
      check(accelerator:clip_grad_norm_(model:parameters(), 1):item() == 0)
      accelerator:clip_grad_value_(model:parameters(), 1)
      accelerator:unscale_gradients()
      check(accelerator:prepare() == nil and accelerator.optimizer_step_was_skipped == false)
      accelerator:free_memory()
      accelerator:free_memory()
      check(not accelerator:check_trigger())
      accelerator:set_trigger()
      accelerator:set_trigger()
      check(accelerator:check_trigger() and not accelerator:check_trigger())
      fails("skip_first_batches: expected a loader", accelerator.skip_first_batches, accelerator, nil, 1)
      accelerate.Accelerator()
      accelerate.Accelerator().gradient_accumulation_steps = 3
      check(accelerator.gradient_accumulation_steps == 3)
    ]]
  end)

  it("end_training twice; collectives raise after it", function()
    on_one_and_two [[
      accelerator:prepare(model)
      accelerator:wait_for_everyone()
      accelerator:end_training()
      accelerator:end_training()
      if ranks > 1 then
        local ok, message = pcall(function() return accelerator:gather(core.ones(1)) end)
        check(not ok and message:find("script.lua:%d+: "), tostring(message))
      end
      check(model(core.ones(1, 3)):numel() == 1)
    ]]
  end)

  it("a gather after a rank has left names it", function()
    local err = at_odds [[
      accelerator:wait_for_everyone()
      if rank == 1 then return end
      accelerator:gather(core.ones(2))
    ]]
    assert.matches("all_gather: rank 1 has finished and will not take part", err)
    err = at_odds [[
      if rank == 0 then accelerator:end_training() else accelerator:gather(core.ones(2)) end
    ]]
    assert.matches("rank 0 has [^\n]*", err)
  end)

  it("collectives in a branch of the main process are a mismatch that names both lines", function()
    local first = ranks.prelude_lines + select(2, PRELUDE:gsub("\n", "\n"))
    local err = at_odds [[
      if accelerator.is_main_process then
        accelerator:gather(core.ones(2))
      end
      accelerator:wait_for_everyone()
    ]]
    assert.matches(("all_gather%%(float32, 2 elements%%) at [^\n]*script.lua:%d"):format(first + 2), err)
    assert.matches(("barrier%%(%%) at [^\n]*script.lua:%d"):format(first + 4), err)
    err = at_odds [[
      model, optimizer = accelerator:prepare(model, optimizer)
      if accelerator.is_main_process then accelerator:backward(loss()) end
      accelerator:check_trigger()
    ]]
    assert.matches("all_reduce%(float32", err)
    assert.matches("all_reduce%(int64, 1 element", err)
    err = at_odds [[
      accelerator:on_main_process(function() accelerator:reduce(core.ones(1)) end)()
      utils.gather_object { 1 }
    ]]
    assert.matches("all_reduce%(float32, 1 element", err)
  end)

  it("ranks that run different numbers of batches are an error, not a wait", function()
    local err = at_odds [[
      model, optimizer = accelerator:prepare(model, optimizer)
      for _ = 1, 2 + rank do
        accelerator:backward(loss())
        optimizer:step()
        optimizer:zero_grad()
      end
      accelerator:wait_for_everyone()
    ]]
    assert.matches("barrier%(%)", err)
  end)
end)

describe("random orders of calls", function()
  local function run(n, ...)
    local status, out, err = host.run({ "--num_processes", tostring(n), "spec/support/orders.lua", ... },
      { seconds = 60 })
    assert.are.equal(0, status, table.concat({ "orders.lua", ... }, " ") .. "\n" .. err)
    local worked, raised = out:match("(%d+) worked, (%d+) raised")
    return tonumber(worked), tonumber(raised)
  end

  it("work or raise with a line of the script, alone and on two ranks", function()
    for n = 1, 2 do
      for seed = 1, 3 do
        local worked, raised = run(n, tostring(seed), "15", "60")
        assert.is_true(worked > 500 and raised > 20, ("%d worked, %d raised"):format(worked, raised))
      end
    end
  end)

  it("that differ between ranks raise, and nobody waits", function()
    for seed = 1, 6 do
      local elapsed = processes.stopwatch()
      local _, raised = run(2, tostring(seed), "2", "50", "apart")
      assert.is_true(raised > 0)
      assert.is_true(elapsed() < 10)
    end
  end)
end)
