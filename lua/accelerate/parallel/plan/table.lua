--- A sharding plan as a table in text: settings, bytes of a rank, and what a step moves.
---
--- The bytes are those of the plan's formula: each unit's buffers are padded to multiples of 256
--- bytes for each rank that they are cut over; activations come on top.
local class = require "accelerate.utils.class"
local columns = require "accelerate.messages.columns"
local divide = require("accelerate.parallel.plan.units").divide
local size_text = require("accelerate.utils.sizes").text

local M = {}

local SIZES = { float64 = 8, float32 = 4, float16 = 2, bfloat16 = 2, complex64 = 8, complex128 = 16 }
local PAD = 256  -- bytes
local WHATS = { "values", "gradients", "states" }

-- Whether values, gradients or states are cut: over one rank nothing is.
local function is_cut(plan, what) return plan[what] == "cut" and plan.shard > 1 end

-- ---- bytes

--- Returns the elements of each unit by type, of all parameters and of those that are trained, and
--- how many are gathered in eight bits: the model's own unit first.
---@param plan accelerate.ShardingPlan
---@param model accelerate.nn.Module
---@return { values: table<string, integer>, trained: table<string, integer>, eight: integer }[]
function M.units(plan, model)
  local ignored, eight = plan.ignored(model), is_cut(plan, "values") and plan.eight and plan.eight(model)
    or {}
  local units, unit_of = divide(model, plan.units(model))
  local list, counts = {}, {}
  for i, unit in ipairs(units) do
    list[i] = { values = {}, trained = {}, eight = 0 }
    counts[unit] = list[i]
  end
  for _, p in ipairs(model:parameters()) do
    local count = counts[unit_of[p]]
    if not ignored[p] and SIZES[p.dtype] then
      count.values[p.dtype] = (count.values[p.dtype] or 0) + p:numel()
      if eight[p] then count.eight = count.eight + p:numel() end
      if p.requires_grad then count.trained[p.dtype] = (count.trained[p.dtype] or 0) + p:numel() end
    end
  end
  return list
end

-- The bytes of elements by type. `size`: of an element; nil: the type's own.
local function bytes_of(elements, size, parts)
  local sum = 0
  for dtype, n in pairs(elements) do
    local each = size or SIZES[dtype]
    sum = sum + (parts and math.ceil(n * each / (parts * PAD)) * PAD or n * each)
  end
  return sum
end

-- The bytes of a unit's values as a model computes with them: what is gathered in eight bits has
-- one for each element.
local function computed_bytes(plan, unit)
  local left = unit.eight
  local sum = left
  for dtype, n in pairs(unit.values) do
    local eight = SIZES[dtype] <= 4 and math.min(n, left) or 0
    left = left - eight
    sum = sum + (n - eight) * (SIZES[plan.param_dtype] or SIZES[dtype])
  end
  return sum
end

-- Buffers of units while they compute: those of the model's own unit stay until the others have
-- computed; of the others one computes while the next is acquired.
---@param list number[] bytes of each unit, the model's own first
---@return { own: number, unit: number, units: integer, total: number }
local function buffers_of(list)
  local largest = 0
  for i = 2, #list do largest = math.max(largest, list[i]) end
  local alone = #list == 1
  local found = { own = alone and 0 or list[1], unit = alone and list[1] or largest,
    units = math.min(math.max(#list - 1, 1), 2) }
  found.total = found.own + found.units * found.unit
  return found
end

-- Buffers of values that are kept from forward to backward.
local function all_buffers(list)
  local sum = 0
  for _, bytes in ipairs(list) do sum = sum + bytes end
  return { own = 0, unit = sum, units = 1, total = sum, all = #list > 1 }
end

-- The buffers of gradients, and what rounding one unit's takes where they are sent in another type.
local function gradient_buffers(plan, units)
  local own, rounded, reduced = {}, 0, SIZES[plan.reduce_dtype]
  for i, unit in ipairs(units) do
    own[i] = bytes_of(unit.trained)
    local sent = reduced and bytes_of(unit.trained, reduced) or own[i]
    if sent ~= own[i] then rounded = math.max(rounded, sent) end
  end
  local found = buffers_of(own)
  found.rounded, found.total = rounded, found.total + rounded
  return found
end

local NO_BUFFERS = { own = 0, unit = 0, units = 0, total = 0 }

--- Returns a rank's bytes under a plan.
---@param plan accelerate.ShardingPlan
---@param units { values: table, trained: table, eight: integer }[] what `units` returned
---@param states integer states of a parameter's size that the optimizer keeps
---@param opts { lines: number, vectors: number, shared: boolean }? lines, vectors: bytes of other
---  states, see Optimizer:_kept_bytes; shared: the ranks have one copy of the values, and gather
---  none
---@return { values: number, gradients: number, states: number, working: number, whole_values:
---  table, whole_gradients: table, files: number, lines: number, total: number, whole: table }
---  whole_values, whole_gradients: the units' buffers while they compute (`buffers_of`); files:
---  bytes that rest in files; total: bytes in memory
function M.bytes(plan, units, states, opts)
  local sum = { values = 0, gradients = 0, states = 0, working = 0 }
  local whole = { values = 0, gradients = 0, states = 0 }
  local lines, vectors = opts and opts.lines or 0, opts and opts.vectors or 0
  local gathers = is_cut(plan, "values") and not (opts and opts.shared)
  local computed, in_units = SIZES[plan.param_dtype], {}
  local function parts(what) return is_cut(plan, what) and plan.shard or 1 end
  for i, unit in ipairs(units) do
    sum.values = sum.values + bytes_of(unit.values, nil, parts "values")
    sum.gradients = sum.gradients + bytes_of(unit.trained, nil, parts "gradients")
    sum.states = sum.states + states * bytes_of(unit.trained, nil, parts "states")
    whole.values = whole.values + bytes_of(unit.values)
    whole.gradients = whole.gradients + bytes_of(unit.trained)
    whole.states = whole.states + states * bytes_of(unit.trained)
    in_units[i] = computed_bytes(plan, unit)
    if not (gathers or plan.offload.values) and computed and computed < 4 then
      sum.working = sum.working + bytes_of(unit.values, computed)
    end
  end
  sum.lines = lines
  sum.states = sum.states + vectors / parts "states" + lines
  whole.states = whole.states + vectors + lines
  sum.whole_values = gathers and not plan.reshard_after_forward and all_buffers(in_units)
    or (gathers or plan.offload.values) and buffers_of(in_units) or NO_BUFFERS
  sum.whole_gradients = is_cut(plan, "gradients") and gradient_buffers(plan, units) or NO_BUFFERS
  sum.whole, sum.files = whole, 0
  for _, what in ipairs(WHATS) do
    if plan.offload[what] == "disk" then sum.files = sum.files + sum[what] end
  end
  sum.total = sum.values + sum.gradients + sum.states - sum.files + sum.working + sum.whole_values.total
    + sum.whole_gradients.total
  return sum
end

-- What a rank sends in a forward and backward pass, and at an optimizer step. optimizer: nil: one
-- whose step exchanges nothing.
local function traffic(plan, units, optimizer, shared)
  local values, again, gradients = 0, 0, 0
  for i, unit in ipairs(units) do
    values = values + computed_bytes(plan, unit)
    if i > 1 then again = again + computed_bytes(plan, unit) end -- the model's own unit stays
    gradients = gradients + bytes_of(unit.trained, SIZES[plan.reduce_dtype])
  end
  local function share(n) return (n - 1) / n end
  local acquired = is_cut(plan, "values") and not shared
    and values + (plan.reshard_after_forward and again or 0) or 0
  -- values that are whole while their states are cut come back after the step
  local returned = not is_cut(plan, "values") and is_cut(plan, "states") and values or 0
  local reductions = is_cut(plan, "gradients") and 1 or 2
  return {
    pass = acquired * share(plan.shard) + reductions * gradients * share(plan.shard),
    step = returned * share(plan.shard) + 2 * gradients / plan.shard * share(plan.replicate)
      + (optimizer and is_cut(plan, "states") and optimizer:_bytes_sent(plan.shard) or 0),
  }
end

-- ---- text

local function offload_text(offload)
  local parts = {}
  for _, name in ipairs(WHATS) do
    if offload[name] then parts[#parts + 1] = ("%s: %s"):format(name, offload[name]) end
  end
  return #parts > 0 and table.concat(parts, ", ") or offload.note or "none"
end

local ALL_HERE = "nothing is gathered: the ranks share memory"

-- What becomes of weights of layers in eight bits; nil: the recipe has no such gathers.
local function eight_text(plan, units, shared)
  if not plan.eight then return nil end
  if not is_cut(plan, "values") then return "nothing is gathered: values are whole" end
  if shared then return ALL_HERE end
  for _, unit in ipairs(units) do
    if unit.eight > 0 then return "float8_e4m3fn" end
  end
  return "float8_e4m3fn, of layers that prepare converts"
end

local function yes(value) return value and "yes" or "no" end

-- The settings of a plan: name, field of the plan, text of its value; nil: it has no such setting.
local SETTINGS = {
  { "strategy", "name", function(plan) return plan.name end },
  { "dp_replicate", "replicate", function(plan) return ("%d"):format(plan.replicate) end },
  { "dp_shard", "shard", function(plan) return ("%d"):format(plan.shard) end },
  { "reshard after forward", "reshard_after_forward",
    function(plan, _, shared)
      if not is_cut(plan, "values") then return "values are whole" end
      return shared and ALL_HERE or yes(plan.reshard_after_forward)
    end },
  { "units", "units", function(_, units)
    return #units == 1 and "1, the whole model" or ("%d, and the rest of the model"):format(#units - 1)
  end },
  { "parameters compute in", "param_dtype",
    function(plan) return plan.param_dtype or "the type they rest in" end },
  { "weights in eight bits travel in", "eight", eight_text },
  { "gradients are reduced in", "reduce_dtype",
    function(plan) return plan.reduce_dtype or "their own type" end },
  { "inputs are cast of", "casts_inputs", function(plan)
    return plan.casts_inputs == "units" and "the model and its units" or plan.casts_inputs
      and "the model" or "none"
  end },
  { "buffers", "buffer_dtype", function(plan) return plan.buffer_dtype or "their own type" end },
  { "outputs", "output_dtype", function(plan) return plan.output_dtype or "as computed" end },
  { "offload", "offload", function(plan) return offload_text(plan.offload) end },
  { "activation checkpointing", "activation_checkpointing",
    function(plan) return yes(plan.activation_checkpointing) end },
  { "whole gradients in no_sync", "whole_in_no_sync", function(plan) return yes(plan.whole_in_no_sync) end },
  { "state dicts", "state_dict_type", function(plan) return plan.state_dict_type end },
}

local function settings(plan, units, shared)
  local rows = { { "setting", "value", "from" } }
  for _, setting in ipairs(SETTINGS) do
    local name, field, text_of = unpack(setting)
    local text = text_of(plan, units, shared)
    if text then rows[#rows + 1] = { name, text, plan.origin[field] or "default" } end
  end
  return rows
end

local PLACES = { disk = ", in files", cpu = ", in host memory" }

local function where(plan, what) return PLACES[plan.offload[what]] or "" end

-- Rows of the units' buffers.
local function buffer_rows(rows, name, buffers)
  local function add(what, bytes, note)
    if bytes > 0 then rows[#rows + 1] = { what:format(name), "", size_text(bytes), note or "" } end
  end
  add("the model's own unit's %s", buffers.own, "while the others compute")
  if buffers.all then add("all units' %s", buffers.unit, "kept until backward")
  else
    add(buffers.units == 2 and "two units' %s" or "the unit's %s", buffers.units * buffers.unit,
      buffers.units == 2 and "the largest unit's" or nil)
  end
  add("one unit's %s, rounded", buffers.rounded or 0, "as they are sent")
end

local function bytes_rows(plan, sum)
  local rows = { { "bytes of a rank", "whole model", "this plan", "" } }
  for _, name in ipairs(WHATS) do
    rows[#rows + 1] = { name, size_text(sum.whole[name]), size_text(sum[name]),
      (is_cut(plan, name) and ("one of %d parts"):format(plan.shard) or "whole") .. where(plan, name) ..
        (name == "states" and sum.lines > 0 and "; whole for rows and columns" or "") }
  end
  if sum.working > 0 then rows[#rows + 1] = { "working copies", "", size_text(sum.working), "whole" } end
  for _, name in ipairs { "values", "gradients" } do buffer_rows(rows, name, sum["whole_" .. name]) end
  rows[#rows + 1] = { "together", size_text(sum.whole.values + sum.whole.gradients + sum.whole.states),
    size_text(sum.total), "activations come on top" }
  if sum.files > 0 then
    rows[#rows + 1] = { "in files", "", size_text(sum.files), ("in %s"):format(plan.offload.path) }
  end
  return rows
end

--- Returns the plan of a model in text.
---@param plan accelerate.ShardingPlan
---@param model accelerate.nn.Module
---@param opts { optimizer: accelerate.optim.Optimizer?, shared: boolean? }? shared: whether the
---  ranks of a prepared model have its values in memory of all
---@return string
function M.show(plan, model, opts)
  local units, optimizer, shared = M.units(plan, model), opts and opts.optimizer, opts and opts.shared
  optimizer = optimizer and (rawget(optimizer, "optimizer") or optimizer)
  local states, lines, vectors = 2, 0, 0 -- Adam's
  if optimizer then states, lines, vectors = optimizer:_kept_bytes() end
  local moved, out, ranks = traffic(plan, units, optimizer, shared), {}, plan.replicate * plan.shard
  out[1] = ("sharding plan of %s with %s: %s on %d rank%s"):format(class.of(model).__name,
    optimizer and class.of(optimizer).__name or "Adam", plan.name, ranks, ranks == 1 and "" or "s")
  columns.append(out, settings(plan, units, shared), "  ")
  columns.append(out, bytes_rows(plan,
    M.bytes(plan, units, states, { lines = lines, vectors = vectors, shared = shared })), "  ")
  columns.append(out, { { "a rank sends", "in each forward and backward pass", size_text(moved.pass) },
    { "", "at each optimizer step", size_text(moved.step) } }, "  ")
  return table.concat(out, "\n")
end

return M
