--- mixed_precision = "fp8" of an Accelerator: which recipe its models get, and which settings are
--- not there.
local env = require "accelerate.utils.environment"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local state = require "accelerate.state"

local fail = options.fail

local M = {}

local BACKENDS = { ao_recipe_handler = "AO", te_recipe_handler = "TE", msamp_recipe_handler = "MSAMP" }

local function backend_asked()
  return options.value("Accelerator", "ACCELERATE_FP8_BACKEND",
    env.text("ACCELERATE_FP8_BACKEND", "NO"):upper(), { "string", one_of = { "NO", "TE", "MSAMP", "AO" } })
end

-- The recipe that was given, and its backend; nil: none was.
local function given_recipe(self)
  local handler, backend
  for _, field in ipairs { "ao_recipe_handler", "te_recipe_handler", "msamp_recipe_handler",
    "fp8_recipe_handler" } do
    local found = rawget(self, "_" .. field)
    if found then
      if handler then fail("Accelerator: kwargs_handlers: only one recipe of FP8 can be given") end
      handler, backend = found, BACKENDS[field] or found.backend
    end
  end
  return handler, backend
end

-- Accelerate takes torchao where nobody says which.
local function recipe_for(backend)
  local handlers = require "accelerate.config.dataclasses"
  local class = backend == "TE" and handlers.TERecipeKwargs or backend == "MSAMP"
    and handlers.MSAMPRecipeKwargs
    or handlers.AORecipeKwargs
  return class(), backend == "NO" and "AO" or backend
end

-- Weights of layers in eight bits travel so where a plan cuts values and the recipe agrees.
local function settle_gathers(handler, plan)
  if not plan or not handler.enable_fsdp_float8_all_gather then return end
  plan.eight = function(model)
    return require("accelerate.precision.float8_models").weights_in_eight(model)
  end
  plan.origin.eight = "AORecipeKwargs.enable_fsdp_float8_all_gather"
end

--- Settles the recipe by which an Accelerator's models compute in eight bits. Raises for a recipe
--- without mixed_precision = "fp8", and for one that is not there.
function M.settle(self)
  local handler, backend = given_recipe(self)
  local engine = self._state.distributed_type
  if not state.asked_fp8() then
    if handler and engine ~= "FSDP" and engine ~= "DEEPSPEED" then
      fail("Accelerator: kwargs_handlers: a recipe of FP8 needs mixed_precision = 'fp8', got '%s'",
        self._state.mixed_precision)
    end
    return
  end
  if not handler then handler, backend = recipe_for(backend_asked()) end
  if backend == "MSAMP" then
    fail("Accelerator: the recipe of MS-AMP (opt_level = '%s') is not there: gradients are reduced, and " ..
      "optimizer states kept, in 32 or 16 bits; use AORecipeKwargs or TERecipeKwargs", handler.opt_level)
  end
  if backend == "AO" then settle_gathers(handler, self._plan) end
  self._float8_handler, self._float8_backend = handler, backend
end

--- Returns the backend whose recipe an Accelerator has, or that ACCELERATE_FP8_BACKEND names.
---@return string
function M.backend(self) return self._float8_backend or backend_asked() end

local function applies(self) return self._float8_handler ~= nil and self._state.mixed_precision == "fp8" end

--- Converts a model's layers, before its forward is wrapped.
---@param model accelerate.nn.Module
function M.convert(self, model)
  if not applies(self) then return end
  local models = require "accelerate.precision.float8_models"
  local handler = self._float8_handler
  if self._float8_backend == "AO" then
    models.convert_model_to_fp8_ao(model, { config = { pad_inner_dim = handler.pad_inner_dim },
      module_filter_func = handler.module_filter_func })
  elseif not models.has_transformer_engine_layers(model) then
    models.convert_model(model)
  end
  if not (models.has_ao_layers(model) or models.has_transformer_engine_layers(model)) then
    notice.main_once("mixed_precision = 'fp8': no linear layer of %s is one that computes in eight bits " ..
      "(sizes that are multiples of 16%s); all of it computes in bfloat16", model.__name,
      self._float8_backend == "AO" and "; not the first and the last" or "")
  end
end

--- Wraps a model's forward, after it was wrapped for automatic casting.
---@param model accelerate.nn.Module
function M.wrap(self, model)
  if not applies(self) or self._float8_backend ~= "TE" then return end
  if self._dynamo_backend == "cudagraphs" then
    fail("prepare_model: TERecipeKwargs: scales that follow from earlier steps are not there in " ..
      "recorded steps " ..
      "(dynamo_backend = 'cudagraphs'); use AORecipeKwargs")
  end
  local models = require "accelerate.precision.float8_models"
  if models.has_transformer_engine_layers(model) then
    models.apply_fp8_autowrap(model, self._float8_handler)
  end
end

--- Returns the scales that models have between steps, by their place in the list.
---@param list accelerate.nn.Module[]
---@return table<integer, accelerate.Float8Scales>
function M.scales(list)
  local found, models = {}, package.loaded["accelerate.precision.float8_models"]
  for i, model in ipairs(models and list or {}) do found[i] = models.scales_of(model) end
  return found
end

return M
