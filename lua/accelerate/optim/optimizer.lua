--- The base of optimizers: parameter groups, their state, and how both are saved.
---
--- A subclass gives `_kind`, its row in host/core/optim.def, which says what numbers a step takes
--- and what state it keeps, and `_schema`, the options of a group with their defaults.
---
--- State lies as the parameters lie. Where parameters are neighbours in one flat buffer
--- (accelerator:prepare makes it so), their state tensors are neighbours at the same distances, and
--- the C side walks a whole run as one.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local parameter = require "accelerate.nn.parameter"
local recorded = require "accelerate.capture.optimizers"
local recording = require "accelerate.capture.recording"

local fail = options.fail

---@class accelerate.optim.Optimizer
---@field param_groups table[] each { params = list, lr = …, … }; the numbers may be changed
---  between steps
---@field state table<accelerate.Tensor, table> by parameter: step and the state tensors
---@field defaults table
local Optimizer = class("Optimizer")

-- Steps that the device may skip leave the counts in `state` too high by as many as it skipped.
-- They are put right when somebody looks: `state` is not there meanwhile, and asking for it settles it.
function Optimizer.__index(self, key)
  local value = getmetatable(self)[key]
  if value == nil and key == "state" then
    self:_settle()
    return rawget(self, "state")
  end
  return value
end

local function state_of(self) return rawget(self, "state") or rawget(self, "_hidden") end

local SLOT_BYTES = 256  -- what every tensor of a flat buffer is padded to
local KINDS = core.optim_kinds()

-- ---- groups -------------------------------------------------------------------------------------

local function check_param(self, p, where)
  if not core.is_tensor(p) then
    local hint = type(p) == "table" and type(p.parameters) == "function" and "; give model:parameters()" or ""
    fail("%s: %s must be a tensor, got %s%s", self.__name, where, options.show(p), hint)
  end
  if not p.is_leaf then
    fail("%s: %s is the result of '%s' and not a leaf; only leaves can be optimized", self.__name, where,
      tostring(p.grad_fn))
  end
  if self._owned[p] then
    fail("%s: %s is already in parameter group %d; a parameter can be optimized only once", self.__name,
      where, self._owned[p])
  end
end

local function list_of_params(self, params, where)
  if core.is_tensor(params) then return { params } end
  if type(params) ~= "table" or getmetatable(params) ~= nil then
    local hint = type(params) == "table" and type(params.parameters) == "function"
      and "; give model:parameters()" or ""
    fail("%s: %s must be a list of tensors, got %s%s", self.__name, where, options.show(params), hint)
  end
  local list = {}
  for i = 1, #params do list[i] = params[i] end
  if #list == 0 then fail("%s: %s is empty: there is nothing to optimize", self.__name, where) end
  return list
end

-- A group's options: the optimizer's, what schedulers keep there, and a name for the user.
local function group_schema(self)
  local number = { "number", optional = true }
  local schema = {
    initial_lr = number, max_lr = number, min_lr = number, max_momentum = number, base_momentum = number,
      name = { "string", optional = true },
  }
  for name, entry in next, self._schema do schema[name] = entry end
  return schema
end

--- Adds a group: { params = list, lr = …, … }. Options that it does not give are the
--- optimizer's defaults. A parameter may be in one group only.
---@param group table
function Optimizer:add_param_group(group)
  local number = #self.param_groups + 1
  if type(group) ~= "table" or getmetatable(group) ~= nil or group.params == nil then
    fail("%s: a parameter group must be a table with params = list, got %s", self.__name, options.show(group))
  end
  local params = list_of_params(self, group.params, ("the params of group %d"):format(number))
  local given, schema = {}, group_schema(self)
  for _, name in ipairs(ordered.sorted_keys(self.defaults)) do given[name] = self.defaults[name] end
  for name, value in next, group do
    if name ~= "params" then given[name] = value end
  end
  local made = self:_checked(given, schema)
  made.params = params
  local added = {}
  for i, p in ipairs(params) do
    local where = ("parameter %d of group %d"):format(i, number)
    check_param(self, p, where)
    if added[p] then fail("%s: %s is the same tensor as parameter %d", self.__name, where, added[p]) end
    added[p] = i
  end
  for i = 1, #params do self._owned[params[i]] = number end
  self.param_groups[number] = made
end

--- Checks options; subclasses add what concerns several of them together.
function Optimizer:_checked(given, schema)
  local o = options.check(self.__name, given, schema)
  if o.betas then
    if #o.betas ~= 2 then fail("%s: betas must be two numbers, got %d", self.__name, #o.betas) end
    for i = 1, 2 do
      options.value(self.__name, ("betas[%d]"):format(i), o.betas[i], { "number", min = 0, below = 1 })
    end
    o.betas = { o.betas[1], o.betas[2] }
  end
  return o
end

---@param params accelerate.Tensor[]|table[] model:parameters(), or a list of groups { params =
---  list, lr = …, … }
---@param opts? table
function Optimizer:init(params, opts)
  if not self._kind then
    fail("Optimizer is the base of optimizers; use one of them, optim.AdamW for instance")
  end
  self._row = self._row or KINDS[self._kind]
  self.defaults = self:_checked(opts or {}, self._schema)
  self.param_groups, self.state = {}, {}
  self._owned = {}               -- parameter -> number of its group
  self._plans = {}               -- group -> how it is stepped
  if core.is_tensor(params) then
    fail("%s: params must be a list of tensors or groups, got one tensor; write { tensor }", self.__name)
  end
  params = list_of_params(self, params, "the list of parameters")
  if type(params[1]) == "table" and not core.is_tensor(params[1]) and getmetatable(params[1]) == nil then
    for i = 1, #params do self:add_param_group(params[i]) end
  else
    self:add_param_group { params = params }
  end
end

-- ---- state --------------------------------------------------------------------------------------

-- The address of the first element of the storage that p lies in: the same for all views of one
-- buffer.
local function storage_address(p)
  return p:_address() - p:storage_offset() * p:element_size()
end

-- Cuts params into runs whose members follow each other in one storage, with no more than padding
-- between them.
local function runs_of(params)
  local items, runs = {}, {}
  for i, p in ipairs(params) do
    if p:numel() > 0 and p:is_contiguous() then
      items[#items + 1] = { p = p, home = storage_address(p), offset = p:storage_offset(), order = i }
    end
  end
  table.sort(items, function(a, b)
    if a.home ~= b.home then return a.home < b.home end
    if a.offset ~= b.offset then return a.offset < b.offset end
    return a.order < b.order
  end)
  local run, tail
  for _, item in ipairs(items) do
    local unit = SLOT_BYTES / item.p:element_size()
    local joins = run and run.home == item.home and run.dtype == item.p.dtype and item.offset >= tail
      and item.offset <= run.first + math.ceil((tail - run.first) / unit) * unit
    if not joins then
      run = { home = item.home, dtype = item.p.dtype, device = item.p.device, first = item.offset,
        items = {} }
      runs[#runs + 1] = run
    end
    run.items[#run.items + 1] = item
    tail = item.offset + item.p:numel()
    run.size = tail - run.first
  end
  return runs
end

-- For each parameter of a group that has neighbours: the run it belongs to and its place in it.
local function layout_of(params)
  local places = {}
  for _, run in ipairs(runs_of(params)) do
    if #run.items > 1 then
      for _, item in ipairs(run.items) do places[item.p] = { run = run, at = item.offset - run.first } end
    end
  end
  return places
end

-- The shape of a state of p, or nil when parameters of that many dims have none.
local function state_shape(p, form)
  local shape = p.shape
  if form == "each" then return shape end
  if form == "number" or (form == "small") ~= (#shape < 2) then return nil end
  if form ~= "small" then shape[form == "rows" and #shape or #shape - 1] = 1 end
  return shape
end

-- A zero tensor for a state of p; shaped as p, it has the place of run's buffer for `name` that
-- corresponds to p's.
local function new_state(places, p, name, form)
  local place = places[p]
  if form ~= "each" or not place then
    return core.zeros(state_shape(p, form), { dtype = p.dtype, device = p.device })
  end
  local run = place.run
  run.flats = run.flats or {}
  local flat = run.flats[name]
  if not flat then
    flat = core.zeros({ run.size }, { dtype = run.dtype, device = run.device })
    run.flats[name] = flat
  end
  return flat:narrow(1, place.at + 1, p:numel()):view(p.shape)
end

-- The states of the optimizer's row that the bits of `needs` ask for.
local function kept_states(self, needs)
  local list = {}
  for k, state in ipairs(self._row.states) do
    if math.floor(needs / 2 ^ (k - 1)) % 2 == 1 then list[#list + 1] = state end
  end
  return list
end

-- How a group is stepped. batches: its parameters by element type, each { params, states, pending
-- }; pending are the places in the batch whose parameter has had no gradient yet, or lacks a state.
local function plan_of(self, group)
  local plan = self._plans[group]
  if plan and plan.count == #group.params then return plan end
  if plan then self:_settle() end
  local state = state_of(self)
  plan = { count = #group.params, batches = {}, hyper = {}, places = nil }
  local by_type = {}
  for _, p in ipairs(group.params) do
    local key = p.dtype .. " " .. p.device
    local batch = by_type[key]
    if not batch then
      batch = { params = {}, states = {}, pending = {} }
      by_type[key] = batch
      plan.batches[#plan.batches + 1] = batch
    end
    local n = #batch.params + 1
    batch.params[n], batch.states[n], batch.pending[n] = p, state[p] or { step = 0 }, n
  end
  self._plans[group] = plan
  return plan
end

-- Makes the state of parameters that have a gradient for the first time.
local function fill_state(self, group, plan, batch)
  local still, kept = {}, kept_states(self, plan.needs)
  for _, n in ipairs(batch.pending) do
    local p = batch.params[n]
    if p.grad ~= nil then
      local state = batch.states[n]
      for _, row in ipairs(kept) do
        local missing = state[row.name] == nil
        if missing and row.form == "number" then
          state[row.name] = 1
        elseif missing and state_shape(p, row.form) then
          if core.is_recording() then
            fail("%s:step: the state of a parameter is made in its first step, which cannot be the " ..
              "recorded one: a replay would make it anew; let "
              .. "the captured step run eagerly before (warmup)", self.__name)
          end
          plan.places = plan.places or layout_of(group.params)
          state[row.name] = core.keep(new_state(plan.places, p, row.name, row.form))
          self:_made(state, row.name, group)
        end
      end
      state_of(self)[p] = state
    else
      still[#still + 1] = n
    end
  end
  batch.pending = still
end

--- Gives the new state tensor state[name] its first values. A subclass' business; they are zeros.
function Optimizer:_made() end

--- Which of the row's states a step with these numbers needs, as bits.
function Optimizer:_needs(hyper) return core.optim_needs(self._kind, hyper) end

--- Fills the numbers of a step.
function Optimizer:_hyper(group, hyper)
  local names = self._row.hyper
  for i = 1, #names do hyper[names[i]] = group[names[i]] end
end

-- ---- steps that the device may skip

-- Counts of a batch may be too high from now on.
local function unsettle(self, batch, present)
  if batch.unsettled then return end
  batch.unsettled, batch.present = true, present
  rawset(self, "_hidden", state_of(self))
  rawset(self, "state", nil)
end

-- What a batch is stepped with: whether to skip it (float32 on the batch's device), and how often
-- it was.  Counts of different parameters are put right together, so the same ones must have been
-- stepped ever since they were right.
local function live_of(self, batch, skip)
  if not skip and not batch.unsettled then return nil end
  local present, device = core.gradients(batch.params)
  if batch.unsettled and batch.present ~= present then
    self:_settle()
    if not skip then return nil end
  end
  if present == 0 then return nil end
  batch.skipped = batch.skipped or core.keep(core.zeros({ 1 }, { dtype = "int64", device = device }))
  batch.live = batch.live or { skipped = batch.skipped }
  batch.live.skip = skip
  if skip then unsettle(self, batch, present) end
  return batch.live
end

-- Takes the skipped steps out of a batch's counts.  Waits for the device.
local function settle(self, batch)
  local skipped, state = batch.skipped:item(), state_of(self)
  batch.unsettled = nil
  if skipped == 0 then return end
  batch.skipped:fill_(0)
  for n, p in ipairs(batch.params) do
    if type(batch.present) == "number" or batch.present:byte(n) == 49 then
      local own = batch.states[n]
      own.step = own.step - skipped
      if own.step <= 0 then  -- it has never been stepped
        state[p] = nil
        batch.pending[#batch.pending + 1] = n
      end
    end
  end
end

--- Puts the counts in `state` right after steps that the device may have skipped; waits for it.
function Optimizer:_settle()
  if rawget(self, "state") then return end
  for _, group in ipairs(self.param_groups) do
    local plan = self._plans[group]
    for _, batch in ipairs(plan and plan.batches or {}) do
      if batch.unsettled then core.no_grad(settle, self, batch) end
    end
  end
  rawset(self, "state", rawget(self, "_hidden"))
  rawset(self, "_hidden", nil)
end

--- Whether `step_unless` can be used: steps are taken by the core alone, with no number that the
--- host would have to reckon on.
---@return boolean
function Optimizer:_skips_on_device()
  if self.step ~= Optimizer.step then return false end
  for _, state in ipairs(self._row.states) do
    if state.form == "number" then return false end
  end
  return true
end

local function step_all(self, skip)
  for _, group in ipairs(self.param_groups) do
    local plan = plan_of(self, group)
    self:_hyper(group, plan.hyper)
    local needs = self:_needs(plan.hyper)
    for _, batch in ipairs(plan.batches) do
      if plan.needs ~= needs then  -- momentum was switched on: all are looked at again
        batch.pending = {}
        for n = 1, #batch.params do batch.pending[n] = n end
      end
    end
    plan.needs = needs
    for _, batch in ipairs(plan.batches) do
      local live = live_of(self, batch, skip)
      if batch.pending[1] then fill_state(self, group, plan, batch) end
      local counted = recording.active and recorded.before(batch)
      local place = core.optim_step(self._kind, batch.params, batch.states, plan.hyper, live)
      if counted and counted[1] then
        local present = batch.present
        recorded.after(self, group, plan, counted, place, live and skip
          and function() unsettle(self, batch, present) end)
      end
    end
  end
end

--- One update. Parameters without a gradient are passed over: no decay, no momentum.
---@param closure? fun(): any computes the loss anew, with gradients on; its result is returned
---@return any
function Optimizer:step(closure)
  local result
  if closure ~= nil then
    options.value(self.__name .. ":step", "closure", closure, { "function" })
    result = core.enable_grad(closure)
  end
  step_all(self)
  return result
end

--- step(), unless `skip` is not 0 when the device comes to it; the host does not wait to see.
--- Where `_skips_on_device` says so.
---@param skip accelerate.Tensor float32, one element, on the gradients' device
function Optimizer:_step_unless(skip) step_all(self, skip) end

--- Lays the state out as the parameters lie now, keeping its values. Call it after parameters were
--- moved into flat buffers, or were converted to another type; the state stays right without it,
--- too, unless the type changed.
function Optimizer:_relayout()
  self:_settle()
  for _, group in ipairs(self.param_groups) do
    local places
    for _, p in ipairs(group.params) do
      local state = self.state[p]
      if state then
        places = places or layout_of(group.params)
        for _, row in ipairs(self._row.states) do
          local name = row.name
          if core.is_tensor(state[name]) then
            local moved = new_state(places, p, name, row.form)
            core.no_grad(function() moved:copy_(state[name]) end)
            state[name] = moved
          end
        end
      end
    end
    self._plans[group] = nil
    if places then plan_of(self, group).places = places end
  end
end

--- Drops the gradients, or with set_to_none = false fills them with zeros.
---@param set_to_none? boolean|{ set_to_none: boolean } default true
function Optimizer:zero_grad(set_to_none)
  for _, group in ipairs(self.param_groups) do parameter.zero_grad(group.params, set_to_none) end
end

-- ---- saving -------------------------------------------------------------------------------------

local function copied(value)
  if type(value) ~= "table" then return value end
  local copy = {}
  for k, v in next, value do copy[k] = copied(v) end
  return copy
end

--- PyTorch's structure: state by parameter number (from 0, through all groups), and param_groups,
--- whose params are these numbers. The tensors are the optimizer's own.
---@return { state: table<integer, table>, param_groups: table[] }
function Optimizer:state_dict()
  local dict, number = { state = {}, param_groups = {} }, 0
  for g, group in ipairs(self.param_groups) do
    local packed = {}
    for name, value in next, group do
      if name ~= "params" then packed[name] = copied(value) end
    end
    packed.params = {}
    for i, p in ipairs(group.params) do
      packed.params[i] = number
      local saved = self.state[p] and self:_saved(self.state[p])
      if saved and next(saved) ~= nil then dict.state[number] = saved end
      number = number + 1
    end
    dict.param_groups[g] = packed
  end
  return dict
end

--- What of a parameter's state goes into a file.
function Optimizer:_saved(state)
  local saved = {}
  for name, value in next, state do saved[name] = value end
  return saved
end

local function as_number(value)
  return core.is_tensor(value) and value:item() or value
end

local function same_shape(x, y)
  if #x ~= #y then return false end
  for i = 1, #x do
    if x[i] ~= y[i] then return false end
  end
  return true
end

local function check_groups(self, dict)
  if type(dict) ~= "table" or type(dict.param_groups) ~= "table" or type(dict.state) ~= "table" then
    fail("%s:load_state_dict: expected a table with state and param_groups, got %s", self.__name,
      options.show(dict))
  end
  if #dict.param_groups ~= #self.param_groups then
    fail("%s:load_state_dict: the state dict has %d parameter group(s), the optimizer has %d", self.__name,
      #dict.param_groups, #self.param_groups)
  end
  for g, saved in ipairs(dict.param_groups) do
    local have, want = type(saved.params) == "table" and #saved.params or 0, #self.param_groups[g].params
    if have ~= want then
      fail("%s:load_state_dict: group %d of the state dict has %d parameter(s), the optimizer's has %d",
        self.__name, g, have, want)
    end
  end
end

-- What is saved under a number; files turn the numbers into text at times.
local function entry_of(dict, number)
  local entry = dict.state[number]
  if entry == nil then entry = dict.state[tostring(number)] end
  return entry
end

local function check_entry(self, entry, p, number)
  local rows = {}
  for _, row in ipairs(self._row.states) do rows[row.name] = row end
  for _, name in ipairs(ordered.sorted_keys(entry)) do
    local value, row = entry[name], rows[name]
    local shape = row and state_shape(p, row.form)
    if name == "step" or (row and row.form == "number") then
      if type(as_number(value)) ~= "number" then
        fail("%s:load_state_dict: %s of parameter %d must be a number, got %s", self.__name, name, number,
          options.show(value))
      end
    elseif not shape then
      fail("%s:load_state_dict: parameter %d has the state '%s', which %s does not keep", self.__name, number,
        tostring(name),
        self.__name)
    elseif not core.is_tensor(value) then
      fail("%s:load_state_dict: %s of parameter %d must be a tensor, got %s", self.__name, name, number,
        options.show(value))
    elseif not same_shape(value.shape, shape) then
      fail("%s:load_state_dict: %s of parameter %d has shape [%s], the parameter has [%s]%s", self.__name,
        name, number,
        table.concat(value.shape, ", "), table.concat(p.shape, ", "),
        row.form == "each" and "" or (", so [%s] was expected"):format(table.concat(shape, ", ")))
    end
  end
end

--- Raises when a saved entry lacks the step or one of the states in `kept` that parameter p has.
function Optimizer:_check_saved(entry, p, number, kept)
  local missing = entry.step == nil and "step"
  for _, row in ipairs(kept) do
    if not missing and entry[row.name] == nil and (row.form == "number" or state_shape(p, row.form)) then
      missing = row.name
    end
  end
  if missing then fail("%s:load_state_dict: parameter %d has no %s", self.__name, number, missing) end
end

--- Takes over groups' options and state from a state_dict, PyTorch's included. State is cast to the
--- parameters' types. Raises, with nothing changed, when groups, counts or shapes differ.
---@param dict { state: table, param_groups: table[] }
function Optimizer:load_state_dict(dict)
  check_groups(self, dict)
  local groups, work = {}, {}
  for g, saved in ipairs(dict.param_groups) do
    local group = self.param_groups[g]
    groups[g] = self:_merged(group, saved, g)
    local hyper = {}
    self:_hyper(groups[g], hyper)
    local kept = kept_states(self, self:_needs(hyper))
    for i, p in ipairs(group.params) do
      local number = as_number(saved.params[i])
      local entry = entry_of(dict, number)
      if entry ~= nil then
        check_entry(self, entry, p, number)
        self:_check_saved(entry, p, number, kept)
        work[#work + 1] = { group = group, p = p, entry = entry }
      end
    end
  end
  local state, layouts = {}, {}
  for _, item in ipairs(work) do
    local places = layouts[item.group] or layout_of(item.group.params)
    layouts[item.group] = places
    local fresh = { step = as_number(item.entry.step) or 0 }
    for _, row in ipairs(self._row.states) do
      local name, value = row.name, item.entry[row.name]
      if row.form == "number" then
        fresh[name] = as_number(value)
      elseif value then
        fresh[name] = new_state(places, item.p, name, row.form)
        core.no_grad(function() fresh[name]:copy_(value) end)
      end
    end
    self:_restored(fresh, item.entry)
    state[item.p] = fresh
  end
  for g, merged in ipairs(groups) do  -- the tables stay the same: schedulers hold them
    local group = self.param_groups[g]
    for name, value in next, merged do group[name] = value end
    self._plans[group] = nil
  end
  self.state = state
  for _, group in ipairs(self.param_groups) do
    if layouts[group] then plan_of(self, group).places = layouts[group] end
  end
end

--- Puts right what a file does not say about a parameter's state. A subclass' business.
function Optimizer:_restored() end

-- Options of PyTorch's optimizers that say how, and not what, is computed.
local IMPLEMENTATION = { foreach = true, capturable = true, differentiable = true, fused = true,
  decoupled_weight_decay = true }

--- A saved group's options over the group's own, checked. Options that only PyTorch has are passed
--- over when they change nothing.
function Optimizer:_merged(group, saved, g)
  local given, schema = {}, group_schema(self)
  for name in next, schema do given[name] = group[name] end
  for _, name in ipairs(ordered.sorted_keys(saved)) do
    local value = saved[name]
    if schema[name] then
      given[name] = copied(core.is_tensor(value) and value:item() or value)
    elseif name ~= "params" and value and not IMPLEMENTATION[name] then
      fail("%s:load_state_dict: group %d was saved with %s = %s, which %s does not have", self.__name, g,
        tostring(name),
        options.show(value), self.__name)
    end
  end
  return self:_checked(given, schema)
end

function Optimizer.__tostring(self)
  local lines = {}
  for g, group in ipairs(self.param_groups) do
    lines[#lines + 1] = ("  group %d: %d parameters"):format(g, #group.params)
    for _, name in ipairs(ordered.sorted_keys(group)) do
      local value = group[name]
      if type(value) == "table" and name ~= "params" then
        local words = {}
        for i = 1, #value do words[i] = tostring(value[i]) end
        value = "{ " .. table.concat(words, ", ") .. " }"
      end
      if name ~= "params" then lines[#lines + 1] = ("    %s = %s"):format(name, tostring(value)) end
    end
  end
  return ("%s(\n%s\n)"):format(self.__name, table.concat(lines, "\n"))
end

return Optimizer
