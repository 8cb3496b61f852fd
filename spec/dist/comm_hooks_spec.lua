-- How gradients are reduced when the script says so: DistributedDataParallelKwargs and its
-- communication hooks, against PyTorch's on gloo (generators/gen_ddp_hooks_reference.py).
local json = require "accelerate.utils.json"
local ranks = require "spec.support.ranks"
local reference = require "spec.reference.ddp_hooks_reference"

-- The training of the generator, with its formula for numbers.
local TRAIN = [[
  local nn, optim = require "accelerate.nn", require "accelerate.optim"
  local parallel, state = require "accelerate.parallel", require "accelerate.state"
  local function wave(shape, start)
    local t = core.empty(shape)
    local at, n = t:data_ptr(), t:numel()
    for i = 0, n - 1 do at[i] = 0.5 * math.sin(start + 0.7 * i + 0.05 * i * i) end
    return t
  end
  local function network(dtype)
    local model = nn.Sequential(nn.Linear(16, 16, { bias = false }), nn.Tanh(),
      nn.Linear(16, 16, { bias = false }), nn.Tanh(),
      nn.Linear(16, 8, { bias = false }))
    core.no_grad(function()
      for i, p in ipairs(model:parameters()) do p:copy_(wave(p.shape, i)) end
    end)
    return model
  end
  local function train(handler, steps, at_random)
    state.reset()
    local accelerator = accelerate.Accelerator { kwargs_handlers = { handler
      and accelerate.DistributedDataParallelKwargs(handler) } }
    local model = network()
    local optimizer
    model, optimizer = accelerator:prepare(model, optim.SGD(model:parameters(), { lr = 0.5 }))
    local hook = parallel.record_of(model).hook
    if hook and not at_random then
      hook.random = function(shape, dtype) return wave(shape, 3):to(dtype) end
    end
    for t = 0, steps - 1 do
      local loss = (model(wave({ 4, 16 }, 10 + t + 5 * rank)) - wave({ 4, 8 },
        20 + t + 3 * rank)):square():mean()
      optimizer:zero_grad()
      accelerator:backward(loss)
      optimizer:step()
    end
    return model, hook
  end
  local function values(model, every)
    local all = {}
    for _, p in ipairs(model:parameters()) do
      for _, v in ipairs(p:detach():reshape(-1):totable()) do all[#all + 1] = v end
    end
    local some = {}
    for i = 1, #all, every or 1 do some[#some + 1] = all[i] end
    return some
  end
  local function worst(a, b)
    local w = 0
    for i = 1, #a do w = math.max(w, math.abs(a[i] - b[i])) end
    return w
  end
]]

describe("communication hooks", function()
  it("train as PyTorch's do", function()
    local out = ranks.ok(2, TRAIN .. [[
      local power = { start_powerSGD_iter = 2 }
      local function with(more) for k, v in pairs(power) do more[k] = v end return more end
      local cases = {
        fp16 = { comm_hook = "fp16" }, bf16 = { comm_hook = "bf16" },
        power = { comm_hook = "power_sgd", comm_state_option = power },
        power_rank = { comm_hook = "power_sgd",
          comm_state_option = with { matrix_approximation_rank = 3, min_compression_rate = 1,
            batch_tensors_with_same_shape = true } },
        power_cold = { comm_hook = "power_sgd",
          comm_state_option = with { warm_start = false, use_error_feedback = false,
            orthogonalization_epsilon = 1e-8 } },
        batched = { comm_hook = "batched_power_sgd", comm_state_option = power },
        batched_rank = { comm_hook = "batched_power_sgd",
          comm_state_option = with { matrix_approximation_rank = 2 } },
        fp16_power = { comm_hook = "power_sgd", comm_wrapper = "fp16", comm_state_option = power },
        bf16_fp16 = { comm_hook = "fp16", comm_wrapper = "bf16" },
        none = {},
      }
      local results = {}
      for _, name in ipairs { "fp16", "bf16", "power", "power_rank", "power_cold", "batched", "batched_rank",
        "fp16_power", "bf16_fp16", "none" } do
        local model, hook = train(cases[name], 6)
        results[name] = values(model, 7)
        check((hook and hook.steps or 0) == (name == "none" and 0 or 6))
      end
      if rank == 0 then print(accelerate.utils.json.encode(results)) end
    ]])
    local results = json.decode(out)
    -- In float16, PyTorch also makes columns orthogonal in it, and we do in float32: six steps of
    -- 0.5 times some of its roundings.
    local tolerance = { fp16_power = 1e-3, fp16 = 1e-6, bf16 = 1e-6, bf16_fp16 = 1e-6 }
    for name, expected in pairs(reference) do
      local got, worst, differs = results[name], 0, 0
      assert.are.equal(#expected, #got, name)
      for i, v in ipairs(expected) do
        worst = math.max(worst, math.abs(v - got[i]))
        differs = math.max(differs, math.abs(results.none[i] - got[i]))
      end
      assert.is_true(worst <= (tolerance[name] or 5e-6),
        ("%s: differs by %g from PyTorch's"):format(name, worst))
      assert.is_true(differs > 1e-5, name .. " is what no hook gives")
    end
  end)

  it("lose nothing where gradients have the rank that is sent, and keep ranks together on any number of them",
    function()
    for n = 1, 4 do
      ranks.ok(n, TRAIN .. [[
        local whole = values((train(nil, 4)))
        for _, kind in ipairs { "power_sgd", "batched_power_sgd" } do
          for _, feedback in ipairs { true, false } do
            local option = { matrix_approximation_rank = 32, min_compression_rate = 1e-6, warm_start = false,
              use_error_feedback = feedback,
              start_powerSGD_iter = feedback and 2 or 0 }
            local model, hook = train({ comm_hook = kind, comm_state_option = option }, 4, true)
            local w = worst(whole, values(model))
            check(w < 2e-5, kind .. " differs by " .. w)
            check(ranks == 1 or hook.before > 0)
          end
        end
        for _, kind in ipairs { "fp16", "bf16", "power_sgd" } do
          local model = train({ comm_hook = kind, comm_state_option = kind == "power_sgd"
            and { start_powerSGD_iter = 2 } or nil }, 4)
          for _, p in ipairs(model:parameters()) do
            local all = accelerate.utils.gather(p:detach():reshape(1, -1))
            check((all - all:narrow(1, 1, 1)):abs():max():item() == 0, kind .. ": ranks differ")
          end
          check(worst(whole, values(model)) < (kind == "power_sgd" and 0.5 or 5e-3))
        end
        -- buckets of any size give the same bits
        check(worst(whole, values((train({ bucket_cap_mb = 0.0005 }, 4)))) == 0)
      ]])
    end
  end)

  it("tell about parameters that a loss did not reach only where the script promised otherwise", function()
    local SCRIPT = [[
      local nn, optim = require "accelerate.nn", require "accelerate.optim"
      local Net = nn.class("Net")
      function Net:init() self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3) end
      function Net:forward(x, both) return both and self.b(self.a(x)) or self.a(x) end
      local accelerator = accelerate.Accelerator {
        kwargs_handlers = { accelerate.DistributedDataParallelKwargs(HANDLER) } }
      local model = accelerator:prepare(Net())
      for step = 1, 3 do
        accelerator:backward(model(core.ones(2, 3), BOTH):sum())
        check(model.a.weight.grad ~= nil)
        model:zero_grad()
      end
    ]]
    local function run(handler, both)
      return ranks.run(2, (SCRIPT:gsub("HANDLER", handler):gsub("BOTH", both)))
    end
    for _, case in ipairs { { "{}", "false" }, { "{ find_unused_parameters = true }", "rank == 0" },
      { "{ static_graph = true }", "false" },
      { "{ find_unused_parameters = false }", "true" } } do
      local status, _, err = run(case[1], case[2])
      assert.are.equal(0, status, err)
    end
    local status, _, err = run("{ find_unused_parameters = false }", "false")
    assert.are.equal(1, status)
    assert.matches("the loss did not reach 'b.weight', 'b.bias'; with find_unused_parameters = false all " ..
      "parameters must take part", err)
    status, _, err = run("{ static_graph = true }", "step < 3")
    assert.are.equal(1, status)
    assert.matches("static_graph = true, but the graph has changed: parameters without a gradient are " ..
      "'b.weight', 'b.bias' now and were none", err)
  end)

  it("broadcast rank 0's buffers unless told not to", function()
    ranks.ok(2, [[
      local nn, state = require "accelerate.nn", require "accelerate.state"
      for _, shared in ipairs { true, false } do
        state.reset()
        local accelerator = accelerate.Accelerator {
          kwargs_handlers = { accelerate.DistributedDataParallelKwargs { broadcast_buffers = shared } } }
        local model = accelerator:prepare(nn.BatchNorm1d(2))
        accelerator:backward(model(core.tensor { { 1, 2 }, { rank, 4 } } + rank):sum())
        local means = accelerator:gather(model.running_mean:reshape(1, -1))
        check(((means - means:narrow(1, 1, 1)):abs():max():item() == 0) == shared)
      end
    ]])
  end)
end)
