-- Accumulation, synchronisation and clipping beyond the plain case (accelerator_steps_spec and
-- parallel_spec have that).
local accelerate = require "accelerate"
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"

describe("accumulate over several models", function()
  it("holds back the gradients of all that are named, and of no others", function()
    for n = 2, 4 do
      ranks.ok(n, [[
        local nn, optim, state =
          require "accelerate.nn", require "accelerate.optim", require "accelerate.state"
        local mean = (ranks + 1) / 2
        local function input() return core.full({ 1, 2 }, rank + 1) end
        local function first(model) return model.weight.grad:totable()[1][1] end
        local function models(accelerator)
          local function one() return nn.Linear(2, 2, { bias = false }) end
          return accelerator:prepare(one(), one(), one())
        end
        local accelerator = accelerate.Accelerator { gradient_accumulation_steps = 2 }
        local a, b, c = models(accelerator)
        local function pass()
          accelerator:backward(a(input()):sum() + b(input()):sum() + c(input()):sum())
          return "x", accelerator.sync_gradients
        end
        local x, synced = accelerator:accumulate(a, b, pass)
        check(x == "x" and synced == false and accelerator.step == 1)
        check(first(a) == (rank + 1) / 2 and first(b) == (rank + 1) / 2, "named ones wait")
        check(first(c) == mean / 2, "the other one does not")
        x, synced = accelerator:accumulate(a, b, pass)
        check(synced == true and accelerator.step == 2)
        check(first(a) == mean and first(b) == mean and first(c) == mean)
        -- an error inside leaves no scope open
        a:zero_grad() b:zero_grad() c:zero_grad()
        check(not pcall(accelerator.accumulate, accelerator, a, b, function() error "inside" end))
        accelerator:accumulate(a, b, pass)
        check(first(a) == mean / 2)
        -- sync_each_batch: reduced in every batch, applied in the last
        state.reset()
        accelerator = accelerate.Accelerator { gradient_accumulation_plugin =
          accelerate.GradientAccumulationPlugin { num_steps = 2, sync_each_batch = true } }
        a, b, c = models(accelerator)
        accelerator:accumulate(a, b, pass)
        check(not accelerator.sync_gradients and first(a) == mean / 2 and first(b) == mean / 2)
        accelerator:accumulate(a, b, pass)
        check(accelerator.sync_gradients and math.abs(first(a) - mean) < 1e-6)
      ]])
    end
  end)

  it("no_sync nests, takes several models or all, and trigger_sync_in_backward reduces what came before",
    function()
    ranks.ok(3, [[
      local nn = require "accelerate.nn"
      local accelerator = accelerate.Accelerator()
      local function one() return nn.Linear(2, 2, { bias = false }) end
      local a, b = accelerator:prepare(one(), one())
      local function input() return core.full({ 1, 2 }, rank + 1) end
      local function first(model) return model.weight.grad:totable()[1][1] end
      local function pass() accelerator:backward(a(input()):sum() + b(input()):sum()) end
      accelerator:no_sync(function() pass() end)
      check(first(a) == rank + 1 and first(b) == rank + 1, "all")
      accelerator:no_sync(a, function() accelerator:no_sync(a, b, pass) pass() end)
      check(first(a) == 3 * (rank + 1), "a waits in both scopes")
      check(math.abs(first(b) - 3 * 2) < 1e-5, "b in the inner one only")
      a:zero_grad() b:zero_grad()
      -- two forwards and backwards without reduction, then one that takes them along; flags are put
      -- back
      accelerator:no_sync(a, function()
        pass() pass()
        check(first(a) == 2 * (rank + 1))
        local result = accelerator:trigger_sync_in_backward(a, function() pass() return 7 end)
        check(result == 7 and math.abs(first(a) - 6) < 1e-5)
        a:zero_grad()
        pass()
        check(first(a) == rank + 1, "not reduced any more")
      end)
      a:zero_grad()
      local plain = one()
      check(accelerator:no_sync(plain, function() return 5 end) == 5,
        "a model that was not prepared has no such notion")
      check(accelerator:trigger_sync_in_backward(plain, function() return 6 end) == 6)
      for _, call in ipairs { "no_sync", "trigger_sync_in_backward", "accumulate" } do
        local ok, message = pcall(accelerator[call], accelerator, a)
        check(not ok and message:find(call .. ": expected a function as the last argument", 1, true),
          tostring(message))
        ok, message = pcall(accelerator[call], accelerator, 3, function() end)
        check(not ok and message:find(call .. ": argument 1 must be a module, got 3", 1, true),
          tostring(message))
      end
    ]])
  end)
end)

describe("a step with a closure", function()
  it("reduces what the closure computes, by whichever backward", function()
    ranks.ok(3, [[
      local nn, optim = require "accelerate.nn", require "accelerate.optim"
      local accelerator = accelerate.Accelerator()
      for _, way in ipairs { "loss:backward", "accelerator:backward" } do
        local model = nn.Linear(2, 1, { bias = false })
        local optimizer
        model, optimizer = accelerator:prepare(model, optim.SGD(model:parameters(), { lr = 1 }))
        local before = model.weight:detach():clone()
        local result = optimizer:step(function()
          optimizer:zero_grad()
          local loss = model(core.full({ 1, 2 }, rank + 1)):sum()
          if way == "loss:backward" then loss:backward() else accelerator:backward(loss) end
          return loss
        end)
        check(core.is_tensor(result))
        check((before - model.weight - 2):abs():max():item() < 1e-6, way)
        local ok, message = pcall(optimizer.step, optimizer, 3)
        check(not ok and message:find("closure", 1, true), tostring(message))
      end
    ]])
  end)
end)

describe("the order of a shuffled loader", function()
  it("comes from its own generator, so that sharing it leaves the ranks' augmentation alone", function()
    ranks.ok(3, [[
      local data = require "accelerate.data"
      local accelerator = accelerate.Accelerator()
      core.manual_seed(100 + rank)  -- each rank augments in its own way
      local loader = accelerator:prepare(data.DataLoader(data.TensorDataset(core.arange(12)),
        { batch_size = 2, shuffle = true }))
      for pass = 1, 2 do
        local mine = {}
        for x in loader:iter() do
          mine[#mine + 1] = x
          local noise = accelerator:gather(core.randn(1))
          check((noise - noise[1]):abs():max():item() > 0, "ranks draw different numbers")
        end
        local seen = accelerator:gather(core.cat(mine)):totable()
        table.sort(seen)
        for i = 1, 12 do check(seen[i] == i - 1, "but share one order") end
      end
    ]])
  end)
end)

describe("triggers", function()
  it("are seen once by all ranks, whoever set them, any number of times", function()
    for n = 1, 4 do
      ranks.ok(n, [[
        local accelerator = accelerate.Accelerator()
        check(accelerator:check_trigger() == false)
        for setter = 0, ranks - 1 do
          if rank == setter then accelerator:set_trigger() accelerator:set_trigger() end
          check(accelerator:check_trigger() == true)
          check(accelerator:check_trigger() == false)
        end
        accelerator:set_trigger()
        check(accelerator:check_trigger() and not accelerator:check_trigger())
      ]])
    end
  end)
end)

describe("clipping", function()
  local accelerator
  before_each(function()
    state.reset()
    accelerator = accelerate.Accelerator()
  end)
  after_each(function() state.reset() end)

  -- A gradient without elements, one without dims, and a parameter without a gradient are among
  -- them.
  local function parameters()
    local list = {}
    for i, grad in ipairs { core.tensor { { 1.5, -2 }, { 0.25, 0 }, { 3, -0.5 } }, core.zeros(0, 4),
      core.tensor(-1.25),
      core.tensor { 0.1, 0.2, 0.3, 0.4 } } do
      list[i] = core.zeros(grad.shape, { requires_grad = true })
      list[i].grad = grad
    end
    list[5] = core.zeros(2, { requires_grad = true })
    return list
  end

  it("by norm takes every kind of norm, and gives what PyTorch gives", function()
    -- norm_type, max_norm -> the norm, and two elements afterwards; PyTorch refuses the infinity
    -- norm of a gradient without elements
    for _, case in ipairs { { 1, 1, 9.5, 0.3157894, 0.04210526 }, { 1, 100, 9.5, 3, 0.4 },
      { 2, 1, 4.174326, 0.7186787, 0.09582382 },
      { 2, 100, 4.174326, 3, 0.4 }, { 3, 1, 3.436085, 0.8730864, 0.1164115 },
      { 0.5, 1, 74.64561, 0.0401899, 0.005358654 },
      { math.huge, 1, 3, 0.9999996, 0.1333333 }, { math.huge, 100, 3, 3, 0.4 } } do
      local kind, limit, norm, first, second = unpack(case)
      local list = parameters()
      local got = accelerator:clip_grad_norm_(list, limit, { norm_type = kind })
      assert.are.equal(0, got:dim())
      assert.near(norm, got:item(), 1e-6 * norm)
      assert.near(first, list[1].grad:totable()[3][1], 1e-6)
      assert.near(second, list[4].grad:totable()[4], 1e-6)
      assert.is_nil(list[5].grad)
      assert.are.same({ 0, 4 }, list[2].grad.shape)
    end
    assert.near(4.174326, accelerator:clip_grad_norm_(parameters(), 1):item(), 1e-5)
    assert.are.equal(0, accelerator:clip_grad_norm_({ core.zeros(2, { requires_grad = true }) }, 1):item())
    assert.are.equal(0, accelerator:clip_grad_norm_({}, 1):item())
  end)

  it("by value limits every element", function()
    local list = parameters()
    accelerator:clip_grad_value_(list, 0.25)
    assert.are.same({ { 0.25, -0.25 }, { 0.25, 0 }, { 0.25, -0.25 } }, list[1].grad:totable())
    assert.are.equal(-0.25, list[3].grad:item())
    assert.is_nil(list[5].grad)
    accelerator:clip_grad_value_(list[4], 0)
    assert.are.same({ 0, 0, 0, 0 }, list[4].grad:totable())
  end)

  it("says what is wrong", function()
    local list = parameters()
    for _, call in ipairs { "clip_grad_norm_", "clip_grad_value_" } do
      assert.error_matches(function() accelerator[call](accelerator, nil, 1) end, call ..
        ": expected a list of tensors")
      assert.error_matches(function() accelerator[call](accelerator, nn.Linear(1, 1), 1) end, call ..
        ": expected a list of tensors")
      assert.error_matches(function() accelerator[call](accelerator, { 3 }, 1) end,
        "entry 1 must be a tensor, got 3")
      assert.error_matches(function() accelerator[call](accelerator, list) end, "is missing")
      assert.error_matches(function() accelerator[call](accelerator, list, -1) end, "at least 0")
      assert.error_matches(function() accelerator[call](accelerator, list, "1") end, "must be a number")
    end
    assert.error_matches(function() accelerator:clip_grad_norm_(list, 1, { norm = 2 }) end,
      "did you mean 'norm_type'")
    assert.error_matches(function() accelerator:clip_grad_norm_(list, 1, { norm_type = 0 }) end,
      "norm_type must be a number other than 0")
  end)

  it("has no loss scale to take out without fp16, but knows its optimizers", function()
    accelerator:unscale_gradients()
    assert.error_matches(function() accelerator:unscale_gradients(nn.Linear(1, 1)) end, "unscale_gradients")
    assert.error_matches(function() accelerator:unscale_gradients { 3 } end,
      "entry 1 of the list must be an optimizer, got 3")
  end)
end)

describe("autocast", function()
  after_each(function() state.reset() end)

  it("nests, is overridden by a handler, and comes back after an error", function()
    state.reset()
    local accelerator = accelerate.Accelerator { mixed_precision = "bf16" }
    local x = core.randn(2, 2)
    local function kind() return x:matmul(x).dtype end
    local off = accelerate.AutocastKwargs { enabled = false }
    assert.are.equal("float32", kind())
    local seen = { accelerator:autocast(function()
      local outer = kind()
      local inner = accelerator:autocast(off, function()
        return kind() .. " " .. accelerator:autocast(kind) .. " " .. kind()
      end)
      local again = kind()
      assert.is_false(pcall(accelerator.autocast, accelerator, { enabled = false },
        function() error "inside" end))
      return outer, inner, again, kind()
    end) }
    assert.are.same({ "bfloat16", "float32 bfloat16 float32", "bfloat16", "bfloat16" }, seen)
    assert.are.equal("float32", kind())
    -- with the Accelerator's own handler, which another one overrides
    state.reset()
    accelerator = accelerate.Accelerator { mixed_precision = "bf16", kwargs_handlers = { off } }
    assert.are.equal("float32", accelerator:autocast(kind))
    assert.are.equal("bfloat16", accelerator:autocast({ autocast_handler = accelerate.AutocastKwargs() },
      kind))
    -- without mixed precision it only calls
    state.reset()
    assert.are.equal("float32", accelerate.Accelerator():autocast(accelerate.AutocastKwargs(), kind))
  end)
end)
