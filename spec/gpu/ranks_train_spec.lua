-- Training with ranks on GPUs: lua/accelerate/parallel over kernels/cuda/runtime/nccl.cu; see
-- support/gpu_ranks.lua.
local gpu_ranks = require "spec.support.gpu_ranks"

local why, emulated, most, on = gpu_ranks.why, gpu_ranks.emulated, gpu_ranks.most, gpu_ranks.on

describe("training on GPUs of several ranks", function()
  if why then
    it("is that of one", function() pending(why) end)
    return
  end

  -- Models by name; each rank takes its part of 8 rows.  Prints the parameters after some steps,
  -- with the losses in front.
  local TRAIN = [[
    local nn, optim, F =
      require "accelerate.nn", require "accelerate.optim", require "accelerate.nn.functional"
    local parallel, state = require "accelerate.parallel", require "accelerate.state"
    local models = {}
    function models.mlp()
      return nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)),
        core.randn(8, 12),
        function(m, x) return (m(x) - x:narrow(2, 1, 3)):square():mean() end
    end
    function models.cnn()
      return nn.Sequential(nn.Conv2d(2, 6, 3, { padding = 1 }), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(96, 5)), core.randn(8, 2, 8, 8),
        function(m, x)
          return F.cross_entropy(m(x),
            x:narrow(2, 1, 1):reshape(x:size(1), -1):narrow(2, 1, 5):argmax({ dim = 2 }))
        end
    end
    function models.gpt()
      local Block = nn.class("Block")
      function Block:init()
        self.tokens, self.norm, self.qkv = nn.Embedding(19, 16), nn.LayerNorm(16), nn.Linear(16, 48)
        self.out, self.head = nn.Linear(16, 16), nn.Linear(16, 19)
      end
      function Block:forward(ids)
        local x = self.tokens(ids)
        local q, k, v = self.qkv(self.norm(x)):split_heads(2)
        local seen = F.scaled_dot_product_attention(q, k, v, { is_causal = true })
        return self.head(x + self.out(seen:transpose(2, 3):reshape(ids:size(1), 6, 16)))
      end
      return Block(), core.randint(0, 19, { 8, 6 }),
        function(m, x)
          return F.cross_entropy(m(x):narrow(2, 1, 5):reshape(-1, 19), x:narrow(2, 2, 5):reshape(-1))
        end
    end
    local function train(name, steps, opts)
      opts = opts or {}
      state.reset()
      core.manual_seed(4)
      local accelerator = accelerate.Accelerator { gradient_accumulation_steps = opts.accumulate,
        kwargs_handlers = opts.ddp and { accelerate.DistributedDataParallelKwargs(opts.ddp) } or nil }
      local model, x, loss_of = models[name]()
      local optimizer
      model, optimizer = accelerator:prepare(model, name == "gpt"
        and optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
        -- a key's bias has no gradient but rounding, which AdamW makes large
        or optim.AdamW(model:parameters(), { lr = 0.01 }))
      local rows = 8 / ranks
      local part, losses = x:narrow(1, 1 + rank * rows, rows):to(accelerator.device), {}
      for step = 1, steps do
        for micro = 1, opts.accumulate or 1 do
          accelerator:accumulate(model, function()
            local loss = loss_of(model, part)
            accelerator:backward(loss)
            accelerator:clip_grad_norm_(model:parameters(), 1.0)
            optimizer:step()
            optimizer:zero_grad()
            if micro == 1 then losses[step] = accelerate.utils.reduce(loss:detach(), "mean"):item() end
          end)
        end
      end
      local all = {}
      for _, v in ipairs(losses) do all[#all + 1] = v end
      for _, p in ipairs(model:parameters()) do
        for _, v in ipairs(p:detach():reshape(-1):totable()) do all[#all + 1] = v end
      end
      return all, model
    end
    local function give(t) if rank == 0 then print(accelerate.utils.json.encode(t)) end end
  ]]
  local json = require "accelerate.utils.json"

  local function worst(a, b)
    assert.are.equal(#a, #b)
    local w = 0
    for i = 1, #a do w = math.max(w, math.abs(a[i] - b[i])) end
    return w
  end

  it("gives two and four ranks the losses and parameters of one, and those of ranks on the CPU", function()
    if most < 2 then return pending("needs 2 GPUs") end
    for _, name in ipairs { "mlp", "cnn", "gpt" } do
      local script = TRAIN .. ("give((train(%q, 4)))"):format(name)
      local one = json.decode(assert(on(1, script)))
      for n = 2, math.min(most, 4), 2 do
        local there = json.decode(assert(on(n, script)))
        assert.is_true(worst(one, there) <= 2e-5, ("%s on %d GPUs: %g"):format(name, n, worst(one, there)))
        local cpu = json.decode(assert(on(n, script, { launch = { "--cpu" } })))
        assert.is_true(worst(cpu, there) <= 2e-5,
          ("%s on %d GPUs and CPUs: %g"):format(name, n, worst(cpu, there)))
      end
    end
  end)

  -- Small buckets, and a note of what happens in which order: b: a bucket begins to be reduced, g:
  -- a gradient is complete, e: backward is over.
  local NOTED = TRAIN .. [[
    local notes = {}
    local begin = core.dist.all_reduce
    function core.dist.all_reduce(t, op, model, async)
      if (model or 0) > 0 then notes[#notes + 1] = "b" end
      return begin(t, op, model, async)
    end
    local finish = parallel.finish
    function parallel.finish(...)
      notes[#notes + 1] = "e"
      return finish(...)
    end
    local function noted(fn, ...)
      notes = {}
      local results = { fn(...) }
      return table.concat(notes), unpack(results)
    end
    local SMALL = { bucket_cap_mb = 0.002 }
  ]]

  it("reduces buckets while backward goes on, with the same bits however they are cut " ..
    "and whenever the device works", function()
    if most < 2 then return pending("needs 2 GPUs") end
    local script = NOTED .. [[
      local order, small = noted(train, "mlp", 3, { ddp = SMALL })
      check(order:match("^bb+eb*bb+eb*bb+eb*$"), order)
      local whole = train("mlp", 3)
      for i = 1, #small do check(small[i] == whole[i], "bucketed: element " .. i) end
      local static = train("mlp", 3, { ddp = { bucket_cap_mb = 0.002, static_graph = true } })
      for i = 1, #small do check(small[i] == static[i], "static: element " .. i) end
      give(small)
    ]]
    local first = on(2, script)
    if emulated then
      for _, schedule in ipairs { "1", "3", "9" } do
        assert.are.equal(first, on(2, script, { env = { ACCEL_EMULATED_SCHEDULE = schedule } }))
      end
    end
  end)

  it("reduces at the end of accumulate and after no_sync alone, " ..
    "and takes parameters that some ranks, or none, used", function()
    if most < 2 then return pending("needs 2 GPUs") end
    on(2, NOTED .. [[
      local order, some = noted(train, "mlp", 2, { ddp = SMALL, accumulate = 3 })
      check(order:match("^eebb+eb*eebb+eb*$"), order)
      state.reset()
      local accelerator = accelerate.Accelerator {
        kwargs_handlers = { accelerate.DistributedDataParallelKwargs(SMALL) } }
      local Net = nn.class("Net")
      function Net:init() self.a, self.b, self.c = nn.Linear(30, 30), nn.Linear(30, 30), nn.Linear(30, 30) end
      function Net:forward(x) return self.a(x) + (rank == 0 and self.b(x) or 0) end
      core.manual_seed(2)
      local model = accelerator:prepare(Net())
      local x = core.randn(4, 30):to(accelerator.device)
      local function gradient(m, p) return m[p].weight.grad end
      for round = 1, 2 do
        for _, p in ipairs(model:parameters()) do p.grad = nil end
        accelerator:no_sync(function() accelerator:backward(model(x):sum()) end)
        check(gradient(model, "c") == nil and (gradient(model, "b") ~= nil) == (rank == 0),
          "no_sync reduces nothing")
        accelerator:backward(model(x * 2):sum())
        check(gradient(model, "c") == nil, "no rank used c")
        local want = x:sum({ dim = 1 }):reshape(1, 30):expand(30, 30)
        check((gradient(model, "a") - want * 3):abs():max():item() < 1e-3, "a")
        check((gradient(model, "b") - want * 1.5):abs():max():item() < 1e-3, "b, which one rank used")
      end
      -- loss:backward() is reduced before the step
      for _, p in ipairs(model:parameters()) do p.grad = nil end
      model(x * (rank + 1)):sum():backward()
      accelerator:clip_grad_norm_(model:parameters(), 1e9)
      check((gradient(model, "a") - x:sum({ dim = 1 }):reshape(1, 30):expand(30,
        30) * 1.5):abs():max():item() < 1e-3, "flushed")
      -- someone looks at gradients as they come: their bucket goes at the end
      for _, p in ipairs(model:parameters()) do p.grad = nil end
      local seen
      local hook = model.a.weight:register_post_accumulate_grad_hook(function(p) seen = p.grad:clone() end)
      order = noted(function() accelerator:backward(model(x * (rank + 1)):sum()) end)
      hook:remove()
      check((seen - x:sum({ dim = 1 }):reshape(1, 30):expand(30, 30) * (rank + 1)):abs():max():item() < 1e-3,
        "what the hook saw")
      -- weights: a window's sum over the sum of weights
      for _, p in ipairs(model:parameters()) do p.grad = nil end
      accelerator:backward(model(x):sum(), { weight = rank + 1 })
      check((gradient(model, "a") - x:sum({ dim = 1 }):reshape(1, 30):expand(30,
        30) * 2 / 3):abs():max():item() < 1e-3, "weighted")
    ]])
  end)

  it("has batch norm's statistics, LocalSGD and ranks with fewer batches", function()
    if most < 2 then return pending("needs 2 GPUs") end
    on(2, TRAIN .. [[
      local accelerator = accelerate.Accelerator()
      core.manual_seed(3)
      local model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
      local optimizer
      model, optimizer = accelerator:prepare(model, optim.SGD(model:parameters(), { lr = 0.05 }))
      local function step()
        local x = core.randn(5, 6):to(accelerator.device) * (rank + 1)
        accelerator:backward(model(x):square():mean())
        optimizer:step()
        optimizer:zero_grad()
      end
      local function together(what)
        for _, t in ipairs { model[1].weight, model[2].running_mean, model[3].bias } do
          local all = accelerate.utils.gather(t:detach():reshape(1, -1))
          check((all - all:narrow(1, 1, 1)):abs():max():item() == 0, what)
        end
      end
      for _ = 1, 3 do step() end
      together("after steps")
      accelerate.LocalSGD(accelerator, model, 2, function(local_sgd)
        for _ = 1, 4 do step() local_sgd:step() end
      end)
      step()
      together("after LocalSGD")
      accelerator:join_uneven_inputs({ model }, { even_batches = false }, function()
        for _ = 1, 2 + rank do step() end
      end)
      together("after joining")
      accelerator:end_training()
    ]])
  end)

  it("has one loss scale on all ranks after ranks with fewer batches", function()
    if most < 2 then return pending("needs 2 GPUs") end
    on(2, [[
      local nn, optim = require "accelerate.nn", require "accelerate.optim"
      local accelerator = accelerate.Accelerator { mixed_precision = "fp16",
        kwargs_handlers = { accelerate.GradScalerKwargs { init_scale = 4, growth_interval = 2 } } }
      core.manual_seed(3)
      local model = nn.Linear(6, 1)
      local optimizer
      model, optimizer = accelerator:prepare(model, optim.SGD(model:parameters(), { lr = 0.05 }))
      local function steps(n)
        for _ = 1, n do
          accelerator:backward(model(core.ones(2, 6):to(accelerator.device)):square():mean())
          optimizer:step()
          optimizer:zero_grad()
        end
      end
      accelerator:join_uneven_inputs({ model }, { even_batches = false }, function() steps(1 + 2 * rank) end)
      local state = accelerator.scaler:state_dict()
      check(state.scale == 8 and state._growth_tracker == 1, state.scale .. " " .. state._growth_tracker)
      steps(1)
      local all = accelerate.utils.gather(model.weight:detach())
      check((all - all:narrow(1, 1, 1)):abs():max():item() == 0, "the ranks' models differ")
      accelerator:end_training()
    ]])
  end)

  it("compresses gradients as PyTorch's hooks do", function()
    if most < 2 then return pending("needs 2 GPUs") end
    local reference = require "spec.reference.ddp_hooks_reference"
    local out = on(2, [[
      local nn, optim = require "accelerate.nn", require "accelerate.optim"
      local parallel, state = require "accelerate.parallel", require "accelerate.state"
      local function wave(shape, start)
        local t = core.empty(shape, { device = "cpu" })
        local at, n = t:data_ptr(), t:numel()
        for i = 0, n - 1 do at[i] = 0.5 * math.sin(start + 0.7 * i + 0.05 * i * i) end
        return t
      end
      local function train(handler)
        state.reset()
        local accelerator = accelerate.Accelerator {
          kwargs_handlers = { accelerate.DistributedDataParallelKwargs(handler) } }
        local model = nn.Sequential(nn.Linear(16, 16, { bias = false }), nn.Tanh(),
          nn.Linear(16, 16, { bias = false }), nn.Tanh(),
          nn.Linear(16, 8, { bias = false }))
        core.no_grad(function() for i, p in ipairs(model:parameters()) do p:copy_(wave(p.shape, i)) end end)
        local optimizer
        model, optimizer = accelerator:prepare(model, optim.SGD(model:parameters(), { lr = 0.5 }))
        parallel.record_of(model).hook.random = function(shape, dtype) return wave(shape, 3):to(dtype) end
        for t = 0, 5 do
          local x, y = wave({ 4, 16 }, 10 + t + 5 * rank):to(accelerator.device), wave({ 4, 8 },
            20 + t + 3 * rank):to(accelerator.device)
          optimizer:zero_grad()
          accelerator:backward((model(x) - y):square():mean())
          optimizer:step()
        end
        local all, some = {}, {}
        for _, p in ipairs(model:parameters()) do
          for _, v in ipairs(p:detach():reshape(-1):totable()) do all[#all + 1] = v end
        end
        for i = 1, #all, 7 do some[#some + 1] = all[i] end
        return some
      end
      local power = { start_powerSGD_iter = 2 }
      local results = {
        fp16 = train { comm_hook = "fp16" }, bf16 = train { comm_hook = "bf16", bucket_cap_mb = 0.0005 },
        power = train { comm_hook = "power_sgd", comm_state_option = power, bucket_cap_mb = 0.0005 },
        power_rank = train { comm_hook = "power_sgd",
          comm_state_option = { start_powerSGD_iter = 2, matrix_approximation_rank = 3,
            min_compression_rate = 1, batch_tensors_with_same_shape = true } },
        batched = train { comm_hook = "batched_power_sgd", comm_state_option = power },
        bf16_fp16 = train { comm_hook = "fp16", comm_wrapper = "bf16" },
      }
      if rank == 0 then print(accelerate.utils.json.encode(results)) end
    ]])
    local results = json.decode(out)
    -- half types are rounded at each addition there
    local tolerance = { fp16 = 2e-4, bf16 = 2e-3, bf16_fp16 = 2e-3 }
    for name, got in pairs(results) do
      assert.is_true(worst(reference[name], got) <= (tolerance[name] or 1e-5),
        ("%s: differs by %g from PyTorch's"):format(name, worst(reference[name], got)))
    end
  end)
end)
