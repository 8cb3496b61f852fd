-- Shared state: who am I, what the run was set up with, where accumulation stands.
local accelerate = require "accelerate"
local ranks = require "spec.support.ranks"
local reference = require "spec.support.sharding_reference"
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
    assert.matches("Distributed environment: NO\nNum processes: 1\nProcess index: 0\nLocal process index: 0\nDevice: cpu", tostring(here))
  end)

  it("names the nearest field for one that it lacks", function()
    local here = accelerate.PartialState()
    assert.error_matches(function() return here.num_proceses end, "PartialState has no 'num_proceses'; did you mean 'num_processes'%?")
    assert.error_matches(function() here.num_processes = 3 end, "cannot be assigned")
    assert.error_matches(function() return accelerate.DistributedType.MULTI_CPUS end, "did you mean 'MULTI_CPU'")
  end)

  it("names the reset as the cause when its facts are gone", function()
    local here = accelerate.PartialState()
    here:_reset_state()
    assert.error_matches(function() return here.device end, "PartialState has no 'device' any more: it was reset")
  end)

  it("runs decorated functions on one process, whatever rank they name", function()
    local here = accelerate.PartialState()
    assert.are.equal(7, here:on_main_process(function(x) return x + 1 end)(6))
    assert.are.equal(7, here:on_last_process(function() return 7 end)())
    assert.are.equal(7, here:on_process(function() return 7 end, { process_index = 5 })())
    assert.are.equal(7, here:on_local_process({ local_process_index = 5 }, function() return 7 end)())
    assert.are.equal(7, here:main_process_first(function() return 7 end))
    assert.error_matches(function() here:on_main_process(5) end, "on_main_process: expected a function to wrap, got 5")
    assert.error_matches(function() here:on_process(print, { process_idx = 5 }) end, "did you mean 'process_index'")
  end)

  it("gives one process the whole input, untouched", function()
    local here, input = accelerate.PartialState(), { 1, 2, 3 }
    assert.are.equal(input, here:split_between_processes(input, { apply_padding = true }, function(part) return part end))
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
      check(here:on_process(tell, { process_index = 1 })() == (rank == 1 and 1 or nil))
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
    ]], { arguments = { os.tmpname() .. ".first" } })
  end)

  it("splits lists as Accelerate does", function()
    local cases = {}
    for _, case in ipairs(reference.cases("between")) do
      local n, count, padding = unpack(case.arguments)
      if count == 3 then cases[#cases + 1] = ("{ %d, %s, %q }"):format(n, tostring(padding == 1), case.fields[1]) end
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
        local found = here:split_between_processes(list, opts, function(part) return table.concat(part, ",") end)
        check(found == want, ("%d items: got '%s', want '%s'"):format(case[1], found, want))
        -- a tensor and a map are split at the same places
        local t = here:split_between_processes(core.tensor(list, { dtype = "int64" }), opts, function(part) return table.concat(part:totable(), ",") end)
        check(t == want, "tensor: " .. t)
        local m = here:split_between_processes({ a = list, b = list }, opts, function(part) return table.concat(part.b, ",") end)
        check(m == want, "map: " .. m)
      end
      local ok, message = pcall(here.split_between_processes, here, { a = { 1 }, b = { 1, 2 } }, function() end)
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
