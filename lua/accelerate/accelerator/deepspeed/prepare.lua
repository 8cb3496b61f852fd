--- What `prepare` makes of a DeepSpeed configuration: 'auto' is filled from the objects, and
--- DummyOptim and DummyScheduler become what the configuration describes.
local check = require "accelerate.config.deepspeed.check"
local dummies = require "accelerate.config.deepspeed.dummies"
local fill = require "accelerate.config.deepspeed.fill"
local kinds = require "accelerate.accelerator.types"
local makers = require "accelerate.accelerator.deepspeed.objects"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local optimizers = require "accelerate.accelerator.optimizer"
local plans = require "accelerate.config.deepspeed.plan"
local state = require "accelerate.state"

local fail = options.fail
local gradient_state = state.GradientState()

local M = {}

-- The objects that the configuration concerns.
local function sorted(objects, n)
  local found = { loaders = {}, models = {} }
  for i = 1, n do
    local object = objects[i]
    if kinds.is_model(object) then found.models[#found.models + 1] = object
    elseif kinds.is_optimizer(object) or dummies.is_optim(object) then found.optimizer = object
    elseif kinds.is_scheduler(object) or dummies.is_scheduler(object) then found.scheduler = object
    elseif require("accelerate.data_loader").is_loader(object) then
      found.loaders[#found.loaders + 1] = object end
  end
  return found
end

-- What stands in the script and in the configuration must go together.
local function check_objects(plugin, found, problems)
  local config = plugin.deepspeed_config
  local function add(text) problems[#problems + 1] = text end
  for block, what in pairs { optimizer = { "DummyOptim", dummies.is_optim }, scheduler = { "DummyScheduler",
    dummies.is_scheduler } } do
    local object, dummy, is_dummy = found[block], what[1], what[2]
    if object ~= nil and config[block] ~= nil and not is_dummy(object) then
      add(("%s: the configuration has the block %s, and the script gives prepare one of its own; take one " ..
        "out, or give prepare a utils.%s"):format(plugin.hf_ds_config:_where(block), block, dummy))
    end
  end
  if dummies.is_optim(found.optimizer) and config.optimizer == nil then
    add "a DummyOptim stands for the configuration's block optimizer, which is missing"
  end
  if dummies.is_scheduler(found.scheduler) and config.scheduler == nil
    and found.scheduler.lr_scheduler_callable == nil then
    add("a DummyScheduler stands for the configuration's block scheduler, which is missing; add it, or " ..
      "give lr_scheduler_callable")
  end
  if dummies.is_optim(found.optimizer) and found.scheduler ~= nil
    and not dummies.is_scheduler(found.scheduler) then
    add "with a DummyOptim the schedule must be a DummyScheduler"
  end
end

local function batch_sizes(self, loaders)
  local sizes = {}
  for _, list in ipairs { self._dataloaders, loaders } do
    for _, loader in ipairs(list) do
      sizes[#sizes + 1] = loader.batch_size or loader.batch_sampler and loader.batch_sampler.batch_size
        or false
    end
  end
  return sizes
end

-- What configurations of models call their width.
local WIDTHS = { "hidden_size", "n_embd", "d_model", "dim" }

local function hidden_size(model)
  local config = rawget(model, "config") or model._values and model._values.config
  if type(config) ~= "table" then return nil end
  for _, name in ipairs(WIDTHS) do
    if type(config[name]) == "number" then return config[name] end
  end
  return type(config.hidden_sizes) == "table" and math.max(unpack(config.hidden_sizes)) or nil
end

-- Says where the configuration has another value than the DummyOptim of the script.
local function compare(plugin, dummy)
  for _, name in ipairs { "lr", "weight_decay" } do
    local key = "optimizer.params." .. name
    local there = plugin:get_value(key)
    if dummy._given[name] and type(there) == "number" and there ~= dummy[name] then
      notice.main_once("%s = %s (%s), and the DummyOptim has %s: the configuration's holds", key,
        tostring(there),
        plugin:_origin(key), tostring(dummy[name]))
    end
  end
end

local function make_optimizer(plugin, dummy, problems)
  local values = require("accelerate.utils.lists").copied(dummy.kwargs)
  values.lr, values.weight_decay = dummy.lr, dummy.weight_decay
  compare(plugin, dummy)
  local before = #problems
  fill.block(plugin, "optimizer", values, "the DummyOptim", problems)
  if #problems > before then return nil end
  local optimizer, why = makers.optimizer(plugin.deepspeed_config.optimizer, dummy.params)
  if not optimizer then
    problems[#problems + 1] = ("%s: optimizer: %s"):format(plugin.hf_ds_config:_where "optimizer", why)
  end
  return optimizer
end

-- The learning rate that a schedule rises to: the optimizer's, or the DummyOptim's.
local function rate_of(object)
  local optimizer = optimizers.unwrap(object)
  if dummies.is_optim(optimizer) then return optimizer.lr end
  return (optimizer.defaults or {}).lr
end

local function make_schedule(self, plugin, dummy, optimizer, run, problems)
  local config = plugin.deepspeed_config
  local before = #problems
  if dummy.lr_scheduler_callable then
    local schedule = dummy.lr_scheduler_callable(optimizer)
    if not kinds.is_scheduler(schedule) then
      fail("prepare: lr_scheduler_callable must return a scheduler, got %s", options.show(schedule))
    end
    return schedule
  end
  local values = fill.schedule_values(dummy, rate_of(dummy.optimizer), run)
  fill.block(plugin, "scheduler", values, "the DummyScheduler", problems)
  if #problems > before then return nil end
  local schedule, why = makers.schedule(config.scheduler, optimizer)
  if not schedule then
    problems[#problems + 1] = ("%s: scheduler: %s"):format(plugin.hf_ds_config:_where "scheduler", why)
    return nil
  end
  self._engine_schedules[schedule] = true
  return schedule
end

-- The optimizer that a DummyScheduler's schedule moves.
local function followed(self, found, made)
  if made then return made end
  local own = found.scheduler.optimizer
  if kinds.is_optimizer(own) then return optimizers.unwrap(own) end
  if found.optimizer and kinds.is_optimizer(found.optimizer) then
    return optimizers.unwrap(found.optimizer)
  end
  local last = self._optimizers[#self._optimizers]
  return last and last.optimizer
end

local function run_of(self, found)
  return { ranks = self._ranks, steps = gradient_state.num_steps,
    batch_sizes = batch_sizes(self, found.loaders),
    split_batches = self._dataloader_config.split_batches,
    hidden_size = found.models[1] and hidden_size(found.models[1]) }
end

local function put_in_place(objects, n, old, new)
  for i = 1, n do
    if objects[i] == old then objects[i] = new end
  end
end

-- Makes the real optimizer and schedule in the places of those that stand for them.
local function make_objects(self, plugin, objects, n, found, run, problems)
  local optimizer
  if dummies.is_optim(found.optimizer) then
    optimizer = make_optimizer(plugin, found.optimizer, problems)
    if optimizer then put_in_place(objects, n, found.optimizer, optimizer) end
  end
  if not dummies.is_scheduler(found.scheduler) or #problems > 0 then return end
  local of = followed(self, found, optimizer)
  if not of then fail("prepare: a DummyScheduler needs the optimizer in the same call, or an earlier one") end
  local schedule = make_schedule(self, plugin, found.scheduler, of, run, problems)
  if schedule then
    self._engine_schedules[schedule] = true
    put_in_place(objects, n, found.scheduler, schedule)
  end
end

--- Fills the configuration from the objects, and makes those that the configuration describes in
--- the places of DummyOptim and DummyScheduler. All that does not fit is one error.
---@param self accelerate.Accelerator
---@param objects any[] changed in place
---@param n integer
function M.prepare(self, objects, n)
  local plugin, found = self._state.deepspeed_plugin, sorted(objects, n)
  local problems = check.walk(plugin.hf_ds_config) -- the script may have changed it
  fill.raise(plugin, "prepare", problems)
  self._plan = plans.from_deepspeed(plugin, { num_processes = self._ranks, device = self.device })
  if #found.models > 1 then
    fail("prepare: %d models, and a DeepSpeed configuration is for one; make an Accelerator for each",
      #found.models)
  end
  local run = run_of(self, found)
  check_objects(plugin, found, problems)
  if #found.models > 0 then
    fill.training(plugin, run, problems)
  end
  if #problems == 0 then make_objects(self, plugin, objects, n, found, run, problems) end
  fill.raise(plugin, "prepare", problems)
  local steps = plugin:get_value "gradient_accumulation_steps"
  if type(steps) == "number" then gradient_state:_set_num_steps(steps) end
end

return M
