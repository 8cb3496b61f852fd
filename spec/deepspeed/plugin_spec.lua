-- DeepSpeedPlugin and HfDeepSpeedConfig: arguments, variables and DeepSpeed's JSON together.
local accelerate = require "accelerate"
local utils = require "accelerate.utils"
local DeepSpeedPlugin, HfDeepSpeedConfig = accelerate.DeepSpeedPlugin, utils.HfDeepSpeedConfig
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"

-- The stage alone.
local function config(more)
  local all = { zero_optimization = { stage = 2 } }
  for key, value in pairs(more or {}) do all[key] = value end
  return all
end

-- A file with a text.
local workspace = {}
function workspace.file(name, text)
  local path = workspace.folder .. "/" .. name
  assert(fs.write(path, text))
  return path
end

local function in_folder(body)
  return function()
    host.in_folder(function(folder)
      workspace.folder = folder
      body()
    end)
  end
end

local function message_of(fn, ...)
  local fine, message = pcall(fn, ...)
  assert.is_false(fine)
  return message
end

describe("HfDeepSpeedConfig", function()
  local given = { zero_optimization = { stage = 3, offload_param = { device = "nvme" } },
    fp16 = { enabled = false } }

  it("answers for keys at any depth, with a default for those that are not there", function()
    local hf = HfDeepSpeedConfig(given)
    assert.are.equal("nvme", hf:get_value "zero_optimization.offload_param.device")
    assert.are.equal(7, hf:get_value("zero_optimization.offload_optimizer.device", 7))
    assert.is_nil(hf:get_value "a.b.c")
    assert.are.same({ hf.config.fp16, "enabled" }, { hf:find_config_node "fp16.enabled" })
    assert.are.same({ nil, "c" }, { hf:find_config_node "a.b.c" })
    assert.is_true(hf:is_false "fp16.enabled")
    assert.is_false(hf:is_true "fp16.enabled" or hf:is_true "bf16.enabled" or hf:is_false "bf16.enabled")
  end)

  it("knows the stage and whether anything is offloaded", function()
    local hf = HfDeepSpeedConfig(given)
    assert.are.same({ false, true, true }, { hf:is_zero2(), hf:is_zero3(), hf:is_offload() })
    hf:del_config_sub_tree "zero_optimization.offload_param"
    hf.config.zero_optimization.stage = 2
    hf:set_stage_and_offload()
    assert.are.same({ true, false, false }, { hf:is_zero2(), hf:is_zero3(), hf:is_offload() })
    assert.is_false(HfDeepSpeedConfig(config { zero_optimization = { stage = 1,
      offload_optimizer = { device = "cpu" } } }):is_offload())
  end)

  it("takes keys out, and raises for those that must be there", function()
    local hf = HfDeepSpeedConfig(given)
    hf:del_config_sub_tree "fp16"
    hf:del_config_sub_tree "nothing.here"
    assert.is_nil(hf.config.fp16)
    assert.error_matches(function() hf:del_config_sub_tree("fp16.enabled", { must_exist = true }) end,
      "hf_ds_config has no entry fp16.enabled", 1, true)
    assert.error_matches(function() hf:del_config_sub_tree("fp16", true) end, "has no entry fp16", 1, true)
  end)

  it("copies a table, and reads a file, JSON, and JSON in base64", in_folder(function()
    local hf = HfDeepSpeedConfig(given)
    hf.config.zero_optimization.stage = 1
    assert.are.equal(3, given.zero_optimization.stage)
    local text = '{ "zero_optimization": { "stage": 3, "sub_group_size": 1e9, "x": null } }'
    local path = workspace.file("ds.json", text)
    for _, from in ipairs { path, text, require("accelerate.utils.base64").encode(text) } do
      assert.are.same({ zero_optimization = { stage = 3, sub_group_size = 1e9 } },
        HfDeepSpeedConfig(from).config)
    end
  end))

  it("names what is wrong with a file, with the line", in_folder(function()
    local path = workspace.file("twice.json", '{ "fp16": {},\n  "fp16": {} }')
    assert.error_matches(function() HfDeepSpeedConfig(path) end, "twice.json:2: the key fp16 is there twice",
      1, true)
    assert.error_matches(function() HfDeepSpeedConfig(workspace.file("list.json", "[1]")) end,
      "list.json: expected a map in braces", 1, true)
    assert.error_matches(function() HfDeepSpeedConfig "no/such.json" end,
      "a file that exists, JSON, or JSON in base64; got 'no/such.json'", 1, true)
    local circle = {}
    circle.zero_optimization = circle
    assert.error_matches(function() HfDeepSpeedConfig(circle) end, "nested deeper than 20 maps", 1, true)
    assert.error_matches(function() HfDeepSpeedConfig(3) end,
      "expected a table or the name of a JSON file, got 3",
      1, true)
  end))
end)

describe("DeepSpeedPlugin", function()
  before_each(require("accelerate.messages.notice").reset)

  it("makes a configuration of its arguments, as Accelerate does", function()
    local plugin = DeepSpeedPlugin { gradient_accumulation_steps = 2, gradient_clipping = 0.5, zero_stage = 3,
      offload_optimizer_device = "cpu", offload_param_device = "nvme", offload_param_nvme_path = "/nvme",
      zero3_save_16bit_model = true }
    assert.are.same({
      train_batch_size = "auto", train_micro_batch_size_per_gpu = "auto", gradient_accumulation_steps = 2,
      gradient_clipping = 0.5, steps_per_print = math.huge,
      zero_optimization = { stage = 3, offload_optimizer = { device = "cpu" },
        offload_param = { device = "nvme", nvme_path = "/nvme" },
        stage3_gather_16bit_weights_on_model_save = true },
    }, plugin.deepspeed_config)
    assert.are.same({ 3, true, true, false, "O1" }, { plugin.zero_stage, plugin.zero3_init_flag,
      plugin:is_zero3_init_enabled(), plugin.selected, plugin.msamp_opt_level })
  end)

  it("has Accelerate's defaults", function()
    local plugin = DeepSpeedPlugin()
    assert.are.same({ "auto", "auto", 2, true, "none", "none", "none", "none", false, false },
      { plugin.gradient_accumulation_steps, plugin.gradient_clipping, plugin.zero_stage,
      plugin.is_train_batch_min,
      plugin.offload_optimizer_device, plugin.offload_param_device, plugin.offload_optimizer_nvme_path,
      plugin.offload_param_nvme_path, plugin.zero3_init_flag, plugin.zero3_save_16bit_model })
  end)

  it("reads its variables, where no argument is given", in_folder(function()
    utils.patch_environment({ ACCELERATE_GRADIENT_ACCUMULATION_STEPS = 4,
      ACCELERATE_GRADIENT_CLIPPING = "0.5",
      ACCELERATE_DEEPSPEED_ZERO_STAGE = 3, ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE = "nvme",
      ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE = "cpu",
      ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH = "/a",
      ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH = "/b", ACCELERATE_DEEPSPEED_ZERO3_INIT = "false",
      ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL = "true",
      ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES = "Mixture" }, function()
      local plugin = DeepSpeedPlugin { offload_param_device = "none" }
      assert.are.same({ 4, 0.5, 3, "nvme", "none", "/a", false, true, "Mixture" },
        { plugin.gradient_accumulation_steps, plugin.gradient_clipping, plugin.zero_stage,
          plugin.offload_optimizer_device, plugin.offload_param_device, plugin.offload_optimizer_nvme_path,
          plugin.zero3_init_flag, plugin.zero3_save_16bit_model, plugin.transformer_moe_cls_names })
    end)
    utils.patch_environment({ ACCELERATE_DEEPSPEED_ZERO_STAGE = "four" }, function()
      assert.error_matches(DeepSpeedPlugin, "ACCELERATE_DEEPSPEED_ZERO_STAGE: expected a number, got 'four'",
        1, true)
    end)
    utils.patch_environment({ ACCELERATE_DEEPSPEED_CONFIG_FILE = workspace.file("env.json",
      '{ "zero_optimization": { "stage": 1 } }') }, function()
      assert.are.equal(1, DeepSpeedPlugin().zero_stage)
    end)
  end))

  it("fills 'auto' and what is missing in a configuration from its arguments", function()
    local plugin = DeepSpeedPlugin { zero_stage = 3, gradient_clipping = 2, offload_optimizer_device = "cpu",
      hf_ds_config = { zero_optimization = { stage = "auto" }, gradient_clipping = "auto" } }
    assert.are.same({ 3, 2, "cpu", 1, true }, { plugin.zero_stage, plugin.gradient_clipping,
      plugin.offload_optimizer_device, plugin.gradient_accumulation_steps, plugin.hf_ds_config:is_zero3() })
    assert.are.equal(2,
      DeepSpeedPlugin { hf_ds_config = { zero_optimization = { stage = "auto" } } }.zero_stage)
    assert.are.equal(0, DeepSpeedPlugin { hf_ds_config = { zero_optimization = {} } }.zero_stage)
  end)

  it("names all that contradicts each other in one message, each with its place", in_folder(function()
    local path = workspace.file("conflicts.json", [[{
  "zero_optimization": { "stage": 2,
    "offload_optimizer": { "device": "none" } },
  "gradient_clipping": 1.0,
  "fp16": { "enabled": true },
  "bf16": { "enabled": true },
  "train_batch_size": "8",
  "amp": { "enabled": true }
}]])
    local message
    utils.patch_environment({ ACCELERATE_GRADIENT_CLIPPING = "2" }, function()
      message = message_of(DeepSpeedPlugin,
        { hf_ds_config = path, zero_stage = 3, offload_optimizer_device = "cpu" })
    end)
    for _, text in ipairs { "conflicts.json:2: zero_optimization.stage = 2, and zero_stage = 3",
      "conflicts.json:3: zero_optimization.offload_optimizer.device = none, and " ..
      "offload_optimizer_device = cpu",
      "conflicts.json:4: gradient_clipping = 1, and ACCELERATE_GRADIENT_CLIPPING = 2",
      "conflicts.json:5: fp16.enabled and bf16.enabled (" .. path .. ":6) are both true",
      "conflicts.json:7: train_batch_size: expected a whole number of at least 1 or 'auto', got '8', a " ..
      "text: take " ..
        "the quotes away", "conflicts.json:8: amp: it is not there: Apex is not there" } do
      assert.is_truthy(message:find(text, 1, true), message)
    end
    assert.are.equal(6, select(2, message:gsub("\n", "")))
  end))

  it("names batch sizes that contradict each other with whatever else does", function()
    local function batches(changed)
      local all = config()
      all.train_batch_size, all.train_micro_batch_size_per_gpu, all.gradient_accumulation_steps = 32, 4, 2
      for key, value in pairs(changed) do all[key] = value end
      return { hf_ds_config = all }
    end
    local line = "train_batch_size = 32 (hf_ds_config), and train_micro_batch_size_per_gpu = 4 " ..
      "(hf_ds_config) x gradient_accumulation_steps = 2 (hf_ds_config) x 1 ranks is 8"
    local message = message_of(DeepSpeedPlugin, batches { gradient_cliping = 1 })
    assert.is_truthy(message:find("gradient_cliping", 1, true), message)
    assert.is_truthy(message:find(line, 1, true), message)
    local plugin = DeepSpeedPlugin(batches { fp16 = { enabled = true } }) -- the script may change them
    assert.error_matches(function() plugin:set_mixed_precision "bf16" end, line, 1, true)
    message = message_of(DeepSpeedPlugin, batches { gradient_cliping = 1, train_batch_size = 8 })
    assert.is_nil(message:find("ranks is", 1, true), message)
    message = message_of(DeepSpeedPlugin, batches { train_batch_size = "32" })
    assert.is_nil(message:find("ranks is", 1, true), message)
  end)

  it("keeps a message short, however much is wrong", function()
    local all = config()
    for i = 1, 500 do all[("key%d"):format(i) .. ("x"):rep(1000)] = i end
    local message = message_of(DeepSpeedPlugin, { hf_ds_config = all })
    assert.matches("\n  and 488 more$", message)
    assert.is_true(#message < 4000)
  end)

  it("refuses settings of the accelerate config beside deepspeed_config_file", function()
    utils.patch_environment(
      { ACCELERATE_CONFIG_DS_FIELDS = "deepspeed_config_file,zero_stage,mixed_precision" },
      function()
        assert.error_matches(function() DeepSpeedPlugin { hf_ds_config = config() } end,
          "beside it zero_stage, mixed_precision; these stand in the DeepSpeed file alone", 1, true)
        assert.are.equal(2, DeepSpeedPlugin().zero_stage)
      end)
  end)

  it("needs the block zero_optimization, as Accelerate does", function()
    assert.error_matches(function() DeepSpeedPlugin { hf_ds_config = { fp16 = { enabled = true } } } end,
      "the map zero_optimization, which has the stage, is missing", 1, true)
    assert.error_matches(function() DeepSpeedPlugin { hf_ds_config = { zero_optimization = true } } end,
      "the map zero_optimization, which has the stage, is expected, got true", 1, true)
  end)

  it("knows keys of earlier versions by their present names", function()
    local plugin = DeepSpeedPlugin { hf_ds_config = { bfloat16 = { enabled = true },
      zero_optimization = { stage = 3, cpu_offload = true, cpu_offload_param = true } } }
    assert.are.same({ "cpu", "cpu", "bf16" }, { plugin.offload_optimizer_device, plugin.offload_param_device,
      plugin:_mixed_precision() })
  end)

  it("fills one key, and all keys, as fill_match and deepspeed_config_process do", function()
    local plugin = DeepSpeedPlugin { hf_ds_config = config { train_batch_size = "auto", gradient_clipping = 1,
      optimizer = { type = "AdamW", params = { lr = "auto" } } } }
    local mismatches = {}
    plugin:fill_match("train_batch_size", { train_batch_size = 16 })
    plugin:fill_match("gradient_clipping", { gradient_clipping = 2, mismatches = mismatches })
    plugin:fill_match("gradient_clipping", { gradient_clipping = 2, must_match = false })
    plugin:fill_match "no.such.block"
    assert.are.equal(16, plugin:get_value "train_batch_size")
    assert.are.same({ "hf_ds_config: gradient_clipping = 1, and the run has 2" }, mismatches)
    assert.is_true(plugin:is_auto "optimizer.params.lr")
    assert.error_matches(function() plugin:deepspeed_config_process() end,
      "optimizer.params.lr is 'auto', and nothing in this run says what it should be", 1, true)
    plugin:deepspeed_config_process { ["optimizer.params.lr"] = 1e-4, gradient_clipping = 5,
      must_match = false }
    assert.are.equal(1e-4, plugin.deepspeed_config.optimizer.params.lr)
    local message = message_of(plugin.deepspeed_config_process, plugin,
      { gradient_clipping = 5, train_batch_size = 4 })
    assert.matches("gradient_clipping = 1, and the run has 5\n.*train_batch_size = 16, and the run has 4",
      message)
  end)

  it("follows mixed_precision, and refuses the other type's block", function()
    for mode, expected in pairs { no = { false, false }, fp16 = { true, false }, bf16 = { false, true } } do
      local plugin = DeepSpeedPlugin { hf_ds_config = config { fp16 = { enabled = "auto" } } }
      plugin:set_mixed_precision(mode)
      local made = plugin.deepspeed_config
      assert.are.same(expected, { made.fp16.enabled, made.bf16.enabled }, mode)
      assert.are.equal(mode, plugin:_mixed_precision())
    end
    local plugin = DeepSpeedPlugin { hf_ds_config = config { fp16 = { enabled = true } } }
    plugin:set_mixed_precision "no"
    assert.are.equal("fp16", plugin:_mixed_precision())
    assert.error_matches(function() plugin:set_mixed_precision "bf16" end,
      "mixed_precision = 'bf16', and hf_ds_config: fp16.enabled is true", 1, true)
    assert.are.equal("bf16", DeepSpeedPlugin { hf_ds_config = config { torch_autocast = { enabled = true,
      dtype = "bfloat16" } } }:_mixed_precision())
  end)

  it("turns zero3_init_flag off without stage 3, and for the time of a call", function()
    local said = require("spec.support.messages").said
    assert.matches("zero3_init_flag has no effect with zero_stage 2", said(function()
      assert.is_false(DeepSpeedPlugin { zero_stage = 2, zero3_init_flag = true }.zero3_init_flag)
    end))
    assert.are.equal("", said(DeepSpeedPlugin, { zero_stage = 3, zero3_init_flag = true }))
    assert.are.equal("", said(DeepSpeedPlugin, { zero_stage = 3 }))
    local plugin = DeepSpeedPlugin { zero_stage = 3 }
    local inside = plugin:zero3_init_context_manager({ enable = false }, function(x)
      return { x, plugin:is_zero3_init_enabled() }
    end, 5)
    assert.are.same({ 5, false }, inside)
    assert.is_true(plugin.zero3_init_flag)
    pcall(plugin.zero3_init_context_manager, plugin, error)
    assert.is_true(plugin.zero3_init_flag)
  end)

  it("refuses MS-AMP, and arguments of other kinds, by name", function()
    for message, options in pairs {
      ["enable_msamp: MS-AMP's recipe is not there"] = { enable_msamp = true },
      ["option 'zero_stage' must be one of 0, 1, 2, 3, got 4"] = { zero_stage = 4 },
      ["option 'offload_param_device' must be one of none, cpu, nvme, got 'disk'"] = {
        offload_param_device = "disk" },
      ["gradient_clipping must be a number or 'auto', got 'much'"] = { gradient_clipping = "much" },
      ["unknown option 'zero_stages'; did you mean 'zero_stage'?"] = { zero_stages = 2 },
      ["option 'msamp_opt_level' must be one of O1, O2, got 'O3'"] = { msamp_opt_level = "O3" },
    } do
      assert.error_matches(function() DeepSpeedPlugin(options) end, message, 1, true)
    end
    local plugin = DeepSpeedPlugin()
    assert.error_matches(function() plugin:select() end,
      "select_deepspeed_plugin(name) puts a plugin in force", 1, true)
    assert.error_matches(function() plugin.selected = true end, "select_deepspeed_plugin(name)", 1, true)
  end)
end)
