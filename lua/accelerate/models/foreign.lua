--- What folders of other programs may hold and is not read: quantized and adapted weights, other
--- files of weights. Each is refused by its name.

local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail, show = options.fail, options.show

local M = {}

-- ---- config.json

-- Keys that change what the weights mean.
local QUANTIZED = { "quantization_config", "compression_config", "quantization" }

local function method_of(value)
  if type(value) ~= "table" then return show(value) end
  local method = value.quant_method or value.format or value.load_in_8bit and "bitsandbytes, 8 bits"
    or value.load_in_4bit and "bitsandbytes, 4 bits"
  local bits = type(value.bits) == "number" and (", %g bits"):format(value.bits) or ""
  return (type(method) == "string" and "quant_method " .. show(method) or "a table") .. bits
end

--- Raises where a configuration says that the weights beside it are not plain numbers.
---@param where string
---@param folder string
---@param given table config.json; false takes a key out
function M.check_config(where, folder, given)
  for _, key in ipairs(QUANTIZED) do
    if given[key] then
      fail("%s: %s: config.%s (%s): quantized weights are not read; take the model's plain weights", where,
        folder, key, method_of(given[key]))
    end
  end
  if type(given.pruned_heads) == "table" and next(given.pruned_heads) ~= nil then
    fail("%s: %s: config.pruned_heads: weights of layers without some heads are not read", where, folder)
  end
end

-- ---- weights

-- Last parts of the names of quantized weights.
local PARTS = lists.set { "qweight", "qzeros", "g_idx", "SCB", "weight_packed", "weight_scale",
  "weight_scale_inv", "weight_zero_point", "input_scale", "absmax", "quant_map", "nested_absmax", "scales",
  "weight_format" }

local function is_quantized(name)
  return PARTS[name:match "[^.]*$"] or name:find(".quant_state.", 1, true)
end

local function refuse_quantized(where, file, what)
  fail("%s: %s: %s: quantized weights, which config.json's quantization_config describes, are not read; " ..
    "take the model's plain weights", where, file, what)
end

--- Raises where weights are not the plain numbers that the model's names stand for.
---@param where string
---@param file string what the weights came from
---@param mine table<string, accelerate.Tensor> the model's
---@param dict table<string, accelerate.Tensor> the file's
function M.check_weights(where, file, mine, dict)
  for name, t in ordered.pairs(dict) do
    local own = mine[name]
    if not own and is_quantized(name) then refuse_quantized(where, file, "the tensor " .. show(name)) end
    if not own and name:find "%.lora_[AB]%." then
      fail("%s: %s: the tensor %s: weights of an adapter (LoRA) are not read; merge them into the model's",
        where, file, show(name))
    end
    if own and core._is_float(own) and not core._is_float(t) then
      refuse_quantized(where, file, ("%s is %s, and the model's is %s"):format(show(name), t.dtype,
        own.dtype))
    end
  end
end

--- Calls read() and returns its result; an error about a type of numbers gets a word about
--- quantization.
---@generic T
---@param where string
---@param file string
---@param read fun(): T
---@return T
function M.reading(where, file, read)
  local ok, result = pcall(read)
  if ok then return result end
  local what = tostring(result):match "(tensor '[^']*' has dtype '[IUF]%d[^']*')"
  if what then refuse_quantized(where, file, what) end
  error(result, 0)
end

-- ---- folders

local OTHERS = {
  { "^adapter_model%.", "is an adapter's (LoRA), without the model's own weights" },
  { "%.h5$", "is TensorFlow's form" },
  { "%.msgpack$", "is Flax's form" }, { "%.onnx$", "is ONNX's form" },
  { "^consolidated%.", "has Mistral's or Meta's own names" },
}

--- Raises for a folder of an adapter, which has no config.json.
---@param where string
---@param folder string
function M.check_folder(where, folder)
  if fs.exists(fs.join(folder, "config.json")) or not fs.exists(fs.join(folder, "adapter_config.json")) then
    return
  end
  fail("%s: %s is an adapter's folder, without a model; peft.PeftModel.from_pretrained(model, " ..
    "'%s') puts it on its model", where, folder, folder)
end

--- Returns what a message about missing weights says of other files that hold some, or "".
---@param folder string
---@return string
function M.other_weights(folder)
  for _, name in ipairs(fs.list(folder) or {}) do
    if name:find "%.gguf$" then return ("; gguf_file = '%s' reads the one that is there"):format(name) end
    for _, entry in ipairs(OTHERS) do
      if name:find(entry[1]) then return ("; %s %s, which is not read"):format(name, entry[2]) end
    end
  end
  return ""
end

return M
