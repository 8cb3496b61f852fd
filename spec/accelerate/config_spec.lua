-- Configuration objects and handlers: their fields, defaults and errors.  What to_kwargs gives was
-- read off Accelerate 1.15.
local accelerate = require "accelerate"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"
local utils = require "accelerate.utils"

--- Every field has its default; a wrong type, an unknown name and a wrong value are refused by
--- name.
local function check_class(Class, name, defaults, wrong)
  local object = Class {}
  for field, default in pairs(defaults) do
    if default == "nil" then default = nil end
    assert.are.same(default, object[field], name .. "." .. field)
  end
  assert.error_matches(function() Class { [next(defaults) .. "_"] = 1 } end, name ..
    ": unknown option '.*'; did you mean")
  assert.error_matches(function() return object.nonsense end, name .. " has no 'nonsense'")
  assert.error_matches(function() object.nonsense = 1 end, name .. " has no 'nonsense'")
  assert.error_matches(function() Class(5) end, name .. ": expected a table of options, got 5")
  for field, values in pairs(wrong) do
    for _, value in ipairs(values) do
      local message = name .. ".*" .. field
      assert.error_matches(function() Class { [field] = value } end, message)
      local former = object[field]
      assert.error_matches(function() object[field] = value end, message)
      assert.are.same(former, object[field])
    end
  end
  assert.matches("^" .. name .. "%(", tostring(object))
end

local BOOLEAN = { 1, "yes", {} }

describe("configurations", function()
  before_each(function() state.reset() end)
  after_each(function() state.reset() end)

  it("of loaders have Accelerate's fields", function()
    check_class(accelerate.DataLoaderConfiguration, "DataLoaderConfiguration", {
      split_batches = false, dispatch_batches = "nil", even_batches = true, use_seedable_sampler = false,
      data_seed = "nil",
      non_blocking = false, use_stateful_dataloader = false,
    }, { split_batches = BOOLEAN, dispatch_batches = BOOLEAN, even_batches = BOOLEAN,
      data_seed = { "7", 1.5 }, use_stateful_dataloader = BOOLEAN })
    local config = accelerate.DataLoaderConfiguration { use_stateful_dataloader = true }
    config.use_stateful_dataloader = nil  -- back to the default
    assert.is_false(config.use_stateful_dataloader)
  end)

  it("of projects have Accelerate's fields, and logs go to the project unless they have a place", function()
    local Project = accelerate.ProjectConfiguration
    check_class(Project, "ProjectConfiguration", {
      project_dir = "nil", logging_dir = "nil", automatic_checkpoint_naming = false, total_limit = "nil",
      iteration = 0, save_on_each_node = false,
    }, { project_dir = { 5, {} }, logging_dir = { false }, total_limit = { 0, 1.5, "3" },
      iteration = { -1, "0" }, automatic_checkpoint_naming = BOOLEAN })
    assert.are.equal("a", Project({ project_dir = "a" }).logging_dir)
    assert.are.equal("b", Project({ project_dir = "a", logging_dir = "b" }).logging_dir)
    local config = Project {}
    config:set_directories("x")
    config:set_directories("y")
    assert.are.equal("y", config.project_dir)
    assert.are.equal("x", config.logging_dir)
    assert.error_matches(function() config:set_directories(5) end, "project_dir' must be a string, got 5")
    assert.are.equal("q",
      accelerate.Accelerator({ project_dir = "p", project_config = { project_dir = "q" } }).project_dir)
    local a = accelerate.Accelerator { project_dir = "p",
      project_config = { logging_dir = "l", iteration = 3 } }
    assert.are.same({ "p", "l", 3 }, { a.project_dir, a.logging_dir, a.save_iteration })
  end)

  it("of accumulation have Accelerate's fields", function()
    check_class(accelerate.GradientAccumulationPlugin, "GradientAccumulationPlugin",
      { num_steps = "nil", adjust_scheduler = true, sync_with_dataloader = true, sync_each_batch = false },
      { num_steps = { 0, 1.5, "2" }, adjust_scheduler = BOOLEAN, sync_with_dataloader = BOOLEAN,
      sync_each_batch = BOOLEAN })
  end)
end)

describe("handlers", function()
  it("give what differs from their defaults", function()
    assert.are.same({ cache_enabled = true }, accelerate.AutocastKwargs({ cache_enabled = true }):to_kwargs())
    assert.are.same({}, accelerate.AutocastKwargs({}):to_kwargs())
    assert.are.same({ bucket_cap_mb = 50 },
      accelerate.DistributedDataParallelKwargs({ bucket_cap_mb = 50,
      comm_hook = utils.DDPCommunicationHookType.BF16 }):to_kwargs())
    assert.are.same({ backoff_factor = 0.25 },
      accelerate.GradScalerKwargs({ backoff_factor = 0.25, init_scale = 65536 }):to_kwargs())
    assert.are.same({ backend = "gloo", timeout = 1800 },
      accelerate.InitProcessGroupKwargs({ backend = "gloo" }):to_kwargs())
    assert.are.same({}, accelerate.InitProcessGroupKwargs({}):to_kwargs())
    assert.are.same({ num_steps = 1 }, accelerate.GradientAccumulationPlugin({ num_steps = 1 }):to_kwargs())
    assert.are.same({ adjust_scheduler = false, sync_each_batch = true },
      accelerate.GradientAccumulationPlugin({ adjust_scheduler = false, sync_each_batch = true }):to_kwargs())
    assert.are.same({ with_flops = true, schedule_option = { wait = 1, warmup = 1, active = 2, ["repeat"] = 0,
      skip_first = 0 } },
      accelerate.ProfileKwargs({ with_flops = true,
      schedule_option = { wait = 1, warmup = 1, active = 2 } }):to_kwargs())
    assert.are.same({}, utils.KwargsHandler({}):to_kwargs())
    assert.are.same({ enabled = true }, accelerate.AutocastKwargs({}):to_dict())
  end)

  it("for casting have Accelerate's fields", function()
    check_class(accelerate.AutocastKwargs, "AutocastKwargs", { enabled = true, cache_enabled = "nil" },
      { enabled = BOOLEAN, cache_enabled = BOOLEAN })
  end)

  it("for data parallelism check every field, and which go together", function()
    local DDP = accelerate.DistributedDataParallelKwargs
    check_class(DDP, "DistributedDataParallelKwargs", {
      dim = 1, broadcast_buffers = true, bucket_cap_mb = 25, find_unused_parameters = false,
      check_reduction = false,
      gradient_as_bucket_view = false, static_graph = false, comm_hook = "no", comm_wrapper = "no",
      comm_state_option = {},
    }, { dim = { 0, 2, "1" }, broadcast_buffers = BOOLEAN, bucket_cap_mb = { 0, -1, "25" },
      find_unused_parameters = BOOLEAN, static_graph = BOOLEAN,
      comm_hook = { "fp8", 5 }, comm_wrapper = { "power_sgd", true }, comm_state_option = { 5 } })
    assert.error_matches(function() DDP { comm_hook = "powersgd" } end, "did you mean 'power_sgd'")
    assert.error_matches(function() DDP { comm_wrapper = "fp16" } end,
      "comm_wrapper = 'fp16' wraps a comm_hook, and comm_hook is 'no'")
    assert.error_matches(function() DDP { comm_hook = "fp16", comm_state_option = { random_seed = 1 } } end,
      "comm_state_option is for the hooks power_sgd and batched_power_sgd, and comm_hook is 'fp16'")
    assert.error_matches(function()
      DDP { comm_hook = "power_sgd", comm_state_option = { matrix_aproximation_rank = 1 } }
    end, "did you mean 'matrix_approximation_rank'")
    assert.error_matches(function()
      DDP { comm_hook = "power_sgd", comm_state_option = { start_powerSGD_iter = 1 } }
    end, "start_powerSGD_iter must be above 1")
    local fast = DDP { comm_hook = "batched_power_sgd", comm_wrapper = "bf16",
      comm_state_option = { start_powerSGD_iter = 1, use_error_feedback = false, warm_start = false } }
    assert.are.equal(1, fast.comm_state_option.start_powerSGD_iter)
  end)

  it("for the loss scaler check every field", function()
    check_class(accelerate.GradScalerKwargs, "GradScalerKwargs",
      { init_scale = 65536, growth_factor = 2, backoff_factor = 0.5, growth_interval = 2000, enabled = true },
      { init_scale = { 0, "1" }, growth_factor = { 1, 0 / 0 }, backoff_factor = { 0, 1 },
      growth_interval = { 0, 1.5 }, enabled = BOOLEAN })
  end)

  it("for profiling check every field", function()
    local Profile = accelerate.ProfileKwargs
    check_class(Profile, "ProfileKwargs", {
      activities = "nil", schedule_option = "nil", on_trace_ready = "nil", record_shapes = false,
      profile_memory = false, with_stack = false,
      with_flops = false, with_modules = false, output_trace_dir = "nil",
    }, { activities = { "cpu", { "gpu" }, { 5 } },
      schedule_option = { 5, {}, { active = 0 }, { active = 1, wait = -1 } }, on_trace_ready = { 5 },
      record_shapes = BOOLEAN, output_trace_dir = { 5 } })
    assert.error_matches(function() Profile { schedule_option = { active = 1, skip_firsts = 2 } } end,
      "did you mean 'skip_first'")
  end)

  it("for the process group check every field", function()
    check_class(accelerate.InitProcessGroupKwargs, "InitProcessGroupKwargs",
      { backend = "nccl", init_method = "nil", timeout = 600 },
      { backend = { "glooo", 5 }, init_method = { "tcp://10.0.0.1:29500", 5 }, timeout = { 0, -1, "60" } })
    assert.are.equal(1800, accelerate.InitProcessGroupKwargs({ backend = "gloo" }).timeout)
  end)
end)

describe("the process group's handler", function()
  it("sets how long ranks wait, which the launcher's --timeout says otherwise", function()
    local script = [[
      local a = accelerate.Accelerator { kwargs_handlers = { accelerate.InitProcessGroupKwargs(%s) } }
      if rank == 1 then
        local start = core._monotonic()
        while core._monotonic() - start < 3 do end
      end
      a:wait_for_everyone()
    ]]
    local status, _, err = ranks.run(2, script:format("{ timeout = 0.4 }"),
      { launch = { "--timeout", "100" } })
    assert.are.equal(1, status)
    assert.matches("barrier: waited 0.4 s for rank 1.*InitProcessGroupKwargs sets the limit", err)
    status, _, err = ranks.run(2, script:format("{ backend = 'nccl' }"), { launch = { "--timeout", "0.3" } })
    assert.are.equal(1, status)
    assert.matches("barrier: waited 0.3 s for rank 1.*%-%-timeout sets the limit", err)
  end)

  it("takes the group that there is, and no other", function()
    ranks.ok(2, [[
      local accelerator = accelerate.Accelerator {
        kwargs_handlers = { accelerate.InitProcessGroupKwargs { backend = "shm", init_method = "env://" } } }
      check(accelerator.state.backend == "shm")
      accelerate.state.reset()
      local gloo = accelerate.InitProcessGroupKwargs { backend = "gloo" }
      local ok, message = pcall(accelerate.Accelerator, { kwargs_handlers = { gloo } })
      check(not ok and message:find(
        "backend = 'gloo' is not there; ranks use 'nccl' on GPUs and 'shm' on the CPU", 1, true), message)
      check(accelerate.PartialState({ backend = "shm", timeout = 60 }).backend == "shm")
    ]])
    state.reset()
    assert.error_matches(function() accelerate.PartialState { backend = "mpi" } end,
      "backend = 'mpi' is not there")
    assert.error_matches(function() accelerate.PartialState { timeout = "long" } end,
      "timeout' must be a number, got 'long'")
    assert.error_matches(function() accelerate.PartialState { init_method = "file:///x" } end,
      "init_method' must be one of env://")
    state.reset()
  end)
end)
