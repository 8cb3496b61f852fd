--- split_between_processes: a rank's part of a list, a tensor, a data set, or a map of them.
local core = require "accelerate.core"
local nested = require "accelerate.utils.nested"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local scope = require "accelerate.utils.scope"

local fail = options.fail

local M = {}

--- Returns whether `value` is a data set: it has get(i) and len().
local function is_dataset(value)
  return type(value) == "table" and type(value.get) == "function" and type(value.len) == "function"
end

--- Kinds of values that can be split, each with its length and its part from..to, padded with its
--- last item to `padded`.
local KINDS = {
  {
    test = core.is_tensor,
    length = function(value, where)
      if value:dim() == 0 then
        fail("split_between_processes: a tensor without dims%s cannot be split", where)
      end
      return value:size(1)
    end,
    part = function(value, from, count, padded, length)
      local part = value:narrow(1, count > 0 and from or 1, count)
      if padded <= count then return part end
      local shape = value.shape
      shape[1] = padded - count
      return core.cat({ part, value:narrow(1, length, 1):expand(shape) }, 1)
    end,
  },
  {
    test = is_dataset,
    length = function(value) return value:len() end,
    part = function(value, from, count, padded, length)
      local positions = {}
      for i = 1, count do positions[i] = from + i - 1 end
      for i = count + 1, padded do positions[i] = length end
      if type(value.select) == "function" then return value:select(positions) end
      return require("accelerate.data").Subset(value, positions)
    end,
  },
  {
    test = function(value) return nested.is_container(value) and ordered.is_list(value) end,
    length = function(value) return #value end,
    part = function(value, from, count, padded, length)
      local part = {}
      for i = 1, count do part[i] = value[from + i - 1] end
      for i = count + 1, padded do part[i] = value[length] end
      return part
    end,
  },
}

local function kind_of(value, where)
  for _, kind in ipairs(KINDS) do
    if kind.test(value) then return kind end
  end
  fail("split_between_processes: expected a list, a tensor, a data set, or a map of them, got %s%s",
    options.show(value), where)
end

local OPTIONS = { apply_padding = { "boolean", default = false } }

local function split(rank, ranks, inputs, opts, fn, ...)
  opts = options.check("split_between_processes", opts, OPTIONS)
  local map = nested.is_container(inputs) and not ordered.is_list(inputs)
  local values = map and inputs or { inputs }
  local kinds, length, first = {}, nil, nil
  for key, value in ordered.pairs(values) do
    local where = map and (" at '%s'"):format(tostring(key)) or ""
    kinds[key] = kind_of(value, where)
    local own = kinds[key].length(value, where)
    if length and own ~= length then
      fail("split_between_processes: all values of the map must have the same length: " ..
        "'%s' has %d, '%s' has %d", tostring(first),
        length, tostring(key), own)
    end
    length, first = own, first or key
  end
  if ranks == 1 then return fn(inputs, ...) end
  local each, extra = math.floor(length / ranks), length % ranks
  local from, count = rank * each + math.min(rank, extra) + 1, each + (rank < extra and 1 or 0)
  local padded = opts.apply_padding and length > 0 and each + (extra > 0 and 1 or 0) or 0
  local parts = nested.honor_type(map and inputs or {}, {})
  for key, value in ordered.pairs(values) do
    parts[key] = kinds[key].part(value, from, count, padded, length)
  end
  return fn(map and parts or parts[1], ...)
end

--- Calls `fn` with this rank's part of `inputs` and returns its results; see
--- PartialState:split_between_processes.
---@param rank integer from 0
---@param ranks integer
function M.split(rank, ranks, inputs, ...)
  if inputs == nil then
    fail("split_between_processes: inputs is missing (expected a list, a tensor, " ..
      "a data set, or a map of them)")
  end
  local opts, fn = ...
  if not scope.callable(opts) then options.value("split_between_processes", "fn", fn, { "function" }) end
  return split(rank, ranks, inputs, scope.arguments("split_between_processes", OPTIONS, ...))
end

return M
