--- Models in eight bits: which of their linear layers become so, as Accelerate's backends choose
--- them, and the forward in which they do.
---
---   torchao             all whose sizes are multiples of 16 but the first and the last; each
---                       tensor has its own scale; in evaluation, too
---   transformer-engine  all whose sizes are multiples of 16; scales follow from earlier sizes; in
---                       training, and in evaluation where the recipe says so
local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local float8 = require "accelerate.precision.float8"
local modes = require "accelerate.utils.modes"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"
local Scales = require "accelerate.precision.float8_scales"
local scope = require "accelerate.utils.scope"

local fail = options.fail

local M = {}

local E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
local NONE_HIGH = { fprop = false, dgrad = false, wgrad = false }

-- ---- which layers

local function check_model(where, model)
  if not class.is(model, nn.Module) then fail("%s: expected a module, got %s", where, options.show(model)) end
end

local function is_linear(module) return class.is(module, nn.Linear) end

-- A layer whose forward is a Linear's own.
local function computes_as_linear(module)
  return is_linear(module) and module._values.weight ~= nil and module.forward == nn.Linear.forward
end

--- Returns the names of the first and the last Linear of a model, in the order of named_modules;
--- nil where there is none.
---@param model accelerate.nn.Module
---@return string? first
---@return string? last
function M.find_first_last_linear_layers(model)
  check_model("find_first_last_linear_layers", model)
  local first, last
  for name, module in model:named_modules() do
    if is_linear(module) then first, last = first or name, name end
  end
  return first, last
end

local function sizes_fit(layer) return layer.in_features % 16 == 0 and layer.out_features % 16 == 0 end

--- Returns whether a module may compute in eight bits: it is no Linear with a size that is no
--- multiple of 16, and is not listed.
---@param module accelerate.nn.Module
---@param fqn string its path in the model
---@param layers_to_filter string[] paths that are left out
---@return boolean
function M.filter_linear_layers(module, fqn, layers_to_filter)
  check_model("filter_linear_layers", module)
  options.value("filter_linear_layers", "layers_to_filter", layers_to_filter, { "list" })
  if is_linear(module) and not sizes_fit(module) then return false end
  for _, name in ipairs(layers_to_filter) do
    if name == fqn then return false end
  end
  return true
end

--- Returns whether filter_linear_layers accepts a module below which the first and the last Linear
--- are left out.
---@param module accelerate.nn.Module
---@param fqn string
---@return boolean
function M.filter_first_and_last_linear_layers(module, fqn)
  check_model("filter_first_and_last_linear_layers", module)
  return M.filter_linear_layers(module, fqn, { M.find_first_last_linear_layers(module) })
end

-- Converts the layers that `takes` accepts.
local function convert(where, model, takes, make_recipe)
  check_model(where, model)
  local list = {}
  for name, module in model:named_modules() do
    if is_linear(module) and takes(module, name) then
      if not sizes_fit(module) then
        fail("%s: %s is %d x %d: products in eight bits need sizes that are multiples of 16", where,
          name == "" and "the model" or name, module.out_features, module.in_features)
      end
      if not float8.use_of(module) and computes_as_linear(module) then list[#list + 1] = module end
    end
  end
  local recipe = make_recipe(list)
  for at, layer in ipairs(list) do float8.convert(layer, recipe, at) end
  return recipe
end

-- ---- torchao's

local CONFIG = { pad_inner_dim = { "boolean", default = true },
  enable_fsdp_float8_all_gather = { "boolean", optional = true } }

--- Makes linear layers of a model compute in eight bits, in place, with a scale of each tensor's
--- own: all whose sizes are multiples of 16 but the first and the last.
---@param model accelerate.nn.Module
---@param opts { config: { pad_inner_dim: boolean? }?, module_filter_func: (fun(module:
---  accelerate.nn.Module, fqn: string): boolean)? }? module_filter_func: which layers, instead
function M.convert_model_to_fp8_ao(model, opts)
  opts = options.check("convert_model_to_fp8_ao", opts,
    { config = { "table", optional = true }, module_filter_func = { "function", optional = true } })
  local config = options.check("convert_model_to_fp8_ao: config", opts.config, CONFIG)
  check_model("convert_model_to_fp8_ao", model)
  local first, last = M.find_first_last_linear_layers(model)
  local takes = opts.module_filter_func or function(module, name)
    return M.filter_linear_layers(module, name, { first, last })
  end
  convert("convert_model_to_fp8_ao", model, takes, function()
    return { forward = E4M3, backward = E5M2, high = NONE_HIGH, pads = config.pad_inner_dim, always = true }
  end)
end

--- Returns whether linear layers of a model compute in eight bits as convert_model_to_fp8_ao makes
--- them.
---@param model accelerate.nn.Module
---@return boolean
function M.has_ao_layers(model)
  check_model("has_ao_layers", model)
  for _, module in model:named_modules() do
    local use = float8.use_of(module)
    if use and use.recipe.always then return true end
  end
  return false
end

--- Returns the parameters that are weights of layers of torchao's kind, and nothing else: those
--- that ranks may gather in eight bits.
---@param model accelerate.nn.Module
---@return table<accelerate.Tensor, boolean>
function M.weights_in_eight(model)
  local found, others = {}, {}
  for _, module in model:named_modules() do
    local use = float8.use_of(module)
    for name, p in module:named_parameters { recurse = false } do
      if use and use.recipe.always and name == "weight" then found[p] = true else others[p] = true end
    end
  end
  for p in pairs(others) do found[p] = nil end
  return found
end

-- ---- transformer-engine's

local FORMATS = { HYBRID = E5M2, E4M3 = E4M3 }

-- A recipe without its layers' scales, which apply_fp8_autowrap makes.
local function empty_recipe() return { forward = E4M3, backward = E5M2, high = NONE_HIGH, pads = true } end

--- Makes linear layers of a model compute in eight bits, in place, inside a forward that
--- apply_fp8_autowrap has wrapped: all whose sizes are multiples of 16.
---@param model accelerate.nn.Module
function M.convert_model(model)
  convert("convert_model", model, sizes_fit, empty_recipe)
end

--- Returns whether linear layers of a model compute in eight bits as convert_model makes them.
---@param model accelerate.nn.Module
---@return boolean
function M.has_transformer_engine_layers(model)
  check_model("has_transformer_engine_layers", model)
  for _, module in model:named_modules() do
    local use = float8.use_of(module)
    if use and not use.recipe.always then return true end
  end
  return false
end

-- Model -> its recipe.
local recipes = setmetatable({}, { __mode = "k" })

local function recipe_of(model)
  local recipe, layers, device = nil, 0, nil
  for _, module in model:named_modules() do
    local use = float8.use_of(module)
    if use and not use.recipe.always then
      recipe, layers, device = use.recipe, math.max(layers, use.at), module.weight.device
    end
  end
  return recipe, layers, device
end

local function fill_in(recipe, layers, device, handler)
  local values = handler:to_dict()
  if values.use_mxfp8_block_scaling then
    fail("TERecipeKwargs: use_mxfp8_block_scaling: scales of blocks of 32 are not there; leave it out")
  end
  recipe.backward = FORMATS[values.fp8_format]
  if not recipe.backward then
    fail("TERecipeKwargs: fp8_format = '%s': no product takes two matrices of E5M2; use HYBRID or E4M3",
      values.fp8_format)
  end
  local high = values.override_linear_precision
  recipe.high = { fprop = high[1], dgrad = high[2], wgrad = high[3] }
  recipe.scales = Scales(layers, device, { forward = recipe.forward, backward = recipe.backward,
    margin = values.margin, interval = values.interval, length = values.amax_history_len,
    algorithm = values.amax_compute_algo })
end

--- Wraps a model's forward so that its converted layers compute in eight bits inside: in training,
--- and in evaluation where the recipe says so. Each forward in training begins with new scales. A
--- second call for one model does nothing.
---@param model accelerate.nn.Module
---@param handler table a TERecipeKwargs
---@return accelerate.nn.Module model
function M.apply_fp8_autowrap(model, handler)
  check_model("apply_fp8_autowrap", model)
  local kind = class.of(handler)
  if not kind or kind.__name ~= "TERecipeKwargs" and kind.__name ~= "FP8RecipeKwargs" then
    fail("apply_fp8_autowrap: expected a TERecipeKwargs, got %s", options.show(handler))
  end
  local recipe, layers, device = recipe_of(model)
  if recipes[model] then return model end
  if not recipe then
    fail("apply_fp8_autowrap: no layer of %s computes in eight bits; convert_model comes first", model.__name)
  end
  fill_in(recipe, layers, device, handler)
  recipes[model] = recipe
  local forward, always = model.forward, handler.use_autocast_during_eval
  local training, evaluation = { recipe = recipe, notes = true }, { recipe = recipe, notes = false }
  model.forward = function(...)
    local former = modes.float8
    if not model.training then modes.float8 = always and evaluation or nil
    else
      if core.is_grad_enabled() then recipe.scales:update(core.dist.world_size()) end
      modes.float8 = core.is_grad_enabled() and training or evaluation
    end
    return scope.run(nil, function() modes.float8 = former end, forward, ...)
  end
  return model
end

--- Returns the scales of a model that apply_fp8_autowrap has wrapped.
---@param model accelerate.nn.Module
---@return accelerate.Float8Scales?
function M.scales_of(model)
  local recipe = recipes[model]
  return recipe and recipe.scales
end

return M
