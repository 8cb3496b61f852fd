-- FullyShardedDataParallelPlugin: lua/accelerate/config/fsdp.lua. The values that Accelerate's own
-- plugin has after the same calls, and what is refused.
local accelerate = require "accelerate"
local env = require "accelerate.utils.environment"
local messages = require "spec.support.messages"
local nn = require "accelerate.nn"
local notice = require "accelerate.messages.notice"
local state = require "accelerate.state"

local Plugin = accelerate.FullyShardedDataParallelPlugin
local raises, said, has = messages.raises, messages.said, messages.has

-- What fn gives with only these variables set.
local function with(variables, fn)
  return env.clear_environment(function() return env.patch_environment(variables, fn) end)
end

local function plugin(given, variables)
  return with(variables or {}, function() return Plugin(given) end)
end

-- The plugin, and the notices that making it writes.
local function noted(given, variables)
  notice.reset()
  local made
  local text = said(function() made = plugin(given, variables) end)
  return made, text
end

describe("FullyShardedDataParallelPlugin", function()
  before_each(notice.reset)

  it("has FSDP1's defaults", function()
    local p = plugin()
    assert.are.equal(1, p.fsdp_version)
    assert.are.equal("FULL_SHARD", p.sharding_strategy)
    assert.are.equal("FULL_STATE_DICT", p.state_dict_type)
    assert.are.same({ offload_to_cpu = true, rank0_only = true }, p.state_dict_config)
    for _, field in ipairs { "reshard_after_forward", "auto_wrap_policy", "backward_prefetch",
      "mixed_precision_policy", "ignored_modules", "min_num_params" } do
      assert.is_nil(p[field], field)
    end
    for _, field in ipairs { "cpu_offload", "use_orig_params", "sync_module_states", "forward_prefetch",
      "activation_checkpointing", "cpu_ram_efficient_loading" } do
      assert.is_false(p[field], field)
    end
    assert.is_true(p.limit_all_gathers)
  end)

  it("has FSDP2's defaults", function()
    local p = plugin { fsdp_version = 2 }
    assert.is_true(p.reshard_after_forward)
    assert.are.equal("SHARDED_STATE_DICT", p.state_dict_type)
    assert.are.same({ offload_to_cpu = true }, p.optim_state_dict_config)
    for _, field in ipairs { "sharding_strategy", "backward_prefetch", "use_orig_params",
      "sync_module_states",
      "forward_prefetch" } do
      assert.is_nil(p[field], field)
    end
  end)

  it("takes what is not given from FSDP_ variables", function()
    local p = plugin(nil, { FSDP_VERSION = "2", FSDP_RESHARD_AFTER_FORWARD = "false",
      FSDP_STATE_DICT_TYPE = "FULL_STATE_DICT", FSDP_AUTO_WRAP_POLICY = "transformer_based_wrap",
      FSDP_TRANSFORMER_CLS_TO_WRAP = "GPT2Block,T5Block", FSDP_OFFLOAD_PARAMS = "yes",
      FSDP_ACTIVATION_CHECKPOINTING = "1", FSDP_IGNORED_MODULES = "head.*",
      FSDP_CPU_RAM_EFFICIENT_LOADING = "true" })
    assert.is_false(p.reshard_after_forward)
    assert.are.equal("FULL_STATE_DICT", p.state_dict_type)
    assert.are.equal("TRANSFORMER_BASED_WRAP", p.auto_wrap_policy)
    assert.are.same({ "GPT2Block", "T5Block" }, p.transformer_cls_names_to_wrap)
    assert.is_true(p.cpu_offload and p.activation_checkpointing and p.cpu_ram_efficient_loading)
    assert.are.equal("head.*", p.ignored_modules)
    p = plugin(nil, { FSDP_SHARDING_STRATEGY = "4", FSDP_AUTO_WRAP_POLICY = "SIZE_BASED_WRAP",
      FSDP_MIN_NUM_PARAMS = "1e8", FSDP_BACKWARD_PREFETCH = "BACKWARD_PRE", FSDP_USE_ORIG_PARAMS = "true",
      FSDP_FORWARD_PREFETCH = "true", FSDP_SYNC_MODULE_STATES = "true" })
    assert.are.equal("HYBRID_SHARD", p.sharding_strategy)
    assert.are.equal(100000000, p.min_num_params)
    assert.are.equal("BACKWARD_PRE", p.backward_prefetch)
    assert.is_true(p.use_orig_params and p.forward_prefetch and p.sync_module_states)
  end)

  it("lets an argument beat its variable", function()
    local p = plugin({ sharding_strategy = "NO_SHARD", min_num_params = 5,
      auto_wrap_policy = "size_based_wrap" },
      { FSDP_SHARDING_STRATEGY = "FULL_SHARD", FSDP_MIN_NUM_PARAMS = "7" })
    assert.are.equal("NO_SHARD", p.sharding_strategy)
    assert.are.equal(5, p.min_num_params)
  end)

  it("reads strategies by name in any case, and by number", function()
    for i, name in ipairs { "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
      "HYBRID_SHARD_ZERO2" } do
      assert.are.equal(name, plugin { sharding_strategy = i }.sharding_strategy)
      assert.are.equal(name, plugin { sharding_strategy = tostring(i) }.sharding_strategy)
      assert.are.equal(name, plugin { reshard_after_forward = name:lower() }.sharding_strategy)
    end
    raises("expected FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2, or a number " ..
      "from 1 " ..
      "to 5, got 'FULLY_SHARD'; did you mean 'FULL_SHARD'?", plugin, { sharding_strategy = "FULLY_SHARD" })
    raises("FSDP_SHARDING_STRATEGY: expected FULL_SHARD", plugin, nil, { FSDP_SHARDING_STRATEGY = "6" })
  end)

  it("follows reshard_after_forward where FSDP1 has no strategy besides", function()
    assert.are.equal("SHARD_GRAD_OP",
      plugin(nil, { FSDP_RESHARD_AFTER_FORWARD = "SHARD_GRAD_OP" }).sharding_strategy)
    local p, text = noted { sharding_strategy = "FULL_SHARD", reshard_after_forward = "NO_SHARD" }
    assert.are.equal("FULL_SHARD", p.sharding_strategy)
    has(text, "reshard_after_forward = NO_SHARD has no effect, for sharding_strategy is FULL_SHARD")
  end)

  it("calls sharding_strategy an old name", function()
    local _, text = noted { sharding_strategy = "FULL_SHARD" }
    has(text, "sharding_strategy is an old name; reshard_after_forward takes the same words in FSDP1")
    text = select(2, noted(nil, { FSDP_SHARDING_STRATEGY = "FULL_SHARD" }))
    assert.are.equal("", text)
  end)

  it("refuses the other version's values", function()
    raises("reshard_after_forward = true is FSDP2's", plugin, { reshard_after_forward = true })
    raises("FSDP_RESHARD_AFTER_FORWARD = false is FSDP2's", plugin, nil,
      { FSDP_RESHARD_AFTER_FORWARD = "false" })
    raises("reshard_after_forward: FSDP2 expects true or false, got 'FULL_SHARD'", plugin,
      { fsdp_version = 2, reshard_after_forward = "FULL_SHARD" })
    raises("give reshard_after_forward = false in place of SHARD_GRAD_OP", plugin,
      { fsdp_version = 2, sharding_strategy = "SHARD_GRAD_OP" })
    raises("state_dict_type: FSDP2 has no LOCAL_STATE_DICT", plugin,
      { fsdp_version = 2, state_dict_type = "LOCAL_STATE_DICT" })
    raises("forward_prefetch is FSDP1's", plugin, { fsdp_version = 2, forward_prefetch = true })
    raises("FSDP_VERSION must be one of 1, 2, got 3", plugin, nil, { FSDP_VERSION = "3" })
    raises("FSDP_VERSION: expected a whole number, got 'two'", plugin, nil, { FSDP_VERSION = "two" })
  end)

  it("clears what FSDP2 has no more, and says so", function()
    local p, text = noted { fsdp_version = 2, backward_prefetch = "BACKWARD_PRE", use_orig_params = true,
      sync_module_states = true }
    assert.is_nil(p.backward_prefetch or p.use_orig_params or p.sync_module_states)
    has(text, "FSDP2 has no backward_prefetch (it decides by itself what is acquired ahead), no " ..
      "sync_module_states (ranks always start from the same values), no use_orig_params")
    text = select(2, noted({ fsdp_version = 2 }, { FSDP_SHARDING_STRATEGY = "SHARD_GRAD_OP" }))
    has(text, "FSDP_SHARDING_STRATEGY = SHARD_GRAD_OP has no effect in FSDP2")
    -- `accelerate launch` sets it so, whatever the version
    text = select(2,
      noted({ fsdp_version = 2 }, { FSDP_SHARDING_STRATEGY = "FULL_SHARD", FSDP_USE_ORIG_PARAMS = "true" }))
    assert.are.equal("", text)
  end)

  it("says which values have no effect, and why", function()
    for field, case in pairs { backward_prefetch = { "BACKWARD_POST", "as BACKWARD_PRE has it" },
      limit_all_gathers = { false, "two units are in memory at most" },
      use_orig_params = { false, "optimizers always get the model's own parameters" },
      sync_module_states = { false, "ranks always start from rank 0's values" } } do
      local _, text = noted { [field] = case[1] }
      has(text, ("%s = %s has no effect: "):format(field, tostring(case[1])))
      has(text, case[2])
    end
    local _, text = noted { backward_prefetch = "BACKWARD_PRE", use_orig_params = true,
      forward_prefetch = true }
    assert.are.equal("", text)
  end)

  it("sets sync_module_states for efficient loading in FSDP1", function()
    local p, text = noted { cpu_ram_efficient_loading = true, sync_module_states = false }
    assert.is_true(p.sync_module_states)
    has(text, "cpu_ram_efficient_loading needs sync_module_states, which is set to true")
    assert.is_nil(plugin { fsdp_version = 2, cpu_ram_efficient_loading = true }.sync_module_states)
  end)

  it("passes efficient loading on to what reads the variable", function()
    with({}, function()
      Plugin { cpu_ram_efficient_loading = true }
      assert.are.equal("true", os.getenv "FSDP_CPU_RAM_EFFICIENT_LOADING")
    end)
    with({}, function()
      accelerate.utils.enable_fsdp_ram_efficient_loading()
      assert.are.equal("true", os.getenv "ACCELERATE_USE_FSDP")
      assert.is_true(Plugin().cpu_ram_efficient_loading)
      accelerate.utils.disable_fsdp_ram_efficient_loading()
      assert.is_false(Plugin().cpu_ram_efficient_loading)
    end)
  end)

  it("checks how modules are chosen", function()
    assert.is_nil(plugin { auto_wrap_policy = "no_wrap" }.auto_wrap_policy)
    local p = plugin { auto_wrap_policy = "TRANSFORMER_BASED_WRAP", transformer_cls_names_to_wrap = "A, B" }
    assert.are.same({ "A", "B" }, p.transformer_cls_names_to_wrap)
    raises("auto_wrap_policy: expected TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP, NO_WRAP, or a " ..
      "function, got 'TRANSFORMERS_BASED_WRAP'; did you mean 'TRANSFORMER_BASED_WRAP'?", plugin,
      { auto_wrap_policy = "TRANSFORMERS_BASED_WRAP" })
    raises("option 'min_num_params' must be an integer, got 1.5", plugin, { min_num_params = 1.5 })
    raises("FSDP_MIN_NUM_PARAMS: expected a whole number, got 'many'", plugin,
      { auto_wrap_policy = "SIZE_BASED_WRAP" }, { FSDP_MIN_NUM_PARAMS = "many" })
  end)

  it("resolves the classes of a model", function()
    local net = nn.Sequential(nn.TransformerEncoderLayer(8, 2), nn.Linear(8, 8))
    local p = plugin { auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
      transformer_cls_names_to_wrap = { "TransformerEncoderLayers" } }
    raises("TRANSFORMER_BASED_WRAP: the model (Sequential) has no module of the class " ..
      "'TransformerEncoderLayers'; " ..
      "did you mean 'TransformerEncoderLayer'?", p.set_auto_wrap_policy, p, net)
    p = plugin { auto_wrap_policy = "SIZE_BASED_WRAP" }
    p:set_auto_wrap_policy(net)
    assert.is_nil(p.auto_wrap_policy)
  end)

  it("makes a mixed precision policy of a word, of dtypes, or of the Accelerator's mode", function()
    assert.are.same({ param_dtype = "bfloat16", reduce_dtype = "bfloat16", buffer_dtype = "bfloat16" },
      plugin { mixed_precision_policy = "bf16" }.mixed_precision_policy)
    assert.are.same({ param_dtype = "float16", reduce_dtype = "float16", output_dtype = "float16" },
      plugin { fsdp_version = 2, mixed_precision_policy = "fp16" }.mixed_precision_policy)
    local policy = { param_dtype = "bfloat16", reduce_dtype = "float32", output_dtype = "float32" }
    local p = plugin { fsdp_version = 2, mixed_precision_policy = policy }
    p:set_mixed_precision "fp16"
    assert.are.same(policy, p.mixed_precision_policy)
    p:set_mixed_precision("fp32", false, true)
    assert.are.equal("float32", p.mixed_precision_policy.param_dtype)
    p = plugin()
    p:set_mixed_precision("bfloat16", true)
    assert.are.same({ param_dtype = "bfloat16", reduce_dtype = "bfloat16", buffer_dtype = "float32" },
      p.mixed_precision_policy)
  end)

  it("refuses policies that are not whole", function()
    raises("buffer_dtype is missing; expected param_dtype, reduce_dtype, buffer_dtype", plugin,
      { mixed_precision_policy = { param_dtype = "bfloat16", reduce_dtype = "bfloat16" } })
    raises("option 'reduce_dtype' must be one of float32, bfloat16, float16, got 'int8'", plugin,
      { mixed_precision_policy = { param_dtype = "bfloat16", reduce_dtype = "int8",
      buffer_dtype = "float32" } })
    raises("mixed_precision_policy: expected bf16, fp16, fp32, fp8, or a dtype of them, got 'bf61'", plugin,
      { mixed_precision_policy = "bf61" })
  end)

  it("refuses by name what is not there", function()
    raises("param_init_fn is not there", plugin, { param_init_fn = print })
    raises("activation_checkpointing_offload = true needs activation_checkpointing = true", plugin,
      { activation_checkpointing_offload = true })
    raises("activation_checkpointing_offload = true needs fsdp_version = 2", plugin,
      { activation_checkpointing_offload = true, activation_checkpointing = true })
    raises("is not there yet", plugin,
      { fsdp_version = 2, activation_checkpointing_offload = true, activation_checkpointing = true })
    raises("rank0_only = false is not there", plugin, { state_dict_config = { rank0_only = false } })
    raises("unknown option 'shard_strategy'; did you mean 'sharding_strategy'?", plugin,
      { shard_strategy = 1 })
  end)

  it("changes the form of state dicts at the end of training", function()
    local p = plugin { fsdp_version = 2 }
    p:set_state_dict_type "full_state_dict"
    assert.are.equal("FULL_STATE_DICT", p.state_dict_type)
    assert.are.same({ offload_to_cpu = true, rank0_only = true }, p.state_dict_config)
    p.state_dict_type = 3
    assert.are.equal("SHARDED_STATE_DICT", p.state_dict_type)
    raises("FSDP2 has no LOCAL_STATE_DICT", p.set_state_dict_type, p, "LOCAL_STATE_DICT")
  end)

  it("checks an assigned field with all others", function()
    with({}, function()
      local p = Plugin { fsdp_version = 2 }
      p.auto_wrap_policy = "size_based_wrap"
      assert.are.equal("SIZE_BASED_WRAP", p.auto_wrap_policy)
      assert.are.equal(0, p.min_num_params)
      raises("FSDP2 expects true or false", function() p.reshard_after_forward = "FULL_SHARD" end)
      assert.is_true(p.reshard_after_forward)
    end)
  end)
end)

describe("an Accelerator with fsdp_plugin", function()
  after_each(function()
    state.reset()
    env.set("ACCELERATE_USE_FSDP", nil)
  end)

  it("is of the type FSDP, and has the plugin in its state", function()
    local p = Plugin { fsdp_version = 2 }
    local a = accelerate.Accelerator { fsdp_plugin = p }
    assert.are.equal("FSDP", a.distributed_type)
    assert.are.equal(p, a.state.fsdp_plugin)
    assert.is_true(a.is_fsdp2 and a.is_composable_parallelism_enabled and a.state.is_fsdp2)
    assert.are.equal("true", os.getenv "ACCELERATE_USE_FSDP")
  end)

  it("takes a plain table, and the environment's wish", function()
    assert.is_false(accelerate.Accelerator { fsdp_plugin = {} }.is_fsdp2)
    state.reset()
    local a = with({ ACCELERATE_USE_FSDP = "true", FSDP_VERSION = "2" },
      function() return accelerate.Accelerator() end)
    assert.are.equal(2, a.state.fsdp_plugin.fsdp_version)
    state.reset()
    raises("Accelerator: fsdp_plugin must be a FullyShardedDataParallelPlugin, got 3", accelerate.Accelerator,
      { fsdp_plugin = 3 })
  end)

  it("shares the plugin with later Accelerators", function()
    local p = Plugin()
    local a = accelerate.Accelerator { fsdp_plugin = p }
    assert.are.equal(a._plan, accelerate.Accelerator()._plan)
    assert.are.equal(a._plan, accelerate.Accelerator { fsdp_plugin = p }._plan)
    raises("fsdp_plugin: the first Accelerator of this process was made with another one",
      accelerate.Accelerator,
      { fsdp_plugin = Plugin() })
    state.reset()
    env.set("ACCELERATE_USE_FSDP", nil)
    accelerate.Accelerator()
    raises("was made with none", accelerate.Accelerator, { fsdp_plugin = p })
  end)

  it("follows mixed_precision unless the plugin has a policy", function()
    local a = accelerate.Accelerator { fsdp_plugin = {}, mixed_precision = "bf16" }
    assert.are.equal("bfloat16", a.state.fsdp_plugin.mixed_precision_policy.param_dtype)
    assert.are.equal("mixed_precision", a._plan.origin.param_dtype)
    state.reset()
    a = accelerate.Accelerator { fsdp_plugin = { mixed_precision_policy = "fp32" }, mixed_precision = "bf16" }
    assert.are.equal("float32", a._plan.param_dtype)
  end)

  it("keeps the plugin's fields but the form of state dicts", function()
    local p = Plugin()
    local a = accelerate.Accelerator { fsdp_plugin = p }
    raises("cpu_offload cannot be changed any more", function() p.cpu_offload = true end)
    p:set_state_dict_type "SHARDED_STATE_DICT"
    assert.are.equal("sharded", a._plan.state_dict_type)
  end)
end)
