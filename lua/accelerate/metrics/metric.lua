--- Base of all metrics: add single values or batches; compute() returns a table of numbers and
--- resets the metric.
local class = require "accelerate.utils.class"
local deepcopy = require "accelerate.utils.copy"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local fail, show = options.fail, options.show

--- Base class. A metric defines `_reset()`, `_add(...)` for one value of each input, and
--- `_compute(opts)`; `inputs` names the inputs in the order of positional arguments.
---@class accelerate.Metric
---@field name string
---@field inputs string[]
local Metric = class("Metric")
Metric.inputs = { "predictions", "references" }

function Metric:init(opts)
  self._defaults = options.check(self.__name, opts, self.OPTIONS or {})
  self:_reset()
end

-- Returns a flat list of the numbers (or strings) in a tensor, a list or one value.
local function flat(where, what, value)
  if core.is_tensor(value) then
    if value.ndim == 0 then return { value:item() } end
    return value:detach():reshape(value:numel()):totable()
  end
  if type(value) == "number" or type(value) == "string" or type(value) == "boolean" then return { value } end
  if type(value) ~= "table" or getmetatable(value) then
    fail("%s: %s must be a tensor, a list or a number, got %s", where, what, show(value))
  end
  local list = {}
  for i, entry in ipairs(value) do
    if core.is_tensor(entry) or type(entry) == "table" then
      for _, inner in ipairs(flat(where, what, entry)) do list[#list + 1] = inner end
    else
      list[i] = entry
    end
  end
  return list
end

-- Reads the inputs by position, or from one table by name (also by singular names: prediction,
-- reference).
local function read_inputs(self, where, ...)
  local names, given = self.inputs, { ... }
  local first = given[1]
  if select("#", ...) == 1 and type(first) == "table" and not getmetatable(first) and next(first) ~= nil
    and #first == 0 then
    given = {}
    local known = {}
    for k, name in ipairs(names) do
      given[k] = first[name]
      if given[k] == nil then given[k] = first[(name:gsub("s$", ""))] end
      known[name], known[(name:gsub("s$", ""))] = true, true
    end
    for name in pairs(first) do
      if not known[name] then
        fail("%s: unknown input '%s'%s", where, tostring(name), options.hint(name, names))
      end
    end
  elseif select("#", ...) > #names then
    fail("%s: expected %s, got %d values", where, table.concat(names, ", "), select("#", ...))
  end
  return given
end

--- Adds a batch of tensors or lists, by position or by name: `metric:add_batch(predictions,
--- references)`, `metric:add_batch{ predictions = p, references = r }`. On several ranks pass every
--- rank the results of gather_for_metrics.
function Metric:add_batch(...)
  local where = self.name .. ":add_batch"
  local given, lists = read_inputs(self, where, ...), {}
  local count = #self.inputs - (self.optional_inputs or 0)
  for k, name in ipairs(self.inputs) do
    if given[k] == nil and k <= count then fail("%s: %s are missing", where, name) end
    if given[k] ~= nil then lists[k] = flat(where, name, self:_prepare(name, given[k])) end
  end
  for k = 2, #self.inputs do
    if lists[k] and #lists[k] ~= #lists[1] then
      fail("%s: there are %d %s and %d %s", where, #lists[1], self.inputs[1], #lists[k], self.inputs[k])
    end
  end
  for i = 1, #lists[1] do self:_add(lists[1][i], lists[2] and lists[2][i]) end
end

--- Adds one value of each input.
function Metric:add(...) self:add_batch(...) end

-- For metrics that take more than flat values.
function Metric:_prepare(_, value) return value end

-- What has been added so far is in the fields that _reset sets; _defaults are the caller's options.
local function counts(name)
  return type(name) == "string" and name:sub(1, 1) == "_" and name ~= "_defaults"
end

--- Returns what was added so far as plain data, for utils.save and register_for_checkpointing.
---@return table
function Metric:state_dict()
  local state = {}
  for name, value in next, self do
    if counts(name) then state[name] = deepcopy(value) end
  end
  return { metric = self.name, state = state }
end

--- Takes what state_dict returned in the place of what was added so far. Raises for the state of
--- another metric.
---@param saved table
function Metric:load_state_dict(saved)
  local state = type(saved) == "table" and saved.state
  if type(state) ~= "table" or saved.metric ~= self.name then
    fail("%s:load_state_dict: expected what state_dict() of '%s' returned, got %s", self.name, self.name,
      type(state) == "table" and ("that of '%s'"):format(tostring(saved.metric)) or show(saved))
  end
  self:_reset()
  for name, value in pairs(state) do
    if not counts(name) or type(value) ~= type(rawget(self, name)) then
      fail("%s:load_state_dict: '%s' is no part of its state", self.name, tostring(name))
    end
    self[name] = deepcopy(value)
  end
end

--- Returns the result and resets the metric. Inputs may be passed here, too; other options are the
--- metric's.
---@param opts? table
---@return table<string, any>
function Metric:compute(opts)
  local rest = {}
  for name, value in pairs(self._defaults) do rest[name] = value end
  local inputs
  for name, value in pairs(opts or {}) do
    local is_input = false
    for _, input in ipairs(self.inputs) do is_input = is_input or name == input end
    if is_input then
      inputs = inputs or {}
      inputs[name] = value
    else
      rest[name] = value
    end
  end
  if inputs then self:add_batch(inputs) end
  local o = options.check(self.name .. ":compute", rest, self.OPTIONS or {})
  if self:_empty() then fail("%s:compute: nothing was added", self.name) end
  local result = self:_compute(o)
  self:_reset()
  return result
end

return Metric
