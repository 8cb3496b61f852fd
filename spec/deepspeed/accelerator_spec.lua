-- An Accelerator under a DeepSpeed configuration: what prepare makes of it, and what a step does.
local accelerate = require "accelerate"
local data, nn, optim, tensor, utils = accelerate.data, accelerate.nn, accelerate.optim, accelerate.tensor,
  accelerate.utils
local messages = require "spec.support.messages"
local notice = require "accelerate.messages.notice"
local state = require "accelerate.state"

local function plugin_of(more, options)
  local config = { zero_optimization = { stage = 2 } }
  for key, value in pairs(more or {}) do config[key] = value end
  options = options or {}
  options.hf_ds_config = config
  return accelerate.DeepSpeedPlugin(options)
end

local function accelerator_of(more, options)
  options = options or {}
  options.deepspeed_plugin = plugin_of(more)
  return accelerate.Accelerator(options)
end

local function loader_of(n, batch_size)
  return data.DataLoader(data.TensorDataset(tensor.ones({ n, 4 }), tensor.ones({ n, 2 })),
    { batch_size = batch_size })
end

local ADAM = { optimizer = { type = "AdamW",
  params = { lr = "auto", weight_decay = "auto", betas = { 0.8, 0.9 } } } }

describe("an Accelerator under DeepSpeed", function()
  before_each(function()
    state.reset()
    notice.reset()
  end)
  after_each(state.reset)

  it("is of the type DEEPSPEED, and has its plugin", function()
    local plugin = plugin_of()
    local accelerator = accelerate.Accelerator { deepspeed_plugin = plugin }
    assert.are.equal("DEEPSPEED", accelerator.distributed_type)
    assert.are.equal(plugin, accelerator.deepspeed_plugin)
    assert.are.equal(plugin, accelerator.state.deepspeed_plugin)
    assert.are.equal(plugin, accelerator.state.deepspeed_plugins)
    assert.are.equal(plugin, utils.get_active_deepspeed_plugin(accelerator.state))
    assert.is_true(plugin.selected)
    assert.are.equal("ZeRO-2", accelerator._plan.name)
    assert.are.equal(plugin, accelerate.Accelerator().deepspeed_plugin)
  end)

  it("is printed with its configuration", function()
    assert.matches("Mixed precision type: no\nds_config: {.*stage = 2", tostring(accelerator_of().state))
  end)

  it("takes the plugin's fields as a table, and ACCELERATE_USE_DEEPSPEED", function()
    assert.are.equal(3,
      accelerate.Accelerator { deepspeed_plugin = { zero_stage = 3 } }.deepspeed_plugin.zero_stage)
    state.reset()
    utils.patch_environment({ ACCELERATE_USE_DEEPSPEED = "true", ACCELERATE_DEEPSPEED_ZERO_STAGE = 1 },
      function()
      assert.are.equal("ZeRO-1", accelerate.Accelerator()._plan.name)
    end)
  end)

  it("reduces in communication_data_type, where gradients are cut", function()
    local accelerator = accelerator_of { communication_data_type = "bf16" }
    assert.are.equal("bfloat16", accelerator._plan.reduce_dtype)
    for stage, text in pairs { [0] = "with stage 0 leave it out, or give the Accelerator " ..
      "DistributedDataParallelKwargs { comm_hook = 'bf16' }", [1] = "with stage 1 leave it out" } do
      state.reset()
      assert.error_matches(function()
        accelerator_of { communication_data_type = "bf16", zero_optimization = { stage = stage } }
      end, text, 1, true)
      state.reset()
      accelerator_of { communication_data_type = "fp32", zero_optimization = { stage = stage } }
    end
  end)

  it("has several plugins by name, of which one is in force", function()
    local student, teacher = plugin_of(), plugin_of { zero_optimization = { stage = 3 } }
    local accelerator = accelerate.Accelerator { deepspeed_plugins = { teacher = teacher,
      student = student } }
    local shared = accelerator.state
    assert.are.equal(student, accelerator.deepspeed_plugin) -- the first one made
    assert.are.equal(teacher, shared:get_deepspeed_plugin "teacher")
    shared:select_deepspeed_plugin "teacher"
    assert.are.equal(teacher, accelerator.deepspeed_plugin)
    assert.are.same({ false, true }, { student.selected, teacher.selected })
    accelerator:prepare(nn.Linear(4, 2), loader_of(8, 2))
    assert.are.equal("ZeRO-3", accelerator._plan.name)
    assert.error_matches(function() shared:select_deepspeed_plugin "pupil" end,
      "there is no plugin 'pupil'; known: student, teacher", 1, true)
  end)

  it("refuses plugins beside other engines, and for a second Accelerator", function()
    assert.error_matches(function()
      accelerate.Accelerator { deepspeed_plugin = {}, fsdp_plugin = {} }
    end, "both say how the model is cut; give one of them", 1, true)
    utils.patch_environment({ ACCELERATE_USE_DEEPSPEED = "true", ACCELERATE_USE_FSDP = "true" }, function()
      assert.error_matches(accelerate.Accelerator,
        "ACCELERATE_USE_FSDP and ACCELERATE_USE_DEEPSPEED both say how the model is cut", 1, true)
      assert.matches("deepspeed_plugin holds, and ACCELERATE_USE_FSDP has no effect",
        messages.said(accelerator_of))
      state.reset()
    end)
    assert.error_matches(function() accelerate.Accelerator { deepspeed_plugin = false } end,
      "deepspeed_plugin must be a DeepSpeedPlugin, or a map of them by name, got false", 1, true)
    assert.error_matches(function() accelerate.Accelerator { deepspeed_plugin = 3 } end,
      "deepspeed_plugin must be a DeepSpeedPlugin, or a map of them by name, got 3", 1, true)
    assert.error_matches(function()
      accelerate.Accelerator { deepspeed_plugins = { a = plugin_of(), b = 1 } }
    end,
      "entry b of the map must be a DeepSpeedPlugin by name, got 1", 1, true)
    accelerator_of()
    assert.error_matches(accelerator_of, "the first Accelerator of this process was made with its own", 1,
      true)
  end)

  it("computes in what the configuration says, and refuses two types", function()
    assert.are.equal("bf16", accelerator_of { bf16 = { enabled = true } }.mixed_precision)
    state.reset()
    assert.are.equal("bf16",
      accelerator_of({ bf16 = { enabled = "auto" } }, { mixed_precision = "bf16" }).mixed_precision)
    state.reset()
    assert.error_matches(function()
      accelerator_of({ bf16 = { enabled = true } }, { mixed_precision = "fp16" })
    end,
      "mixed_precision = 'fp16', and hf_ds_config: bf16.enabled is true", 1, true)
  end)

  it("fills 'auto' from the run", function()
    local config = { train_batch_size = "auto", train_micro_batch_size_per_gpu = "auto",
      gradient_accumulation_steps = "auto", gradient_clipping = "auto",
      zero_optimization = { stage = 3, reduce_bucket_size = "auto", stage3_prefetch_bucket_size = "auto",
        stage3_param_persistence_threshold = "auto" },
      optimizer = ADAM.optimizer, scheduler = { type = "WarmupDecayLR", params = { warmup_min_lr = "auto",
        warmup_max_lr = "auto", warmup_num_steps = "auto", total_num_steps = "auto" } } }
    local accelerator = accelerator_of(config, { gradient_accumulation_steps = 2 })
    local model = nn.Linear(4, 2)
    model.config = { hidden_size = 10 }
    local dummy = utils.DummyOptim(model:parameters(), { lr = 5e-5, weight_decay = 1e-4 })
    local _, optimizer, _, schedule = accelerator:prepare(model, dummy, loader_of(32, 16),
      utils.DummyScheduler(dummy, { total_num_steps = 10, warmup_num_steps = 4 }))
    local made = accelerator.deepspeed_plugin.deepspeed_config
    assert.are.same({ 32, 16, 2, 1 }, { made.train_batch_size, made.train_micro_batch_size_per_gpu,
      made.gradient_accumulation_steps, made.gradient_clipping })
    assert.are.same({ 100, 90, 100 }, { made.zero_optimization.reduce_bucket_size,
      made.zero_optimization.stage3_prefetch_bucket_size,
      made.zero_optimization.stage3_param_persistence_threshold })
    assert.are.same({ lr = 5e-5, weight_decay = 1e-4, betas = { 0.8, 0.9 } }, made.optimizer.params)
    assert.are.same({ warmup_min_lr = 0, warmup_max_lr = 5e-5, warmup_num_steps = 4, total_num_steps = 10 },
      made.scheduler.params)
    assert.are.equal("AdamW", optimizer.optimizer.__name)
    assert.are.same({ 0.8, 0.9 }, optimizer.param_groups[1].betas)
    assert.are.equal("WarmupDecayLR", schedule.scheduler.__name)
  end)

  it("names all that does not fit in one message, each value with its origin", function()
    local accelerator = accelerator_of { train_batch_size = 64, train_micro_batch_size_per_gpu = 4,
      gradient_accumulation_steps = 2, zero_optimization = { stage = 2, reduce_bucket_size = "auto" },
      optimizer = { type = "AdamW", params = { lr = 1e-3 } } }
    local fine, message = pcall(accelerator.prepare, accelerator, nn.Linear(4, 2),
      optim.SGD({ tensor.ones({ 1 }, { requires_grad = true }) }, { lr = 1 }))
    assert.is_false(fine)
    for _, text in ipairs { "the DeepSpeed configuration (hf_ds_config) does not fit this run",
      "train_batch_size = 64 (hf_ds_config), and train_micro_batch_size_per_gpu = 4 (hf_ds_config) x " ..
        "gradient_accumulation_steps = 2 (hf_ds_config) x 1 ranks is 8",
      "the configuration has the block optimizer, and the script gives prepare one of its own",
      "zero_optimization.reduce_bucket_size is 'auto', which is filled from model.config.hidden_size" } do
      assert.is_truthy(message:find(text, 1, true), message)
    end
  end)

  it("looks again at a configuration that the script has changed", function()
    local accelerator = accelerator_of()
    local config = accelerator.deepspeed_plugin.deepspeed_config
    config.train_batch_size, config.optimizer = "8", print
    assert.error_matches(function() accelerator:prepare(nn.Linear(4, 2)) end,
      "optimizer: expected a map of keys, got a function\n  hf_ds_config: train_batch_size: expected", 1,
      true)
    config.train_batch_size, config.optimizer = 8, nil
    local model = nn.Linear(4, 2)
    local _, optimizer = accelerator:prepare(model, optim.SGD(model:parameters(), { lr = 1 }))
    config.gradient_clipping = "much"
    assert.error_matches(function() optimizer:step() end,
      "gradient_clipping of the DeepSpeed configuration must be a number, got 'much'", 1, true)
  end)

  it("infers the third of the batch's numbers", function()
    for _, case in ipairs {
      { { train_batch_size = 24, train_micro_batch_size_per_gpu = 4 }, 6 },
      { { train_batch_size = 24, gradient_accumulation_steps = 3 }, 3 },
      { { train_micro_batch_size_per_gpu = 4, gradient_accumulation_steps = 3 }, 3 },
      { { train_batch_size = 24 }, 1 },
      { {}, 1 },
    } do
      state.reset()
      local accelerator = accelerator_of(case[1])
      accelerator:prepare(nn.Linear(4, 2))
      local made = accelerator.deepspeed_plugin.deepspeed_config
      assert.are.equal(case[2], made.gradient_accumulation_steps)
      assert.are.equal(case[2], accelerator.gradient_accumulation_steps)
      if made.train_batch_size then
        assert.are.equal(made.train_batch_size,
          made.train_micro_batch_size_per_gpu * made.gradient_accumulation_steps)
      end
    end
    state.reset()
    assert.error_matches(function()
      accelerator_of { train_batch_size = 9, train_micro_batch_size_per_gpu = 4 }:prepare(nn.Linear(4, 2))
    end, "train_batch_size = 9 (hf_ds_config) is no multiple of train_micro_batch_size_per_gpu = 4", 1, true)
  end)

  it("chooses the smaller or the larger of several loaders' batch sizes", function()
    for smallest, expected in pairs { [true] = 4, [false] = 8 } do
      state.reset()
      local accelerator = accelerate.Accelerator { deepspeed_plugin = plugin_of(
        { train_micro_batch_size_per_gpu = "auto" }, { is_train_batch_min = smallest }) }
      accelerator:prepare(nn.Linear(4, 2), loader_of(32, 8), loader_of(32, 4))
      assert.are.equal(expected, accelerator.deepspeed_plugin:get_value "train_micro_batch_size_per_gpu")
    end
  end)

  it("needs a loader's batch_size for 'auto'", function()
    assert.error_matches(function()
      accelerator_of { train_micro_batch_size_per_gpu = "auto" }:prepare(nn.Linear(4, 2))
    end, "give prepare a loader with a batch_size together with the model", 1, true)
    state.reset()
    local accelerator = accelerator_of { train_micro_batch_size_per_gpu = "auto" }
    accelerator:prepare(loader_of(8, 2))
    accelerator:prepare(nn.Linear(4, 2))
    assert.are.equal(2, accelerator.deepspeed_plugin:get_value "train_micro_batch_size_per_gpu")
  end)

  it("takes the configuration's windows, and says so where the Accelerator has others", function()
    local accelerator = accelerator_of({ gradient_accumulation_steps = 3 },
      { gradient_accumulation_steps = 2 })
    local text = messages.said(function() accelerator:prepare(nn.Linear(4, 2)) end)
    assert.matches("gradient_accumulation_steps = 3 %(hf_ds_config%), and the Accelerator has 2", text)
    assert.are.equal(3, accelerator.gradient_accumulation_steps)
  end)

  it("refuses what only goes together, and two models", function()
    local function prepare(config, ...)
      local objects = { nn.Linear(4, 2), ... }
      return function()
        state.reset()
        accelerator_of(config):prepare(unpack(objects))
      end
    end
    local p = { tensor.ones({ 1 }, { requires_grad = true }) }
    local dummy, sgd = utils.DummyOptim(p), optim.SGD(p, { lr = 1 })
    for text, case in pairs {
      ["a DummyOptim stands for the configuration's block optimizer, which is missing"] = prepare({}, dummy),
      ["a DummyScheduler stands for the configuration's block scheduler, which is missing"] =
        prepare({}, sgd, utils.DummyScheduler(sgd)),
      ["the configuration has the block scheduler, and the script gives prepare one of its own"] =
        prepare({ scheduler = { type = "WarmupLR" } }, sgd, optim.lr_scheduler.StepLR(sgd, 1)),
      ["with a DummyOptim the schedule must be a DummyScheduler"] =
        prepare(ADAM, dummy, optim.lr_scheduler.StepLR(sgd, 1)),
      ["prepare: 2 models, and a DeepSpeed configuration is for one"] = prepare({}, nn.Linear(4, 2)),
      ["device_placement cannot be given under DeepSpeed"] = prepare({}, { device_placement = { true } }),
    } do
      assert.error_matches(case, text, 1, true)
    end
    state.reset()
    assert.error_matches(function() accelerate.Accelerator():prepare(dummy) end,
      "argument 1 is a DummyOptim, which stands for a block of a DeepSpeed configuration", 1, true)
  end)

  it("says where a DummyOptim and the configuration have different rates", function()
    local accelerator = accelerator_of { optimizer = { type = "AdamW", params = { lr = 1e-3 } } }
    local model = nn.Linear(4, 2)
    local text = messages.said(function()
      local _, optimizer = accelerator:prepare(model, utils.DummyOptim(model:parameters(), { lr = 0.5 }))
      assert.are.equal(1e-3, optimizer.param_groups[1].lr)
    end)
    assert.matches("optimizer.params.lr = 0.001 %(hf_ds_config%), and the DummyOptim has 0.5", text)
  end)
end)

describe("the optimizer of a DeepSpeed configuration", function()
  local makers = require "accelerate.accelerator.deepspeed.objects"
  local function make(type, params)
    local optimizer, why = makers.optimizer({ type = type, params = params },
      { tensor.ones({ 2, 2 }, { requires_grad = true }) })
    return optimizer and optimizer.__name or why, optimizer and optimizer.param_groups[1]
  end

  it("is DeepSpeed's for its own names, in any letters, with its defaults", function()
    for _, case in ipairs {
      { "Adam", {}, "AdamW", { lr = 1e-3, weight_decay = 0 } },
      { "adam", { adam_w_mode = false }, "Adam", { weight_decay = 0 } },
      { "Adam", { torch_adam = true }, "AdamW", { weight_decay = 0.01 } },
      { "AdamW", { weight_decay = 0.1, bias_correction = true, fp32_optimizer_states = true }, "AdamW",
        { weight_decay = 0.1 } },
      { "Lion", {}, "Lion", { lr = 1e-3, betas = { 0.9, 0.999 } } },
      { "Adagrad", {}, "Adagrad", { lr = 0.01 } },
      { "SGD", { momentum = 0.9, foreach = true }, "SGD", { lr = 1e-3, momentum = 0.9 } },
      { "RMSprop", {}, "RMSprop", { lr = 0.01 } },
    } do
      local name, group = make(case[1], case[2])
      assert.are.equal(case[3], name)
      for key, value in pairs(case[4]) do assert.are.same(value, group[key], case[1] .. " " .. key) end
    end
  end)

  it("is refused by name where it is not there", function()
    for type, text in pairs { Lamb = "Lamb is not there; the nearest is AdamW",
      OneBitAdam = "OneBitAdam is not there",
      Sgd = "there is no optimizer 'Sgd'; did you mean 'SGD'?", LBFGS = "there is no optimizer 'LBFGS'" } do
      assert.is_truthy(make(type, {}):find(text, 1, true), type)
    end
    for text, params in pairs { ["bias_correction = false is not there"] = { bias_correction = false },
      ["max_grad_norm = 1 is not there: gradient_clipping beside the block"] = { max_grad_norm = 1 },
      ["AdamW: option 'lr' must be a number, got '1e-3'"] = { lr = "1e-3" },
      ["AdamW: unknown option 'beta'; did you mean 'betas'?"] = { beta = { 0.9, 0.9 } } } do
      assert.is_truthy(make("AdamW", params):find(text, 1, true), text)
    end
  end)

  it("is named with its line among what does not fit", function()
    state.reset()
    local accelerator = accelerator_of { optimizer = { type = "AdamW", params = { lrr = 1 } } }
    local model = nn.Linear(4, 2)
    assert.error_matches(function() accelerator:prepare(model, utils.DummyOptim(model:parameters())) end,
      "hf_ds_config: optimizer: AdamW: unknown option 'lrr'", 1, true)
    state.reset()
  end)
end)

describe("a step under DeepSpeed", function()
  before_each(function()
    state.reset()
    notice.reset()
  end)
  after_each(state.reset)

  -- A parameter whose gradient is 3, 4 a step, of norm 5.
  local function training(config, make)
    local accelerator, model = accelerator_of(config), nn.Module()
    model.weight = nn.Parameter(tensor.zeros({ 2 }))
    local optimizer = make and make(model:parameters()) or optim.SGD(model:parameters(), { lr = 1 })
    return accelerator, model, accelerator:prepare(model, optimizer)
  end
  local function backward(accelerator, model, scale)
    accelerator:backward((model.weight * tensor.tensor { 3, 4 } * (scale or 1)):sum())
  end

  it("clips as gradient_clipping says, and clip_grad_norm_ returns the norm alone", function()
    local accelerator, model, _, optimizer = training { gradient_clipping = 1 }
    backward(accelerator, model)
    local text = messages.said(function()
      assert.near(5, accelerator:clip_grad_norm_(model:parameters(), 0.1):item(), 1e-6)
    end)
    assert.matches("max_norm = 0.1 has no effect under DeepSpeed: gradient_clipping = 1 %(hf_ds_config%)",
      text)
    assert.are.same({ 3, 4 }, model.weight.grad:totable())
    optimizer:step()
    local now = model.weight:totable()
    assert.near(-0.6, now[1], 1e-5)
    assert.near(-0.8, now[2], 1e-5)
  end)

  it("clips nothing without gradient_clipping, or with 0", function()
    for _, config in ipairs { {}, { gradient_clipping = 0 } } do
      state.reset()
      local accelerator, model, _, optimizer = training(config)
      backward(accelerator, model)
      optimizer:step()
      assert.are.same({ -3, -4 }, model.weight:totable())
    end
  end)

  it("happens at the end of a window, and returns the last norm before it", function()
    local accelerator, model, _, optimizer = training { gradient_clipping = 1,
      gradient_accumulation_steps = 2 }
    local norms = {}
    for i = 1, 4 do
      accelerator:accumulate(model, function()
        backward(accelerator, model)
        local norm = accelerator:clip_grad_norm_(model:parameters(), 1)
        norms[i] = norm and norm:item() or "none"
        optimizer:step()
        optimizer:zero_grad()
      end)
    end
    assert.are.same({ "none", 5, 5, 5 }, norms)
    assert.near(-1.2, model.weight:totable()[1], 1e-5)
  end)

  it("is left out with bf16.check_grad_overflow where a gradient is not finite", function()
    local accelerator, model, _, optimizer = training { bf16 = { enabled = true,
      check_grad_overflow = true } }
    backward(accelerator, model, math.huge)
    optimizer:step()
    assert.are.same({ 0, 0 }, model.weight:totable())
    assert.is_true(optimizer.step_was_skipped and accelerator.optimizer_step_was_skipped)
    optimizer:zero_grad()
    backward(accelerator, model)
    optimizer:step()
    assert.is_false(optimizer.step_was_skipped)
    assert.are.same({ -3, -4 }, model.weight:totable())
  end)

  it("moves the schedule of the configuration once, and the schedule's own step does nothing", function()
    local accelerator, model = accelerator_of { gradient_accumulation_steps = 1,
      optimizer = { type = "SGD", params = { lr = 1 } },
      scheduler = { type = "WarmupLR", params = { warmup_type = "linear", warmup_num_steps = 4 } } },
        nn.Linear(2, 1)
    local dummy = utils.DummyOptim(model:parameters())
    local _, optimizer, schedule = accelerator:prepare(model, dummy, utils.DummyScheduler(dummy))
    local rates = {}
    for i = 1, 4 do
      accelerator:backward(model(tensor.ones { 1, 2 }):sum())
      optimizer:step()
      schedule:step()
      schedule:step()
      rates[i] = optimizer.param_groups[1].lr
    end
    assert.are.same({ 0, 0.25, 0.5, 0.75 }, rates)
  end)

  it("moves what lr_scheduler_callable makes, and DeepSpeed's own classes", function()
    local function train(scheduler_of)
      state.reset()
      local accelerator, model = accelerator_of(), nn.Linear(2, 1)
      local optimizer = optim.SGD(model:parameters(), { lr = 1 })
      local schedule
      model, optimizer, schedule = accelerator:prepare(model, optimizer, scheduler_of(optimizer))
      for _ = 1, 2 do
        accelerator:backward(model(tensor.ones { 1, 2 }):sum())
        optimizer:step()
        schedule:step()
      end
      return optimizer.param_groups[1].lr
    end
    assert.are.equal(0.25, train(function(optimizer)
      return utils.DummyScheduler(optimizer, { lr_scheduler_callable = function(inner)
        return optim.lr_scheduler.ExponentialLR(inner, 0.5)
      end })
    end))
    assert.are.equal(0.5, train(function(optimizer)
      return optim.lr_scheduler.WarmupLR(optimizer, { warmup_type = "linear", warmup_num_steps = 2 })
    end))
    assert.are.equal(0.25,
      train(function(optimizer) return optim.lr_scheduler.ExponentialLR(optimizer, 0.5) end))
  end)

  it("refuses a closure and an optimizer that steps inside backward, where it clips", function()
    local accelerator, _, _, optimizer = training { gradient_clipping = 1 }
    assert.error_matches(function() optimizer:step(function() end) end,
      "where DeepSpeed's gradient_clipping (hf_ds_config) cannot clip them", 1, true)
    assert.is_not_nil(accelerator)
    state.reset()
    local _, _, _, lomo = training({ gradient_clipping = 1 }, function(params)
      return optim.LOMO(params, { lr = 1 })
    end)
    assert.error_matches(function() lomo:step() end, "LOMO moves parameters inside backward", 1, true)
  end)
end)
