-- Shared state: who am I, what the run was set up with, where accumulation stands.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local ranks = require "spec.support.ranks"
local reference = require "spec.reference.sharding_reference"
local state = require "accelerate.state"

describe("PartialState", function()
  after_each(function() state.reset() end)

  it("knows one process on the CPU", function()
    local here = accelerate.PartialState()
    assert.are.equal("cpu", here.device)
    assert.are.equal(accelerate.DistributedType.NO, here.distributed_type)
    assert.are.equal(1, here.num_processes)
    assert.are.equal(0, here.process_index)
    assert.are.equal(0, here.local_process_index)
    assert.is_true(here.is_main_process)
    assert.is_true(here.is_local_main_process)
    assert.is_true(here.is_last_process)
    assert.is_false(here.use_distributed)
    assert.are.equal(here, accelerate.PartialState())
    assert.matches("Distributed environment: NO\nNum processes: 1\nProcess index: 0\nLocal process " ..
      "index: 0\nDevice: cpu", tostring(here))
  end)

  it("names the nearest field for one that it lacks", function()
    local here = accelerate.PartialState()
    assert.error_matches(function() return here.num_proceses end,
      "PartialState has no 'num_proceses'; did you mean 'num_processes'%?")
    assert.error_matches(function() here.num_processes = 3 end, "cannot be assigned")
    assert.are.equal("XLA", accelerate.DistributedType.TPU)
    assert.error_matches(function() return accelerate.DistributedType.MULTI_CPUS end,
      "did you mean 'MULTI_CPU'")
  end)

  it("names the reset as the cause when its facts are gone", function()
    local here = accelerate.PartialState()
    here:_reset_state()
    assert.error_matches(function() return here.device end,
      "PartialState has no 'device' any more: it was reset")
  end)

  it("runs decorated functions on one process, whatever rank they name", function()
    local here = accelerate.PartialState()
    assert.are.equal(7, here:on_main_process(function(x) return x + 1 end)(6))
    assert.are.equal(7, here:on_last_process(function() return 7 end)())
    assert.are.equal(7, here:on_process({ process_index = 5 }, function() return 7 end)())
    assert.are.equal(7, here:on_local_process({ local_process_index = 5 }, function() return 7 end)())
    assert.are.equal(7, here:main_process_first(function() return 7 end))
    assert.error_matches(function() here:on_main_process(5) end,
      "on_main_process: expected a function to wrap, got 5")
    assert.error_matches(function() here:on_process({ process_idx = 5 }, print) end,
      "did you mean 'process_index'")
  end)

  it("gives one process the whole input, untouched", function()
    local here, input = accelerate.PartialState(), { 1, 2, 3 }
    assert.are.equal(input, here:split_between_processes(input, { apply_padding = true },
      function(part) return part end))
  end)

  it("shows each rank its own numbers", function()
    local out = ranks.ok(3, [[
      local here = accelerate.PartialState()
      check(here.num_processes == 3 and here.process_index == rank and here.local_process_index == rank)
      check(here.distributed_type == "MULTI_CPU" and here.use_distributed)
      check(here.is_main_process == (rank == 0) and here.is_last_process == (rank == 2))
      local function tell() return rank end
      check(here:on_main_process(tell)() == (rank == 0 and 0 or nil))
      check(here:on_last_process(tell)() == (rank == 2 and 2 or nil))
      check(here:on_process({ process_index = 1 }, tell)() == (rank == 1 and 1 or nil))
      check(here:on_local_main_process(tell)() == (rank == 0 and 0 or nil))
      here:print("once")
      here:wait_for_everyone()
    ]])
    assert.are.equal("once\n", out)
  end)

  it("lets the main process go first", function()
    ranks.ok(3, [[
      local here = accelerate.PartialState()
      local path = arg[1]
      local made = here:main_process_first(function()
        if rank == 0 then
          local f = io.open(path, "w"); f:write("made"); f:close()
        end
        local f = io.open(path)
        check(f, "the main process was not first")
        f:close()
        return rank
      end)
      check(made == rank)
      here:wait_for_everyone()
      if rank == 0 then os.remove(path) end
    ]], { arguments = { host.free_path ".first" } })
  end)

  it("splits lists as Accelerate does", function()
    local cases = {}
    for _, case in ipairs(reference.cases("between")) do
      local n, count, padding = unpack(case.arguments)
      if count == 3 then
        cases[#cases + 1] = ("{ %d, %s, %q }"):format(n, tostring(padding == 1), case.fields[1])
      end
    end
    ranks.ok(3, "local cases = {" .. table.concat(cases, ",") .. "}\n" .. [[
      local here = accelerate.PartialState()
      for _, case in ipairs(cases) do
        local list, want, i = {}, nil, 0
        for k = 1, case[1] do list[k] = k - 1 end
        for part in (case[3] .. ";"):gmatch("(.-);") do
          if i == rank then want = part end
          i = i + 1
        end
        local opts = { apply_padding = case[2] }
        local found = here:split_between_processes(list, opts,
          function(part) return table.concat(part, ",") end)
        check(found == want, ("%d items: got '%s', want '%s'"):format(case[1], found, want))
        -- a tensor and a map are split at the same places
        local t = here:split_between_processes(core.tensor(list, { dtype = "int64" }), opts,
          function(part) return table.concat(part:totable(), ",") end)
        check(t == want, "tensor: " .. t)
        local m = here:split_between_processes({ a = list, b = list }, opts,
          function(part) return table.concat(part.b, ",") end)
        check(m == want, "map: " .. m)
      end
      local ok, message = pcall(here.split_between_processes, here, { a = { 1 }, b = { 1, 2 } },
        function() end)
      check(not ok and message:find("'a' has 1, 'b' has 2", 1, true), message)
    ]])
  end)
end)

describe("AcceleratorState", function()
  after_each(function() state.reset() end)

  it("is only made by an Accelerator", function()
    assert.error_matches(function() state.AcceleratorState() end, "made by an Accelerator")
    accelerate.Accelerator()
    assert.are.equal("no", state.AcceleratorState().mixed_precision)
    assert.are.equal(1, state.AcceleratorState().num_processes)
    assert.matches("Mixed precision type: no", tostring(state.AcceleratorState()))
  end)
end)

describe("GradientState", function()
  after_each(function() state.reset() end)

  it("is shared, and starts in sync outside of any loader", function()
    local gradient = state.GradientState()
    assert.is_true(gradient.sync_gradients)
    assert.are.equal(1, gradient.num_steps)
    assert.is_false(gradient.in_dataloader)
    assert.is_false(gradient.end_of_dataloader)
    assert.are.equal(-1, gradient.remainder)
    assert.is_nil(gradient.active_dataloader)
    local accelerator = accelerate.Accelerator { gradient_accumulation_steps = 4 }
    assert.are.equal(4, gradient.num_steps)
    accelerator.gradient_accumulation_steps = 2
    assert.are.equal(2, gradient.num_steps)
    accelerator.sync_gradients = false
    assert.is_false(gradient.sync_gradients)
    assert.error_matches(function() accelerator.sync_gradients = 1 end, "expected a boolean")
    assert.error_matches(function() accelerator.gradient_accumulation_steps = 0 end, "at least 1")
  end)
end)

describe("a reset", function()
  after_each(function() state.reset() end)

  it("of AcceleratorState is named as the cause, and a new Accelerator ends it", function()
    local a = accelerate.Accelerator { mixed_precision = "bf16" }
    state.AcceleratorState._reset_state()
    assert.error_matches(function() return a.device end,
      "AcceleratorState has no 'device' any more: it was reset")
    assert.error_matches(function() return a.mixed_precision end,
      "AcceleratorState has no 'mixed_precision' any more")
    assert.error_matches(function() state.AcceleratorState() end, "made by an Accelerator")
    assert.are.equal("AcceleratorState, reset", tostring(a.state))
    assert.are.equal("cpu", accelerate.PartialState().device)  -- that one was not reset
    accelerate.Accelerator { mixed_precision = "no" }
    assert.are.equal("no", a.mixed_precision)
    local here = accelerate.PartialState()
    a.state:_reset_state(true)
    assert.is_false(here.initialized)
  end)

  it("of PartialState leaves an Accelerator what it knows", function()
    local here, a = accelerate.PartialState(), accelerate.Accelerator()
    state.PartialState._reset_state()
    assert.is_false(here.initialized)
    assert.are.equal("PartialState, reset", tostring(here))
    assert.error_matches(function() return here.is_main_process end, "it was reset")
    assert.error_matches(function() here:wait_for_everyone() end, "it was reset")
    assert.error_matches(function() here:set_device() end, "was reset")
    assert.are.equal("cpu", a.device)
    assert.is_true(a.is_main_process)
    accelerate.Accelerator()
    assert.are.equal("cpu", here.device)
    here:set_device()
    assert.are.equal(require("accelerate.core").device_count("cuda") > 0 and "cuda" or "cpu",
      here.default_device)
  end)
end)

describe("AcceleratorState", function()
  after_each(function() state.reset() end)

  it("has all of PartialState, and refuses what the first Accelerator was not made with", function()
    local a = accelerate.Accelerator { mixed_precision = "bf16" }
    local shared = state.AcceleratorState()
    assert.are.equal(shared, a.state)
    assert.are.same({ "cpu", 1, 0, 0, "NO", false },
      { shared.device, shared.num_processes, shared.process_index, shared.local_process_index,
      shared.distributed_type, shared.debug })
    assert.is_true(shared.is_main_process and shared.is_local_main_process and shared.is_last_process
      and not shared.use_distributed)
    assert.are.equal(5, shared:main_process_first(function() return 5 end))
    assert.are.equal(shared, state.AcceleratorState { mixed_precision = "bf16", cpu = true })
    assert.error_matches(function() state.AcceleratorState { mixed_precision = "no" } end,
      "was made with 'bf16'")
    assert.error_matches(function() state.AcceleratorState { mixed_precision = "bf61" } end,
      "mixed_precision' must be one of no, fp16, bf16, fp8")
    assert.error_matches(function() return shared.devise end,
      "AcceleratorState has no 'devise'; did you mean 'device'")
    assert.error_matches(function() shared.mixed_precision = "no" end, "cannot be assigned")
  end)

  it("has no plugins of other engines", function()
    local shared = accelerate.Accelerator().state
    for _, name in ipairs { "deepspeed_plugin", "fsdp_plugin", "megatron_lm_plugin", "dynamo_plugin",
      "parallelism_config", "device_mesh" } do
      assert.is_nil(shared[name], name)
    end
    assert.error_matches(function() shared:get_deepspeed_plugin("train") end,
      "get_deepspeed_plugin: the Accelerator was made without deepspeed_plugin")
    assert.error_matches(function() shared:select_deepspeed_plugin() end,
      "select_deepspeed_plugin: name is missing")
  end)

  it("prints the environment and the precision", function()
    local a = accelerate.Accelerator { mixed_precision = "bf16" }
    assert.are.equal("Distributed environment: NO\nNum processes: 1\nProcess index: 0\nLocal process " ..
      "index: 0\nDevice: cpu\n" ..
      "\nMixed precision type: bf16\n", tostring(a.state))
    local out = ranks.ok(2, [[accelerate.Accelerator():print(accelerate.PartialState())]])
    assert.are.equal("Distributed environment: MULTI_CPU  Backend: shm\nNum processes: 2\nProcess index: " ..
      "0\nLocal process index: 0\nDevice: cpu\n\n", out)
  end)
end)

describe("GradientState", function()
  before_each(function() state.reset() end)
  after_each(function() state.reset() end)

  local function loader_of(n, accelerator)
    local data = accelerate.data
    return accelerator:prepare(data.DataLoader(data.TensorDataset(core.arange(n)), { batch_size = 2 }))
  end

  it("takes a plugin, shows what differs from its defaults, and prints it", function()
    local gradient = state.GradientState(accelerate.GradientAccumulationPlugin { num_steps = 2,
      sync_with_dataloader = false })
    assert.are.equal(gradient, state.GradientState())
    assert.are.same({ num_steps = 2, sync_with_dataloader = false }, gradient.plugin_kwargs)
    assert.is_false(gradient.adjust_scheduler)
    assert.are.equal("Sync Gradients: true\nAt end of current dataloader: false\nExtra samples added: -1\n" ..
      "Gradient accumulation plugin: { num_steps = 2, sync_with_dataloader = false }\n", tostring(gradient))
    assert.is_false(gradient.is_xla_gradients_synced)
    gradient.is_xla_gradients_synced = true
    assert.is_true(gradient.is_xla_gradients_synced)
    assert.error_matches(function() gradient.is_xla_gradients_synced = 1 end,
      "is_xla_gradients_synced must be true or false, got 1")
    assert.error_matches(function() state.GradientState { num_steps = 2 } end,
      "plugin must be a GradientAccumulationPlugin, got a table")
    state.GradientState._reset_state()
    assert.is_true(gradient.sync_with_dataloader)
    assert.is_false(gradient.is_xla_gradients_synced)
  end)

  it("has the innermost of several loaders as the active one", function()
    local a = accelerate.Accelerator()
    local outer, inner, gradient = loader_of(6, a), loader_of(4, a), state.GradientState()
    local seen = {}
    for _ in outer:iter() do
      assert.are.equal(outer, gradient.active_dataloader)
      for _ in inner:iter() do
        assert.are.same({ outer, inner }, gradient.dataloader_references)
        assert.are.equal(inner.end_of_dataloader, gradient.end_of_dataloader)
      end
      assert.are.equal(outer, gradient.active_dataloader)
      seen[#seen + 1] = gradient.end_of_dataloader
    end
    assert.are.same({ false, false, true }, seen)
    assert.is_false(gradient.in_dataloader)
  end)

  it("keeps a loader that was left by break until it is iterated again, or dropped", function()
    local a, gradient = accelerate.Accelerator(), state.GradientState()
    local left = loader_of(6, a)
    left:iter()()
    assert.are.equal(left, gradient.active_dataloader)
    for _ in left:iter() do assert.are.equal(1, #gradient.dataloader_references) end
    assert.is_false(gradient.in_dataloader)
    left:iter()()
    assert.is_true(gradient.in_dataloader)
    left = a:free_memory(left)  -- nil
    assert.is_nil(left)
    collectgarbage() collectgarbage()
    assert.is_false(gradient.in_dataloader)
    assert.are.equal(-1, gradient.remainder)
    assert.are.same({}, gradient.dataloader_references)
  end)
end)

describe("process control", function()
  it("runs a function where it is meant to", function()
    ranks.ok(3, [[
      local a = accelerate.Accelerator()
      local function tell(x) return rank, x end
      local function runs(fn, where)
        local got, passed = fn("x")
        if where then check(got == rank and passed == "x") else check(got == nil and passed == nil) end
      end
      for _, on in ipairs { a, accelerate.PartialState(), a.state } do
        runs(on:on_main_process(tell), rank == 0)
        runs(on:on_local_main_process(tell), rank == 0)
        runs(on:on_last_process(tell), rank == 2)
        for index = 0, 3 do
          runs(on:on_process({ process_index = index }, tell), rank == index)
          runs(on:on_local_process({ local_process_index = index }, tell), rank == index)
        end
      end
      local ok, message = pcall(a.on_process, a, tell)
      check(not ok and message:find("on_process: process_index is missing"), message)
    ]])
  end)

  it("prints once", function()
    local out = ranks.ok(3, [[
      local a = accelerate.Accelerator()
      a:print("one", nil, 3)
      a.state:print("two")
      accelerate.PartialState():print("three")
    ]])
    assert.are.equal("one\tnil\t3\ntwo\nthree\n", out)
  end)

  it("lets the main process of the machine go first, and goes on after an error", function()
    ranks.ok(2, [[
      local a = accelerate.Accelerator()
      local path = arg[1]
      for _, first in ipairs { "main_process_first", "local_main_process_first" } do
        local found = a[first](a, function(x)
          local f = io.open(path)
          if rank == 0 then io.open(path, "w"):close() end
          return x .. (f and " found" or " made")
        end, "x")
        check(found == (rank == 0 and "x made" or "x found"), found)
        a:wait_for_everyone()
        if rank == 0 then os.remove(path) end
        a:wait_for_everyone()
        local ok, message = pcall(a[first], a, function() if rank == 0 then error("mine", 0) end end)
        check(ok == (rank ~= 0) and (ok or message:find("^mine")))  -- the barrier was reached: nobody waits
        ok, message = pcall(a[first], a, 5)
        check(not ok and message:find(first .. ": expected a function, got 5"), message)
      end
    ]], { arguments = { host.free_path ".first" } })
  end)

  it("ends with the group left: who waits is told, and numbers stay", function()
    ranks.ok(2, [[
      local a = accelerate.Accelerator()
      a:end_training()
      check(a.num_processes == 2 and a.process_index == rank)
      a:end_training()
      for _, call in ipairs { function() a:wait_for_everyone() end, function() a:gather(core.ones(1)) end } do
        local ok, message = pcall(call)
        check(not ok and message:find("this rank has left the process group"), tostring(message))
      end
    ]])
    local status, _, err = ranks.run(2, [[
      local a = accelerate.Accelerator()
      if rank == 0 then a.state:destroy_process_group() end
      if rank == 1 then a:wait_for_everyone() end
    ]])
    assert.are.equal(1, status)
    assert.matches("rank 0 has finished and will not take part in this", err)
    -- in ranks that code forked, the group is another's
    ranks.ok(2, [[
      local a = accelerate.Accelerator()
      check(a.state.fork_launched)
      a:end_training()
      a:wait_for_everyone()
    ]], { env = { FORK_LAUNCHED = "1" } })
    state.reset()
    local alone = accelerate.Accelerator()
    alone:end_training()
    alone:wait_for_everyone()
    assert.error_matches(function() alone.state:destroy_process_group(5) end,
      "destroy_process_group: there is one group")
    state.reset()
  end)
end)

describe("the machine", function()
  local system = require "accelerate.machine.system"

  it("shares its processors between ranks, unless OMP_NUM_THREADS says", function()
    local cores = core._cores()
    local script = [[accelerate.Accelerator():print(core.get_num_threads())]]
    assert.are.equal(("%d\n"):format(math.max(1, math.floor(cores / 2))),
      (ranks.ok(2, script, { env = { OMP_NUM_THREADS = "" } })))
    assert.are.equal(("%d\n"):format(math.max(1, math.floor(cores / 64))),
      (ranks.ok(64, script, { env = { OMP_NUM_THREADS = "" } })))
    assert.are.equal("3\n", (ranks.ok(2, script, { env = { OMP_NUM_THREADS = "3" } })))
  end)

  it("is told of when its kernel is old, once", function()
    local status, out, err = host.run { "-e", [[
      local check = require("accelerate").utils.check_os_kernel
      for release, old in pairs { ["5.4.0-150-generic"] = true, ["4.18.0"] = true, ["5.5.0"] = false,
        ["6.1.0-18-amd64"] = false,
        ["10.0"] = false, ["5.3"] = true, ["strange"] = false } do
        assert(check(release) == old and check(release) == old, release)
      end
    ]] }
    assert.are.same({ 0, "" }, { status, out }, err)
    for _, release in ipairs { "5.4.0", "4.18.0", "5.3" } do
      local _, times = err:gsub("the Linux kernel is " .. release:gsub("%.", "%%.") .. ", older than 5.5.0",
        "")
      assert.are.equal(1, times, err)
    end
    assert.are.equal(3, select(2, err:gsub("\n", "")), err)
    assert.are.equal("boolean", type(system.check_os_kernel()))
  end)

  it("binds ranks to the processors near their GPU, where there is one", function()
    local before = system.cpu_affinity()
    assert.is_true(#before >= 1)
    if core.device_count("cuda") == 0 then
      assert.is_nil(system.override_numa_affinity(0))
      assert.is_nil(accelerate.utils.set_numa_affinity(0, { verbose = true }))
      assert.are.same(before, system.cpu_affinity())
    end
    assert.error_matches(function() accelerate.utils.set_numa_affinity() end,
      "set_numa_affinity: local_process_index is missing")
    assert.error_matches(function() accelerate.utils.override_numa_affinity(-1) end,
      "local_process_index must be at least 0")
    local fake = host.path:match("^(.*)/") .. "/libax_fake_device.so"
    if not fs.exists(fake) then return pending("needs " .. fake) end
    -- a device that the driver does not know gives a notice
    local status, out, err = host.run({ "-e", [[require("accelerate").PartialState() print("bound")]] },
      { env = { ACCEL_CUDA_PLUGIN = fake, ACCELERATE_CPU_AFFINITY = "1" } })
    assert.is_true(status == 0 and out == "bound\n" or err:find("the processors near GPU 0 could not be used",
      1, true) ~= nil, err)
    status = host.run({ "-e", [[require("accelerate").PartialState { cpu = true }]] },
      { env = { ACCELERATE_CPU_AFFINITY = "1" } })
    assert.are.equal(0, status)
  end)
end)
