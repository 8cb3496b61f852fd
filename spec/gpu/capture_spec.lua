--- Captured steps: on a device, against the same steps run eagerly, bit for bit; what they refuse;
--- what they keep.
local device = require "spec.support.device"
local accelerate = require "accelerate"
local capture = require "accelerate.capture.step".capture
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local state = require "accelerate.state"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises
local F = nn.functional

if not device.name then
  describe("captured steps", function() it("need a device", function() pending(device.reason) end) end)
  return
end
if device.fake then
  describe("captured steps",
    function()
      it("need CUDA, or its emulation", function() pending("the fake device records nothing") end)
    end)
  return
end

local D = device.name
local STEPS = 20

local function same(a, b, what) assert.is_true(core.same_bits(a, b), what .. " differs") end

-- Parameters, buffers and optimizer states of two runs.
local function same_state(one, other)
  for name, p in one.model:named_parameters() do
    local twin = other.model:get_parameter(name)
    same(p, twin, name)
    if one.optimizer.state[p] then
      for key, value in pairs(one.optimizer.state[p]) do
        if core.is_tensor(value) then same(value, other.optimizer.state[twin][key], name .. "." .. key)
        else assert.are.equal(value, other.optimizer.state[twin][key], name .. "." .. key) end
      end
    end
  end
  local buffers = other.model:buffers()
  for i, b in ipairs(one.model:buffers()) do same(b, buffers[i], "buffer " .. i) end
  assert.are.equal(one.optimizer.param_groups[1].lr, other.optimizer.param_groups[1].lr)
  assert.are.equal(tensor.default_generator():get_state(), one.generator)
end

-- Runs STEPS steps of what `build` makes: { model, optimizer, step, batch = fn(i) -> ... }; all
-- with the same draws.
local function run(build, captured, opts, steps)
  tensor.manual_seed(3)
  local job = build()
  local step = captured and capture(job.step, opts) or job.step
  job.losses, job.captured = {}, captured and step
  for i = 1, steps or STEPS do
    local loss = step(job.batch(i))
    job.losses[i] = core.is_tensor(loss) and loss:item() or loss[1]:item()
    if job.after then job.after() end
  end
  job.generator = tensor.default_generator():get_state()
  return job
end

local function agree(build, opts, steps)
  local eager, captured = run(build, false, nil, steps), run(build, true, opts, steps)
  assert.are.same(eager.losses, captured.losses)
  same_state(eager, captured)
  return captured.captured:stats(), captured
end

-- ---- models

local function mlp(make_optimizer, make_schedule)
  return function()
    local model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3))
    model:to(D)
    local optimizer = make_optimizer(model:parameters())
    local schedule = make_schedule and make_schedule(optimizer)
    local function step(x, y)
      local loss = F.cross_entropy(model(x), y)
      loss:backward()
      core.clip_grad_norm_(model:parameters(), 1)
      optimizer:step()
      if schedule then schedule:step() end
      optimizer:zero_grad()
      return loss
    end
    return { model = model, optimizer = optimizer, step = step,
      batch = function()
        return tensor.randn(5, 6, { device = D }), tensor.randint(0, 3, { 5 }, { device = D })
      end }
  end
end

local function sgd(params) return optim.SGD(params, { lr = 0.1, momentum = 0.9, nesterov = true }) end
local function adamw(params) return optim.AdamW(params, { lr = 0.02 }) end

local Gpt = nn.class "Gpt"
function Gpt:init()
  self.tokens = nn.Embedding(19, 16)
  self.norm = nn.LayerNorm(16)
  self.qkv = nn.Linear(16, 48)
  self.out = nn.Linear(16, 16)
  self.head = nn.Linear(16, 19)
end
function Gpt:forward(ids)
  local x = self.tokens(ids)
  local q, k, v = self.qkv(self.norm(x)):split_heads(2)
  local seen = F.scaled_dot_product_attention(q, k, v,
    { is_causal = true, dropout_p = self.training and 0.2 or 0 })
  x = x + self.out(seen:transpose(2, 3):reshape(ids:size(1), ids:size(2), 16))
  return self.head(F.gelu(x))
end

local function gpt()
  local model = Gpt()
  model:to(D)
  local optimizer = adamw(model:parameters())
  local schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, { T_max = STEPS })
  return { model = model, optimizer = optimizer,
    batch = function() return tensor.randint(0, 19, { 2, 8 }, { device = D }) end,
    step = function(ids)
      local logits = model(ids)
      local loss = F.cross_entropy(logits:narrow(2, 1, 7):reshape(-1, 19), ids:narrow(2, 2, 7):reshape(-1))
      optimizer:zero_grad()
      loss:backward()
      optimizer:step()
      schedule:step()
      return loss
    end }
end

local function cnn()
  local model = nn.Sequential(nn.Conv2d(2, 4, 3, { padding = 1 }), nn.BatchNorm2d(4), nn.ReLU(),
    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 9, 3))
  model:to(D)
  local optimizer = sgd(model:parameters())
  return { model = model, optimizer = optimizer,
    batch = function()
      return tensor.randn(4, 2, 6, 6, { device = D }), tensor.randint(0, 3, { 4 }, { device = D })
    end,
    step = function(x, y)
      local loss = F.cross_entropy(model(x), y)
      loss:backward()
      optimizer:step()
      optimizer:zero_grad()
      return { loss }
    end }
end

-- A prepared model; `each`: what is done beside the step.
local function prepared(precision, opts)
  opts = opts or {}
  return function()
    state.reset()
    local accelerator = accelerate.Accelerator { mixed_precision = precision,
      gradient_accumulation_steps = opts.accumulate or 1,
      kwargs_handlers = opts.handlers and opts.handlers() }
    local model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 3))
    local optimizer = adamw(model:parameters())
    model, optimizer = accelerator:prepare(model, optimizer)
    local job = { model = model, optimizer = optimizer, accelerator = accelerator,
      batch = function()
        return tensor.randn(5, 6, { device = D }), tensor.randint(0, 3, { 5 }, { device = D })
      end }
    function job.step(x, y)
      local loss = F.cross_entropy(model(x), y)
      accelerator:backward(loss)
      if accelerator.sync_gradients then accelerator:clip_grad_norm_(model:parameters(), 1) end
      optimizer:step()
      optimizer:zero_grad()
      return loss
    end
    return job
  end
end

describe(("captured steps on %s (%s)"):format(D, device.kind), function()
  local former
  setup(function() former = core.set_default_device("cpu") end)
  teardown(function() core.set_default_device(former) end)

  it("give the bits of eager ones: a network with dropout, SGD with momentum, clipping", function()
    assert.are.same({ eager = 3, recorded = 1, replayed = STEPS - 4, verified = 0, keys = 1 },
      (agree(mlp(sgd))))
  end)

  it("AdamW with a schedule, compared on the way", function()
    local stats = agree(mlp(adamw,
      function(o) return optim.lr_scheduler.StepLR(o, { step_size = 3, gamma = 0.5 }) end), { verify = 4 })
    assert.are.equal(4, stats.verified)
  end)

  it("attention with dropout, gradients cleared in the middle, a cosine", function()
    assert.are.equal(1, agree(gpt, { warmup = 2 }).recorded)
  end)

  it("convolutions and the running statistics of batch norm",
    function() assert.are.equal(1, agree(cnn).recorded) end)

  it("leave memory that was sent ahead, and let go of while recording, to the next batch", function()
    local sent, ticket = core._send(tensor.full({ 1000 }, 3), D)
    core._arrive(D, ticket)
    local step = capture(function(x)
      local y = x + 1
      if core.is_recording() then tensor.release(sent) end
      return y
    end, { device = D })
    local x = tensor.ones(4, { device = D })
    for _ = 1, 6 do assert.are.equal(8, step(x):sum():item()) end
    assert.are.equal(1, step:stats().recorded)
    local again, ready = core._send(tensor.full({ 1000 }, 7), D)
    core._arrive(D, ready)
    assert.are.equal(7000, again:sum():item())
    assert.are.equal(8, step(x):sum():item())
  end)

  describe("of prepared models", function()
    after_each(function() state.reset() end)

    it("in float32 and in bfloat16", function()
      agree(prepared("no"))
      agree(prepared("bf16"), { verify = 5 })
    end)

    -- float16 with a scale that overflows at first and grows soon
    local function scaled()
      return { accelerate.utils.GradScalerKwargs { init_scale = 2 ^ 24, growth_interval = 3 } }
    end
    it("in float16, with a loss scale that falls, steps that are skipped, " ..
      "and counts that are right in the end", function()
      local _, job = agree(prepared("fp16", { handlers = scaled }))
      assert.is_true(job.accelerator.scaler:get_scale() < 2 ^ 24)
      local first = job.model:parameters()[1]
      assert.is_true(job.optimizer.state[first].step < STEPS)
    end)

    it("with accumulation: one recording for batches that only add up, one for those that step", function()
      local function train(captured)
        tensor.manual_seed(3)
        local job, losses = prepared("no", { accumulate = 2 })(), {}
        local step = captured and capture(job.step) or job.step
        for i = 1, STEPS do
          local x, y = job.batch()
          job.accelerator:accumulate(job.model, function() losses[i] = step(x, y):item() end)
        end
        job.losses, job.generator, job.captured = losses, tensor.default_generator():get_state(), captured
          and step
        return job
      end
      local eager, captured = train(false), train(true)
      assert.are.same(eager.losses, captured.losses)
      same_state(eager, captured)
      local stats = captured.captured:stats()
      assert.are.equal(2, stats.recorded)
      assert.are.equal(2, stats.keys)
    end)

    it("follow a scheduler that was prepared, and the accelerator's count of batches", function()
      local function train(captured)
        tensor.manual_seed(5)
        local job, losses = prepared("no")(), {}
        local schedule = job.accelerator:prepare(optim.lr_scheduler.CosineAnnealingLR(job.optimizer,
          { T_max = STEPS }))
        local function step(x, y)
          return job.accelerator:accumulate(job.model, function()
            local loss = job.step(x, y)
            schedule:step()
            return loss
          end)
        end
        if captured then step = capture(step) end
        for i = 1, STEPS do losses[i] = step(job.batch()):item() end
        return losses, job.accelerator.step, schedule:get_last_lr(), job.optimizer.param_groups[1].lr
      end
      local losses, count, rates, rate = train(false)
      local losses_, count_, rates_, rate_ = train(true)
      assert.are.same({ losses, count, rates, rate }, { losses_, count_, rates_, rate_ })
      assert.are.equal(STEPS, count)
    end)
  end)

  it("record anew for other shapes, modes and numbers, and go back to what was recorded", function()
    local model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    model:to(D)
    local step = capture(function(x, factor) return model(x) * factor end, { warmup = 1 })
    local function call(n, factor) return step(tensor.ones(n, 4, { device = D }), factor) end
    local eager
    tensor.no_grad(function()
      for _ = 1, 3 do call(2, 1) call(3, 1) end
      assert.are.same({ eager = 2, recorded = 2, replayed = 2, verified = 0, keys = 2 }, step:stats())
      for _ = 1, 3 do call(2, 2) end
      assert.are.equal(3, step:stats().recorded)
      model:eval()
      for _ = 1, 3 do eager = call(2, 1) end
      assert.are.equal(4, step:stats().keys)
      same(eager, model(tensor.ones(2, 4, { device = D })), "result")
      model:train()
      call(2, 1)
    end)
    assert.are.equal(4, step:stats().recorded)
    step:reset()
    assert.are.equal(0, step:stats().keys)
  end)

  it("take a parameter's new memory, a loaded state and another learning rate", function()
    local build = mlp(adamw)
    local function train(captured)
      tensor.manual_seed(3)
      local job, losses = build(), {}
      local step = captured and capture(job.step, { warmup = 1 }) or job.step
      for i = 1, 12 do
        if i == 5 then job.optimizer.param_groups[1].lr = 0.5 end
        if i == 7 then job.optimizer:load_state_dict(job.optimizer:state_dict()) end
        if i == 10 then
          local p = job.model:parameters()[1]
          tensor.no_grad(function() p.data = p:detach() * 2 end)
        end
        losses[i] = step(job.batch()):item()
      end
      return losses, captured and step:stats()
    end
    local losses, stats = train(true)
    assert.are.same(train(false), losses)
    assert.are.equal(3, stats.recorded)
  end)

  it("give way to an eager call where parameters have left their flat buffer", function()
    local model = nn.Linear(6, 3):to(D)
    local layout = core.flat(model:parameters())
    layout:give_work "bfloat16"
    local x = tensor.randn(5, 6, { device = D })
    local function forward() return tensor.autocast({ dtype = "bfloat16" }, model, x) end
    local step, expected = capture(forward, { warmup = 1 }), forward()
    for _ = 1, 3 do same(expected, step(), "result") end
    layout:dissolve()
    for _ = 1, 3 do same(expected, step(), "result") end
    local stats = step:stats()
    assert.are.same({ 2, 2, 2 }, { stats.eager, stats.recorded, stats.replayed })
  end)

  it("a thousand replays allocate nothing, and a dropped recording gives its memory back", function()
    local function settle()
      collectgarbage() collectgarbage()
      core.empty_cache(D)
      return core.memory_stats(D)
    end
    local before = settle()
    do
      local job = run(mlp(adamw), true)
      local x, y = job.batch()
      job.captured(x, y)
      collectgarbage("stop")
      local calls = core.memory_stats(D).allocations
      for _ = 1, 1000 do job.captured(x, y) end
      assert.are.equal(calls, core.memory_stats(D).allocations)
      collectgarbage("restart")
      job.captured:reset()
    end
    local after = settle()
    assert.are.equal(before.live_bytes, after.live_bytes)
    assert.are.equal(before.live_blocks, after.live_blocks)
  end)

  it("verify finds what a replay does differently", function()
    local model = nn.Linear(3, 3)
    model:to(D)
    local calls = 0
    local step = capture(function(x)
      calls = calls + 1
      -- a number of Lua's: recorded as it was
      tensor.no_grad(function() model.weight:add_(calls > 3 and 1 or 0) end)
      return model(x):detach()
    end, { warmup = 1, verify = 2 })
    local x = tensor.ones(2, 3, { device = D })
    step(x) step(x) step(x)
    calls = 5
    raises("result 1 differs between the replay and the eager step", step, x)

    local quiet = capture(function(y)
      calls = calls + 1
      tensor.no_grad(function() model.bias:add_(calls > 3 and 1 or 0) end)
      return y + 1
    end, { warmup = 1, verify = 1 })
    calls = 0
    local function forward() model(x) end
    forward()
    quiet(x)
    quiet(x)
    calls = 5
    raises("differs between the replay and the eager step, in replay 1", quiet, x)
  end)

  describe("with dynamo_backend = 'cudagraphs'", function()
    local captured = require "accelerate.capture.model"
    after_each(function() state.reset() end)

    local function train(backend, precision, change)
      state.reset()
      tensor.manual_seed(3)
      local accelerator = accelerate.Accelerator { mixed_precision = precision, dynamo_backend = backend }
      local model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 3))
      local optimizer = adamw(model:parameters())
      model, optimizer = accelerator:prepare(model, optimizer)
      local losses = {}
      for i = 1, STEPS do
        local x, y = tensor.randn(5, 6, { device = D }), tensor.randint(0, 3, { 5 }, { device = D })
        local loss = F.cross_entropy(model(x), y)
        if change then loss = change(model, x, y, loss, i) end
        accelerator:backward(loss)
        accelerator:clip_grad_norm_(model:parameters(), 1)
        optimizer:step()
        optimizer:zero_grad()
        losses[i] = loss:item()
      end
      return losses, model, optimizer
    end

    local function compare(...)
      local losses, model = train("no", ...)
      local losses_, model_ = train("cudagraphs", ...)
      assert.are.same(losses, losses_)
      for name, p in model:named_parameters() do same(p, model_:get_parameter(name), name) end
      return captured.stats(model_)
    end

    it("forward and backward are replayed, with the bits of an ordinary loop", function()
      assert.are.same({ recorded = 1, replayed = STEPS - 3 }, compare("no"))
      assert.are.same({ recorded = 1, replayed = STEPS - 3 }, compare("bf16"))
    end)

    it("a second call before backward runs as it is, and evaluation, too", function()
      local stats = compare("no", function(model, x, y, loss)
        tensor.no_grad(function() model(x) end)
        return loss + F.cross_entropy(model(x * 2), y)
      end)
      assert.are.equal(1, stats.recorded)
    end)

    it("a forward gives results that are nil in between, replayed or not", function()
      state.reset()
      local accelerator = accelerate.Accelerator { dynamo_backend = "cudagraphs" }
      local Net = nn.class "Between"
      function Net:init() self.fc = nn.Linear(2, 2) end
      function Net:forward(x) return self.fc(x), nil, true, x * 2 end
      local model = accelerator:prepare(Net())
      local x = tensor.ones(1, 2, { device = D })
      for _ = 1, 5 do
        local y, none, flag, twice = model(x)
        y:sum():backward()
        assert.are.same({ nil, true, "2 2" }, { none, flag, table.concat(twice:reshape(-1):totable(), " ") })
      end
      assert.are.same({ recorded = 1, replayed = 2 }, captured.stats(model))
    end)

    it("a forward that waits is an error with its line", function()
      local accelerator = accelerate.Accelerator { dynamo_backend = "cudagraphs" }
      local Net = nn.class "Waits"
      function Net:init() self.fc = nn.Linear(2, 2) end
      function Net:forward(x) return self.fc(x) * x:sum():item() end
      local model = accelerator:prepare(Net())
      local x = tensor.ones(1, 2, { device = D })
      for _ = 1, 3 do model(x):sum():backward() end
      raises("item: the host cannot read from", model, x)
      assert.is_false(core.is_recording())
    end)
  end)

  it("computes checkpointed parts again with the draws of the first time", function()
    local stats = agree(function()
      local part = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.4), nn.Linear(16, 6)):to(D)
      local head = nn.Sequential(nn.Dropout(0.2), nn.Linear(6, 3)):to(D)
      local model = nn.Sequential(part, head)
      local optimizer = sgd(model:parameters())
      local function step(x, y)
        local loss = F.cross_entropy(head(nn.utils.checkpoint(part, x)), y)
        loss:backward()
        optimizer:step()
        optimizer:zero_grad()
        return loss
      end
      return { model = model, optimizer = optimizer, step = step, batch = function()
        return tensor.randn(5, 6, { device = D }), tensor.randint(0, 3, { 5 }, { device = D })
      end }
    end, { verify = 2 })
    assert.are.equal(1, stats.recorded)
  end)

  it("is recorded anew when a parameter was thawed", function()
    local stats = agree(function()
      local job, steps = mlp(sgd)(), 0
      local frozen = job.model:parameters()[1]
      frozen.requires_grad = false
      job.after = function()
        steps = steps + 1
        if steps == 6 then frozen.requires_grad = true end
      end
      return job
    end, nil, 10)
    assert.are.equal(2, stats.recorded)
  end)
end)
