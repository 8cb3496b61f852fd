--- FullyShardedDataParallelPlugin: settings of sharded data parallel training, as FSDP1 and FSDP2
--- have them.
---
---   local plugin = accelerate.FullyShardedDataParallelPlugin { fsdp_version = 2,
---     auto_wrap_policy = "TRANSFORMER_BASED_WRAP" }
---   local accelerator = accelerate.Accelerator { fsdp_plugin = plugin }
---
--- What is not given comes from FSDP_ variables, as the launcher sets them.
local dataclasses = require "accelerate.config.dataclasses"
local env = require "accelerate.utils.environment"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

local M = {}

local NAME = "FullyShardedDataParallelPlugin"
-- In the order of their numbers.
local STRATEGIES = { "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2" }
local STATE_DICTS = { "FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT" }
local PREFETCHES = { "BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH" }
local POLICIES = { "TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP" }
-- What mixed precision modes compute in; sharded values of fp8 are bfloat16.
local DTYPES = { fp8 = "bfloat16", fp16 = "float16", bf16 = "bfloat16", fp32 = "float32" }
-- FSDP2's answer to each strategy, as `accel-run to-fsdp2` gives it.
local RESHARDS = { FULL_SHARD = true, HYBRID_SHARD = true }

local FIELDS = {
  fsdp_version = { "integer", optional = true, one_of = { 1, 2 } },
  sharding_strategy = { "string|integer", optional = true },
  reshard_after_forward = { "string|integer|boolean", optional = true },
  backward_prefetch = { "string|integer", optional = true },
  mixed_precision_policy = { "string|table", optional = true },
  auto_wrap_policy = { "string|function", optional = true },
  cpu_offload = { "boolean|table", optional = true },
  -- with cpu_offload: a folder, in whose files the memory of ranks on CPUs is extended
  offload_folder = { "string", optional = true },
  ignored_modules = { "string|list", optional = true },
  state_dict_type = { "string|integer", optional = true },
  state_dict_config = { "table", optional = true },
  optim_state_dict_config = { "table", optional = true },
  limit_all_gathers = { "boolean", default = true },
  use_orig_params = { "boolean", optional = true },
  param_init_fn = { "function", optional = true },
  sync_module_states = { "boolean", optional = true },
  forward_prefetch = { "boolean", optional = true },
  activation_checkpointing = { "boolean", optional = true },
  activation_checkpointing_offload = { "boolean", optional = true },
  cpu_ram_efficient_loading = { "boolean", optional = true },
  transformer_cls_names_to_wrap = { "string|list", optional = true },
  min_num_params = { "integer", optional = true, min = 0 },
  -- gradients stay whole in no_sync, as in Accelerate; else each pass is reduced into the own part
  whole_in_no_sync = { "boolean", optional = true },
}

-- ---- where values come from

-- Takes the field as it was given, or from a variable, or the default. `read` makes a value of the
-- variable's text.
local function settle(self, field, read, default, variable)
  variable = "FSDP_" .. (variable or field:upper())
  local values, text = self._values, env.text(variable)
  if values[field] ~= nil then
    self._from[field] = "fsdp_plugin." .. field
  elseif text ~= nil then
    values[field], self._from[field] = read(text, variable), variable
  else
    values[field] = default
  end
end

local function as_text(text) return text end

local function as_integer(text, variable)
  local number = tonumber(text)
  if not number or number % 1 ~= 0 or number < 0 then
    fail("%s: expected a whole number, got '%s'", variable, text)
  end
  return number
end

local function settle_flag(self, field, default, variable)
  settle(self, field, env.str_to_bool, default, variable)
end

-- The place of a value in messages: the variable, or the option.
local function place(self, field)
  local from = self._from[field]
  return from and from:sub(1, 5) == "FSDP_" and from or ("%s: %s"):format(NAME, field)
end

-- A word of a list, in any case, or its number there.
local function word_of(self, field, known)
  local value = self._values[field]
  local word = known[tonumber(value) or 0]
  for _, candidate in ipairs(known) do
    if tostring(value):upper() == candidate then word = candidate end
  end
  if not word then
    fail("%s: expected %s, or a number from 1 to %d, got %s%s", place(self, field), table.concat(known, ", "),
      #known, options.show(value), options.hint(tostring(value):upper(), known):gsub("^; known.*", ""))
  end
  return word
end

-- ---- strategies

local function settle_strategy1(self)
  local values = self._values
  settle(self, "sharding_strategy", as_text)
  -- `accelerate launch` sets both variables, and the strategy counts
  if values.sharding_strategy == nil or self._given.reshard_after_forward then
    settle(self, "reshard_after_forward", as_text)
  end
  if type(values.reshard_after_forward) == "boolean"
    or tostring(values.reshard_after_forward):lower():find "^[tf][ra][ul]s?e$" then
    fail("%s = %s is FSDP2's (fsdp_version = 2); FSDP1 expects %s", place(self, "reshard_after_forward"),
      tostring(values.reshard_after_forward), table.concat(STRATEGIES, ", "))
  end
  if values.reshard_after_forward ~= nil then
    values.reshard_after_forward = word_of(self, "reshard_after_forward", STRATEGIES)
  end
  if values.sharding_strategy == nil then
    values.sharding_strategy = values.reshard_after_forward or "FULL_SHARD"
    self._from.sharding_strategy = self._from.reshard_after_forward
    return
  end
  values.sharding_strategy = word_of(self, "sharding_strategy", STRATEGIES)
  if values.reshard_after_forward and values.reshard_after_forward ~= values.sharding_strategy then
    notice.main_once("%s: reshard_after_forward = %s has no effect, for sharding_strategy is %s", NAME,
      values.reshard_after_forward, values.sharding_strategy)
  end
end

local function settle_strategy2(self)
  local values = self._values
  local strategy = values.sharding_strategy
  if strategy ~= nil then strategy = word_of(self, "sharding_strategy", STRATEGIES) end
  if values.reshard_after_forward == nil and strategy then
    fail("%s: sharding_strategy is FSDP1's; with fsdp_version = 2 give " ..
      "reshard_after_forward = %s in place of %s", NAME, tostring(RESHARDS[strategy] or false), strategy)
  end
  settle(self, "reshard_after_forward", as_text, true)
  local reshard = values.reshard_after_forward
  if type(reshard) ~= "boolean" then
    local fine, value = pcall(env.str_to_bool, reshard)
    if not fine then
      fail("%s: FSDP2 expects true or false, got %s", place(self, "reshard_after_forward"),
        options.show(reshard))
    end
    values.reshard_after_forward = value
  end
  local variable = env.text("FSDP_SHARDING_STRATEGY", "FULL_SHARD"):upper()
  if not strategy and variable ~= "FULL_SHARD" and variable ~= "1" then
    notice.main_once("FSDP_SHARDING_STRATEGY = %s has no effect in FSDP2, where reshard_after_forward is %s",
      variable, tostring(values.reshard_after_forward))
  end
end

local function settle_strategy(self)
  if self._given.sharding_strategy then
    notice.main_once("%s: sharding_strategy is an old name; " ..
      "reshard_after_forward takes the same words in FSDP1", NAME)
  end
  if self._values.fsdp_version == 1 then settle_strategy1(self) else settle_strategy2(self) end
end

-- ---- other fields

-- Fields that FSDP2 has not: what it does instead.
local ONLY_FSDP1 = {
  backward_prefetch = "it decides by itself what is acquired ahead",
  use_orig_params = "the original parameters are always used",
  sync_module_states = "ranks always start from the same values",
}

-- Whether a field was given, as an argument or in the environment.
local function is_given(self, field) return self._from[field] ~= nil end

local function settle_prefetch(self)
  local values = self._values
  settle(self, "backward_prefetch", as_text)
  if values.backward_prefetch ~= nil then
    local word = word_of(self, "backward_prefetch", PREFETCHES)
    values.backward_prefetch = word ~= "NO_PREFETCH" and word or nil
    if word == "BACKWARD_POST" and values.fsdp_version == 1 then
      notice.main_once("%s: backward_prefetch = BACKWARD_POST has no effect: the unit before is " ..
        "acquired while " ..
        "a unit computes, as BACKWARD_PRE has it, and two units are in memory at most", NAME)
    end
  end
  settle(self, "forward_prefetch", env.str_to_bool, nil)
  if values.fsdp_version == 2 and values.forward_prefetch ~= nil and self._given.forward_prefetch then
    fail("%s: forward_prefetch is FSDP1's, and FSDP2 has it not; leave it out: " ..
      "the next unit is always acquired ahead", NAME)
  end
  if values.fsdp_version == 2 then values.forward_prefetch = nil
  elseif values.forward_prefetch == nil then values.forward_prefetch = false end
  if not values.limit_all_gathers then
    notice.main_once("%s: limit_all_gathers = false has no effect: two units are in memory at most", NAME)
  end
end

local function settle_parameters(self)
  local values = self._values
  settle_flag(self, "use_orig_params")
  settle_flag(self, "sync_module_states")
  if values.fsdp_version == 1 then
    if values.use_orig_params == false then
      notice.main_once("%s: use_orig_params = false has no effect: " ..
        "optimizers always get the model's own parameters", NAME)
    end
    if values.sync_module_states == false then
      notice.main_once(
        "%s: sync_module_states = false has no effect: ranks always start from rank 0's values",
        NAME)
    end
    values.use_orig_params = values.use_orig_params or false
    values.sync_module_states = values.sync_module_states or false
  end
end

local function drop_fields_of_fsdp1(self)
  local dropped = {}
  for field, instead in ordered.pairs(ONLY_FSDP1) do
    if self._given[field] and self._values[field] ~= nil then
      dropped[#dropped + 1] = ("%s (%s)"):format(field, instead)
    end
    self._values[field] = nil
  end
  if #dropped > 0 then
    notice.main_once("%s: FSDP2 has no %s; the fields are cleared", NAME, table.concat(dropped, ", no "))
  end
end

local function settle_wrapping(self)
  local values = self._values
  settle(self, "auto_wrap_policy", as_text, "NO_WRAP")
  if type(values.auto_wrap_policy) ~= "string" then return end
  local policy = values.auto_wrap_policy:upper()
  if policy == "TRANSFORMER_BASED_WRAP" then
    settle(self, "transformer_cls_names_to_wrap", as_text, nil, "TRANSFORMER_CLS_TO_WRAP")
    local names = values.transformer_cls_names_to_wrap
    if type(names) == "string" then
      local list = {}
      for name in names:gmatch "[^,%s]+" do list[#list + 1] = name end
      values.transformer_cls_names_to_wrap = list
    end
  elseif policy == "SIZE_BASED_WRAP" then
    settle(self, "min_num_params", as_integer, 0)
  elseif policy ~= "NO_WRAP" then
    fail("%s: expected %s, or a function, got %s%s", place(self, "auto_wrap_policy"),
      table.concat(POLICIES, ", "), options.show(values.auto_wrap_policy),
      options.hint(policy, POLICIES):gsub("^; known.*", ""))
  end
  values.auto_wrap_policy = policy ~= "NO_WRAP" and policy or nil
end

local OFFLOAD = { offload_params = { "boolean", default = false } }

local function settle_loading(self)
  local values = self._values
  if values.param_init_fn then
    fail("%s: param_init_fn is not there; give modules on \"meta\" their memory before prepare", NAME)
  end
  settle_flag(self, "cpu_ram_efficient_loading", false)
  if self._given.cpu_ram_efficient_loading then
    env.set("FSDP_CPU_RAM_EFFICIENT_LOADING", tostring(values.cpu_ram_efficient_loading))
  end
  if values.fsdp_version == 1 and values.cpu_ram_efficient_loading and not values.sync_module_states then
    if is_given(self, "sync_module_states") then
      notice.main_once("%s: cpu_ram_efficient_loading needs sync_module_states, which is set to true", NAME)
    end
    values.sync_module_states = true
  end
end

local function settle_checkpointing(self)
  local values = self._values
  settle_flag(self, "activation_checkpointing", false)
  settle_flag(self, "activation_checkpointing_offload", false)
  if not values.activation_checkpointing_offload then return end
  local where = place(self, "activation_checkpointing_offload")
  if not values.activation_checkpointing then
    fail("%s = true needs activation_checkpointing = true", where)
  end
  if values.fsdp_version ~= 2 then fail("%s = true needs fsdp_version = 2", where) end
  fail("%s: moving the inputs of checkpointed units to host memory is not there yet; leave it out", where)
end

-- ---- methods

local CONFIG = { offload_to_cpu = { "boolean", default = true }, rank0_only = { "boolean", default = true } }

local function check_config(self, field)
  local given = self._given[field] and self._values[field]
  if given then
    local config = options.check(("%s: %s"):format(NAME, field), given, CONFIG)
    if not config.rank0_only and self._values.state_dict_type == "FULL_STATE_DICT" then
      fail("%s: %s: rank0_only = false is not there: a whole state dict is made on rank 0 alone", NAME, field)
    end
    if not config.offload_to_cpu then
      notice.main_once("%s: %s: offload_to_cpu = false has no effect: files are written from host memory",
        NAME,
        field)
    end
    return
  end
  local kind = self._values.state_dict_type
  self._values[field] = kind == "FULL_STATE_DICT" and { offload_to_cpu = true, rank0_only = true }
    or kind == "SHARDED_STATE_DICT" and { offload_to_cpu = true } or nil
end

local methods = {}

--- Chooses how state dicts are saved from now on: sharded while training, say, and whole at the
--- end.
---@param state_dict_type string? "FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT" (FSDP1
---  only), in any case, or a number from 1 to 3; nil: the present one, else FSDP_STATE_DICT_TYPE,
---  else full in FSDP1 and sharded in FSDP2
function methods.set_state_dict_type(self, state_dict_type)
  local values = self._values
  if state_dict_type ~= nil then
    values.state_dict_type = options.value("set_state_dict_type", "state_dict_type", state_dict_type,
      FIELDS.state_dict_type)
  end
  settle(self, "state_dict_type", as_text,
    values.fsdp_version == 1 and "FULL_STATE_DICT" or "SHARDED_STATE_DICT")
  local kind = word_of(self, "state_dict_type", STATE_DICTS)
  if values.fsdp_version == 2 and kind == "LOCAL_STATE_DICT" then
    fail("%s: FSDP2 has no LOCAL_STATE_DICT; use SHARDED_STATE_DICT or FULL_STATE_DICT",
      place(self, "state_dict_type"))
  end
  values.state_dict_type = kind
  check_config(self, "state_dict_config")
  check_config(self, "optim_state_dict_config")
  if self._plan then self._plan.state_dict_type = kind:match("^%a+"):lower() end
end

local function keys_of_policy(self)
  return { "param_dtype", "reduce_dtype", self._values.fsdp_version == 1 and "buffer_dtype"
    or "output_dtype" }
end

-- What a policy may have besides, by version: which inputs are cast.
local CASTS = { { "cast_forward_inputs", "cast_root_forward_inputs" }, { "cast_forward_inputs" } }

-- A policy that was given as a table: all dtypes, each one known.
local function check_policy(self, policy)
  local keys, schema = keys_of_policy(self), {}
  for _, key in ipairs(CASTS[self._values.fsdp_version]) do schema[key] = { "boolean", optional = true } end
  local known = { "float32", "bfloat16", "float16" }
  for _, key in ipairs(keys) do schema[key] = { "string", one_of = known } end
  for _, key in ipairs(keys) do
    if policy[key] == nil then
      fail("%s: mixed_precision_policy: %s is missing; expected %s, each one of %s", NAME, key,
        table.concat(keys, ", "), table.concat(known, ", "))
    end
  end
  return options.check(NAME .. ": mixed_precision_policy", policy, schema)
end

-- The dtype of a mixed precision mode, or of a dtype's name.
local function dtype_of(where, word)
  local dtype = type(word) == "string" and DTYPES[word] or nil
  for _, known in pairs(DTYPES) do dtype = dtype or word == known and known or nil end
  if not dtype then
    fail("%s: expected %s, or a dtype of them, got %s", where,
      table.concat(ordered.sorted_keys(DTYPES), ", "),
      options.show(word))
  end
  return dtype
end

--- Sets what units compute in, what gradients are reduced in, and what buffers (FSDP1) or outputs
--- (FSDP2) become. A policy that was given stays, unless `override` is true.
---@param mixed_precision string "fp8", "fp16", "bf16", "fp32", or a dtype
---@param buffer_autocast boolean? buffers stay float32; default false
---@param override boolean? replace the policy; default false
function methods.set_mixed_precision(self, mixed_precision, buffer_autocast, override)
  local dtype = dtype_of("set_mixed_precision", mixed_precision)
  if self._values.mixed_precision_policy ~= nil and not override then return end
  local keys = keys_of_policy(self)
  local policy = { param_dtype = dtype, reduce_dtype = dtype }
  policy[keys[3]] = keys[3] == "buffer_dtype" and buffer_autocast and "float32" or dtype
  self._values.mixed_precision_policy = policy
end

--- Resolves the wrapping for a model: fills transformer_cls_names_to_wrap with the model's own
--- classes where none is named, and turns a size of 0 off. Raises for a class that the model lacks.
---@param model accelerate.nn.Module
function methods.set_auto_wrap_policy(self, model)
  local values = self._values
  if values.auto_wrap_policy == "TRANSFORMER_BASED_WRAP" then
    values.transformer_cls_names_to_wrap = values.transformer_cls_names_to_wrap or model._no_split_modules
      or {}
    require("accelerate.parallel.plan.units").by_class(model, values.transformer_cls_names_to_wrap,
      "TRANSFORMER_BASED_WRAP")
  elseif values.auto_wrap_policy == "SIZE_BASED_WRAP" and values.min_num_params == 0 then
    values.auto_wrap_policy = nil
  end
end

--- Makes cpu_offload a boolean, where it is a table as PyTorch's CPUOffload: { offload_params =
--- true }.
function methods.set_cpu_offload(self)
  local given = self._values.cpu_offload
  if type(given) ~= "table" then return end
  self._values.cpu_offload = options.check(NAME .. ": cpu_offload", given, OFFLOAD).offload_params
end

-- Where a field's value came from.
function methods._origin(self, field)
  local from = self._from[field]
  return from and env.origin(from) or "default"
end

-- FSDP1's strategy.
function methods._strategy(self) return self._values.sharding_strategy end

-- Follows the Accelerator's mixed_precision where no policy was given.
function methods._follow(self, mixed_precision)
  if self._values.mixed_precision_policy ~= nil then return end
  self:set_mixed_precision(mixed_precision)
  self._from.mixed_precision_policy = "mixed_precision"
end

-- Binds the plugin to the plan that an Accelerator made of it.
function methods._bind(self, plan) self._plan = plan end

-- Settles all fields anew; after an Accelerator has its plan, only the form of state dicts can
-- change.
local function assign(self, field, value)
  if field == "state_dict_type" then return self:set_state_dict_type(value) end
  if self._plan then
    fail("%s: %s cannot be changed any more: an Accelerator was made with the plugin; set it before", NAME,
      field)
  end
  local asked = {}
  for name in pairs(self._given) do asked[name] = self._asked[name] end
  asked[field] = value
  local fresh = M.FullyShardedDataParallelPlugin(asked)
  for _, part in ipairs { "_values", "_given", "_from", "_asked" } do self[part] = fresh[part] end
end

---@class accelerate.FullyShardedDataParallelPlugin
---@field fsdp_version 1|2
---@field sharding_strategy string? FSDP1: "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD",
---  "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"
---@field reshard_after_forward string|boolean|nil FSDP1: a strategy; FSDP2: whether values are
---  released after a unit's forward
---@field auto_wrap_policy string|function|nil "TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP"; nil: one
---  unit
---@field state_dict_type string
---@field mixed_precision_policy table?

--- Settings of sharded data parallel training; all are optional.
M.FullyShardedDataParallelPlugin = dataclasses._record(NAME, {
  fields = FIELDS, methods = methods, assign = assign,
  init = function(self)
    local values = self._values
    self._from, self._asked = {}, {}
    for field in pairs(self._given) do self._asked[field] = values[field] end
    settle(self, "fsdp_version", as_integer, 1, "VERSION")
    options.value(NAME, place(self, "fsdp_version"), values.fsdp_version, FIELDS.fsdp_version)
    settle_strategy(self)
    settle_flag(self, "cpu_offload", false, "OFFLOAD_PARAMS")
    self:set_cpu_offload()
    settle(self, "offload_folder", as_text)
    if values.offload_folder and not values.cpu_offload then
      fail("%s needs cpu_offload = true: it is the folder that values, gradients and states go to",
        place(self, "offload_folder"))
    end
    settle_prefetch(self)
    self:set_state_dict_type()
    settle_wrapping(self)
    settle_parameters(self)
    settle(self, "ignored_modules", as_text)
    settle_flag(self, "whole_in_no_sync", false)
    settle_checkpointing(self)
    settle_loading(self)
    if values.fsdp_version == 2 then drop_fields_of_fsdp1(self) end
    if values.mixed_precision_policy ~= nil then
      self._from.mixed_precision_policy = "fsdp_plugin.mixed_precision_policy"
      if type(values.mixed_precision_policy) == "string" then
        local dtype = dtype_of(NAME .. ": mixed_precision_policy", values.mixed_precision_policy)
        self:set_mixed_precision(dtype, false, true)
      else
        values.mixed_precision_policy = check_policy(self, values.mixed_precision_policy)
      end
    end
  end,
})

--- Requests loading in which no rank holds a whole checkpoint, for plugins that are made from now
--- on; where the environment says nothing about sharding, sharding too.
function M.enable_fsdp_ram_efficient_loading()
  if not env.text "ACCELERATE_USE_FSDP" then env.set("ACCELERATE_USE_FSDP", "true") end
  env.set("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
end

--- Takes the loading of enable_fsdp_ram_efficient_loading back; its sharding stays.
function M.disable_fsdp_ram_efficient_loading() env.set("FSDP_CPU_RAM_EFFICIENT_LOADING", "false") end

return M
