--- Fills 'auto' in a DeepSpeed configuration from the run: its loaders, ranks, model, optimizer and
--- schedule. What the run and the configuration say differently is added to a list of problems, one
--- line for each, with the origin of both values.
local lists = require "accelerate.utils.lists"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local M = {}

local function add(problems, text, ...) problems[#problems + 1] = text:format(...) end

-- Whether the configuration leaves a value to the run: 'auto', or nothing but a default.
local function is_open(plugin, key)
  local value = plugin:get_value(key)
  return value == nil or value == "auto" or plugin._origins[key] == "default"
end

local function set(plugin, key, value, origin)
  local node, last = plugin.hf_ds_config:find_config_node(key)
  node[last], plugin._origins[key] = value, origin
end

-- A value with its origin, as messages show it: "train_batch_size = 64 (ds.json:3)".
local function shown(plugin, key)
  return ("%s = %s (%s)"):format(key, tostring(plugin:get_value(key)), plugin:_origin(key))
end

-- ---- batches

local TRAIN, MICRO, STEPS =
  "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"

-- The batch size of a rank, by the loaders.
local function loaders_batch(plugin, run, problems)
  local sizes = {}
  for i, size in ipairs(run.batch_sizes) do
    if not size then
      add(problems, "%s is 'auto', and loader %d has no batch_size; write a number there", MICRO, i)
      return nil
    end
    sizes[i] = run.split_batches and math.floor(size / run.ranks) or size
  end
  if #sizes == 0 then return nil end
  return (plugin.is_train_batch_min and math.min or math.max)(unpack(sizes))
end

local function fill_micro(plugin, run, problems)
  local before = #problems
  local size = loaders_batch(plugin, run, problems)
  if plugin:is_auto(MICRO) or plugin:get_value(MICRO) == nil and size and plugin:is_auto(TRAIN) then
    if size then set(plugin, MICRO, size, "the loader's batch_size")
    elseif before == #problems and plugin:is_auto(MICRO) and not tonumber(plugin:get_value(TRAIN)) then
      add(problems, "%s is 'auto': give prepare a loader with a batch_size together with the model, or " ..
        "write a " ..
        "number there (accelerator.deepspeed_plugin.deepspeed_config.%s = n)", MICRO, MICRO)
    end
  elseif size and plugin:get_value(MICRO) and not lists.set(run.batch_sizes)[plugin:get_value(MICRO)] then
    notice.main_once("%s, and the loaders have batch_size %d: the loaders' holds", shown(plugin, MICRO), size)
  end
end

-- A problem, where the three numbers are there and do not fit.
local function compare(plugin, ranks, problems)
  local function number(key)
    local value = plugin:get_value(key)
    return type(value) == "number" and value or nil
  end
  local train, micro, steps = number(TRAIN), number(MICRO), number(STEPS)
  if not (train and micro and steps) or train == micro * steps * ranks then return end
  add(problems, "%s, and %s x %s x %d ranks is %d", shown(plugin, TRAIN), shown(plugin, MICRO),
    shown(plugin, STEPS), ranks, micro * steps * ranks)
end

--- Adds to a list of problems that the batch sizes contradict each other, where the configuration
--- has all three numbers. A list without a problem stays so: a script may still change them.
---@param plugin accelerate.DeepSpeedPlugin
---@param ranks integer
---@param problems string[]
function M.add_batches(plugin, ranks, problems)
  if #problems > 0 and plugin._origins[STEPS] ~= "default" then compare(plugin, ranks, problems) end
end

-- The third of the three numbers from the other two; or a problem, where they are all there and do
-- not fit.
local function fit(plugin, run, problems)
  local train, micro, steps = tonumber(plugin:get_value(TRAIN)), tonumber(plugin:get_value(MICRO)),
    tonumber(plugin:get_value(STEPS))
  if train and micro and (not steps or plugin._origins[STEPS] == "default") then
    if train % (micro * run.ranks) ~= 0 then
      add(problems, "%s is no multiple of %s x %d ranks", shown(plugin, TRAIN), shown(plugin, MICRO),
        run.ranks)
    else
      set(plugin, STEPS, train / (micro * run.ranks), "train_batch_size")
    end
  elseif train and steps and not micro then
    if train % (steps * run.ranks) ~= 0 then
      add(problems, "%s is no multiple of %s x %d ranks", shown(plugin, TRAIN), shown(plugin, STEPS),
        run.ranks)
    else
      set(plugin, MICRO, train / (steps * run.ranks), "train_batch_size")
    end
  elseif micro and steps and not train then
    set(plugin, TRAIN, micro * steps * run.ranks, "the run")
  else
    compare(plugin, run.ranks, problems)
  end
end

-- The steps of accumulation: the configuration's number, else the Accelerator's.
local function fill_steps(plugin, run)
  local inferred = plugin._origins[STEPS] == "default" and tonumber(plugin:get_value(TRAIN))
    and tonumber(plugin:get_value(MICRO))
  if inferred then return end
  if is_open(plugin, STEPS) then return set(plugin, STEPS, run.steps, "the Accelerator") end
  if plugin:get_value(STEPS) ~= run.steps then
    notice.main_once("%s, and the Accelerator has %d: the configuration's holds", shown(plugin, STEPS),
      run.steps)
  end
end

-- ---- the rest

-- Sizes of buffers, from the width of the model.
local WIDTHS = {
  ["zero_optimization.reduce_bucket_size"] = function(width) return width * width end,
  ["zero_optimization.stage3_prefetch_bucket_size"] = function(width)
    return math.floor(0.9 * width * width)
  end,
  ["zero_optimization.stage3_param_persistence_threshold"] = function(width) return 10 * width end,
}

local function fill_widths(plugin, run, problems)
  local open = {}
  for _, key in ipairs(ordered.sorted_keys(WIDTHS)) do
    if plugin:is_auto(key) then open[#open + 1] = key end
  end
  if #open == 0 then return end
  if not run.hidden_size then
    return add(problems, "%s %s 'auto', which is filled from model.config.hidden_size, and the model " ..
      "has none; " ..
      "write numbers there", table.concat(open, ", "), #open == 1 and "is" or "are")
  end
  for _, key in ipairs(open) do set(plugin, key, WIDTHS[key](run.hidden_size), "model.config.hidden_size") end
end

-- Keys below `prefix` that are still 'auto'; those of the optimizer and the schedule are filled
-- when these are prepared.
local function each_auto(plugin, map, prefix, visit)
  for _, key in ipairs(ordered.sorted_keys(map)) do
    local path = prefix .. tostring(key)
    if type(map[key]) == "table" then each_auto(plugin, map[key], path .. ".", visit)
    elseif map[key] == "auto" then visit(path) end
  end
end

--- Fills what a model's training needs.
---@param plugin accelerate.DeepSpeedPlugin
---@param run { ranks: integer, steps: integer, batch_sizes: (integer|false)[], split_batches:
---  boolean, hidden_size: integer? } steps: the Accelerator's windows; batch_sizes: of all loaders,
---  false where one has none
---@param problems string[]
function M.training(plugin, run, problems)
  fill_steps(plugin, run)
  fill_micro(plugin, run, problems)
  fit(plugin, run, problems)
  fill_widths(plugin, run, problems)
  if plugin:is_auto "gradient_clipping" then set(plugin, "gradient_clipping", 1, "default") end
  local config = plugin.deepspeed_config
  for _, key in ipairs(ordered.sorted_keys(config)) do
    if key ~= "optimizer" and key ~= "scheduler" and type(config[key]) == "table" then
      each_auto(plugin, config[key], key .. ".", function(path)
        if not WIDTHS[path] then
          add(problems, "%s: %s is 'auto', and nothing in this run says what it should be",
            plugin.hf_ds_config:_where(path), path)
        end
      end)
    end
  end
end

--- Fills the parameters of the block `optimizer` or `scheduler`.
---@param plugin accelerate.DeepSpeedPlugin
---@param block "optimizer"|"scheduler"
---@param values table<string, any> by name
---@param origin string whose values they are, for messages
---@param problems string[]
function M.block(plugin, block, values, origin, problems)
  local params = plugin:get_value(block .. ".params")
  if type(params) ~= "table" then return end
  each_auto(plugin, params, block .. ".params.", function(path)
    local value = values[path:match "[^.]*$"]
    if value ~= nil then return set(plugin, path, value, origin) end
    add(problems, "%s: %s is 'auto', and %s does not say what it should be", plugin.hf_ds_config:_where(path),
      path, origin)
  end)
end

--- The values that a DummyScheduler stands for.
---@param dummy table
---@param rate number? the optimizer's learning rate
---@param run { ranks: integer, split_batches: boolean }
---@return table<string, any>
function M.schedule_values(dummy, rate, run)
  local total, values = dummy.total_num_steps, lists.copied(dummy.kwargs)
  if total and not run.split_batches then total = math.ceil(total / run.ranks) end
  values.warmup_min_lr, values.warmup_max_lr = 0, rate
  values.warmup_num_steps, values.total_num_steps = math.max(1, dummy.warmup_num_steps), total
  return values
end

--- Raises the problems, if there are any, in one message.
---@param plugin accelerate.DeepSpeedPlugin
---@param where string
---@param problems string[]
function M.raise(plugin, where, problems)
  if #problems == 0 then return end
  options.fail("%s", require("accelerate.config.deepspeed.check").message(
    ("%s: the DeepSpeed configuration (%s) does not fit this run"):format(where, plugin.hf_ds_config._name),
    problems))
end

return M
