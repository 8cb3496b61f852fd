--- Compares nested values with the tables and tensors that they share, and with their circles.
local ffi = require "ffi"
local core = require "accelerate.core"
local ordered = require "accelerate.utils.ordered"
local parameter = require "accelerate.nn.parameter"

local function bytes_of(t)
  t = t:detach():contiguous()
  return t:numel() == 0 and "" or ffi.string(t:data_ptr(), t:numel() * t:element_size())
end

local function compare_tensors(a, b, at)
  if a.dtype ~= b.dtype then return ("%s: %s and %s"):format(at, a.dtype, b.dtype) end
  local x, y = table.concat(a.shape, ","), table.concat(b.shape, ",")
  if x ~= y then return ("%s: [%s] and [%s]"):format(at, x, y) end
  if a.requires_grad ~= b.requires_grad then return at .. ": requires_grad" end
  if parameter.is(a) ~= parameter.is(b) then return at .. ": only one is a parameter" end
  if bytes_of(a) ~= bytes_of(b) then return at .. ": other elements" end
end

local function plain(a, b)
  if type(a) == "number" and type(b) == "number" then
    return (a ~= a and b ~= b) or (a == b and 1 / a == 1 / b)
  end
  return a == b
end

--- Returns nil, or where two values differ and how.
---@return string?
return function(first, second)
  local partner, queue = {}, { { first, second, "it" } }
  local at = 1
  while queue[at] do
    local a, b, where = unpack(queue[at], 1, 3)
    at = at + 1
    local kind = core.is_tensor(a) and "tensor" or type(a)
    local other = core.is_tensor(b) and "tensor" or type(b)
    if kind ~= other then return ("%s: a %s and a %s"):format(where, kind, other) end
    if kind ~= "tensor" and kind ~= "table" then
      if not plain(a, b) then return ("%s: %s and %s"):format(where, tostring(a), tostring(b)) end
    elseif partner[a] then
      if partner[a] ~= b then return where .. ": shared in one value only" end
    elseif partner[b] then
      return where .. ": shared in one value only"
    else
      partner[a], partner[b] = b, a
      if kind == "tensor" then
        local difference = compare_tensors(a, b, where)
        if difference then return difference end
      else
        local keys, others = ordered.keys(a), ordered.keys(b)
        if ordered.is_ordered(a) ~= ordered.is_ordered(b) then return where .. ": only one has an order" end
        if #keys ~= #others then return ("%s: %d and %d keys"):format(where, #keys, #others) end
        for i, key in ipairs(keys) do
          if key ~= others[i] then
            return ("%s: key %s and %s"):format(where, tostring(key), tostring(others[i]))
          end
          queue[#queue + 1] = { rawget(a, key), rawget(b, key), ("%s[%s]"):format(where, tostring(key)) }
        end
      end
    end
  end
end
