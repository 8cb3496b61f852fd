-- The Accelerator: arguments, preparing, windows of accumulation, schedules, files.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local data = require "accelerate.data"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local ranks = require "spec.support.ranks"
local reference = require "spec.support.sharding_reference"
local state = require "accelerate.state"

local function run_with(env, code)
  return host.run({ "-e", code }, { env = env })
end

describe("the constructor", function()
  before_each(function() state.reset() end)
  after_each(function() state.reset() end)

  it("takes nothing, and has Accelerate's defaults", function()
    local a = accelerate.Accelerator()
    assert.are.equal("cpu", a.device)
    assert.are.equal("NO", a.distributed_type)
    assert.are.equal("no", a.mixed_precision)
    assert.are.equal(1, a.gradient_accumulation_steps)
    assert.is_true(a.sync_gradients)
    assert.are.equal(0, a.step)
    assert.is_true(a.is_main_process and a.is_local_main_process and a.is_last_process)
    assert.is_false(a.use_distributed or a.multi_device or a.split_batches or a.use_seedable_sampler
      or a.optimizer_step_was_skipped)
    assert.is_true(a.even_batches and a.device_placement and a.step_scheduler_with_optimizer
      and a.should_save_model)
    assert.is_nil(a.project_dir)
    assert.are.equal(0, a.save_iteration)
    assert.are.equal(state.GradientState(), a.gradient_state)
  end)

  it("names the nearest option for a misspelt one, and the nearest method for a misspelt call", function()
    assert.error_matches(function() accelerate.Accelerator { gradient_acumulation_steps = 2 } end,
      "did you mean 'gradient_accumulation_steps'")
    local a = accelerate.Accelerator()
    assert.error_matches(function() a:acumulate(print) end,
      "Accelerator has no 'acumulate'; did you mean 'accumulate'")
    assert.error_matches(function() a.sync_gradient = false end, "did you mean 'sync_gradients'")
    assert.error_matches(function() a.device = "cuda" end, "'device' cannot be assigned")
    assert.error_matches(function() return accelerate.Accelarator end, "did you mean 'Accelerator'")
  end)

  it("tells who writes a dot for a colon, or walks a loader itself, and what to write", function()
    local accelerator, model = accelerate.Accelerator(), nn.Linear(1, 1)
    local plain = data.DataLoader(data.TensorDataset(core.zeros(2, 1)), { batch_size = 1 })
    local optimizer, loader = accelerator:prepare(optim.SGD(model:parameters(), { lr = 1 }), plain)
    local scheduler = accelerator:prepare(optim.lr_scheduler.StepLR(optimizer, { step_size = 1 }))
    for text, call in pairs {
      ["accumulate: expected the Accelerator before its arguments, got a Linear; write " ..
        "object:accumulate(...), with a colon"] = function()
        accelerator.accumulate(model, function() end)
      end,
      ["step: expected the AcceleratedOptimizer before its arguments, got nil; write object:step(...), " ..
        "with a colon"] = function()
        optimizer.step()
      end,
      ["step: expected the AcceleratedScheduler before its arguments, got nil; write object:step(...), " ..
        "with a colon"] = function()
        scheduler.step()
      end,
      ["DataLoaderShard: a loader is walked by its iter: for x, y in loader:iter() do ... end"] = function()
        for _ in loader do end
      end,
      ["DataLoader: a loader is walked by its iter: for x, y in loader:iter() do ... end"] = function()
        for _ in plain do end
      end,
    } do
      local ok, message = pcall(call)
      assert.is_false(ok)
      assert.is_truthy(message:find(text, 1, true), message)
    end
    for code, text in pairs {
      ["nn.Linear(1, 1).train()"] =
        "train: expected the Module before its arguments, got nil; write object:train(...), with a colon",
      ["return nn.Linear(1, 1).bias < 0.5"] = "of a tensor, x:item() is the number",
      ["print(('%.3f'):format(nn.Linear(1, 1).bias))"] = "of a tensor, x:item() is the number",
    } do
      local _, _, err = host.run { "-e", "local nn = require 'accelerate.nn' " .. code }
      assert.is_truthy(err:find(text, 1, true), err)
    end
  end)

  it("says which engines are not there yet", function()
    for option, value in pairs { deepspeed_plugin = {}, deepspeed_plugins = {}, fsdp_plugin = {},
      megatron_lm_plugin = {}, dynamo_plugin = {},
      dynamo_backend = "inductor", parallelism_config = {}, torch_tp_plugin = {} } do
      assert.error_matches(function() accelerate.Accelerator { [option] = value } end, "Accelerator: " ..
        option .. ".*not there yet")
    end
    assert.error_matches(function()
      accelerate.Accelerator { deepspeed_plugin = {}, deepspeed_plugins = {} }
    end,
      "give deepspeed_plugin or deepspeed_plugins, not both")
    assert.error_matches(function() accelerate.Accelerator { dynamo_plugin = {}, dynamo_backend = "no" } end,
      "give dynamo_plugin or dynamo_backend, not both")
    assert.error_matches(function() accelerate.Accelerator { dynamo_backend = "inducter" } end,
      "did you mean 'inductor'")
    for variable in ("DEEPSPEED FSDP MEGATRON_LM PARALLELISM_CONFIG"):gmatch("%S+") do
      variable = "ACCELERATE_USE_" .. variable
      local status, _, err = run_with({ [variable] = "true" }, [[require("accelerate").Accelerator()]])
      assert.are.equal(1, status)
      assert.matches(variable .. " is set, but .* is not there yet", err)
    end
    local status, _, err = run_with({ ACCELERATE_DYNAMO_BACKEND = "INDUCTOR" },
      [[require("accelerate").Accelerator()]])
    assert.are.equal(1, status)
    assert.matches("ACCELERATE_DYNAMO_BACKEND = 'INDUCTOR': graph compilation is not there yet", err)
  end)

  it("says what is not there yet", function()
    local a = accelerate.Accelerator { log_with = {}, kwargs_handlers = {}, dynamo_backend = "no",
      mixed_precision = "no", cpu = true }
    assert.error_matches(function() a:maybe_context_parallel() end,
      "accelerator:maybe_context_parallel: .* is not there yet")
  end)

  it("refuses wrong values", function()
    assert.error_matches(function() accelerate.Accelerator { mixed_precision = "bf61" } end,
      "unknown mode 'bf61'.*did you mean 'bf16'")
    assert.error_matches(function() accelerate.Accelerator { gradient_accumulation_steps = 0 } end,
      "at least 1")
    assert.error_matches(function() accelerate.Accelerator { rng_types = { "torsh" } } end,
      "did you mean 'torch'")
    assert.error_matches(function() accelerate.Accelerator { rng_types = { "cuda" } } end, "not there yet")
    assert.error_matches(function()
      accelerate.Accelerator { gradient_accumulation_steps = 2,
        gradient_accumulation_plugin = accelerate.GradientAccumulationPlugin { num_steps = 2 } }
    end, "not both")
    assert.error_matches(function() accelerate.DataLoaderConfiguration { even_batch = true } end,
      "did you mean 'even_batches'")
    assert.error_matches(function() accelerate.ProjectConfiguration { total_limit = 0 } end, "at least 1")
  end)

  it("honours loader arguments in both places, once", function()
    local Config = accelerate.DataLoaderConfiguration
    assert.is_true(accelerate.Accelerator({ split_batches = true }).split_batches)
    assert.is_true(
      accelerate.Accelerator({ dataloader_config = Config { split_batches = true } }).split_batches)
    assert.is_true(accelerate.Accelerator({ split_batches = true,
      dataloader_config = Config { split_batches = true } }).split_batches)
    assert.is_true(accelerate.Accelerator({ split_batches = true,
      dataloader_config = Config {} }).split_batches)
    assert.error_matches(function()
      accelerate.Accelerator { split_batches = true, dataloader_config = Config { split_batches = false } }
    end,
      "split_batches = true here, but false in dataloader_config")
    local a = accelerate.Accelerator()
    a.even_batches = false
    assert.is_false(a.dataloader_config.even_batches)
  end)

  it("reads projects", function()
    local a = accelerate.Accelerator { project_dir = "p" }
    assert.are.equal("p", a.project_dir)
    assert.are.equal("p", a.logging_dir)
    local config = accelerate.ProjectConfiguration { project_dir = "q", logging_dir = "l" }
    assert.are.equal("q", accelerate.Accelerator({ project_dir = "p", project_config = config }).project_dir)
    assert.are.equal("l", accelerate.Accelerator({ project_config = config }).logging_dir)
  end)

  it("shares state with a second one, which must not ask for another precision", function()
    local a = accelerate.Accelerator { mixed_precision = "no", gradient_accumulation_steps = 3 }
    local b = accelerate.Accelerator { gradient_accumulation_steps = 3 }
    assert.are.equal(a.state, b.state)
    assert.are.equal("no", b.mixed_precision)
    assert.error_matches(function() accelerate.Accelerator { mixed_precision = "bf16" } end,
      "the first Accelerator of this process was made with 'no'")
  end)

  it("lets the environment replace gradient_accumulation_steps, but not mixed_precision", function()
    local _, out = run_with({ ACCELERATE_GRADIENT_ACCUMULATION_STEPS = "5" },
      [[local accelerate = require "accelerate"
        print(accelerate.Accelerator({ gradient_accumulation_steps = 2 }).gradient_accumulation_steps)]])
    assert.are.equal("5\n", out)
    _, out = run_with({ ACCELERATE_MIXED_PRECISION = "bf16" },
      [[print(require("accelerate").Accelerator({ mixed_precision = "no" }).mixed_precision)]])
    assert.are.equal("no\n", out)
    local status, _, err = run_with({ ACCELERATE_GRADIENT_ACCUMULATION_STEPS = "two" },
      [[require("accelerate").Accelerator()]])
    assert.are.equal(1, status)
    assert.matches("ACCELERATE_GRADIENT_ACCUMULATION_STEPS: expected a whole number of at least 1, got 'two'",
      err)
    assert.matches("accel%-run: %(command line%):1: ", err)  -- the script's line
    status, _, err = run_with({ ACCELERATE_DEBUG_MODE = "maybe" }, [[require("accelerate").Accelerator()]])
    assert.are.equal(1, status)
    assert.matches("%(command line%):1: ACCELERATE_DEBUG_MODE: expected one of .*'maybe'", err)
    status, _, err = run_with({ ACCELERATE_USE_CPU = "maybe" }, [[require("accelerate").Accelerator()]])
    assert.are_not.equal(0, status)
    assert.matches("ACCELERATE_USE_CPU: expected .*'maybe'", err)
  end)

  it("takes each argument, and shows it", function()
    local config = accelerate.DataLoaderConfiguration { use_seedable_sampler = true, dispatch_batches = false,
      non_blocking = true,
      use_stateful_dataloader = true }
    local a = accelerate.Accelerator { device_placement = false, dataloader_config = config,
      rng_types = { "torch", "generator" },
      step_scheduler_with_optimizer = false, cpu = true, log_with = "jsonl", project_dir = "runs",
      split_batches = true }
    assert.is_false(a.device_placement or a.step_scheduler_with_optimizer or a.dispatch_batches)
    assert.is_true(a.use_seedable_sampler and a.non_blocking and a.use_stateful_dataloader and a.split_batches
      and a.even_batches)
    assert.are.same({ "torch", "generator" }, a.rng_types)
    assert.are.equal(config, a.dataloader_config)
    config.even_batches = false  -- read live
    assert.is_false(a.even_batches)
    a.even_batches = true
    assert.is_true(config.even_batches)
    assert.error_matches(function() a.even_batches = "yes" end,
      "even_batches' must be true or false, got 'yes'")
    assert.error_matches(function() a.split_batches = false end, "'split_batches' cannot be assigned")
    a.step = 7
    assert.are.equal(7, a.step)
    assert.are.equal("jsonl", a.log_with[1])
    assert.error_matches(function() accelerate.Accelerator { log_with = 5 } end,
      "log_with: expected a name, a tracker or a list of them, got 5")
  end)

  it("places what it prepares, unless told not to", function()
    local fake = host.path:match("^(.*)/") .. "/libax_fake_device.so"
    if not fs.exists(fake) then return pending("needs " .. fake) end
    local _, out = run_with({ ACCEL_CUDA_PLUGIN = fake, ACCELERATE_TORCH_DEVICE = "cuda" }, [[
      local accelerate, nn = require "accelerate", require "accelerate.nn"
      local a = accelerate.Accelerator()
      print(a.device, a.distributed_type, accelerate.PartialState().default_device)
      print(a:prepare(nn.Linear(2, 2)).weight.device,
        (a:prepare(nn.Linear(2, 2), { device_placement = { false } }).weight.device))
      print(accelerate.Accelerator({ device_placement = false }):prepare(nn.Linear(2, 2)).weight.device)
      print(select(2, pcall(accelerate.Accelerator, { cpu = true })))
      print(pcall(accelerate.Accelerator, { mixed_precision = "fp16" }))
      accelerate.state.reset()
      local b = accelerate.Accelerator { mixed_precision = "fp16" }
      print(b.mixed_precision, b.scaler:get_scale(), b.native_amp)
    ]])
    local lines = {}
    for line in out:gmatch("[^\n]+") do lines[#lines + 1] = line end
    assert.are.equal("cuda:0\tNO\tcuda", lines[1], out)
    assert.are.equal("cuda:0\tcpu", lines[2])
    assert.are.equal("cpu", lines[3])
    assert.matches("cpu = true: the first Accelerator of this process was made on cuda:0", lines[4])
    assert.matches("the first Accelerator of this process was made with 'no'", lines[5])
    assert.are.equal("fp16\t65536\ttrue", lines[6])
    -- a GPU is taken without asking; cpu, its variable and ACCELERATE_TORCH_DEVICE keep to the CPU
    local code = [[io.write(require("accelerate").Accelerator({ cpu = %s }).device, " ")]]
    _, out = run_with({ ACCEL_CUDA_PLUGIN = fake }, code:format("false"))
    assert.are.equal("cuda:0 ", out)
    _, out = run_with({ ACCEL_CUDA_PLUGIN = fake }, code:format("true"))
    assert.are.equal("cpu ", out)
    _, out = run_with({ ACCEL_CUDA_PLUGIN = fake, ACCELERATE_USE_CPU = "1" }, code:format("false"))
    assert.are.equal("cpu ", out)
    _, out = run_with({ ACCEL_CUDA_PLUGIN = fake, ACCELERATE_TORCH_DEVICE = "cpu" }, code:format("false"))
    assert.are.equal("cpu ", out)
    local status, _, err = run_with({ ACCEL_CUDA_PLUGIN = fake, ACCELERATE_TORCH_DEVICE = "cuda:9" },
      code:format("false"))
    assert.are.equal(1, status)
    assert.matches("ACCELERATE_TORCH_DEVICE=cuda:9: there is no such device here: CUDA devices are 0 to", err)
    -- several ranks: one on each GPU, which this device cannot join
    out = ranks.ok(2,
      [[io.write(accelerate.Accelerator().device, " ", accelerate.PartialState().distributed_type, "\n")]],
      { env = { ACCEL_CUDA_PLUGIN = fake } })
    assert.matches("cuda:0 MULTI_GPU\n", out)
    assert.matches("cuda:1 MULTI_GPU\n", out)
    out = ranks.ok(3, [[io.write(accelerate.Accelerator().device, "\n")]],
      { env = { ACCEL_CUDA_PLUGIN = fake }, launch = { "--cpu" } })
    assert.are.equal("cpu\ncpu\ncpu\n", out)
    status, _, err = ranks.run(3, [[accelerate.Accelerator()]], { env = { ACCEL_CUDA_PLUGIN = fake } })
    assert.are.equal(1, status)
    assert.matches("3 ranks on this machine, and 2 GPUs: a GPU takes one rank; start 2 with " ..
      "%-%-num_processes, or run them on the CPU with %-%-cpu", err)
    status, _, err = ranks.run(2, [[core.dist.all_reduce(core.ones(2):to(accelerate.PartialState().device))]],
      { env = { ACCEL_CUDA_PLUGIN = fake } })
    assert.are.equal(1, status)
    assert.matches("the fake backend has no collectives: ranks exchange tensors in CPU memory only", err)
  end)

  it("takes no device that is not there, nor a rank that another program started", function()
    local nowhere = "/nowhere/libax_cuda.so"
    local status, _, err = run_with({ ACCEL_CUDA_PLUGIN = nowhere, ACCELERATE_TORCH_DEVICE = "cuda" },
      [[require("accelerate").Accelerator()]])
    assert.are.equal(1, status)
    assert.matches("ACCELERATE_TORCH_DEVICE=cuda: there is no such device here: CUDA cannot be used here",
      err)
    status, _, err = run_with({ ACCELERATE_TORCH_DEVICE = "tpu" }, [[require("accelerate").Accelerator()]])
    assert.are.equal(1, status)
    assert.matches("ACCELERATE_TORCH_DEVICE: expected cpu, cuda or cuda:N, got 'tpu'", err)
    for _, variable in ipairs { "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE" } do
      status, _, err = run_with({ [variable] = "4" }, [[require("accelerate").Accelerator { cpu = true }]])
      assert.are.equal(1, status)
      assert.matches(variable ..
        "=4: this process seems to be one of 4 ranks that another program started.*accel%-run " ..
        "%-%-num_processes 4", err)
    end
    status = run_with({ WORLD_SIZE = "1" }, [[require("accelerate").Accelerator()]])
    assert.are.equal(0, status)
  end)

  it("says fp16 on a CPU and computes in float32, which it tells once", function()
    local out, err = ranks.ok(2, [[
      local nn = require "accelerate.nn"
      local a = accelerate.Accelerator { mixed_precision = "fp16",
        kwargs_handlers = { accelerate.GradScalerKwargs { init_scale = 8 } } }
      check(a.mixed_precision == "fp16" and a.scaler == nil and a.native_amp == false)
      accelerate.Accelerator { mixed_precision = "fp16" }
      check(a:autocast(function() return core.ones(2, 2):matmul(core.ones(2, 2)) end).dtype == "float32")
      check(a:prepare(nn.Linear(2, 2))(core.ones(1, 2)).dtype == "float32")
      check(a.optimizer_step_was_skipped == false)
    ]])
    assert.are.equal("", out)
    local _, times = err:gsub(
      "mixed_precision = 'fp16': on the CPU it computes in float32, without loss scaling", "")
    assert.are.equal(1, times, err)
    local status, _, told = run_with({ ACCELERATE_MIXED_PRECISION = "fp16" },
      [[print(require("accelerate").Accelerator().mixed_precision)]])
    assert.are.equal(0, status)
    assert.matches("ACCELERATE_MIXED_PRECISION = 'fp16': on the CPU", told)
    assert.error_matches(function() accelerate.Accelerator { mixed_precision = "fp8" } end,
      "mixed_precision = 'fp8': no FP8 backend is there")
  end)

  it("takes one handler of each class, and nothing else", function()
    local utils = accelerate.utils
    local profile, ddp = accelerate.ProfileKwargs {}, accelerate.DistributedDataParallelKwargs {
      bucket_cap_mb = 3 }
    local a = accelerate.Accelerator { kwargs_handlers = { profile, ddp,
      accelerate.AutocastKwargs { enabled = false },
      accelerate.InitProcessGroupKwargs {}, accelerate.GradScalerKwargs {} } }
    assert.are.equal(profile, a._profile_handler)
    assert.are.equal(ddp, a._ddp_handler)
    assert.is_false(a.autocast_handler.enabled)
    local function refused(list, message)
      assert.error_matches(function() accelerate.Accelerator { kwargs_handlers = list } end, message)
    end
    refused({ ddp, accelerate.DistributedDataParallelKwargs {} },
      "entry 2: only one DistributedDataParallelKwargs can be given")
    refused({ 5 }, "entry 1 must be a handler such as AutocastKwargs, got 5")
    refused({ utils.KwargsHandler {} }, "entry 1 must be a handler")
    refused({ accelerate.GradientAccumulationPlugin {} }, "give it as gradient_accumulation_plugin")
    refused({ a }, "entry 1 must be a handler")
  end)

  it("has fields for what other engines would have", function()
    local a = accelerate.Accelerator()
    for _, name in ipairs { "deepspeed_plugin", "parallelism_config", "torch_device_mesh", "scaler" } do
      assert.is_nil(a[name], name)
    end
    assert.is_false(a.is_fsdp2 or a.is_composable_parallelism_enabled or a.fp8_enabled or a.native_amp
      or a.multi_device)
    assert.are.equal("NO", a.fp8_backend)
    for _, name in ipairs { "tensor_parallel_rank", "data_parallel_rank", "data_parallel_shard_rank",
      "pipeline_parallel_rank",
      "context_parallel_rank" } do
      assert.error_matches(function() return a[name] end, name .. ": .* parallelism is not configured")
    end
    local _, out = run_with({ ACCELERATE_FP8_BACKEND = "te" },
      [[print(require("accelerate").Accelerator().fp8_backend)]])
    assert.are.equal("TE\n", out)
  end)

  it("sets the steps of accumulation for all accelerators", function()
    local a = accelerate.Accelerator { gradient_accumulation_steps = 4 }
    local plugin = accelerate.GradientAccumulationPlugin { num_steps = 3, sync_with_dataloader = false,
      sync_each_batch = true }
    local b = accelerate.Accelerator { gradient_accumulation_plugin = plugin }
    assert.are.equal(3, a.gradient_accumulation_steps)
    assert.is_false(b.gradient_state.sync_with_dataloader)
    assert.is_true(b.gradient_state.sync_each_batch)
    b.gradient_accumulation_steps = 5
    assert.are.equal(5, a.gradient_accumulation_steps)
    assert.are.equal(3, plugin.num_steps)
    assert.are.equal(1,
      accelerate.Accelerator(
      { gradient_accumulation_plugin =
      accelerate.GradientAccumulationPlugin {} }).gradient_accumulation_steps)
  end)
end)

describe("what save_state will take along", function()
  before_each(function() state.reset() end)
  after_each(function() state.reset() end)

  it("is registered in order, and only what can be saved", function()
    local a = accelerate.Accelerator()
    local plain = { state_dict = function() return {} end, load_state_dict = function() end }
    local model = nn.Linear(2, 2)
    a:register_for_checkpointing(plain, model)
    a:register_for_checkpointing()
    assert.are.same({ plain, model }, a._custom_objects)
    local ok, message = pcall(a.register_for_checkpointing, a, plain, 5, {}, nil, { state_dict = print },
      "text", core.ones(2), print, plain)
    assert.is_false(ok)
    for _, line in ipairs { "object 2, 5", "object 3, a table", "object 4, nil", "object 5, a table",
      "object 6, 'text'",
      "object 7, a float32 tensor of shape %[2%]",
      "object 8, a function" } do assert.matches("\n  %- " .. line, message) end
    assert.is_nil(message:find("object 1,", 1, true) or message:find("object 9,", 1, true))
    assert.are.equal(2, #a._custom_objects)  -- all or none
    a:free_memory()
    assert.are.same({ plain, model }, a._custom_objects)
  end)

  it("can be changed by hooks, which a handle removes", function()
    local a = accelerate.Accelerator()
    local function one() end
    for name, list in pairs { register_save_state_pre_hook = "_save_state_pre_hooks",
      register_load_state_pre_hook = "_load_state_pre_hooks" } do
      local first, second, third = a[name](a, one), a[name](a, one), a[name](a, print)
      assert.are.equal(3, #a[list])
      second.remove()
      second:remove()  -- once more: nothing
      assert.are.same({ { one }, { print } }, a[list])
      first.remove()
      third.remove()
      assert.are.same({}, a[list])
      for _, wrong in ipairs { 5, "hook", {} } do
        assert.error_matches(function() a[name](a, wrong) end, name .. ": hook must be a function")
      end
      assert.error_matches(function() a[name](a) end, name .. ": hook must be a function, got nil")
    end
  end)
end)

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
    assert.matches("accelerator_spec%.lua:%d+: inside", message)
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

describe("weights in files", function()
  local accelerator
  before_each(function()
    state.reset()
    accelerator = accelerate.Accelerator()
  end)
  after_each(function() state.reset() end)

  local function net() return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)) end

  local function same(a, b)
    for i, p in ipairs(a:parameters()) do
      if (p - b:parameters()[i]):abs():max():item() ~= 0 then return false end
    end
    return true
  end

  it("come back from one file", function()
    host.in_folder(function(folder)
      local model, other = accelerator:prepare(net()), net()
      accelerator:save_model(model, folder .. "/new/out")
      assert.are.same({ "model.safetensors" }, fs.list(folder .. "/new/out"))
      assert.is_false(same(model, other))
      accelerate.load_checkpoint_in_model(other, folder .. "/new/out", { strict = true })
      assert.is_true(same(model, other))
      accelerate.utils.load_checkpoint_in_model(other, folder .. "/new/out/model.safetensors")
      local list, metadata = core.safetensors_load(folder .. "/new/out/model.safetensors")
      assert.are.equal("pt", metadata.format)
      assert.are.equal(4, #list)
    end)
  end)

  it("are cut into shards as huggingface_hub cuts them", function()
    local checkpoint = require "accelerate.weights"
    for _, case in ipairs(reference.cases("shards")) do
      local list = {}
      for i = 2, #case.arguments do
        list[i - 1] = { i - 2, core.empty(case.arguments[i], { dtype = "uint8" }) }
      end
      local text = {}
      for i, shard in ipairs((checkpoint.split_into_shards(list, case.arguments[1]))) do
        local names = {}
        for k, item in ipairs(shard) do names[k] = item[1] end
        text[i] = table.concat(names, ",")
      end
      assert.are.equal(case.fields[1], table.concat(text, " "), case.name)
    end
  end)

  it("come back from shards, and an index names them", function()
    host.in_folder(function(folder)
      local model, other = net(), net()
      accelerator:save_model(model, folder)
      accelerator:save_model(model, folder, { max_shard_size = "0.1KB" })
      assert.are.same({ "model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
        "model-00003-of-00004.safetensors",
        "model-00004-of-00004.safetensors", "model.safetensors.index.json" }, fs.list(folder))
      local index = json.decode(fs.read(folder .. "/model.safetensors.index.json"))
      assert.are.equal((32 + 8 + 24 + 3) * 4, index.metadata.total_size)
      assert.are.equal("model-00001-of-00004.safetensors", index.weight_map["0.weight"])
      accelerate.load_checkpoint_in_model(other, folder, { strict = true })
      assert.is_true(same(model, other))
      accelerator:save_model(model, folder, { max_shard_size = 150 })
      assert.are.equal(3, #fs.list(folder))  -- two shards and the index; the old ones are gone
      other = net()
      accelerate.load_checkpoint_in_model(other, folder .. "/model.safetensors.index.json", { strict = true })
      assert.is_true(same(model, other))
      accelerator:save_model(model, folder)
      assert.are.same({ "model.safetensors" }, fs.list(folder))
    end)
  end)

  it("come back from PyTorch's format, whole and in shards", function()
    host.in_folder(function(folder)
      local function tied()
        local model = net()
        model.head = nn.Linear(4, 8)
        model.head.weight = model[1].weight
        return model
      end
      local model, other = tied(), tied()
      accelerator:save_model(model, folder)
      accelerator:save_model(model, folder, { safe_serialization = false })
      assert.are.same({ "model.safetensors", "pytorch_model.bin" }, fs.list(folder))
      os.remove(folder .. "/model.safetensors")
      accelerate.load_checkpoint_in_model(other, folder, { strict = true })
      assert.is_true(same(model, other))
      accelerator:save_model(model, folder, { safe_serialization = false, max_shard_size = 150 })
      assert.are.same({ "pytorch_model-00001-of-00003.bin", "pytorch_model-00002-of-00003.bin",
        "pytorch_model-00003-of-00003.bin", "pytorch_model.bin.index.json" }, fs.list(folder))
      local index = json.decode(fs.read(folder .. "/pytorch_model.bin.index.json"))
      assert.are.equal((32 + 8 + 24 + 3 + 8) * 4, index.metadata.total_size)
      assert.are.equal(index.weight_map["0.weight"], index.weight_map["head.weight"])
      local part = accelerate.utils.load(folder .. "/" .. index.weight_map["0.weight"])
      assert.are.equal(part["0.weight"]:_address(), part["head.weight"]:_address())
      other = tied()
      accelerate.load_checkpoint_in_model(other, folder, { strict = true })
      assert.is_true(same(model, other))
    end)
  end)

  it("hold tied weights once", function()
    host.in_folder(function(folder)
      local function tied()
        local model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[2].weight = model[1].weight
        return model
      end
      local model, other = accelerator:prepare(tied()), tied()
      accelerator:save_model(model, folder)
      local list = core.safetensors_load(folder .. "/model.safetensors")
      assert.are.equal(3, #list)
      accelerate.load_checkpoint_in_model(other, folder, { strict = true })
      assert.is_true(same(model, other))
    end)
  end)

  it("say what is wrong with a checkpoint", function()
    host.in_folder(function(folder)
      local model = net()
      local load = accelerate.load_checkpoint_in_model
      assert.error_matches(function() load(model, folder .. "/none") end, "there is no file or directory")
      assert.error_matches(function() load(model, folder) end, "holds neither model.safetensors nor an index")
      accelerator:save_model(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Linear(3, 3)),
        folder)
      assert.error_matches(function() load(model, folder, { strict = true }) end,
        "unexpected keys: 3.weight, 3.bias")
      load(model, folder)
      assert.error_matches(function() load(nn.Sequential(nn.Linear(5, 8)), folder) end,
        "size mismatch for '0.weight'")
      assert.error_matches(function() load(model, folder, { dtype = "float16" }) end,
        "dtype is not there yet")
      assert.error_matches(function() accelerator:save_model(model, folder, { max_shard_size = "5XB" }) end,
        "expected a number of bytes or text")
      accelerator:save({ 1 }, folder .. "/list.bin", { safe_serialization = false })
      assert.error_matches(function() load(model, folder .. "/list.bin", { strict = true }) end,
        "unexpected keys: 1")
      accelerator:save("text", folder .. "/text.bin", { safe_serialization = false })
      assert.error_matches(function() load(model, folder .. "/text.bin") end, "expected tensors by name")
      fs.write(folder .. "/model.safetensors.index.json", "{ nonsense")
      os.remove(folder .. "/model.safetensors")
      assert.error_matches(function() load(model, folder) end, "json: ")
      fs.write(folder .. "/other.index.json", "{}")
      assert.error_matches(function() load(model, folder) end, "several index files")
    end)
  end)

  it("are written by the main process", function()
    host.in_folder(function(folder)
      ranks.ok(2, [[
        local accelerator = accelerate.Accelerator()
        local model = accelerator:prepare(require("accelerate.nn").Linear(3, 3))
        accelerator:save_model(model, arg[1] .. "/" .. rank)
        accelerator:save({ x = core.ones(2) }, arg[1] .. "/file" .. rank)
        accelerator:wait_for_everyone()
        local other = require("accelerate.nn").Linear(3, 3)
        accelerate.load_checkpoint_in_model(other, arg[1] .. "/0", { strict = true })
        check((other.weight - model.weight):abs():max():item() == 0)
      ]], { arguments = { folder } })
      assert.are.same({ "0", "file0" }, fs.list(folder))
    end)
  end)
end)

describe("tqdm", function()
  after_each(function() state.reset() end)

  it("goes through a loader and refuses a boolean", function()
    local tqdm, sum = accelerate.utils.tqdm, 0
    local bar = tqdm({ 1, 2, 3 }, { disable = true })
    for x in bar:iter() do sum = sum + x end
    assert.are.equal(6, sum)
    assert.are.equal(3, bar.n)
    assert.are.equal(3, bar.total)
    assert.error_matches(function() tqdm(true) end, "main_process_only")
    assert.error_matches(function() tqdm(3, { descr = "x" }) end, "did you mean 'desc'")
  end)

  it("draws on the main process only", function()
    local _, err = ranks.ok(2, [[
      local bar = accelerate.utils.tqdm(2, { desc = "bar of " .. rank })
      bar:update()
      bar:set_postfix { loss = core.tensor(0.5) }
      bar:update()
      bar:close()
    ]])
    assert.matches("bar of 0: 100%%|[^|]*| 2/2 .*loss=0%.5%]\n", err)
    assert.is_nil(err:find("bar of 1", 1, true))
  end)
end)
