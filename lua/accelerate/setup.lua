--- Reads the constructor arguments of Accelerator: which there are, which go together, and which engines are not there
--- yet.
local dataclasses = require "accelerate.dataclasses"
local env = require "accelerate.utils.environment"
local options = require "accelerate.utils.options"
local random = require "accelerate.utils.random"
local state = require "accelerate.state"

local fail = options.fail

local M = {}

M.OPTIONS = {
  device_placement = { "boolean", default = true },
  split_batches = { "boolean", optional = true },
  dispatch_batches = { "boolean", optional = true },
  even_batches = { "boolean", optional = true },
  use_seedable_sampler = { "boolean", optional = true },
  mixed_precision = { "string", optional = true },
  gradient_accumulation_steps = { "integer", default = 1, min = 1 },
  cpu = { "boolean", default = false },
  dataloader_config = { "table", optional = true },
  deepspeed_plugin = { "any", optional = true },
  deepspeed_plugins = { "any", optional = true },
  fsdp_plugin = { "any", optional = true },
  torch_tp_plugin = { "any", optional = true },
  megatron_lm_plugin = { "any", optional = true },
  rng_types = { "list", optional = true },
  log_with = { "any", optional = true },
  project_dir = { "string", optional = true },
  project_config = { "table", optional = true },
  gradient_accumulation_plugin = { "table", optional = true },
  step_scheduler_with_optimizer = { "boolean", default = true },
  kwargs_handlers = { "list", optional = true },
  dynamo_backend = { "string", optional = true },
  dynamo_plugin = { "any", optional = true },
  parallelism_config = { "any", optional = true },
}

local ENGINES = {
  { "deepspeed_plugin", "DeepSpeed", "ACCELERATE_USE_DEEPSPEED" },
  { "deepspeed_plugins", "DeepSpeed" },
  { "fsdp_plugin", "fully sharded data parallel", "ACCELERATE_USE_FSDP" },
  { "megatron_lm_plugin", "Megatron-LM parallelism", "ACCELERATE_USE_MEGATRON_LM" },
  { "torch_tp_plugin", "tensor parallelism" },
  { "parallelism_config", "tensor, context and sequence parallelism", "ACCELERATE_USE_PARALLELISM_CONFIG" },
  { "dynamo_plugin", "graph compilation" },
}

local function refuse_engines(o)
  for _, engine in ipairs(ENGINES) do
    local name, what, variable = unpack(engine)
    if o[name] ~= nil then fail("Accelerator: %s: %s is not there yet; leave the option out", name, what) end
    if variable and env.flag(variable, false) then fail("Accelerator: %s is set, but %s is not there yet", variable, what) end
  end
  local backend = o.dynamo_backend or env.text("ACCELERATE_DYNAMO_BACKEND", "no")
  if backend:lower() ~= "no" then
    fail("Accelerator: %s = '%s': graph compilation is not there yet; use 'no'", o.dynamo_backend and "dynamo_backend" or
      "ACCELERATE_DYNAMO_BACKEND", backend)
  end
  if o.log_with ~= nil and not (type(o.log_with) == "table" and next(o.log_with) == nil) then
    fail("Accelerator: log_with: experiment trackers are not there yet; write values from the main process yourself")
  end
end

--- Handlers by the name of what they set; one of each kind.
local function handlers(list)
  local found = {}
  for i, handler in ipairs(list or {}) do
    if not dataclasses.is(handler, dataclasses.AutocastKwargs) then
      fail("Accelerator: kwargs_handlers: entry %d is %s; of the handlers AutocastKwargs is there, others are not there yet", i,
        options.show(handler))
    end
    if found.autocast then fail("Accelerator: kwargs_handlers: entry %d: only one AutocastKwargs can be given", i) end
    found.autocast = handler
  end
  return found
end

--- A configuration object: the one given, which must be of the class, or one from a plain table of its fields.
local function object(name, given, class, class_name)
  if given == nil then return class {} end
  if dataclasses.is(given, class) then return given end
  if getmetatable(given) == nil then return class(given) end
  fail("Accelerator: %s must be a %s, got %s", name, class_name, options.show(given))
end

local MOVED = { "split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler" }

--- The loader configuration.  Arguments that moved into it are honoured in both places; given in both, they must agree.
local function loader_config(o)
  local config = object("dataloader_config", o.dataloader_config, dataclasses.DataLoaderConfiguration, "DataLoaderConfiguration")
  for _, name in ipairs(MOVED) do
    if o[name] ~= nil then
      if config._given[name] and config[name] ~= o[name] then
        fail("Accelerator: %s = %s here, but %s in dataloader_config; give it once", name, tostring(o[name]), tostring(config[name]))
      end
      config[name] = o[name]
    end
  end
  return config
end

local function project_config(o)
  local config = object("project_config", o.project_config, dataclasses.ProjectConfiguration, "ProjectConfiguration")
  if o.project_dir and config.project_dir == nil then config:set_directories(o.project_dir) end
  return config
end

local STEPS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"

local function accumulation_plugin(o)
  local Plugin = dataclasses.GradientAccumulationPlugin
  if o.gradient_accumulation_plugin then
    if o.gradient_accumulation_steps ~= 1 then
      fail("Accelerator: give gradient_accumulation_steps or gradient_accumulation_plugin, not both")
    end
    return object("gradient_accumulation_plugin", o.gradient_accumulation_plugin, Plugin, "GradientAccumulationPlugin")
  end
  return Plugin { num_steps = env.integer(STEPS, 1) or o.gradient_accumulation_steps }
end

--- What an Accelerator is made of, from the arguments as the script gave them.
---@param given table?
---@return table
function M.read(given)
  local o = options.check("Accelerator", given, M.OPTIONS)
  refuse_engines(o)
  local parts = {
    device_placement = o.device_placement,
    step_scheduler_with_optimizer = o.step_scheduler_with_optimizer,
    dataloader_config = loader_config(o),
    project_configuration = project_config(o),
    rng_types = o.rng_types or { "generator" },
    autocast_handler = handlers(o.kwargs_handlers).autocast,
  }
  for _, kind in ipairs(parts.rng_types) do random.check_rng_type(kind) end
  local plugin = accumulation_plugin(o)
  parts.state = state.set_up { mixed_precision = o.mixed_precision, cpu = o.cpu }
  state.GradientState():_set_plugin {
    num_steps = plugin.num_steps or 1, sync_with_dataloader = plugin.sync_with_dataloader, sync_each_batch = plugin.sync_each_batch,
  }
  return parts
end

return M
