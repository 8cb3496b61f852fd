--- DeepSpeedPlugin: what DeepSpeed's JSON, arguments and variables say together, each value with
--- its origin.
---
---   local plugin = accelerate.DeepSpeedPlugin { hf_ds_config = "ds.json" }
---   local accelerator = accelerate.Accelerator { deepspeed_plugin = plugin }
local check = require "accelerate.config.deepspeed.check"
local core = require "accelerate.core"
local env = require "accelerate.utils.environment"
local filling = require "accelerate.config.deepspeed.fill"
local hf_config = require "accelerate.config.deepspeed.hf_config"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local properties = require "accelerate.utils.properties"
local scope = require "accelerate.utils.scope"

local fail = options.fail

local M = {}

-- ---- arguments and variables

-- Arguments that stand for a key: its variable after ACCELERATE_, its default, the key.
local FIELDS = {
  { "gradient_accumulation_steps", "GRADIENT_ACCUMULATION_STEPS", "auto", "gradient_accumulation_steps" },
  { "gradient_clipping", "GRADIENT_CLIPPING", "auto", "gradient_clipping" },
  { "zero_stage", "DEEPSPEED_ZERO_STAGE", 2, "zero_optimization.stage" },
  { "offload_optimizer_device", "DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "none",
    "zero_optimization.offload_optimizer.device" },
  { "offload_param_device", "DEEPSPEED_OFFLOAD_PARAM_DEVICE", "none",
    "zero_optimization.offload_param.device" },
  { "offload_optimizer_nvme_path", "DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "none",
    "zero_optimization.offload_optimizer.nvme_path" },
  { "offload_param_nvme_path", "DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "none",
    "zero_optimization.offload_param.nvme_path" },
  { "zero3_save_16bit_model", "DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", false,
    "zero_optimization.stage3_gather_16bit_weights_on_model_save" },
}

local DEVICES = { "none", "cpu", "nvme" }

local OPTIONS = {
  hf_ds_config = { "string|table", optional = true },
  gradient_accumulation_steps = { "integer|string", optional = true, min = 1 },
  gradient_clipping = { "number|string", optional = true, min = 0 },
  zero_stage = { "integer", optional = true, one_of = { 0, 1, 2, 3 } },
  is_train_batch_min = { "boolean", default = true },
  offload_optimizer_device = { "string", optional = true, one_of = DEVICES },
  offload_param_device = { "string", optional = true, one_of = DEVICES },
  offload_optimizer_nvme_path = { "string", optional = true },
  offload_param_nvme_path = { "string", optional = true },
  zero3_init_flag = { "boolean", optional = true },
  zero3_save_16bit_model = { "boolean", optional = true },
  transformer_moe_cls_names = { "string", optional = true },
  enable_msamp = { "boolean", optional = true },
  msamp_opt_level = { "string", optional = true, one_of = { "O1", "O2" } },
}

-- The value in a variable, as the argument has it; and where the variable's value came from.
local function from_variable(name, field)
  local text, origin = env.text(name), env.origin(name)
  if text == nil then return nil end
  local entry = OPTIONS[field]
  if entry[1] == "boolean" then return env.str_to_bool(text, origin), origin end
  local value = entry[1] == "string" and text or tonumber(text) or text:lower()
  if value == "auto" then return value, origin end
  if type(value) == "string" and entry[1] ~= "string" then
    fail("DeepSpeedPlugin: %s: expected a number%s, got '%s'", origin, entry[1]:find "|" and " or 'auto'"
      or "",
      text)
  end
  return options.value("DeepSpeedPlugin", origin, value, entry), origin
end

-- The values of FIELDS, with where each came from; what nobody gave is a default.
local function read_fields(given)
  local values, origins = {}, {}
  for _, field in ipairs(FIELDS) do
    local name, variable = field[1], "ACCELERATE_" .. field[2]
    local value, origin = given[name], name
    if type(value) == "string" and OPTIONS[name][1]:find "|" and value ~= "auto" then
      fail("DeepSpeedPlugin: %s must be a number or 'auto', got %s", name, options.show(value))
    end
    if value == nil then value, origin = from_variable(variable, name) end
    if value == nil then value, origin = field[3], nil end
    values[name], origins[name] = value, origin
  end
  return values, origins
end

-- ---- the configuration

-- Sets a key, making the maps on the way to it.
local function put(config, key, value)
  for part in key:gmatch "([^.]*)%." do
    if config[part] == nil then config[part] = {} end
    config = config[part]
    if type(config) ~= "table" then return end -- the check of types names it
  end
  config[key:match "[^.]*$"] = value
end

-- The configuration that arguments alone make.
local function from_fields(self, values, origins)
  local config = { train_batch_size = "auto", train_micro_batch_size_per_gpu = "auto" }
  for _, field in ipairs(FIELDS) do
    local name, key = field[1], field[4]
    local device = name:find "nvme_path$" and values[name:gsub("nvme_path$", "device")]
    if not (device and device ~= "nvme") and not (name == "gradient_clipping" and values[name] == 0) then
      put(config, key, values[name])
      self._origins[key] = origins[name] or "default"
    end
  end
  return hf_config.HfDeepSpeedConfig(config)
end

-- What an argument and a configuration say of one key: the configuration's 'auto' takes the
-- argument's value, and so does a key that it lacks. Two values that differ are a problem, but for
-- the steps of accumulation, where the configuration's number holds and a line says so later.
local function merge_fields(self, values, origins, problems)
  local hf = self._hf
  for _, field in ipairs(FIELDS) do
    local name, key = field[1], field[4]
    local there, value, origin = hf:get_value(key), values[name], origins[name]
    if there == "auto" or there == nil and origin then
      put(hf.config, key, value)
      self._origins[key] = origin or "default"
    elseif origin and there ~= value and name ~= "gradient_accumulation_steps" and value ~= "auto" then
      problems[#problems + 1] = ("%s: %s = %s, and %s = %s; give one of them, or 'auto' in the configuration")
        :format(hf:_where(key), key, tostring(there), origin, tostring(value))
    end
  end
end

-- Names of fields that an accelerate config's deepspeed_config cannot have beside
-- deepspeed_config_file.
local EXCLUDED = { mixed_precision = true }
for _, field in ipairs(FIELDS) do EXCLUDED[field[1]] = true end

local function check_config_fields(hf)
  local names = {}
  for name in env.text("ACCELERATE_CONFIG_DS_FIELDS", ""):gmatch "[^,%s]+" do
    if EXCLUDED[name:lower()] then names[#names + 1] = name end
  end
  if #names == 0 then return end
  fail("DeepSpeedPlugin: the accelerate config gives deepspeed_config_file (%s) and beside it %s; these " ..
    "stand in the DeepSpeed file alone: take them out of the accelerate config", hf._name,
    table.concat(names, ", "))
end

-- Keys of earlier versions, under their present names.
local function bring_up_to_date(hf, problems)
  local config, zero = hf.config, hf.config.zero_optimization
  if config.bfloat16 ~= nil and config.bf16 ~= nil then
    problems[#problems + 1] = ("%s: bf16 and bfloat16 are one block; take one out"):format(
      hf:_where "bfloat16")
  elseif config.bfloat16 ~= nil then
    config.bf16, config.bfloat16 = config.bfloat16, nil
  end
  for old, new in pairs { cpu_offload = "offload_optimizer", cpu_offload_param = "offload_param" } do
    if zero[old] == true and zero[new] == nil then zero[new] = { device = "cpu" } end
  end
end

local function enabled(hf, block) return hf:get_value(block .. ".enabled") == true end

local function take_config(self, given, values, origins)
  local hf = hf_config.is(given) and given or hf_config.HfDeepSpeedConfig(given)
  self._hf = hf
  if type(hf.config.zero_optimization) ~= "table" then
    fail("DeepSpeedPlugin: %s: the map zero_optimization, which has the stage, %s", hf._name,
      hf.config.zero_optimization == nil and "is missing"
      or "is expected, got " .. options.show(hf.config.zero_optimization))
  end
  check_config_fields(hf)
  local problems, idle = check.walk(hf)
  bring_up_to_date(hf, problems)
  merge_fields(self, values, origins, problems)
  if hf.config.gradient_accumulation_steps == nil then
    hf.config.gradient_accumulation_steps, self._origins.gradient_accumulation_steps = 1, "default"
  end
  if enabled(hf, "fp16") and enabled(hf, "bf16") then
    problems[#problems + 1] = (
      "%s: fp16.enabled and bf16.enabled (%s) are both true; one type can be computed in")
      :format(hf:_where "fp16.enabled", hf:_where "bf16.enabled")
  end
  filling.add_batches(self, core.dist.world_size(), problems)
  if #problems > 0 then
    fail("%s", check.message(("DeepSpeedPlugin: %s cannot be taken as it is"):format(hf._name), problems))
  end
  hf:set_stage_and_offload()
  if #idle > 0 then notice.main_once("%s", check.idle_line(hf._name, idle)) end
end

-- ---- methods

---@class accelerate.DeepSpeedPlugin
---@field hf_ds_config accelerate.HfDeepSpeedConfig the configuration, with questions
---@field deepspeed_config table the configuration; may be changed before prepare
---@field gradient_accumulation_steps integer|"auto"
---@field gradient_clipping number|"auto"
---@field zero_stage 0|1|2|3
---@field is_train_batch_min boolean of several loaders' batch sizes the smallest counts, not the
---  largest
---@field offload_optimizer_device "none"|"cpu"|"nvme"
---@field offload_param_device "none"|"cpu"|"nvme"
---@field offload_optimizer_nvme_path string "none": none
---@field offload_param_nvme_path string "none": none
---@field zero3_init_flag boolean whether models begin as parts; only with stage 3; may be set
---@field zero3_save_16bit_model boolean
---@field transformer_moe_cls_names string? classes that are gathered as one unit, with commas
---  between them; may be set
---@field enable_msamp boolean always false
---@field msamp_opt_level string
---@field selected boolean whether it is in force
local methods = {}

-- The options that are no keys of the configuration, and those that are.
local function split(where, given)
  given = given or {}
  if type(given) ~= "table" or getmetatable(given) ~= nil then
    fail("%s: options must be a table, got %s", where, options.show(given))
  end
  local values, mismatches, must = {}, given.mismatches or {}, given.must_match
  for key, value in pairs(given) do
    if key ~= "mismatches" and key ~= "must_match" then values[key] = value end
  end
  options.value(where, "option 'mismatches'", mismatches, { "table" })
  if must == nil then must = true end
  return values, mismatches, options.value(where, "option 'must_match'", must, { "boolean" })
end

local function fill(self, key, values, mismatches, must)
  local node, last = self._hf:find_config_node(key)
  if not node then return end
  local there, value = node[last], values[key]
  if there == "auto" then
    if value == nil then
      fail("DeepSpeedPlugin: %s: %s is 'auto', and nothing in this run says what " ..
        "it should be; write one there", self._hf:_where(key), key)
    end
    node[last], self._origins[key] = value, self._origins[key] or "the run"
  elseif must and there ~= nil and value ~= nil and there ~= value then
    mismatches[#mismatches + 1] = ("%s: %s = %s, and the run has %s"):format(self._hf:_where(key), key,
      tostring(there), tostring(value))
  end
end

--- Replaces 'auto' in the configuration by the value of that key in `opts`. Another value that
--- differs is added to `mismatches` as a line of text, unless must_match is false.
---@param ds_key_long string
---@param opts table? values by key, and mismatches (a list), must_match (default true)
function methods:fill_match(ds_key_long, opts)
  options.value("fill_match", "ds_key_long", ds_key_long, { "string" })
  fill(self, ds_key_long, split("fill_match", opts))
end

local function process(self, map, prefix, values, mismatches, must)
  for _, key in ipairs(ordered.sorted_keys(map)) do
    local path = prefix .. tostring(key)
    if type(map[key]) == "table" and map[key][1] == nil then
      process(self, map[key], path .. ".", values, mismatches, must)
    else
      fill(self, path, values, mismatches, must)
    end
  end
end

--- Replaces every 'auto' in the configuration by the value of that key in `opts`. Raises for those
--- that are not there, and one message for all values that differ, unless must_match is false.
---@param opts table? values by key, and must_match (default true)
function methods:deepspeed_config_process(opts)
  local values, mismatches, must = split("deepspeed_config_process", opts)
  process(self, self.deepspeed_config, "", values, mismatches, must)
  if #mismatches > 0 then
    fail("%s", check.message(
      "DeepSpeedPlugin: these values of the configuration are not the run's ('auto' " ..
      "takes the run's)", mismatches))
  end
end

--- Returns whether a key is 'auto'.
---@param ds_key_long string
---@return boolean
function methods:is_auto(ds_key_long) return self._hf:get_value(ds_key_long) == "auto" end

--- Returns the value of a key of the configuration, or `default`.
---@param ds_key_long string
---@param default any
---@return any
function methods:get_value(ds_key_long, default) return self._hf:get_value(ds_key_long, default) end

--- Returns the type that the configuration computes in.
---@return "no"|"fp16"|"bf16"
function methods:_mixed_precision()
  for _, block in ipairs { "fp16", "bf16" } do
    if enabled(self._hf, block) then return block end
  end
  local cast = self._hf:get_value("torch_autocast", {})
  if cast.enabled == true then
    local dtype = check.DTYPES[cast.dtype or "bf16"]
    return dtype == "float16" and "fp16" or dtype == "bfloat16" and "bf16" or "no"
  end
  return "no"
end

--- Fills fp16.enabled and bf16.enabled from the Accelerator's mixed_precision. Raises where the
--- configuration has turned on the other type.
---@param mixed_precision "no"|"fp16"|"bf16"
function methods:set_mixed_precision(mixed_precision)
  options.value("set_mixed_precision", "mixed_precision", mixed_precision,
    { "string", one_of = { "no", "fp16", "bf16" } })
  local config = self.deepspeed_config
  if mixed_precision ~= "no" then
    local other = mixed_precision == "fp16" and "bf16" or "fp16"
    if enabled(self._hf, other) then
      local problems = { ("mixed_precision = '%s', and %s: %s.enabled is true; give one of them"):format(
        mixed_precision, self._hf:_where(other .. ".enabled"), other) }
      filling.add_batches(self, core.dist.world_size(), problems)
      fail("DeepSpeedPlugin: %s", table.concat(problems, "\n  "))
    end
    if config[mixed_precision] == nil then config[mixed_precision] = { enabled = true } end
  end
  for _, block in ipairs { "fp16", "bf16" } do
    if config[block] == nil then config[block] = { enabled = false } end
    if config[block].enabled == "auto" then
      config[block].enabled, self._origins[block .. ".enabled"] = mixed_precision == block, "mixed_precision"
    end
  end
end

--- Returns whether models begin as parts.
---@return boolean
function methods:is_zero3_init_enabled() return self._zero3_init_flag end

--- Runs fn(...) with zero3_init_flag as `enable` says.
---@param opts { enable: boolean? }? enable: default false
---@param fn function
---@return any ... what fn returns
function methods:zero3_init_context_manager(...)
  local schema = { enable = { "boolean", default = false } }
  local function run(opts, fn, ...)
    local former = self._zero3_init_flag
    return scope.run(function()
      self._zero3_init_flag = options.check("zero3_init_context_manager", opts, schema).enable
    end,
      function() self._zero3_init_flag = former end, fn, ...)
  end
  return run(scope.arguments("zero3_init_context_manager", schema, ...))
end

--- Raises: AcceleratorState():select_deepspeed_plugin(name) puts a plugin in force.
function methods:select()
  fail("DeepSpeedPlugin: select: accelerator.state:select_deepspeed_plugin(name) puts a plugin in force")
end

function methods:_set_selected(value) self._selected = value end

-- Where the value of a key came from.
function methods:_origin(key)
  return self._origins[key] or self._hf:get_value(key) ~= nil and self._hf:_where(key) or "default"
end

-- ---- the class

local GET = {
  hf_ds_config = function(self) return self._hf end,
  deepspeed_config = function(self) return self._hf.config end,
  is_train_batch_min = function(self) return self._is_train_batch_min end,
  zero3_init_flag = function(self) return self._zero3_init_flag end,
  transformer_moe_cls_names = function(self) return self._transformer_moe_cls_names end,
  enable_msamp = function() return false end,
  msamp_opt_level = function(self) return self._msamp_opt_level end,
  selected = function(self) return self._selected end,
}
for _, field in ipairs(FIELDS) do
  local name, key = field[1], field[4]
  GET[name] = function(self)
    local value = self._hf:get_value(key)
    if value == nil then return name == "zero_stage" and 0 or self._values[name] end
    return value
  end
end

local Class = properties.define("DeepSpeedPlugin", {
  get = GET,
  set = {
    zero3_init_flag = function(self, value)
      self._zero3_init_flag = options.value("DeepSpeedPlugin", "zero3_init_flag", value, { "boolean" })
    end,
    transformer_moe_cls_names = function(self, value)
      self._transformer_moe_cls_names = options.value("DeepSpeedPlugin", "transformer_moe_cls_names", value,
        { "string", optional = true })
    end,
    selected = function()
      fail("DeepSpeedPlugin: selected: state:select_deepspeed_plugin(name) puts a plugin in force")
    end,
  },
  methods = methods,
  tostring = function(self)
    return ("DeepSpeedPlugin(%s, zero_stage=%s)"):format(self._hf._name, tostring(self.zero_stage))
  end,
})

local function init_flag(self, given)
  local flag = given
  if flag == nil then flag = env.flag("ACCELERATE_DEEPSPEED_ZERO3_INIT", self._hf:is_zero3()) end
  if flag and not self._hf:is_zero3() then
    notice.main_once("DeepSpeedPlugin: zero3_init_flag has no effect with zero_stage %s: it is for stage 3",
      tostring(self.zero_stage))
    flag = false
  end
  return flag
end

local made = 0 -- plugins so far: of several by name, the first one made is in force

--- Returns whether `value` is a DeepSpeedPlugin.
---@param value any
---@return boolean
function M.is(value) return type(value) == "table" and getmetatable(value) == Class end

--- Makes a plugin. Arguments that are not given are read from ACCELERATE_GRADIENT_* and
--- ACCELERATE_DEEPSPEED_* variables. A configuration's value holds where it says 'auto' or nothing;
--- all values that contradict each other, and all keys that cannot be taken, are raised in one
--- message, each with its place.
---@param opts table? hf_ds_config (a table, the name of a JSON file, JSON, base64, or an
---  HfDeepSpeedConfig), gradient_accumulation_steps, gradient_clipping, zero_stage (default 2),
---  is_train_batch_min (true), offload_optimizer_device, offload_param_device ("none", "cpu",
---  "nvme"), offload_optimizer_nvme_path, offload_param_nvme_path, zero3_init_flag (default: stage
---  3), zero3_save_16bit_model, transformer_moe_cls_names, enable_msamp and msamp_opt_level
---  (refused)
---@return accelerate.DeepSpeedPlugin
M.DeepSpeedPlugin = properties.callable("DeepSpeedPlugin", function(opts)
  opts = options.check("DeepSpeedPlugin", opts, OPTIONS)
  local self = Class.new()
  made = made + 1
  self._order, self._origins, self._selected = made, {}, false
  if opts.enable_msamp or opts.enable_msamp == nil
    and env.text("ACCELERATE_FP8_BACKEND", ""):upper() == "MSAMP" then
    fail("DeepSpeedPlugin: enable_msamp: MS-AMP's recipe is not there; use mixed_precision = 'bf16'")
  end
  local values, origins = read_fields(opts)
  local given = opts.hf_ds_config
  if given == nil then given = env.text "ACCELERATE_DEEPSPEED_CONFIG_FILE" end
  if given == "none" then given = nil end
  self._values = values
  if given ~= nil then
    take_config(self, given, values, origins)
  else
    self._hf = from_fields(self, values, origins)
  end
  self._hf.config.steps_per_print = math.huge
  self._is_train_batch_min = opts.is_train_batch_min
  self._msamp_opt_level = opts.msamp_opt_level or "O1"
  self._transformer_moe_cls_names = opts.transformer_moe_cls_names
    or env.text "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"
  self._zero3_init_flag = init_flag(self, opts.zero3_init_flag)
  return self
end, { _class = Class })

--- Returns the plugin in force. Raises without DeepSpeed.
---@param state accelerate.AcceleratorState
---@return accelerate.DeepSpeedPlugin
function M.get_active_deepspeed_plugin(state)
  local fine, plugin = pcall(function() return state.deepspeed_plugin end)
  if not fine then
    fail("get_active_deepspeed_plugin: expected an AcceleratorState, got %s", options.show(state))
  end
  return plugin or fail("get_active_deepspeed_plugin: the Accelerator was made without deepspeed_plugin")
end

return M
