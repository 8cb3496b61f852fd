--- BnbQuantizationConfig, and the quantization_config of model folders.

local dataclasses = require "accelerate.config.dataclasses"
local json = require "accelerate.utils.json"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

local NAME = "BnbQuantizationConfig"
local SHORT = { fp32 = "float32", fp16 = "float16", bf16 = "bfloat16" }
local TYPES = { "fp32", "fp16", "bf16", "float32", "float16", "bfloat16", "float64" }

-- The type's name here: "fp16" is float16.
local function long(name) return name and (SHORT[name] or name) end

local function names(value)
  for i, name in ipairs(value) do
    if type(name) ~= "string" then fail("%s: name %d must be a text, got %s", NAME, i, options.show(name)) end
  end
  return value
end

---@class accelerate.BnbQuantizationConfig
---@field load_in_8bit boolean rows of 8 bits (LLM.int8)
---@field load_in_4bit boolean nf4 or fp4; one of the two must be true
---@field llm_int8_threshold number columns of an input with an element of this size stay as they
---  are; default 6
---@field bnb_4bit_quant_type string "fp4", the default, or "nf4"
---@field bnb_4bit_use_double_quant boolean scales are encoded, too
---@field bnb_4bit_compute_dtype string the type that layers compute in: "fp16" (the default),
---  "bf16", "fp32"
---@field torch_dtype string the type of all other weights; default float16, in 4 bits the compute
---  type
---@field skip_modules string[]? names of layers that keep their weights; nil: the last one and tied
---  ones
---@field keep_in_fp32_modules string[]? names of modules that stay in float32
---@field target_dtype string "int4" or "int8"

--- Returns a configuration of weights in 4 or 8 bits, with Accelerate's fields and checks.
M.BnbQuantizationConfig = dataclasses._record(NAME, {
  fields = {
    load_in_8bit = { "boolean", default = false },
    llm_int8_threshold = { "number", default = 6, min = 0 },
    load_in_4bit = { "boolean", default = false },
    bnb_4bit_quant_type = { "string", default = "fp4", one_of = { "fp4", "nf4" } },
    bnb_4bit_use_double_quant = { "boolean", default = false },
    bnb_4bit_compute_dtype = { "string", default = "fp16", one_of = TYPES },
    torch_dtype = { "string", optional = true, one_of = TYPES },
    skip_modules = { "list", optional = true },
    keep_in_fp32_modules = { "list", optional = true },
  },
  checks = { bnb_4bit_compute_dtype = long, torch_dtype = long, skip_modules = names,
    keep_in_fp32_modules = names },
  get = { target_dtype = function(self) return self.load_in_4bit and "int4" or "int8" end },
  init = function(self)
    if self.load_in_4bit == self.load_in_8bit then
      fail("%s: exactly one of load_in_4bit and load_in_8bit must be true, both are %s", NAME,
        tostring(self.load_in_4bit))
    end
    if self.load_in_4bit and self.llm_int8_threshold ~= 6 then
      notice.here("%s: llm_int8_threshold is for load_in_8bit; in 4 bits it does nothing", NAME)
    end
    self.torch_dtype = self.torch_dtype or (self.load_in_8bit and "float16" or self.bnb_4bit_compute_dtype)
  end,
})

-- ---- config.json

-- Keys of bitsandbytes' quantization_config: how each becomes a field; false: it says nothing that
-- matters to a reader.
local KEYS = {
  quant_method = false, _load_in_8bit = false, _load_in_4bit = false,
  llm_int8_enable_fp32_cpu_offload = false,
  load_in_8bit = "load_in_8bit", load_in_4bit = "load_in_4bit", llm_int8_threshold = "llm_int8_threshold",
  llm_int8_skip_modules = "skip_modules", bnb_4bit_quant_type = "bnb_4bit_quant_type",
  bnb_4bit_use_double_quant = "bnb_4bit_use_double_quant", bnb_4bit_compute_dtype = "bnb_4bit_compute_dtype",
}

--- Returns the configuration that a folder's quantization_config of bitsandbytes describes.
---@param where string
---@param given table
---@return accelerate.BnbQuantizationConfig
function M.of_folder(where, given)
  local fields = {}
  for key, value in next, given do
    local field = KEYS[key]
    if key == "bnb_4bit_quant_storage" then
      if value ~= "uint8" then
        fail("%s: quantization_config.%s: codes in uint8 are read, got %s", where, key, options.show(value))
      end
    elseif key == "llm_int8_has_fp16_weight" then
      if value then
        fail("%s: quantization_config.%s: weights of 16 bits beside codes are not read", where, key)
      end
    elseif field == nil then
      fail("%s: quantization_config.%s is not known", where, tostring(key))
    elseif field then
      fields[field] = value
    end
  end
  if not fields.load_in_4bit and not fields.load_in_8bit then
    fail("%s: quantization_config: neither load_in_4bit nor load_in_8bit is true", where)
  end
  if not fields.load_in_8bit then fields.llm_int8_threshold = nil end
  fields.bnb_4bit_compute_dtype = fields.bnb_4bit_compute_dtype or "float32"
  return M.BnbQuantizationConfig(fields)
end

--- Returns the quantization_config of config.json, as Transformers writes it for a folder with
--- weights in 4 or 8 bits.
---@param config accelerate.BnbQuantizationConfig
---@return table
function M.for_folder(config)
  return {
    quant_method = "bitsandbytes", _load_in_4bit = config.load_in_4bit, _load_in_8bit = config.load_in_8bit,
    load_in_4bit = config.load_in_4bit, load_in_8bit = config.load_in_8bit,
    llm_int8_threshold = config.llm_int8_threshold, llm_int8_skip_modules = config.skip_modules
      and json.list { unpack(config.skip_modules) },
    llm_int8_enable_fp32_cpu_offload = false, llm_int8_has_fp16_weight = false,
    bnb_4bit_quant_type = config.bnb_4bit_quant_type, bnb_4bit_quant_storage = "uint8",
    bnb_4bit_use_double_quant = config.bnb_4bit_use_double_quant,
    bnb_4bit_compute_dtype = config.bnb_4bit_compute_dtype,
  }
end

return M
