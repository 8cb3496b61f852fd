--- Models whose weights rest in fewer bits: load_and_quantize_model, after Accelerate's, and layers
--- after those of bitsandbytes.

local class = require "accelerate.utils.class"
local config = require "accelerate.quantisation.config"
local core = require "accelerate.core"
local Encoding = require "accelerate.quantisation.encoding"
local dataclasses = require "accelerate.config.dataclasses"
local dispatching = require "accelerate.big_modeling.dispatch"
local layers = require "accelerate.quantisation.layers"
local nn = require "accelerate.nn"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local parameter = require "accelerate.nn.parameter"
local placing = require "accelerate.big_modeling.loading"
local replace = require "accelerate.quantisation.replace"
local ties = require "accelerate.big_modeling.ties"

local fail = options.fail

local M = {
  BnbQuantizationConfig = config.BnbQuantizationConfig,
  EncodedLinear = layers.EncodedLinear,
  Linear4bit = layers.Linear4bit,
  Linear8bitLt = layers.Linear8bitLt,
}

local WHERE = "load_and_quantize_model"
local OPTIONS = {
  weights_location = { "string", optional = true },
  device_map = { "string|table", optional = true },
  no_split_module_classes = { "list", optional = true },
  max_memory = { "table", optional = true },
  offload_folder = { "string", optional = true },
  offload_state_dict = { "boolean", default = false },
}

-- ---- types

local function any_in(names, path)
  for _, name in ipairs(names) do
    if path:find(name, 1, true) then return true end
  end
  return false
end

--- Returns the type of each tensor that is not encoded, by its name: float32 in the modules that
--- are kept in it, also where a tied weight has another name, else torch_dtype.
---@param model accelerate.nn.Module
---@param o accelerate.BnbQuantizationConfig
---@param dtype string? comes in place of torch_dtype
---@return fun(name: string): string
function M.types(model, o, dtype)
  o.torch_dtype = dtype or o.torch_dtype
  local wide, of = {}, {}
  for path, p in model:named_parameters { remove_duplicate = false } do
    of[path] = p
    if any_in(o.keep_in_fp32_modules or {}, path) then wide[p] = true end
  end
  return function(name)
    if wide[of[name]] or any_in(o.keep_in_fp32_modules or {}, name) then return "float32" end
    return o.torch_dtype
  end
end

-- Casts the parameters that are not encoded, in a model that has its values.
local function cast_rest(model, o)
  local type_of = M.types(model, o)
  for name, p in model:named_parameters() do
    if core._is_float(p) then parameter.convert(p, type_of(name)) end
  end
end

-- ---- loading

-- A parameter that the checkpoint lacks is an error; names that the model lacks get a notice.
local function complain(location)
  return function(missing, unexpected)
    if #unexpected > 0 then
      notice.main("%s: %s has weights that the model does not have: %s", WHERE, location,
        table.concat(unexpected, ", "))
    end
    if #missing > 0 then
      fail("%s: %s lacks weights of the model: %s", WHERE, location, table.concat(missing, ", "))
    end
  end
end

--- Returns the device map of a call. A word is resolved before the layers are replaced, with
--- Accelerate's sizes: every element of 4 or 8 bits but those of modules that are kept.
---@param model accelerate.nn.Module
---@param o accelerate.BnbQuantizationConfig whose lists are filled in
---@param given table the options of load_and_quantize_model
---@return table<string, string|integer>
function M.map_of(model, o, given)
  local map = given.device_map
  if map == nil then return { [""] = require("accelerate.state").PartialState().device } end
  if type(map) == "table" then return map end
  return replace.apart(model, o, function()
    local special = {}
    for name in model:named_parameters() do
      if any_in(o.keep_in_fp32_modules, name) then special[name] = "float32"
      elseif any_in(o.skip_modules, name) then special[name] = o.torch_dtype end
    end
    return dispatching.resolve_map(WHERE, model, map, { max_memory = given.max_memory,
      dtype = o.target_dtype, special_dtypes = special,
      no_split_module_classes = given.no_split_module_classes })
  end)
end

-- A model with values has no files that its parts could stay in.
local function check_folder(map, folder)
  if folder then return end
  local names = {}
  for name, place in ordered.pairs(map) do
    if place == "disk" then names[#names + 1] = name == "" and "the whole model" or name end
  end
  if #names > 0 then
    fail("%s: device_map puts these on disk: %s; give an offload_folder to write their weights to", WHERE,
      table.concat(names, ", "))
  end
end

--- Encodes the linear layers of a model in 4 or 8 bits. A model with values is encoded as it is;
--- one made by init_empty_weights gets its values from files, plain ones or those of bitsandbytes,
--- tensor by tensor, each where the device map says. Layers that rest on the CPU or on disk are
--- encoded, too.
---@param model accelerate.nn.Module changed, and returned
---@param bnb_quantization_config accelerate.BnbQuantizationConfig skip_modules and
---  keep_in_fp32_modules are filled in where they are not given
---@param opts? { weights_location: string?, device_map: string|table<string, string|integer>?,
---  no_split_module_classes: string[]?, max_memory: table?, offload_folder: string?,
---  offload_state_dict: boolean? } weights_location: a file, an index or a folder; device_map: as
---  dispatch_model takes it, or a word, see load_checkpoint_and_dispatch; default the GPU where
---  there is one, else the CPU; offload_folder: gets codes that are put on "disk", unless they are
---  in a file as they are; offload_state_dict: makes no difference, as tensors are read one by one
---@return accelerate.nn.Module model
function M.load_and_quantize_model(model, bnb_quantization_config, opts)
  local o = bnb_quantization_config
  local given = options.check(WHERE, opts, OPTIONS)
  if not class.is(model, nn.Module) then
    fail("%s: model must be a module, got %s", WHERE, options.show(model))
  end
  if not dataclasses.is(o, config.BnbQuantizationConfig) then
    fail("%s: expected a BnbQuantizationConfig, got %s", WHERE, options.show(o))
  end
  local first = model:parameters()[1]
  local empty = first and first.device == "meta"
  if empty and not given.weights_location then
    fail("%s: the model has no values: weights_location must name a file or a folder with them", WHERE)
  end
  replace.fill_in(model, o)
  local map, tied = M.map_of(model, o, given), ties.find_tied_parameters(model)
  if not empty then check_folder(map, given.offload_folder) end
  replace.with_bnb_layers(model, o, empty)
  if empty then
    placing.load_placed(model, given.weights_location, map, { where = WHERE, type_of = M.types(model, o),
      offload_folder = given.offload_folder, tied = tied }, complain(given.weights_location))
  else
    cast_rest(model, o)
  end
  dispatching.dispatch_model(model, map, { offload_dir = given.offload_folder })
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

---@class accelerate.quantisation.BnbEncoding : accelerate.quantisation.Encoding
local Bnb = class("BnbEncoding", Encoding)

function Bnb:init(o) self.o, self.torch_dtype = o, o.torch_dtype end
function Bnb:replace(model) replace.with_bnb_layers(model, self.o, true) end
function Bnb:types(model, dtype) return M.types(model, self.o, dtype) end
function Bnb:mark(model) M.mark(model, self.o) end

-- The methods of quantization_config that folders may name.
local METHODS = { bitsandbytes = function(where, given) return Bnb(config.of_folder(where, given)) end }
for name, of_folder in next, require("accelerate.quantisation.methods").all do METHODS[name] = of_folder end

--- Returns how the weights of a folder rest: what its quantization_config says, else what the call
--- requests; nil: as plain numbers, or by a method that is not known.
---@param where string
---@param folder string
---@param given table config.json
---@param asked table? a BnbQuantizationConfig, or a table of its fields
---@return accelerate.quantisation.Encoding?
function M.of_model(where, folder, given, asked)
  local written = given.quantization_config
  if written == nil then
    if asked == nil then return nil end
    return Bnb(dataclasses.is(asked, config.BnbQuantizationConfig) and asked
      or config.BnbQuantizationConfig(asked))
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
