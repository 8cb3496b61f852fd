--- Models whose weights rest in fewer bits: load_and_quantize_model, after Accelerate's, and layers
--- after those of bitsandbytes.

local class = require "accelerate.utils.class"
local config = require "accelerate.quantisation.config"
local core = require "accelerate.core"
local dataclasses = require "accelerate.config.dataclasses"
local layers = require "accelerate.quantisation.layers"
local nn = require "accelerate.nn"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local parameter = require "accelerate.nn.parameter"
local replace = require "accelerate.quantisation.replace"
local weights = require "accelerate.weights"

local fail = options.fail

local M = {
  BnbQuantizationConfig = config.BnbQuantizationConfig,
  EncodedLinear = layers.EncodedLinear,
  Linear4bit = layers.Linear4bit,
  Linear8bitLt = layers.Linear8bitLt,
}

local OPTIONS = {
  weights_location = { "string", optional = true },
  device_map = { "string|table", optional = true },
  no_split_module_classes = { "list", optional = true },
  max_memory = { "table", optional = true },
  offload_folder = { "string", optional = true },
  offload_state_dict = { "boolean", default = false },
}

-- ---- types --------------------------------------------------------------------------------------

local function any_in(names, path)
  for _, name in ipairs(names) do
    if path:find(name, 1, true) then return true end
  end
  return false
end

--- Casts what is not encoded: float32 for the modules that are kept in it, also where a tied weight
--- has another name, else torch_dtype.
---@param model accelerate.nn.Module
---@param o accelerate.BnbQuantizationConfig
function M.cast_rest(model, o)
  local keep, wide = o.keep_in_fp32_modules or {}, {}
  local list = {}
  for path, p in model:named_parameters { remove_duplicate = false } do
    if core._is_float(p) then
      list[#list + 1] = p
      if any_in(keep, path) then wide[p] = true end
    end
  end
  for _, p in ipairs(list) do parameter.convert(p, wide[p] and "float32" or o.torch_dtype) end
end

-- ---- loading ------------------------------------------------------------------------------------

-- Loads plain or encoded weights into a model without values, tensor by tensor.
local function load_weights(model, location)
  local dict = weights.lend_checkpoint(location)
  local values = ordered.new()
  for name, t in ordered.pairs(dict) do values[name] = t end
  local report = model:load_state_dict(values, { strict = false, assign = true })
  if #report.unexpected_keys > 0 then
    notice.main("load_and_quantize_model: %s has weights that the model does not have: %s", location,
      table.concat(report.unexpected_keys, ", "))
  end
  if #report.missing_keys > 0 then
    fail("load_and_quantize_model: %s lacks weights of the model: %s", location,
      table.concat(report.missing_keys, ", "))
  end
end

-- The one device of a map, or nil.
local function device_of(o)
  local map = o.device_map
  if map == nil then return require("accelerate.state").PartialState().device end
  if type(map) == "table" and next(map) == "" and next(map, "") == nil then
    local device = map[""]
    return type(device) == "number" and ("cuda:%d"):format(device) or device
  end
end

--- Encodes the linear layers of a model in 4 or 8 bits. A model with values is encoded as it is;
--- one made by init_empty_weights gets its values from files, plain ones or those of bitsandbytes.
---@param model accelerate.nn.Module changed, and returned
---@param bnb_quantization_config accelerate.BnbQuantizationConfig skip_modules and
---  keep_in_fp32_modules are filled in where they are not given
---@param opts? { weights_location: string?, device_map: table?, no_split_module_classes: string[]?,
---  max_memory: table?, offload_folder: string?, offload_state_dict: boolean? } weights_location: a
---  file, an index or a folder; device_map: { [""] = device }, default the GPU where there is one,
---  else the CPU. Maps of several devices raise: parts of an encoded model on other devices are not
---  there yet
---@return accelerate.nn.Module model
function M.load_and_quantize_model(model, bnb_quantization_config, opts)
  local where, o = "load_and_quantize_model", bnb_quantization_config
  local given = options.check(where, opts, OPTIONS)
  if not class.is(model, nn.Module) then
    fail("%s: model must be a module, got %s", where, options.show(model))
  end
  if not dataclasses.is(o, config.BnbQuantizationConfig) then
    fail("%s: expected a BnbQuantizationConfig, got %s", where, options.show(o))
  end
  local device = device_of(given)
  if not device or device == "disk" then
    fail("%s: option 'device_map': parts of an encoded model on several devices are not there yet; " ..
      "expected { [\"\"] "
      .. "= device }, got %s", where, options.show(given.device_map))
  end
  local first = model:parameters()[1]
  local empty = first and first.device == "meta"
  if empty and not given.weights_location then
    fail("%s: the model has no values: weights_location must name a file or a folder with them", where)
  end
  replace.with_bnb_layers(model, o, empty)
  if empty then load_weights(model, given.weights_location) end
  M.cast_rest(model, o)
  model:to(device)
  M.mark(model, o)
  return model
end

--- Notes on a model how its weights are encoded, as Transformers and peft look for it.
---@param model accelerate.nn.Module
---@param o accelerate.BnbQuantizationConfig
function M.mark(model, o)
  model.is_loaded_in_4bit, model.is_loaded_in_8bit = o.load_in_4bit, o.load_in_8bit
  if model.config then model.config.quantization_config = config.for_folder(o) end
end

--- Gives a model layers with encoded weights, before its values are loaded.
---@param model accelerate.nn.Module
---@param o accelerate.BnbQuantizationConfig
function M.replace(model, o) replace.with_bnb_layers(model, o, true) end

--- Raises where a layer has got no codes.
---@param where string
---@param file string
---@param model accelerate.nn.Module
function M.check_filled(where, file, model)
  for path, p in model:named_parameters() do
    if p.device == "meta" and not core._is_float(p) then fail("%s: %s lacks '%s'", where, file, path) end
  end
end

--- Gives what is not encoded its types, after the values were loaded.
---@param model accelerate.nn.Module
---@param o accelerate.BnbQuantizationConfig
---@param dtype string of the rest
function M.settle(model, o, dtype)
  o.torch_dtype = dtype
  M.cast_rest(model, o)
  M.mark(model, o)
end

-- The methods of quantization_config that folders may name.
local METHODS = { bitsandbytes = config.of_folder }

--- Returns how the weights of a folder rest: what its quantization_config says, else what the call
--- requests; nil: as plain numbers, or by a method that is not known.
---@param where string
---@param folder string
---@param given table config.json
---@param asked table? a BnbQuantizationConfig, or a table of its fields
---@return accelerate.BnbQuantizationConfig?
function M.of_model(where, folder, given, asked)
  local written = given.quantization_config
  if written == nil then
    if asked == nil or dataclasses.is(asked, config.BnbQuantizationConfig) then return asked end
    return config.BnbQuantizationConfig(asked)
  end
  local method = type(written) == "table" and (written.quant_method
    or (written.load_in_4bit or written.load_in_8bit) and "bitsandbytes")
  if not METHODS[method] then return nil end -- models/foreign.lua refuses it by name
  if asked ~= nil then
    notice.main("%s: %s is encoded as its own quantization_config says; the option is left aside", where,
      folder)
  end
  return METHODS[method](where .. ": " .. folder, written)
end

--- Returns whether a model has layers in 4 bits.
---@param model accelerate.nn.Module
---@return boolean
function M.has_4bit_bnb_layers(model)
  if type(model) ~= "table" or type(model.modules) ~= "function" then
    fail("has_4bit_bnb_layers: model must be a module, got %s", options.show(model))
  end
  for _, module in ipairs(model:modules()) do
    if class.is(module, layers.Linear4bit) then return true end
  end
  return false
end

return M
