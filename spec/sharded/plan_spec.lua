-- Sharding plans: lua/accelerate/parallel/plan, lua/accelerate/config/sharding.lua.
local accelerate = require "accelerate"
local env = require "accelerate.utils.environment"
local messages = require "spec.support.messages"
local models = require "accelerate.models"
local nn = require "accelerate.nn"
local notice = require "accelerate.messages.notice"
local optim = require "accelerate.optim"
local plans = require "accelerate.parallel.plan"
local sharding = require "accelerate.config.sharding"
local sizes = require "accelerate.parallel.plan.table"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"
local units = require "accelerate.parallel.plan.units"

local raises = messages.raises
local Plugin, Config = accelerate.FullyShardedDataParallelPlugin, accelerate.ParallelismConfig

local function context(n, more)
  local made = { num_processes = n, local_processes = n, device = "cpu" }
  for key, value in pairs(more or {}) do made[key] = value end
  return made
end

local function plan_of(given, made)
  return sharding.from_fsdp(env.clear_environment(function() return Plugin(given) end), made or context(4))
end

local function homes(plan) return ("%s %s %s"):format(plan.values, plan.gradients, plan.states) end

-- The names in the model of the modules that a plan makes units.
local function names_of(plan, model)
  local by_module, names = {}, {}
  for name, module in model:named_modules() do by_module[module] = name end
  for i, module in ipairs(plan.units(model)) do names[i] = by_module[module] end
  return names
end

local function gpt()
  return models.GPT2LMHeadModel { vocab_size = 40, n_positions = 8, n_embd = 8, n_layer = 2, n_head = 2 }
end

describe("a plan of FSDP", function()
  it("gives each strategy its homes, copies and parts", function()
    for strategy, case in pairs { FULL_SHARD = { "cut cut cut", 1, 4 },
      SHARD_GRAD_OP = { "whole cut cut", 1, 4 },
      NO_SHARD = { "whole whole whole", 4, 1 }, HYBRID_SHARD = { "cut cut cut", 2, 2 },
      HYBRID_SHARD_ZERO2 = { "whole cut cut", 2, 2 } } do
      local plan = plan_of({ sharding_strategy = strategy }, context(4, { local_processes = 2 }))
      assert.are.same(case, { homes(plan), plan.replicate, plan.shard })
      assert.are.equal(strategy, plan.name)
    end
  end)

  it("keeps values until backward where FSDP2 does not reshard", function()
    local plan = plan_of { fsdp_version = 2, reshard_after_forward = false }
    assert.are.equal("cut cut cut", homes(plan))
    assert.is_false(plan.reshard_after_forward)
    assert.is_true(plan_of { fsdp_version = 2 }.reshard_after_forward)
  end)

  it("takes copies and parts from a ParallelismConfig", function()
    local plan = plan_of({ fsdp_version = 2 },
      context(6, { parallelism = Config { dp_replicate_size = 3, dp_shard_size = 2 } }))
    assert.are.same({ "HYBRID_SHARD", 3, 2 }, { plan.name, plan.replicate, plan.shard })
    assert.are.equal("parallelism_config.dp_replicate_size", plan.origin.replicate)
  end)

  it("says where each setting came from", function()
    local plan = env.patch_environment({ FSDP_STATE_DICT_TYPE = "SHARDED_STATE_DICT" }, function()
      return sharding.from_fsdp(Plugin { reshard_after_forward = "NO_SHARD", ignored_modules = "a" },
        context(1))
    end)
    assert.are.equal("fsdp_plugin.reshard_after_forward", plan.origin.name)
    assert.are.equal("fsdp_plugin.ignored_modules", plan.origin.ignored)
    assert.are.equal("FSDP_STATE_DICT_TYPE", plan.origin.state_dict_type)
    assert.are.equal("default", plan.origin.offload)
  end)

  it("moves nothing to the host's memory where it is there already", function()
    assert.are.same({ values = "cpu", states = "cpu" },
      plans.new("FULL_SHARD", { offload = { values = "cpu" } },
      1).offload) -- who steps them there has the states there
    assert.are.same({ note = "none: a CPU's memory is the host's" }, plan_of { cpu_offload = true }.offload)
    assert.are.same({ values = "cpu", gradients = "cpu", states = "cpu" },
      plan_of({ cpu_offload = { offload_params = true } }, context(2, { device = "cuda:0" })).offload)
  end)

  it("refuses sizes that do not make the ranks", function()
    raises("FULL_SHARD: 2 copies over 2 ranks each (dp_replicate x dp_shard) take 4 ranks, and the run has 6",
      plans.new, "FULL_SHARD", { replicate = 2, shard = 2 }, 6)
  end)
end)

describe("a plan of a ParallelismConfig alone", function()
  it("cuts over dp_shard, and is none without it", function()
    local plan = sharding.from_parallelism(Config { dp_shard_size = 4 }, context(4))
    assert.are.same({ "FULL_SHARD", "cut cut cut", 4 }, { plan.name, homes(plan), plan.shard })
    assert.is_nil(sharding.from_parallelism(Config { dp_replicate_size = 4 }, context(4)))
  end)
end)

describe("units", function()
  before_each(notice.reset)

  it("are the modules of the named classes, and of classes derived from them", function()
    local Base = nn.class "Block"
    function Base:init() self.fc = nn.Linear(2, 2) end
    local Derived = nn.class("WideBlock", Base)
    local net = nn.Sequential(Base(), Derived(), nn.Linear(2, 2))
    local plan = plan_of { auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
      transformer_cls_names_to_wrap = { "Block" } }
    assert.are.same({ "0", "1" }, names_of(plan, net))
    plan = plan_of { auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
      transformer_cls_names_to_wrap = { "Blocks" } }
    raises("TRANSFORMER_BASED_WRAP: the model (Sequential) has no module of the class 'Blocks'; did " ..
      "you mean 'Block'?", plan.units, net)
  end)

  it("are the model's own undivided classes when none is named", function()
    local plan = plan_of { auto_wrap_policy = "TRANSFORMER_BASED_WRAP" }
    assert.are.same({ "transformer.h.0", "transformer.h.1" }, names_of(plan, gpt()))
    assert.are.same({ "0.transformer.h.0", "0.transformer.h.1" }, names_of(plan, nn.Sequential(gpt())))
    messages.has(messages.said(function() assert.are.same({}, plan.units(nn.Linear(2, 2))) end),
      "no class is named, and Linear has no _no_split_modules, so that the whole model is one unit")
  end)

  it("are found by Transformers' names, too", function()
    for name, case in pairs {
      LlamaModel = { "LlamaDecoderLayer", { hidden_size = 8, intermediate_size = 8, num_attention_heads = 2,
        num_key_value_heads = 2 } },
      RobertaModel = { "RobertaLayer", { hidden_size = 8, intermediate_size = 8, num_attention_heads = 2 } },
      DistilBertModel = { "TransformerBlock", { dim = 8, hidden_dim = 8, n_heads = 2, n_layers = 2 } } } do
      local config = case[2]
      config.num_hidden_layers = name ~= "DistilBertModel" and 2 or nil
      config.vocab_size = 20
      assert.are.equal(2, #units.by_class(models[name](config), { case[1] }, "test"), name)
    end
  end)

  it("are modules with enough parameters outside smaller units in FSDP1", function()
    local net = nn.Sequential(nn.Linear(10, 10), nn.Sequential(nn.Linear(10, 4), nn.Linear(4, 4)),
      nn.Linear(10, 2))
    local function of(least) return names_of(plan_of { auto_wrap_policy = "SIZE_BASED_WRAP",
      min_num_params = least }, net) end
    assert.are.same({ "0" }, of(110))
    assert.are.same({ "0", "1" }, of(60))
    assert.are.same({ "0", "1.0", "2" }, of(22))  -- 1's rest is too small
    assert.are.same({}, of(0))
  end)

  it("are modules with more parameters than the limit in FSDP2", function()
    local net = nn.Sequential(nn.Linear(10, 10), nn.ModuleList { nn.Linear(10, 4) },
      nn.Sequential(nn.Linear(10, 4)))
    local function of(limit) return names_of(plan_of { fsdp_version = 2, auto_wrap_policy = "SIZE_BASED_WRAP",
      min_num_params = limit }, net) end
    assert.are.same({ "0" }, of(100))
    assert.are.same({ "0", "1.0", "2", "2.0" }, of(43))
  end)

  it("are what a function chooses, from the leaves up", function()
    local net = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)), nn.Linear(3, 3))
    local rests = {}
    local plan = plan_of { auto_wrap_policy = function(module, recurse, rest)
      if recurse then return true end
      rests[#rests + 1] = rest
      return module == net[1] or module == net[1][2]
    end }
    assert.are.same({ "0", "0.1" }, names_of(plan, net))
    assert.are.same({ 6, 9, 6, 12 }, rests)
  end)

  it("leave out the parameters of ignored modules", function()
    local net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for _, ignored in ipairs { "1", "(1|7)", { net[2] } } do
      local set = plan_of { ignored_modules = ignored }.ignored(net)
      assert.is_nil(set[net[1].weight])
      assert.is_true(set[net[2].weight] and set[net[2].bias])
    end
    messages.has(messages.said(function() plan_of { ignored_modules = "2" }.ignored(net) end),
      "ignored_modules = '2' matches no module of Sequential")
  end)
end)

describe("bytes of a plan", function()
  local net = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
  local n = 2 * (256 * 256 + 256)

  local function bytes(given, made, states)
    local plan = plan_of(given, made)
    return sizes.bytes(plan, sizes.units(plan, net), states or 2)
  end

  it("are the formula's", function()
    for strategy, want in pairs { NO_SHARD = 16 * n, FULL_SHARD = 16 * n / 4,
      SHARD_GRAD_OP = 4 * n + 12 * n / 4 } do
      local sum = bytes { sharding_strategy = strategy }
      assert.are.equal(want, sum.values + sum.gradients + sum.states, strategy)
      assert.are.equal(16 * n, sum.whole.values + sum.whole.gradients + sum.whole.states)
    end
    assert.are.equal(4 * n, bytes({ sharding_strategy = "NO_SHARD" }, nil, 0).values)
  end)

  it("have two of the largest unit's buffers, in the type that is computed in", function()
    local given = { auto_wrap_policy = "SIZE_BASED_WRAP", min_num_params = 100 }
    local sum = bytes(given)
    assert.are.equal(2 * 4 * n / 2, sum.whole_values.total)
    assert.are.equal(2 * 4 * n / 2, sum.whole_gradients.total)
    assert.are.equal(16 * n / 4 + 2 * (4 * n / 2 + 4 * n / 2), sum.total)
    given.mixed_precision_policy = { param_dtype = "bfloat16", reduce_dtype = "float32",
      buffer_dtype = "float32" }
    assert.are.equal(2 * 2 * n / 2, bytes(given).whole_values.total)
    assert.are.equal(4 * n, bytes({}).whole_values.total)
  end)

  it("have the model's own unit's besides, and one unit's gradients as they are sent", function()
    local function sum_of(given)
      given.auto_wrap_policy = function(module, recurse) return recurse or rawequal(module, net[2]) end
      return bytes(given)
    end
    local sum = sum_of {}
    assert.are.same({ 4 * n / 2, 4 * n / 2 }, { sum.whole_values.own, sum.whole_values.total / 2 })
    sum = sum_of { mixed_precision_policy = { param_dtype = "bfloat16", reduce_dtype = "bfloat16",
      buffer_dtype = "float32" } }
    assert.are.equal(4 * n + 2 * n / 2, sum.whole_gradients.total)
    assert.are.equal(2 * n, sum.whole_values.total)
  end)

  it("leave frozen and ignored parameters out", function()
    local frozen = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    frozen[1]:requires_grad_(false)
    local plan = plan_of { ignored_modules = "1" }
    local sum = sizes.bytes(plan, sizes.units(plan, frozen), 2)
    assert.are.equal(0, sum.gradients + sum.states)
    assert.are.equal(4 * (64 * 64 + 64), sum.whole.values)
  end)
end)

describe("explain_sharding", function()
  after_each(function()
    state.reset()
    env.set("ACCELERATE_USE_FSDP", nil)
  end)

  it("shows settings with their origin, bytes and what is sent, once on a machine", function()
    local out = ranks.ok(2, [[
      local models, optim = require "accelerate.models", require "accelerate.optim"
      local a = accelerate.Accelerator {
        fsdp_plugin = { fsdp_version = 2, auto_wrap_policy = "TRANSFORMER_BASED_WRAP" } }
      local model = models.GPT2LMHeadModel {
        vocab_size = 64, n_positions = 8, n_embd = 8, n_layer = 2, n_head = 2 }
      a:explain_sharding(model, { optimizer = optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 }) })
    ]], { env = { FSDP_ACTIVATION_CHECKPOINTING = "true" } })
    for _, line in ipairs { "sharding plan of GPT2LMHeadModel with SGD: FULL_SHARD on 2 ranks\n",
      "\n +strategy +FULL_SHARD +default\n",
      "\n +units +2, and the rest of the model +fsdp_plugin.auto_wrap_policy\n",
      "\n +activation checkpointing +yes +FSDP_ACTIVATION_CHECKPOINTING\n",
      "\n +values +9.3 KB +4.9 KB +one of 2 parts\n", "\n +states +9.3 KB +",
      "\n +two units' values +7.0 KB", "\n +the model's own unit's values +2.4 KB",
      "\n +a rank sends +in each forward and backward pass +" } do
      messages.matches(out, line)
    end
    assert.are.equal(1, select(2, out:gsub("sharding plan of", "")))
  end)

  it("counts the states of the prepared optimizer", function()
    local a = accelerate.Accelerator()
    local net = nn.Linear(64, 64)
    local optimizer = optim.SGD(net:parameters(), { lr = 0.1 })
    net, optimizer = a:prepare(net, optimizer)
    local printed = print
    _G.print = function() end
    local text = a:explain_sharding(net)
    _G.print = printed
    messages.matches(text, "Linear with SGD: none: every rank holds the whole model on 1 rank")
    messages.matches(text, "\n +states +0 bytes +0 bytes")
    assert.is_truthy(optimizer)
  end)

  -- The table of a layer on two ranks, with an optimizer; shared: whether the ranks share memory.
  local function explained(shared, layer, optimizer)
    return ranks.ok(2, ([[
      local nn, optim = require "accelerate.nn", require "accelerate.optim"
      local a = accelerate.Accelerator { fsdp_plugin = { fsdp_version = 2 } }
      local layer = %s
      local model, optimizer = a:prepare(layer, optim.%s(layer:parameters(), { lr = 0.1 }))
      a:explain_sharding(model)
    ]]):format(layer, optimizer),
      { launch = { "--cpu" }, env = { ACCEL_SHARED_PARAMETERS = shared and "1" or "0" } })
  end

  it("leaves out gathers where the ranks share memory", function()
    local out = explained(true, "nn.Linear(64, 64)", "SGD")
    messages.matches(out, "\n +reshard after forward +nothing is gathered: the ranks share memory")
    assert.is_nil(out:find "unit's values")
    messages.matches(out, "in each forward and backward pass +8.3 KB")
    out = explained(false, "nn.Linear(64, 64)", "SGD")
    messages.matches(out, "\n +the unit's values +16.6 KB")
    messages.matches(out, "in each forward and backward pass +16.6 KB") -- values once, gradients once
  end)

  -- What ranks gather in a pass is counted, and their peak is measured.
  it("counts what is gathered, and what is in memory while units compute", function()
    for _, case in ipairs { "true", "false", "true, mixed_precision_policy = 'bf16'",
      "false, mixed_precision_policy = 'bf16'" } do
      ranks.ok(2, ([[
        local models, optim, tensor, utils = accelerate.models, accelerate.optim, accelerate.tensor,
          accelerate.utils
        local sizes = require "accelerate.parallel.plan.table"
        local a = accelerate.Accelerator { cpu = true, fsdp_plugin = { fsdp_version = 2,
          auto_wrap_policy = "TRANSFORMER_BASED_WRAP", reshard_after_forward = %s } }
        local model = models.GPT2LMHeadModel {
          vocab_size = 300, n_positions = 16, n_embd = 256, n_layer = 4, n_head = 4 }
        local ids, optimizer = tensor.randint(0, 300, { 1, 8 }), nil
        model, optimizer = a:prepare(model, optim.AdamW(model:parameters(), { lr = 1e-3 }))
        local function pass() a:backward(model(ids, { labels = ids }).loss) end
        pass()
        optimizer:step()
        optimizer:zero_grad()
        collectgarbage() collectgarbage()
        local rest, before = utils.memory_stats().live_bytes, core.flat_gathered()
        utils.reset_peak_memory_stats()
        pass()
        local more, gathered = utils.memory_stats().peak_bytes - rest, core.flat_gathered() - before
        local plan = a._plan
        local units = sizes.units(plan, model)
        local said, sum = a:explain_sharding(model), sizes.bytes(plan, units, 2)
        local values, trained = 0, 0
        for i, unit in ipairs(units) do
          local each = plan.param_dtype and 2 or 4
          values = values + unit.values.float32 * each * (plan.reshard_after_forward and i > 1 and 2 or 1)
          trained = trained + unit.trained.float32 * (plan.reduce_dtype and 2 or 4)
        end
        check(math.abs(gathered - values) < 0.01 * values, ("%%d beside %%d"):format(gathered, values))
        local text = require("accelerate.utils.sizes").text((values + trained) / 2)
        check(said:find("forward and backward pass  " .. text, 1, true), text .. " in " .. said)
        local buffers = sum.whole_values.total + sum.whole_gradients.total
        check(more < 1.15 * buffers and more > 0.5 * buffers, ("%%.1f MB beside %%.1f"):format(more / 1e6,
          buffers / 1e6))
      ]]):format(case), { launch = { "--cpu" }, env = { ACCEL_SHARED_PARAMETERS = "0" } })
    end
  end)

  it("counts what Muon and Adafactor send in a step, and keep whole", function()
    messages.matches(explained(true, "nn.Linear(64, 64, { bias = false })", "Muon"),
      "at each optimizer step +4.1 KB")
    local out = explained(true, "nn.Linear(64, 64)", "Adafactor")
    messages.matches(out, "\n +states +768 bytes +640 bytes +one of 2 parts; whole for rows and columns")
    messages.matches(out, "at each optimizer step +528 bytes")
  end)

  it("refuses other things than modules and optimizers", function()
    local a = accelerate.Accelerator()
    raises("explain_sharding: expected a module, got 3", a.explain_sharding, a, 3)
    raises("option 'optimizer' must be an optimizer, got 'Adam'", a.explain_sharding, a, nn.Linear(1, 1),
      { optimizer = "Adam" })
  end)
end)
