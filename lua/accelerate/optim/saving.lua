--- What optimizers save, and how it is read back: methods of accelerate.optim.Optimizer.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local cut = require "accelerate.optim.cut"
local options = require "accelerate.utils.options"
local parts = require "accelerate.nn.parts"
local ordered = require "accelerate.utils.ordered"
local python = require "accelerate.utils.python"
local lists = require "accelerate.utils.lists"
local states = require "accelerate.optim.states"
local rates = require "accelerate.optim.rates"

local fail = options.fail

---@class accelerate.optim.Optimizer
local Saving = {}

-- The shape of a state of p, or nil when parameters of that many dims have none.
local function state_shape(p, form)
  local shape = p.shape
  if form == "each" then return shape end
  if form == "number" or (form == "small") ~= (#shape < 2) then return nil end
  if form ~= "small" then shape[form == "rows" and #shape or #shape - 1] = 1 end
  return shape
end

-- The states of the optimizer's row that the bits of `needs` ask for.
local function kept_states(self, needs)
  local list = {}
  for k, state in ipairs(self._row.states) do
    if math.floor(needs / 2 ^ (k - 1)) % 2 == 1 then list[#list + 1] = state end
  end
  return list
end

--- Returns what the optimizer keeps: the number of states of the parameters' size, and the bytes of
--- its other states: of those with an element for each row or column, which are whole on each rank,
--- and of those that parameters with fewer than two dims have.
---@return integer states
---@return number lines
---@return number vectors
function Saving:_kept_bytes()
  local count, bytes, hyper = 0, { rows = 0, cols = 0, small = 0, number = 0 }, {}
  self:_hyper(self.param_groups[1], hyper)
  for _, state in ipairs(kept_states(self, self:_needs(hyper))) do
    if state.form == "each" then count = count + 1 end
    for _, group in ipairs(state.form == "each" and {} or self.param_groups) do
      for _, p in ipairs(group.params) do
        local shape = state_shape(p, state.form)
        if shape then bytes[state.form] = bytes[state.form] + lists.product(shape) * p:element_size() end
      end
    end
  end
  return count, bytes.rows + bytes.cols, bytes.small
end

--- Returns whether a state is made of a parameter's rows or columns, and has no element for each of
--- the parameter's: each rank has the whole of it, also where the parameter is cut.
---@param name string
---@return boolean
function Saving:_is_factor(name)
  for _, row in ipairs(self._row.states) do
    if row.name == name then return row.form == "rows" or row.form == "cols" end
  end
  return false
end

-- Before _kept: brings counts, and the tables that the script has, up to date.
function Saving:_settle()
  states.take(self)
  states.settle(self)
  states.show(self)
end

-- Was a parameter stepped, or its state loaded?
function Saving:_has_state() return states.any(self) end

-- What is kept of the parameter at a place of a group; nil: it was never stepped.
function Saving:_kept(group, index) return states.of(self, group, index) end

--- Returns PyTorch's structure: state by parameter number (from 0, through all groups), and
--- param_groups, whose params are these numbers. The tensors are the optimizer's own.
---@return { state: table<integer, table>, param_groups: table[] }
function Saving:state_dict()
  local dict, number = { state = {}, param_groups = {} }, 0
  self:_settle()
  rates.agree(self)
  for g, group in ipairs(self.param_groups) do
    local packed = {}
    for name, value in next, group do
      if name ~= "params" then packed[name] = lists.copied(value) end
    end
    for name, entry in next, self._schema do
      if entry.optional and packed[name] == nil then python.none(packed, name) end
    end
    packed.params = {}
    for i, p in ipairs(group.params) do
      packed.params[i] = number
      local kept = self:_kept(group, i)
      local saved = kept and self:_saved(kept, group)
      if saved and not rawequal(self:_real(p), p) then saved = parts.joined(saved) end
      if saved and next(saved) ~= nil then dict.state[number] = saved end
      number = number + 1
    end
    dict.param_groups[g] = packed
  end
  return dict
end

--- Returns the part of a parameter's state that goes into a file.
function Saving:_saved(state) -- and its group
  local saved = {}
  for name, value in next, state do saved[name] = value end
  return saved
end

local function as_number(value)
  return core.is_tensor(value) and value:item() or value
end

-- Where a checkpoint holds the state dict of an optimizer: "; its entry .. has both", or "". Keys
-- may be anything, tensors (of optimizer.state) too.
local function nested(dict)
  local found
  for key, value in next, dict do
    if type(key) == "string" and (not found or key < found) and type(value) == "table"
      and not class.of(value) and value.state and value.param_groups then
      found = key
    end
  end
  return found and ("; its entry '%s' has both: pass checkpoint.%s"):format(found, found) or ""
end

local function check_groups(self, dict)
  local lacks = type(dict) == "table" and (type(dict.state) ~= "table" and "state"
    or type(dict.param_groups) ~= "table" and "param_groups")
  if type(dict) ~= "table" or lacks then
    fail("%s:load_state_dict: expected a table with state and param_groups, got %s%s", self.__name,
      options.show(dict), lacks and " without " .. lacks .. nested(dict) or "")
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

--- Raises unless a saved entry fits parameter p, or this rank's elements of it where it is cut.
function Saving:_check_entry(entry, p, number)
  local rows, part = {}, cut.part(p)
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
    elseif not lists.same(value.shape, shape)
      and not (part and (row.form == "each" or row.form == "small")
        and lists.same(value.shape, { part.n })) then
      fail("%s:load_state_dict: %s of parameter %d has shape [%s], the parameter has [%s]%s", self.__name,
        name, number,
        table.concat(value.shape, ", "), table.concat(p.shape, ", "),
        part and (", and this rank %d elements of it"):format(part.n)
        or row.form == "each" and "" or (", so [%s] was expected"):format(table.concat(shape, ", ")))
    end
  end
end

--- Raises when a saved entry lacks the step or one of the states in `kept` that parameter p has.
function Saving:_check_saved(entry, p, number, kept)
  local missing = entry.step == nil and "step"
  for _, row in ipairs(kept) do
    if not missing and entry[row.name] == nil and (row.form == "number" or state_shape(p, row.form)) then
      missing = row.name
    end
  end
  if missing then fail("%s:load_state_dict: parameter %d has no %s", self.__name, number, missing) end
end

--- Loads groups' options and state from a state_dict, PyTorch's included. Casts state to the
--- parameters' types. Of parameters that are cut over ranks it takes states of this rank's
--- elements, as state_dict returns them here, or whole ones. Raises if groups, counts or shapes
--- differ, and then changes nothing.
---@param dict { state: table, param_groups: table[] }
function Saving:load_state_dict(dict)
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
        local of = self:_real(p)
        if not rawequal(of, p) then p, entry = of, parts.split(entry) end
        self:_check_entry(entry, p, number)
        self:_check_saved(entry, p, number, kept)
        work[#work + 1] = { group = group, index = i, p = p, entry = entry }
      end
    end
  end
  for _, item in ipairs(work) do item.kept = self:_read(item.entry) end
  self:_load(work, function()
    for g, merged in ipairs(groups) do  -- the tables stay the same: schedulers hold them
      for name, value in next, merged do self.param_groups[g][name] = value end
    end
  end)
end

-- Whether everything that is kept can be written over: a file has a state for each parameter that
-- has one. It is then read without further memory.
local function overwrites(self, items)
  local begun = 0
  self:_settle()
  for _, group in ipairs(self.param_groups) do
    local object = states.core_of(self, group)
    for index = 1, #group.params do
      if object:get(index) then begun = begun + 1 end
    end
  end
  if begun ~= #items then return false end
  for _, item in ipairs(items) do
    if not states.core_of(self, item.group):overwrites(item.index, item.kept) then return false end
  end
  return true
end

-- Keeps copies of what was read, in place of all that is kept; `commit` is called when nothing can
-- fail any more.
function Saving:_load(items, commit)
  if overwrites(self, items) then
    for _, item in ipairs(items) do states.core_of(self, item.group):load(item.index, item.kept) end
    commit()
    self._view = false
    return
  end
  local cores = {}
  for _, group in ipairs(self.param_groups) do
    cores[group] = states.make(self, group)
  end
  for _, item in ipairs(items) do cores[item.group].object:load(item.index, item.kept) end
  commit()
  self._cores = cores
  self._view = false
end

--- Returns what steps work on: the parts of a complex parameter.
function Saving:_real(p) return parts.of(p) end

--- Returns what is to be kept of a saved entry.
function Saving:_read(entry)
  local fresh = { step = as_number(entry.step) or 0 }
  for _, row in ipairs(self._row.states) do
    local value = entry[row.name]
    if row.form == "number" then value = as_number(value) end
    fresh[row.name] = value
  end
  self:_restored(fresh, entry)
  return fresh
end

--- Puts right what a file does not say about a parameter's state. A subclass' business.
function Saving:_restored() end

-- Options of PyTorch's optimizers that say how, and not what, is computed.
local IMPLEMENTATION = { foreach = true, capturable = true, differentiable = true, fused = true,
  decoupled_weight_decay = true }

-- Options that an optimizer has and others have not.
local FOREIGN = {}
for name in ([[alpha amsgrad beta2_decay betas centered clip_threshold d dampening decay_rate eps etas
  initial_accumulator_value lambd lr_decay max_iter momentum momentum_decay nesterov ns_coefficients ns_steps
  rho step_sizes t0 weight_decay maximize]]):gmatch("%S+") do
  FOREIGN[name] = true
end

--- A saved group's options over the group's own, checked. Options that only PyTorch has are passed
--- over when they change nothing. Entries that are no options are kept, and so are those that the
--- group has of its own under the name of another optimizer's option.
function Saving:_merged(group, saved, g)
  local given, schema, own = {}, self:_group_schema(), {}
  -- Schedulers move these in a running optimizer, also below 0.
  for _, name in ipairs { "lr", "momentum" } do
    if schema[name] then schema[name] = { schema[name][1], default = schema[name].default } end
  end
  for name in next, schema do given[name] = group[name] end
  for _, name in ipairs(ordered.sorted_keys(saved)) do
    local value = saved[name]
    if schema[name] then
      given[name] = lists.copied(core.is_tensor(value) and value:item() or value)
    elseif name ~= "params" and not IMPLEMENTATION[name] and (not FOREIGN[name] or group[name] ~= nil) then
      own[name] = lists.copied(value)
    elseif FOREIGN[name] and value then
      fail("%s:load_state_dict: group %d was saved with %s = %s, which %s does not have; an entry of its " ..
        "own with " ..
        "that name in the optimizer's group keeps it", self.__name, g, tostring(name), options.show(value),
        self.__name)
    end
  end
  local merged = self:_checked(given, schema)
  for name, value in next, own do merged[name] = value end
  return merged
end

return { methods = Saving, implementation = IMPLEMENTATION, foreign = FOREIGN }
