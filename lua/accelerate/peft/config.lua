--- LoraConfig, and adapter_config.json.

local dataclasses = require "accelerate.config.dataclasses"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

local M = {
  -- what a folder says that its adapter is for
  TASKS = { "SEQ_CLS", "SEQ_2_SEQ_LM", "CAUSAL_LM", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION" },
}

local NAME = "LoraConfig"
local NAMES = { "string|list", optional = true }

---@class accelerate.peft.LoraConfig
---@field r integer rank of the update, default 8
---@field lora_alpha number the update is multiplied by lora_alpha / r, default 8
---@field lora_dropout number of the update's input while training, default 0
---@field target_modules string|string[]? names of linear layers or ends of their paths; a text: a
---  regular expression of Python's for whole paths, or "all-linear"; nil: what PEFT takes for the
---  type of model
---@field exclude_modules string|string[]? layers that are left out, likewise
---@field layers_to_transform integer|integer[]? blocks that get adapters, from 0, as paths count
---  them; with names as target_modules
---@field layers_pattern string|string[]? what the list of blocks is called: "layers", "h"; default
---  any name before a number
---@field rank_pattern table<string, integer>? r of some layers, by ends of paths or regular
---  expressions
---@field alpha_pattern table<string, number>? lora_alpha of some layers, likewise
---@field use_rslora boolean lora_alpha / sqrt(r) in place of lora_alpha / r
---@field use_dora boolean magnitudes of the weight's rows are trained apart (DoRA)
---@field bias string which biases are trained: "none", "all", "lora_only"
---@field modules_to_save string[]? modules that are trained and saved as a whole, by ends of paths;
---  no layer in them gets an adapter. A task_type adds the head of its models, as in PEFT
---@field init_lora_weights boolean|string true: the update is zero at first; "gaussian": likewise,
---  drawn from a normal distribution; false: it is not zero
---@field fan_in_fan_out boolean what files say of layers whose weight is (in, out); layers know it
---  themselves
---@field task_type string? one of TaskType's; "SEQ_CLS", "TOKEN_CLS" and "QUESTION_ANS" train the
---  model's head, too
---@field inference_mode boolean
---@field base_model_name_or_path string?

-- Checks a table of numbers by pattern; an empty one says nothing.
local function by_pattern(field, value, kind)
  if value == nil or next(value) == nil then return nil end
  for pattern, number in next, value do
    if type(pattern) ~= "string" then
      fail("%s: %s: a key must be a pattern, got %s", NAME, field, options.show(pattern))
    end
    options.value(NAME, ("%s['%s']"):format(field, pattern), number, kind)
  end
  return value
end

--- Returns the settings of an adapter, with PEFT's names and defaults.
M.LoraConfig = dataclasses._record(NAME, {
  fields = {
    r = { "integer", default = 8, min = 1 },
    lora_alpha = { "number", default = 8 },
    lora_dropout = { "number", default = 0, min = 0, max = 1 },
    target_modules = NAMES,
    exclude_modules = NAMES,
    layers_to_transform = { "integer|list", optional = true },
    layers_pattern = NAMES,
    rank_pattern = { "table", optional = true },
    alpha_pattern = { "table", optional = true },
    use_rslora = { "boolean", default = false },
    use_dora = { "boolean", default = false },
    bias = { "string", default = "none", one_of = { "none", "all", "lora_only" } },
    modules_to_save = { "list", optional = true },
    init_lora_weights = { "boolean|string", default = true },
    fan_in_fan_out = { "boolean", default = false },
    task_type = { "string", optional = true, one_of = M.TASKS },
    inference_mode = { "boolean", default = false },
    base_model_name_or_path = { "string", optional = true },
  },
  init = function(self)
    if type(self.target_modules) == "string" and self.layers_to_transform then
      fail("%s: layers_to_transform goes with names as target_modules; " ..
        "the expression %s can say which blocks", NAME, options.show(self.target_modules))
    elseif self.layers_pattern and not self.layers_to_transform then
      fail("%s: layers_pattern is for layers_to_transform, which is not given", NAME)
    end
  end,
  checks = {
    layers_to_transform = function(value)
      for i, number in ipairs(type(value) == "table" and value or { value }) do
        options.value(NAME, ("layers_to_transform[%d]"):format(i), number, { "integer", min = 0 })
      end
      return value
    end,
    rank_pattern = function(value) return by_pattern("rank_pattern", value, { "integer", min = 1 }) end,
    alpha_pattern = function(value) return by_pattern("alpha_pattern", value, { "number" }) end,
    init_lora_weights = function(value)
      if type(value) == "string" and value ~= "gaussian" then
        fail("%s: init_lora_weights must be true, false or \"gaussian\", got %s", NAME, options.show(value))
      end
      return value
    end,
  },
})

M._FIELDS = M.LoraConfig._fields

-- ---- files

-- What files say beside the fields, where it says nothing: PEFT's defaults.
local NEUTRAL = { lora_bias = false, megatron_core = "megatron.core", qalora_group_size = 16,
  use_qalora = false,
  ensure_weight_tying = false, peft_type = "LORA" }
local UNREAD = { peft_version = true, revision = true, auto_mapping = true }

local function is_empty(value) return value == nil or type(value) == "table" and next(value) == nil end

--- Reads adapter_config.json of a folder.
---@param where string
---@param folder string
---@return accelerate.peft.LoraConfig
function M.read(where, folder)
  local path = fs.join(folder, "adapter_config.json")
  local text, why = fs.read(path)
  if not text then fail("%s: %s", where, why) end
  local given, problem = json.decode(text)
  if type(given) ~= "table" then fail("%s: %s: %s", where, path, problem or "expected an object") end
  if given.peft_type ~= "LORA" then
    fail("%s: %s: peft_type %s is not there; known is LORA", where, path, options.show(given.peft_type))
  end
  local fields, known = {}, {}
  for _, name in ipairs(M._FIELDS) do known[name] = true end
  for key, value in next, given do
    if known[key] then
      fields[key] = value
    elseif not UNREAD[key] and value ~= NEUTRAL[key] and not is_empty(value) then
      fail("%s: %s: %s = %s is not there", where, path, key, options.show(value))
    end
  end
  if type(fields.target_modules) == "table" then table.sort(fields.target_modules) end
  return M.LoraConfig(fields)
end

--- Writes adapter_config.json into a folder.
---@param where string
---@param folder string
---@param config accelerate.peft.LoraConfig
function M.write(where, folder, config)
  local written = ordered.new()
  written.peft_type = "LORA"
  for _, name in ipairs(M._FIELDS) do written[name] = config[name] end
  written.inference_mode = true
  local text = json.encode(written, 2):gsub('("lora_dropout": %d+)([,\n])', "%1.0%2")
  local ok, why = fs.write(fs.join(folder, "adapter_config.json"), text .. "\n", true)
  if not ok then fail("%s: %s", where, tostring(why)) end
end

return M
