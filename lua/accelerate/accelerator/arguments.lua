--- Reads the constructor arguments of Accelerator: which there are, which go together, and which
--- engines are not there yet.
local dataclasses = require "accelerate.config.dataclasses"
local env = require "accelerate.utils.environment"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local plan = require "accelerate.accelerator.plan"
local random = require "accelerate.utils.random"
local state = require "accelerate.state"
local system = require "accelerate.machine.system"

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
  dataloader_config = { "any", optional = true },
  deepspeed_plugin = { "any", optional = true },
  deepspeed_plugins = { "any", optional = true },
  fsdp_plugin = { "any", optional = true },
  torch_tp_plugin = { "any", optional = true },
  megatron_lm_plugin = { "any", optional = true },
  rng_types = { "list", optional = true },
  log_with = { "any", optional = true },
  project_dir = { "string", optional = true },
  project_config = { "any", optional = true },
  gradient_accumulation_plugin = { "any", optional = true },
  step_scheduler_with_optimizer = { "boolean", default = true },
  kwargs_handlers = { "list", optional = true },
  dynamo_backend = { "string", optional = true },
  dynamo_plugin = { "any", optional = true },
  parallelism_config = { "any", optional = true },
  check_replicas = { "integer", optional = true, min = 1 },
}

-- Argument, its engine, and the environment variable that requests it.
local ENGINES = {
  { "megatron_lm_plugin", "Megatron-LM parallelism", "ACCELERATE_USE_MEGATRON_LM" },
  { "torch_tp_plugin", "tensor parallelism" },
  { "dynamo_plugin", "graph compilation" },
}

local function refuse_engines(o)
  for _, pair in ipairs { { "deepspeed_plugin", "deepspeed_plugins" },
    { "dynamo_plugin", "dynamo_backend" } } do
    if o[pair[1]] ~= nil and o[pair[2]] ~= nil then
      fail("Accelerator: give %s or %s, not both", pair[1], pair[2])
    end
  end
  for _, engine in ipairs(ENGINES) do
    local name, what, variable = unpack(engine)
    if o[name] ~= nil then fail("Accelerator: %s: %s is not there yet; leave the option out", name, what) end
    if variable and env.flag(variable, false) then
      fail("Accelerator: %s is set, but %s is not there yet", variable, what)
    end
  end
  local backend = o.dynamo_backend or env.text("ACCELERATE_DYNAMO_BACKEND", "no")
  if backend:lower() ~= "no" then
    local from = o.dynamo_backend and "dynamo_backend" or "ACCELERATE_DYNAMO_BACKEND"
    if not rawget(dataclasses.DynamoBackend, backend:upper()) then
      local near = options.nearest(backend, ordered.sorted_keys(dataclasses.DynamoBackend))
      fail("Accelerator: %s = '%s' is not a graph compiler%s; use 'cudagraphs' or 'no'", from, backend, near
        and (", did you mean '" .. near:lower() .. "'?") or "")
    end
    if backend:lower() ~= "cudagraphs" then
      fail("Accelerator: %s = '%s': graph compilation is not there yet; use 'no' or 'cudagraphs'", from,
        backend)
    end
  end
  return backend:lower()
end

--- Handlers by the name of the field that they are kept in; one of each class.
local function handlers(list)
  local found = {}
  for i, handler in ipairs(list or {}) do
    local field
    for _, row in ipairs(dataclasses.HANDLERS) do
      if dataclasses.is(handler, row[1]) then field = row[2] end
    end
    if not field then
      fail("Accelerator: kwargs_handlers: entry %d must be a handler such as AutocastKwargs, got %s%s", i,
        options.show(handler),
        dataclasses.is(handler, dataclasses.GradientAccumulationPlugin)
        and " (give it as gradient_accumulation_plugin)" or "")
    end
    if found[field] then
      fail("Accelerator: kwargs_handlers: entry %d: only one %s can be given", i,
        getmetatable(handler).__name)
    end
    found[field] = handler
  end
  return found
end

--- The trackers that can be used of those wished for; tracking says which there are, and is loaded
--- only when one is wanted.
local function log_with(o, project)
  if o.log_with == nil then return {} end
  return require("accelerate.tracking").filter_trackers(o.log_with, project.logging_dir)
end

--- A configuration object: the one given, which must be of the class, or one from a plain table of
--- its fields.
local function object(name, given, class)
  if given == nil then return class {} end
  if dataclasses.is(given, class) then return given end
  if type(given) == "table" and getmetatable(given) == nil then return class(given) end
  fail("Accelerator: %s must be a %s, got %s", name, getmetatable(class).__name, options.show(given))
end

local MOVED = { "split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler" }

--- The loader configuration.  Arguments that moved into it are honoured in both places; given in
--- both, they must agree.
local function loader_config(o)
  local config = object("dataloader_config", o.dataloader_config, dataclasses.DataLoaderConfiguration)
  for _, name in ipairs(MOVED) do
    if o[name] ~= nil then
      if config._given[name] and config[name] ~= o[name] then
        fail("Accelerator: %s = %s here, but %s in dataloader_config; give it once", name, tostring(o[name]),
          tostring(config[name]))
      end
      config[name] = o[name]
    end
  end
  return config
end

local function project_config(o)
  local config = object("project_config", o.project_config, dataclasses.ProjectConfiguration)
  if o.project_dir and config.project_dir == nil then config:set_directories(o.project_dir) end
  return config
end

local STEPS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"

local function accumulation_plugin(o)
  local Plugin = dataclasses.GradientAccumulationPlugin
  if o.gradient_accumulation_plugin ~= nil then
    if o.gradient_accumulation_steps ~= 1 then
      fail("Accelerator: give gradient_accumulation_steps or gradient_accumulation_plugin, not both")
    end
    return object("gradient_accumulation_plugin", o.gradient_accumulation_plugin, Plugin)
  end
  local given = env.text(STEPS) ~= "auto" and env.integer(STEPS, 1) -- 'auto': DeepSpeed's, for the script's
  return Plugin { num_steps = given or o.gradient_accumulation_steps }
end

--- Returns the parts of an Accelerator for the arguments of its constructor.
---@param given table?
---@return table parts fields of the Accelerator, without the `_` that their names begin with;
---  absent handlers are nil
function M.read(given)
  local o = options.check("Accelerator", given, M.OPTIONS)
  local dynamo_backend = refuse_engines(o)
  local parts = handlers(o.kwargs_handlers)
  parts.dynamo_backend = dynamo_backend
  parts.device_placement = o.device_placement
  parts.check_replicas = o.check_replicas or false
  parts.step_scheduler_with_optimizer = o.step_scheduler_with_optimizer
  parts.dataloader_config = loader_config(o)
  parts.project_configuration = project_config(o)
  parts.rng_types = o.rng_types or { "generator" }
  parts.log_with = log_with(o, parts.project_configuration)
  for _, kind in ipairs(parts.rng_types) do random.check_rng_type(kind) end
  local plugin = accumulation_plugin(o)
  local group = parts.init_handler and parts.init_handler:to_kwargs() or {}
  -- the launcher's --timeout holds
  if parts.init_handler and not parts.init_handler._given.timeout then group.timeout = nil end
  local engines, mixed_precision = plan.engines(o)
  parts.state = state.set_up { mixed_precision = mixed_precision, cpu = o.cpu, group = group,
    engines = engines, distributed_type = engines.deepspeed_plugin and state.DistributedType.DEEPSPEED
      or engines.fsdp_plugin and state.DistributedType.FSDP or nil }
  parts.plan = plan.make(engines, parts.state)
  state.GradientState(plugin)
  system.check_os_kernel()
  return parts
end

return M
