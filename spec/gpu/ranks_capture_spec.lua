-- Captured steps on several ranks: their reductions are part of the recording; see
-- kernels/cuda/runtime/nccl.cu ("in a captured step") and support/gpu_ranks.lua.
local gpu_ranks = require "spec.support.gpu_ranks"
local ranks = require "spec.support.ranks"

-- train(captured, steps, opts): the losses and all parameters of a small model after some steps.
local TRAIN = [[
  local nn, optim = require "accelerate.nn", require "accelerate.optim"
  local capture, state = accelerate.utils.capture, require "accelerate.state"
  local last
  local function train(captured, steps, opts)
    opts = opts or {}
    state.reset()
    core.manual_seed(4)
    local accelerator = accelerate.Accelerator { mixed_precision = opts.precision,
      kwargs_handlers = { accelerate.DistributedDataParallelKwargs { bucket_cap_mb = 0.01 } } }
    local model = nn.Sequential(nn.Linear(12, 70), nn.BatchNorm1d(70), nn.ReLU(), nn.Linear(70, 60),
      nn.Tanh(), nn.Dropout(0.2), nn.Linear(60, 3))
    local optimizer
    model, optimizer = accelerator:prepare(model, optim.AdamW(model:parameters(), { lr = 0.01 }))
    local function step(x)
      local loss = (model(x) - x:narrow(2, 1, 3)):square():mean()
      accelerator:backward(loss)
      accelerator:clip_grad_norm_(model:parameters(), 0.1)
      optimizer:step()
      optimizer:zero_grad()
      return accelerate.utils.reduce(loss:detach(), "mean")
    end
    local function shortened(x)
      local loss = model(x):square():sum()
      accelerator:backward(loss)
      return loss:detach()
    end
    if captured then step, shortened = capture(step), capture(shortened, { warmup = 1 }) end
    last = { step = step, shortened = shortened, optimizer = optimizer, device = accelerator.device }
    core.manual_seed(40 + rank)
    local all = {}
    for k = 1, steps do all[k] = step(core.randn(6, 12):to(accelerator.device)):item() end
    for _, p in ipairs(model:parameters()) do
      for _, v in ipairs(p:detach():reshape(-1):narrow(1, 1, 3):totable()) do all[#all + 1] = v end
      all[#all + 1] = p:detach():double():square():sum():item()
    end
    if captured then last.stats = step:stats() end
    return all
  end
  local function same(a, b, what)
    for i = 1, math.max(#a, #b) do
      check(a[i] == b[i], ("%s, number %d: %s and %s"):format(what, i, a[i], b[i]))
    end
  end
]]

describe("a captured step of several ranks", function()
  if gpu_ranks.why or gpu_ranks.most < 2 then
    it("has their reductions inside", function() pending(gpu_ranks.why or "needs 2 GPUs") end)
    return
  end

  it("has the bits of eager steps, also in bfloat16 and with work put off", function()
    for _, env in ipairs { {}, { ACCEL_EMULATED_SCHEDULE = "1" } } do
      assert(gpu_ranks.on(2, TRAIN .. [[
        for _, precision in ipairs { "no", "bf16" } do
          local opts = { precision = precision }
          same(train(false, 7, opts), train(true, 7, opts), precision)
          check(last.stats.recorded == 1 and last.stats.replayed == 3, tostring(last.step))
        end
      ]], { env = env }))
    end
  end)

  it("is compared with the eager step on request", function()
    assert(gpu_ranks.on(2, TRAIN:gsub("capture%(step%)", "capture(step, { verify = 2 })") .. [[
      train(true, 7)
      check(last.stats.verified > 0)
    ]]))
  end)

  it("goes on beside eager collectives, and is recorded for other arguments", function()
    assert(gpu_ranks.on(2, TRAIN .. [[
      train(true, 5)
      local x = core.ones(5):to(last.device)
      local work = core.dist.all_reduce(x, "sum", nil, true)
      local loss = last.step(core.randn(6, 12):to(last.device))
      if work then work:wait() end
      check(x:sum():item() == 10)
      for _ = 1, 5 do last.step(core.randn(4, 12):to(last.device)) end
      check(last.step:stats().recorded == 2)
      check(loss:item() > 0)
    ]]))
  end)

  it("is each pass of a model with dynamo_backend = 'cudagraphs', whose gradients keep the eager bits",
    function()
    assert(gpu_ranks.on(2, [[
      local nn, optim = require "accelerate.nn", require "accelerate.optim"
      local state, captured = require "accelerate.state", require "accelerate.capture.model"
      local function train(backend, change)
        state.reset()
        core.manual_seed(4)
        local accelerator = accelerate.Accelerator { dynamo_backend = backend,
          gradient_accumulation_steps = change == "accumulate" and 2 or 1,
          kwargs_handlers = { accelerate.DistributedDataParallelKwargs { bucket_cap_mb = 0.01 } } }
        local model = nn.Sequential(nn.Linear(12, 70), nn.BatchNorm1d(70), nn.ReLU(), nn.Linear(70, 60),
          nn.Linear(60, 3))
        local optimizer
        model, optimizer = accelerator:prepare(model, optim.SGD(model:parameters(), { lr = 0.01 }))
        core.manual_seed(40 + rank)
        local all = {}
        for _ = 1, 9 do
          local x = core.randn(6, 12):to(accelerator.device)
          accelerator:accumulate(model, function()
            local loss = (model(x) - x:narrow(2, 1, 3)):square():mean()
            if change == "twice" then loss = loss + model(x * 2):square():mean() end
            if change == "decay" then loss = loss + model:parameters()[1]:square():sum() * 0.01 end
            accelerator:backward(loss)
            optimizer:step()
            optimizer:zero_grad()
            all[#all + 1] = loss:item()
          end)
        end
        for _, p in ipairs(model:parameters()) do
          all[#all + 1] = p:detach():double():square():sum():item()
        end
        return all, model
      end
      for _, change in ipairs { "none", "accumulate", "decay", "twice" } do
        local a = train("no", change)
        local b, model = train("cudagraphs", change)
        check(captured.stats(model).replayed >= 6, change .. ": " .. captured.stats(model).replayed)
        for i = 1, #a do
          -- where a replay and an eager pass both bring gradients, they round one by one
          local bound = (change == "twice" or change == "decay") and 1e-6 * math.abs(a[i]) or 0
          check(math.abs(a[i] - b[i]) <= bound, ("%s, number %d: %s and %s"):format(change, i, a[i], b[i]))
        end
      end
    ]]))
  end)

  local function fails(script, opts)
    opts = opts or {}
    local status, out, err = ranks.run(2, TRAIN .. script,
      { env = gpu_ranks.env(opts.env or {}), seconds = 90,
      launch = { "--timeout", opts.timeout or "2" } })
    assert(status ~= 0, "it should have failed: " .. out .. err)
    return err
  end

  it("that one rank replays while another runs another one is an error of both", function()
    local err = fails([[
      train(true, 5)
      for _ = 1, 2 do
        if rank == 0 then last.step(core.randn(6, 12):to(last.device)):item()
        else last.shortened(core.randn(6, 12):to(last.device)):item() end
      end
    ]], { timeout = "600" })
    assert.matches("ranks disagree in collective #%d+: rank 0 calls a replay of a captured step with %d+ " ..
      "collectives [^\n]*; rank 1 calls", err)
  end)

  it("whose collectives differ between the ranks is not replayed", function()
    local err = fails([[
      local x, y = core.ones(4), core.ones(8)
      local device = accelerate.PartialState().device
      x, y = x:to(device), y:to(device)
      core.dist.all_reduce(x, "sum")
      local step = capture(function(v)
        v = v * 1
        core.dist.all_reduce(v, rank == 0 and "sum" or "max")
        return v
      end, { warmup = 1 })
      local former = rank
      rank = 0
      step(x)
      rank = former
      step(x)
    ]], { timeout = "600" })
    assert.matches("ranks disagree in collective #%d+: rank 0 calls a captured step with 1 collective " ..
      "%(digest %x+%)[^\n]*; rank 1 calls a captured step with 1 collective", err)
  end)

  it("cannot begin with the first collective", function()
    local err = fails [[
      local device = accelerate.PartialState().device
      local step = capture(function(v)
        if core.is_recording() then core.dist.all_reduce(v * 1, "sum") end
        return v * 1
      end, { warmup = 1 })
      for _ = 1, 2 do step(core.ones(4):to(device)) end
    ]]
    assert.matches("the ranks' GPUs join at their first collective, which cannot be a recorded one", err)
  end)

  it("ends when a rank dies or hangs inside a replay", function()
    if not gpu_ranks.emulated then return pending("the stand-in for NCCL goes wrong on request") end
    local script = [[
      train(true, 5)
      local ok, message = pcall(function()
        local x = core.randn(6, 12):to(last.device)
        for k = 1, 400 do
          local loss = last.step(x)
          if %s then loss:item() end
        end
      end)
      io.stderr:write(("rank %%d: %%s\n"):format(rank, tostring(message)))
      error(message, 0)
    ]]
    local waiting, launching = script:format "true", script:format "false"
    local function fake(how) return { ACCEL_FAKE_NCCL = how, ACCEL_EMULATED_QUEUE = "40" } end
    local err = fails(waiting, { env = fake "die:1:120", timeout = "600" })
    assert.matches("rank 1 of 2 was killed by SIGKILL", err)
    err = fails(waiting, { env = fake "error:1:120", timeout = "600" })
    assert.matches("the link to another rank went down", err)
    -- the host does not wait: the watchdog finds it
    err = fails(launching, { env = fake "hang:1:120" })
    assert.matches("collective #%d+, a replay of a captured step with %d+ collectives[^\n" ..
      "]* has waited %d+%.%d s for", err)
  end)
end)
