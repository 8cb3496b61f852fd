-- The Accelerator's arguments, and its tqdm.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local data = require "accelerate.data"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local ranks = require "spec.support.ranks"
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
      ["step: expected the AcceleratedOptimizer before its arguments, got nil; " ..
        "write object:step(...), with a colon"] = function()
        optimizer.step()
      end,
      ["step: expected the AcceleratedScheduler before its arguments, got nil; " ..
        "write object:step(...), with a colon"] = function()
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
      ["return nn.Linear(1, 1).bias < 0.5"] = "x:item() is the number",
      ["print(('%.3f'):format(nn.Linear(1, 1).bias))"] = "x:item() is the number",
    } do
      local _, _, err = host.run { "-e", "local nn = require 'accelerate.nn' " .. code }
      assert.is_truthy(err:find(text, 1, true), err)
    end
  end)

  it("says which engines are not there yet", function()
    for option, value in pairs {
      megatron_lm_plugin = {}, dynamo_plugin = {},
      dynamo_backend = "inductor", torch_tp_plugin = {} } do
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
    for variable in ("MEGATRON_LM"):gmatch("%S+") do
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

  it("runs maybe_context_parallel's block with whole sequences, and says so once", function()
    local a = accelerate.Accelerator { log_with = {}, kwargs_handlers = {}, dynamo_backend = "no",
      mixed_precision = "no", cpu = true }
    local x = core.ones(2, 4)
    local _, out, err = host.run({ "-" }, { stdin = [[
      local a, tensor = require("accelerate").Accelerator(), require "accelerate.tensor"
      local x = tensor.ones(2, 4)
      for _ = 1, 2 do
        print(a:maybe_context_parallel({ buffers = { x }, buffer_seq_dims = { 2 } },
          function(y) return y, x:size(2) end, "seen"))
      end
    ]] })
    assert.are.equal("seen\t4\nseen\t4\n", out)
    assert.matches("^accelerate: maybe_context_parallel: context parallelism is not there yet[^\n]*\n$", err)
    assert.error_matches(function() a:maybe_context_parallel { buffers = { x } } end,
      "maybe_context_parallel: expected a function")
    assert.error_matches(function() a:maybe_context_parallel({ bufers = { x } }, print) end,
      "did you mean 'buffers'")
  end)

  it("refuses wrong values", function()
    assert.error_matches(function() accelerate.Accelerator { mixed_precision = "bf61" } end,
      "unknown mode 'bf61'.*did you mean 'bf16'")
    assert.error_matches(function() accelerate.Accelerator { gradient_accumulation_steps = 0 } end,
      "at least 1")
    assert.error_matches(function() accelerate.Accelerator { rng_types = { "torsh" } } end,
      "did you mean 'torch'")
    assert.error_matches(function() accelerate.Accelerator { rng_types = { "xpu" } } end, "not there yet")
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

describe("tqdm", function()
  local quiet = { disable = true }
  local function walked(...)
    local list = {}
    for x in accelerate.utils.tqdm(...):iter() do list[#list + 1] = x end
    return list
  end

  it("iterates over loaders, data sets, lists, iterator functions and numbers of steps", function()
    local tqdm, set = accelerate.utils.tqdm, data.TensorDataset(core.arange(6))
    local i = 0
    local function count()
      i = i + 1
      return i <= 3 and i or nil
    end
    assert.are.equal(3, #walked(data.DataLoader(set, { batch_size = 2 }), quiet))
    assert.are.equal(6, #walked(set, quiet))
    assert.are.same({ "a", false, "c" }, walked({ "a", false, "c" }, quiet))
    assert.are.same({ 1, 2, 3 }, walked(count, quiet))
    assert.are.same({ 1, 2, 3, 4 }, walked(4, quiet))
    assert.are.same({}, walked({}, quiet))
    assert.are.same({ 5, 6 }, walked({ len = function() return 2 end,
      get = function(_, k) return 4 + k end }, quiet))
    assert.are.equal(3, tqdm(data.DataLoader(set, { batch_size = 2 }), quiet).total)
    assert.is_nil(tqdm(count, quiet).total)
    local bar = tqdm { total = 7, disable = true }
    bar:update(3)
    assert.are.same({ 7, 3 }, { bar.total, bar.n })
  end)

  it("counts items in ipairs and pairs, and has a length", function()
    for _, walk in ipairs { ipairs, pairs } do
      local bar, seen = accelerate.utils.tqdm({ "a", "b" }, quiet), {}
      for i, x in walk(bar) do seen[i] = x end
      assert.are.same({ "a", "b" }, seen)
      assert.are.same({ 2, 2 }, { bar.n, #bar })
    end
  end)

  it("says what it cannot iterate over, and what its methods take", function()
    local tqdm = accelerate.utils.tqdm
    assert.error_matches(function() tqdm(nil, quiet):iter() end, "made without anything to iterate over")
    assert.error_matches(function() tqdm("abc") end, "an iterator function or a number of steps, got 'abc'")
    assert.error_matches(function() tqdm({ a = 1 }) end, "tqdm: expected a loader, a data set, a list")
    assert.error_matches(function() tqdm(-1) end, "the number of steps must be at least 0, got %-1")
    assert.error_matches(function() tqdm(2, quiet):update("x") end, "tqdm: update: n must be a number")
    assert.error_matches(function() tqdm(2, quiet):set_postfix(3) end, "set_postfix: notes must be a table")
    assert.error_matches(function() tqdm(2, quiet):set_description({}) end, "text must be a string")
  end)

  it("leaves the map given to set_postfix as it was", function()
    local notes = { loss = core.ones(1, { requires_grad = true }) * 2 }
    accelerate.utils.tqdm(2, quiet):set_postfix(notes)
    assert.is_true(notes.loss.requires_grad)
  end)

  it("makes no PartialState, so that notebook_launcher can fork", function()
    accelerate.state.reset()
    accelerate.utils.tqdm(2, quiet):update(2)
    assert.are.equal(2, (accelerate.notebook_launcher(function() return 2 end, {}, { num_processes = 2 })))
    assert.is_false(accelerate.state.initialized())
  end)

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
