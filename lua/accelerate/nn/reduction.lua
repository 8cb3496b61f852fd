--- The arguments of losses in PyTorch's order, in which size_average and reduce, deprecated there,
--- stand before reduction. Either of them decides the reduction in its place: reduce = false is
--- "none", size_average = false is "sum", and what else is "mean".

local methods = require "accelerate.messages.methods"
local options = require "accelerate.utils.options"

local M = {}

local FLAG = { "boolean", optional = true }

--- Returns the options with `reduction` in place of PyTorch's old size_average and reduce. A value
--- that is no table, or has neither, is returned unchanged.
---@param where string
---@param given any
---@return any
function M.settle(where, given)
  if type(given) ~= "table" or getmetatable(given) ~= nil
    or given.size_average == nil and given.reduce == nil then
    return given
  end
  local o = {}
  for name, value in next, given do o[name] = value end
  o.size_average, o.reduce = nil, nil
  local average = options.value(where, "option 'size_average'", given.size_average, FLAG)
  local reduce = options.value(where, "option 'reduce'", given.reduce, FLAG)
  o.reduction = reduce == false and "none" or average == false and "sum" or "mean"
  return o
end

local KINDS = { weight = "userdata", pos_weight = "userdata", size_average = "boolean", reduce = "boolean",
  reduction = "string", ignore_index = "number", label_smoothing = "number", beta = "number",
  log_target = "boolean" }

-- Whether the values are of the kinds that the names have.
local function fit(names, given, n)
  if n > #names then return false end
  for i = 1, n do
    if given[i] ~= nil and type(given[i]) ~= KINDS[names[i]] then return false end
  end
  return true
end

--- Returns a loss of input and target that takes the rest in PyTorch's order, or in fn's own.
---@param where string
---@param order string the names behind target, in PyTorch's order
---@param fn function(input, target, ...)
---@return function
function M.ordered(where, order, fn)
  local names = {}
  for name in order:gmatch "%S+" do names[#names + 1] = name end
  local function loss(input, target, ...)
    local n = select("#", ...)
    if n == 0 then return fn(input, target) end
    local given = { ... }
    while n > 0 and given[n] == nil do n = n - 1 end
    local at_end = given[n]
    local named = type(at_end) == "table" and getmetatable(at_end) == nil
    local count = named and n - 1 or n
    if named and count == 0 then return fn(input, target, M.settle(where, at_end)) end
    if not fit(names, given, count) then return fn(input, target, ...) end
    local o = options.gather(where, names, ...)
    return fn(input, target, M.settle(where, o))
  end
  methods.stands_for(loss, fn)
  return loss
end

return M
