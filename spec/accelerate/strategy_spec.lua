-- Strategies: lua/accelerate/parallel/strategy.lua.
local Replicated = require "accelerate.parallel.replicated"
local Sharded = require "accelerate.parallel.sharded.strategy"
local Strategy = require "accelerate.parallel.strategy"
local accelerate = require "accelerate"
local class = require "accelerate.utils.class"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local messages = require "spec.support.messages"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local parallel = require "accelerate.parallel"
local plans = require "accelerate.parallel.plan"
local tensor = require "accelerate.tensor"

-- A tenant that writes down its calls, for plans of this name.
local function tenant(calls)
  local Tenant = class("Tenant", Strategy)
  function Tenant.serves(plan) return plan ~= nil and plan.name == "tenant" end
  function Tenant:init(plan, handler)
    Strategy.init(self, plan, handler)
    self.replicas = false
  end
  function Tenant:follows() return true end -- luacheck: ignore
  for _, name in ipairs { "begin", "divided", "place", "begin_pass", "finish_pass", "rest", "before_step",
    "after_step" } do
    Tenant[name] = function(self, ...)
      calls[#calls + 1] = name
      return Strategy[name](self, ...)
    end
  end
  return Tenant
end

-- An Accelerator whose plan the tenant serves.
local function with_tenant(calls, fn)
  table.insert(parallel.TENANTS, 1, tenant(calls))
  local accelerator = accelerate.Accelerator { cpu = true }
  accelerator._plan = plans.new("NO_SHARD", { name = "tenant" }, 1)
  local ok, why = pcall(fn, accelerator)
  table.remove(parallel.TENANTS, 1)
  if not ok then error(why, 0) end
end

describe("a strategy", function()
  it("is the sharded one where a plan cuts something on this run, else the replicated one", function()
    assert.is_true(class.is(parallel.strategy(nil), Replicated))
    assert.is_true(class.is(parallel.strategy(plans.new("FULL_SHARD", {}, 1)), Replicated))
    assert.is_false(class.is(parallel.strategy(plans.new("FULL_SHARD", {}, 1)), Sharded))
    local offloaded = plans.new("ZeRO-3", { offload = { values = "disk", path = "." } }, 1)
    assert.is_true(class.is(parallel.strategy(offloaded), Sharded))
  end)

  it("has no method that the interface lacks, but for what replicated ones have for their kind", function()
    local own = { serves = true, init = true, mean_gradient = true, reduce_gradients = true }
    for _, Class in ipairs { Replicated, Sharded } do
      for name, value in next, Class do
        if type(value) == "function" and name:sub(1, 1) ~= "_" and not own[name] then
          assert.is_truthy(rawget(Strategy, name), Class.__name .. ":" .. name)
        end
      end
    end
  end)

  it("is kept for as long as the plan is in force", function()
    local accelerator = accelerate.Accelerator { cpu = true }
    local first = accelerator:_strategy()
    assert.equal(first, accelerator:_strategy())
    accelerator._plan = plans.new("FULL_SHARD", {}, 1)
    assert.equal(accelerator._plan, accelerator:_strategy().plan)
    accelerator._plan = nil
    assert.equal("none: every rank holds the whole model", accelerator:_strategy().plan.name)
  end)

  it("of another folder is called in the order of preparing, a pass and a step", function()
    local calls = {}
    with_tenant(calls, function(accelerator)
      local model = nn.Linear(2, 1)
      local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
      model, optimizer = accelerator:prepare(model, optimizer)
      local before = model.weight:sum():item()
      accelerator:backward(model(tensor.ones { 1, 2 }):sum())
      optimizer:step()
      assert.is_true(before ~= model.weight:sum():item())
      assert.equal("begin divided place begin_pass finish_pass rest before_step after_step",
        table.concat(calls, " "))
    end)
  end)

  it("of another folder is refused by its plan's name where each rank must train a whole model", function()
    with_tenant({}, function(accelerator)
      local model = accelerator:prepare(nn.Linear(2, 1))
      messages.raises("join_uneven_inputs: under tenant ranks step parts of the model",
        parallel.check_joinable, { model })
      messages.raises("check_replicas: the model is cut over ranks (tenant)", function()
        model.weight.requires_grad = true
        parallel.record_of(model).local_only = true
        parallel.check_identical({ model }, "now")
      end)
    end)
  end)

  it("of another folder is saved and loaded", function()
    with_tenant({}, function(accelerator)
      local model = accelerator:prepare(nn.Linear(2, 1))
      host.in_folder(function(path)
        accelerator:save_state(path .. "/c")
        local kept = model.weight:clone()
        require("accelerate.core").no_grad(function() model.weight:zero_() end)
        accelerator:load_state(path .. "/c")
        assert.same(kept:totable(), model.weight:totable())
        assert.is_true(fs.exists(path .. "/c/model.safetensors"))
      end)
    end)
  end)
end)
