-- What prepare and its parts do beyond the plain case (accelerator_steps_spec has that).
local accelerate = require "accelerate"
local core = require "accelerate.core"
local data = require "accelerate.data"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local parallel = require "accelerate.parallel"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"

local function sgd(model) return optim.SGD(model:parameters(), { lr = 0.5 }) end

describe("preparing", function()
  local accelerator
  before_each(function()
    state.reset()
    accelerator = accelerate.Accelerator()
  end)
  after_each(function() state.reset() end)

  it("takes optimizers first and schedulers after, so that a scheduler may come before its optimizer",
    function()
    local a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    local first, second = sgd(a), sgd(b)
    local for_second = optim.lr_scheduler.StepLR(second, { step_size = 1 })
    local s, o2, _, _, o1 = accelerator:prepare(for_second, second, b, a, first)
    assert.are.same({ o2 }, s.optimizers)
    assert.are.same({ o2, o1 }, accelerator._optimizers)
    -- one made on an optimizer that was not prepared follows all that were
    local stranger = accelerator:prepare(optim.lr_scheduler.StepLR(sgd(nn.Linear(1, 1)), { step_size = 1 }))
    assert.are.same({ o2, o1 }, stranger.optimizers)
    -- and one made on the prepared optimizer follows that
    assert.are.same({ o1 }, accelerator:prepare(optim.lr_scheduler.StepLR(o1, { step_size = 1 })).optimizers)
    assert.are.equal(0, select("#", accelerator:prepare()))
  end)

  it("lists objects anew after free_memory, and wraps nothing twice", function()
    local model = nn.Linear(2, 2)
    local loader = data.DataLoader(data.TensorDataset(core.ones(4, 2)), { batch_size = 2 })
    local optimizer
    model, optimizer, loader = accelerator:prepare(model, sgd(model), loader)
    local scheduler = accelerator:prepare(optim.lr_scheduler.StepLR(optimizer, { step_size = 1 }))
    local kept = { state_dict = function() return {} end, load_state_dict = function() end }
    accelerator:register_for_checkpointing(kept)
    accelerator:accumulate(model, function() end)
    local nothing = { accelerator:clear(model, optimizer, loader) }
    assert.are.equal(0, #nothing)
    assert.are.equal(0, accelerator.step)
    assert.are.same({ kept }, accelerator._custom_objects)
    local m, o, l, s = accelerator:prepare(model, optimizer, loader, scheduler)
    assert.is_true(m == model and o == optimizer and l == loader and s == scheduler)
    assert.are.same({ 1, 1, 1, 1 },
      { #accelerator._models, #accelerator._optimizers, #accelerator._dataloaders, #accelerator._schedulers })
    accelerator:backward(model(core.ones(1, 2)):sum())
    optimizer:step()
    -- a LOMO optimizer is forgotten, too: backward is a plain one again
    accelerator:prepare(optim.LOMO(nn.Linear(2, 2)))
    accelerator:free_memory()
    assert.is_false(accelerator.has_lomo_optimizer)
    local other = accelerator:prepare(nn.Linear(2, 2))
    accelerator:backward(other(core.ones(1, 2)):sum())
    assert.is_truthy(other.weight.grad)
  end)

  it("gives memory back", function()
    local before = core.memory_stats().live_bytes
    local model = nn.Linear(512, 512)
    local optimizer = select(2, accelerator:prepare(model, optim.AdamW(model:parameters(), {})))
    accelerator:backward(model(core.ones(1, 512)):sum())
    optimizer:step()
    assert.is_true(core.memory_stats().live_bytes > before + 4 * 512 * 512 * 4)
    model, optimizer = accelerator:free_memory(model, optimizer)
    collectgarbage() collectgarbage()
    assert.is_nil(model)
    assert.is_nil(optimizer)
    assert.is_true(core.memory_stats().live_bytes < before + 512 * 512,
      "parameters, gradients and state are gone")
  end)

  it("with evaluation_mode leaves a model out of everything that trains", function()
    local model = nn.Linear(2, 2)
    local bias = model.bias
    assert.are.equal(model, accelerator:prepare_model(model, { evaluation_mode = true }))
    assert.is_nil(parallel.record_of(model))
    assert.are.equal(bias, model.bias)
    assert.are.same({}, accelerator._models)
    ranks.ok(2, [[
      local nn = require "accelerate.nn"
      local accelerator = accelerate.Accelerator()
      -- neither compared nor reduced: each rank's own, also in size
      local own = accelerator:prepare_model(nn.Linear(2, 2 + rank), { evaluation_mode = true })
      core.no_grad(function() own.weight:fill_(rank) end)
      accelerator:backward(own(core.full({ 1, 2 }, rank + 1)):sum())
      check(own.weight.grad:totable()[1][1] == rank + 1 and own.weight:totable()[1][1] == rank)
      -- a frozen model stays each rank's own, too
      local frozen = nn.Linear(2, 2)
      for _, p in ipairs(frozen:parameters()) do p.requires_grad = false end
      core.no_grad(function() frozen.weight:fill_(rank) end)
      frozen = accelerator:prepare(frozen)
      check(frozen.weight:totable()[1][1] == rank)
      local trained = accelerator:prepare(nn.Linear(2, 2))
      accelerator:backward(frozen(trained(core.full({ 1, 2 }, rank + 1))):sum())
      local grads = accelerator:gather(trained.weight.grad:reshape(1, -1))
      check((grads - grads:narrow(1, 1, 1)):abs():max():item() == 0)
    ]])
  end)

  it("refuses a model that is spread over several devices on several ranks, unless it is told to take it",
    function()
    local Net = nn.class("Net")
    function Net:init(map)
      self.inner = nn.Linear(2, 2)
      self.inner.hf_device_map = map
    end
    assert.is_false(accelerator:verify_device_map(nn.Linear(2, 2)))
    assert.is_false(accelerator:verify_device_map(Net { [""] = 0 }))
    assert.is_true(accelerator:verify_device_map(Net { a = 0, b = "cpu" }))
    assert.error_matches(function() accelerator:verify_device_map(3) end, "expected a module, got 3")
    local spread = accelerator:prepare(Net { a = 0, b = 1 })
    assert.are.same({ spread }, accelerator._models)  -- one process
    local SCRIPT = [[
      local nn = require "accelerate.nn"
      local model = nn.Linear(2, 2)
      model.hf_device_map = { a = 0, b = 1 }
      accelerate.Accelerator():prepare(model)
    ]]
    local status, _, err = ranks.run(2, SCRIPT)
    assert.are.equal(1, status)
    assert.matches("spread over several devices.*cannot be trained on 2 ranks; " ..
      "ACCELERATE_BYPASS_DEVICE_MAP=true", err)
    ranks.ok(2, SCRIPT, { env = { ACCELERATE_BYPASS_DEVICE_MAP = "true" } })
  end)

  it("says which engines would refuse what", function()
    for option, what in pairs {
      megatron_lm_plugin = "Megatron" } do
      assert.error_matches(function() accelerate.Accelerator { [option] = {} } end, what .. ".*not there yet")
    end
    for _, name in ipairs { "DeepSpeedOptimizerWrapper", "DeepSpeedSchedulerWrapper" } do
      assert.error_matches(function() return accelerate.utils[name] end, name ..
        " is not there yet: it belongs to DeepSpeed")
    end
    assert.error_matches(function() return accelerate.load_and_quantize_model end,
      "it is accelerate.utils.load_and_quantize_model")
    assert.error_matches(function() return accelerate.utils.fsdp2_prepare_model end,
      "fsdp2_prepare_model is not there yet: it belongs to fully sharded data parallel")
    local status, _, err = host.run { "--tpu", "-e", "print(1)" }
    assert.are_not.equal(0, status)
    assert.matches("%-%-tpu: there is no backend for TPUs", err)
    -- a TPU's own option changes nothing elsewhere, as in Accelerate
    status, _, err = host.run { "--downcast_bf16", "-e", "print(1)" }
    assert.are.equal(0, status)
    assert.matches("%-%-downcast_bf16 has no effect without %-%-tpu", err)
  end)

  it("places each object as its entry of device_placement says, state of optimizers included", function()
    local fake = host.path:match("^(.*)/") .. "/libax_fake_device.so"
    if not fs.exists(fake) then return pending("needs " .. fake) end
    local status, out, err = host.run({ "-" }, {
      env = { ACCEL_CUDA_PLUGIN = fake, ACCELERATE_TORCH_DEVICE = "cuda" }, stdin = [[
      local accelerate, core = require "accelerate", require "accelerate.core"
      local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
      local accelerator = accelerate.Accelerator()
      local function set()
        local model = nn.Linear(2, 2)
        local optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
        model(core.ones(1, 2)):sum():backward()
        optimizer:step()
        return model, optimizer, data.DataLoader(data.TensorDataset(core.ones(2, 2)), { batch_size = 2 })
      end
      local function where(model, optimizer, loader)
        local batch
        for x in loader:iter() do batch = x.device end
        return ("%s %s %s"):format(model.weight.device, optimizer.state[model.weight].momentum_buffer.device,
          batch)
      end
      print(where(accelerator:prepare(set())))
      local model, optimizer, loader = set()
      print(where(accelerator:prepare(model, optimizer, loader,
        { device_placement = { false, true, false } })))
      model, optimizer, loader = set()
      print(where(accelerator:prepare(model, optimizer, loader,
        { device_placement = { true, true, false } })))
      model, optimizer = set()
      accelerator:prepare_model(model)
      print(accelerator:prepare_optimizer(optimizer).state[model.weight].momentum_buffer.device)
      model, optimizer, loader = set()
      accelerator:prepare_model(model, { device_placement = false })
      accelerator:prepare_optimizer(optimizer, { device_placement = false })
      print(where(model, optimizer, accelerator:prepare_data_loader(loader, { device_placement = false })))
    ]] })
    assert.are.equal(0, status, err)
    assert.are.equal("cuda:0 cuda:0 cuda:0\ncpu cpu cpu\ncuda:0 cuda:0 cpu\ncuda:0\ncpu cpu cpu\n", out)
  end)

  it("unwraps to the model itself, with the parameters it has and, if asked, its own forward", function()
    local model = nn.Linear(2, 2)
    local prepared = accelerator:prepare(model)
    local plain = accelerator:unwrap_model(prepared)
    for i, p in ipairs(prepared:parameters()) do assert.are.equal(p, plain:parameters()[i]) end
    assert.are.equal(plain,
      accelerator:unwrap_model(prepared, { keep_fp32_wrapper = false, keep_torch_compile = false }))
    local names = {}
    for name in pairs(accelerator:get_state_dict(prepared)) do names[#names + 1] = name end
    table.sort(names)
    assert.are.same({ "bias", "weight" }, names)  -- no longer than the model's own
    local other = nn.Linear(2, 2)
    accelerator:unwrap_model(prepared):load_state_dict(other:state_dict())
    assert.are.same(other.weight:totable(), prepared.weight:totable())
    assert.error_matches(function() accelerator:unwrap_model(3) end, "unwrap_model: expected a module, got 3")
    assert.error_matches(function() accelerator:unwrap_model(model, { keep = true }) end, "unwrap_model")
  end)

  it("copies everything but an Accelerator and its state, of which there is one", function()
    local model = nn.Linear(2, 2)
    local shared = core.ones(2)
    local original = { accelerator = accelerator, list = { accelerator.state, accelerator.gradient_state },
      x = shared, y = { shared } }
    local made = accelerate.utils.deepcopy(original)
    assert.are_not.equal(original, made)
    assert.are.equal(accelerator, made.accelerator)
    assert.are.equal(accelerator.state, made.list[1])
    assert.are.equal(accelerator.gradient_state, made.list[2])
    assert.are_not.equal(shared, made.x)
    assert.are.equal(made.x, made.y[1])
    shared:add_(1)
    assert.are.same({ 1, 1 }, made.x:totable())
    assert.are.same(model.weight:totable(), accelerate.utils.deepcopy({ model })[1].weight:totable())
    local optimizer = require("accelerate.optim").SGD(model:parameters(), { lr = 0.1 })
    assert.error_matches(function() accelerate.utils.deepcopy { optimizer } end,
      "deepcopy: cannot copy a SGD")
    -- objects go between processes as data, and an Accelerator is none
    assert.error_matches(function() accelerate.utils.gather_object { accelerator } end,
      "an object .*cannot go from one process to another")
  end)

  it("are copied however deep they are nested, with what they share and their circles", function()
    local last = { x = core.ones(1) }
    local chain = last
    for _ = 1, 100000 do chain = { next = chain, last = last } end
    last.first = chain
    local made = accelerate.utils.deepcopy(chain)
    local at = made
    while at.next do at = at.next end
    assert.are.equal(at, made.last)
    assert.are.equal(made, at.first)
    assert.are_not.equal(last.x, at.x)
    assert.are.same({ 1 }, at.x:totable())
  end)
end)

describe("prepared optimizers and schedulers", function()
  local accelerator
  before_each(function()
    state.reset()
    accelerator = accelerate.Accelerator { gradient_accumulation_steps = 2 }
  end)
  after_each(function() state.reset() end)

  it("step with a closure, and only when gradients are synchronised", function()
    local model = nn.Linear(1, 1, { bias = false })
    core.no_grad(function() model.weight:fill_(4) end)
    local optimizer
    model, optimizer = accelerator:prepare(model, sgd(model))
    local calls = 0
    local function closure()
      calls = calls + 1
      optimizer:zero_grad()
      local loss = model(core.ones(1, 1)):sum()
      loss:backward()
      return loss
    end
    accelerator.sync_gradients = false
    assert.is_nil(optimizer:step(closure))
    assert.are.same({ 0, 4 }, { calls, model.weight:item() })
    accelerator.sync_gradients = true
    assert.are.equal(4, optimizer:step(closure):item())
    assert.are.same({ 1, 3.5 }, { calls, model.weight:item() })
    accelerator.sync_gradients = false
    optimizer:zero_grad()
    assert.is_truthy(model.weight.grad)
    accelerator.sync_gradients = true
    optimizer:zero_grad(false)
    assert.are.equal(0, model.weight.grad:item())
    optimizer:zero_grad()
    assert.is_nil(model.weight.grad)
  end)

  it("pass on what they do not have themselves", function()
    local model = nn.Linear(1, 1)
    local inner, modes = optim.Adam(model:parameters(), { lr = 0.5 }), {}
    function inner:train() modes[#modes + 1] = "train" end
    function inner:eval() modes[#modes + 1] = "eval" end
    local optimizer = accelerator:prepare(inner)
    local scheduler = accelerator:prepare(optim.lr_scheduler.ExponentialLR(optimizer, { gamma = 0.5 }))
    optimizer:train()
    optimizer:eval()
    assert.are.same({ "train", "eval" }, modes)
    -- has none
    accelerator:prepare(optim.SGD({ core.ones(1, { requires_grad = true }) }, { lr = 1 })):train()
    for _, name in ipairs { "state", "param_groups", "defaults" } do
      assert.are.equal(inner[name], optimizer[name])
    end
    assert.is_false(optimizer.step_was_skipped)
    assert.error_matches(function() optimizer.step_was_skipped = true end, "cannot be assigned")
    assert.are.same({ 0.5 }, scheduler:get_last_lr())
    assert.are.same(scheduler.scheduler:get_lr(), scheduler:get_lr())
    scheduler:step()
    assert.are.same({ 0.25 }, scheduler:get_last_lr())
    local saved = scheduler:state_dict()
    assert.are.equal(1, saved.last_epoch)
    scheduler:step()
    scheduler:load_state_dict(saved)
    assert.are.equal(1, scheduler.last_epoch)
    local status, out = host.run({ "-" }, { stdin = [[
      local accelerate, core, optim =
        require "accelerate", require "accelerate.core", require "accelerate.optim"
      local o = optim.SGD({ core.ones(1, { requires_grad = true }) }, { lr = 1 })
      local s = accelerate.Accelerator():prepare(optim.lr_scheduler.StepLR(o, { step_size = 1 }))
      s:print_lr(true, 1, 0.25)
      s:print_lr(false, 1, 0.25)
    ]] })
    assert.are.equal(0, status)
    assert.are.equal("group 1: learning rate 2.5000e-01\n", out)
  end)

  it("move a schedule once a call without step_scheduler_with_optimizer, " ..
    "and adjust_scheduler changes nothing", function()
    state.reset()
    local plugin = accelerate.GradientAccumulationPlugin { num_steps = 4, adjust_scheduler = true }
    accelerator = accelerate.Accelerator { step_scheduler_with_optimizer = false,
      gradient_accumulation_plugin = plugin }
    local optimizer = accelerator:prepare(sgd(nn.Linear(1, 1)))
    local scheduler = accelerator:prepare(optim.lr_scheduler.StepLR(optimizer, { step_size = 1 }))
    accelerator.sync_gradients = false
    scheduler:step()
    assert.are.equal(1, scheduler.last_epoch)
    state.reset()
    for _, adjust in ipairs { true, false } do
      accelerator = accelerate.Accelerator {
        gradient_accumulation_plugin = accelerate.GradientAccumulationPlugin { num_steps = 4,
          adjust_scheduler = adjust } }
      optimizer = accelerator:prepare(sgd(nn.Linear(1, 1)))
      scheduler = accelerator:prepare(optim.lr_scheduler.StepLR(optimizer, { step_size = 1 }))
      for batch = 1, 8 do
        accelerator.sync_gradients = batch % 4 == 0
        scheduler:step()
      end
      assert.are.equal(2, scheduler.last_epoch)
    end
  end)

  it("end a one-cycle schedule where it ends, however many ranks move it", function()
    for _, n in ipairs { 1, 2, 3 } do
      ranks.ok(n, [[
        local optim = require "accelerate.optim"
        local accelerator = accelerate.Accelerator()
        local TOTAL = 10
        local inner = optim.SGD({ core.ones(1, { requires_grad = true }) }, { lr = 1, momentum = 0.9 })
        local optimizer, scheduler = accelerator:prepare(inner,
          optim.lr_scheduler.OneCycleLR(inner, { max_lr = 1, total_steps = TOTAL }))
        for step = 1, math.ceil(TOTAL / ranks) + 2 do  -- more batches than there are moves
          optimizer:step()
          scheduler:step()
        end
        check(scheduler.last_epoch == TOTAL, tostring(scheduler.last_epoch))
        check(not pcall(scheduler.scheduler.step, scheduler.scheduler), "it would refuse one more")
      ]])
    end
  end)
end)
