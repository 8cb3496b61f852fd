--- Transformers' options of from_pretrained that have another form here, no effect, or no place.

local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail = options.fail

local M = {}

local ATTENTION = { eager = true, sdpa = true, flash_attention_2 = true, flash_attention_3 = true,
  flex_attention = true }

local function quantized(bits)
  return function(where, value)
    if not value then return end
    fail("%s: load_in_%s = true: give quantization_config = utils.BnbQuantizationConfig " ..
      "{ load_in_%s = true }", where, bits, bits)
  end
end

-- What is done about each; an option that it does not refuse is left out.
local HANDLED = {
  load_in_4bit = quantized "4bit", load_in_8bit = quantized "8bit",
  trust_remote_code = function(where, value)
    if value then
      fail("%s: trust_remote_code = true: code of a repository is not run; " ..
        "accelerate.models has the architectures", where)
    end
  end,
  attn_implementation = function(where, value)
    if not ATTENTION[value] then
      fail("%s: attn_implementation = %s: expected eager, sdpa, flash_attention_2, " ..
        "flash_attention_3 or flex_attention", where, options.show(value))
    end
    if value ~= "sdpa" then
      notice.main("%s: attn_implementation = %s has no effect: attention is one fused kernel here", where,
        options.show(value))
    end
  end,
  low_cpu_mem_usage = function(where, value) -- a model is always filled from its files, and held once
    options.value(where, "low_cpu_mem_usage", value, { "boolean" })
  end,
  local_files_only = function(where, value) -- nothing is downloaded in either case
    options.value(where, "local_files_only", value, { "boolean" })
  end,
}

--- Divides the options of a call of from_pretrained into its own here and keys of config.json.
--- torch_dtype becomes dtype; options without an effect are left out. Raises for options that ask
--- for something that is not there.
---@param where string
---@param given table?
---@param schema table<string, table> of its options
---@return table? options
---@return table<string, any> keys all other names
function M.taken(where, given, schema)
  local keys = {}
  if type(given) ~= "table" or getmetatable(given) ~= nil then return given, keys end
  local own = {}
  for name, value in next, given do
    if HANDLED[name] then HANDLED[name](where, value)
    elseif schema[name] or name == "torch_dtype" then own[name] = value
    else keys[name] = value end
  end
  if own.torch_dtype ~= nil then
    if own.dtype ~= nil then fail("%s: torch_dtype is an older name of dtype; give one of them", where) end
    own.dtype, own.torch_dtype = own.torch_dtype, nil
  end
  return own, keys
end

--- Puts the keys that `taken` returned into a configuration, as Transformers does. Raises for those
--- that neither the architecture nor the folder has; all folders may have use_cache.
---@param where string
---@param keys table<string, any>
---@param config table
---@param schema table<string, table> the architecture's
---@param known table<string, table> from_pretrained's options
function M.into_config(where, keys, config, schema, known)
  for name, value in next, keys do
    if not schema[name] and config[name] == nil and name ~= "use_cache" then
      fail("%s: unknown option %s%s", where, options.show(name),
        options.hint(name, ordered.sorted_keys(known)))
    end
    config[name] = value
  end
end

return M
