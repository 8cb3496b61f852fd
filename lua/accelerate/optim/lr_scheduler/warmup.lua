--- Transformers' schedules: a linear rise from 0 to the initial learning rate, then a shape. Each
--- is a LambdaLR.
---
--- Numbers of steps may be positional or named: `get_linear_schedule_with_warmup(optimizer, 100,
--- 1000)` is `get_linear_schedule_with_warmup(optimizer, { num_warmup_steps = 100,
--- num_training_steps = 1000 })`.

local options = require "accelerate.utils.options"
local lambda = require "accelerate.optim.lr_scheduler.lambda"
local plateau = require "accelerate.optim.lr_scheduler.plateau"

local fail = options.fail
local max, cos, pi = math.max, math.cos, math.pi

local COUNT = { "integer", min = 0 }
local SCHEMAS = {
  warmup = { num_warmup_steps = COUNT },
  training = { num_warmup_steps = COUNT, num_training_steps = COUNT },
}

-- Returns the schema `name` with more options.
local function with(name, more)
  local schema = { last_epoch = { "integer", default = -1, min = -1 } }
  for key, entry in next, name and SCHEMAS[name] or {} do schema[key] = entry end
  for key, entry in next, more or {} do schema[key] = entry end
  return schema
end

local POSITIONS = { "num_warmup_steps", "num_training_steps" }

-- Collects options from positional numbers and a table.
local function gather(where, schema, ...)
  local given = {}
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    if type(value) == "number" and POSITIONS[i] and schema[POSITIONS[i]] then
      given[POSITIONS[i]] = value
    elseif type(value) == "table" and i == select("#", ...) then
      for key, entry in next, value do given[key] = entry end
    elseif value ~= nil then
      fail("%s: argument %d must be %sa table of options, got %s", where, i + 1,
        POSITIONS[i] and schema[POSITIONS[i]] and POSITIONS[i] .. " or " or "", options.show(value))
    end
  end
  return options.check(where, given, schema)
end

-- Returns the share of the steps after the warm-up that are done.
local function progress(o, step)
  return (step - o.num_warmup_steps) / max(1, o.num_training_steps - o.num_warmup_steps)
end

-- Makes a schedule function. `shape(o, optimizer)` returns the factor after the warm-up as a
-- function of the step.
local function schedule(name, schema, shape)
  return function(optimizer, ...)
    local o = gather(name, schema, ...)
    local after, warmup = shape(o, optimizer), o.num_warmup_steps or 0
    return lambda.LambdaLR(optimizer, function(step)
      if step < warmup then return step / max(1, warmup) end
      return after(step)
    end, { last_epoch = o.last_epoch })
  end
end

---@class accelerate.optim.warmup
local M = {}

--- Keeps the initial learning rate throughout.
M.get_constant_schedule = schedule("get_constant_schedule", with(),
  function() return function() return 1 end end)

--- Keeps the initial learning rate after num_warmup_steps.
M.get_constant_schedule_with_warmup = schedule("get_constant_schedule_with_warmup", with "warmup", function()
  return function() return 1 end
end)

--- Falls linearly to 0 at num_training_steps.
M.get_linear_schedule_with_warmup = schedule("get_linear_schedule_with_warmup", with "training", function(o)
  return function(step)
    return max(0, (o.num_training_steps - step) / max(1, o.num_training_steps - o.num_warmup_steps))
  end
end)

--- Follows num_cycles waves of a cosine until num_training_steps; the default, 0.5, is a fall to 0.
M.get_cosine_schedule_with_warmup = schedule("get_cosine_schedule_with_warmup",
  with("training", { num_cycles = { "number", default = 0.5 } }), function(o)
    return function(step) return max(0, 0.5 * (1 + cos(pi * o.num_cycles * 2 * progress(o, step)))) end
  end)

--- Falls to 0 along half a cosine num_cycles times (default 1).
M.get_cosine_with_hard_restarts_schedule_with_warmup = schedule(
  "get_cosine_with_hard_restarts_schedule_with_warmup",
  with("training", { num_cycles = { "number", default = 1 } }), function(o)
    return function(step)
      local done = progress(o, step)
      if done >= 1 then return 0 end
      return max(0, 0.5 * (1 + cos(pi * ((o.num_cycles * done) % 1))))
    end
  end)

--- Falls from the optimizer's learning rate to lr_end (default 1e-7) as (1 - done) ^ power (default
--- 1).
M.get_polynomial_decay_schedule_with_warmup = schedule("get_polynomial_decay_schedule_with_warmup",
  with("training", { lr_end = { "number", default = 1e-7 }, power = { "number", default = 1 } }),
  function(o, optimizer)
  local lr = optimizer.defaults.lr
  if not (lr > o.lr_end) then
    fail("get_polynomial_decay_schedule_with_warmup: lr_end (%g) must be below the optimizer's lr (%g)",
      o.lr_end, lr)
  end
  return function(step)
    if step > o.num_training_steps then return o.lr_end / lr end
    local left = 1 - (step - o.num_warmup_steps) / (o.num_training_steps - o.num_warmup_steps)
    return ((lr - o.lr_end) * left ^ o.power + o.lr_end) / lr
  end
end)

--- Falls as sqrt(timescale / (step - num_warmup_steps + timescale)), from 1 at the end of the
--- warm-up. timescale: default num_warmup_steps, or 10000 without a warm-up.
M.get_inverse_sqrt_schedule = schedule("get_inverse_sqrt_schedule",
  with("warmup", { timescale = { "integer", optional = true, min = 1 } }), function(o)
    local timescale = o.timescale or (o.num_warmup_steps > 0 and o.num_warmup_steps or 10000)
    return function(step) return 1 / math.sqrt((step + timescale - o.num_warmup_steps) / timescale) end
  end)

--- Follows a cosine down to min_lr, or to min_lr_rate of the initial learning rate.
M.get_cosine_with_min_lr_schedule_with_warmup = schedule("get_cosine_with_min_lr_schedule_with_warmup",
  with("training", {
  num_cycles = { "number", default = 0.5 }, min_lr = { "number", optional = true },
  min_lr_rate = { "number", optional = true },
}), function(o, optimizer)
  if (o.min_lr == nil) == (o.min_lr_rate == nil) then
    fail("get_cosine_with_min_lr_schedule_with_warmup: give one of min_lr and min_lr_rate")
  end
  local least = o.min_lr_rate or o.min_lr / optimizer.defaults.lr
  return function(step)
    local factor = 0.5 * (1 + cos(pi * o.num_cycles * 2 * progress(o, step)))
    return max(0, factor * (1 - least) + least)
  end
end)

-- Returns the share of a rise or fall that is left after `done` of it.
local WSD = {
  linear = function(done) return 1 - done end,
  cosine = function(done, cycles) return 0.5 * (1 + cos(pi * cycles * 2 * done)) end,
  ["1-sqrt"] = function(done) return 1 - math.sqrt(done) end,
}
local KINDS = { "linear", "cosine", "1-sqrt" }

--- Warms up, keeps the initial learning rate for num_stable_steps (default: what num_training_steps
--- leaves), and falls to min_lr_ratio of it in num_decay_steps. warmup_type and decay_type:
--- "linear" (default of warmup_type), "cosine" (default of decay_type) or "1-sqrt".
---@param optimizer table
---@param opts table
function M.get_wsd_schedule(optimizer, opts)
  local o = options.check("get_wsd_schedule", opts, with("warmup", {
    num_decay_steps = COUNT, num_training_steps = { "integer", optional = true, min = 0 },
    num_stable_steps = { "integer", optional = true, min = 0 },
    warmup_type = { "string", default = "linear", one_of = KINDS },
    decay_type = { "string", default = "cosine", one_of = KINDS },
    min_lr_ratio = { "number", default = 0 }, num_cycles = { "number", default = 0.5 },
  }))
  if not o.num_stable_steps and not o.num_training_steps then
    fail("get_wsd_schedule: num_stable_steps is missing, or num_training_steps")
  end
  local warmup, decay, least = o.num_warmup_steps, o.num_decay_steps, o.min_lr_ratio
  local stable = o.num_stable_steps or o.num_training_steps - warmup - decay
  local function between(share) return max(0, share * (1 - least) + least) end
  return lambda.LambdaLR(optimizer, function(step)
    if step < warmup then
      local done = step / max(1, warmup)
      if o.warmup_type == "1-sqrt" then return between(1 - math.sqrt(1 - done)) end
      return between(1 - WSD[o.warmup_type](done, 0.5))
    elseif step < warmup + stable then
      return 1
    elseif step < warmup + stable + decay then
      return between(WSD[o.decay_type]((step - warmup - stable) / max(1, decay), o.num_cycles))
    end
    return least
  end, { last_epoch = o.last_epoch })
end

--- ReduceLROnPlateau under Transformers' name.
function M.get_reduce_on_plateau_schedule(optimizer, opts)
  return plateau.ReduceLROnPlateau(optimizer, opts)
end

local BY_NAME = {
  linear = { M.get_linear_schedule_with_warmup, "num_warmup_steps", "num_training_steps" },
  cosine = { M.get_cosine_schedule_with_warmup, "num_warmup_steps", "num_training_steps" },
  cosine_with_restarts = { M.get_cosine_with_hard_restarts_schedule_with_warmup, "num_warmup_steps",
    "num_training_steps" },
  cosine_with_min_lr = { M.get_cosine_with_min_lr_schedule_with_warmup, "num_warmup_steps",
    "num_training_steps" },
  polynomial = { M.get_polynomial_decay_schedule_with_warmup, "num_warmup_steps", "num_training_steps" },
  constant = { M.get_constant_schedule },
  constant_with_warmup = { M.get_constant_schedule_with_warmup, "num_warmup_steps" },
  inverse_sqrt = { M.get_inverse_sqrt_schedule, "num_warmup_steps" },
  reduce_lr_on_plateau = { M.get_reduce_on_plateau_schedule },
  warmup_stable_decay = { M.get_wsd_schedule, "num_warmup_steps", optional = "num_training_steps" },
}
local NAMES = require("accelerate.utils.ordered").sorted_keys(BY_NAME)

local GET = {
  num_warmup_steps = { "integer", optional = true, min = 0 },
  num_training_steps = { "integer", optional = true, min = 0 },
  scheduler_specific_kwargs = { "table", optional = true },
}

--- Makes a schedule by name: `get_scheduler("linear", optimizer, { num_warmup_steps = 100,
--- num_training_steps = 1000 })`, or with positional numbers. scheduler_specific_kwargs: the
--- schedule's other options. Options that a schedule does not have are ignored.
---@param name string linear, cosine, cosine_with_restarts, cosine_with_min_lr, polynomial,
---  constant, constant_with_warmup, inverse_sqrt, reduce_lr_on_plateau or warmup_stable_decay
---@param optimizer table
---@return accelerate.optim.LRScheduler
function M.get_scheduler(name, optimizer, ...)
  options.value("get_scheduler", "name", name, { "string", one_of = NAMES })
  local o, row, opts = gather("get_scheduler", GET, ...), BY_NAME[name], {}
  for key, value in next, o.scheduler_specific_kwargs or {} do opts[key] = value end
  for i = 2, #row do
    if o[row[i]] == nil then fail("get_scheduler: '%s' needs %s", name, row[i]) end
    opts[row[i]] = o[row[i]]
  end
  if row.optional and opts[row.optional] == nil then opts[row.optional] = o[row.optional] end
  return row[1](optimizer, opts)
end

return M
