--- quantization_config of folders with GPTQ's, AWQ's and fp8 weights: every key is used, has no
--- effect on the results, or raises.

local class = require "accelerate.utils.class"
local Encoding = require "accelerate.quantisation.encoding"
local fp8 = require "accelerate.quantisation.fp8"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local packed = require "accelerate.quantisation.packed"
local replace = require "accelerate.quantisation.replace"

local fail, show = options.fail, options.show

local M = {}

-- ---- all folders

---@class accelerate.quantisation.FolderEncoding : accelerate.quantisation.Encoding
---@field written table quantization_config, as it is written back
---@field part string the tensor below a layer that says that its weight is encoded
---@field layer fun(old: accelerate.nn.Linear): accelerate.quantisation.EncodedLinear
local Folder = class("FolderEncoding", Encoding)
Folder.torch_dtype = "float32"

function Folder:init(where, written, part, layer)
  self.where, self.written, self.part, self.layer = where, written, part, layer
end

-- The layers whose parts are in the files: the files know better than a list of modules left out.
function Folder:replace(model, sources)
  local prefix = model.traits and model.traits.prefix
  local paths = replace.each_linear(model, function(old, path)
    local name = path .. "." .. self.part
    if not sources[name] and not (prefix and sources[prefix .. "." .. name]) then return nil end
    local new = self.layer(old)
    new:requires_grad_(false)
    return new
  end)
  if #paths == 0 then
    fail("%s: quantization_config.quant_method is %s, and no linear layer has '%s' in the files",
      self.where, show(self.written.quant_method), self.part)
  end
end

function Folder:mark(model)
  if model.config then model.config.quantization_config = self.written end
end

-- Raises for keys that are neither read nor silent.
local function check_keys(where, given, read, silent)
  for key in next, given do
    if not read[key] and not silent[key] then
      fail("%s: quantization_config.%s is not known", where, tostring(key))
    end
  end
end

-- The value of a key, which must be one of a list.
local function one_of(where, given, key, default, list)
  local value = given[key]
  if value == nil then value = default end
  for _, known in ipairs(list) do
    if value == known then return value end
  end
  local texts = {}
  for i, known in ipairs(list) do texts[i] = show(known) end
  fail("%s: quantization_config.%s must be %s, got %s", where, key, table.concat(texts, " or "), show(value))
end

-- The values that share a scale: a power of two from 32 on, or -1 for all of a row.
local function group_size(where, given, key)
  local size = given[key]
  if size == nil then size = 128 end
  if size == -1 then return size end
  if type(size) ~= "number" or size < 32 or size > 2 ^ 24 or math.log(size) / math.log(2) % 1 ~= 0 then
    fail("%s: quantization_config.%s must be -1 or a power of two from 32 on, got %s", where, key, show(size))
  end
  return size
end

local function is_set(value)
  return value ~= nil and value ~= false and not (type(value) == "table" and next(value) == nil)
end

local function refuse(where, given, list)
  for key, why in next, list do
    if is_set(given[key]) then fail("%s: quantization_config.%s: %s", where, key, why) end
  end
end

-- ---- GPTQ and AWQ

-- How the weights were made, and which program multiplies them.
local MAKING = lists.set { "quant_method", "desc_act", "sym", "damp_percent", "damp_auto_increment",
  "true_sequential",
  "static_groups", "act_group_aware", "model_name_or_path", "model_file_base_name", "meta", "quantizer",
  "dataset", "tokenizer", "batch_size", "block_name_to_quantize", "module_name_preceding_first_block",
  "modules_in_block_to_quantize", "pad_token_id", "max_input_length", "cache_block_outputs", "model_seqlen",
  "use_cuda_fp16", "use_exllama", "disable_exllama", "exllama_config", "backend", "mse", "pack_dtype",
  "lm_head", "modules_to_not_convert" }
local GPTQ = lists.set { "bits", "group_size", "checkpoint_format", "format", "is_marlin_format", "dynamic" }

local function gptq(where, given)
  check_keys(where, given, GPTQ, MAKING)
  refuse(where, given,
    { is_marlin_format = "Marlin's layout is not read", dynamic = "bits of single layers are not read" })
  local format = given.checkpoint_format or given.format
  local o = { method = "gptq", bits = one_of(where, given, "bits", nil, { 4, 8 }),
    group_size = group_size(where, given, "group_size"),
    offset = one_of(where, { checkpoint_format = format }, "checkpoint_format", "gptq",
      { "gptq", "gptq_v2" }) == "gptq" and 1 or 0 }
  return Folder(where, given, "qweight", function(old) return packed.PackedLinear(old, o) end)
end

local AWQ = lists.set { "bits", "w_bit", "group_size", "q_group_size", "version", "format", "zero_point" }
local AWQ_SILENT = lists.set { "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "checkpoint_format" }
for key in next, MAKING do AWQ_SILENT[key] = true end

local function awq(where, given)
  check_keys(where, given, AWQ, AWQ_SILENT)
  local version = given.version or given.format
  one_of(where, { version = type(version) == "string" and version:lower() or version }, "version", "gemm",
    { "gemm" })
  one_of(where, given, "zero_point", true, { true })
  one_of(where, given, given.w_bit and "w_bit" or "bits", 4, { 4 })
  local o = { method = "awq", bits = 4, offset = 0,
    group_size = group_size(where, given, given.q_group_size and "q_group_size" or "group_size") }
  return Folder(where, given, "qweight", function(old) return packed.PackedLinear(old, o) end)
end

-- ---- fp8

local FP8 = lists.set { "weight_block_size", "activation_scheme", "scale_fmt", "expert_dtype", "fmt",
  "dequantize" }
local FP8_SILENT = lists.set { "quant_method", "modules_to_not_convert", "ignored_layers" }

local function fine_grained(where, given)
  check_keys(where, given, FP8, FP8_SILENT)
  refuse(where, given, { modules_to_convert = "weights of other modules than linear layers are not read" })
  one_of(where, given, "activation_scheme", "dynamic", { "dynamic" })
  one_of(where, given, "scale_fmt", "float", { "float" })
  one_of(where, given, "expert_dtype", "fp8", { "fp8" })
  one_of(where, given, "fmt", "e4m3", { "e4m3" })
  local block = given.weight_block_size
  if block == nil then block = { 128, 128 } end
  if type(block) ~= "table" or #block ~= 2 or block[1] ~= block[2] then
    fail("%s: quantization_config.weight_block_size: square blocks are read, got %s", where, show(block))
  end
  local size = group_size(where, { weight_block_size = block[1] }, "weight_block_size")
  return Folder(where, given, "weight_scale_inv",
    function(old) return fp8.Fp8Linear(old, { block = size, scale_name = "weight_scale_inv" }) end)
end

local TENSORS = lists.set { "format", "config_groups", "quantization_status", "sparsity_config",
  "kv_cache_scheme",
  "transform_config" }
local TENSORS_SILENT = lists.set { "quant_method", "ignore", "global_compression_ratio", "version",
  "run_compressed" }
local WEIGHTS = lists.set { "num_bits", "type", "strategy", "symmetric", "dynamic", "block_structure",
  "group_size",
  "actorder" }
local WEIGHTS_SILENT = lists.set { "observer", "observer_kwargs", "scale_dtype", "zp_dtype" }

-- The one group of layers of a configuration.
local function only_group(where, given)
  local groups = given.config_groups
  local name = type(groups) == "table" and next(groups)
  if not name or next(groups, name) ~= nil or type(groups[name]) ~= "table" then
    fail("%s: quantization_config.config_groups: one group of layers is read, got %s", where, show(groups))
  end
  return groups[name], where .. ": config_groups." .. tostring(name)
end

local function compressed(where, given)
  check_keys(where, given, TENSORS, TENSORS_SILENT)
  refuse(where, given, { kv_cache_scheme = "scales of cached keys and values are not read",
    transform_config = "turned weights are not read" })
  if type(given.sparsity_config) == "table" and is_set(given.sparsity_config) then
    one_of(where .. ": sparsity_config", given.sparsity_config, "format", "dense", { "dense" })
  end
  one_of(where, given, "format", nil, { "float-quantized", "naive-quantized" })
  one_of(where, given, "quantization_status", "compressed", { "compressed" })
  local group, at = only_group(where, given)
  local w, inputs = group.weights, group.input_activations
  if type(w) ~= "table" then fail("%s: weights are missing", at) end
  check_keys(at .. ": weights", w, WEIGHTS, WEIGHTS_SILENT)
  one_of(at .. ": weights", w, "type", nil, { "float" })
  one_of(at .. ": weights", w, "num_bits", nil, { 8 })
  one_of(at .. ": weights", w, "symmetric", true, { true })
  local strategy = one_of(at .. ": weights", w, "strategy", "tensor", { "tensor", "channel", "block" })
  if type(inputs) == "table" and is_set(inputs) then
    one_of(at .. ": input_activations", inputs, "dynamic", nil, { true })
  end
  if is_set(group.output_activations) then fail("%s: output_activations are not read", at) end
  local o = { rows = strategy == "channel", scale_name = "weight_scale" }
  if strategy == "block" then
    local block = w.block_structure or {}
    if block[1] ~= block[2] or block[1] == nil then
      fail("%s: weights.block_structure: square blocks are read, got %s", at, show(w.block_structure))
    end
    o.block = group_size(at, { block_structure = block[1] }, "block_structure")
  end
  return Folder(where, given, "weight_scale", function(old) return fp8.Fp8Linear(old, o) end)
end

-- quant_method -> fun(where, given): the encoding.
M.all = { gptq = gptq, awq = awq, fp8 = fine_grained, ["compressed-tensors"] = compressed }

return M
