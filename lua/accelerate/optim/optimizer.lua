--- The base of optimizers: parameter groups, and their steps.
---
--- A subclass gives `_kind`, its row in host/core/optim.def, which says what numbers a step takes
--- and what state it keeps, and `_schema`, the options of a group with their defaults.
---
--- The core keeps the parameters' states and counts: each parameter group has an object there
--- (core.optim_group), which knows which parameters are neighbours in a flat buffer and steps these
--- as one.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local first_step = require "accelerate.optim.first_step"
local gradients = require "accelerate.sparse.gradients"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local parameter = require "accelerate.nn.parameter"
local parts = require "accelerate.nn.parts"
local recorded = require "accelerate.capture.optimizers"
local recording = require "accelerate.capture.recording"
local rates = require "accelerate.optim.rates"
local saving = require "accelerate.optim.saving"
local states = require "accelerate.optim.states"
local step_hooks = require "accelerate.optim.step_hooks"

local notice = require "accelerate.messages.notice"

local fail = options.fail

---@class accelerate.optim.Optimizer
---@field param_groups table[] each { params = list, lr = …, … }; the numbers may be changed
---  between steps
---@field state table<accelerate.Tensor, table> by parameter: step and the state tensors
---@field defaults table
local Optimizer = class("Optimizer")

-- `state` is made when it is read.
function Optimizer.__index(self, key)
  if key == "state" then return states.view(self) end
  return getmetatable(self)[key]
end

function Optimizer.__newindex(self, key, value)
  if key == "state" then states.replace(self, value) else rawset(self, key, value) end
end

local KINDS = core.optim_kinds()

-- ---- groups

local function check_param(self, p, where)
  if not core.is_tensor(p) then
    local hint = type(p) == "table" and type(p.parameters) == "function" and "; give model:parameters()" or ""
    fail("%s: %s must be a tensor, got %s%s", self.__name, where, options.show(p), hint)
  end
  if not p.is_leaf then
    fail("%s: %s is the result of '%s' and not a leaf; only leaves can be optimized", self.__name, where,
      tostring(p.grad_fn))
  end
  if self._no_complex and p:is_complex() then
    fail("%s: %s is %s; complex parameters are not supported", self.__name, where, p.dtype)
  end
  if self._owned[p] then
    fail("%s: %s is already in parameter group %d; a parameter can be optimized only once", self.__name,
      where, self._owned[p])
  end
end

local function is_pair(value)
  return type(value) == "table" and getmetatable(value) == nil and type(value[1]) == "string"
    and core.is_tensor(value[2])
end

-- Takes the names off a list of { name, parameter }. Returns the parameters and the names.
local function unnamed(self, list, where)
  local params, names = {}, {}
  for i, pair in ipairs(list) do
    if not is_pair(pair) then
      fail("%s: entry %d of %s must be { name, parameter } as the first one is, got %s", self.__name, i,
        where,
        options.show(pair))
    end
    names[i], params[i] = pair[1], pair[2]
  end
  return params, names
end

-- Returns a list, and the parameters' names where they were given with names.
local function list_of_params(self, params, where)
  if core.is_tensor(params) then return { params } end
  local walked, list = lists.walked(params), {}
  local model = type(params) == "table" and type(params.parameters) == "function"
  local by_name = walked and #walked == 0 and next(walked) ~= nil
  if not walked or by_name or model and not core.is_tensor(walked[1]) and #walked > 0 then
    fail("%s: %s must be a list of tensors, got %s%s", self.__name, where, options.show(params),
      model and "; give model:parameters()" or "")
  end
  local fault = walked == params and lists.fault(walked)
  if fault then
    fail("%s: %s must be a list of tensors, but it has %s%s", self.__name, where, fault,
      fault:find("the key", 1, true) and "; options are a table of their own behind it" or "")
  end
  for i = 1, #walked do list[i] = walked[i] end
  if is_pair(list[1]) then return unnamed(self, list, where) end
  return list
end

-- A group's options: the optimizer's, what schedulers keep there, and a name for the user.
function Optimizer:_group_schema()
  local number = { "number", optional = true }
  local schema = {
    initial_lr = number, max_lr = number, min_lr = number, max_momentum = number, base_momentum = number,
    swa_lr = number,
    name = { "string", optional = true },
  }
  for name, entry in next, self._schema do schema[name] = entry end
  return schema
end

-- The groups that optimizers have: their entries were checked.
local groups = setmetatable({}, { __mode = "k" })

-- Entries of a group that are the script's own: they are kept, and saved with the group. Raises for
-- what looks like an option: a misspelt one, or one of another optimizer. A group of another
-- optimizer keeps all: one that stands on this one (SAM) hands over its own, options with them.
function Optimizer:_own_entries(group, schema)
  local own, known = {}, ordered.sorted_keys(schema)
  for name, value in next, group do
    if name ~= "params" and not schema[name] and not saving.implementation[name] then
      local strange = type(name) ~= "string" or options.misspelt(name, known) or saving.foreign[name]
      if strange and not groups[group] then
        options.check(self.__name, { [name] = value }, schema) -- which raises
      end
      own[name] = value
    end
  end
  return own
end

--- Adds a group: { params = list, lr = …, … }. Missing options are the optimizer's defaults. A
--- parameter may be in one group only. The parameters may come with names, as a list of { name,
--- parameter } or as model:named_parameters(); these are then in group.param_names. Entries that
--- are no options, `lr_scale = 0.5` say, are kept for the script and saved; what looks like a
--- misspelt option, or is one of another optimizer, raises, but for groups of another optimizer
--- (SAM's, which hands over its own). A group may be empty.
---@param group table
function Optimizer:add_param_group(group)
  local number = #self.param_groups + 1
  if type(group) ~= "table" or getmetatable(group) ~= nil or group.params == nil then
    fail("%s: a parameter group must be a table with params = list, got %s", self.__name, options.show(group))
  end
  local params, names = list_of_params(self, group.params, ("the params of group %d"):format(number))
  for g, other in ipairs(#params > 0 and self.param_groups or {}) do
    if #other.params > 0 and (names == nil) ~= (other.param_names == nil) then
      fail("%s: the parameters of group %d have %s, those of group %d have %s: " ..
        "give all of them with names, or none", self.__name, number,
        names and "names" or "no names", g, names and "none" or "some")
    end
  end
  local given, schema = {}, self:_group_schema()
  local own = self:_own_entries(group, schema)
  for _, name in ipairs(ordered.sorted_keys(self.defaults)) do given[name] = self.defaults[name] end
  for name, value in next, group do
    if name ~= "params" and own[name] == nil then given[name] = value end
  end
  local made = self:_checked(given, schema)
  for name, value in next, own do made[name] = value end
  made.params, made.param_names = params, names
  local added = {}
  for i, p in ipairs(params) do
    local where = ("parameter %d of group %d"):format(i, number)
    check_param(self, p, where)
    if added[p] then fail("%s: %s is the same tensor as parameter %d", self.__name, where, added[p]) end
    added[p] = i
  end
  for i = 1, #params do self._owned[params[i]] = number end
  local lr = group.lr == nil and self._lr or group.lr
  if core.is_tensor(lr) then rates.bind(self.__name, made, lr) end
  self.param_groups[number], groups[made] = made, true
end

-- How PyTorch is to take its steps: options that scripts carry along.
local IMPLEMENTATION = { "fused", "foreach", "capturable", "differentiable" }

-- What a group has beside its options.
local BESIDE = { params = true, param_names = true }

-- The options without those that change nothing here, and with lr as a number.
local function own_options(self, given)
  local own = {}
  for name, value in next, given do own[name] = value end
  for _, name in ipairs(IMPLEMENTATION) do
    local value = given[name]
    if value ~= nil then options.value(self.__name, name, value, { "boolean" }) end
    own[name] = nil
    if value and name == "differentiable" then
      fail("%s: differentiable = true is not there: steps are not recorded", self.__name)
    elseif value then
      notice.main_once("%s: the option %s changes nothing: each step is fused, and can be captured",
        self.__name,
        name)
    end
  end
  if core.is_tensor(own.lr) then own.lr = rates.number(self.__name, own.lr) end
  return own
end

--- Checks options; subclasses add what concerns several of them together.
function Optimizer:_checked(given, schema)
  if type(given) == "table" and getmetatable(given) == nil then given = own_options(self, given) end
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

---@param params accelerate.Tensor[]|table[]|accelerate.nn.ParameterList|function
---  model:parameters(), model:named_parameters(), a ParameterList, a function that gives parameters
---  until nil, or a list of groups { params = list, lr = …, … }
---@param opts? table
function Optimizer:init(params, opts)
  if not self._kind then
    fail("Optimizer is the base of optimizers; use one of them, optim.AdamW for instance, or derive one: " ..
      'optim.class("Name")')
  end
  self:_begin()
  self._row = self._row or KINDS[self._kind]
  self.defaults = self:_checked(opts or {}, self._schema)
  self._lr = core.is_tensor(opts and opts.lr) and opts.lr or false -- groups without an lr share the tensor
  self.param_groups = {}
  self._owned = {}               -- parameter -> number of its group
  self._cores = {}               -- group -> the core's object
  self._view = false             -- the tables by parameter, once `state` was read
  if core.is_tensor(params) then
    fail("%s: params must be a list of tensors or groups, got one tensor; write { tensor }", self.__name)
  end
  if type(params) == "function" then params = lists.walked(params) end
  local list = list_of_params(self, params, "the list of parameters")
  if #list == 0 then
    fail("%s: the list of parameters is empty: there is nothing to optimize", self.__name)
  end
  if type(list[1]) == "table" and not core.is_tensor(list[1]) and getmetatable(list[1]) == nil then
    for i = 1, #list do self:add_param_group(list[i]) end
  else
    self:add_param_group { params = params }
  end
end

-- Called before the groups are made.
function Optimizer:_begin() end

-- ---- steps

--- Returns which of the row's states a step with these numbers needs, as bits.
function Optimizer:_needs(hyper) return core.optim_needs(self._kind, hyper) end

--- Fills the numbers of a step.
function Optimizer:_hyper(group, hyper)
  local names = self._row.hyper
  for i = 1, #names do hyper[names[i]] = group[names[i]] end
end

--- Returns whether `step_unless` can be used: steps are taken by the core alone, with no number
--- that the host would have to reckon on.
---@return boolean
function Optimizer:_skips_on_device()
  if self.step ~= Optimizer.step then return false end
  for _, state in ipairs(self._row.states) do
    if state.form == "number" then return false end
  end
  return true
end

local hyper = {}  -- the numbers of the step under way

local function step_all(self, skip)
  if not first_step.seen[self] then first_step.optimizer(self) end
  states.take(self)
  rates.agree(self)
  for _, group in ipairs(self.param_groups) do
    local object, complex = states.core_of(self, group)
    self:_hyper(group, hyper)
    if gradients.any() then self:_step_rows(group) end
    if recording.active then recorded.step(self, group, object, hyper, skip)
    elseif complex then parts.lend(group.params, function() object:step(hyper, skip) end)
    else object:step(hyper, skip) end
  end
  self:_step_cut()
  states.show(self)
end

--- Steps parameters that are cut over ranks and that the core leaves out, since a step reads more
--- of them than the element that it writes. A subclass' business.
function Optimizer:_step_cut() end

--- Returns the bytes that a rank sends in a step over parameters that are cut over ranks, for the
--- table of a sharding plan.
---@param _ranks integer over how many
---@return number
function Optimizer:_bytes_sent(_ranks) return 0 end

-- What a closure returns, called with gradients on; nil where there is none.
function Optimizer:_evaluate(closure)
  if closure == nil then return nil end
  options.value(self.__name .. ":step", "closure", closure, { "function" })
  return core.enable_grad(closure)
end

--- Updates the parameters once. Parameters without a gradient do not change: no decay, no momentum.
---@param closure? fun(): any computes the loss anew, with gradients on; its result is returned
---@return any
function Optimizer:step(closure)
  local result = self:_evaluate(closure)
  step_all(self)
  if closure then return result end -- else nothing, which the prompt does not print
end

--- Steps by the sparse gradients of a group; most optimizers refuse them.
function Optimizer:_step_rows(group) gradients.refuse(self.__name, group.params) end

--- Steps unless `skip` is not 0 when the device reaches the step. The host does not wait. Available
--- if `_skips_on_device` returns true.
---@param skip accelerate.Tensor float32, one element, on the gradients' device
function Optimizer:_step_unless(skip) step_all(self, skip) end

--- Rearranges the state to match the parameters' memory, keeping its values. Call it after
--- parameters were moved into flat buffers, or were converted to another type. Without this call
--- the state stays right, too, unless the type changed.
function Optimizer:_relayout()
  states.take(self)
  for _, group in ipairs(self.param_groups) do states.core_of(self, group):relayout() end
  states.show(self)
end

--- Drops the gradients, or with set_to_none = false fills them with zeros.
---@param set_to_none? boolean|{ set_to_none: boolean } default true
function Optimizer:zero_grad(set_to_none)
  for _, group in ipairs(self.param_groups) do
    local whole = set_to_none == nil or set_to_none == true
    local object, complex = states.core_of(self, group)
    if whole and not complex then object:zero_grad()
    else parameter.zero_grad(group.params, set_to_none) end
    if gradients.any() then gradients.drop(group.params) end
  end
end

-- ---- saving: accelerate.optim.saving

for name, method in next, saving.methods do Optimizer[name] = method end

step_hooks.install(Optimizer)

function Optimizer.__tostring(self)
  local lines = {}
  for g, group in ipairs(self.param_groups) do
    lines[#lines + 1] = ("  group %d: %d parameters"):format(g, #group.params)
    for _, name in ipairs(ordered.sorted_keys(group)) do
      local value = group[name]
      if type(value) == "table" and not BESIDE[name] then
        local words = {}
        for i = 1, #value do words[i] = tostring(value[i]) end
        value = "{ " .. table.concat(words, ", ") .. " }"
      end
      if not BESIDE[name] then lines[#lines + 1] = ("    %s = %s"):format(name, tostring(value)) end
    end
  end
  return ("%s(\n%s\n)"):format(self.__name, table.concat(lines, "\n"))
end

return Optimizer
