--- Columns of tables: lists of values, or tensors whose dim 1 counts the rows.
local core = require "accelerate.core"

local M = {}

function M.rows_in(values)
  if core.is_tensor(values) then return values.ndim > 0 and values:size(1) or nil end
  if type(values) == "table" and not getmetatable(values) then return #values end
end

function M.value_at(values, place)
  if not core.is_tensor(values) then return values[place] end
  local row = values:select(1, place)
  if row.ndim > 0 then return row end
  local value = row:item()
  core.release(row)
  return value
end

-- Returns the shape of a nested list of numbers, or nil when it is ragged or holds other values;
-- and whether all numbers are integral.
local function number_shape(value)
  if type(value) == "number" then return {}, value % 1 == 0 and math.abs(value) <= 2 ^ 53 end
  if core.is_tensor(value) or type(value) ~= "table" or getmetatable(value) then return nil end
  local shape, integral = nil, true
  for i = 1, #value do
    local inner, whole = number_shape(value[i])
    if not inner or shape and #inner ~= #shape then return nil end
    for d = 1, #inner do
      if shape and inner[d] ~= shape[d] then return nil end
    end
    shape, integral = inner, integral and whole
  end
  if next(value) ~= nil and not shape then return nil end -- a map
  return { #value, unpack(shape or {}) }, integral
end

-- Returns whether all numbers of the column are integral; nil when some value is not a number.
local function integral_column(values)
  local integral = true
  local function walk(value)
    if type(value) == "number" then
      integral = integral and value % 1 == 0 and math.abs(value) <= 2 ^ 53
      return true
    end
    if type(value) ~= "table" or getmetatable(value) then return false end
    local n = 0
    for _, item in ipairs(value) do
      if not walk(item) then return false end
      n = n + 1
    end
    return n > 0 or next(value) == nil
  end
  for _, value in ipairs(values) do
    if not walk(value) then return nil end
  end
  return integral
end

-- Describes a column in format "torch": { tensor = the whole column } when it is one tensor, else {
-- dtype = type of each row }, or {} when rows stay as they are.
function M.torch_column(values)
  if core.is_tensor(values) then return { tensor = values } end
  if #values == 0 then return {} end
  if type(values[1]) == "boolean" then
    for _, value in ipairs(values) do
      if type(value) ~= "boolean" then return {} end
    end
    return { tensor = core.tensor(values) }
  end
  local shape, integral = number_shape(values)
  if shape then
    if integral then return { tensor = core.tensor(values, { dtype = "int64" }) } end
    return { tensor = core.tensor(values) }
  end
  integral = integral_column(values)
  if integral == nil then return {} end
  return { dtype = integral and "int64" or "float32" }
end

return M
