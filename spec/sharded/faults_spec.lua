-- Allocations that fail in sharded runs: each is an error that names memory, on every rank.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local messages = require "spec.support.messages"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local parallel = require "accelerate.parallel"
local plans = require "accelerate.parallel.plan"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"

local EVERYWHERE = { states = "disk", values = "disk", gradients = "disk" }

local function make()
  return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 3))
end

-- Two steps, a save and a load under a plan; the sums of the parameters.
local function run(strategy, kinds, folder)
  state.reset()
  local accelerator = accelerate.Accelerator { cpu = true }
  local offload = { path = kinds and folder or nil }
  for kind, place in pairs(kinds or {}) do offload[kind] = place end
  accelerator._plan = plans.new(strategy, { replicate = 1, shard = 1, offload = offload,
    reshard_after_forward = true, units = function(model) return { model[1], model[3] } end }, 1)
  core.manual_seed(1)
  local model = make()
  local optimizer = optim.AdamW(model:parameters(), { lr = 0.01 })
  model, optimizer = accelerator:prepare(model, optimizer)
  local x = core.randn(4, 6)
  for _ = 1, 2 do
    accelerator:backward(model(x):square():mean())
    accelerator:clip_grad_norm_(model:parameters(), 0.5)
    optimizer:step()
    optimizer:zero_grad()
  end
  accelerator:save_state(folder .. "/state")
  accelerator:load_state(folder .. "/state")
  return parallel.summon(model, false, nil, function()
    local sums = {}
    for k, p in ipairs(model:parameters()) do sums[k] = p:detach():sum():item() end
    return sums
  end)
end

local function live()
  state.reset()
  jit.flush() -- a trace holds the objects that it was specialised on
  for _ = 1, 3 do
    collectgarbage()
    core.is_released(core.zeros(0)) -- a call into the binding drops what finalisers let go of
  end
  local stats = core.memory_stats()
  return { stats.live_bytes, stats.structs }
end

describe("an allocation that fails", function()
  after_each(state.reset)

  -- Every 23rd one, so that the test stays short; those between them are like these.
  local function each_named(strategy, kinds)
    host.in_folder(function(folder)
      local expected = run(strategy, kinds, folder)
      run(strategy, kinds, folder)
      local before, n = live(), 1
      while true do
        core.debug_fail_alloc(n)
        local ok, result = pcall(run, strategy, kinds, folder)
        core.debug_fail_alloc(0)
        if ok then return assert.are.same(expected, result) end
        messages.has(tostring(result), "out of memory")
        result = nil -- luacheck: ignore 311 (it may hold memory)
        assert.are.same(before, live(), ("failure %d"):format(n))
        n = n + 23
        assert.is_true(n < 5000, "the run never passes")
      end
    end)
  end

  it("anywhere in a run under a plan is an error and leaks nothing", function()
    each_named("ZeRO-3")
  end)

  it("anywhere in a run that rests in files is an error and leaks nothing", function()
    each_named("ZeRO-3", EVERYWHERE)
  end)

  -- The other rank is then in a collective that the save itself calls.
  it("on one rank amid a save or a load is what the run ends with", function()
    host.in_folder(function(folder)
      for _, case in ipairs { { "save", 3 }, { "save", 20 }, { "load", 60 }, { "load", 90 } } do
        local status, _, err = ranks.run(2, [[
          local nn, optim = require "accelerate.nn", require "accelerate.optim"
          local action, n = arg[2], tonumber(arg[3])
          local a = accelerate.Accelerator { fsdp_plugin = accelerate.FullyShardedDataParallelPlugin {
            fsdp_version = 2, state_dict_type = "FULL_STATE_DICT" } }
          local model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
          local optimizer = optim.AdamW(model:parameters(), { lr = 0.01 })
          model, optimizer = a:prepare(model, optimizer)
          a:backward(model(core.randn(4, 6)):square():mean())
          optimizer:step()
          optimizer:zero_grad()
          if action == "load" then a:save_state(arg[1]) end
          if rank == 1 then core.debug_fail_alloc(n) end
          a[action .. "_state"](a, arg[1])
          core.debug_fail_alloc(0)
        ]], { launch = { "--cpu" }, arguments = { folder .. "/state", case[1], tostring(case[2]) } })
        assert.are.equal(1, status, case[1])
        messages.has(err, case[1] .. "_state: ")
        messages.has(err, "out of memory: ")
        fs.remove_tree(folder .. "/state")
      end
    end)
  end)
end)
